//! Rows of logits, and sampler chains for them.

use corral_sampling::{Dry, Logits, Penalties, Sampler, SamplerChain, Scratch, Token};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::sync::Arc;

pub const VOCABULARY: usize = 151_936;
/// Number of different rows, so that branch prediction cannot learn one.
pub const ROWS: usize = 8;
/// Length of the history that penalties and DRY look back over.
const HISTORY: usize = 512;

/// Logits like a model's: a wide hill of unlikely tokens and a few dozen likely ones.
pub fn rows() -> Vec<Vec<f32>> {
    let mut rng = ChaCha8Rng::seed_from_u64(1);
    let mut row = || {
        let mut row: Vec<f32> = (0..VOCABULARY)
            .map(|_| (0..4).map(|_| rng.random_range(-2.5..2.5_f32)).sum())
            .collect();
        for _ in 0..60 {
            row[rng.random_range(0..VOCABULARY)] = rng.random_range(8.0..20.0);
        }
        row
    };
    (0..ROWS).map(|_| row()).collect()
}

/// The tokens before the sampled one.
pub fn history() -> Vec<Token> {
    let mut rng = ChaCha8Rng::seed_from_u64(2);
    (0..HISTORY).map(|_| rng.random_range(0..200)).collect()
}

/// A mask of about this many allowed tokens.
pub fn mask(allowed: usize) -> Vec<u32> {
    let mut rng = ChaCha8Rng::seed_from_u64(3);
    let mut mask = vec![0; VOCABULARY.div_ceil(32)];
    for _ in 0..allowed {
        let token = rng.random_range(0..VOCABULARY);
        mask[token / 32] |= 1 << (token % 32);
    }
    mask
}

/// Samples from the rows in rotation.
pub struct RowSampler {
    rows: Vec<Vec<f32>>,
    history: Vec<Token>,
    chain: SamplerChain,
    scratch: Scratch,
    next: usize,
}

impl RowSampler {
    pub fn new(samplers: Vec<Sampler>) -> Self {
        Self {
            rows: rows(),
            history: history(),
            chain: SamplerChain::new(samplers, 1),
            scratch: Scratch::default(),
            next: 0,
        }
    }

    /// Draws a token from the next row.
    pub fn sample(&mut self, allowed: Option<&[u32]>) -> Option<Token> {
        self.next = (self.next + 1) % ROWS;
        let logits = Logits::Full(&self.rows[self.next]);
        let drawn = (self.chain).sample(logits, &self.history, allowed, &mut self.scratch);
        drawn.expect("a whole row never misses")
    }
}

/// A usual chain.
pub fn usual() -> Vec<Sampler> {
    vec![
        Sampler::TopK(40),
        Sampler::TopP(0.95),
        Sampler::Temperature(0.8),
    ]
}

/// A chain of nearly all samplers.
pub fn full() -> Vec<Sampler> {
    vec![
        Sampler::Penalties(Penalties {
            last_n: 64,
            repeat: 1.1,
            frequency: 0.1,
            presence: 0.1,
        }),
        Sampler::Dry(Dry {
            multiplier: 0.8,
            base: 1.75,
            allowed_length: 2,
            last_n: 512,
            breakers: Arc::default(),
        }),
        Sampler::TopNSigma(2.0),
        Sampler::TopK(40),
        Sampler::TypicalP(0.95),
        Sampler::TopP(0.95),
        Sampler::MinP(0.05),
        Sampler::Xtc {
            probability: 0.5,
            threshold: 0.1,
        },
        Sampler::Temperature(0.8),
    ]
}
