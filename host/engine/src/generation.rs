//! What a caller asks of a generation and what comes back.

use crate::chooser::Choosers;
use crate::look::MAX_CANDIDATES;
use crate::{Error, Token};
use corral_constraint::Constraint;
use corral_sampling::{MAX_TOP_LOGPROBS, Sampler, TokenLogprobs};
use corral_scheduler::{CellQuota, PrefixScope, Priority, Tenant};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Most stop strings a generation may have.
pub const MAX_STOPS: usize = 16;
/// Longest stop string, in bytes.
pub const MAX_STOP_BYTES: usize = 256;
/// Most tokens that are guessed at once.
pub const MAX_DRAFTS: u8 = 16;

/// How to generate.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// At most this many tokens are generated; at least 1.
    pub max_tokens: u32,
    /// The sampling chain, applied in order; empty is greedy.
    pub samplers: Vec<Sampler>,
    /// Fixes the random numbers; without it the engine draws a seed.
    pub seed: Option<u64>,
    /// Texts that end the generation; at most [`MAX_STOPS`] of at most [`MAX_STOP_BYTES`] bytes.
    pub stop: Vec<String>,
    /// Go on after an end-of-generation token.
    pub ignore_end: bool,
    /// The name of the adapter to generate with; without one, the model alone. What was computed
    /// with another one is not reused.
    pub adapter: Option<String>,
    /// Guess up to so many of the next tokens, at most [`MAX_DRAFTS`], from what stands in the text
    /// already, and compute them together, where that is expected to be quicker. What is generated
    /// stays the same. 0 guesses nothing; and nothing is guessed where
    /// [`ModelInfo::can_truncate`](crate::ModelInfo::can_truncate) is false.
    pub speculate: u8,
    /// What the text must look like.
    pub constraint: Option<Constraint>,
    /// Tell with each token how likely the model found it, and so many of the likeliest, at most
    /// [`MAX_TOP_LOGPROBS`](corral_sampling::MAX_TOP_LOGPROBS).
    pub logprobs: Option<u8>,
    /// Who chooses the tokens, in place of `samplers`, which then are empty; and nothing is guessed.
    pub chooser: Option<Arc<dyn Choosers>>,
    /// Take this token each time, and don't look at what the model says: to measure what sampling takes.
    /// Without samplers, a chooser, a constraint or `logprobs`.
    pub fixed: Option<Token>,
}

impl Options {
    /// Whether the tokens follow, as a rule, from the `k` highest logits of each row alone.
    pub(crate) fn follows_from_top(&self, k: u32) -> bool {
        // How likely a token is needs the whole row, and guesses need several rows of a step.
        if self.logprobs.is_some() || self.speculate > 0 {
            return false;
        }
        match &self.chooser {
            // What a grammar allows is seldom among the likeliest alone.
            Some(_) if self.constraint.is_some() => false,
            Some(choosers) => {
                let wanted = choosers.wanted();
                !wanted.statistics && wanted.candidates < k
            }
            None => corral_sampling::top_k_suffices(&self.samplers, k, self.max_tokens),
        }
    }

    /// Whether everything is within its range; `vocabulary` is the number of tokens.
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
        if self.speculate > MAX_DRAFTS {
            return invalid(format!(
                "{} tokens were to be guessed at once; at most {MAX_DRAFTS} can be",
                self.speculate
            ));
        }
        if self
            .logprobs
            .is_some_and(|top| usize::from(top) > MAX_TOP_LOGPROBS)
        {
            return invalid(format!(
                "the {} likeliest tokens were asked for; at most {MAX_TOP_LOGPROBS} can be",
                self.logprobs.unwrap_or_default()
            ));
        }
        if let Some(choosers) = &self.chooser {
            if !self.samplers.is_empty() {
                return invalid("tokens are chosen by samplers or elsewhere, not by both".into());
            }
            let wanted = choosers.wanted().candidates;
            if !(1..=MAX_CANDIDATES).contains(&(wanted as usize)) {
                return invalid(format!(
                    "who chooses the tokens wants {wanted} candidates; it must be 1 to {MAX_CANDIDATES}"
                ));
            }
        }
        if let Some(token) = self.fixed {
            if token as usize >= vocabulary {
                return invalid(format!(
                    "token {token} was to be taken each time; the vocabulary has those under {vocabulary}"
                ));
            }
            let sampled = !self.samplers.is_empty() || self.chooser.is_some();
            if sampled || self.constraint.is_some() || self.logprobs.is_some() {
                let both = "tokens are fixed or follow from what the model says, not both";
                return invalid(both.into());
            }
        }
        Ok(corral_sampling::check_samplers(&self.samplers, vocabulary)?)
    }
}

/// The part of a model's cells that a group of callers may have together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    /// Which group: whoever has the same number.
    pub group: u32,
    /// Its part, from 1 to 100.
    pub percent: u8,
}

impl Share {
    /// What it is of so many cells; at least two, since a prompt and what comes after it need so many.
    pub fn of(self, cells: u32) -> CellQuota {
        let part = (u64::from(cells) * u64::from(self.percent)).div_ceil(100);
        CellQuota {
            group: self.group,
            cells: u32::try_from(part).unwrap_or(u32::MAX).max(2),
        }
    }
}

/// On whose behalf something is generated, and how long that is of use.
#[derive(Clone, Copy, Debug, Default)]
pub struct Caller {
    /// Among whom the engine's time is shared fairly.
    pub tenant: Tenant,
    /// Shares prefixes with all others of this group; without one, with its own tenant alone.
    pub shares: Option<u32>,
    /// The part of the cells that its sequences may have together with others while they run; all of
    /// them without one. No sequence gets longer than that.
    pub share: Option<Share>,
    /// Higher goes first.
    pub priority: Priority,
    /// How long it may wait for its turn; then it is refused.
    pub queue_time: Option<Duration>,
    /// When it is worth nothing any more, wherever it is. Within a tenant the earliest goes first.
    pub deadline: Option<Instant>,
}

impl Caller {
    /// With whom it shares prefixes.
    pub fn scope(&self) -> PrefixScope {
        match self.shares {
            Some(group) => PrefixScope((1 << 32) | u64::from(group)),
            None => PrefixScope(u64::from(self.tenant.0)),
        }
    }
}

/// What became ready since the reader last looked.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Chunk {
    /// Generated tokens, an end-of-generation token included.
    pub tokens: Vec<Token>,
    /// One for each token, if they were asked for.
    pub logprobs: Vec<TokenLogprobs>,
    /// Their text: whole characters, without what may still become a stop string.
    pub text: String,
}

/// Why a generation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finish {
    /// The model produced an end-of-generation token, or the constraint leaves nothing more to say.
    End,
    /// A stop string appeared.
    Stop,
    /// The limit of tokens, or the context, was reached.
    Length,
}

/// How a generation went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// Why it ended.
    pub finish: Finish,
    /// Tokens of the prompt.
    pub prompt_tokens: u32,
    /// Prompt tokens that were still in memory and not computed.
    pub cached_tokens: u32,
    /// Tokens generated, an end-of-generation token included.
    pub generated_tokens: u32,
    /// From the call until the scheduler admitted the sequence.
    pub queue_time: Duration,
    /// From admission until the first token was generated.
    pub prefill_time: Duration,
    /// From the first token until the last.
    pub decode_time: Duration,
}
