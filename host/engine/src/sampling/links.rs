//! What each link does to what is left. The formulas' sources stand with
//! [`Sampler`](super::Sampler).

use super::left::Left;
use super::marks::Marks;
use super::sampler::Penalties;
use super::whole::Moments;
use crate::Token;

pub fn temperature(left: &mut Left<'_>, value: f32) {
    if value > 0.0 {
        left.divide(value);
    } else {
        left.keep_best();
    }
}

pub fn dynamic_temperature(left: &mut Left<'_>, middle: f32, range: f32, exponent: f32) {
    if range <= 0.0 {
        return temperature(left, middle);
    }
    // The logarithm of one candidate is 0: there is no highest entropy to compare with.
    if left.counted() <= 1 {
        return;
    }
    let highest = (left.counted() as f64).ln();
    let Some(moments) = left.moments() else {
        return;
    };
    let evenness = (moments.entropy() / highest).clamp(0.0, 1.0);
    let least = f64::from((middle - range).max(0.0));
    let most = f64::from(middle + range);
    let value = least + (most - least) * evenness.powf(f64::from(exponent));
    temperature(left, value as f32);
}

pub fn top_k(left: &mut Left<'_>, count: u32) {
    if count > 0 && (count as usize) < left.counted() {
        left.keep_top(count as usize);
    }
}

pub fn top_p(left: &mut Left<'_>, mass: f32) {
    if mass < 1.0
        && let Some(moments) = left.moments()
    {
        left.keep_likely(moments, f64::from(mass) * moments.total);
    }
}

pub fn min_p(left: &mut Left<'_>, ratio: f32) {
    if ratio > 0.0
        && let Some(best) = left.best()
    {
        left.keep_from(best.logit + ratio.ln());
    }
}

pub fn typical(left: &mut Left<'_>, mass: f32) {
    if mass < 1.0
        && let Some(moments) = left.moments()
    {
        let center = moments.logit(-moments.entropy());
        left.keep_near(moments, center, f64::from(mass) * moments.total);
    }
}

pub fn top_n_sigma(left: &mut Left<'_>, count: f32) {
    if count > 0.0
        && left.counted() > 1
        && let Some(best) = left.best()
    {
        let (_, _, deviation) = left.spread();
        let least = f64::from(best.logit) - f64::from(count) * deviation;
        left.silence_below(least as f32);
    }
}

/// `chance` is uniform in [0, 1).
pub fn xtc(
    left: &mut Left<'_>,
    marks: &mut Marks,
    probability: f32,
    threshold: f32,
    chance: impl FnOnce() -> f32,
) {
    let off = probability <= 0.0 || threshold > 0.5 || left.counted() < 2;
    if !off
        && chance() < probability
        && let Some(moments) = left.moments()
    {
        left.drop_top(moments.logit(f64::from(threshold).ln()), marks);
    }
}

pub fn penalties(left: &mut Left<'_>, marks: &mut Marks, history: &[Token], set: &Penalties) {
    let off = set.repeat == 1.0 && set.frequency == 0.0 && set.presence == 0.0;
    let window = &history[history.len().saturating_sub(set.last as usize)..];
    if off || window.is_empty() {
        return;
    }
    for &token in window {
        marks.count(token);
    }
    left.change(marks, |logit, count| {
        let scaled = if logit <= 0.0 {
            logit * set.repeat
        } else {
            logit / set.repeat
        };
        scaled - (count as f32 * set.frequency + set.presence)
    });
    marks.clear();
}

pub fn logit_bias(left: &mut Left<'_>, marks: &mut Marks, biases: &[(Token, f32)]) {
    for (mark, &(token, _)) in (1..).zip(biases) {
        marks.raise(token, mark);
    }
    left.change(marks, |logit, mark| logit + biases[mark as usize - 1].1);
    marks.clear();
}

/// Keeps tokens whose surprise is at most `mu` bits, at least the most likely one. The sums are of
/// what is kept.
pub fn mirostat_keep(left: &mut Left<'_>, mu: f32) -> Option<Moments> {
    let all = left.moments()?;
    let best = left.best()?;
    let least = all.logit(-f64::from(mu) * std::f64::consts::LN_2);
    left.keep_from(least.min(best.logit));
    left.moments()
}

/// How far the surprise of a `token` that was drawn from what [`mirostat_keep`] kept is over
/// `tau`, in bits.
pub fn mirostat_error(left: &Left<'_>, kept: Moments, token: Token, tau: f32) -> Option<f32> {
    let surprise = kept.logit(0.0) - left.logit(token)?;
    Some(surprise / std::f32::consts::LN_2 - tau)
}
