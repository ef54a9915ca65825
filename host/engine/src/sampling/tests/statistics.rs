//! Draws follow the probabilities that they should: chi-squared tests. Seeds are fixed, so they
//! are no gamble.

use super::*;

/// The statistic of drawing `rounds` times, over tokens with a probability of at least 0.005 and
/// the others together, and its degrees of freedom.
fn statistic(
    chain: Vec<Sampler>,
    row: &[f32],
    allowed: Option<&[u32]>,
    expected: &[f64],
) -> (f64, usize) {
    const ROUNDS: usize = 20_000;
    let mut chain = Chain::new(chain, 7);
    let mut scratch = Scratch::default();
    let mut seen = vec![0_usize; row.len()];
    for _ in 0..ROUNDS {
        let token = match allowed {
            Some(allowed) => chain.sample_allowed(row, &[], allowed, &mut scratch),
            None => chain.sample(row, &[], &mut scratch),
        };
        seen[token.unwrap() as usize] += 1;
    }
    let mut bins = Vec::new();
    let (mut rest_seen, mut rest_expected) = (0, 0.0);
    for (&seen, &p) in seen.iter().zip(expected) {
        if p >= 0.005 {
            bins.push((seen, p));
        } else {
            assert!(p > 0.0 || seen == 0, "drew what has no probability");
            rest_seen += seen;
            rest_expected += p;
        }
    }
    if rest_expected > 0.0 {
        bins.push((rest_seen, rest_expected));
    }
    let sum = bins
        .iter()
        .map(|&(seen, p)| {
            let wanted = p * ROUNDS as f64;
            (seen as f64 - wanted).powi(2) / wanted
        })
        .sum();
    (sum, bins.len() - 1)
}

/// Asserts that chance would give more in one of 1,000 cases: Wilson and Hilferty's (1931)
/// approximation of the chi-squared distribution, at 3.09 deviations.
fn assert_fits((statistic, freedom): (f64, usize)) {
    let share = 2.0 / (9.0 * freedom as f64);
    let limit = freedom as f64 * (1.0 - share + 3.09 * share.sqrt()).powi(3);
    assert!(
        statistic < limit,
        "{statistic} with {freedom} degrees of freedom"
    );
}

fn softmax(row: &[f32]) -> Vec<f64> {
    let shares: Vec<f64> = row.iter().map(|&logit| f64::from(logit).exp()).collect();
    let total: f64 = shares.iter().sum();
    shares.iter().map(|share| share / total).collect()
}

#[test]
fn draws_follow_the_softmax_of_a_row_and_of_a_list() {
    let row = Rows::new(1).row(1000, 3.0);
    let expected = softmax(&row);
    assert_fits(statistic(
        vec![Sampler::Temperature(1.0)],
        &row,
        None,
        &expected,
    ));
    assert_fits(statistic(vec![Sampler::TopK(999)], &row, None, &expected));
    let halves: Vec<f32> = row.iter().map(|logit| logit / 2.0).collect();
    let warm = vec![Sampler::Temperature(2.0)];
    assert_fits(statistic(warm, &row, None, &softmax(&halves)));
}

#[test]
fn draws_under_a_mask_follow_what_it_leaves() {
    let mut rows = Rows::new(2);
    let row = rows.row(1000, 2.0);
    for one_in in [2, 40] {
        let mut mask = vec![0_u32; row.len().div_ceil(32)];
        let mut left = vec![f32::NEG_INFINITY; row.len()];
        for token in 0..row.len() {
            if rows.below(one_in) == 0 {
                mask[token / 32] |= 1 << (token % 32);
                left[token] = row[token];
            }
        }
        let chain = vec![Sampler::Temperature(1.0)];
        assert_fits(statistic(chain, &row, Some(&mask), &softmax(&left)));
    }
}

#[test]
fn xtc_leaves_out_the_top_as_often_as_asked() {
    let row = logits(&[0.4, 0.3, 0.2, 0.1]);
    let chain = vec![Sampler::Xtc {
        probability: 0.25,
        threshold: 0.15,
    }];
    // Three quarters as it is, one quarter without the first two.
    let expected = [0.3, 0.225, 0.15 + 0.25 * 2.0 / 3.0, 0.075 + 0.25 / 3.0];
    assert_fits(statistic(chain, &row, None, &expected));
}

#[test]
fn mirostat_keeps_to_the_surprise_asked_for() {
    let mut rows = Rows::new(4);
    for tau in [2.0, 4.0] {
        let mut chain = Chain::new(vec![Sampler::Mirostat { tau, eta: 0.1 }], 1);
        let mut scratch = Scratch::default();
        let mut sum = 0.0;
        for round in 0..1200 {
            let row = rows.row(2000, 2.0);
            let before = chain.mu;
            chain.sample(&row, &[], &mut scratch).unwrap();
            if round >= 200 {
                sum += f64::from((before - chain.mu) / 0.1 + tau);
            }
        }
        let mean = sum / 1000.0;
        assert!((mean - f64::from(tau)).abs() < 0.1, "{mean} for {tau}");
    }
}
