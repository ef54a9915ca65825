//! Chains and single samplers against expected values; the distribution of draws; draws from top-k
//! logits. The comparison with llama.cpp's samplers is in corral-engine.

mod breakers;
mod distribution;
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
        range: 100,
        breakers: Arc::new(DryBreakers::from_tokens(breakers.iter().copied()).unwrap()),
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
        Sampler::Typical(0.9),
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
    assert_eq!(kept(&[Sampler::Typical(0.2)]), [2]);
    assert_eq!(kept(&[Sampler::Typical(0.5)]), [1, 2]);
    assert_eq!(kept(&[Sampler::Typical(0.8)]), [1, 2, 3]);
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
fn penalties_look_back_and_affect_greedy_choice() {
    let row = [2.0, 1.9, -1.0, 0.0];
    let after = |sampler: Sampler, history: &[Token]| {
        let left = candidates(&[sampler], &row, history);
        left.iter().map(|(_, logit)| *logit).collect::<Vec<_>>()
    };
    assert_eq!(
        after(penalties(2.0, 0.0, 0.0), &[0, 2]),
        [1.0, 1.9, -2.0, 0.0]
    );
    assert_eq!(
        after(penalties(1.0, 0.5, 0.0), &[0, 0, 1]),
        [1.0, 1.4, -1.0, 0.0]
    );
    assert_eq!(
        after(penalties(1.0, 0.0, 0.5), &[0, 0, 0]),
        [1.5, 1.9, -1.0, 0.0]
    );
    // Only the last four tokens count; tokens outside the vocabulary do not.
    assert_eq!(
        after(penalties(1.0, 1.0, 0.0), &[0, 3, 3, 9, 3]),
        [2.0, 1.9, -1.0, -3.0]
    );

    let greedy = Sampler::Temperature(0.0);
    assert_eq!(sample(vec![greedy.clone()], &row, &[0]), Some(0));
    let chain = vec![penalties(1.0, 0.0, 0.5), greedy.clone()];
    assert_eq!(sample(chain, &row, &[0]), Some(1));
    let chain = vec![Sampler::LogitBias(vec![(3, 5.0)]), greedy.clone()];
    assert_eq!(sample(chain, &row, &[]), Some(3));
    let banned = Sampler::LogitBias(vec![(0, f32::NEG_INFINITY), (1, f32::NEG_INFINITY)]);
    assert_eq!(sample(vec![banned, greedy], &row, &[]), Some(3));
}

#[test]
fn output_penalties_ignore_the_prompt() {
    let row = [2.0, 1.9, -1.0, 0.0];
    let Sampler::Penalties(set) = penalties(1.0, 0.5, 0.0) else {
        unreachable!()
    };
    let chain = SamplerChain::new(
        vec![Sampler::OutputPenalties(set), Sampler::Temperature(0.0)],
        1,
    );
    let drawn = |prompt, history: &[Token]| {
        let mut chain = chain.clone().with_prompt_length(prompt);
        draw(&mut chain, &row, history, &mut Scratch::default())
    };
    assert_eq!(drawn(0, &[0, 0]), Some(1));
    assert_eq!(drawn(2, &[0, 0]), Some(0));
    assert_eq!(drawn(2, &[1, 1, 0]), Some(1));
    // The prompt does not count within `last_n` either.
    assert_eq!(drawn(2, &[0, 0, 1]), Some(0));
}

#[test]
fn dry_lowers_continuations_of_repetitions() {
    let row = [0.0; 8];
    let lowered = |sampler: Sampler, history: &[Token]| -> Vec<(Token, f32)> {
        let mut left = candidates(&[sampler], &row, history);
        left.retain(|(_, logit)| *logit != 0.0);
        left
    };
    // 1 2 3 occurred before, followed by 4; 3 alone was also followed by 5.
    let history = [1, 2, 3, 4, 3, 5, 1, 2, 3];
    assert_eq!(
        lowered(dry(1.0, 1, &[]), &history),
        [(4, -1.75_f32.powi(2)), (5, -1.0)]
    );
    assert_eq!(lowered(dry(1.0, 2, &[]), &history), [(4, -1.75)]);
    assert_eq!(lowered(dry(1.0, 4, &[]), &history), []);
    assert_eq!(lowered(dry(0.0, 1, &[]), &history), []);
    // A breaker shortens the repetition, and is never lowered itself.
    assert_eq!(
        lowered(dry(1.0, 1, &[&[2]]), &history),
        [(4, -1.0), (5, -1.0)]
    );
    assert_eq!(
        lowered(dry(1.0, 1, &[&[1, 2]]), &history),
        [(4, -1.0), (5, -1.0)]
    );
    assert_eq!(lowered(dry(1.0, 1, &[&[4]]), &history), [(5, -1.0)]);
    // Infinite loss removes the token.
    assert_eq!(lowered(dry(f32::MAX, 1, &[]), &[6; 90]), []);
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
    let before = chain.mu();
    draw(&mut chain, &row, &[], &mut scratch);
    assert_ne!(chain.mu(), before);
    chain.reject();
    assert_eq!(chain.mu(), before);
}

#[test]
fn logprobs_are_the_log_softmax_of_the_row() {
    let mut rows = Rows::new(9);
    let mut scratch = Scratch::default();
    for length in [1, 20, 64, 5000] {
        let mut row = rows.row(length, 4.0);
        if length > 100 {
            row[7] = f32::NAN;
            row[8] = f32::INFINITY;
            (row[9], row[90]) = (30.0, 30.0);
        }
        let finite = || row.iter().copied().filter(|logit| logit.is_finite());
        let normal = finite()
            .map(|logit| f64::from(logit).exp())
            .sum::<f64>()
            .ln();
        let expected = |token: Token| (f64::from(row[token as usize]) - normal) as f32;
        let mut order: Vec<Token> = (0..length as Token)
            .filter(|&token| row[token as usize].is_finite())
            .collect();
        order.sort_by(|&a, &b| row[b as usize].total_cmp(&row[a as usize]).then(a.cmp(&b)));
        let seen = logprobs(&row, 0, 20, &mut scratch).unwrap();
        assert!((seen.logprob - expected(0)).abs() < 1e-5);
        assert_eq!(seen.top.len(), length.min(20));
        for (&(token, logprob), &wanted) in seen.top.iter().zip(&order) {
            assert_eq!(token, wanted);
            assert!((logprob - expected(token)).abs() < 1e-5);
        }
        for count in [0, 3, 70, 6000] {
            let wanted = order.iter().take(count);
            let pairs: Vec<_> = wanted.map(|&token| (token, row[token as usize])).collect();
            assert_eq!(most_likely(&row, None, count, &mut scratch), pairs);
        }
    }
    let none = logprobs(&[f32::NAN; 3], 1, 2, &mut scratch).unwrap();
    assert_eq!((none.logprob, none.top.len()), (f32::NEG_INFINITY, 0));
    assert!(logprobs(&[0.0; 30], 30, 0, &mut scratch).is_err());
    assert!(logprobs(&[0.0; 30], 0, 21, &mut scratch).is_err());
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

#[test]
fn parameters_out_of_range_are_refused() {
    let bad_dry = |change: fn(&mut Dry)| {
        let Sampler::Dry(mut settings) = dry(1.0, 2, &[]) else {
            unreachable!()
        };
        change(&mut settings);
        Sampler::Dry(settings)
    };
    for sampler in [
        Sampler::Temperature(-1.0),
        Sampler::Temperature(f32::NAN),
        Sampler::DynamicTemperature {
            temperature: 1.0,
            range: -0.5,
            exponent: 1.0,
        },
        Sampler::DynamicTemperature {
            temperature: 1.0,
            range: 0.5,
            exponent: f32::INFINITY,
        },
        Sampler::TopP(1.1),
        Sampler::TopP(f32::NAN),
        Sampler::MinP(-0.1),
        Sampler::Typical(2.0),
        Sampler::TopNSigma(f32::NAN),
        Sampler::Xtc {
            probability: 1.5,
            threshold: 0.1,
        },
        Sampler::Xtc {
            probability: 0.5,
            threshold: -0.1,
        },
        penalties(0.0, 0.0, 0.0),
        penalties(1.0, f32::NAN, 0.0),
        penalties(1.0, 0.0, f32::INFINITY),
        Sampler::Penalties(Penalties {
            last_n: MAX_LOOK_BACK + 1,
            repeat: 1.0,
            frequency: 0.0,
            presence: 0.0,
        }),
        bad_dry(|dry| dry.multiplier = -1.0),
        bad_dry(|dry| dry.base = 0.9),
        bad_dry(|dry| dry.range = MAX_LOOK_BACK + 1),
        bad_dry(|dry| dry.allowed_length = MAX_LOOK_BACK + 1),
        Sampler::Mirostat {
            tau: -1.0,
            eta: 0.1,
        },
        Sampler::Mirostat {
            tau: 5.0,
            eta: f32::NAN,
        },
        Sampler::LogitBias(vec![(0, f32::NAN)]),
        Sampler::LogitBias(vec![(0, f32::INFINITY)]),
        Sampler::LogitBias(vec![(4, 1.0), (4, 2.0)]),
        Sampler::LogitBias(
            (0..=MAX_BIASES as Token)
                .map(|token| (token, 1.0))
                .collect(),
        ),
    ] {
        let refused = sampler.check().unwrap_err().to_string();
        assert!(
            refused.contains("must be")
                || refused.contains("must have")
                || refused.contains("at most"),
            "{refused}"
        );
    }
    let mirostat = Sampler::Mirostat { tau: 5.0, eta: 0.1 };
    let good = [
        Sampler::Temperature(0.0),
        dry(0.8, 2, &[]),
        penalties(1.1, -0.5, 0.5),
        Sampler::LogitBias(vec![(9, f32::NEG_INFINITY)]),
        mirostat.clone(),
    ];
    assert_eq!(check_samplers(&good, 10), Ok(()));
    assert!(check_samplers(&good, 9).is_err());
    assert!(check_samplers(&[mirostat, Sampler::TopK(1)], 10).is_err());
    assert!(check_samplers(&vec![Sampler::TopK(1); MAX_SAMPLERS + 1], 10).is_err());
}
