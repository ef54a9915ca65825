//! Joins what is left of a generation into one chunk, for `collect`.
//!
//! *Invariant*: tokens, text and log probabilities keep their order. It waits inside `read`, and does not limit the size,
//! which the generation's maximum of tokens does.

use crate::bindings::exports::corral::inference::inference::Chunk;

/// Joins a chunk that was read before, if there is one, and all that `read` returns.
pub fn collect(first: Option<Chunk>, mut read: impl FnMut() -> Option<Chunk>) -> Chunk {
    let mut all = first.unwrap_or_else(|| Chunk {
        tokens: Vec::new(),
        text: String::new(),
        logprobs: Vec::new(),
    });
    while let Some(chunk) = read() {
        all.tokens.extend(chunk.tokens);
        all.text += &chunk.text;
        all.logprobs.extend(chunk.logprobs);
    }
    all
}
