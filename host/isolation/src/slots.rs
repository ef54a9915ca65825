//! Bounds the number of children at once.

use crate::cancel::Cancel;
use crate::error::ChildError;
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Instant;

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

    /// Waits for a slot, at most until `deadline`.
    pub fn acquire(&self, deadline: Instant, cancel: &Cancel) -> Result<Slot<'_>, ChildError> {
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        while *free == 0 {
            let left = cancel.wait(deadline)?.ok_or(ChildError::Busy)?;
            let waited = self.released.wait_timeout(free, left);
            free = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        *free -= 1;
        Ok(Slot(self))
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
        let (slots, cancel) = (Slots::new(1), Cancel::default());
        let acquire = || slots.acquire(Instant::now(), &cancel);
        let first = acquire().expect("free");
        assert!(matches!(acquire(), Err(ChildError::Busy)));
        drop(first);
        assert!(acquire().is_ok());
    }
}
