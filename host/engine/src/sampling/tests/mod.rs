//! What chains do, beside what llama.cpp's samplers do and beside what chance should give.

mod against_llama;
mod breakers;
mod device;
mod statistics;

use super::*;
use std::sync::Arc;

/// Random rows for tests.
pub struct Rows(pub ChaCha8Rng);

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

    /// Roughly normal logits: the sum of four even ones.
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
}

/// A row whose softmax is this.
fn logits(probabilities: &[f32]) -> Vec<f32> {
    probabilities.iter().map(|p| p.ln()).collect()
}

/// What links leave, by rising token.
pub fn left_of(
    samplers: &[Sampler],
    row: &[f32],
    history: &[Token],
    allowed: Option<&[u32]>,
    scratch: &mut Scratch,
) -> Vec<(Token, f32)> {
    let mut rng = ChaCha8Rng::seed_from_u64(1);
    let (mut left, mut tools) = Left::new(row, allowed, scratch);
    for sampler in samplers {
        apply(sampler, &mut left, history, &mut tools, &mut rng);
    }
    let mut list: Vec<_> = left
        .into_list()
        .iter()
        .map(|candidate| (candidate.token, candidate.logit))
        .collect();
    list.sort_unstable_by_key(|(token, _)| *token);
    list
}

fn tokens(samplers: &[Sampler], row: &[f32], history: &[Token]) -> Vec<Token> {
    left_of(samplers, row, history, None, &mut Scratch::default())
        .iter()
        .map(|(token, _)| *token)
        .collect()
}

fn sample(samplers: Vec<Sampler>, row: &[f32], history: &[Token]) -> Option<Token> {
    Chain::new(samplers, 1).sample(row, history, &mut Scratch::default())
}

fn dry(multiplier: f32, allowed_length: u32, breakers: &[&[Token]]) -> Sampler {
    Sampler::Dry(Dry {
        multiplier,
        base: 1.75,
        allowed_length,
        range: 100,
        breakers: Arc::new(Breakers::from_tokens(breakers.iter().copied()).unwrap()),
    })
}

fn penalties(repeat: f32, frequency: f32, presence: f32) -> Sampler {
    Sampler::Penalties(Penalties {
        last: 4,
        repeat,
        frequency,
        presence,
    })
}

#[test]
fn greedy_takes_the_first_of_the_highest_and_ignores_what_is_not_finite() {
    let row = [f32::NAN, 1.0, 3.0, 3.0, f32::INFINITY, f32::NEG_INFINITY];
    for samplers in [vec![], vec![Sampler::TopK(3), Sampler::Temperature(0.0)]] {
        assert_eq!(sample(samplers, &row, &[]), Some(2));
    }
}

#[test]
fn rows_of_nothing_give_nothing_whatever_the_chain() {
    let mut links = vec![
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
    let mut chains: Vec<Vec<Sampler>> = links.iter().map(|link| vec![link.clone()]).collect();
    links.push(mirostat.clone());
    chains.extend([vec![], vec![mirostat], links]);
    for chain in chains {
        for row in [&nothing[..], &[], &[f32::NEG_INFINITY; 200]] {
            assert_eq!(sample(chain.clone(), row, &[0, 1, 0, 1]), None, "{chain:?}");
        }
        // One that can be drawn is drawn.
        let mut row = [f32::NAN; 300];
        row[130] = -3.0;
        assert_eq!(sample(chain.clone(), &row, &[0, 1, 0, 1]), Some(130));
        let no = Chain::new(chain, 1).sample_allowed(&row, &[], &[0; 4], &mut Scratch::default());
        assert_eq!(no, None);
    }
}

#[test]
fn each_filter_keeps_what_it_says() {
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
    // The entropy is 1.39 nats, the surprises are 2.3, 0.92, 1.2, 1.9 and 3.
    assert_eq!(kept(&[Sampler::Typical(0.2)]), [2]);
    assert_eq!(kept(&[Sampler::Typical(0.5)]), [1, 2]);
    assert_eq!(kept(&[Sampler::Typical(0.8)]), [1, 2, 3]);
    // The logits' deviation is 0.75; 0.3 is 0.29 under the highest, 0.15 is 0.98.
    assert_eq!(kept(&[Sampler::TopNSigma(1.0)]), [1, 2]);
    assert_eq!(kept(&[Sampler::TopNSigma(-1.0)]), [0, 1, 2, 3, 4]);
    let xtc = |probability, threshold| Sampler::Xtc {
        probability,
        threshold,
    };
    assert_eq!(kept(&[xtc(1.0, 0.12)]), [0, 3, 4]);
    assert_eq!(kept(&[xtc(1.0, 0.35)]), [0, 1, 2, 3, 4]);
    assert_eq!(kept(&[xtc(0.0, 0.12)]), [0, 1, 2, 3, 4]);
    // Order counts: of the three most likely, 0.4 / 0.85 is under one half, two make 0.82.
    assert_eq!(kept(&[Sampler::TopK(3), Sampler::TopP(0.8)]), [1, 2]);
    assert_eq!(kept(&[Sampler::TopP(0.8), Sampler::TopK(3)]), [1, 2, 3]);
}

#[test]
fn penalties_look_back_over_the_last_tokens_and_act_on_a_greedy_choice() {
    let row = [2.0, 1.9, -1.0, 0.0];
    let after = |sampler: Sampler, history: &[Token]| {
        let left = left_of(&[sampler], &row, history, None, &mut Scratch::default());
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
    // Only the last four count; tokens outside the vocabulary do not.
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
fn penalties_of_the_answer_spare_the_prompt() {
    let row = [2.0, 1.9, -1.0, 0.0];
    let Sampler::Penalties(set) = penalties(1.0, 0.5, 0.0) else {
        unreachable!()
    };
    let chain = Chain::new(
        vec![Sampler::AnswerPenalties(set), Sampler::Temperature(0.0)],
        1,
    );
    let drawn = |prompt, history: &[Token]| {
        let mut chain = chain.clone().after(prompt);
        chain.sample(&row, history, &mut Scratch::default())
    };
    assert_eq!(drawn(0, &[0, 0]), Some(1));
    assert_eq!(drawn(2, &[0, 0]), Some(0));
    assert_eq!(drawn(2, &[1, 1, 0]), Some(1));
    // Of four tokens back, the prompt's do not count either.
    assert_eq!(drawn(2, &[0, 0, 1]), Some(0));
}

#[test]
fn dry_charges_what_would_continue_a_repetition() {
    let row = [0.0; 8];
    let charged = |sampler: Sampler, history: &[Token]| -> Vec<(Token, f32)> {
        let left = left_of(&[sampler], &row, history, None, &mut Scratch::default());
        left.into_iter()
            .filter(|(_, logit)| *logit != 0.0)
            .collect()
    };
    // 1 2 3 stood before and 4 followed; 3 alone was also followed by 5.
    let history = [1, 2, 3, 4, 3, 5, 1, 2, 3];
    assert_eq!(
        charged(dry(1.0, 1, &[]), &history),
        [(4, -1.75_f32.powi(2)), (5, -1.0)]
    );
    assert_eq!(charged(dry(1.0, 2, &[]), &history), [(4, -1.75)]);
    assert_eq!(charged(dry(1.0, 4, &[]), &history), []);
    assert_eq!(charged(dry(0.0, 1, &[]), &history), []);
    // A breaker cuts the repetition short, and is itself never charged.
    assert_eq!(
        charged(dry(1.0, 1, &[&[2]]), &history),
        [(4, -1.0), (5, -1.0)]
    );
    assert_eq!(
        charged(dry(1.0, 1, &[&[1, 2]]), &history),
        [(4, -1.0), (5, -1.0)]
    );
    assert_eq!(charged(dry(1.0, 1, &[&[4]]), &history), [(5, -1.0)]);
    // A repetition that is long enough bans its continuation, whatever the numbers.
    let long: Vec<Token> = [6; 90].to_vec();
    let banned = charged(dry(f32::MAX, 1, &[]), &long);
    assert_eq!(banned, []);
}

#[test]
fn a_mask_leaves_only_what_it_allows() {
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
        // From sparse, over dense, to a mask that is too short.
        let one_in = [2, 20, 200][rows.below(3)];
        let words = length.div_ceil(32) - usize::from(rows.below(4) == 0 && length > 64);
        let mut mask = vec![0_u32; words];
        let mut masked = vec![f32::NEG_INFINITY; length];
        for token in 0..(words * 32).min(length) {
            if rows.below(one_in) == 0 {
                mask[token / 32] |= 1 << (token % 32);
                if row[token].is_finite() {
                    masked[token] = row[token];
                }
            }
        }
        let history = rows.history(30, length);
        let chain = [
            penalties(1.3, 0.1, 0.2),
            Sampler::TopNSigma(2.0),
            Sampler::TopP(0.9),
            Sampler::Temperature(0.8),
        ];
        let mut scratch = Scratch::default();
        for samplers in [&chain[..], &chain[..1], &chain[3..]] {
            let seen = left_of(samplers, &row, &history, Some(&mask), &mut scratch);
            let expected = left_of(samplers, &masked, &history, None, &mut scratch);
            assert_eq!(seen.len(), expected.len());
            for (a, b) in seen.iter().zip(&expected) {
                assert!(a.0 == b.0 && (a.1 - b.1).abs() < 1e-5, "{a:?} {b:?}");
            }
            let mut chain = Chain::new(samplers.to_vec(), round);
            let drawn = chain.sample_allowed(&row, &history, &mask, &mut scratch);
            assert_eq!(drawn.is_some(), !expected.is_empty());
            if let Some(token) = drawn {
                assert!(expected.iter().any(|(one, _)| *one == token));
            }
        }
    }
}

#[test]
fn the_same_seed_draws_the_same_tokens() {
    let row = logits(&[0.25; 4]);
    let draws = |seed| -> Vec<_> {
        let mut chain = Chain::new(vec![Sampler::Temperature(1.0)], seed);
        let mut scratch = Scratch::default();
        (0..50)
            .map(|_| chain.sample(&row, &[], &mut scratch))
            .collect()
    };
    assert_eq!(draws(3), draws(3));
    assert_ne!(draws(3), draws(4));
}

#[test]
fn one_scratch_serves_chains_that_know_nothing_of_each_other() {
    let mut rows = Rows::new(5);
    let (long, short) = (rows.row(3000, 3.0), rows.row(70, 3.0));
    let chain = vec![penalties(1.5, 0.0, 1.0), Sampler::TopP(0.9)];
    let draws = |shared: bool| -> Vec<_> {
        let mut chain = Chain::new(chain.clone(), 1);
        let mut scratch = Scratch::default();
        (0..100)
            .map(|round| {
                if shared {
                    left_of(&[dry(1.0, 1, &[])], &short, &[1, 2, 1], None, &mut scratch);
                }
                chain.sample(&long, &[round; 3], &mut scratch)
            })
            .collect()
    };
    assert_eq!(draws(false), draws(true));
    fn sent<T: Send>(_: &T) {}
    sent(&Chain::new(chain, 1));
}

#[test]
fn mirostat_forgets_a_token_that_was_not_taken() {
    let row = Rows::new(8).row(500, 2.0);
    let mut chain = Chain::new(vec![Sampler::Mirostat { tau: 3.0, eta: 0.5 }], 1);
    let mut scratch = Scratch::default();
    let before = chain.mu;
    chain.sample(&row, &[], &mut scratch);
    assert_ne!(chain.mu, before);
    chain.reject();
    assert_eq!(chain.mu, before);
}

#[test]
fn logprobs_are_the_log_softmax_of_the_row_as_it_is() {
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
            assert_eq!(top(&row, None, count, &mut scratch), pairs);
        }
    }
    let none = logprobs(&[f32::NAN; 3], 1, 2, &mut scratch).unwrap();
    assert_eq!((none.logprob, none.top.len()), (f32::NEG_INFINITY, 0));
    assert!(logprobs(&[0.0; 30], 30, 0, &mut scratch).is_err());
    assert!(logprobs(&[0.0; 30], 0, 21, &mut scratch).is_err());
}

#[test]
fn extreme_temperatures_do_not_lose_tokens() {
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
            last: MAX_RANGE + 1,
            repeat: 1.0,
            frequency: 0.0,
            presence: 0.0,
        }),
        bad_dry(|dry| dry.multiplier = -1.0),
        bad_dry(|dry| dry.base = 0.9),
        bad_dry(|dry| dry.range = MAX_RANGE + 1),
        bad_dry(|dry| dry.allowed_length = MAX_RANGE + 1),
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
    assert_eq!(check(&good, 10), Ok(()));
    assert!(check(&good, 9).is_err());
    assert!(check(&[mirostat, Sampler::TopK(1)], 10).is_err());
    assert!(check(&vec![Sampler::TopK(1); MAX_LINKS + 1], 10).is_err());
}
