//! A request's sampler chain and its random numbers.

use crate::candidates::{Candidates, Workspace};
use crate::{Logits, Sampler, Scratch, Token, TopKMiss, apply, top_k};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// Samplers with a random number generator of their own: the same logits, histories and seed give
/// the same tokens. Chains share nothing, so threads with a [`Scratch`] each can sample in parallel.
#[derive(Clone, Debug)]
pub struct SamplerChain {
    samplers: Vec<Sampler>,
    /// Length of the history before the first token drawn.
    prompt_length: usize,
    state: ChainState,
    /// Mirostat's limit before the last draw.
    previous_max_surprise: f32,
}

/// The part of a chain that draws change; see [`SamplerChain::state`].
#[derive(Clone, Debug)]
pub struct ChainState {
    rng: ChaCha8Rng,
    /// Mirostat's limit of surprise in bits (`mu` in the paper).
    max_surprise: f32,
}

impl SamplerChain {
    /// A chain of [checked](crate::check_samplers) samplers, with random numbers from `seed`.
    pub fn new(samplers: Vec<Sampler>, seed: u64) -> Self {
        let tau = samplers.iter().find_map(|sampler| match sampler {
            Sampler::Mirostat { tau, .. } => Some(*tau),
            _ => None,
        });
        let max_surprise = 2.0 * tau.unwrap_or(0.0);
        Self {
            samplers,
            prompt_length: 0,
            state: ChainState {
                rng: ChaCha8Rng::seed_from_u64(seed),
                max_surprise,
            },
            previous_max_surprise: max_surprise,
        }
    }

    /// Sets the length of the prompt, 0 by default: [`Sampler::OutputPenalties`] skip it.
    #[must_use]
    pub fn with_prompt_length(mut self, length: usize) -> Self {
        self.prompt_length = length;
        self
    }

    /// Draws a token, or `None` if no token with a finite logit is left. `history` is the request so
    /// far, prompt included: penalties and DRY look back over it.
    ///
    /// With `allowed`, draws only tokens whose bit is set: the lowest bit of the first word is token
    /// 0, and missing bits are not set. If the previous token was not used, call
    /// [`SamplerChain::reject`] first.
    ///
    /// Fails only with [`Logits::TopK`], and then leaves the chain unchanged.
    pub fn sample(
        &mut self,
        logits: Logits<'_>,
        history: &[Token],
        allowed: Option<&[u32]>,
        scratch: &mut Scratch,
    ) -> Result<Option<Token>, TopKMiss> {
        let output = self.output(history);
        let (mut candidates, mut workspace, applied) = match logits {
            Logits::Full(row) => {
                let (candidates, workspace) = Candidates::new(row, allowed, scratch);
                (candidates, workspace, 0)
            }
            Logits::TopK(top) => {
                top_k::cut(top, &self.samplers, (history, output), allowed, scratch)?
            }
        };
        if self.samplers.is_empty() {
            return Ok(candidates.best().map(|candidate| candidate.token));
        }
        self.previous_max_surprise = self.state.max_surprise;
        self.apply(applied, &mut candidates, &mut workspace, history);
        let Some(token) = candidates.draw(self.state.rng.random()) else {
            return Ok(None);
        };
        if let Some(Sampler::Mirostat { tau, eta }) = self.samplers.last() {
            let error = apply::surprise(&candidates, token).map(|surprise| surprise - tau);
            self.state.max_surprise -= eta * error.unwrap_or(0.0);
        }
        Ok(Some(token))
    }

    /// The tokens that the samplers leave to draw from with their logits, by rising id. Uses as many
    /// random numbers as the samplers need; draws none.
    pub fn candidates(
        &mut self,
        row: &[f32],
        history: &[Token],
        allowed: Option<&[u32]>,
        scratch: &mut Scratch,
    ) -> Vec<(Token, f32)> {
        let (mut candidates, mut workspace) = Candidates::new(row, allowed, scratch);
        self.apply(0, &mut candidates, &mut workspace, history);
        candidates.into_pairs()
    }

    /// The state to come back to if the next draws are not used: draws use up random numbers.
    pub fn state(&self) -> ChainState {
        self.state.clone()
    }

    /// Undoes all draws since [`SamplerChain::state`].
    pub fn restore(&mut self, state: ChainState) {
        self.previous_max_surprise = state.max_surprise;
        self.state = state;
    }

    /// Rejects the last token drawn: mirostat undoes its adaptation to it. Random numbers stay used.
    pub fn reject(&mut self) {
        self.state.max_surprise = self.previous_max_surprise;
    }

    #[cfg(test)]
    pub(crate) fn max_surprise(&self) -> f32 {
        self.state.max_surprise
    }

    /// The part of the history after the prompt.
    fn output<'a>(&self, history: &'a [Token]) -> &'a [Token] {
        history.get(self.prompt_length..).unwrap_or_default()
    }

    /// Applies all samplers but the first `applied`.
    fn apply(
        &mut self,
        applied: usize,
        candidates: &mut Candidates<'_>,
        workspace: &mut Workspace<'_>,
        history: &[Token],
    ) {
        let output = self.output(history);
        let ChainState { rng, max_surprise } = &mut self.state;
        for sampler in self.samplers.iter().skip(applied) {
            match sampler {
                Sampler::Mirostat { .. } => apply::mirostat(candidates, *max_surprise),
                Sampler::OutputPenalties(_) => {
                    apply::apply(sampler, candidates, output, workspace, rng);
                }
                _ => apply::apply(sampler, candidates, history, workspace, rng),
            }
        }
    }
}
