//! Chains and single samplers against expected values; the distribution of draws; draws from top-k
//! logits. The comparison with llama.cpp's samplers is in corral-engine.

mod breakers;
mod distribution;
mod history;
mod logprobs;
mod parameters;
mod top_k;

use super::*;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::sync::Arc;

/// Random rows, histories and masks.
pub struct Rows(ChaCha8Rng);

impl Rows {
    pub fn new(seed: u64) -> Self {
        Self(ChaCha8Rng::seed_from_u64(seed))
    }

    pub fn below(&mut self, bound: usize) -> usize {
        self.0.random_range(0..bound)
    }

    pub fn between(&mut self, from: f32, to: f32) -> f32 {
        from + (to - from) * self.0.random::<f32>()
    }

    /// Roughly normal logits: sums of four uniform numbers.
    pub fn row(&mut self, length: usize, width: f32) -> Vec<f32> {
        (0..length)
            .map(|_| (0..4).map(|_| self.between(-width, width)).sum())
            .collect()
    }

    pub fn history(&mut self, length: usize, vocabulary: usize) -> Vec<Token> {
        (0..length)
            .map(|_| self.below(vocabulary) as Token)
            .collect()
    }

    /// A mask that allows one token in `one_in`.
    pub fn mask(&mut self, length: usize, one_in: usize) -> Vec<u32> {
        let mut mask = vec![0_u32; length.div_ceil(32)];
        for token in 0..length {
            if self.below(one_in) == 0 {
                mask[token / 32] |= 1 << (token % 32);
            }
        }
        mask
    }
}

/// Whether a mask allows a token.
fn is_allowed(mask: &[u32], token: usize) -> bool {
    mask.get(token / 32)
        .is_some_and(|word| word >> (token % 32) & 1 == 1)
}

/// A row with these probabilities.
fn logits(probabilities: &[f32]) -> Vec<f32> {
    probabilities.iter().map(|p| p.ln()).collect()
}

/// The candidates that samplers leave, by rising token.
fn candidates(samplers: &[Sampler], row: &[f32], history: &[Token]) -> Vec<(Token, f32)> {
    let mut chain = SamplerChain::new(samplers.to_vec(), 1);
    chain.candidates(row, history, None, &mut Scratch::default())
}

fn tokens(samplers: &[Sampler], row: &[f32], history: &[Token]) -> Vec<Token> {
    let candidates = candidates(samplers, row, history);
    candidates.iter().map(|(token, _)| *token).collect()
}

/// Draws from a whole row, which never misses.
fn draw(
    chain: &mut SamplerChain,
    row: &[f32],
    history: &[Token],
    scratch: &mut Scratch,
) -> Option<Token> {
    chain
        .sample(Logits::Full(row), history, None, scratch)
        .unwrap()
}

fn sample(samplers: Vec<Sampler>, row: &[f32], history: &[Token]) -> Option<Token> {
    let mut chain = SamplerChain::new(samplers, 1);
    draw(&mut chain, row, history, &mut Scratch::default())
}

fn dry(multiplier: f32, allowed_length: u32, breakers: &[&[Token]]) -> Sampler {
    Sampler::Dry(Dry {
        multiplier,
        base: 1.75,
        allowed_length,
        last_n: 100,
        breakers: Arc::new(DryBreakers::from_tokens(breakers)),
    })
}

fn penalties(repeat: f32, frequency: f32, presence: f32) -> Sampler {
    Sampler::Penalties(Penalties {
        last_n: 4,
        repeat,
        frequency,
        presence,
    })
}

#[test]
fn greedy_takes_first_of_highest_finite_logits() {
    let row = [f32::NAN, 1.0, 3.0, 3.0, f32::INFINITY, f32::NEG_INFINITY];
    for samplers in [vec![], vec![Sampler::TopK(3), Sampler::Temperature(0.0)]] {
        assert_eq!(sample(samplers, &row, &[]), Some(2));
    }
}

#[test]
fn rows_without_finite_logits_draw_nothing() {
    let mut samplers = vec![
        Sampler::LogitBias(vec![(0, 1.0)]),
        penalties(1.1, 0.1, 0.1),
        dry(0.8, 1, &[]),
        Sampler::TopNSigma(1.0),
        Sampler::TopK(3),
        Sampler::TypicalP(0.9),
        Sampler::TopP(0.9),
        Sampler::MinP(0.1),
        Sampler::Xtc {
            probability: 1.0,
            threshold: 0.1,
        },
        Sampler::Temperature(0.0),
        Sampler::Temperature(0.7),
        Sampler::DynamicTemperature {
            temperature: 1.0,
            range: 0.5,
            exponent: 1.0,
        },
    ];
    let mirostat = Sampler::Mirostat { tau: 5.0, eta: 0.1 };
    let nothing = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY];
    let mut chains: Vec<Vec<Sampler>> = samplers.iter().map(|one| vec![one.clone()]).collect();
    samplers.push(mirostat.clone());
    chains.extend([vec![], vec![mirostat], samplers]);
    for chain in chains {
        for row in [&nothing[..], &[], &[f32::NEG_INFINITY; 200]] {
            assert_eq!(sample(chain.clone(), row, &[0, 1, 0, 1]), None, "{chain:?}");
        }
        // The only finite logit is drawn, unless the mask forbids it.
        let mut row = [f32::NAN; 300];
        row[130] = -3.0;
        assert_eq!(sample(chain.clone(), &row, &[0, 1, 0, 1]), Some(130));
        let mut chain = SamplerChain::new(chain, 1);
        let logits = Logits::Full(&row);
        let drawn = chain.sample(logits, &[], Some(&[0; 4]), &mut Scratch::default());
        assert_eq!(drawn, Ok(None));
    }
}

#[test]
fn filters_keep_expected_tokens() {
    let row = logits(&[0.1, 0.4, 0.3, 0.15, 0.05]);
    let kept = |samplers: &[Sampler]| tokens(samplers, &row, &[]);
    assert_eq!(kept(&[Sampler::TopK(2)]), [1, 2]);
    assert_eq!(kept(&[Sampler::TopK(0)]), [0, 1, 2, 3, 4]);
    assert_eq!(kept(&[Sampler::TopP(0.69)]), [1, 2]);
    assert_eq!(kept(&[Sampler::TopP(0.71)]), [1, 2, 3]);
    assert_eq!(kept(&[Sampler::TopP(0.0)]), [1]);
    assert_eq!(kept(&[Sampler::TopP(1.0)]), [0, 1, 2, 3, 4]);
    assert_eq!(kept(&[Sampler::MinP(0.3)]), [1, 2, 3]);
    assert_eq!(kept(&[Sampler::MinP(0.0)]), [0, 1, 2, 3, 4]);
    // The entropy is 1.39 nats; the surprises are 2.3, 0.92, 1.2, 1.9 and 3.
    assert_eq!(kept(&[Sampler::TypicalP(0.2)]), [2]);
    assert_eq!(kept(&[Sampler::TypicalP(0.5)]), [1, 2]);
    assert_eq!(kept(&[Sampler::TypicalP(0.8)]), [1, 2, 3]);
    // The logits' standard deviation is 0.75; 0.3 is 0.29 below the highest, 0.15 is 0.98.
    assert_eq!(kept(&[Sampler::TopNSigma(1.0)]), [1, 2]);
    assert_eq!(kept(&[Sampler::TopNSigma(-1.0)]), [0, 1, 2, 3, 4]);
    let xtc = |probability, threshold| Sampler::Xtc {
        probability,
        threshold,
    };
    assert_eq!(kept(&[xtc(1.0, 0.12)]), [0, 3, 4]);
    assert_eq!(kept(&[xtc(1.0, 0.35)]), [0, 1, 2, 3, 4]);
    assert_eq!(kept(&[xtc(0.0, 0.12)]), [0, 1, 2, 3, 4]);
    // The order matters: of the three most likely, 0.4 / 0.85 is under one half, two make 0.82.
    assert_eq!(kept(&[Sampler::TopK(3), Sampler::TopP(0.8)]), [1, 2]);
    assert_eq!(kept(&[Sampler::TopP(0.8), Sampler::TopK(3)]), [1, 2, 3]);
}

#[test]
fn mask_equals_removing_forbidden_tokens() {
    let mut rows = Rows::new(3);
    for round in 0..300 {
        let length = 1 + rows.below(3000);
        let mut row = rows.row(length, 3.0);
        if round % 3 == 0 {
            for _ in 0..length / 4 {
                let at = rows.below(length);
                row[at] = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY][rows.below(3)];
            }
        }
        // Sparse, dense, and sometimes too short.
        let one_in = [2, 20, 200][rows.below(3)];
        let mut mask = rows.mask(length, one_in);
        if rows.below(4) == 0 && length > 64 {
            mask.pop();
        }
        let masked: Vec<f32> = (0..length)
            .map(
                |token| match row[token].is_finite() && is_allowed(&mask, token) {
                    true => row[token],
                    false => f32::NEG_INFINITY,
                },
            )
            .collect();
        let history = rows.history(30, length);
        let chain = [
            penalties(1.3, 0.1, 0.2),
            Sampler::TopNSigma(2.0),
            Sampler::TopP(0.9),
            Sampler::Temperature(0.8),
        ];
        let mut scratch = Scratch::default();
        for samplers in [&chain[..], &chain[..1], &chain[3..]] {
            let mut chain = SamplerChain::new(samplers.to_vec(), round);
            let seen = chain.candidates(&row, &history, Some(&mask), &mut scratch);
            let expected = candidates(samplers, &masked, &history);
            assert_eq!(seen.len(), expected.len());
            for (a, b) in seen.iter().zip(&expected) {
                assert!(a.0 == b.0 && (a.1 - b.1).abs() < 1e-5, "{a:?} {b:?}");
            }
            let drawn = chain.sample(Logits::Full(&row), &history, Some(&mask), &mut scratch);
            let drawn = drawn.unwrap();
            assert_eq!(drawn.is_some(), !expected.is_empty());
            if let Some(token) = drawn {
                assert!(expected.iter().any(|(one, _)| *one == token));
            }
        }
    }
}

#[test]
fn same_seed_draws_same_tokens() {
    let row = logits(&[0.25; 4]);
    let draws = |seed| -> Vec<_> {
        let mut chain = SamplerChain::new(vec![Sampler::Temperature(1.0)], seed);
        let mut scratch = Scratch::default();
        (0..50)
            .map(|_| draw(&mut chain, &row, &[], &mut scratch))
            .collect()
    };
    assert_eq!(draws(3), draws(3));
    assert_ne!(draws(3), draws(4));
}

#[test]
fn shared_scratch_does_not_affect_draws() {
    let mut rows = Rows::new(5);
    let (long, short) = (rows.row(3000, 3.0), rows.row(70, 3.0));
    let chain = vec![penalties(1.5, 0.0, 1.0), Sampler::TopP(0.9)];
    let draws = |shared: bool| -> Vec<_> {
        let mut chain = SamplerChain::new(chain.clone(), 1);
        let mut scratch = Scratch::default();
        (0..100)
            .map(|round| {
                if shared {
                    let mut other = SamplerChain::new(vec![dry(1.0, 1, &[])], 1);
                    other.candidates(&short, &[1, 2, 1], None, &mut scratch);
                }
                draw(&mut chain, &long, &[round; 3], &mut scratch)
            })
            .collect()
    };
    assert_eq!(draws(false), draws(true));
    fn sent<T: Send>(_: &T) {}
    sent(&SamplerChain::new(chain, 1));
}

#[test]
fn reject_undoes_mirostats_adaptation() {
    let row = Rows::new(8).row(500, 2.0);
    let mut chain = SamplerChain::new(vec![Sampler::Mirostat { tau: 3.0, eta: 0.5 }], 1);
    let mut scratch = Scratch::default();
    let before = chain.max_surprise();
    draw(&mut chain, &row, &[], &mut scratch);
    assert_ne!(chain.max_surprise(), before);
    chain.reject();
    assert_eq!(chain.max_surprise(), before);
}

#[test]
fn extreme_temperatures_keep_all_tokens() {
    let row = [1.0, 2.0, f32::MAX, 3.0];
    for value in [f32::MIN_POSITIVE, 1e-30, 1e-6] {
        assert_eq!(
            sample(vec![Sampler::Temperature(value)], &row[..2], &[]),
            Some(1)
        );
    }
    for value in [1e30, f32::MAX] {
        let twice = [Sampler::Temperature(value), Sampler::Temperature(value)];
        assert_eq!(tokens(&twice, &row, &[]), [0, 1, 2, 3]);
    }
}
