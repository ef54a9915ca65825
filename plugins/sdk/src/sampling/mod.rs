//! Samplers for loops that a plugin runs itself, and for sampling plugins: from candidates to a token.
//!
//! ```
//! use corral_sdk::Candidate;
//! use corral_sdk::sampling::{Candidates, Random};
//!
//! let told = [(7, 2.0), (3, 1.0), (5, -4.0)];
//! let told = told.map(|(token, logit)| Candidate { token, logit });
//! let token = Candidates::from(told.to_vec())
//!     .repetition_penalty(&[3, 3], 1.2)
//!     .min_p(0.1)
//!     .temperature(0.8)
//!     .draw(&mut Random::new(1));
//! assert!(token == Some(7) || token == Some(3));
//! ```

mod candidates;
mod mirostat;
mod random;

pub use candidates::Candidates;
pub use mirostat::Mirostat;
pub use random::Random;
