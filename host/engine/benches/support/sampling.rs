//! Rows of logits, and chains of samplers at work on them.

use corral_engine::Token;
use corral_engine::sampling::{Chain, Dry, Penalties, Sampler, Scratch};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::sync::Arc;

pub const VOCABULARY: usize = 151_936;
/// Rows in turn, so that no branch learns one by heart.
pub const ROWS: usize = 8;
/// What penalties and DRY look back over.
const HISTORY: usize = 512;

/// Logits as a model gives them: a wide hill of unlikely tokens and a few dozen likely ones.
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

/// Tokens before the one that is sampled.
pub fn history() -> Vec<Token> {
    let mut rng = ChaCha8Rng::seed_from_u64(2);
    (0..HISTORY).map(|_| rng.random_range(0..200)).collect()
}

/// About so many tokens are allowed.
pub fn mask(allowed: usize) -> Vec<u32> {
    let mut rng = ChaCha8Rng::seed_from_u64(3);
    let mut mask = vec![0; VOCABULARY.div_ceil(32)];
    for _ in 0..allowed {
        let token = rng.random_range(0..VOCABULARY);
        mask[token / 32] |= 1 << (token % 32);
    }
    mask
}

/// A chain at work on the rows in turn.
pub struct Turns {
    rows: Vec<Vec<f32>>,
    history: Vec<Token>,
    chain: Chain,
    scratch: Scratch,
    turn: usize,
}

impl Turns {
    pub fn new(chain: Vec<Sampler>) -> Self {
        Self {
            rows: rows(),
            history: history(),
            chain: Chain::new(chain, 1),
            scratch: Scratch::default(),
            turn: 0,
        }
    }

    /// A token from the next row, one that is allowed.
    pub fn sample(&mut self, allowed: Option<&[u32]>) -> Option<Token> {
        self.turn = (self.turn + 1) % ROWS;
        let (row, history) = (&self.rows[self.turn], &self.history);
        match allowed {
            Some(allowed) => self
                .chain
                .sample_allowed(row, history, allowed, &mut self.scratch),
            None => self.chain.sample(row, history, &mut self.scratch),
        }
    }
}

/// A chain as most have it.
pub fn usual() -> Vec<Sampler> {
    vec![
        Sampler::TopK(40),
        Sampler::TopP(0.95),
        Sampler::Temperature(0.8),
    ]
}

/// A chain of nearly everything.
pub fn full() -> Vec<Sampler> {
    vec![
        Sampler::Penalties(Penalties {
            last: 64,
            repeat: 1.1,
            frequency: 0.1,
            presence: 0.1,
        }),
        Sampler::Dry(Dry {
            multiplier: 0.8,
            base: 1.75,
            allowed_length: 2,
            range: 512,
            breakers: Arc::default(),
        }),
        Sampler::TopNSigma(2.0),
        Sampler::TopK(40),
        Sampler::Typical(0.95),
        Sampler::TopP(0.95),
        Sampler::MinP(0.05),
        Sampler::Xtc {
            probability: 0.5,
            threshold: 0.1,
        },
        Sampler::Temperature(0.8),
    ]
}
