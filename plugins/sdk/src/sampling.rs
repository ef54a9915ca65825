//! Samplers for plugins that choose tokens themselves: from candidates to a token.
//!
//! ```
//! use corral_sdk::Candidate;
//! use corral_sdk::sampling::{Candidates, SeedableRng, SeededRng};
//!
//! let candidates = [(7, 2.0), (3, 1.0), (5, -4.0)];
//! let candidates = candidates.map(|(token, logit)| Candidate { token, logit });
//! let token = Candidates::from(candidates.to_vec())
//!     .repetition_penalty(&[3, 3], 1.2)
//!     .min_p(0.1)
//!     .temperature(0.8)
//!     .sample(&mut SeededRng::seed_from_u64(1));
//! assert!(token == Some(7) || token == Some(3));
//! ```

mod candidates;
mod mirostat;

pub use candidates::Candidates;
pub use mirostat::Mirostat;
pub use rand::{Rng, RngExt, SeedableRng};
/// A random number generator that gives the same numbers on every machine. Not for secrets.
pub use rand_xoshiro::SplitMix64 as SeededRng;
