//! Draws from the highest logits against draws from the whole row.

use super::*;

/// The highest logits of a row as a device selects them: in random order, with any of the equal ones
/// at the border.
struct Selected {
    tokens: Vec<Token>,
    logits: Vec<f32>,
    vocabulary: usize,
}

impl Selected {
    fn of(row: &[f32], k: usize, rows: &mut Rows) -> Self {
        let mut order: Vec<usize> = (0..row.len()).collect();
        // Shuffled first, since the sort keeps the order of equals.
        for i in (1..order.len()).rev() {
            order.swap(i, rows.below(i + 1));
        }
        order.sort_by(|&a, &b| row[b].partial_cmp(&row[a]).expect("no NaN"));
        order.truncate(k);
        for i in (1..order.len()).rev() {
            order.swap(i, rows.below(i + 1));
        }
        Self {
            tokens: order.iter().map(|&token| token as Token).collect(),
            logits: order.iter().map(|&token| row[token]).collect(),
            vocabulary: row.len(),
        }
    }

    fn top(&self) -> TopLogits<'_> {
        TopLogits {
            tokens: &self.tokens,
            logits: &self.logits,
            vocabulary: self.vocabulary,
        }
    }
}

/// A row; every third has many equal logits, every fifth has infinite ones.
fn row(rows: &mut Rows, length: usize, round: usize) -> Vec<f32> {
    let mut row = rows.row(length, 3.0);
    if round.is_multiple_of(3) {
        row.iter_mut()
            .for_each(|logit| *logit = (2.0 * *logit).round() / 2.0);
    }
    if round.is_multiple_of(5) {
        for _ in 0..length / 3 {
            let at = rows.below(length);
            row[at] = [f32::NEG_INFINITY, f32::INFINITY][rows.below(8) / 7];
        }
    }
    row
}

fn sampler(rows: &mut Rows) -> Sampler {
    let at = rows.below(64) as Token;
    let penalties = |sign: f32, last_n| Penalties {
        last_n,
        repeat: 1.0 + 0.2 * sign,
        frequency: 0.1 * sign,
        presence: 0.0,
    };
    match rows.below(17) {
        0..3 => Sampler::TopK(rows.below(12) as u32),
        3..5 => Sampler::Temperature([0.0, 0.3, 0.8, 1.0, 1.7][rows.below(5)]),
        5..7 => Sampler::MinP([0.0, 0.02, 0.3, 1.0][rows.below(4)]),
        7 => Sampler::TopP([0.5, 0.9, 1.0][rows.below(3)]),
        8 => Sampler::LogitBias(vec![(at, -1.5), (at + 1, f32::NEG_INFINITY)]),
        9 => Sampler::LogitBias(vec![(at, [-0.5, 2.0][rows.below(2)])]),
        10 => Sampler::Penalties(penalties(1.0, 5)),
        11 => Sampler::OutputPenalties(penalties([1.0, -1.0][rows.below(2)], 8)),
        12 => Sampler::TypicalP([0.4, 1.0][rows.below(2)]),
        13 => Sampler::Xtc {
            probability: [0.0, 0.5][rows.below(2)],
            threshold: 0.1,
        },
        14 => Sampler::TopNSigma([0.0, 1.5][rows.below(2)]),
        15 => dry([0.0, 1.5][rows.below(2)], 1, &[&[at]]),
        _ => Sampler::DynamicTemperature {
            temperature: 0.9,
            range: [0.0, 0.5][rows.below(2)],
            exponent: 1.0,
        },
    }
}

fn chain(rows: &mut Rows) -> Vec<Sampler> {
    let mut chain: Vec<_> = (0..rows.below(6)).map(|_| sampler(rows)).collect();
    if rows.below(8) == 0 {
        chain.push(Sampler::Mirostat { tau: 3.0, eta: 0.1 });
    }
    chain
}

fn mask(rows: &mut Rows, length: usize) -> Vec<u32> {
    let one_in = [1, 2, 40][rows.below(3)];
    rows.mask(length, one_in)
}

#[test]
fn top_k_draws_equal_whole_row_draws() {
    let mut rows = Rows::new(11);
    let mut scratch = Scratch::default();
    let (mut hits, mut masked, mut misses) = (0, 0, 0);
    for round in 0..6_000 {
        let samplers = chain(&mut rows);
        let mut whole = SamplerChain::new(samplers.clone(), round as u64).with_prompt_length(3);
        let mut top = whole.clone();
        let length = 40 + rows.below(600);
        let k = 2 + rows.below(60);
        let mut history = rows.history(6, length);
        for _ in 0..4 {
            let row = row(&mut rows, length, round);
            let selected = Selected::of(&row, k, &mut rows);
            let allowed = (rows.below(3) == 0).then(|| mask(&mut rows, length));
            let allowed = allowed.as_deref();
            let seen = Logits::TopK(selected.top());
            let before = format!("{top:?}");
            let drawn = top.sample(seen, &history, allowed, &mut scratch);
            let Ok(drawn) = drawn else {
                assert_eq!(before, format!("{top:?}"), "a miss changed the chain");
                misses += 1;
                break;
            };
            let expected = whole
                .sample(Logits::Full(&row), &history, allowed, &mut scratch)
                .expect("a whole row never misses");
            assert_eq!(drawn, expected, "{samplers:?} of {k}, round {round}");
            assert_eq!(format!("{top:?}"), format!("{whole:?}"), "{samplers:?}");
            hits += 1;
            masked += usize::from(allowed.is_some());
            history.extend(drawn);
        }
    }
    assert!(hits > 2_000 && masked > 300, "{hits} and {masked}");
    assert!(misses > 1_000, "{misses}");
}

#[test]
fn qualifying_chains_never_miss_without_ties() {
    let mut rows = Rows::new(12);
    let mut scratch = Scratch::default();
    let mut qualified = 0;
    for round in 0..20_000 {
        let samplers = chain(&mut rows);
        let k = 2 + rows.below(40);
        let min_p = samplers.iter().any(|one| matches!(one, Sampler::MinP(_)));
        if min_p || !top_k_suffices(&samplers, k as u32, 8) {
            continue;
        }
        qualified += 1;
        let length = 50 + rows.below(500);
        let row = rows.row(length, 3.0);
        let selected = Selected::of(&row, k, &mut rows);
        let history = rows.history(9, length);
        let mut chain = SamplerChain::new(samplers.clone(), round).with_prompt_length(1);
        let seen = Logits::TopK(selected.top());
        let drawn = chain.sample(seen, &history, None, &mut scratch);
        assert!(drawn.is_ok(), "{samplers:?} of {k}");
    }
    assert!(qualified > 1_000, "{qualified}");
}

#[test]
fn chains_that_cut_first_qualify() {
    let bias = |bias| Sampler::LogitBias(vec![(7, bias), (8, -1.0)]);
    let penalties = |last_n| {
        Sampler::Penalties(Penalties {
            last_n,
            repeat: 1.1,
            frequency: 0.0,
            presence: 0.0,
        })
    };
    let answer = Sampler::OutputPenalties(Penalties {
        last_n: 9999,
        repeat: 1.0,
        frequency: 0.5,
        presence: 0.0,
    });
    let (cold, warm) = (Sampler::Temperature(0.0), Sampler::Temperature(0.7));
    let follows = |samplers: &[Sampler]| top_k_suffices(samplers, 64, 20);
    for good in [
        &[][..],
        std::slice::from_ref(&cold),
        &[Sampler::TopK(40), Sampler::TopP(0.9), warm.clone()],
        &[warm.clone(), Sampler::TopK(63)],
        &[Sampler::TopP(1.0), Sampler::TopK(0), Sampler::TopK(5)],
        &[bias(-2.0), penalties(20), answer.clone(), Sampler::TopK(21)],
        &[Sampler::TopK(3), bias(2.0), Sampler::TypicalP(0.5)],
        &[Sampler::TopK(3), Sampler::Mirostat { tau: 5.0, eta: 0.1 }],
        &[warm.clone(), Sampler::MinP(0.1), penalties(9999)],
        &[bias(f32::NEG_INFINITY), cold.clone()],
    ] {
        assert!(follows(good), "{good:?}");
    }
    for bad in [
        &[warm.clone()][..],
        &[Sampler::TopP(0.9), Sampler::TopK(40)],
        &[Sampler::TopK(64)],
        &[bias(2.0), Sampler::TopK(5)],
        &[bias(-2.0), penalties(20), answer, Sampler::TopK(22)],
        &[warm.clone(), bias(-2.0), Sampler::TopK(5)],
        &[warm.clone(), warm.clone(), Sampler::TopK(5)],
        &[warm, cold],
        &[penalties(9999), Sampler::TopK(5)],
        &[Sampler::TopNSigma(1.0), Sampler::TopK(5)],
        &[Sampler::Mirostat { tau: 5.0, eta: 0.1 }],
        &[penalties(5)],
    ] {
        assert!(!follows(bad), "{bad:?}");
    }
    assert!(!top_k_suffices(&[], 1, 20), "another may be equal");
    let max = candidate_list::MAX_SORTED;
    let many = |count| top_k_suffices(&[Sampler::TopK(count)], 9999, 20);
    assert!(many(max) && !many(max + 1));
}

#[test]
fn most_likely_equals_whole_row_or_misses() {
    let mut rows = Rows::new(13);
    let mut scratch = Scratch::default();
    let (mut hits, mut misses) = (0, 0);
    for round in 0..3_000 {
        let length = 3 + rows.below(300);
        let row = row(&mut rows, length, round);
        let k = 1 + rows.below(50).min(length - 1);
        let selected = Selected::of(&row, k, &mut rows);
        let allowed = (rows.below(2) == 0).then(|| mask(&mut rows, length));
        let (allowed, count) = (allowed.as_deref(), rows.below(20));
        let expected = most_likely(&row, allowed, count, &mut scratch);
        match selected.top().most_likely(allowed, count, &mut scratch) {
            Ok(first) => {
                assert_eq!(first, expected, "{count} of {k} of {length}");
                hits += 1;
            }
            Err(TopKMiss) => misses += 1,
        }
    }
    assert!(hits > 500 && misses > 500, "{hits}, {misses}");
}

#[test]
fn ties_at_border_and_nan_miss() {
    let mut scratch = Scratch::default();
    let mut first = |tokens: &[Token], logits: &[f32], vocabulary, count| {
        let top = TopLogits {
            tokens,
            logits,
            vocabulary,
        };
        top.most_likely(None, count, &mut scratch)
    };
    assert_eq!(first(&[4, 2], &[1.0, 3.0], 9, 1), Ok(vec![(2, 3.0)]));
    assert_eq!(first(&[4, 2], &[1.0, 3.0], 9, 2), Err(TopKMiss));
    assert_eq!(first(&[4, 2], &[3.0, 3.0], 9, 1), Err(TopKMiss));
    // The row has no other tokens.
    assert_eq!(first(&[1, 0], &[3.0, 3.0], 2, 1), Ok(vec![(0, 3.0)]));
    let low = f32::NEG_INFINITY;
    assert_eq!(first(&[4, 2], &[low, 3.0], 9, 2), Ok(vec![(2, 3.0)]));
    assert_eq!(first(&[4, 2], &[f32::NAN, 3.0], 9, 1), Err(TopKMiss));
    assert_eq!(first(&[9, 2], &[1.0, 3.0], 9, 1), Err(TopKMiss));
    assert_eq!(first(&[], &[], 9, 1), Err(TopKMiss));
}

#[test]
fn restored_chain_repeats_its_draws() {
    let mut rows = Rows::new(14);
    let samplers = vec![Sampler::TopK(20), Sampler::Mirostat { tau: 4.0, eta: 0.3 }];
    let mut chain = SamplerChain::new(samplers, 5);
    let mut scratch = Scratch::default();
    let row = rows.row(300, 2.0);
    let state = chain.state();
    let mut draws = |chain: &mut SamplerChain| -> Vec<_> {
        let draw = |_| draw(chain, &row, &[], &mut scratch);
        (0..9).map(draw).collect()
    };
    let drawn = draws(&mut chain);
    chain.restore(state);
    assert_eq!(drawn, draws(&mut chain));
}
