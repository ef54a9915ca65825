//! How far a load is, seen from other threads, and a way to end it.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// Of one load.
#[derive(Debug, Default)]
pub struct Progress {
    /// The bits of an f32.
    part: AtomicU32,
    stopped: AtomicBool,
}

impl Progress {
    /// The part of the weights that is read, from 0 to 1.
    pub fn part(&self) -> f32 {
        f32::from_bits(self.part.load(Ordering::Relaxed))
    }

    /// Makes the load end as soon as it looks, which it does after each tensor.
    pub fn stop(&self) {
        self.stopped.store(true, Ordering::Relaxed);
    }

    pub(crate) fn reached(&self, part: f32) {
        let part = part.clamp(0.0, 1.0);
        self.part.store(part.to_bits(), Ordering::Relaxed);
    }

    pub(crate) fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Relaxed)
    }
}
