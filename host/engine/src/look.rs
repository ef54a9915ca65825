//! What may come next after a text, for who samples by its own rules.
//!
//! Of a row of logits, which may have 150,000 numbers, as much leaves the engine's thread as was
//! asked for, in one copy.

use crate::{Error, Token};
use corral_sampling::{Scratch, Statistics, TopKMiss, TopLogits};

/// Most candidates of [`Show::Top`], and most tokens of [`Show::Only`]: who wants more asks for the
/// row.
pub const MAX_CANDIDATES: usize = 4096;

/// What is wanted of a distribution.
#[derive(Clone, Debug, PartialEq)]
pub struct Look {
    /// Which part of it.
    pub show: Show,
    /// With numbers that need the whole row.
    pub statistics: bool,
    /// The tokens that [`Show::Top`] may show: one bit for each token of the vocabulary, the first in
    /// the lowest bit of the first word, and bits that are missing are not set. `None` for all.
    pub among: Option<Vec<u32>>,
    /// The name of the adapter that computes; without one, the model alone.
    pub adapter: Option<String>,
}

/// Part of a distribution.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Show {
    /// So many of the likeliest tokens, at most [`MAX_CANDIDATES`].
    Top(u32),
    /// These tokens, at most [`MAX_CANDIDATES`].
    Only(Vec<Token>),
    /// All of it.
    Logits,
}

impl Look {
    /// One that shows a part, and no more.
    pub fn new(show: Show) -> Self {
        Self {
            show,
            statistics: false,
            among: None,
            adapter: None,
        }
    }

    /// Whether it can be shown of a row of so many tokens; [`Error::Invalid`] says what was expected.
    pub fn check(&self, vocabulary: u32) -> Result<(), Error> {
        let asked = match &self.show {
            Show::Top(count) => *count as usize,
            Show::Only(tokens) => tokens.len(),
            Show::Logits => return Ok(()),
        };
        if asked > MAX_CANDIDATES {
            return Err(Error::Invalid(format!(
                "{asked} candidates were asked for; ask for {MAX_CANDIDATES} at most, or for the logits"
            )));
        }
        match &self.show {
            Show::Only(tokens) => check_tokens(tokens, vocabulary),
            Show::Top(_) | Show::Logits => Ok(()),
        }
    }

    /// Whether it shows nothing, as a rule, that does not follow from the `k` highest logits of a row.
    pub(crate) fn follows_from_top(&self, k: u32) -> bool {
        // What a mask allows is seldom among the likeliest alone.
        let plain = !self.statistics && self.among.is_none();
        matches!(self.show, Show::Top(count) if plain && count < k)
    }

    /// What [`Look::at`] shows, from the highest logits alone.
    pub(crate) fn at_top(
        &self,
        top: TopLogits<'_>,
        position: u32,
        scratch: &mut Scratch,
    ) -> Result<Distribution, TopKMiss> {
        let Show::Top(count) = self.show else {
            return Err(TopKMiss);
        };
        let candidates = top.most_likely(self.among.as_deref(), count as usize, scratch)?;
        // Whether there is nothing at all to show is said of the whole row.
        if self.statistics || (candidates.is_empty() && count > 0) {
            return Err(TopKMiss);
        }
        Ok(Distribution {
            candidates,
            logits: Vec::new(),
            statistics: None,
            position,
        })
    }

    /// What it shows of a row, after `position` tokens. [`Error::Failed`] if the row is of no use.
    pub(crate) fn at(
        &self,
        row: &[f32],
        position: u32,
        scratch: &mut Scratch,
    ) -> Result<Distribution, Error> {
        let mut shown = Distribution {
            candidates: Vec::new(),
            logits: Vec::new(),
            statistics: None,
            position,
        };
        match &self.show {
            Show::Top(count) => {
                let among = self.among.as_deref();
                shown.candidates =
                    corral_sampling::most_likely(row, among, *count as usize, scratch);
                if shown.candidates.is_empty() && *count > 0 {
                    return Err(nothing());
                }
            }
            Show::Only(tokens) => {
                let logit = |&token| Some((token, *row.get(token as usize)?));
                shown.candidates = tokens.iter().filter_map(logit).collect();
            }
            Show::Logits => shown.logits = row.to_vec(),
        }
        if self.statistics {
            shown.statistics = Some(corral_sampling::statistics(row, scratch).ok_or_else(nothing)?);
        }
        Ok(shown)
    }
}

fn nothing() -> Error {
    Error::Failed(
        "no token that may be shown has a finite logit; the model's weights are damaged".into(),
    )
}

/// [`Error::Invalid`] if one of the tokens is outside of a vocabulary of this size.
pub(crate) fn check_tokens(tokens: &[Token], vocabulary: u32) -> Result<(), Error> {
    match tokens.iter().find(|&&token| token >= vocabulary) {
        None => Ok(()),
        Some(token) => Err(Error::Invalid(format!(
            "token {token} is not in the vocabulary, which has the tokens 0 to {}",
            vocabulary.saturating_sub(1)
        ))),
    }
}

/// What was asked for of the distribution of the next token.
#[derive(Clone, Debug, PartialEq)]
pub struct Distribution {
    /// Tokens with their logits: of [`Show::Top`] falling, ties by rising id, and fewer if fewer logits
    /// are finite; of [`Show::Only`] in the order in which they were named.
    pub candidates: Vec<(Token, f32)>,
    /// Of [`Show::Logits`] the logit of each token of the vocabulary.
    pub logits: Vec<f32>,
    /// If they were asked for.
    pub statistics: Option<Statistics>,
    /// Number of tokens that it comes after.
    pub position: u32,
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROW: [f32; 5] = [0.0, 3.0, f32::NEG_INFINITY, 2.0, 3.0];

    fn shown(look: &Look) -> Distribution {
        look.at(&ROW, 7, &mut Scratch::default()).unwrap()
    }

    #[test]
    fn the_likeliest_come_first_and_what_is_not_finite_never() {
        let top = |count| shown(&Look::new(Show::Top(count))).candidates;
        assert_eq!(top(2), [(1, 3.0), (4, 3.0)]);
        assert_eq!(top(9), [(1, 3.0), (4, 3.0), (3, 2.0), (0, 0.0)]);
        assert!(top(0).is_empty());
        let among = Look {
            among: Some(vec![0b1001]),
            ..Look::new(Show::Top(9))
        };
        assert_eq!(shown(&among).candidates, [(3, 2.0), (0, 0.0)]);
        let none = Look {
            among: Some(vec![0b100]),
            ..among
        };
        let nothing = none.at(&ROW, 7, &mut Scratch::default());
        assert!(matches!(nothing, Err(Error::Failed(_))), "{nothing:?}");
    }

    #[test]
    fn named_tokens_keep_their_order_and_a_row_is_whole() {
        let only = shown(&Look::new(Show::Only(vec![3, 2, 1, 3])));
        let expected = [(3, 2.0), (2, f32::NEG_INFINITY), (1, 3.0), (3, 2.0)];
        assert_eq!(only.candidates, expected);
        assert_eq!((only.logits.len(), only.position), (0, 7));
        let row = shown(&Look::new(Show::Logits));
        assert_eq!((row.logits.as_slice(), row.candidates.len()), (&ROW[..], 0));
    }

    #[test]
    fn the_likeliest_alone_show_the_same_or_nothing() {
        let top = TopLogits {
            tokens: &[4, 3, 1],
            logits: &[3.0, 2.0, 3.0],
            vocabulary: ROW.len(),
        };
        let at_top = |look: &Look| look.at_top(top, 7, &mut Scratch::default());
        let look = |count| Look::new(Show::Top(count));
        assert_eq!(at_top(&look(2)), Ok(shown(&look(2))));
        assert_eq!(at_top(&look(3)), Err(TopKMiss));
        let follows: Vec<_> = (1..5)
            .map(|count| look(count).follows_from_top(3))
            .collect();
        assert_eq!(follows, [true, true, false, false]);
        let statistics = Look {
            statistics: true,
            ..look(1)
        };
        let masked = Look {
            among: Some(vec![0b1000]),
            ..look(1)
        };
        for other in [
            statistics,
            Look::new(Show::Logits),
            Look::new(Show::Only(vec![4])),
        ] {
            assert!(!other.follows_from_top(3));
            assert_eq!(at_top(&other), Err(TopKMiss));
        }
        assert!(!masked.follows_from_top(3));
        assert_eq!(
            at_top(&masked),
            Ok(shown(&masked)),
            "one is allowed, and was seen"
        );
    }

    #[test]
    fn statistics_are_those_of_the_softmax() {
        let look = Look {
            statistics: true,
            ..Look::new(Show::Top(1))
        };
        let statistics = shown(&look).statistics.unwrap();
        let finite = ROW.iter().filter(|logit| logit.is_finite());
        let sum: f64 = finite.clone().map(|&logit| f64::from(logit).exp()).sum();
        let entropy: f64 = finite
            .map(|&logit| f64::from(logit).exp() / sum)
            .map(|p| -p * p.ln())
            .sum();
        assert!((f64::from(statistics.log_normalizer) - sum.ln()).abs() < 1e-5);
        assert!((f64::from(statistics.entropy) - entropy).abs() < 1e-5);
        assert_eq!(shown(&Look::new(Show::Top(1))).statistics, None);
    }

    #[test]
    fn what_is_too_much_or_unknown_is_refused() {
        let most = u32::try_from(MAX_CANDIDATES).unwrap();
        let check = |show| Look::new(show).check(10);
        assert!(check(Show::Top(most)).is_ok());
        assert!(check(Show::Logits).is_ok());
        assert!(check(Show::Only(vec![9, 0, 9])).is_ok());
        for wrong in [
            Show::Top(most + 1),
            Show::Only(vec![0; MAX_CANDIDATES + 1]),
            Show::Only(vec![10]),
        ] {
            assert!(matches!(check(wrong), Err(Error::Invalid(_))));
        }
    }
}
