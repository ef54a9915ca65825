//! Candidate tokens, and the samplers that filter or reweight them.

use std::collections::BTreeSet;

use super::{Rng, RngExt};
use crate::{Candidate, Distribution, Token};

/// Candidates for the next token, in descending order of logit; equal logits in ascending order of
/// token. Each sampler works on the result of the previous one.
///
/// Probabilities are relative to the candidates: tokens that are not among them count as
/// impossible.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Candidates(Vec<Candidate>);

impl From<Vec<Candidate>> for Candidates {
    /// Accepts any order. Drops logits that are not finite.
    fn from(mut list: Vec<Candidate>) -> Self {
        list.retain(|candidate| candidate.logit.is_finite());
        let mut candidates = Candidates(list);
        candidates.sort();
        candidates
    }
}

impl From<Distribution> for Candidates {
    /// Accepts candidates and whole rows of logits.
    fn from(distribution: Distribution) -> Self {
        let row = (0..).zip(distribution.logits);
        let row = row.map(|(token, logit)| Candidate { token, logit });
        distribution
            .candidates
            .into_iter()
            .chain(row)
            .collect::<Vec<_>>()
            .into()
    }
}

impl Candidates {
    fn sort(&mut self) {
        self.0.sort_by(|one, other| {
            let falling = other.logit.total_cmp(&one.logit);
            falling.then(one.token.cmp(&other.token))
        });
    }

    /// The remaining candidates.
    pub fn as_slice(&self) -> &[Candidate] {
        &self.0
    }

    /// Divides the logits by `value`; at 0 or below only the most likely token remains. If `value`
    /// is so small that logits would overflow, the differences to the best logit are divided
    /// instead.
    pub fn temperature(mut self, value: f32) -> Self {
        let best = match self.0.first() {
            Some(best) if value > 0.0 => best.logit,
            _ => return self.top_k(1),
        };
        let from = match (best / value).is_finite() {
            true => 0.0,
            false => best,
        };
        for candidate in &mut self.0 {
            candidate.logit = (candidate.logit - from) / value;
        }
        // A logit that overflows is impossible.
        self.0.retain(|candidate| candidate.logit.is_finite());
        self
    }

    /// Keeps the `count` most likely candidates; 0 keeps all.
    pub fn top_k(mut self, count: usize) -> Self {
        if count > 0 {
            self.0.truncate(count);
        }
        self
    }

    /// Keeps the smallest set of most likely candidates whose probabilities sum to at least `mass`;
    /// at least one, and all with 1.
    pub fn top_p(mut self, mass: f32) -> Self {
        if mass < 1.0 {
            let mut sum = 0.0;
            let mut kept = 0;
            for probability in self.probabilities() {
                kept += 1;
                sum += probability;
                if sum >= f64::from(mass) {
                    break;
                }
            }
            self.0.truncate(kept);
        }
        self
    }

    /// Keeps candidates at least `ratio` times as likely as the most likely one; 0 keeps all.
    pub fn min_p(mut self, ratio: f32) -> Self {
        if let (true, Some(best)) = (ratio > 0.0, self.0.first()) {
            let least = best.logit + ratio.min(1.0).ln();
            self.0.retain(|candidate| candidate.logit >= least);
        }
        self
    }

    /// Divides positive logits of tokens in `history` and multiplies negative ones (Keskar et al.,
    /// 2019, adapted to negative logits). A penalty that is not positive and finite has no effect.
    pub fn repetition_penalty(mut self, history: &[Token], penalty: f32) -> Self {
        if !(penalty > 0.0 && penalty.is_finite()) {
            return self;
        }
        let seen: BTreeSet<_> = history.iter().collect();
        for candidate in &mut self.0 {
            if seen.contains(&candidate.token) {
                if candidate.logit > 0.0 {
                    candidate.logit /= penalty;
                } else {
                    candidate.logit *= penalty;
                }
                candidate.logit = candidate.logit.clamp(f32::MIN, f32::MAX);
            }
        }
        self.sort();
        self
    }

    /// The probability of each candidate, in order.
    pub fn probabilities(&self) -> Vec<f64> {
        let Some(best) = self.0.first() else {
            return Vec::new();
        };
        let weights = self.0.iter();
        let weights = weights.map(|candidate| f64::from(candidate.logit - best.logit).exp());
        let weights: Vec<_> = weights.collect();
        let sum: f64 = weights.iter().sum();
        weights.into_iter().map(|weight| weight / sum).collect()
    }

    /// The most likely token, if there is any.
    pub fn greedy(&self) -> Option<Token> {
        Some(self.0.first()?.token)
    }

    /// Draws a token at random by probability. Takes one random number.
    pub fn sample(&self, rng: &mut impl Rng) -> Option<Token> {
        let point: f64 = rng.random();
        let mut sum = 0.0;
        for (candidate, probability) in self.0.iter().zip(self.probabilities()) {
            sum += probability;
            if point < sum {
                return Some(candidate.token);
            }
        }
        // Rounding can leave the sum slightly below 1.
        Some(self.0.last()?.token)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sampling::{SeedableRng, SeededRng};

    /// Four tokens of probability 0.5, 0.25, 0.15 and 0.1.
    fn four() -> Candidates {
        let likely = [(2, 0.25f32), (1, 0.5), (4, 0.1), (3, 0.15)];
        let likely = likely.map(|(token, share)| Candidate {
            token,
            logit: share.ln() + 3.0,
        });
        likely.to_vec().into()
    }

    fn tokens(candidates: &Candidates) -> Vec<Token> {
        let list = candidates.as_slice().iter();
        list.map(|candidate| candidate.token).collect()
    }

    fn about(found: &[f64], expected: &[f64]) {
        assert_eq!(found.len(), expected.len());
        for (found, expected) in found.iter().zip(expected) {
            assert!((found - expected).abs() < 1e-6, "{found} for {expected}");
        }
    }

    #[test]
    fn candidates_are_sorted_and_impossible_ones_dropped() {
        let list = [
            (9, 1.0),
            (4, 2.0),
            (7, f32::NEG_INFINITY),
            (3, 1.0),
            (1, f32::NAN),
        ];
        let list = list.map(|(token, logit)| Candidate { token, logit });
        assert_eq!(tokens(&list.to_vec().into()), [4, 3, 9]);
        about(&four().probabilities(), &[0.5, 0.25, 0.15, 0.1]);
    }

    #[test]
    fn a_row_is_read_like_candidates() {
        let distribution = Distribution {
            candidates: vec![],
            logits: vec![0.5, f32::NEG_INFINITY, 2.0],
            statistics: None,
            position: 1,
        };
        assert_eq!(distribution.most_likely(), Some(2));
        assert_eq!(tokens(&distribution.into()), [2, 0]);
    }

    #[test]
    fn each_sampler_keeps_what_it_says() {
        for (kept, expected) in [
            (four().top_k(2), &[1, 2][..]),
            (four().top_k(0), &[1, 2, 3, 4]),
            (four().top_k(9), &[1, 2, 3, 4]),
            (four().top_p(0.0), &[1]),
            (four().top_p(0.49), &[1]),
            (four().top_p(0.51), &[1, 2]),
            (four().top_p(0.8), &[1, 2, 3]),
            (four().top_p(1.0), &[1, 2, 3, 4]),
            // 0.25 is half of 0.5, 0.15 is 0.3 of it, 0.1 is 0.2.
            (four().min_p(0.0), &[1, 2, 3, 4]),
            (four().min_p(0.19), &[1, 2, 3, 4]),
            (four().min_p(0.21), &[1, 2, 3]),
            (four().min_p(0.49), &[1, 2]),
            (four().min_p(1.0), &[1]),
            (four().temperature(0.0), &[1]),
            (Candidates::default().top_p(0.5).min_p(0.5), &[]),
        ] {
            assert_eq!(tokens(&kept), expected);
        }
    }

    #[test]
    fn temperature_raises_probabilities_to_a_power() {
        // Squares of the probabilities, divided by their sum 0.345.
        let sum = 0.25 + 0.0625 + 0.0225 + 0.01;
        about(
            &four().temperature(0.5).probabilities(),
            &[0.25 / sum, 0.0625 / sum, 0.0225 / sum, 0.01 / sum],
        );
    }

    #[test]
    fn extreme_settings_keep_probabilities_finite() {
        let fine = |candidates: Candidates| {
            let shares = candidates.probabilities();
            about(&[shares.iter().sum()], &[1.0]);
            assert!(
                candidates
                    .as_slice()
                    .iter()
                    .all(|one| one.logit.is_finite())
            );
        };
        for value in [
            f32::from_bits(1),
            f32::MIN_POSITIVE,
            1e-30,
            f32::MAX,
            f32::INFINITY,
        ] {
            fine(four().temperature(value));
        }
        // All but the best are impossible, with logits above 0 and below.
        for shift in [-50.0, 50.0] {
            let list = four().as_slice().to_vec();
            let list = list.into_iter().map(|one| Candidate {
                logit: one.logit + shift,
                ..one
            });
            let cold = Candidates::from(list.collect::<Vec<_>>()).temperature(1e-39);
            about(&cold.probabilities(), &[1.0]);
            assert_eq!(cold.sample(&mut SeededRng::seed_from_u64(1)), Some(1));
        }
        for penalty in [0.0, -1.0, f32::NAN, f32::INFINITY] {
            assert_eq!(four().repetition_penalty(&[1, 2], penalty), four());
        }
        for penalty in [f32::from_bits(1), f32::MAX] {
            fine(four().repetition_penalty(&[1, 2, 3], penalty));
        }
    }

    #[test]
    fn penalty_lowers_every_logit() {
        let list = [(0, 4.0), (1, 3.0), (2, -1.0)];
        let list = list.map(|(token, logit)| Candidate { token, logit });
        let penalized = Candidates::from(list.to_vec()).repetition_penalty(&[0, 2, 0, 5], 2.0);
        let logits: Vec<_> = penalized
            .as_slice()
            .iter()
            .map(|one| (one.token, one.logit))
            .collect();
        assert_eq!(logits, [(1, 3.0), (0, 2.0), (2, -2.0)]);
    }

    #[test]
    fn samples_follow_the_probabilities() {
        let (candidates, mut random) = (four(), SeededRng::seed_from_u64(3));
        let mut counts = [0u32; 5];
        for _ in 0..20_000 {
            counts[candidates.sample(&mut random).unwrap() as usize] += 1;
        }
        // 424 is six standard deviations of the most frequent token; the seed is fixed as well.
        for (token, expected) in [(1, 10_000), (2, 5_000), (3, 3_000), (4, 2_000)] {
            let found = counts[token].abs_diff(expected);
            assert!(found < 424, "{token}: {} for {expected}", counts[token]);
        }
        assert_eq!(candidates.greedy(), Some(1));
        assert_eq!(Candidates::default().sample(&mut random), None);
    }
}
