//! Random arrival times and lengths that follow from a seed.

use rand::{Rng, RngExt};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng;
use std::time::Duration;

/// Arrival times of a Poisson process with `rate` requests a second, in order.
pub(super) fn arrivals(rate: f64, count: u64, seed: u64) -> Vec<Duration> {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let mut at = 0.0;
    (0..count)
        .map(|_| {
            // Times between arrivals have an exponential distribution.
            at -= (1.0 - rng.random::<f64>()).ln() / rate;
            Duration::from_secs_f64(at)
        })
        .collect()
}

/// A uniform number from half of `middle` to one and a half, at least 1.
pub(super) fn uniform_around(rng: &mut impl Rng, middle: u64) -> u64 {
    let half = middle / 2;
    rng.random_range(middle - half..=middle + half).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arrivals_follow_from_seed() {
        assert_eq!(arrivals(5.0, 100, 1), arrivals(5.0, 100, 1));
        assert_ne!(arrivals(5.0, 100, 1), arrivals(5.0, 100, 2));
    }

    #[test]
    fn arrivals_are_a_poisson_process() {
        let (rate, count) = (20.0, 20_000);
        let arrivals = arrivals(rate, count, 7);
        assert_eq!(arrivals.len(), 20_000);
        assert!(arrivals.is_sorted());
        let gaps: Vec<f64> = std::iter::once(arrivals[0])
            .chain(arrivals.windows(2).map(|pair| pair[1] - pair[0]))
            .map(|gap| gap.as_secs_f64())
            .collect();
        let mean = gaps.iter().sum::<f64>() / 20_000.0;
        assert!((mean * rate - 1.0).abs() < 0.03, "mean {mean}");
        // Of an exponential distribution, 1 - 1/e is below the mean, whose square is the variance.
        let below = gaps.iter().filter(|gap| **gap < 1.0 / rate).count();
        assert!((12_300..12_980).contains(&below), "{below} below the mean");
        let variance = gaps.iter().map(|gap| (gap - mean).powi(2)).sum::<f64>() / 20_000.0;
        assert!((variance * rate * rate - 1.0).abs() < 0.1, "{variance}");
    }

    #[test]
    fn lengths_range_from_half_to_three_halves() {
        for (middle, min, max) in [(32, 16, 48), (5, 3, 7), (1, 1, 1)] {
            let mut rng = ChaCha8Rng::seed_from_u64(3);
            let drawn: Vec<u64> = (0..2000)
                .map(|_| uniform_around(&mut rng, middle))
                .collect();
            assert_eq!(drawn.iter().min(), Some(&min), "{middle}");
            assert_eq!(drawn.iter().max(), Some(&max), "{middle}");
        }
    }
}
