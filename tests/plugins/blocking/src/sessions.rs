//! What a program does with the session that serves it, under a runtime outside the host.

use super::operations::{self, OpenModel, request};
use crate::bindings::corral::inference::inference::{Options, Sequence};
use crate::bindings::corral::inference::inference_sync::{generate, next, open_model};
use crate::bindings::corral::inference::types::Error;

/// Tokens that all sequences of a plugin may hold.
const MAX_TOKENS: usize = 4 << 20;

/// Fills sequences up to one token below the limit, appends one and then another token, and asks for the next one.
pub fn full() -> Result<String, Error> {
    let model = OpenModel::new()?;
    let context = model.info.context as usize;
    let mut left = MAX_TOKENS - 1;
    let mut sequences = Vec::new();
    while left > 0 {
        let length = left.min(context - 2);
        let sequence = Sequence::create(&model.handle)?;
        sequence.append(&vec![49; length])?;
        left -= length;
        sequences.push(sequence);
    }
    let last = sequences.last().ok_or(Error::Cancelled)?;
    last.append(&[50])?;
    last.append(&[51])?;
    next(last, &request())?;
    Ok("the plugin holds more tokens than it may".to_owned())
}

/// Tokenizes a text that is longer than a line of a session, then generates.
pub fn long(prompt: &str) -> Result<String, Error> {
    let model = OpenModel::new()?;
    match model.handle.tokenize(&"1".repeat(17 << 20), false) {
        Ok(tokens) => Ok(format!("{} tokens", tokens.len())),
        Err(Error::Invalid(_)) => operations::generate(prompt),
        Err(other) => Err(other),
    }
}

/// Holds only a generation until the session has ended. Returns its error, and what a new session generates.
pub fn lost(prompt: &str) -> Result<String, Error> {
    let generation = {
        let model = OpenModel::new()?;
        let options = Options::new(16_000);
        options.ignore_eos();
        generate(&model.sequence(prompt)?, &options)?
    };
    while open_model(None).is_ok() {}
    let error = generation.outcome().err();
    drop(generation);
    Ok(format!("{error:?} {}", operations::generate(prompt)?))
}
