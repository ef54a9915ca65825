//! What the embedding worker needs of a model: llama.cpp, or the fake of a test.

use crate::backend::{DecodeError, TokenInput};
use corral_scheduler::SeqId;

/// Computes a vector for each token of a step, and keeps the state of causal models per sequence.
pub trait EmbeddingBackend {
    /// Computes a step of at most [`BatchLimits::step_tokens`](super::batch::BatchLimits::step_tokens)
    /// tokens; those of a sequence come in order and without gaps. `busy` tells that the processor
    /// has other work too.
    fn compute(&mut self, step: &[TokenInput], busy: bool) -> Result<(), DecodeError>;

    /// The vector of input number `index` of the last step.
    fn vector(&self, index: usize) -> Option<&[f32]>;

    /// The scores of a sequence after the last step, if the model is a reranker.
    fn scores(&self, seq: SeqId) -> Option<&[f32]>;

    /// Drops the state of a sequence.
    fn clear(&mut self, seq: SeqId);
}
