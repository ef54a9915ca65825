//! Chats, and prompts made of them.
//!
//! There are two ways from a [`Chat`] to a prompt: the template in the model's file
//! (`Chat::tokens` and `Chat::sequence`, with the feature `jinja`), and a templating plugin that the
//! deployment links (`linked`, with the feature `linked-templating`). In both, what came with the chat can
//! never be read as a control token.

mod chat;
#[cfg(feature = "jinja")]
mod control;
#[cfg(feature = "jinja")]
mod jinja;
#[cfg(feature = "linked-templating")]
mod link;
mod prompt;
#[cfg(feature = "jinja")]
mod strftime;

pub use chat::{Chat, Turn};
#[cfg(feature = "linked-templating")]
pub use link::linked;
pub use prompt::{ModelFacts, Piece, Prompt};
