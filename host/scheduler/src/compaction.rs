//! Moves a sequence to lower cells where that shortens attention enough.
//!
//! Attention runs over all cells up to the highest used one. So a sequence that was placed high while the cells
//! were full slows down every step for as long as it stays. If the coming steps are expected to save more time
//! than the move takes, its state is saved, cleared and loaded again, which takes the lowest free cells. The
//! [cost model](crate::cost_model) measures what a cell costs; where that is nothing, no sequence moves. Nor does one
//! of more than [`max_compaction_tokens`](crate::SchedulerConfig::max_compaction_tokens): its state would be too large.

use crate::cost_model::CostModel;
use crate::kv_cache::KvCache;
use crate::step::{MemoryOp, SeqId, StepShape};

/// Steps between two checks.
const INTERVAL_STEPS: u64 = 64;
/// Steps that are assumed to benefit from a move.
const BENEFIT_STEPS: f64 = 256.0;

/// When the last check was.
#[derive(Clone, Debug, Default)]
pub(crate) struct Compaction {
    checked_at: u64,
}

impl Compaction {
    /// Whether a check is due after this many successful steps in all.
    pub fn is_due(&mut self, steps: u64) -> bool {
        let due = steps >= self.checked_at + INTERVAL_STEPS;
        if due {
            self.checked_at = steps;
        }
        due
    }
}

impl KvCache {
    /// Moves the highest sequence down if that pays for steps of this shape. True if it moves: then the step has no
    /// rows, since the backend may fail to load the state.
    pub fn compact(&mut self, costs: &CostModel, shape: StepShape) -> bool {
        let Some(seq) = self.cells.highest().filter(|_| costs.is_fitted()) else {
            return false;
        };
        if !self.compaction_pays(costs, shape, seq) {
            return false;
        }
        let order = self.cells.order(seq);
        self.cells.clear(seq);
        let restored = self.cells.restore(seq, &order);
        debug_assert!(restored, "the cells were held before");
        self.push_op(MemoryOp::Compact(seq));
        self.counters.compacted += 1;
        true
    }

    fn compaction_pays(&self, costs: &CostModel, shape: StepShape, seq: SeqId) -> bool {
        let (now, then) = (self.cells.n_kv(), self.cells.n_kv_moved(seq));
        let length = self.cells.held_by(seq);
        let room = self.cells.free() + self.cells.freed_by_clearing(seq);
        if then >= now || length > room.min(self.config.max_compaction_tokens) {
            return false;
        }
        let seconds = |n_kv| costs.step_seconds(StepShape { n_kv, ..shape });
        let saved = BENEFIT_STEPS * (seconds(now) - seconds(then));
        saved > 2.0 * self.swap_costs.seconds(length)
    }
}
