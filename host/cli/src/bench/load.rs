//! Work for an engine, and when its tokens came.

use crate::arguments::Measuring;
use crate::complaint::Complaint;
use crate::offload::Offloading;
use corral_engine::{Caller, Config, Engine, Error, Options, Token};
use std::path::Path;
use std::time::Instant;

/// How to load the model that is measured: `threads` compute, and there are `cells`, or more if the model's context
/// is longer, so that nothing that is measured waits for room. Loads the backends that are asked for.
pub(super) fn config(
    measuring: &Measuring,
    threads: Option<u32>,
    cells: u64,
) -> Result<Config, Complaint> {
    config_of(&measuring.model, &measuring.offloading, threads, cells)
}

/// [`config`] of a file.
pub(super) fn config_of(
    file: &Path,
    offloading: &Offloading,
    threads: Option<u32>,
    cells: u64,
) -> Result<Config, Complaint> {
    offloading.backends.load()?;
    let mut config = Config::new("bench", file);
    config.placement = offloading.of("bench");
    config.threads = threads;
    let cells = u32::try_from(cells).unwrap_or(u32::MAX);
    config.cells = Some(cells.max(8192));
    // What is measured is computed each time.
    config.prefix_cache = false;
    Ok(config)
}

/// Refuses what the context does not hold: it would be cut short, and something else be measured.
/// `option` asks for `asked` tokens of a sequence, which has `others` beside them.
pub(super) fn check_room(
    context: u32,
    option: &str,
    asked: u64,
    others: u64,
) -> Result<(), Complaint> {
    let (context, needed) = (u64::from(context), asked + others);
    if needed <= context {
        return Ok(());
    }
    Err(Complaint::Failed(
        format!(
            "{option} {asked} needs a context of {needed}, and the model's has {context}; \
             give {option} {} or less",
            context.saturating_sub(others)
        )
        .into(),
    ))
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

#[cfg(test)]
mod tests {
    use super::check_room;
    use crate::complaint::Complaint;

    #[test]
    fn what_the_context_does_not_hold_is_refused_with_what_it_does() {
        assert!(check_room(616, "--length", 600, 16).is_ok());
        let Err(Complaint::Failed(error)) = check_room(615, "--length", 600, 16) else {
            panic!("615 positions hold no 616");
        };
        let expected = "--length 600 needs a context of 616, and the model's has 615; \
                        give --length 599 or less";
        assert_eq!(error.to_string(), expected);
    }
}
