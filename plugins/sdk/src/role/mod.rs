//! Plugins that are linked to others: [`templating!`](crate::templating) and
//! [`sampling!`](crate::sampling!).
//!
//! They see nothing of the deployment that they are linked into: no models, no environment, no network;
//! only what they are handed.

#[doc(hidden)]
pub mod sampling;
#[doc(hidden)]
pub mod templating;

pub use sampling::{Beginning, Needs, Sampler, Told};

pub use crate::template::{Chat, ModelFacts, Piece, Prompt, Turn};
