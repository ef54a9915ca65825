//! Random numbers of a plugin that is not granted any: `wasi:random/random` ends the call (`host/random.rs`), and the others are
//! the same in each instance.
//!
//! `wasi:random/random` promises numbers that nobody can guess, so it refuses to answer rather than to answer others.
//! `insecure` and `insecure-seed` promise less: standard libraries take the keys of their hash tables from them.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng;
use wasmtime_wasi::WasiCtxBuilder;

/// The error of a plugin that asks for random numbers without their grant.
#[derive(Debug, thiserror::Error)]
#[error(
    "it called 'wasi:random/random', which its manifest denies; set 'grants.random' to true if it may have random numbers"
)]
pub(crate) struct RandomDenied;

/// Makes the insecure numbers of a new instance the same as in any other.
pub(crate) fn install_fixed(wasi: &mut WasiCtxBuilder) {
    wasi.insecure_random(ChaCha8Rng::seed_from_u64(0))
        .insecure_random_seed(0);
}
