//! Bounds the number of children at once.

use crate::cancel::Cancel;
use crate::error::ChildError;
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Instant;

/// Permits of children that run.
#[derive(Debug)]
pub(crate) struct ChildPermits {
    free: Mutex<usize>,
    released: Condvar,
}

impl ChildPermits {
    pub fn new(count: usize) -> Self {
        Self {
            free: Mutex::new(count),
            released: Condvar::new(),
        }
    }

    /// Waits for a permit, at most until `deadline`.
    pub fn acquire(
        &self,
        deadline: Instant,
        cancel: &Cancel,
    ) -> Result<ChildPermit<'_>, ChildError> {
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        while *free == 0 {
            let left = cancel.wait(deadline)?.ok_or(ChildError::Busy)?;
            let waited = self.released.wait_timeout(free, left);
            free = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        *free -= 1;
        Ok(ChildPermit(self))
    }
}

/// A permit, free again when dropped.
#[derive(Debug)]
pub(crate) struct ChildPermit<'a>(&'a ChildPermits);

impl Drop for ChildPermit<'_> {
    fn drop(&mut self) {
        *self.0.free.lock().unwrap_or_else(PoisonError::into_inner) += 1;
        self.0.released.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn permits_are_bounded_and_reused() {
        let (permits, cancel) = (ChildPermits::new(1), Cancel::default());
        let acquire = || permits.acquire(Instant::now(), &cancel);
        let first = acquire().expect("free");
        assert!(matches!(acquire(), Err(ChildError::Busy)));
        drop(first);
        assert!(acquire().is_ok());
    }
}
