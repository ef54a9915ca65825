//! Progress and cancellation of a model load, shared between threads, and the gate between its stages.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// A stage of a load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoadStage {
    /// llama.cpp reads metadata, vocabulary and the list of tensors, in [`LoadStage::HEADER_PARTS`] parts.
    Header(usize),
    /// It reads the weights of a tensor. Tensors are numbered in the order in which they are read; the number after the last
    /// one says that all are read.
    Weights(usize),
    /// The vocabulary, the adapters, the projector and the context follow; no step is computed. The number is the next after
    /// those of [`LoadStage::Weights`].
    Context(usize),
    /// The model computes steps.
    Use,
}

impl LoadStage {
    /// Parts in which the header is read, whatever the file.
    pub const HEADER_PARTS: usize = 6;
}

/// Decides before each stage whether the load goes on, and may wait.
pub type LoadGate<'a> = &'a dyn Fn(LoadStage) -> bool;

/// Progress of one load.
#[derive(Debug, Default)]
pub struct LoadProgress {
    /// The bits of an f32.
    fraction: AtomicU32,
    canceled: AtomicBool,
}

impl LoadProgress {
    /// The fraction of the weights that is loaded, from 0 to 1.
    pub fn fraction(&self) -> f32 {
        f32::from_bits(self.fraction.load(Ordering::Relaxed))
    }

    /// Ends the load after the tensor that it reads now.
    pub fn cancel(&self) {
        self.canceled.store(true, Ordering::Relaxed);
    }

    pub(crate) fn set_fraction(&self, fraction: f32) {
        let fraction = fraction.clamp(0.0, 1.0);
        self.fraction.store(fraction.to_bits(), Ordering::Relaxed);
    }

    /// Whether the load was canceled.
    pub fn is_canceled(&self) -> bool {
        self.canceled.load(Ordering::Relaxed)
    }
}
