//! Counts uses by guards.

use std::sync::Arc;

/// Counts the guards that have not been dropped.
#[derive(Debug, Default)]
pub(super) struct UseCount(Arc<()>);

/// A use, counted until it is dropped.
#[derive(Debug)]
pub(super) struct UseGuard {
    _count: Arc<()>,
}

impl UseCount {
    /// Counts a use.
    pub(super) fn guard(&self) -> UseGuard {
        UseGuard {
            _count: Arc::clone(&self.0),
        }
    }

    /// Number of guards.
    pub(super) fn get(&self) -> usize {
        Arc::strong_count(&self.0) - 1
    }
}
