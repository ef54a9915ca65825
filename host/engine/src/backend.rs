//! What the engine thread needs of a thing that decodes: llama.cpp, or a simulator.

use crate::Token;
use crate::scheduler::SeqId;

/// One token of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Input {
    /// The token.
    pub token: Token,
    /// Its position in the sequence, from 0.
    pub position: u32,
    /// The sequence it belongs to.
    pub seq: SeqId,
    /// Whether logits are wanted after it.
    pub output: bool,
}

/// Why a step was not decoded. The state is as before the call: the backend computes a step whole
/// or not at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// There is no room for the tokens.
    #[error("there is no room in the key-value cache")]
    NoRoom,
    /// The computation was aborted or failed; the code is the backend's.
    #[error("the model's computation failed (code {0})")]
    Failed(i32),
}

/// Decodes steps and keeps the key-value cells of sequences.
pub trait Backend {
    /// Computes one step. At most [`Limits::step_tokens`](crate::scheduler::Limits::step_tokens)
    /// tokens, positions of a sequence in order and without gaps.
    fn decode(&mut self, step: &[Input]) -> Result<(), DecodeError>;

    /// The logits after input number `index` of the last step, one for each token of the
    /// vocabulary. `None` if that input was no output.
    fn logits(&self, index: usize) -> Option<&[f32]>;

    /// Frees the cells of a sequence.
    fn clear(&mut self, seq: SeqId);

    /// Number of positions that a sequence occupies: for checks that nothing was left behind.
    fn length(&self, seq: SeqId) -> u32;
}
