//! Decides how to evict a prefix, and evicts those that cost more in the cells than they may save.
//!
//! A prefix that is not retained is offloaded if that is [expected to cost
//! less](crate::swap_costs::SwapCosts::offload_pays) than computing it again, else dropped: also where [requests need its
//! cells](KvCache::make_room).
//!
//! Attention runs over all cells up to the highest used one, and even a backend that skips the cells of other
//! sequences visits each. So a cached prefix makes every token of every step slower. The
//! [cost model](crate::cost_model) measures by how much; on a backend where it is nothing, no prefix is evicted
//! here. (The time is saved once the highest used cell is a lower one: new requests take the lowest free cells,
//! and [compaction](crate::compaction) moves sequences down.)
//!
//! Whether a prefix will be used again is unknown. So it stays until the cost charged to it since its last use exceeds
//! the cost of evicting it: moving it out and back, or computing it again if that is less or its cells are
//! shared. By the ski-rental argument this costs at most twice as much as knowing the future.
//!
//! A move delays the next step. So each step evicts one costly prefix at most; a step with prompts only one that was
//! charged [`PREFILL_EVICTION_FACTOR`] times its eviction cost. Prefixes whose cells a step needs come on top.

use crate::admission::MIN_SWAPPED_IN;
use crate::cost_model::CostModel;
use crate::kv_cache::KvCache;
use crate::prefix_cache::Entry;
use crate::step::{EntryId, SeqId, StepShape};

/// A step with prompts evicts a prefix whose charged cost exceeds this many times its eviction cost.
const PREFILL_EVICTION_FACTOR: f64 = 2.0;
/// Attention never runs over fewer cells.
const MIN_N_KV: u32 = 256;

/// How to evict a prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Eviction {
    Offload,
    Drop,
    /// Drop it although it could be offloaded, because moves take too long or too few prefixes return.
    DropForCost,
}

impl KvCache {
    /// Charges the cells for a step that is about to run, and evicts a prefix that was charged enough.
    pub fn evict_costly(&mut self, costs: &CostModel, shape: StepShape) {
        let tokens = shape.decode_rows + shape.drafts + shape.prefill;
        if costs.is_fitted() {
            let seconds = costs.prefill_seconds(1, self.cells.n_kv());
            self.swap_costs.recompute_seconds_per_token = seconds;
        }
        let applies = self.config.can_reuse_part() && costs.is_fitted();
        if !applies || tokens == 0 || self.cells.n_kv() <= MIN_N_KV {
            return;
        }
        self.entries.charge_cells(costs.cell_seconds(tokens));
        self.entries.update_retained();
        let patience = match shape.prefill {
            0 => 1.0,
            _ => PREFILL_EVICTION_FACTOR,
        };
        if let Some(id) = self.overdue(patience) {
            self.evict(id);
        }
    }

    /// Offloads a resident entry or drops it, whichever is cheaper.
    pub fn offload_or_drop(&mut self, id: EntryId, seq: SeqId) {
        let eviction = self
            .cheapest_eviction(id, seq)
            .map(|(eviction, _)| eviction);
        if eviction == Some(Eviction::Offload) {
            self.offload(id, seq);
            return;
        }
        if eviction == Some(Eviction::DropForCost) {
            self.swap_costs.decay();
        }
        self.entries.remove(id);
        self.counters.dropped += 1;
        self.release(seq);
    }

    /// The first prefix that was charged `patience` times its eviction cost.
    fn overdue(&self, patience: f64) -> Option<EntryId> {
        // No prefix has a lower eviction cost for each of its cells.
        let least = self.swap_costs.recompute_seconds(1);
        let least = patience * least.min(self.swap_costs.seconds(1));
        let charged = self.entries.charged_costs();
        let mut charged = charged.filter(|(_, cell)| *cell > 0.0 && *cell >= least);
        charged.find_map(|(id, cell)| {
            let seq = self.entries.get(id)?.seq()?;
            let cost = cell * f64::from(self.cells.freed_by_clearing(seq));
            let (_, seconds) = self.cheapest_eviction(id, seq)?;
            (cost > 0.0 && cost >= patience * seconds).then_some(id)
        })
    }

    /// Whether to offload or drop a resident entry, and the seconds that costs. An entry with mostly shared cells is not
    /// offloaded, since its state would copy the shared ones too; nor is one that is too short to be swapped in.
    fn cheapest_eviction(&self, id: EntryId, seq: SeqId) -> Option<(Eviction, f64)> {
        let entry = self.entries.get(id)?;
        let (all, alone) = (entry.length(), self.cells.freed_by_clearing(seq));
        let recompute = self.swap_costs.recompute_seconds(alone);
        let one_move = self.swap_costs.seconds(all);
        if self.entries.has_swapped_out(entry.scope, &entry.tokens) {
            return Some((Eviction::Drop, recompute.min(one_move)));
        }
        let offloads = self.config.offload_prefixes && self.config.can_reuse_part();
        let can_offload = offloads && !entry.is_retained() && 2 * alone > all;
        let lengths = MIN_SWAPPED_IN..=self.swap_costs.longest_prefix;
        Some(match can_offload && lengths.contains(&all) {
            true if self.swap_costs.offload_pays(all, recompute) => {
                (Eviction::Offload, 2.0 * one_move)
            }
            true => (Eviction::DropForCost, recompute),
            false => (Eviction::Drop, recompute),
        })
    }

    /// Offloads all unretained resident entries.
    pub fn offload_all(&mut self) {
        self.entries.update_retained();
        let all: Vec<_> = self.entries.charged_costs().map(|(id, _)| id).collect();
        for id in all {
            if let Some(seq) = self.entries.get(id).and_then(Entry::seq) {
                self.offload(id, seq);
            }
        }
    }
}
