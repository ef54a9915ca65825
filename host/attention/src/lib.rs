//! Attention on the CPU over a KV cache that many sequences share.
//!
//! `Tiles` reads the masks of a step and groups tokens that mostly attend to the same cells. `attend` computes the
//! heads of such a group that share keys and values. The crate knows no model and no llama.cpp: `corral-llama` passes
//! pointers.
//!
//! It is a crate of its own because it is compiled without overflow checks and debug assertions, which would multiply
//! its time. Without x86-64, AVX2, F16C and FMA it is empty.

// Several arrays share one index, and the loops show which values stay in registers.
#![allow(clippy::needless_range_loop)]
#![cfg(all(
    target_arch = "x86_64",
    target_feature = "avx2",
    target_feature = "f16c",
    target_feature = "fma"
))]

mod kernel;
mod softmax;
mod tiles;
mod vectors;

pub use kernel::{HEAD_MULTIPLE, HeadRows, MAX_HEAD, Query, Workspace, attend};
pub use tiles::{MaskedCell, Tile, Tiles};
