//! How the vectors reach who asked.

use super::pooling::Pooling;
use crate::reply;
use std::time::Duration;

/// The answer: vectors in the order of the inputs.
#[derive(Clone, Debug, PartialEq)]
pub struct Vectors {
    /// How they were pooled.
    pub pooling: Pooling,
    /// Numbers in a vector; of [`Pooling::Rank`] the number of scores.
    pub width: usize,
    /// For each input its vector; of [`Pooling::Tokens`] those of its tokens, one after another.
    pub inputs: Vec<Vec<f32>>,
    /// Tokens of all inputs.
    pub tokens: u64,
    /// From the call until the first input was taken up.
    pub queue_time: Duration,
    /// From then until the last vector was there.
    pub compute_time: Duration,
}

/// The embedder's end.
pub type Sender = reply::Sender<Vectors>;

/// Vectors in the making: a future. Dropping it cancels the request at the next step.
pub type Embedding = reply::Reply<Vectors>;
