//! Bounds the number of children at once.

use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Slots for children.
#[derive(Debug)]
pub(crate) struct Slots {
    free: Mutex<usize>,
    released: Condvar,
}

impl Slots {
    pub fn new(count: usize) -> Self {
        Self {
            free: Mutex::new(count),
            released: Condvar::new(),
        }
    }

    /// Waits for a slot, at most `timeout`.
    pub fn acquire(&self, timeout: Duration) -> Option<Slot<'_>> {
        let deadline = Instant::now() + timeout;
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        while *free == 0 {
            let left = deadline.checked_duration_since(Instant::now())?;
            let waited = self.released.wait_timeout(free, left);
            free = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        *free -= 1;
        Some(Slot(self))
    }
}

/// A slot, free again when dropped.
#[derive(Debug)]
pub(crate) struct Slot<'a>(&'a Slots);

impl Drop for Slot<'_> {
    fn drop(&mut self) {
        *self.0.free.lock().unwrap_or_else(PoisonError::into_inner) += 1;
        self.0.released.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_bounded_and_reused() {
        let slots = Slots::new(1);
        let first = slots.acquire(Duration::ZERO).expect("free");
        assert!(slots.acquire(Duration::ZERO).is_none());
        drop(first);
        assert!(slots.acquire(Duration::ZERO).is_some());
    }
}
