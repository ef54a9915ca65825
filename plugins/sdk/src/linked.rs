//! Plugins that are linked to other plugins: [`templating!`](crate::templating) and
//! [`sampling!`](crate::sampling!).
//!
//! A linked plugin has only the values passed to its functions: no network, and neither models nor
//! environment, unless a templating plugin is linked with `inherit = true`.

#[doc(hidden)]
pub mod sampling;
#[doc(hidden)]
pub mod templating;

pub use sampling::{Sampler, SamplerContext, SamplerInput, SamplerNeeds};

pub use crate::template::{Chat, ChatMessage, ModelFacts, Piece, Prompt};
