//! The tokens of a step, and what the backend returns for them.

use corral_scheduler::{SeqId, Token};

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

/// Why a step failed. Nothing of it stays, unless the memory can't truncate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// Too few cells are free.
    #[error("too few cells are free")]
    NoRoom,
    /// The computation failed with this code.
    #[error("the computation failed with code {0}")]
    Failed(i32),
}
