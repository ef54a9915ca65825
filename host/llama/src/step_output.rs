//! Outputs of a step.

use crate::Token;

/// The output after one token of a step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Output<'a> {
    /// The logit of each token of the vocabulary.
    Logits(&'a [f32]),
    /// The highest logits and their tokens, in no order.
    TopK {
        /// The tokens.
        tokens: &'a [Token],
        /// The logit of each of `tokens`.
        logits: &'a [f32],
    },
}

/// Bytes of logits that a step copied from the device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LogitsCopied {
    /// Bytes of the highest logits and their tokens.
    pub top_k: u64,
    /// Bytes of whole rows.
    pub whole: u64,
}
