//! Sampling under a constraint.
//!
//! A token is sampled without the constraint and then checked, because most tokens are allowed; a token that is not
//! allowed is rejected, and another one is sampled among the allowed ones. All requests wait meanwhile. So each
//! request has a budget of CPU time for its constraint: an initial amount and a little for each token, less if many
//! requests have constraints.

use super::step_output::SampleError;
use crate::cpu_time::thread_cpu_time;
use crate::{Error, Token};
use corral_constraint::Matcher;
use corral_sampling::{Logits, SamplerChain, Scratch};
use std::time::{Duration, Instant};

/// CPU time that a constraint may take in addition to [`TOKEN_BUDGET`].
const INITIAL_BUDGET: Duration = Duration::from_millis(250);
/// CPU time per token, on average; common constraints take a hundredth of it.
const TOKEN_BUDGET: Duration = Duration::from_millis(10);
/// CPU time per step for all constraints, on average.
const STEP_BUDGET: Duration = Duration::from_millis(40);

/// Time that the constraints of a step may take, and took.
pub(super) struct ConstraintTime {
    token_budget: Duration,
    /// Wall time taken.
    pub taken: Duration,
}

impl ConstraintTime {
    /// Divides the budget of a step among this many constrained requests.
    pub fn for_step(requests: usize) -> Self {
        let share = STEP_BUDGET / u32::try_from(requests.max(1)).unwrap_or(u32::MAX);
        Self {
            token_budget: share.min(TOKEN_BUDGET),
            taken: Duration::ZERO,
        }
    }
}

/// Start of some work on a constraint.
struct WorkStart {
    wall: Instant,
    cpu: Duration,
}

impl WorkStart {
    fn now() -> Self {
        Self {
            wall: Instant::now(),
            cpu: thread_cpu_time(),
        }
    }
}

/// The position of a request in its constraint, and its remaining time.
pub(super) struct ConstrainedSampler {
    matcher: Matcher,
    budget: Duration,
}

impl ConstrainedSampler {
    /// Begins at the start of the constraint.
    pub fn new(matcher: Matcher) -> Self {
        Self {
            matcher,
            budget: INITIAL_BUDGET,
        }
    }

    /// Samples an allowed token and advances by it. After [`SampleError::NeedsAllLogits`] the random generator is
    /// unchanged.
    pub fn sample(
        &mut self,
        chain: &mut SamplerChain,
        logits: Logits<'_>,
        history: &[Token],
        scratch: &mut Scratch,
        time: &mut ConstraintTime,
    ) -> Result<Token, SampleError> {
        let start = WorkStart::now();
        // Only a top-k row can miss, so only then the state is saved.
        let before = matches!(logits, Logits::TopK(_)).then(|| chain.state());
        let mut token = chain.sample(logits, history, None, scratch)?;
        let allowed = match token {
            Some(token) => self.matcher.allows(token)?,
            None => false,
        };
        if !allowed {
            if token.is_some() {
                chain.reject();
            }
            let mask = self.matcher.mask()?;
            token = match chain.sample(logits, history, Some(mask), scratch) {
                Ok(token) => token,
                Err(miss) => {
                    if let Some(before) = before {
                        chain.restore(before);
                    }
                    self.spend(start, 0, time)?;
                    return Err(miss.into());
                }
            };
        }
        let token = token.ok_or_else(|| {
            Error::Invalid(
                "the samplers leave no token that the grammar allows; ban fewer tokens".into(),
            )
        })?;
        self.matcher.advance(token)?;
        self.spend(start, 1, time)?;
        Ok(token)
    }

    /// The mask of allowed tokens, see [`Matcher::mask`].
    pub fn mask(&mut self, time: &mut ConstraintTime) -> Result<&[u32], Error> {
        let start = WorkStart::now();
        self.matcher.mask()?;
        self.spend(start, 1, time)?;
        // The matcher caches the mask.
        Ok(self.matcher.mask()?)
    }

    /// Advances by a token of the mask.
    pub fn accept(&mut self, token: Token, time: &mut ConstraintTime) -> Result<(), Error> {
        let start = WorkStart::now();
        self.matcher.advance(token)?;
        self.spend(start, 0, time)
    }

    /// Advances by the tokens that the constraint forces, at most `most`, and returns them.
    pub fn forced(&mut self, most: usize, time: &mut ConstraintTime) -> Result<Vec<Token>, Error> {
        let start = WorkStart::now();
        let forced = self.matcher.forced(most)?;
        self.spend(start, forced.len(), time)?;
        Ok(forced)
    }

    /// Whether the text is complete and nothing may follow.
    pub fn is_complete(&self) -> bool {
        self.matcher.has_ended() || self.matcher.must_end()
    }

    /// Charges the time since `start`, in which the request gained this many tokens.
    fn spend(
        &mut self,
        start: WorkStart,
        tokens: usize,
        time: &mut ConstraintTime,
    ) -> Result<(), Error> {
        time.taken += start.wall.elapsed();
        // CPU time, so that other load on the machine fails no request.
        let taken = thread_cpu_time().saturating_sub(start.cpu);
        let earned = time.token_budget * u32::try_from(tokens).unwrap_or(u32::MAX);
        match (self.budget + earned).checked_sub(taken) {
            Some(left) => {
                self.budget = left.min(INITIAL_BUDGET);
                Ok(())
            }
            None => Err(Error::Invalid(
                "the grammar takes too long to match; make it less ambiguous".into(),
            )),
        }
    }
}
