//! Each link beside llama.cpp's on the same logits.
//!
//! Its sums are of single precision, so where a link cuts by a sum of shares the cut may fall a
//! token elsewhere. Among small rows that must happen seldom, and matter little where it does; on
//! 152,000 tokens it is usual, and must matter little.

use super::*;
use crate::llama::Model;
use crate::llama::reference::Reference;
use std::cmp::Ordering;
use std::path::Path;

/// Probability that only one side may keep, and how far probabilities may be apart.
#[derive(Clone, Copy)]
struct Tolerance {
    kept: f64,
    apart: f64,
}

const EXACT: Tolerance = Tolerance {
    kept: 0.0,
    apart: 1e-5,
};
/// For cuts by sums that are rounded.
const ROUNDED: Tolerance = Tolerance {
    kept: 5e-3,
    apart: 1e-5,
};

fn probabilities(left: &[(Token, f32)]) -> Vec<f64> {
    let most = left.iter().map(|one| one.1).fold(f32::MIN, f32::max);
    let share = |one: &(Token, f32)| f64::from(one.1 - most).exp();
    let total: f64 = left.iter().map(share).sum();
    left.iter().map(|one| share(one) / total).collect()
}

/// Compares the candidates of both sides and their probabilities. Among equal logits at a cut
/// llama.cpp keeps any, so with `ties` only the probabilities count.
fn same(
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
        } else if (left - right).abs() > tolerance.apart + 2.0 * tolerance.kept * left {
            return Err(format!("probabilities of {left} and {right}"));
        }
    }
    if one_sided > tolerance.kept {
        let sizes = (ours.len(), theirs.len());
        return Err(format!("a mass of {one_sided} is on one side of {sizes:?}"));
    }
    Ok(())
}

/// A random link; `kind` is under [`KINDS`].
fn link(rows: &mut Rows, kind: usize, vocabulary: usize) -> Sampler {
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
            last: rows.below(80) as u32,
            repeat: rows.between(0.7, 2.0),
            frequency: rows.between(-0.5, 1.0),
            presence: rows.between(-0.5, 1.0),
        }),
        2 => Sampler::Dry(Dry {
            multiplier: rows.between(0.0, 2.0),
            base: rows.between(1.0, 2.0),
            allowed_length: rows.below(4) as u32,
            range: rows.below(80) as u32,
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
        9 => Sampler::Typical(rows.between(0.0, 1.0)),
        10 => Sampler::TopNSigma(rows.between(-0.5, 4.0)),
        _ => Sampler::Temperature(0.0),
    }
}
const KINDS: usize = 12;
const TYPICAL: usize = 9;

/// Whether a link cuts or scales by a sum of shares.
fn sums(link: &Sampler) -> bool {
    matches!(
        link,
        Sampler::TopP(_)
            | Sampler::Typical(_)
            | Sampler::DynamicTemperature { .. }
            | Sampler::TopNSigma(_)
    )
}

/// Whether a chain leaves just what llama.cpp's does. If not, it must be for rounding.
fn compare(chain: &[Sampler], row: &[f32], history: &[Token], ties: bool) -> bool {
    let mut reference = Reference::new(chain, row.len(), 1, None);
    for &token in history {
        reference.accept(token);
    }
    let (theirs, _) = reference.left(row);
    let ours = left_of(chain, row, history, None, &mut Scratch::default());
    match same(&ours, &theirs, ties, EXACT) {
        Ok(()) => true,
        Err(_) if chain.iter().any(sums) => {
            let rounded = same(&ours, &theirs, ties, ROUNDED);
            assert_eq!(rounded, Ok(()), "{chain:?} on {} logits", row.len());
            false
        }
        Err(error) => panic!("{error}: {chain:?} on {} logits", row.len()),
    }
}

/// What is said has few different tokens, so that it repeats itself.
fn repetitive(rows: &mut Rows, vocabulary: usize) -> Vec<Token> {
    let length = rows.below(120);
    rows.history(length, vocabulary.min(4))
}

#[test]
fn each_link_keeps_what_llama_cpps_does() {
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
            // A probability of 0 makes its entropy NaN.
            if kind != TYPICAL && round % 5 == 2 {
                for _ in 0..length / 3 {
                    let at = rows.below(length);
                    row[at] = f32::NEG_INFINITY;
                }
            }
            let history = repetitive(&mut rows, length);
            let link = link(&mut rows, kind, length);
            exact += usize::from(compare(&[link], &row, &history, ties));
        }
    }
    assert!(exact >= KINDS * 150 - 5, "only {exact} are exact");
}

#[test]
fn chains_in_any_order_keep_what_llama_cpps_do() {
    let mut rows = Rows::new(12);
    let mut exact = 0;
    for _ in 0..1500 {
        let length = 2 + rows.below(1500);
        let width = rows.between(0.1, 3.0);
        let row = rows.row(length, width);
        // A bias first, as there its list is in order; the temperature of 0 and top-n-sigma leave
        // probabilities of 0, which its typical sampling turns into NaN.
        let mut chain = vec![link(&mut rows, 0, length)];
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
            chain.push(link(&mut rows, kind, length));
        }
        let history = repetitive(&mut rows, length);
        exact += usize::from(compare(&chain, &row, &history, false));
    }
    assert!(exact >= 1485, "only {exact} are exact");
}

#[test]
fn rows_of_a_large_vocabulary_keep_what_llama_cpps_do() {
    let mut rows = Rows::new(13);
    for (round, width) in [0.5, 1.5, 3.0].into_iter().enumerate() {
        let row = rows.row(151_936, width);
        let history = repetitive(&mut rows, 200);
        for kind in 0..KINDS {
            let link = link(&mut rows, kind, row.len());
            compare(&[link], &row, &history, false);
        }
        let usual = [
            link(&mut rows, 1, row.len()),
            link(&mut rows, 2, row.len()),
            Sampler::TopK(40),
            Sampler::TopP(0.95),
            Sampler::MinP(0.05),
            Sampler::Temperature(0.8),
        ];
        assert!(compare(&usual[round..], &row, &history, false));
    }
}

#[test]
fn mirostat_follows_llama_cpps_limit_of_surprise() {
    let mut rows = Rows::new(14);
    for (tau, eta) in [(3.0, 0.1), (5.0, 0.5), (1.0, 0.9)] {
        let chain = [Sampler::Mirostat { tau, eta }];
        let mut reference = Reference::new(&chain, 2000, 5, None);
        let mut scratch = Scratch::default();
        let mut mu = 2.0 * tau;
        for round in 0..200 {
            let width = rows.between(0.5, 3.0);
            let row = rows.row(2000, width);
            // Which tokens are kept shows the limit; then it learns from the same token.
            let (theirs, drawn) = reference.left(&row);
            let (mut left, _) = Left::new(&row, None, &mut scratch);
            let kept = links::mirostat_keep(&mut left, mu).unwrap();
            mu -= eta * links::mirostat_error(&left, kept, drawn.unwrap(), tau).unwrap();
            let ours: Vec<_> = left
                .into_list()
                .iter()
                .map(|one| (one.token, one.logit))
                .collect();
            let same = same(&ours, &theirs, false, EXACT);
            assert_eq!(same, Ok(()), "round {round} of {chain:?}");
        }
    }
}

#[test]
fn xtc_is_skipped_as_often_as_llama_cpps() {
    let row = logits(&[0.4, 0.3, 0.2, 0.1]);
    let chain = [Sampler::Xtc {
        probability: 0.3,
        threshold: 0.15,
    }];
    let rounds = 10_000;
    let mut reference = Reference::new(&chain, row.len(), 3, None);
    let theirs = (0..rounds)
        .filter(|_| reference.left(&row).0.len() < row.len())
        .count();
    let mut rng = ChaCha8Rng::seed_from_u64(3);
    let mut scratch = Scratch::default();
    let ours = (0..rounds)
        .filter(|_| {
            let (mut left, mut tools) = Left::new(&row, None, &mut scratch);
            apply(&chain[0], &mut left, &[], &mut tools, &mut rng);
            left.into_list().len() < row.len()
        })
        .count();
    // The deviation of each is 46.
    for seen in [ours, theirs] {
        assert!(seen.abs_diff(3000) < 142, "{ours} {theirs}");
    }
}

#[test]
fn dry_breakers_of_text_are_llama_cpps() {
    let tiny = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/tiny/tiny.gguf");
    let model = Model::load(&tiny, &crate::progress::Progress::default()).expect("the model loads");
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
            Breakers::from_text(&texts, pieces, |text| model.tokenize(text, false)).unwrap();
        assert!(!breakers.is_empty());
        let breakers = Arc::new(breakers);
        // Tokens that breakers are made of, among a few others.
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
            let chain = [Sampler::Dry(Dry {
                multiplier: 0.8,
                base: 1.75,
                allowed_length: rows.below(3) as u32,
                range: 50,
                breakers: breakers.clone(),
            })];
            let window = &history[history.len().saturating_sub(50)..];
            cut += usize::from(breakers.since(window) < window.len());
            let row = rows.row(vocabulary, 2.0);
            let mut reference = Reference::new(&chain, vocabulary, 1, Some((&model, &texts)));
            history.iter().for_each(|&token| reference.accept(token));
            let ours = left_of(&chain, &row, &history, None, &mut Scratch::default());
            let (theirs, _) = reference.left(&row);
            let same = same(&ours, &theirs, false, EXACT);
            assert_eq!(same, Ok(()), "{texts:?} {history:?}");
        }
    }
    assert!(cut > 100, "breakers were met {cut} times");
}
