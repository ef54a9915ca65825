//! Keeping attention short.
//!
//! Attention runs over all cells up to the highest used one, whoever holds it. So one sequence that
//! was placed high, when the cells were full, makes every step of everyone dearer for as long as it
//! stays. When the steps are expected to save more time than the move takes, its state is taken out
//! and put back, by which it comes to lie in the lowest free cells. Whether attention costs anything
//! at all is measured: it is a term of the [`cost`](super::cost) model, and nothing where the backend
//! passes over cells that it masks.

use super::Scheduler;
use super::cost::StepShape;
use super::words::{MemoryOp, SeqId};

/// Steps between two looks, and steps that are taken to come while things stay as they are.
const EVERY: u64 = 64;
const AHEAD: f64 = 256.0;

impl Scheduler {
    /// Moves the highest sequence down if that pays. True if one is to be moved: then nothing else is
    /// computed in this step, since it shows only afterwards whether it could be moved.
    pub(super) fn relocate(&mut self) -> bool {
        let steps = self.recovery.succeeded();
        let can = self.limits.reuses_parts();
        if !can || self.running.is_empty() || steps < self.looked + EVERY {
            return false;
        }
        self.looked = steps;
        let Some(seq) = self.cells.highest() else {
            return false;
        };
        if !self.pays(seq) {
            return false;
        }
        let layout = self.cells.layout(seq);
        self.cells.clear(seq);
        let room = self.cells.restore(seq, &layout);
        debug_assert!(room, "there was room for it before");
        self.memory.push(MemoryOp::Compact(seq));
        self.counters.compacted += 1;
        true
    }

    fn pays(&self, seq: SeqId) -> bool {
        let (now, then) = (self.cells.n_kv(), self.cells.n_kv_moved(seq));
        let length = self.cells.held_by(seq);
        if then >= now || length > self.cells.free() + self.cells.freed_by_clearing(seq) {
            return false;
        }
        let seconds = |n_kv| self.cost.predict(StepShape { n_kv, ..self.shape });
        let saved = AHEAD * (seconds(now) - seconds(then));
        self.cost.is_fitted() && saved > 2.0 * self.state_seconds * f64::from(length)
    }

    /// A sequence could not be moved: the backend holds nothing of it any more.
    pub fn compaction_failed(&mut self, seq: SeqId) {
        self.cells.clear(seq);
        if let Some(running) = self.running.iter_mut().find(|running| running.seq == seq) {
            running.stops();
            running.starts_at(0);
            return;
        }
        if let Some(id) = self.cache.with_cells_of(seq) {
            self.drop_entry(id);
        }
    }
}
