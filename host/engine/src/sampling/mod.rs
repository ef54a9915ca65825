//! From logits to a token.
//!
//! A [`Chain`] of [`Sampler`]s is applied in the caller's order to what is left of the vocabulary,
//! then one token is drawn by the probabilities of what remains. An empty chain takes the most
//! likely token, the lowest id among equals. So does one with [`Sampler::Temperature`] of 0, from
//! what the links before it left: penalties, DRY and biases act on it. A chain that is not empty
//! and has no temperature, if only of penalties, draws. Numbers that are not finite are never
//! drawn.
//!
//! The links mean what llama.cpp's samplers mean (tested against them). They differ where those are
//! plainly wrong: tokens with a probability of 0 make its typical sampling order by NaN, and a
//! bias after its top-k leaves a list out of order that later samplers take as sorted.
//!
//! [`logprobs`], [`top`] and [`statistics`] read a row as the model gave it.
//!
//! Where only the highest logits of a row came from the device ([`Top`]), a chain draws what it would
//! draw from the whole row, or says that it can't.

mod breakers;
mod device;
mod dry;
mod exp;
mod left;
mod links;
mod list;
mod logprobs;
mod marks;
mod sampler;
#[cfg(test)]
mod tests;
mod whole;

pub use breakers::{Breakers, MAX_BREAKER_BYTES, MAX_BREAKERS, MAX_SEQUENCES, MAX_TAIL};
pub use device::{Logits, Top, Unsettled, follows_from_top};
pub use dry::Dry;
pub use logprobs::{MAX_TOP_LOGPROBS, TokenLogprobs, logprobs, statistics, top};
pub use sampler::{MAX_BIASES, MAX_LINKS, MAX_RANGE, Penalties, Sampler, check};

use crate::Token;
use left::Left;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// Memory that samplers work in, kept from row to row so that none is allocated for a token. One
/// serves any number of chains, one after the other: nothing of a row stays in it.
#[derive(Debug, Default)]
pub struct Scratch {
    whole: whole::Memory,
    list: Vec<list::Candidate>,
    spare: Vec<list::Candidate>,
    marks: marks::Marks,
    lengths: dry::Lengths,
}

/// What a chain knows at one moment beside its history: see [`Chain::mark`].
#[derive(Clone, Debug)]
pub struct Mark {
    rng: ChaCha8Rng,
    mu: f32,
    mu_before: f32,
}

/// A sequence's sampling chain with its own random numbers: the same logits, histories and seed
/// give the same tokens. Chains know nothing of each other, so rows can be sampled in parallel,
/// each thread with a [`Scratch`] of its own.
#[derive(Clone, Debug)]
pub struct Chain {
    samplers: Vec<Sampler>,
    rng: ChaCha8Rng,
    /// How much of the history was there before the first token drawn.
    prompt: usize,
    /// Mirostat's limit of surprise, and what it was before the last token.
    mu: f32,
    mu_before: f32,
}

impl Chain {
    /// A chain of [checked](check) samplers whose random numbers follow from `seed`.
    pub fn new(samplers: Vec<Sampler>, seed: u64) -> Self {
        let tau = samplers.iter().find_map(|sampler| match sampler {
            Sampler::Mirostat { tau, .. } => Some(*tau),
            _ => None,
        });
        let mu = 2.0 * tau.unwrap_or(0.0);
        Self {
            samplers,
            rng: ChaCha8Rng::seed_from_u64(seed),
            prompt: 0,
            mu,
            mu_before: mu,
        }
    }

    /// The chain of a generation before which there are `prompt` tokens; without this there are none.
    #[must_use]
    pub fn after(mut self, prompt: usize) -> Self {
        self.prompt = prompt;
        self
    }

    /// Draws a token from a row of logits, one for each token of the vocabulary. `history` is the
    /// sequence so far, prompt included: what penalties and DRY look back over. `None` if no token
    /// is left with a finite logit.
    pub fn sample(
        &mut self,
        row: &[f32],
        history: &[Token],
        scratch: &mut Scratch,
    ) -> Option<Token> {
        let drawn = self.sample_of(Logits::Whole(row), history, None, scratch);
        drawn.unwrap_or_default()
    }

    /// As [`Chain::sample`], but only tokens whose bit in `allowed` is set: the lowest bit of the
    /// first word is token 0, and bits that are missing are not set. If the token before was drawn
    /// in vain, call [`Chain::reject`] first.
    pub fn sample_allowed(
        &mut self,
        row: &[f32],
        history: &[Token],
        allowed: &[u32],
        scratch: &mut Scratch,
    ) -> Option<Token> {
        let drawn = self.sample_of(Logits::Whole(row), history, Some(allowed), scratch);
        drawn.unwrap_or_default()
    }

    /// As [`Chain::sample`] or, with a mask, [`Chain::sample_allowed`], from what there is of a row. If the
    /// highest logits do not tell what the whole row does, nothing was drawn and the chain is as before.
    /// With a whole row it never fails.
    pub fn sample_of(
        &mut self,
        logits: Logits<'_>,
        history: &[Token],
        allowed: Option<&[u32]>,
        scratch: &mut Scratch,
    ) -> Result<Option<Token>, Unsettled> {
        let answer = history.get(self.prompt..).unwrap_or_default();
        let (mut left, mut tools, done) = match logits {
            Logits::Whole(row) => {
                let (left, tools) = Left::new(row, allowed, scratch);
                (left, tools, 0)
            }
            Logits::Top(top) => {
                device::cut(top, &self.samplers, (history, answer), allowed, scratch)?
            }
        };
        if self.samplers.is_empty() {
            return Ok(left.best().map(|candidate| candidate.token));
        }
        Ok(self.go_on(done, &mut left, &mut tools, (history, answer)))
    }

    /// What it knows now, to come back to: what is drawn in vain uses up random numbers.
    pub fn mark(&self) -> Mark {
        Mark {
            rng: self.rng.clone(),
            mu: self.mu,
            mu_before: self.mu_before,
        }
    }

    /// Forgets all that was drawn since the mark.
    pub fn rewind(&mut self, mark: Mark) {
        let Mark { rng, mu, mu_before } = mark;
        self.rng = rng;
        self.mu = mu;
        self.mu_before = mu_before;
    }

    /// Says that the last token drawn was not taken: mirostat forgets what it learnt from it.
    pub fn reject(&mut self) {
        self.mu = self.mu_before;
    }

    /// Applies the links but for those that are done, and draws from what is left.
    fn go_on(
        &mut self,
        done: usize,
        left: &mut Left<'_>,
        tools: &mut left::Tools<'_>,
        (history, answer): (&[Token], &[Token]),
    ) -> Option<Token> {
        self.mu_before = self.mu;
        let Self {
            samplers, rng, mu, ..
        } = self;
        for sampler in samplers.iter().skip(done) {
            if let Sampler::Mirostat { tau, eta } = sampler {
                let kept = links::mirostat_keep(left, *mu)?;
                let token = left.draw(rng.random())?;
                *mu -= eta * links::mirostat_error(left, kept, token, *tau)?;
                return Some(token);
            }
            let looked_at = match sampler {
                Sampler::AnswerPenalties(_) => answer,
                _ => history,
            };
            apply(sampler, left, looked_at, tools, rng);
        }
        left.draw(rng.random())
    }
}

/// Applies a link other than mirostat.
fn apply(
    sampler: &Sampler,
    left: &mut Left<'_>,
    history: &[Token],
    tools: &mut left::Tools<'_>,
    rng: &mut ChaCha8Rng,
) {
    let marks = &mut *tools.marks;
    match sampler {
        Sampler::Temperature(value) => links::temperature(left, *value),
        Sampler::DynamicTemperature {
            temperature,
            range,
            exponent,
        } => links::dynamic_temperature(left, *temperature, *range, *exponent),
        Sampler::TopK(count) => links::top_k(left, *count),
        Sampler::TopP(mass) => links::top_p(left, *mass),
        Sampler::MinP(ratio) => links::min_p(left, *ratio),
        Sampler::Typical(mass) => links::typical(left, *mass),
        Sampler::TopNSigma(count) => links::top_n_sigma(left, *count),
        Sampler::Xtc {
            probability,
            threshold,
        } => links::xtc(left, marks, *probability, *threshold, || rng.random()),
        Sampler::Dry(dry) => dry.apply(history, left, marks, tools.lengths),
        Sampler::Penalties(set) | Sampler::AnswerPenalties(set) => {
            links::penalties(left, marks, history, set);
        }
        Sampler::LogitBias(biases) => links::logit_bias(left, marks, biases),
        Sampler::Mirostat { .. } => unreachable!("mirostat draws"),
    }
}
