//! Compares each sampler with llama.cpp's on the same logits.
//!
//! llama.cpp sums in single precision. So where a sampler cuts by a sum of probabilities, the cut may
//! differ by a token. In small rows that must be rare and of little effect; in rows of 152,000 logits it
//! is usual, and must be of little effect.

#[path = "../benches/support/reference_chain.rs"]
mod reference_chain;

use corral_engine::Token;
use corral_llama::{DevicePlacement, LoadProgress, Model, ReferenceChain};
use corral_sampling::{Dry, DryBreakers, Logits, Penalties, Sampler, SamplerChain, Scratch};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use reference_chain::reference_chain;
use std::cmp::Ordering;
use std::path::Path;
use std::sync::Arc;

/// Random rows and histories.
struct Rows(ChaCha8Rng);

impl Rows {
    fn new(seed: u64) -> Self {
        Self(ChaCha8Rng::seed_from_u64(seed))
    }

    fn below(&mut self, bound: usize) -> usize {
        self.0.random_range(0..bound)
    }

    fn between(&mut self, from: f32, to: f32) -> f32 {
        from + (to - from) * self.0.random::<f32>()
    }

    /// Roughly normal logits: sums of four uniform numbers.
    fn row(&mut self, length: usize, width: f32) -> Vec<f32> {
        (0..length)
            .map(|_| (0..4).map(|_| self.between(-width, width)).sum())
            .collect()
    }
}

/// How far two candidate lists may differ.
#[derive(Clone, Copy)]
struct Tolerance {
    /// Probability of tokens that only one side keeps.
    one_sided: f64,
    /// Difference of the probabilities of a token.
    difference: f64,
}

const EXACT: Tolerance = Tolerance {
    one_sided: 0.0,
    difference: 1e-5,
};
/// For samplers that cut by a sum of probabilities.
const ROUNDED: Tolerance = Tolerance {
    one_sided: 5e-3,
    difference: 1e-5,
};

fn probabilities(left: &[(Token, f32)]) -> Vec<f64> {
    let most = left.iter().map(|one| one.1).fold(f32::MIN, f32::max);
    let share = |one: &(Token, f32)| f64::from(one.1 - most).exp();
    let total: f64 = left.iter().map(share).sum();
    left.iter().map(|one| share(one) / total).collect()
}

/// Compares the candidates of both sides and their probabilities. Among equal logits at a cut,
/// llama.cpp keeps any: `ties` ignores which tokens they are.
fn compare(
    ours: &[(Token, f32)],
    theirs: &[(Token, f32)],
    ties: bool,
    tolerance: Tolerance,
) -> Result<(), String> {
    let (mut ours, mut theirs) = (ours.to_vec(), theirs.to_vec());
    for side in [&mut ours, &mut theirs] {
        if ties {
            side.sort_unstable_by(|a, b| b.1.total_cmp(&a.1));
            (0..).zip(side.iter_mut()).for_each(|(id, one)| one.0 = id);
        } else {
            side.sort_unstable_by_key(|one| one.0);
        }
    }
    let mut a = ours.iter().zip(probabilities(&ours)).peekable();
    let mut b = theirs.iter().zip(probabilities(&theirs)).peekable();
    let mut one_sided = 0.0;
    loop {
        let order = match (a.peek(), b.peek()) {
            (None, None) => break,
            (Some(_), None) => Ordering::Less,
            (None, Some(_)) => Ordering::Greater,
            (Some((left, _)), Some((right, _))) => left.0.cmp(&right.0),
        };
        let left = a.next_if(|_| order.is_le()).map_or(0.0, |(_, p)| p);
        let right = b.next_if(|_| order.is_ge()).map_or(0.0, |(_, p)| p);
        if order.is_ne() {
            one_sided += left + right;
        } else if (left - right).abs() > tolerance.difference + 2.0 * tolerance.one_sided * left {
            return Err(format!("probabilities of {left} and {right}"));
        }
    }
    if one_sided > tolerance.one_sided {
        let sizes = (ours.len(), theirs.len());
        return Err(format!(
            "a probability of {one_sided} is on one side of {sizes:?}"
        ));
    }
    Ok(())
}

/// A random sampler; `kind` is below [`KINDS`].
fn sampler(rows: &mut Rows, kind: usize, vocabulary: usize) -> Sampler {
    match kind {
        0 => {
            let count = rows.below(20);
            let mut biases: Vec<_> = (0..count)
                .map(|_| (rows.below(vocabulary) as Token, rows.between(-5.0, 5.0)))
                .collect();
            biases.sort_by_key(|bias| bias.0);
            biases.dedup_by_key(|bias| bias.0);
            if let Some(first) = biases.first_mut() {
                first.1 = f32::NEG_INFINITY;
            }
            Sampler::LogitBias(biases)
        }
        1 => Sampler::Penalties(Penalties {
            last_n: rows.below(80) as u32,
            repeat: rows.between(0.7, 2.0),
            frequency: rows.between(-0.5, 1.0),
            presence: rows.between(-0.5, 1.0),
        }),
        2 => Sampler::Dry(Dry {
            multiplier: rows.between(0.0, 2.0),
            base: rows.between(1.0, 2.0),
            allowed_length: rows.below(4) as u32,
            last_n: rows.below(80) as u32,
            breakers: Arc::default(),
        }),
        3 => Sampler::TopK([0, 1, 2, 40, 129, 500, vocabulary as u32][rows.below(7)]),
        4 => Sampler::TopP(rows.between(0.0, 1.0)),
        5 => Sampler::MinP(rows.between(0.0, 1.0).powi(3)),
        6 => Sampler::Xtc {
            probability: 1.0,
            threshold: rows.between(0.001, 0.3),
        },
        7 => Sampler::Temperature(rows.between(0.2, 3.0)),
        8 => Sampler::DynamicTemperature {
            temperature: rows.between(0.3, 1.5),
            range: rows.between(-0.2, 1.0).max(0.0),
            exponent: rows.between(0.3, 3.0),
        },
        9 => Sampler::TypicalP(rows.between(0.0, 1.0)),
        10 => Sampler::TopNSigma(rows.between(-0.5, 4.0)),
        _ => Sampler::Temperature(0.0),
    }
}
const KINDS: usize = 12;
const TYPICAL: usize = 9;

/// Whether a sampler cuts or scales by a sum of probabilities.
fn sums(sampler: &Sampler) -> bool {
    matches!(
        sampler,
        Sampler::TopP(_)
            | Sampler::TypicalP(_)
            | Sampler::DynamicTemperature { .. }
            | Sampler::TopNSigma(_)
    )
}

/// The candidates of our chain.
fn candidates(samplers: &[Sampler], row: &[f32], history: &[Token]) -> Vec<(Token, f32)> {
    let mut chain = SamplerChain::new(samplers.to_vec(), 1);
    chain.candidates(row, history, None, &mut Scratch::default())
}

/// Asserts that both chains leave the same candidates, but for rounding. Returns whether they are equal.
fn assert_same(samplers: &[Sampler], row: &[f32], history: &[Token], ties: bool) -> bool {
    let mut reference = reference_chain(samplers, row.len(), 1);
    history.iter().for_each(|&token| reference.accept(token));
    let (theirs, _) = reference.candidates(row);
    let ours = candidates(samplers, row, history);
    match compare(&ours, &theirs, ties, EXACT) {
        Ok(()) => true,
        Err(_) if samplers.iter().any(sums) => {
            let rounded = compare(&ours, &theirs, ties, ROUNDED);
            assert_eq!(rounded, Ok(()), "{samplers:?} on {} logits", row.len());
            false
        }
        Err(error) => panic!("{error}: {samplers:?} on {} logits", row.len()),
    }
}

/// A history of few different tokens, so that it has repetitions.
fn repetitive(rows: &mut Rows, vocabulary: usize) -> Vec<Token> {
    let (length, tokens) = (rows.below(120), vocabulary.min(4));
    (0..length).map(|_| rows.below(tokens) as Token).collect()
}

#[test]
fn each_sampler_matches_llama_cpp() {
    let mut rows = Rows::new(11);
    let mut exact = 0;
    for kind in 0..KINDS {
        for round in 0..150 {
            let length = 1 + rows.below(2500);
            let width = rows.between(0.1, 4.0);
            let mut row = rows.row(length, width);
            let ties = round % 5 == 1;
            if ties {
                row.iter_mut()
                    .for_each(|logit| *logit = (*logit * 2.0).round() / 2.0);
            }
            // A probability of 0 makes llama.cpp's entropy NaN.
            if kind != TYPICAL && round % 5 == 2 {
                for _ in 0..length / 3 {
                    let at = rows.below(length);
                    row[at] = f32::NEG_INFINITY;
                }
            }
            let history = repetitive(&mut rows, length);
            let sampler = sampler(&mut rows, kind, length);
            exact += usize::from(assert_same(&[sampler], &row, &history, ties));
        }
    }
    assert!(exact >= KINDS * 150 - 5, "only {exact} are exact");
}

#[test]
fn chains_in_any_order_match_llama_cpp() {
    let mut rows = Rows::new(12);
    let mut exact = 0;
    for _ in 0..1500 {
        let length = 2 + rows.below(1500);
        let width = rows.between(0.1, 3.0);
        let row = rows.row(length, width);
        // The bias comes first: later, llama.cpp's list is out of order. Temperature 0 and top-n-sigma
        // leave probabilities of 0, which llama.cpp's typical sampling turns into NaN.
        let mut chain = vec![sampler(&mut rows, 0, length)];
        let zeros = rows.below(2) == 0;
        if !zeros {
            chain.clear();
        }
        for _ in 0..1 + rows.below(7) {
            let kind = if zeros {
                [1, 2, 3, 4, 5, 6, 7, 8, 10, 11][rows.below(10)]
            } else {
                1 + rows.below(9)
            };
            chain.push(sampler(&mut rows, kind, length));
        }
        let history = repetitive(&mut rows, length);
        exact += usize::from(assert_same(&chain, &row, &history, false));
    }
    assert!(exact >= 1485, "only {exact} are exact");
}

#[test]
fn large_rows_match_llama_cpp() {
    let mut rows = Rows::new(13);
    for (round, width) in [0.5, 1.5, 3.0].into_iter().enumerate() {
        let row = rows.row(151_936, width);
        let history = repetitive(&mut rows, 200);
        for kind in 0..KINDS {
            let sampler = sampler(&mut rows, kind, row.len());
            assert_same(&[sampler], &row, &history, false);
        }
        let usual = [
            sampler(&mut rows, 1, row.len()),
            sampler(&mut rows, 2, row.len()),
            Sampler::TopK(40),
            Sampler::TopP(0.95),
            Sampler::MinP(0.05),
            Sampler::Temperature(0.8),
        ];
        assert!(assert_same(&usual[round..], &row, &history, false));
    }
}

#[test]
fn mirostat_adapts_like_llama_cpp() {
    let mut rows = Rows::new(14);
    for (tau, eta) in [(3.0, 0.1), (5.0, 0.5), (1.0, 0.9)] {
        let samplers = vec![Sampler::Mirostat { tau, eta }];
        let mut reference = reference_chain(&samplers, 2000, 5);
        let mut chain = SamplerChain::new(samplers, 1);
        let mut scratch = Scratch::default();
        for round in 0..200 {
            let width = rows.between(0.5, 3.0);
            let row = rows.row(2000, width);
            let (theirs, drawn) = reference.candidates(&row);
            let ours = chain.candidates(&row, &[], None, &mut scratch);
            let same = compare(&ours, &theirs, false, EXACT);
            assert_eq!(same, Ok(()), "round {round}, tau {tau}, eta {eta}");
            // Both must adapt to the same token.
            while chain.sample(Logits::Full(&row), &[], None, &mut scratch) != Ok(drawn) {
                chain.reject();
            }
        }
    }
}

#[test]
fn xtc_acts_as_often_as_llama_cpps() {
    let row = [0.4_f32, 0.3, 0.2, 0.1].map(f32::ln);
    let samplers = vec![Sampler::Xtc {
        probability: 0.3,
        threshold: 0.15,
    }];
    let mut reference = reference_chain(&samplers, row.len(), 3);
    let mut chain = SamplerChain::new(samplers, 3);
    let mut scratch = Scratch::default();
    let (mut ours, mut theirs) = (0_usize, 0_usize);
    for _ in 0..10_000 {
        let left = chain.candidates(&row, &[], None, &mut scratch);
        ours += usize::from(left.len() < row.len());
        theirs += usize::from(reference.candidates(&row).0.len() < row.len());
    }
    // The standard deviation of each is 46.
    for seen in [ours, theirs] {
        assert!(seen.abs_diff(3000) < 142, "{ours} {theirs}");
    }
}

#[test]
fn dry_breakers_match_llama_cpp() {
    let tiny = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/tiny/tiny.gguf");
    let model = Model::load(&tiny, DevicePlacement::default(), &LoadProgress::default())
        .expect("the model loads");
    let vocabulary = model.vocabulary_size();
    let mut rows = Rows::new(15);
    let mut cut = 0;
    for texts in [
        vec!["\n".to_string()],
        vec!["+".into(), "=".into(), "ab".into()],
        vec!["12".into(), " the".into(), ": ".into()],
    ] {
        let tokens = 0..vocabulary as Token;
        let pieces = tokens.map(|token| model.piece(token, true));
        let breakers =
            DryBreakers::from_text(&texts, pieces, |text| model.tokenize(text, false)).unwrap();
        assert!(!breakers.is_empty());
        let breakers = Arc::new(breakers);
        // The tokens of breakers and a few others.
        let mut alphabet: Vec<Token> = texts
            .iter()
            .flat_map(|text| model.tokenize(text, false).unwrap())
            .collect();
        alphabet.extend((0..4).map(|_| rows.below(vocabulary) as Token));
        for _ in 0..200 {
            let length = rows.below(60);
            let history: Vec<Token> = (0..length)
                .map(|_| alphabet[rows.below(alphabet.len())])
                .collect();
            let dry = Dry {
                multiplier: 0.8,
                base: 1.75,
                allowed_length: rows.below(3) as u32,
                last_n: 50,
                breakers: breakers.clone(),
            };
            let window = &history[history.len().saturating_sub(50)..];
            cut += usize::from(breakers.tokens_since(window) < window.len());
            let row = rows.row(vocabulary, 2.0);
            let mut reference = ReferenceChain::new(vocabulary).dry(
                dry.multiplier,
                dry.base,
                dry.allowed_length,
                dry.last_n,
                Some((&model, &texts)),
            );
            history.iter().for_each(|&token| reference.accept(token));
            let ours = candidates(&[Sampler::Dry(dry)], &row, &history);
            let (theirs, _) = reference.candidates(&row);
            let same = compare(&ours, &theirs, false, EXACT);
            assert_eq!(same, Ok(()), "{texts:?} {history:?}");
        }
    }
    assert!(cut > 100, "breakers shortened {cut} histories");
}
