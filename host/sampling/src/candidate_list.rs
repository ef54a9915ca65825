//! Candidates as a list, for when samplers have removed most of the vocabulary.
//!
//! All logits are finite. The list has no fixed order, since selecting is cheaper than sorting; but
//! draws depend on the order that a list has.

use crate::Token;
use crate::exp::{bound, exp};
use crate::softmax::SoftmaxSums;
use std::cmp::Ordering;

/// Top-k sorts at most this many tokens: sampling a row must not take longer than a step.
pub const MAX_SORTED: u32 = 1024;

/// A token that may be drawn.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Candidate {
    pub token: Token,
    /// The logit after the samplers so far.
    pub logit: f32,
}

/// Falling logit, then rising token: a total order, so that equal logits give equal results.
pub fn falling(a: &Candidate, b: &Candidate) -> Ordering {
    b.logit.total_cmp(&a.logit).then(a.token.cmp(&b.token))
}

/// The highest logit; minus infinity if the list is empty.
pub fn highest(list: &[Candidate]) -> f32 {
    list.iter()
        .map(|candidate| candidate.logit)
        .fold(f32::NEG_INFINITY, f32::max)
}

/// Probability relative to a candidate with the logit `highest`.
#[inline]
pub fn weight(candidate: &Candidate, highest: f32) -> f64 {
    f64::from(exp(candidate.logit - highest))
}

/// The sums of the softmax; `None` if the list is empty.
pub fn softmax_sums(list: &[Candidate]) -> Option<SoftmaxSums> {
    if list.is_empty() {
        return None;
    }
    let highest = highest(list);
    let (mut total, mut weighted) = (0.0, 0.0);
    for candidate in list {
        let d = candidate.logit - highest;
        let weight = f64::from(exp(d));
        total += weight;
        weighted += weight * f64::from(bound(d));
    }
    Some(SoftmaxSums {
        highest,
        total,
        weighted,
    })
}

/// The standard deviation of the logits.
pub fn standard_deviation(list: &[Candidate]) -> f64 {
    let count = (list.len() as f64).max(1.0);
    let logits = || list.iter().map(|candidate| f64::from(candidate.logit));
    let mean = logits().sum::<f64>() / count;
    let squares: f64 = logits().map(|logit| (logit - mean).powi(2)).sum();
    (squares / count).sqrt()
}

/// Keeps the first `count` candidates in `order`.
pub fn keep_first(
    list: &mut Vec<Candidate>,
    count: usize,
    order: impl Fn(&Candidate, &Candidate) -> Ordering,
) {
    if count < list.len() {
        list.select_nth_unstable_by(count, order);
        list.truncate(count);
    }
}

/// Keeps the shortest prefix, in `order`, whose total weight is `enough`; all candidates if none is.
/// Bisects by selection until few are left to sort.
pub fn keep_mass(
    list: &mut Vec<Candidate>,
    order: impl Fn(&Candidate, &Candidate) -> Ordering,
    weight: impl Fn(&Candidate) -> f64,
    enough: impl Fn(f64) -> bool,
) {
    const FEW: usize = 32;
    let (mut from, mut to, mut sum) = (0, list.len(), 0.0);
    while to - from > FEW {
        let half = (to - from) / 2;
        list[from..to].select_nth_unstable_by(half, &order);
        let first: f64 = list[from..from + half].iter().map(&weight).sum();
        if enough(sum + first) {
            to = from + half;
        } else {
            sum += first;
            from += half;
        }
    }
    list[from..to].sort_unstable_by(&order);
    let last = list[from..to].iter().position(|candidate| {
        sum += weight(candidate);
        enough(sum)
    });
    list.truncate(last.map_or(to, |last| from + last + 1));
}

/// Draws by the softmax; `point` is uniform in [0, 1).
pub fn draw(list: &[Candidate], point: f64) -> Option<Token> {
    let highest = highest(list);
    let total: f64 = list
        .iter()
        .map(|candidate| weight(candidate, highest))
        .sum();
    let mut rest = point * total;
    let mut last = None;
    for candidate in list {
        let weight = weight(candidate, highest);
        if weight > 0.0 {
            // Rounding can leave a remainder behind the last candidate.
            last = Some(candidate.token);
            rest -= weight;
            if rest < 0.0 {
                break;
            }
        }
    }
    last
}
