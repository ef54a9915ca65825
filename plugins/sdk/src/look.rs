//! What is asked of a distribution, and what it tells.

use crate::{Candidate, Matcher, Token, backend};

pub use crate::raw::inference::{Distribution, Statistics, View};

/// What [`Sequence::next`](crate::Sequence::next) shall tell. Less is cheaper.
#[derive(Clone)]
pub struct Look<'a> {
    view: View,
    statistics: bool,
    matcher: Option<&'a Matcher>,
}

impl<'a> Look<'a> {
    fn at(view: View) -> Self {
        Look {
            view,
            statistics: false,
            matcher: None,
        }
    }

    /// So many of the likeliest tokens, at most 4,096, falling by logit.
    pub fn top(count: u32) -> Self {
        Self::at(View::Top(count))
    }

    /// These tokens, at most 4,096, in this order.
    pub fn only(tokens: impl Into<Vec<Token>>) -> Self {
        Self::at(View::Only(tokens.into()))
    }

    /// The logit of every token. A request may wait for 16 of these at once.
    pub fn logits() -> Self {
        Self::at(View::Logits)
    }

    /// And the statistics, for which the host reads the whole distribution.
    pub fn with_statistics(mut self) -> Self {
        self.statistics = true;
        self
    }

    /// Only tokens that this matcher allows next; with [`top`](Look::top) alone.
    pub fn allowed_by(mut self, matcher: &'a Matcher) -> Self {
        self.matcher = Some(matcher);
        self
    }

    pub(crate) fn into_host(self) -> backend::Look<'a> {
        backend::Look {
            view: self.view,
            statistics: self.statistics,
            matcher: self.matcher.map(Matcher::host),
        }
    }
}

impl Distribution {
    /// The likeliest token that it shows, of equal ones the lowest.
    pub fn likeliest(&self) -> Option<Token> {
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
}
