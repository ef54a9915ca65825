//! Plugins that are linked to other plugins: [`templating!`](crate::templating) and
//! [`sampling!`](crate::sampling!).
//!
//! A linked plugin is isolated from the deployment: it has no models, environment or network, only
//! the values passed to its functions.

#[doc(hidden)]
pub mod sampling;
#[doc(hidden)]
pub mod templating;

pub use sampling::{Sampler, SamplerContext, SamplerInput, SamplerNeeds};

pub use crate::template::{Chat, ChatMessage, ModelFacts, Piece, Prompt};
