//! Chi-squared tests of the distribution of draws, with fixed seeds.

use super::*;

/// Draws 20,000 times and returns the chi-squared statistic with its degrees of freedom. Its bins are
/// the tokens with a probability of at least 0.005, and all others together.
fn statistic(
    chain: Vec<Sampler>,
    row: &[f32],
    allowed: Option<&[u32]>,
    expected: &[f64],
) -> (f64, usize) {
    const ROUNDS: usize = 20_000;
    let mut chain = SamplerChain::new(chain, 7);
    let mut scratch = Scratch::default();
    let mut seen = vec![0_usize; row.len()];
    for _ in 0..ROUNDS {
        let token = chain.sample(Logits::Full(row), &[], allowed, &mut scratch);
        seen[token.unwrap().unwrap() as usize] += 1;
    }
    let mut bins = Vec::new();
    let (mut rest_seen, mut rest_expected) = (0, 0.0);
    for (&seen, &p) in seen.iter().zip(expected) {
        if p >= 0.005 {
            bins.push((seen, p));
        } else {
            assert!(p > 0.0 || seen == 0, "drew a token of probability 0");
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

/// Asserts that the statistic is below the 99.9th percentile: Wilson and Hilferty's (1931)
/// approximation of the chi-squared distribution, at 3.09 standard deviations.
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
fn draws_follow_softmax_of_row_and_list() {
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
fn masked_draws_follow_softmax_of_allowed_tokens() {
    let mut rows = Rows::new(2);
    let row = rows.row(1000, 2.0);
    for one_in in [2, 40] {
        let mask = rows.mask(row.len(), one_in);
        let mut left = row.clone();
        for (token, logit) in left.iter_mut().enumerate() {
            if !is_allowed(&mask, token) {
                *logit = f32::NEG_INFINITY;
            }
        }
        let chain = vec![Sampler::Temperature(1.0)];
        assert_fits(statistic(chain, &row, Some(&mask), &softmax(&left)));
    }
}

#[test]
fn xtc_removes_top_choices_with_its_probability() {
    let row = logits(&[0.4, 0.3, 0.2, 0.1]);
    let chain = vec![Sampler::Xtc {
        probability: 0.25,
        threshold: 0.15,
    }];
    // Three quarters of the draws are from all, one quarter without the first two.
    let expected = [0.3, 0.225, 0.15 + 0.25 * 2.0 / 3.0, 0.075 + 0.25 / 3.0];
    assert_fits(statistic(chain, &row, None, &expected));
}

#[test]
fn mirostat_converges_to_its_target_surprise() {
    let mut rows = Rows::new(4);
    for tau in [2.0, 4.0] {
        let mut chain = SamplerChain::new(vec![Sampler::Mirostat { tau, eta: 0.1 }], 1);
        let mut scratch = Scratch::default();
        let mut sum = 0.0;
        for round in 0..1200 {
            let row = rows.row(2000, 2.0);
            let before = chain.max_surprise();
            draw(&mut chain, &row, &[], &mut scratch).unwrap();
            if round >= 200 {
                sum += f64::from((before - chain.max_surprise()) / 0.1 + tau);
            }
        }
        let mean = sum / 1000.0;
        assert!((mean - f64::from(tau)).abs() < 0.1, "{mean} for {tau}");
    }
}
