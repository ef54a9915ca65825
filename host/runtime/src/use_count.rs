//! Counts uses by guards.

use std::sync::Arc;

/// Counts the guards that have not been dropped.
#[derive(Debug, Default)]
pub(crate) struct UseCount(Arc<()>);

/// A use, counted until it is dropped.
#[derive(Debug)]
pub(crate) struct UseGuard {
    _count: Arc<()>,
}

impl UseCount {
    /// Counts a use.
    pub(crate) fn guard(&self) -> UseGuard {
        UseGuard {
            _count: Arc::clone(&self.0),
        }
    }

    /// Number of guards.
    pub(crate) fn get(&self) -> usize {
        Arc::strong_count(&self.0) - 1
    }
}
