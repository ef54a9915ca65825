//! How long the steps of a simulated machine take, and what goes wrong in them.

/// How long steps take, in seconds: `fixed + row * rows + prefill * tokens of prompts +
/// attention * tokens * cells up to the highest used one`, and `change` more after a change of
/// adapters. A draft counts as a row. After each step its outputs are sampled, which takes `sample` for each
/// of them; meanwhile what runs ahead is computed.
#[derive(Clone, Copy, Debug)]
pub struct Machine {
    /// Of every step.
    pub fixed: f64,
    /// Of each sequence that generates.
    pub row: f64,
    /// Of each prompt token.
    pub prefill: f64,
    /// Of each token for each cell up to the highest used one.
    pub attention: f64,
    /// Of a change from one adapter to another.
    pub change: f64,
    /// To sample after each row with output.
    pub sample: f64,
    /// By what part steps take longer or shorter than this, at random.
    pub noise: f64,
}

impl Default for Machine {
    /// About what two cores do with a model of 0.6 billion weights.
    fn default() -> Self {
        Self {
            fixed: 0.040,
            row: 0.004,
            prefill: 0.0025,
            attention: 1e-8,
            change: 0.010,
            sample: 0.0,
            noise: 0.0,
        }
    }
}

/// What goes wrong in a step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Fault {
    /// It fails with a return code of llama_decode: 1, 2, -2 or -3. Nothing of it stays, unless the
    /// memory can't part a sequence: then the first half of it does, but for code 1.
    Code(i32),
    /// It takes so many times as long.
    Slow(f64),
}

/// A number from -1 to 1 that looks random, the same for the same `step` (splitmix64).
#[allow(clippy::cast_precision_loss)]
pub(super) fn scatter(step: u64) -> f64 {
    let mut x = step.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    (x >> 11) as f64 / (1u64 << 52) as f64 - 1.0
}
