//! Progress and cancellation of a model load, shared between threads.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

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

    pub(crate) fn is_canceled(&self) -> bool {
        self.canceled.load(Ordering::Relaxed)
    }
}
