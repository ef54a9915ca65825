//! Stages 1 to 3: the engine, asked directly.

use super::clients::{Client, read, read_all};
use super::prompts::Prompt;
use crate::complaint::Complaint;
use corral_engine::{Caller, Engine, Options, Token};
use std::sync::Arc;

/// Generates `tokens` tokens greedily, or always the same one.
fn options(tokens: u64, fixed: Option<Token>) -> Options {
    Options {
        max_tokens: u32::try_from(tokens).unwrap_or(u32::MAX),
        ignore_end: true,
        fixed,
        ..Options::default()
    }
}

/// The token of stage 1: one without a text, where the model has one.
pub(super) fn silent(engine: &Engine) -> Token {
    engine
        .info()
        .end_of_generation
        .first()
        .copied()
        .unwrap_or(0)
}

/// Lets all requests run in step: `at_once` of them together, then the next ones.
pub(super) async fn in_step(
    engine: &Engine,
    prompts: &[Prompt],
    at_once: usize,
    tokens: u64,
    fixed: Option<Token>,
) -> Result<u64, Complaint> {
    let options = options(tokens, fixed);
    let mut all = 0;
    for wave in prompts.chunks(at_once) {
        let prompts = wave.iter().map(|prompt| prompt.tokens.clone()).collect();
        let generations = engine.generate_together(prompts, &options, Caller::default())?;
        all += read_all(generations, tokens).await?;
        engine.clear_cache()?;
    }
    Ok(all)
}

/// A client of stage 3: its requests differ in how much they generate.
pub(super) struct Uneven {
    pub(super) engine: Engine,
    pub(super) prompts: Arc<[Prompt]>,
    pub(super) generate: Arc<[u32]>,
}

impl Client for Uneven {
    async fn ask(&mut self, number: usize) -> Result<u64, Complaint> {
        let prompt = self.prompts.get(number).map(|prompt| prompt.tokens.clone());
        let tokens = self.generate.get(number).copied().map_or(0, u64::from);
        let options = options(tokens, None);
        let prompt = prompt.unwrap_or_default();
        let generation = self.engine.generate(prompt, options, Caller::default())?;
        let tokens = read(generation, tokens).await?;
        self.engine.clear_cache()?;
        Ok(tokens)
    }
}
