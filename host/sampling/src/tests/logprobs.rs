//! Log probabilities of a row.

use super::*;

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
