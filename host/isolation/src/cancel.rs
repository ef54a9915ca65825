//! Cancels jobs from another thread.

use crate::error::ChildError;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// How often a waiting job looks whether it is canceled.
const INTERVAL: Duration = Duration::from_millis(50);

/// Cancels the jobs that were started with it, now and later. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Cancel(Arc<AtomicBool>);

impl Cancel {
    /// Cancels the jobs: their children are killed within a moment.
    pub fn cancel(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Whether the jobs are canceled.
    pub fn is_canceled(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// How long to wait before the next call; `None` from the deadline on.
    pub(crate) fn wait(&self, deadline: Instant) -> Result<Option<Duration>, ChildError> {
        if self.is_canceled() {
            return Err(ChildError::Canceled);
        }
        let left = deadline.checked_duration_since(Instant::now());
        Ok(left.map(|left| left.min(INTERVAL)))
    }
}
