//! Times of any number, in a memory that does not grow with it.

/// Shortest time that is told from shorter ones, in seconds.
const LEAST: f64 = 1e-7;
/// Counters for each doubling of the time: what is told is off by 5 % at most.
const FINENESS: f64 = 8.0;
/// Of counters: up to most of a year.
const COUNTERS: usize = 384;

/// How many times were about so long.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Histogram {
    counters: Vec<u64>,
    count: u64,
    sum: f64,
    longest: f64,
}

impl Default for Histogram {
    fn default() -> Self {
        Self {
            counters: vec![0; COUNTERS],
            count: 0,
            sum: 0.0,
            longest: 0.0,
        }
    }
}

impl Histogram {
    /// Takes note of a time, in seconds.
    pub fn note(&mut self, seconds: f64) {
        let place = (seconds / LEAST).max(1.0).log2() * FINENESS;
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
        let place = (place as usize).min(COUNTERS - 1);
        self.counters[place] += 1;
        self.count += 1;
        self.sum += seconds;
        self.longest = self.longest.max(seconds);
    }

    /// The time below which so large a part of all times lie, in seconds; 0 if there are none.
    pub fn quantile(&self, part: f64) -> f64 {
        #[allow(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            clippy::cast_precision_loss
        )]
        let wanted = (part * self.count as f64).ceil().max(1.0) as u64;
        let mut below = 0;
        for (place, counter) in (0u32..).zip(&self.counters) {
            below += counter;
            if below >= wanted {
                let middle = LEAST * ((f64::from(place) + 0.5) / FINENESS).exp2();
                return middle.min(self.longest);
            }
        }
        self.longest
    }

    /// The mean, in seconds; 0 if there are none.
    pub fn mean(&self) -> f64 {
        #[allow(clippy::cast_precision_loss)]
        let count = self.count.max(1) as f64;
        self.sum / count
    }

    /// The longest, in seconds.
    pub fn longest(&self) -> f64 {
        self.longest
    }

    /// All of them together, in seconds.
    pub fn sum(&self) -> f64 {
        self.sum
    }
}

#[cfg(test)]
mod tests {
    use super::Histogram;

    #[test]
    fn quantiles_are_near_those_of_all_values() {
        let mut histogram = Histogram::default();
        assert_eq!((histogram.quantile(0.5), histogram.mean()), (0.0, 0.0));
        for millis in 1..=1000 {
            histogram.note(f64::from(millis) / 1e3);
        }
        for (part, expected) in [(0.01, 0.01), (0.5, 0.5), (0.99, 0.99)] {
            let ratio = histogram.quantile(part) / expected;
            assert!((0.95..1.05).contains(&ratio), "{part}: {ratio}");
        }
        assert_eq!(histogram.longest(), 1.0);
        assert_eq!(histogram.quantile(1.0), 1.0);
        assert!((histogram.mean() - 0.5005).abs() < 1e-9);
    }

    #[test]
    fn what_is_too_short_or_too_long_is_counted_at_the_ends() {
        let mut histogram = Histogram::default();
        for seconds in [0.0, 0.0, 1e12] {
            histogram.note(seconds);
        }
        assert!(histogram.quantile(0.5) < 2e-7);
        assert!(histogram.quantile(1.0) > 1e6);
        assert_eq!(histogram.longest(), 1e12);
    }
}
