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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::SchedulerConfig;
    use crate::request::LogitsKind;
    use crate::tests::CONFIG;

    #[test]
    fn checks_are_an_interval_apart() {
        let mut compaction = Compaction::default();
        assert!(!compaction.is_due(INTERVAL_STEPS - 1));
        assert!(compaction.is_due(INTERVAL_STEPS + 5));
        assert!(!compaction.is_due(2 * INTERVAL_STEPS + 4));
        assert!(compaction.is_due(2 * INTERVAL_STEPS + 5));
    }

    /// Two sequences; the lower one ends.
    fn with_gap(costs: &CostModel, max_compaction_tokens: u32) -> (bool, u32) {
        let mut kv = KvCache::new(SchedulerConfig {
            cells: 4096,
            max_compaction_tokens,
            ..CONFIG
        });
        let [low, high] = [(); 2].map(|()| kv.take_id(LogitsKind::All, None).unwrap());
        assert!(kv.cells.place([(low, 2048), (high, 16)].into_iter()));
        kv.release(low);
        let shape = StepShape {
            decode_rows: 1,
            ..StepShape::default()
        };
        (kv.compact(costs, shape), kv.cells.n_kv())
    }

    #[test]
    fn high_sequence_moves_down_if_it_pays() {
        let costs = |cell| {
            let mut costs = CostModel::default();
            for n_kv in (1..200).map(|i| 256 * (i % 16)) {
                let shape = StepShape {
                    decode_rows: 1 + n_kv / 256 % 3,
                    n_kv,
                    ..StepShape::default()
                };
                let rows = f64::from(shape.decode_rows);
                costs.observe(shape, 1e-3 + 1e-4 * rows + cell * rows * f64::from(n_kv));
            }
            costs
        };
        assert_eq!(with_gap(&costs(1e-5), 16), (true, 256));
        let high = with_gap(&costs(0.0), 16);
        assert!(
            !high.0 && high.1 > 2048,
            "attention costs nothing: {high:?}"
        );
        assert_eq!(with_gap(&costs(1e-5), 15), high, "the state is too large");
        assert_eq!(
            with_gap(&CostModel::default(), 16),
            high,
            "costs are unknown"
        );
    }
}
