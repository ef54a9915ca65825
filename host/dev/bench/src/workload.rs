//! Work for an engine in this process.

use crate::args::CommonArgs;
use corral_cli::Error;
use corral_cli::args::DeviceArgs;
use corral_engine::{Caller, Engine, GenerateOptions, Generation, ModelConfig, Outcome, Token};
use std::path::Path;
use std::time::Instant;

/// Cells that an engine has at least.
const MIN_CELLS: u32 = 8192;

/// The configuration of the measured model: at least `cells` cells, so that no request waits for cells, and no
/// prefix cache, so that every token is computed. Loads the backends.
pub(crate) fn config(
    common: &CommonArgs,
    threads: Option<u32>,
    cells: u64,
) -> Result<ModelConfig, Error> {
    file_config(&common.model, &common.devices, threads, cells)
}

/// [`config`] of a file.
pub(crate) fn file_config(
    file: &Path,
    devices: &DeviceArgs,
    threads: Option<u32>,
    cells: u64,
) -> Result<ModelConfig, Error> {
    devices.backends.load()?;
    let mut config = ModelConfig::new("bench", file);
    config.placement = devices.for_model("bench");
    config.threads = threads;
    let cells = u32::try_from(cells).unwrap_or(u32::MAX);
    config.cells = Some(cells.max(MIN_CELLS));
    config.prefix_cache = false;
    Ok(config)
}

/// Refuses a sequence longer than the context, which the engine would cut short. `option` asks for `requested` of its
/// tokens; there are `others` beside them.
pub(crate) fn check_context(
    context: u32,
    option: &str,
    requested: u64,
    others: u64,
) -> Result<(), Error> {
    let (context, needed) = (u64::from(context), requested + others);
    if needed <= context {
        return Ok(());
    }
    Err(Error::failed(format!(
        "{option} {requested} needs a context of {needed}, and the model's has {context}; \
         give {option} {} or less",
        context.saturating_sub(others)
    )))
}

/// Arbitrary tokens, which differ for each `number`.
pub(crate) fn prompt(engine: &Engine, number: u64, length: u64) -> Vec<Token> {
    let vocabulary = u64::from(engine.info().vocabulary);
    let token = |at| (number * 7919 + at * 104_729 + 17) % vocabulary;
    (0..length)
        .map(|at| u32::try_from(token(at)).unwrap_or(0))
        .collect()
}

/// Options for exactly `tokens` tokens.
pub(crate) fn exactly(tokens: u64) -> GenerateOptions {
    GenerateOptions {
        max_tokens: u32::try_from(tokens).unwrap_or(u32::MAX),
        ignore_end: true,
        ..GenerateOptions::default()
    }
}

/// Generates exactly `tokens` tokens; returns when each arrived.
pub(crate) async fn generate(
    engine: &Engine,
    prompt: Vec<Token>,
    tokens: u64,
) -> Result<Vec<Instant>, corral_engine::Error> {
    let mut generation = engine.generate(prompt, exactly(tokens), Caller::default())?;
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

/// Reads a generation to its end; returns when its first token arrived, if one did.
pub(crate) async fn finish(
    mut generation: Generation,
) -> Result<(Option<Instant>, Outcome), corral_engine::Error> {
    let mut first = None;
    while generation.next().await.is_some() {
        first.get_or_insert_with(Instant::now);
    }
    let outcome = generation.outcome();
    Ok((
        first,
        outcome.unwrap_or(Err(corral_engine::Error::Cancelled))?,
    ))
}

/// One of the engine's metrics.
pub(crate) fn metric(engine: &Engine, name: &str) -> f64 {
    let metrics = engine.metrics();
    let found = metrics.iter().find(|metric| metric.name == name);
    found.map_or(0.0, |metric| metric.value)
}

#[cfg(test)]
mod tests {
    use super::check_context;

    #[test]
    fn too_long_sequence_is_refused() {
        assert!(check_context(616, "--length", 600, 16).is_ok());
        let error = check_context(615, "--length", 600, 16).expect_err("one token too many");
        let expected = "--length 600 needs a context of 616, and the model's has 615; \
                        give --length 599 or less";
        assert_eq!(error.message(false), expected);
    }
}
