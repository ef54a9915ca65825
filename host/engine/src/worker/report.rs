//! What the engine's thread counts.

use super::Worker;
use crate::backend::Backend;
use crate::metrics::{add, set, set_time};
use corral_scheduler::{SeqId, Step};
use std::collections::HashSet;
use std::time::{Duration, Instant};

impl<B: Backend> Worker<B> {
    /// A step was computed.
    pub(super) fn count(&self, step: &Step) {
        let (counters, shape) = (&self.counters, step.shape);
        let generating = u64::from(shape.rows);
        let prompts = step.rows.len() as u64 - generating;
        add(&counters.steps, 1);
        add(&counters.rows, step.rows.len() as u64);
        add(&counters.decode_rows, generating);
        add(&counters.prefill_rows, prompts);
        add(&counters.prefill_tokens, u64::from(shape.prefill));
        add(&counters.computed_tokens, self.inputs.len() as u64);
        add(&counters.skipped_rows, u64::from(step.skipped));
        add(
            &counters.adapter_deferred_rows,
            u64::from(step.other_adapters),
        );
        if step.is_overlap {
            add(&counters.overlapped_steps, 1);
            add(&counters.overlapped_tokens, u64::from(shape.prefill));
        }
        let prefill = shape.prefill + step.overlapped;
        if shape.rows > 0 && prefill > 0 {
            add(&counters.mixed_steps, 1);
            add(&counters.mixed_prefill_tokens, u64::from(prefill));
            add(
                &counters.mixed_budget_tokens,
                u64::from(step.prefill_budget),
            );
        }
        let copied = self.backend.copied_logits();
        add(&counters.top_logits_bytes, copied.top_k);
        add(&counters.whole_logits_bytes, copied.whole);
        counters.step_rows.observe(step.rows.len() as f64);
        counters.step_prefill.observe(f64::from(shape.prefill));
        set(&counters.attention_cells, u64::from(shape.n_kv));
    }

    /// How things stand after a step.
    pub(super) fn report(&self, step: &Step) {
        let (counters, scheduler) = (&self.counters, &self.scheduler);
        let (cells, running) = (scheduler.cells(), scheduler.running_count());
        set(&counters.waiting, scheduler.waiting_count() as u64);
        set(&counters.running, running as u64);
        set(&counters.sequence_ids_used, running as u64);
        set(
            &counters.sequence_ids_cached,
            (scheduler.seq_ids_used() - running) as u64,
        );
        set(&counters.cells_used, u64::from(cells.pinned()));
        let ratio = u64::from(cells.pinned()) * 1_000_000_000 / u64::from(self.limits.cells.max(1));
        set(&counters.cells_used_billionths, ratio);
        let cached = cells.used() - cells.pinned();
        set(&counters.cells_cached, u64::from(cached));
        set(
            &counters.cells_reserved,
            u64::from(scheduler.cells_reserved()),
        );
        let tally = scheduler.counters();
        set(&counters.evictions, tally.evicted);
        set(&counters.swap_outs, tally.swapped_out);
        set(&counters.prefix_offloads, tally.offloaded);
        set(&counters.swap_ins, tally.swapped_in);
        set(&counters.swap_in_failures, tally.lost);
        set(&counters.preemptions, tally.preempted);
        set(&counters.compactions, tally.compacted);
        set(&counters.adapter_changes, tally.adapter_switches);
        set(&counters.device_top_k_misses, tally.top_k_retries);
        let change = Duration::from_secs_f64(scheduler.adapter_switch_seconds());
        set_time(&counters.adapter_change_nanos, change);
        self.aside.report(counters);
        let retry_after = scheduler.retry_after(self.time(Instant::now()));
        set(&counters.retry_after, retry_after.as_secs());
        if step.rows.is_empty() {
            set(&counters.attention_cells, 0);
        }
    }

    /// With nothing running, no id may hold a cell but those of entries: asks the backend itself.
    pub(super) fn check_empty(&mut self) {
        let kept: HashSet<_> = self.scheduler.entry_seq_ids().collect();
        let ids = (0..self.limits.seq_ids).map(SeqId);
        let nobodys = ids.filter(|id| !kept.contains(id));
        let left: u64 = nobodys.map(|id| u64::from(self.backend.length(id))).sum();
        debug_assert_eq!(left, 0, "cells were left behind");
        set(&self.counters.cells_leaked, left);
    }
}
