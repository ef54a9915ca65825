//! Probabilities as the model gave them, before any link: what the OpenAI API reports.

use super::Scratch;
use super::list::{self, Candidate, falling};
use super::whole::Whole;
use crate::look::Statistics;
use crate::{Error, Token};

/// Likeliest tokens that may be asked for beside the one drawn, as in the OpenAI API.
pub const MAX_TOP_LOGPROBS: usize = 20;

/// Natural logarithms of probabilities at one position.
#[derive(Clone, Debug, PartialEq)]
pub struct TokenLogprobs {
    /// Of the token asked for; minus infinity if its logit is not finite.
    pub logprob: f32,
    /// Of the likeliest tokens, falling, ties by rising id.
    pub top: Vec<(Token, f32)>,
}

/// The log-softmax of a row of logits at `token` and at its `top` likeliest tokens, of which there
/// are fewer if fewer logits are finite. [`Error::Invalid`] if `top` is over [`MAX_TOP_LOGPROBS`]
/// or the row has no such token.
pub fn logprobs(
    row: &[f32],
    token: Token,
    top: usize,
    scratch: &mut Scratch,
) -> Result<TokenLogprobs, Error> {
    if top > MAX_TOP_LOGPROBS {
        return Err(Error::Invalid(format!(
            "the {top} likeliest tokens were asked for; it must be {MAX_TOP_LOGPROBS} or fewer"
        )));
    }
    let Some(&logit) = row.get(token as usize) else {
        return Err(Error::Invalid(format!(
            "token {token} was asked for; the vocabulary has those under {}",
            row.len()
        )));
    };
    let mut whole = Whole::new(row, None, &mut scratch.whole);
    let normal = whole
        .moments()
        .map_or(0.0, |moments| f64::from(moments.most) + moments.total.ln());
    let logprob = |logit: f32| {
        if logit.is_finite() {
            (f64::from(logit) - normal) as f32
        } else {
            f32::NEG_INFINITY
        }
    };
    select(&mut whole, top, &mut scratch.list);
    Ok(TokenLogprobs {
        logprob: logprob(logit),
        top: scratch
            .list
            .iter()
            .map(|candidate| (candidate.token, logprob(candidate.logit)))
            .collect(),
    })
}

/// The `count` highest finite logits of a row, falling, ties by rising id; only of tokens whose bit in
/// `allowed` is set, if it is given.
pub fn top(
    row: &[f32],
    allowed: Option<&[u32]>,
    count: usize,
    scratch: &mut Scratch,
) -> Vec<(Token, f32)> {
    let mut whole = Whole::new(row, allowed, &mut scratch.whole);
    select(&mut whole, count, &mut scratch.list);
    let pair = |candidate: &Candidate| (candidate.token, candidate.logit);
    scratch.list.iter().map(pair).collect()
}

/// What only the whole row tells; `None` if no logit is finite.
pub fn statistics(row: &[f32], scratch: &mut Scratch) -> Option<Statistics> {
    let mut whole = Whole::new(row, None, &mut scratch.whole);
    let moments = whole.moments()?;
    Some(Statistics {
        log_normalizer: moments.logit(0.0),
        entropy: moments.entropy() as f32,
    })
}

fn select(whole: &mut Whole<'_>, count: usize, found: &mut Vec<Candidate>) {
    found.clear();
    if count > 0 {
        let least = whole.reached_by(count);
        whole.each_from(least, |candidate| found.push(candidate));
        list::keep_first(found, count, falling);
        found.sort_unstable_by(falling);
    }
}
