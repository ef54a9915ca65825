//! Log probabilities as the model computed them, before any sampler: what the OpenAI API reports.

use crate::candidate_list::{self, Candidate, falling};
use crate::logit_row::LogitRow;
use crate::{Error, Scratch, Token};

/// Most likely tokens that a request may ask for with each token, as in the OpenAI API.
pub const MAX_TOP_LOGPROBS: usize = 20;

/// Natural logarithms of probabilities at one position.
#[derive(Clone, Debug, PartialEq)]
pub struct TokenLogprobs {
    /// Of the token asked for; minus infinity if its logit is not finite.
    pub logprob: f32,
    /// Of the most likely tokens, falling, ties by rising id.
    pub top: Vec<(Token, f32)>,
}

/// Numbers that depend on a whole row of logits, in nats.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Statistics {
    /// The logarithm of the sum of e^logit: a logit minus this is the log probability of its token.
    pub log_normalizer: f32,
    /// The entropy of the softmax.
    pub entropy: f32,
}

/// The log-softmax of a row at `token` and at its `top` most likely tokens, of which there are fewer
/// if fewer logits are finite. Fails if `top` is over [`MAX_TOP_LOGPROBS`] or the row has no such
/// token.
pub fn logprobs(
    row: &[f32],
    token: Token,
    top: usize,
    scratch: &mut Scratch,
) -> Result<TokenLogprobs, Error> {
    if top > MAX_TOP_LOGPROBS {
        return Err(Error(format!(
            "the request asks for the {top} most likely tokens; it may ask for at most \
             {MAX_TOP_LOGPROBS}"
        )));
    }
    let Some(&logit) = row.get(token as usize) else {
        return Err(Error(format!(
            "token {token} is not in the vocabulary, which has {} tokens",
            row.len()
        )));
    };
    let mut logits = LogitRow::new(row, None, &mut scratch.row);
    let normalizer = logits
        .softmax_sums()
        .map_or(0.0, |sums| f64::from(sums.highest) + sums.total.ln());
    let logprob = |logit: f32| {
        if logit.is_finite() {
            (f64::from(logit) - normalizer) as f32
        } else {
            f32::NEG_INFINITY
        }
    };
    list_most_likely(&mut logits, top, &mut scratch.list);
    Ok(TokenLogprobs {
        logprob: logprob(logit),
        top: scratch
            .list
            .iter()
            .map(|candidate| (candidate.token, logprob(candidate.logit)))
            .collect(),
    })
}

/// The `count` highest finite logits of a row, falling, ties by rising id; with `allowed`, only of
/// tokens whose bit is set.
pub fn most_likely(
    row: &[f32],
    allowed: Option<&[u32]>,
    count: usize,
    scratch: &mut Scratch,
) -> Vec<(Token, f32)> {
    let mut logits = LogitRow::new(row, allowed, &mut scratch.row);
    list_most_likely(&mut logits, count, &mut scratch.list);
    let pair = |candidate: &Candidate| (candidate.token, candidate.logit);
    scratch.list.iter().map(pair).collect()
}

/// The statistics of a row; `None` if no logit is finite.
pub fn statistics(row: &[f32], scratch: &mut Scratch) -> Option<Statistics> {
    let sums = LogitRow::new(row, None, &mut scratch.row).softmax_sums()?;
    Some(Statistics {
        log_normalizer: sums.logit(0.0),
        entropy: sums.entropy() as f32,
    })
}

fn list_most_likely(logits: &mut LogitRow<'_>, count: usize, list: &mut Vec<Candidate>) {
    list.clear();
    if count > 0 {
        let lowest = logits.threshold(count);
        logits.for_each_from(lowest, |candidate| list.push(candidate));
        candidate_list::keep_first(list, count, falling);
        list.sort_unstable_by(falling);
    }
}
