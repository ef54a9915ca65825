//! Next-token requests: the distribution of the next token, for callers that sample themselves.
//!
//! A row of logits may have 150,000 numbers. Only the requested part leaves the engine thread, in one copy.

use crate::{Error, Token};
use corral_sampling::{Scratch, Statistics};

/// Most candidates of [`DistributionPart::Top`] and most tokens of [`DistributionPart::Only`]. Use
/// [`DistributionPart::Logits`] for more.
pub const MAX_CANDIDATES: usize = 4096;

/// Requests the distribution of a sequence's next token.
#[derive(Clone, Debug, PartialEq)]
pub struct NextTokenRequest {
    /// The part to return.
    pub part: DistributionPart,
    /// Also return statistics of the whole row.
    pub statistics: bool,
    /// Tokens that [`DistributionPart::Top`] may return: one bit per token of the vocabulary, the first in the
    /// lowest bit of the first word; missing bits are 0. `None` allows all tokens.
    pub mask: Option<Vec<u32>>,
    /// Name of the LoRA adapter to compute with. `None` for the base model.
    pub adapter: Option<String>,
}

/// A part of a distribution.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DistributionPart {
    /// This many of the likeliest tokens, at most [`MAX_CANDIDATES`].
    Top(u32),
    /// These tokens, at most [`MAX_CANDIDATES`].
    Only(Vec<Token>),
    /// The logits of all tokens.
    Logits,
}

impl NextTokenRequest {
    /// A request for a part, without statistics, mask or adapter.
    pub fn new(part: DistributionPart) -> Self {
        Self {
            part,
            statistics: false,
            mask: None,
            adapter: None,
        }
    }

    /// Checks the request for a vocabulary of this size; [`Error::Invalid`] if it asks for too much.
    pub fn check(&self, vocabulary: u32) -> Result<(), Error> {
        let count = match &self.part {
            DistributionPart::Top(count) => *count as usize,
            DistributionPart::Only(tokens) => tokens.len(),
            DistributionPart::Logits => return Ok(()),
        };
        if count > MAX_CANDIDATES {
            return Err(Error::Invalid(format!(
                "{count} candidates were requested; request at most {MAX_CANDIDATES}, or the logits"
            )));
        }
        match &self.part {
            DistributionPart::Only(tokens) => check_tokens(tokens, vocabulary),
            DistributionPart::Top(_) | DistributionPart::Logits => Ok(()),
        }
    }

    /// The requested part of a row after `position` tokens. [`Error::Failed`] if no allowed logit is finite.
    pub(crate) fn distribution(
        &self,
        row: &[f32],
        position: u32,
        scratch: &mut Scratch,
    ) -> Result<Distribution, Error> {
        let mut distribution = Distribution {
            candidates: Vec::new(),
            logits: Vec::new(),
            statistics: None,
            position,
        };
        match &self.part {
            DistributionPart::Top(count) => {
                let mask = self.mask.as_deref();
                distribution.candidates =
                    corral_sampling::most_likely(row, mask, *count as usize, scratch);
                if distribution.candidates.is_empty() && *count > 0 {
                    return Err(no_finite_logit());
                }
            }
            DistributionPart::Only(tokens) => {
                let logit = |&token| Some((token, *row.get(token as usize)?));
                distribution.candidates = tokens.iter().filter_map(logit).collect();
            }
            DistributionPart::Logits => distribution.logits = row.to_vec(),
        }
        if self.statistics {
            let statistics = corral_sampling::statistics(row, scratch);
            distribution.statistics = Some(statistics.ok_or_else(no_finite_logit)?);
        }
        Ok(distribution)
    }
}

fn no_finite_logit() -> Error {
    Error::Failed("no allowed token has a finite logit; the model's weights are damaged".into())
}

/// [`Error::Invalid`] if a token is outside of a vocabulary of this size.
pub(crate) fn check_tokens(tokens: &[Token], vocabulary: u32) -> Result<(), Error> {
    match tokens.iter().find(|&&token| token >= vocabulary) {
        None => Ok(()),
        Some(token) => Err(Error::Invalid(format!(
            "token {token} is not in the vocabulary, which has the tokens 0 to {}",
            vocabulary.saturating_sub(1)
        ))),
    }
}

/// The requested part of the next token's distribution.
#[derive(Clone, Debug, PartialEq)]
pub struct Distribution {
    /// Tokens with their logits. For [`DistributionPart::Top`] falling, equal logits in order of token, and only
    /// finite ones; for [`DistributionPart::Only`] in the order of the request.
    pub candidates: Vec<(Token, f32)>,
    /// For [`DistributionPart::Logits`], the logit of each token of the vocabulary.
    pub logits: Vec<f32>,
    /// Statistics, if requested.
    pub statistics: Option<Statistics>,
    /// Number of tokens before the next one.
    pub position: u32,
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROW: [f32; 5] = [0.0, 3.0, f32::NEG_INFINITY, 2.0, 3.0];

    fn top(count: u32) -> NextTokenRequest {
        NextTokenRequest::new(DistributionPart::Top(count))
    }

    fn only(tokens: Vec<Token>) -> NextTokenRequest {
        NextTokenRequest::new(DistributionPart::Only(tokens))
    }

    fn logits() -> NextTokenRequest {
        NextTokenRequest::new(DistributionPart::Logits)
    }

    fn of_row(request: &NextTokenRequest) -> Distribution {
        request
            .distribution(&ROW, 7, &mut Scratch::default())
            .unwrap()
    }

    #[test]
    fn top_sorts_and_skips_infinite_logits() {
        let candidates = |count| of_row(&top(count)).candidates;
        assert_eq!(candidates(2), [(1, 3.0), (4, 3.0)]);
        assert_eq!(candidates(9), [(1, 3.0), (4, 3.0), (3, 2.0), (0, 0.0)]);
        assert!(candidates(0).is_empty());
        let masked = |mask| NextTokenRequest {
            mask: Some(vec![mask]),
            ..top(9)
        };
        assert_eq!(of_row(&masked(0b1001)).candidates, [(3, 2.0), (0, 0.0)]);
        let none = masked(0b100).distribution(&ROW, 7, &mut Scratch::default());
        assert!(matches!(none, Err(Error::Failed(_))), "{none:?}");
    }

    #[test]
    fn only_keeps_the_requested_order() {
        let distribution = of_row(&only(vec![3, 2, 1, 3]));
        let expected = [(3, 2.0), (2, f32::NEG_INFINITY), (1, 3.0), (3, 2.0)];
        assert_eq!(distribution.candidates, expected);
        assert_eq!((distribution.logits.len(), distribution.position), (0, 7));
    }

    #[test]
    fn logits_return_the_whole_row() {
        let distribution = of_row(&logits());
        assert_eq!(distribution.logits, ROW);
        assert!(distribution.candidates.is_empty());
    }

    #[test]
    fn statistics_match_the_softmax() {
        let request = NextTokenRequest {
            statistics: true,
            ..top(1)
        };
        let statistics = of_row(&request).statistics.unwrap();
        let finite = ROW.iter().filter(|logit| logit.is_finite());
        let sum: f64 = finite.clone().map(|&logit| f64::from(logit).exp()).sum();
        let entropy: f64 = finite
            .map(|&logit| f64::from(logit).exp() / sum)
            .map(|p| -p * p.ln())
            .sum();
        assert!((f64::from(statistics.log_normalizer) - sum.ln()).abs() < 1e-5);
        assert!((f64::from(statistics.entropy) - entropy).abs() < 1e-5);
        assert_eq!(of_row(&top(1)).statistics, None);
    }

    #[test]
    fn check_rejects_too_many_or_unknown_tokens() {
        let most = u32::try_from(MAX_CANDIDATES).unwrap();
        for right in [top(most), logits(), only(vec![9, 0, 9])] {
            assert_eq!(right.check(10), Ok(()));
        }
        for wrong in [
            top(most + 1),
            only(vec![0; MAX_CANDIDATES + 1]),
            only(vec![10]),
        ] {
            assert!(matches!(wrong.check(10), Err(Error::Invalid(_))));
        }
    }
}
