//! Chance: numbers that look random and are the same for the same seed, and what is drawn by them.

use std::time::Duration;

/// Random numbers (splitmix64).
#[derive(Clone, Debug)]
pub(super) struct Random(u64);

/// Spreads a number over all 64 bits.
pub(super) fn mix(number: u64) -> u64 {
    let mut x = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(mix(seed))
    }

    pub fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(1);
        mix(self.0)
    }

    /// From 0 to less than 1.
    #[allow(clippy::cast_precision_loss)]
    pub fn part(&mut self) -> f64 {
        (self.number() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// From 0 to less than `below`, which is at least 1.
    pub fn below(&mut self, below: u64) -> u64 {
        self.number() % below.max(1)
    }

    /// Whether something comes to pass that does in so many parts of all cases.
    pub fn happens(&mut self, part: f64) -> bool {
        self.part() < part
    }

    /// The time until the next of some events that come by chance, so many seconds apart in the mean.
    pub fn wait(&mut self, mean: f64) -> Duration {
        let seconds = -mean * (1.0 - self.part()).ln();
        Duration::from_secs_f64(seconds.clamp(0.0, 1e9))
    }

    /// Of the normal distribution with mean 0 and variance 1 (Box and Muller).
    fn normal(&mut self) -> f64 {
        let radius = (-2.0 * (1.0 - self.part()).ln()).sqrt();
        radius * (std::f64::consts::TAU * self.part()).cos()
    }
}

/// Numbers of tokens: log-normal, and cut at both ends.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lengths {
    pub median: f64,
    /// Standard deviation of the logarithm.
    pub spread: f64,
    pub least: u32,
    pub most: u32,
}

impl Lengths {
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    pub fn draw(&self, random: &mut Random) -> u32 {
        let length = self.median * (self.spread * random.normal()).exp();
        length.clamp(f64::from(self.least), f64::from(self.most)) as u32
    }
}

/// Who of so many, counted from 0: the popularity of number n falls as (n + 1)^-1.1 (Zipf's law).
///
/// Drawn by rejection from a curve that lies above (as rand_distr's `Zipf`), so it needs no table.
#[derive(Clone, Copy, Debug)]
pub(super) struct Zipf {
    count: f64,
    area: f64,
}

const EXPONENT: f64 = 1.1;
/// Draws after which the most popular one is taken. Each is kept with a chance of more than a half.
const DRAWS: usize = 64;

impl Zipf {
    /// Of `count`, at least 1.
    #[allow(clippy::cast_precision_loss)]
    pub fn new(count: u64) -> Self {
        let count = count.max(1) as f64;
        let area = (count.powf(1.0 - EXPONENT) - EXPONENT) / (1.0 - EXPONENT);
        Self { count, area }
    }

    pub fn draw(&self, random: &mut Random) -> u64 {
        for _ in 0..DRAWS {
            let area = random.part() * self.area;
            let place = if area <= 1.0 {
                area
            } else {
                (area * (1.0 - EXPONENT) + EXPONENT).powf(1.0 / (1.0 - EXPONENT))
            };
            let number = (place + 1.0).floor().min(self.count);
            let mut kept = number.powf(-EXPONENT);
            if number > 1.0 {
                kept *= place.powf(EXPONENT);
            }
            if random.part() < kept {
                #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
                let number = number as u64;
                return number - 1;
            }
        }
        0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_draws_the_same() {
        let draw = |seed| {
            let mut random = Random::new(seed);
            [random.number(), random.below(100), random.number()]
        };
        assert_eq!(draw(7), draw(7));
        assert_ne!(draw(7), draw(8));
    }

    #[test]
    fn lengths_stay_within_bounds_and_around_the_median() {
        let lengths = Lengths {
            median: 100.0,
            spread: 0.8,
            least: 20,
            most: 400,
        };
        let mut random = Random::new(1);
        let mut drawn: Vec<_> = (0..10_000).map(|_| lengths.draw(&mut random)).collect();
        drawn.sort_unstable();
        assert!(drawn[0] >= 20 && drawn[9_999] <= 400);
        assert!((90..=110).contains(&drawn[5_000]), "{}", drawn[5_000]);
        // One standard deviation above lie 16 of 100.
        let above = drawn.iter().filter(|&&length| length > 222).count();
        assert!((1400..=1800).contains(&above), "{above}");
    }

    #[test]
    fn the_popular_ones_are_drawn_as_often_as_zipf_says() {
        let zipf = Zipf::new(1000);
        let mut random = Random::new(1);
        let mut drawn = vec![0u32; 1000];
        for _ in 0..200_000 {
            let who = usize::try_from(zipf.draw(&mut random)).expect("a small number");
            drawn[who] += 1;
        }
        let sum: f64 = (1..=1000).map(|n| f64::from(n).powf(-1.1)).sum();
        for (who, times) in [(0, 1.0), (1, 2.0), (9, 10.0)] {
            let expected = 200_000.0 * f64::powf(times, -1.1) / sum;
            let ratio = f64::from(drawn[who]) / expected;
            assert!((0.9..1.1).contains(&ratio), "{who}: {ratio}");
        }
        assert_eq!(Zipf::new(1).draw(&mut random), 0);
    }

    #[test]
    fn waits_have_their_mean() {
        let mut random = Random::new(3);
        let all: Duration = (0..20_000).map(|_| random.wait(0.5)).sum();
        let mean = all.as_secs_f64() / 20_000.0;
        assert!((0.48..0.52).contains(&mean), "{mean}");
    }
}
