//! What a caller asks of a generation and what comes back.

use crate::Token;
use crate::constraint::Constraint;
use crate::sampling::{Sampler, TokenLogprobs};
use crate::scheduler::{Priority, Scope, Tenant};
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
    /// [`MAX_TOP_LOGPROBS`](crate::sampling::MAX_TOP_LOGPROBS).
    pub logprobs: Option<u8>,
}

/// On whose behalf something is generated, and how long that is of use.
#[derive(Clone, Copy, Debug, Default)]
pub struct Caller {
    /// Among whom the engine's time is shared fairly.
    pub tenant: Tenant,
    /// Shares prefixes with all others of this group; without one, with its own tenant alone.
    pub shares: Option<u32>,
    /// Higher goes first.
    pub priority: Priority,
    /// How long it may wait for its turn; then it is refused.
    pub queue_time: Option<Duration>,
    /// When it is worth nothing any more, wherever it is. Within a tenant the earliest goes first.
    pub deadline: Option<Instant>,
}

impl Caller {
    /// With whom it shares prefixes.
    pub fn scope(&self) -> Scope {
        match self.shares {
            Some(group) => Scope((1 << 32) | u64::from(group)),
            None => Scope(u64::from(self.tenant.0)),
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
