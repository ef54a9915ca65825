//! The result of a request for embeddings.

use super::pooling::Pooling;
use crate::reply;
use std::time::Duration;

/// Vectors in the order of the inputs.
#[derive(Clone, Debug, PartialEq)]
pub struct Vectors {
    /// How they were pooled.
    pub pooling: Pooling,
    /// Numbers in a vector; for [`Pooling::Rank`] the number of scores.
    pub width: usize,
    /// One vector per input; for [`Pooling::Tokens`] the concatenated vectors of its tokens.
    pub inputs: Vec<Vec<f32>>,
    /// Tokens of all inputs.
    pub tokens: u64,
    /// From the call until the first input started.
    pub queue_time: Duration,
    /// From then until the last vector was computed.
    pub compute_time: Duration,
}

/// Sends the result of a request.
pub type VectorSender = reply::ReplySender<Vectors>;

/// A future of vectors. Dropping it cancels the request at the next step.
pub type Embedding = reply::Reply<Vectors>;
