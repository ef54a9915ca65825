//! Stages 1 to 3: requests through the engine's interface.

use super::clients::{Client, read, read_all};
use super::prompts::Prompt;
use crate::workload::exactly;
use corral_cli::Error;
use corral_engine::{Caller, Engine, GenerateOptions, Token};
use std::sync::Arc;

/// Options for `tokens` tokens, greedily or always the same one.
fn options(tokens: u64, fixed: Option<Token>) -> GenerateOptions {
    GenerateOptions {
        fixed_token: fixed,
        ..exactly(tokens)
    }
}

/// The token of stage 1: one without text, if the model has one.
pub(super) fn textless_token(engine: &Engine) -> Token {
    let tokens = &engine.info().end_of_generation;
    tokens.first().copied().unwrap_or(0)
}

/// Runs all requests in step: `concurrency` of them together, then the next ones.
pub(super) async fn run_in_step(
    engine: &Engine,
    prompts: &[Prompt],
    concurrency: usize,
    tokens: u64,
    fixed: Option<Token>,
) -> Result<u64, Error> {
    let options = options(tokens, fixed);
    let mut total = 0;
    for wave in prompts.chunks(concurrency) {
        let prompts = wave.iter().map(|prompt| prompt.tokens.clone()).collect();
        let generations = engine.generate_batch(prompts, &options, Caller::default())?;
        total += read_all(generations, tokens).await?;
        engine.clear_prefix_cache()?;
    }
    Ok(total)
}

/// A client of stage 3, whose requests have different lengths.
pub(super) struct UnevenClient {
    pub(super) engine: Engine,
    pub(super) prompts: Arc<[Prompt]>,
    pub(super) output_tokens: Arc<[u32]>,
}

impl Client for UnevenClient {
    async fn ask(&mut self, number: usize) -> Result<u64, Error> {
        let prompt = self.prompts.get(number).map(|prompt| prompt.tokens.clone());
        let prompt = prompt.unwrap_or_default();
        let tokens = self.output_tokens.get(number).copied().map_or(0, u64::from);
        let options = options(tokens, None);
        let generation = self.engine.generate(prompt, options, Caller::default())?;
        let tokens = read(generation, tokens).await?;
        self.engine.clear_prefix_cache()?;
        Ok(tokens)
    }
}
