//! A sequence that follows a grammar, on the engine's thread.
//!
//! Each token is sampled as without a grammar and only then checked, since most are allowed; one that is
//! not is sampled again among those that are. Everyone waits meanwhile, so the time that a sequence's
//! grammar may take has a bound: some at once, and a little for each token, the less the more follow one.

use super::sample::Short;
use crate::cpu_time::thread_cpu_time;
use crate::{Error, Token};
use corral_constraint::Matcher;
use corral_sampling::{Logits, SamplerChain, Scratch};
use std::time::{Duration, Instant};

/// Time of the processor that a grammar may take beside [`PER_TOKEN`].
const AT_ONCE: Duration = Duration::from_millis(250);
/// Time that it may take for each token on average; common ones take a hundredth of it.
const PER_TOKEN: Duration = Duration::from_millis(10);
/// Time that all grammars together may take for each step on average.
const PER_STEP: Duration = Duration::from_millis(40);

/// What grammars may take of a step, and took.
pub struct GrammarTime {
    per_token: Duration,
    /// What they took so far, by the clock.
    pub took: Duration,
}

/// When work on a grammar began, by the clock and by this thread's time of the processor.
struct Began {
    at: Instant,
    spent: Duration,
}

impl Began {
    fn now() -> Self {
        Self {
            at: Instant::now(),
            spent: thread_cpu_time(),
        }
    }
}

impl GrammarTime {
    /// Of a step where so many sequences follow a grammar.
    pub fn among(many: usize) -> Self {
        let share = PER_STEP / u32::try_from(many.max(1)).unwrap_or(u32::MAX);
        Self {
            per_token: share.min(PER_TOKEN),
            took: Duration::ZERO,
        }
    }
}

/// Where a sequence is in its grammar, and what time that took.
pub struct Follows {
    matcher: Matcher,
    left: Duration,
}

impl Follows {
    /// At the start of the grammar.
    pub fn new(matcher: Matcher) -> Self {
        Self {
            matcher,
            left: AT_ONCE,
        }
    }

    /// Draws a token that the grammar allows, and goes on by it. If it is not known which one, nothing was
    /// drawn.
    pub fn sample(
        &mut self,
        chain: &mut SamplerChain,
        logits: Logits<'_>,
        history: &[Token],
        scratch: &mut Scratch,
        time: &mut GrammarTime,
    ) -> Result<Token, Short> {
        let began = Began::now();
        // A whole row always tells.
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
                Err(unsettled) => {
                    if let Some(before) = before {
                        chain.restore(before);
                    }
                    self.spend(began, 0, time)?;
                    return Err(unsettled.into());
                }
            };
        }
        let token = token.ok_or_else(|| {
            Error::Invalid(
                "the grammar allows no token that the samplers leave; ban fewer tokens".into(),
            )
        })?;
        self.matcher.advance(token)?;
        self.spend(began, 1, time)?;
        Ok(token)
    }

    /// The tokens that may come next, as [`Matcher::mask`] tells.
    pub fn mask(&mut self, time: &mut GrammarTime) -> Result<&[u32], Error> {
        let began = Began::now();
        self.matcher.mask()?;
        self.spend(began, 1, time)?;
        // It is computed once.
        Ok(self.matcher.mask()?)
    }

    /// Goes on by a token that was chosen among those.
    pub fn accept(&mut self, token: Token, time: &mut GrammarTime) -> Result<(), Error> {
        let began = Began::now();
        self.matcher.advance(token)?;
        self.spend(began, 0, time)
    }

    /// The tokens that follow without a choice, at most so many. The grammar has gone on by them.
    pub fn forced(&mut self, most: usize, time: &mut GrammarTime) -> Result<Vec<Token>, Error> {
        let began = Began::now();
        let forced = self.matcher.forced(most)?;
        self.spend(began, forced.len(), time)?;
        Ok(forced)
    }

    /// Whether nothing can follow but the end.
    pub fn is_complete(&self) -> bool {
        self.matcher.has_ended() || self.matcher.must_end()
    }

    /// So many tokens took the time since `began`.
    fn spend(&mut self, began: Began, tokens: usize, time: &mut GrammarTime) -> Result<(), Error> {
        time.took += began.at.elapsed();
        // Nobody is refused for what others on the machine do.
        let took = thread_cpu_time().saturating_sub(began.spent);
        let earned = time.per_token * u32::try_from(tokens).unwrap_or(u32::MAX);
        match (self.left + earned).checked_sub(took) {
            Some(left) => {
                self.left = left.min(AT_ONCE);
                Ok(())
            }
            None => Err(Error::Invalid(
                "the grammar takes too long to follow; make it less ambiguous".into(),
            )),
        }
    }
}
