//! How long the steps of a simulated machine take, and how they fail.

use crate::pseudo_random;

/// The time of steps, in seconds: `fixed + row * rows + prefill * other tokens + attention * tokens * cells up to the
/// highest used one`, and `adapter_change` more after a change of the adapter. A draft counts as a row. After each
/// step, sampling takes `sample` for each output; an overlapped step is computed meanwhile.
#[derive(Clone, Copy, Debug)]
pub struct Machine {
    /// For every step.
    pub fixed: f64,
    /// For each decode row.
    pub row: f64,
    /// For each prompt token.
    pub prefill: f64,
    /// For each token and each cell up to the highest used one.
    pub attention: f64,
    /// For an adapter change.
    pub adapter_change: f64,
    /// For sampling after each output.
    pub sample: f64,
    /// For a step of the draft model.
    pub draft_step: f64,
    /// For each of its tokens.
    pub draft_token: f64,
    /// The largest random deviation of a step, as a part of its time.
    pub noise: f64,
}

impl Default for Machine {
    /// About two CPU cores with a model of 0.6 billion weights, and a draft model of a tenth.
    fn default() -> Self {
        Self {
            fixed: 0.040,
            row: 0.004,
            prefill: 0.0025,
            attention: 1e-8,
            adapter_change: 0.010,
            sample: 0.0,
            draft_step: 0.004,
            draft_token: 0.0004,
            noise: 0.0,
        }
    }
}

/// A fault of a step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Fault {
    /// The step fails with a return code of `llama_decode`: 1, 2, -2 or -3. Nothing of it stays, unless the memory
    /// can't truncate: then its first half does, except for code 1.
    Code(i32),
    /// The step takes this many times as long.
    Slow(f64),
}

/// A pseudo-random number from -1 to 1, the same for the same `step`.
#[allow(clippy::cast_precision_loss)]
pub(super) fn scatter(step: u64) -> f64 {
    (pseudo_random(step) >> 11) as f64 / (1_u64 << 52) as f64 - 1.0
}
