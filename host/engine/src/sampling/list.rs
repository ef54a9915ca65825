//! Candidates as a list, once a link has left out most of the vocabulary. In any order: nothing
//! below needs one, and selecting is cheaper than sorting; but what is drawn depends on it. All logits
//! are finite.

use super::exp::{bound, exp};
use super::whole::Moments;
use crate::Token;
use std::cmp::Ordering;

/// Of no more than so many the most likely are put in order: a row must not take longer than a step, however
/// many a caller wants to keep.
pub const MOST_SORTED: u32 = 1024;

/// A token that may still be drawn.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Candidate {
    /// The token.
    pub token: Token,
    /// Its logit as the links so far made it.
    pub logit: f32,
}

/// Falling logit, then rising token: a total order, so that equal logits give equal answers.
pub fn falling(a: &Candidate, b: &Candidate) -> Ordering {
    b.logit.total_cmp(&a.logit).then(a.token.cmp(&b.token))
}

/// The highest logit, minus infinity of none.
pub fn most(list: &[Candidate]) -> f32 {
    list.iter()
        .map(|candidate| candidate.logit)
        .fold(f32::NEG_INFINITY, f32::max)
}

/// Probability relative to a candidate with the logit `most`.
#[inline]
pub fn share(candidate: &Candidate, most: f32) -> f64 {
    f64::from(exp(candidate.logit - most))
}

/// The sums of the softmax; `None` of none.
pub fn moments(list: &[Candidate]) -> Option<Moments> {
    if list.is_empty() {
        return None;
    }
    let most = most(list);
    let (mut total, mut weighted) = (0.0, 0.0);
    for candidate in list {
        let d = candidate.logit - most;
        let share = f64::from(exp(d));
        total += share;
        weighted += share * f64::from(bound(d));
    }
    Some(Moments {
        most,
        total,
        weighted,
    })
}

/// Number, mean and standard deviation of the logits.
pub fn spread(list: &[Candidate]) -> (f64, f64, f64) {
    let count = list.len() as f64;
    let logits = || list.iter().map(|candidate| f64::from(candidate.logit));
    let mean = logits().sum::<f64>() / count.max(1.0);
    let squares: f64 = logits().map(|logit| (logit - mean).powi(2)).sum();
    (count, mean, (squares / count.max(1.0)).sqrt())
}

/// Keeps the first `count` in `order`.
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

/// Keeps the fewest first ones in `order` whose shares together are `enough`, or all. Halves what
/// is in question until it is short, so that nothing else is sorted.
pub fn keep_mass(
    list: &mut Vec<Candidate>,
    order: impl Fn(&Candidate, &Candidate) -> Ordering,
    share: impl Fn(&Candidate) -> f64,
    enough: impl Fn(f64) -> bool,
) {
    const SHORT: usize = 32;
    let (mut from, mut to, mut sum) = (0, list.len(), 0.0);
    while to - from > SHORT {
        let half = (to - from) / 2;
        list[from..to].select_nth_unstable_by(half, &order);
        let first: f64 = list[from..from + half].iter().map(&share).sum();
        if enough(sum + first) {
            to = from + half;
        } else {
            sum += first;
            from += half;
        }
    }
    list[from..to].sort_unstable_by(&order);
    let reached = list[from..to].iter().position(|candidate| {
        sum += share(candidate);
        enough(sum)
    });
    list.truncate(reached.map_or(to, |last| from + last + 1));
}

/// Draws by the softmax; `point` is uniform in [0, 1).
pub fn draw(list: &[Candidate], point: f64) -> Option<Token> {
    let most = most(list);
    let total: f64 = list.iter().map(|candidate| share(candidate, most)).sum();
    let mut rest = point * total;
    let mut last = None;
    for candidate in list {
        let share = share(candidate, most);
        if share > 0.0 {
            // Rounding can leave a crumb of the last candidate's share.
            last = Some(candidate.token);
            rest -= share;
            if rest < 0.0 {
                break;
            }
        }
    }
    last
}
