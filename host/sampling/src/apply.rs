//! What each sampler does to the candidates. [`Sampler`] names the sources of the formulas.

use crate::candidates::{Candidates, Workspace};
use crate::token_map::TokenMap;
use crate::{Penalties, Sampler, Token};
use rand::{Rng, RngExt};

/// Applies a sampler other than mirostat; `history` is what penalties and DRY look back over.
pub fn apply(
    sampler: &Sampler,
    candidates: &mut Candidates<'_>,
    history: &[Token],
    workspace: &mut Workspace<'_>,
    rng: &mut impl Rng,
) {
    let tokens = &mut *workspace.tokens;
    match sampler {
        Sampler::Temperature(value) => temperature(candidates, *value),
        Sampler::DynamicTemperature {
            temperature,
            range,
            exponent,
        } => dynamic_temperature(candidates, *temperature, *range, *exponent),
        Sampler::TopK(count) => top_k(candidates, *count),
        Sampler::TopP(mass) => top_p(candidates, *mass),
        Sampler::MinP(ratio) => min_p(candidates, *ratio),
        Sampler::TypicalP(mass) => typical(candidates, *mass),
        Sampler::TopNSigma(count) => top_n_sigma(candidates, *count),
        Sampler::Xtc {
            probability,
            threshold,
        } => xtc(candidates, tokens, *probability, *threshold, || {
            rng.random()
        }),
        Sampler::Dry(dry) => dry.apply(history, candidates, tokens, workspace.lengths),
        Sampler::Penalties(settings) | Sampler::OutputPenalties(settings) => {
            penalties(candidates, tokens, history, settings);
        }
        Sampler::LogitBias(biases) => logit_bias(candidates, tokens, biases),
        Sampler::Mirostat { .. } => unreachable!("the chain applies mirostat"),
    }
}

fn temperature(candidates: &mut Candidates<'_>, value: f32) {
    if value > 0.0 {
        candidates.divide(value);
    } else {
        candidates.keep_best();
    }
}

fn dynamic_temperature(candidates: &mut Candidates<'_>, middle: f32, range: f32, exponent: f32) {
    if range <= 0.0 {
        return temperature(candidates, middle);
    }
    // A single candidate has a highest entropy of ln 1 = 0, which nothing can be divided by.
    if candidates.counted() <= 1 {
        return;
    }
    let highest = (candidates.counted() as f64).ln();
    let Some(sums) = candidates.softmax_sums() else {
        return;
    };
    let entropy_ratio = (sums.entropy() / highest).clamp(0.0, 1.0);
    let low = f64::from((middle - range).max(0.0));
    let high = f64::from(middle + range);
    let value = low + (high - low) * entropy_ratio.powf(f64::from(exponent));
    temperature(candidates, value as f32);
}

fn top_k(candidates: &mut Candidates<'_>, count: u32) {
    if count > 0 && (count as usize) < candidates.counted() {
        candidates.keep_top(count as usize);
    }
}

fn top_p(candidates: &mut Candidates<'_>, mass: f32) {
    if mass < 1.0
        && let Some(sums) = candidates.softmax_sums()
    {
        candidates.keep_likely(sums, f64::from(mass) * sums.total);
    }
}

fn min_p(candidates: &mut Candidates<'_>, ratio: f32) {
    if ratio > 0.0
        && let Some(best) = candidates.best()
    {
        candidates.keep_from(best.logit + ratio.ln());
    }
}

fn typical(candidates: &mut Candidates<'_>, mass: f32) {
    if mass < 1.0
        && let Some(sums) = candidates.softmax_sums()
    {
        let center = sums.logit(-sums.entropy());
        candidates.keep_near(sums, center, f64::from(mass) * sums.total);
    }
}

fn top_n_sigma(candidates: &mut Candidates<'_>, count: f32) {
    if count > 0.0
        && candidates.counted() > 1
        && let Some(best) = candidates.best()
    {
        let lowest = f64::from(best.logit) - f64::from(count) * candidates.standard_deviation();
        candidates.suppress_below(lowest as f32);
    }
}

/// `chance` is uniform in [0, 1).
fn xtc(
    candidates: &mut Candidates<'_>,
    tokens: &mut TokenMap,
    probability: f32,
    threshold: f32,
    chance: impl FnOnce() -> f32,
) {
    let off = probability <= 0.0 || threshold > 0.5 || candidates.counted() < 2;
    if !off
        && chance() < probability
        && let Some(sums) = candidates.softmax_sums()
    {
        candidates.drop_top(sums.logit(f64::from(threshold).ln()), tokens);
    }
}

pub fn penalties(
    candidates: &mut Candidates<'_>,
    tokens: &mut TokenMap,
    history: &[Token],
    settings: &Penalties,
) {
    let off = settings.repeat == 1.0 && settings.frequency == 0.0 && settings.presence == 0.0;
    let window = &history[history.len().saturating_sub(settings.last_n as usize)..];
    if off || window.is_empty() {
        return;
    }
    for &token in window {
        tokens.increment(token);
    }
    candidates.change(tokens, |logit, count| {
        let scaled = if logit <= 0.0 {
            logit * settings.repeat
        } else {
            logit / settings.repeat
        };
        scaled - (count as f32 * settings.frequency + settings.presence)
    });
    tokens.clear();
}

pub fn logit_bias(candidates: &mut Candidates<'_>, tokens: &mut TokenMap, biases: &[(Token, f32)]) {
    for (number, &(token, _)) in (1..).zip(biases) {
        tokens.raise(token, number);
    }
    candidates.change(tokens, |logit, number| {
        logit + biases[number as usize - 1].1
    });
    tokens.clear();
}

/// Keeps tokens whose surprise is at most `max_surprise` bits, at least the most likely one.
pub fn mirostat(candidates: &mut Candidates<'_>, max_surprise: f32) {
    if let (Some(sums), Some(best)) = (candidates.softmax_sums(), candidates.best()) {
        let lowest = sums.logit(-f64::from(max_surprise) * std::f64::consts::LN_2);
        candidates.keep_from(lowest.min(best.logit));
    }
}

/// The surprise of a token among the candidates of a list, in bits; `None` if it is not one.
pub fn surprise(candidates: &Candidates<'_>, token: Token) -> Option<f32> {
    let nats = candidates.softmax_sums()?.logit(0.0) - candidates.logit(token)?;
    Some(nats / std::f32::consts::LN_2)
}
