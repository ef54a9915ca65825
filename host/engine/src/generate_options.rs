//! Options of a generation, and their checks.

use crate::external_sampler::ExternalSamplerFactory;
use crate::next_token::MAX_CANDIDATES;
use crate::request_observer::RequestObserver;
use crate::{Error, Token};
use corral_constraint::Constraint;
use corral_sampling::{MAX_TOP_LOGPROBS, Sampler};
use std::sync::Arc;

/// Most stop strings of a generation.
pub const MAX_STOPS: usize = 16;
/// Longest stop string, in bytes.
pub const MAX_STOP_BYTES: usize = 256;
/// Most draft tokens per step of a generation.
pub const MAX_DRAFTS: u8 = 16;

/// How to generate.
#[derive(Clone, Debug, Default)]
pub struct GenerateOptions {
    /// Most tokens to generate, at least 1.
    pub max_tokens: u32,
    /// The sampler chain, applied in order. An empty chain samples greedily.
    pub samplers: Vec<Sampler>,
    /// Seed of the random numbers. Without one the engine draws a seed.
    pub seed: Option<u64>,
    /// Strings that end the generation: at most [`MAX_STOPS`] of at most [`MAX_STOP_BYTES`] bytes each.
    pub stop: Vec<String>,
    /// Continue after an end-of-generation token.
    pub ignore_eos: bool,
    /// Name of the LoRA adapter to generate with. `None` for the base model. Adapters do not share prefixes.
    pub adapter: Option<String>,
    /// Draft up to this many tokens per step, at most [`MAX_DRAFTS`], by prompt lookup and with the model's draft model
    /// if it has one, and verify them together where that is expected to be faster. `None` drafts with the draft model
    /// only. Drafting does not change what is generated. 0 turns it off, and so does a model whose
    /// [`ModelInfo::can_truncate`](crate::ModelInfo::can_truncate) is false.
    pub max_draft_tokens: Option<u8>,
    /// The grammar that the text must match.
    pub constraint: Option<Constraint>,
    /// Return each token's log probability and those of this many likeliest tokens, at most
    /// [`MAX_TOP_LOGPROBS`].
    pub logprobs: Option<u8>,
    /// Sample with an external sampler in place of `samplers`, which must be empty. Turns off drafting.
    pub external_sampler: Option<Arc<dyn ExternalSamplerFactory>>,
    /// Generate this token in every step and ignore the logits, to measure the cost of sampling. Excludes
    /// samplers, an external sampler, a constraint and `logprobs`.
    pub fixed_token: Option<Token>,
    /// Receives the times and tokens of the generation.
    pub observer: Option<RequestObserver>,
}

impl GenerateOptions {
    /// Checks every option against its range. `vocabulary` is the number of tokens of the model.
    pub(crate) fn check(&self, vocabulary: usize) -> Result<(), Error> {
        let invalid = |text: String| Err(Error::Invalid(text));
        if self.max_tokens == 0 {
            return invalid("max-tokens is 0; it must be at least 1".into());
        }
        if self.stop.len() > MAX_STOPS {
            return invalid(format!(
                "{} stop strings were given; at most {MAX_STOPS} are allowed",
                self.stop.len()
            ));
        }
        let fits = |stop: &String| (1..=MAX_STOP_BYTES).contains(&stop.len());
        if let Some(stop) = self.stop.iter().find(|stop| !fits(stop)) {
            return invalid(format!(
                "a stop string has {} bytes; it must have 1 to {MAX_STOP_BYTES}",
                stop.len()
            ));
        }
        if let Some(most) = self.max_draft_tokens.filter(|most| *most > MAX_DRAFTS) {
            return invalid(format!(
                "{most} draft tokens were requested; at most {MAX_DRAFTS} are allowed"
            ));
        }
        if let Some(top) = self
            .logprobs
            .filter(|top| usize::from(*top) > MAX_TOP_LOGPROBS)
        {
            return invalid(format!(
                "log probabilities of {top} tokens were requested; at most {MAX_TOP_LOGPROBS} are allowed"
            ));
        }
        if let Some(factory) = &self.external_sampler {
            if !self.samplers.is_empty() {
                return invalid(
                    "a generation has samplers or a sampling plugin, not both; remove one".into(),
                );
            }
            let count = factory.request_options().candidates;
            if !(1..=MAX_CANDIDATES).contains(&(count as usize)) {
                return invalid(format!(
                    "the sampling plugin requests {count} candidates; it must request 1 to {MAX_CANDIDATES}"
                ));
            }
        }
        if let Some(token) = self.fixed_token {
            if token as usize >= vocabulary {
                return invalid(format!(
                    "the fixed token is {token}; it must be below the vocabulary's size of {vocabulary}"
                ));
            }
            let sampled = !self.samplers.is_empty() || self.external_sampler.is_some();
            if sampled || self.constraint.is_some() || self.logprobs.is_some() {
                return invalid(
                    "a fixed token excludes samplers, constraints and log probabilities; remove one".into(),
                );
            }
        }
        Ok(corral_sampling::check_samplers(&self.samplers, vocabulary)?)
    }
}
