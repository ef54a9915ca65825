//! Work for an engine, and when its tokens came.

use crate::complaint::Complaint;
use corral_engine::{Caller, Config, Engine, Error, Options, Prefill, Token};
use std::path::Path;
use std::time::Instant;

/// Loads a model; `threads` compute. There are `cells`, or more if the model's context is longer, so
/// that nothing that is measured waits for room.
pub(super) async fn load(
    file: &Path,
    threads: Option<u32>,
    prefill: Prefill,
    cells: u64,
) -> Result<Engine, Complaint> {
    let mut config = Config::new("bench", file);
    config.threads = threads;
    let cells = u32::try_from(cells).unwrap_or(u32::MAX);
    config.cells = Some(cells.max(8192));
    config.prefill = prefill;
    let loaded = tokio::task::spawn_blocking(move || Engine::load(config)).await;
    Ok(loaded.map_err(Complaint::telling("the model's loader crashed"))??)
}

/// A prompt of `length` tokens that means nothing; another one for each `number`.
pub(super) fn prompt(engine: &Engine, number: u64, length: u64) -> Vec<Token> {
    let vocabulary = u64::from(engine.info().vocabulary);
    let token = |at| (number * 7919 + at * 104_729 + 17) % vocabulary;
    (0..length)
        .map(|at| u32::try_from(token(at)).unwrap_or(0))
        .collect()
}

/// Generates exactly `tokens` tokens; returns when each of them was there.
pub(super) async fn generate(
    engine: &Engine,
    prompt: Vec<Token>,
    tokens: u64,
) -> Result<Vec<Instant>, Error> {
    let options = Options {
        max_tokens: u32::try_from(tokens).unwrap_or(u32::MAX),
        ignore_end: true,
        ..Options::default()
    };
    let mut generation = engine.generate(prompt, options, Caller::default())?;
    let mut times = Vec::new();
    while let Some(chunk) = generation.next().await {
        let now = Instant::now();
        times.extend(chunk.tokens.iter().map(|_| now));
    }
    match generation.outcome() {
        Some(Err(error)) => Err(error),
        _ => Ok(times),
    }
}

/// One of the engine's numbers.
pub(super) fn metric(engine: &Engine, name: &str) -> f64 {
    let metrics = engine.metrics();
    metrics
        .iter()
        .find(|m| m.name == name)
        .map_or(0.0, |m| m.value)
}
