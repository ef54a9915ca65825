//! Requests for the next token's distribution.

use crate::{Candidate, Matcher, Token, backend};

pub use crate::bindings::inference::{Distribution, DistributionPart, Statistics};

/// A request for [`Sequence::next`](crate::Sequence::next): which part of the distribution to return. Smaller
/// parts cost less.
#[derive(Clone)]
pub struct NextTokenRequest<'a> {
    part: DistributionPart,
    statistics: bool,
    matcher: Option<&'a Matcher>,
}

impl<'a> NextTokenRequest<'a> {
    fn new(part: DistributionPart) -> Self {
        NextTokenRequest {
            part,
            statistics: false,
            matcher: None,
        }
    }

    /// The `count` most likely tokens, at most 4,096, in descending order of logit.
    pub fn top(count: u32) -> Self {
        Self::new(DistributionPart::Top(count))
    }

    /// These tokens, at most 4,096, in the given order.
    pub fn only(tokens: impl Into<Vec<Token>>) -> Self {
        Self::new(DistributionPart::Only(tokens.into()))
    }

    /// The logit of every token. A request may wait for 16 of these at a time.
    pub fn logits() -> Self {
        Self::new(DistributionPart::Logits)
    }

    /// Adds the statistics. The host then reads the whole distribution.
    pub fn with_statistics(mut self) -> Self {
        self.statistics = true;
        self
    }

    /// Keeps only tokens that this matcher allows next. Requires [`top`](NextTokenRequest::top).
    pub fn allowed_by(mut self, matcher: &'a Matcher) -> Self {
        self.matcher = Some(matcher);
        self
    }

    pub(crate) fn into_host(self) -> backend::NextTokenRequest<'a> {
        backend::NextTokenRequest {
            part: self.part,
            statistics: self.statistics,
            matcher: self.matcher.map(Matcher::host),
        }
    }
}

impl Distribution {
    /// The most likely token in the returned part; among equal ones the lowest id.
    pub fn most_likely(&self) -> Option<Token> {
        let shown = self.candidates.iter().copied();
        let row = (0..).zip(&self.logits);
        let row = row.map(|(token, &logit)| Candidate { token, logit });
        let better = |best: Candidate, next: Candidate| {
            let wins =
                next.logit > best.logit || (next.logit == best.logit && next.token < best.token);
            if wins { next } else { best }
        };
        Some(shown.chain(row).reduce(better)?.token)
    }

    /// The natural logarithm of a token's probability before any sampler. `None` without
    /// [`statistics`](NextTokenRequest::with_statistics), or if the token is not in the returned
    /// part.
    ///
    /// ```
    /// use corral_sdk::{Candidate, Distribution, Statistics};
    ///
    /// let distribution = Distribution {
    ///     candidates: vec![Candidate { token: 7, logit: 2.0 }],
    ///     logits: vec![],
    ///     statistics: Some(Statistics { log_normalizer: 2.5, entropy: 1.0 }),
    ///     position: 1,
    /// };
    /// assert_eq!((distribution.logprob(7), distribution.logprob(8)), (Some(-0.5), None));
    /// ```
    pub fn logprob(&self, token: Token) -> Option<f32> {
        let shown = self.candidates.iter().find(|one| one.token == token);
        let logit = match shown {
            Some(one) => one.logit,
            None => *self.logits.get(usize::try_from(token).ok()?)?,
        };
        Some(logit - self.statistics?.log_normalizer)
    }
}
