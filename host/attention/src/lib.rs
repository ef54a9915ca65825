//! Attention over a KV cache that many sequences share, on the processor.
//!
//! [`Tiles`] finds in the masks of a step which cells count for which tokens, and which tokens are computed together;
//! [`attend`] computes heads that share keys and values over those cells. Neither knows anything of a model or of
//! llama.cpp: the engine's llama layer hands over where the numbers lie.
//!
//! A crate of its own, since it is compiled without the checks that the engine has when it runs: they cost nothing
//! beside a step, and several times the time here.
//!
//! There is nothing in it for processors other than x86-64 with AVX2, F16C and FMA.

#![allow(unsafe_code)]
// Several arrays go by one number, and what the compiler is to keep in registers is written plainly.
#![allow(clippy::needless_range_loop)]
#![cfg(all(
    target_arch = "x86_64",
    target_feature = "avx2",
    target_feature = "f16c",
    target_feature = "fma"
))]

mod kernel;
mod lanes;
mod tiles;

pub use kernel::{Gap, MOST, Query, Rows, Sums, Tile, UNIT, attend};
pub use tiles::Tiles;
