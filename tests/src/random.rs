//! Chance that can be had again.

/// xorshift64*: the same seed gives the same numbers.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// Seeded by `CORRAL_SEED`, else by the clock, so that each run tries something else. Says the seed.
    pub fn new() -> Self {
        let seed = match std::env::var("CORRAL_SEED") {
            Ok(seed) => seed.parse().expect("CORRAL_SEED is a number"),
            Err(_) => std::time::SystemTime::now()
                .duration_since(std::time::UNIX_EPOCH)
                .expect("later than 1970")
                .as_micros() as u64,
        };
        println!("the seed; to try the same again: CORRAL_SEED={seed}");
        Random::seeded(seed)
    }

    /// With a seed of one's own.
    pub fn seeded(seed: u64) -> Self {
        // 0 would stay 0.
        Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// One that goes its own way from here.
    pub fn fork(&mut self) -> Self {
        Random::seeded(self.next())
    }

    /// A number below `bound`.
    pub fn below(&mut self, bound: u64) -> u64 {
        (self.next() >> 33) % bound
    }

    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }
}

impl Default for Random {
    fn default() -> Self {
        Random::new()
    }
}
