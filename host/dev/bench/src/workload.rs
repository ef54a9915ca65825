//! Work for an engine in this process.

use crate::args::{EngineArgs, check_devices};
use corral_cli::Error;
use corral_engine::{
    Caller, Engine, EngineStatus, GenerateOptions, Generation, Metric, ModelConfig, Outcome, Token,
};
use rand::RngExt;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng;
use std::time::Instant;

/// Cells that an engine has at least.
const MIN_CELLS: u32 = 8192;

/// The configuration of the measured model: at least `cells` cells, so that no request waits for cells, and no
/// prefix cache, so that every token is computed. Loads the backends.
pub(crate) fn config(args: &EngineArgs, cells: u64) -> Result<ModelConfig, Error> {
    check_devices(&args.devices)?;
    args.devices.backends.load()?;
    let mut config = ModelConfig::new("bench", &args.model);
    config.placement = args.devices.for_model("bench");
    config.threads = args.threads;
    config.adaptive_threads = !args.fixed_threads;
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
        ignore_eos: true,
        ..GenerateOptions::default()
    }
}

/// Generates exactly `tokens` tokens; returns when each arrived.
pub(crate) async fn generate(
    engine: &Engine,
    prompt: Vec<Token>,
    tokens: u64,
) -> Result<Vec<Instant>, Error> {
    let generation = engine.generate(prompt, exactly(tokens), Caller::default())?;
    Ok(finish(generation).await?.0)
}

/// Reads a generation to its end; returns when each token arrived.
pub(crate) async fn finish(mut generation: Generation) -> Result<(Vec<Instant>, Outcome), Error> {
    let mut times = Vec::new();
    while let Some(chunk) = generation.next().await {
        let now = Instant::now();
        times.extend(chunk.tokens.iter().map(|_| now));
    }
    let outcome = generation.outcome();
    Ok((
        times,
        outcome.unwrap_or(Err(corral_engine::Error::ShuttingDown))?,
    ))
}

/// The engine's status after all earlier commands.
pub(crate) async fn status(engine: &Engine) -> Result<EngineStatus, Error> {
    let (sender, receiver) = tokio::sync::oneshot::channel();
    // Sending fails only after this function has returned.
    engine.status(move |status| drop(sender.send(status)))?;
    let ended = Error::context("the engine's thread has ended");
    receiver.await.map_err(ended)
}

/// One of the engine's metrics.
pub(crate) fn metric(engine: &Engine, name: &str) -> f64 {
    value(&engine.metrics(), name)
}

/// A metric of a list; 0 if it is missing.
pub(crate) fn value(metrics: &[Metric], name: &str) -> f64 {
    let found = metrics.iter().find(|metric| metric.name == name);
    found.map_or(0.0, |metric| metric.value)
}

/// Digits that differ for each `number`.
pub(crate) fn random_digits(number: u64, length: u64) -> String {
    let mut rng = ChaCha8Rng::seed_from_u64(number);
    let digit = |_| char::from(b'0' + rng.random_range(0..10_u8));
    (0..length).map(digit).collect()
}

/// A counter's value.
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
pub(crate) fn count(value: f64) -> u64 {
    value as u64
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
