//! Chats and prompts.
//!
//! A [`Chat`] becomes a prompt through the template in the model file (`Chat::tokens` and
//! `Chat::sequence`, feature `jinja`) or through a linked templating plugin (`render_linked`,
//! feature `linked-templating`). In both, text from the chat is never read as a control token.

mod chat;
#[cfg(feature = "jinja")]
mod control_tokens;
mod image;
#[cfg(feature = "jinja")]
mod jinja;
#[cfg(feature = "linked-templating")]
mod linked;
mod prompt;
#[cfg(feature = "jinja")]
mod strftime;

pub use chat::{Chat, ChatMessage};
pub use image::{ChatImage, image_of, is_image};
#[cfg(feature = "linked-templating")]
pub use linked::render_linked;
pub use prompt::{ModelFacts, Piece, Prompt};
