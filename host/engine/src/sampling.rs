//! From logits to a token.
//!
//! A chain of samplers is applied in the caller's order to what is left of the vocabulary, then one
//! token is drawn. A chain that is empty, or has a temperature of 0, is greedy: the most likely
//! token, the lowest id among equals. Numbers that are not finite are never drawn.

use crate::{Error, Token};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::cmp::Ordering;

/// One link of a chain.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Sampler {
    /// Divides the logits; at 0 only the most likely token is left.
    Temperature(f32),
    /// Keeps the `k` most likely tokens; 0 keeps all.
    TopK(u32),
    /// Keeps the smallest set of most likely tokens with at least this probability together
    /// (nucleus sampling, Holtzman et al., 2020).
    TopP(f32),
    /// Keeps tokens at least this many times as likely as the most likely one (Nguyen et al.,
    /// 2024).
    MinP(f32),
}

impl Sampler {
    /// Checks that the parameter is in range; [`Error::Invalid`] says what is.
    pub fn check(&self) -> Result<(), Error> {
        let unit = |name: &str, value: f32| {
            (0.0..=1.0).contains(&value).then_some(()).ok_or_else(|| {
                Error::Invalid(format!("{name} is {value}; it must be between 0 and 1"))
            })
        };
        match *self {
            Self::Temperature(value) if value.is_finite() && value >= 0.0 => Ok(()),
            Self::Temperature(value) => Err(Error::Invalid(format!(
                "the temperature is {value}; it must be 0 or more"
            ))),
            Self::TopK(_) => Ok(()),
            Self::TopP(mass) => unit("top-p", mass),
            Self::MinP(ratio) => unit("min-p", ratio),
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct Candidate {
    token: Token,
    logit: f32,
}

/// Falling logit, then rising token: a total order, so that equal logits give equal answers.
fn falling(a: &Candidate, b: &Candidate) -> Ordering {
    b.logit.total_cmp(&a.logit).then(a.token.cmp(&b.token))
}

/// Memory that samplers work in, kept from row to row so that none is allocated for a token.
#[derive(Debug, Default)]
pub struct Scratch(Vec<Candidate>);

/// A sequence's sampling chain with its own random numbers.
#[derive(Debug)]
pub struct Chain {
    samplers: Vec<Sampler>,
    greedy: bool,
    rng: ChaCha8Rng,
}

impl Chain {
    /// A chain of checked samplers whose random numbers follow from `seed`.
    pub fn new(samplers: Vec<Sampler>, seed: u64) -> Self {
        let greedy = samplers.is_empty()
            || samplers
                .iter()
                .any(|sampler| matches!(sampler, Sampler::Temperature(0.0)));
        Self {
            samplers,
            greedy,
            rng: ChaCha8Rng::seed_from_u64(seed),
        }
    }

    /// Draws a token from a row of logits, one for each token of the vocabulary. `None` if no
    /// logit is finite.
    pub fn sample(&mut self, row: &[f32], scratch: &mut Scratch) -> Option<Token> {
        if self.greedy {
            return greedy(row);
        }
        let left = &mut scratch.0;
        left.clear();
        left.extend(
            (0..)
                .zip(row)
                .filter(|(_, logit)| logit.is_finite())
                .map(|(token, &logit)| Candidate { token, logit }),
        );
        let mut sorted = false;
        for sampler in &self.samplers {
            match *sampler {
                Sampler::Temperature(value) => {
                    for candidate in left.iter_mut() {
                        candidate.logit /= value;
                    }
                }
                Sampler::TopK(count) => sorted |= top_k(left, count as usize, sorted),
                Sampler::TopP(mass) => {
                    if !sorted {
                        left.sort_unstable_by(falling);
                        sorted = true;
                    }
                    top_p(left, mass);
                }
                Sampler::MinP(ratio) => min_p(left, ratio),
            }
        }
        draw(left, self.rng.random::<f64>())
    }
}

/// The most likely token, the lowest id among equals.
fn greedy(row: &[f32]) -> Option<Token> {
    let mut best: Option<(Token, f32)> = None;
    for (token, &logit) in (0..).zip(row) {
        if logit.is_finite() && best.is_none_or(|(_, most)| logit > most) {
            best = Some((token, logit));
        }
    }
    best.map(|(token, _)| token)
}

/// Returns whether `left` is sorted afterwards.
fn top_k(left: &mut Vec<Candidate>, count: usize, sorted: bool) -> bool {
    if count == 0 || count >= left.len() {
        return sorted;
    }
    if !sorted {
        left.select_nth_unstable_by(count, falling);
    }
    left.truncate(count);
    if !sorted {
        left.sort_unstable_by(falling);
    }
    true
}

fn highest(left: &[Candidate]) -> f32 {
    left.iter()
        .map(|candidate| candidate.logit)
        .fold(f32::NEG_INFINITY, f32::max)
}

/// Probability relative to the most likely candidate, whose logit is `most`.
fn weight(candidate: &Candidate, most: f32) -> f64 {
    f64::from(candidate.logit - most).exp()
}

/// Expects `left` sorted.
fn top_p(left: &mut Vec<Candidate>, mass: f32) {
    let most = highest(left);
    let total: f64 = left.iter().map(|candidate| weight(candidate, most)).sum();
    let wanted = f64::from(mass) * total;
    let mut sum = 0.0;
    let kept = left
        .iter()
        .position(|candidate| {
            sum += weight(candidate, most);
            sum >= wanted
        })
        .map_or(left.len(), |last| last + 1);
    left.truncate(kept);
}

fn min_p(left: &mut Vec<Candidate>, ratio: f32) {
    let least = highest(left) + ratio.ln();
    left.retain(|candidate| candidate.logit >= least);
}

/// Draws by the softmax of the logits; `point` is uniform in [0, 1).
fn draw(left: &[Candidate], point: f64) -> Option<Token> {
    let most = highest(left);
    let total: f64 = left.iter().map(|candidate| weight(candidate, most)).sum();
    let mut rest = point * total;
    for candidate in left {
        rest -= weight(candidate, most);
        if rest < 0.0 {
            return Some(candidate.token);
        }
    }
    // Rounding can leave a crumb of the last candidate's share.
    left.last().map(|candidate| candidate.token)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How often each token of a row is drawn in `rounds` rounds.
    fn counts(samplers: &[Sampler], row: &[f32], rounds: u32) -> Vec<u32> {
        let mut chain = Chain::new(samplers.to_vec(), 7);
        let mut scratch = Scratch::default();
        let mut counts = vec![0; row.len()];
        for _ in 0..rounds {
            counts[chain.sample(row, &mut scratch).unwrap() as usize] += 1;
        }
        counts
    }

    fn logits(probabilities: &[f32]) -> Vec<f32> {
        probabilities.iter().map(|p| p.ln()).collect()
    }

    #[test]
    fn greedy_takes_the_first_of_the_highest_and_ignores_what_is_not_finite() {
        let row = [f32::NAN, 1.0, 3.0, 3.0, f32::INFINITY, f32::NEG_INFINITY];
        for samplers in [vec![], vec![Sampler::TopK(3), Sampler::Temperature(0.0)]] {
            let mut chain = Chain::new(samplers, 1);
            assert_eq!(chain.sample(&row, &mut Scratch::default()), Some(2));
        }
        let mut chain = Chain::new(vec![], 1);
        assert_eq!(chain.sample(&[f32::NAN], &mut Scratch::default()), None);
    }

    #[test]
    fn draws_follow_the_softmax() {
        // Chi-squared with 3 degrees of freedom: 16.27 is passed once in a thousand; the seed is
        // fixed, so this is no gamble.
        let expected = [0.5_f32, 0.3, 0.15, 0.05];
        let row = logits(&expected);
        let rounds = 20_000;
        let statistic: f64 = counts(&[Sampler::Temperature(1.0)], &row, rounds)
            .iter()
            .zip(expected)
            .map(|(&seen, p)| {
                let wanted = f64::from(p) * f64::from(rounds);
                (f64::from(seen) - wanted).powi(2) / wanted
            })
            .sum();
        assert!(statistic < 16.27, "{statistic}");
    }

    #[test]
    fn temperature_sharpens_by_the_stated_power() {
        let row = logits(&[0.5, 0.25, 0.25]);
        let counts = counts(&[Sampler::Temperature(0.5)], &row, 12_000);
        // Squares: 4 to 1 to 1.
        assert!((7_700..8_300).contains(&counts[0]), "{counts:?}");
    }

    #[test]
    fn each_filter_keeps_what_it_says() {
        let row = logits(&[0.1, 0.4, 0.3, 0.15, 0.05]);
        let kept = |samplers: &[Sampler]| -> Vec<usize> {
            (0..)
                .zip(counts(samplers, &row, 3_000))
                .filter(|(_, count)| *count > 0)
                .map(|(token, _)| token)
                .collect()
        };
        assert_eq!(kept(&[Sampler::TopK(2)]), [1, 2]);
        assert_eq!(kept(&[Sampler::TopK(0)]), [0, 1, 2, 3, 4]);
        assert_eq!(kept(&[Sampler::TopP(0.69)]), [1, 2]);
        assert_eq!(kept(&[Sampler::TopP(0.71)]), [1, 2, 3]);
        assert_eq!(kept(&[Sampler::TopP(0.0)]), [1]);
        assert_eq!(kept(&[Sampler::MinP(0.3)]), [1, 2, 3]);
        assert_eq!(kept(&[Sampler::MinP(0.0)]), [0, 1, 2, 3, 4]);
        // Order counts: of the three most likely, 0.4 / 0.85 is under one half, two make 0.82.
        assert_eq!(kept(&[Sampler::TopK(3), Sampler::TopP(0.8)]), [1, 2]);
    }

    #[test]
    fn the_same_seed_draws_the_same_tokens() {
        let row = logits(&[0.25; 4]);
        let draws = |seed| -> Vec<_> {
            let mut chain = Chain::new(vec![Sampler::Temperature(1.0)], seed);
            let mut scratch = Scratch::default();
            (0..50).map(|_| chain.sample(&row, &mut scratch)).collect()
        };
        assert_eq!(draws(3), draws(3));
        assert_ne!(draws(3), draws(4));
    }

    #[test]
    fn parameters_out_of_range_are_refused() {
        for sampler in [
            Sampler::Temperature(-1.0),
            Sampler::Temperature(f32::NAN),
            Sampler::TopP(1.1),
            Sampler::MinP(-0.1),
            Sampler::TopP(f32::NAN),
        ] {
            assert!(
                matches!(sampler.check(), Err(Error::Invalid(_))),
                "{sampler:?}"
            );
        }
        assert!(Sampler::Temperature(0.0).check().is_ok());
    }
}
