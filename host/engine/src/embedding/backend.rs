//! What the embedding thread needs of a thing that computes vectors: llama.cpp, or a test's own.

use crate::backend::{DecodeError, TokenInput};
use corral_scheduler::SeqId;

/// Computes a vector for each token of a step, and keeps what causal models remember of sequences.
pub trait Embeds {
    /// Computes one step: at most [`Sizes::step_tokens`](super::packing::Sizes::step_tokens)
    /// tokens, those of a sequence in order and without gaps. `busy` says that someone else needs
    /// the processor too.
    fn compute(&mut self, step: &[TokenInput], busy: bool) -> Result<(), DecodeError>;

    /// The vector of input number `index` of the last step.
    fn vector(&self, index: usize) -> Option<&[f32]>;

    /// The scores of a sequence after the last step, of a model that ranks.
    fn scores(&self, seq: SeqId) -> Option<&[f32]>;

    /// Forgets a sequence.
    fn clear(&mut self, seq: SeqId);
}
