//! Counts uses by guards.

use std::sync::{Arc, OnceLock};

/// Counts the guards that have not been dropped. It allocates at the first use, since most calls have none.
#[derive(Debug, Default)]
pub(crate) struct UseCount(OnceLock<Arc<()>>);

/// A use, counted until it is dropped.
#[derive(Debug)]
pub(crate) struct UseGuard {
    _count: Arc<()>,
}

impl UseCount {
    /// Counts a use.
    pub(crate) fn guard(&self) -> UseGuard {
        UseGuard {
            _count: Arc::clone(self.0.get_or_init(Arc::default)),
        }
    }

    /// Number of guards.
    pub(crate) fn get(&self) -> usize {
        self.0.get().map_or(0, |count| Arc::strong_count(count) - 1)
    }
}
