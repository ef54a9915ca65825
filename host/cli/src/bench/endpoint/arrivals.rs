//! When requests come in the open loop, and what else is drawn: the same in every run.

use std::time::Duration;

/// Numbers that follow from a seed. (`SplitMix64`, by Steele, Lea and Flood.)
pub(super) struct Random(u64);

impl Random {
    pub(super) fn new(seed: u64) -> Self {
        Random(seed)
    }

    fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// At least 0, and below 1.
    #[allow(clippy::cast_precision_loss)]
    fn part(&mut self) -> f64 {
        // 53 bits: as many as a number of this kind holds.
        (self.draw() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// Below `end`, which is not 0. (Some are likelier than others, by less than one in 2^32 for all that is
    /// asked here.)
    pub(super) fn below(&mut self, end: u64) -> u64 {
        self.draw() % end.max(1)
    }

    /// From half of `middle` to one and a half, each as likely; 1 at least.
    pub(super) fn around(&mut self, middle: u64) -> u64 {
        let half = middle / 2;
        (middle - half + self.below(2 * half + 1)).max(1)
    }
}

/// A Poisson process: when each of `count` requests comes that come at random, `rate` a second on average.
/// From the beginning on, in order.
pub(super) fn arrivals(rate: f64, count: u64, seed: u64) -> Vec<Duration> {
    let mut random = Random::new(seed);
    let mut at = 0.0;
    (0..count)
        .map(|_| {
            // Times between two are distributed exponentially.
            at -= (1.0 - random.part()).ln() / rate;
            Duration::from_secs_f64(at)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arrivals_follow_from_the_seed() {
        assert_eq!(arrivals(5.0, 100, 1), arrivals(5.0, 100, 1));
        assert_ne!(arrivals(5.0, 100, 1), arrivals(5.0, 100, 2));
    }

    #[test]
    fn arrivals_are_a_poisson_process_of_the_rate() {
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
        // Of an exponential distribution, 1 - 1/e is below the mean, and its square is the variance.
        let below = gaps.iter().filter(|gap| **gap < 1.0 / rate).count();
        assert!((12_300..12_980).contains(&below), "{below} below the mean");
        let variance = gaps.iter().map(|gap| (gap - mean).powi(2)).sum::<f64>() / 20_000.0;
        assert!((variance * rate * rate - 1.0).abs() < 0.1, "{variance}");
    }

    #[test]
    fn lengths_are_between_half_and_one_and_a_half() {
        for (middle, least, most) in [(32, 16, 48), (5, 3, 7), (1, 1, 1)] {
            let mut random = Random::new(3);
            let drawn: Vec<u64> = (0..2000).map(|_| random.around(middle)).collect();
            assert_eq!(drawn.iter().min(), Some(&least), "{middle}");
            assert_eq!(drawn.iter().max(), Some(&most), "{middle}");
        }
    }
}
