//! A sequence whose tokens quotas count, shared by its guest and a running generation.

use corral_engine::Token;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A sequence that its guest and a running generation share.
pub(super) type SharedSequence = Arc<Mutex<CountedSequence>>;

/// An engine's sequence, and how many of its tokens the quotas have counted.
pub(super) struct CountedSequence {
    pub(super) sequence: corral_engine::Sequence,
    pub(super) quota_counted: usize,
}

impl CountedSequence {
    pub(super) fn len(&self) -> usize {
        self.sequence.tokens().len()
    }

    /// Number of tokens that no quota has counted.
    pub(super) fn uncounted(&self) -> u64 {
        self.len().saturating_sub(self.quota_counted) as u64
    }

    /// Marks all tokens as counted.
    pub(super) fn count_all(&mut self) {
        self.quota_counted = self.len();
    }

    /// Appends generated tokens, which were counted when they were reserved.
    pub(super) fn append_generated(&mut self, tokens: &[Token]) {
        let appended = self.sequence.append(tokens);
        debug_assert!(appended.is_ok(), "generated tokens fit into the sequence");
        self.quota_counted += tokens.len();
    }
}

/// Locks state that a store's parties share. Contention is rare: all but framed bodies are in one store.
pub(super) fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}
