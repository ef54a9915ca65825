//! A simulated backend in virtual time: what llama.cpp does to cells, ids and return codes, without a model.
//!
//! It predicts `token + 1`, and `token + 1 + n` with adapter `n`, so that a caller can tell whether a sequence was
//! computed whole, once and in order. It panics where llama.cpp ends the process or silently computes nonsense: unknown
//! ids, gaps in positions, steps that are too large, rows whose state was computed with another adapter, and sharing or
//! loading into an id that is not empty.
//!
//! [`simulation`] drives a scheduler over it, with arrivals, cancellations and faults, and checks the invariants in every
//! step.

#![forbid(unsafe_code)]
#![warn(missing_docs)]

pub mod latency;
mod machine;
mod sequence_state;
mod simulated_backend;
pub mod simulation;
mod step;
#[cfg(test)]
mod tests;
pub mod traces;

use corral_scheduler::Token;
pub use machine::{Fault, Machine};
pub use sequence_state::SaveError;
pub use simulated_backend::{SimulatedBackend, Size};
use std::hash::{DefaultHasher, Hash, Hasher};
pub use step::{DecodeError, Input};

/// A token that makes every step with it fail.
pub const POISON: Token = 666;

/// A pseudo-random number, the same for equal values.
pub(crate) fn pseudo_random(value: impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}
