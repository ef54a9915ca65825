//! Counts each step, and sets the gauges after it.

use super::Worker;
use crate::backend::Backend;
use crate::metrics::{add, set, set_time};
use crate::status::EngineStatus;
use crate::swap_store::SwapStore;
use corral_scheduler::{EntryLocation, EntryStatus, SeqId, Step};
use std::collections::HashSet;
use std::time::{Duration, Instant};

impl<B: Backend> Worker<B> {
    /// Counts a computed step.
    pub(super) fn count_step(&self, step: &Step) {
        let (metrics, shape) = (&self.metrics, step.shape);
        let decode_rows = u64::from(shape.decode_rows);
        let prefill_rows = step.rows.len() as u64 - decode_rows;
        add(&metrics.steps, 1);
        add(&metrics.rows, step.rows.len() as u64);
        add(&metrics.decode_rows, decode_rows);
        add(&metrics.prefill_rows, prefill_rows);
        add(&metrics.prefill_tokens, u64::from(shape.prefill));
        add(&metrics.computed_tokens, self.inputs.len() as u64);
        add(&metrics.skipped_rows, u64::from(step.skipped));
        add(
            &metrics.adapter_deferred_rows,
            u64::from(step.other_adapters),
        );
        add(&metrics.tenant_left_out_rows, u64::from(step.other_tenants));
        if step.is_overlap {
            add(&metrics.overlapped_steps, 1);
            add(&metrics.overlapped_tokens, u64::from(shape.prefill));
        }
        let prefill = shape.prefill + step.overlapped;
        if shape.decode_rows > 0 && prefill > 0 {
            add(&metrics.mixed_steps, 1);
            add(&metrics.mixed_prefill_tokens, u64::from(prefill));
            add(&metrics.mixed_budget_tokens, u64::from(step.prefill_budget));
        }
        let copied = self.backend.copied_logits();
        add(&metrics.top_logits_bytes, copied.top_k);
        add(&metrics.whole_logits_bytes, copied.whole);
        metrics.step_rows.observe(step.rows.len() as f64);
        metrics.step_prefill.observe(f64::from(shape.prefill));
        set(&metrics.attention_cells, u64::from(shape.n_kv));
    }

    /// Sets the gauges, and copies the scheduler's counters.
    pub(super) fn report(&self, step: &Step) {
        let (metrics, scheduler) = (&self.metrics, &self.scheduler);
        let (cells, running) = (scheduler.cells(), scheduler.running_count());
        set(&metrics.live_generated_tokens, self.generated_tokens);
        set(&metrics.waiting, scheduler.waiting_count() as u64);
        set(&metrics.running, running as u64);
        set(&metrics.sequence_ids_used, running as u64);
        set(
            &metrics.sequence_ids_cached,
            (scheduler.seq_ids_used() - running) as u64,
        );
        set(&metrics.cells_used, u64::from(cells.pinned()));
        let ratio = u64::from(cells.pinned()) * 1_000_000_000 / u64::from(self.config.cells.max(1));
        set(&metrics.kv_cache_usage_billionths, ratio);
        let cached = cells.used() - cells.pinned();
        set(&metrics.cells_cached, u64::from(cached));
        set(
            &metrics.cells_reserved,
            u64::from(scheduler.cells_committed()),
        );
        let counters = scheduler.counters();
        set(&metrics.entries_dropped, counters.dropped);
        set(&metrics.swap_outs, counters.swapped_out);
        set(&metrics.prefix_offloads, counters.offloaded);
        set(&metrics.swap_ins, counters.swapped_in);
        set(&metrics.swapped_states_lost, counters.lost);
        set(&metrics.preemptions, counters.preempted);
        set(&metrics.compactions, counters.compacted);
        set(&metrics.adapter_switches, counters.adapter_switches);
        set(&metrics.device_top_k_misses, counters.top_k_retries);
        let switch_time = Duration::from_secs_f64(scheduler.adapter_switch_seconds());
        set_time(&metrics.adapter_switch_nanos, switch_time);
        self.swap.report(metrics);
        let retry_after = scheduler.retry_after(self.time(Instant::now()));
        set(&metrics.retry_after, retry_after.as_secs());
        if step.rows.is_empty() {
            set(&metrics.attention_cells, 0);
        }
    }

    /// What the worker holds now.
    pub(super) fn status(&self) -> EngineStatus {
        let [sequences, prefixes] = self.swap.both();
        let (cells, running) = (self.scheduler.cells(), self.scheduler.running_count());
        EngineStatus {
            cells: self.config.cells,
            cells_running: cells.pinned(),
            cells_cached: cells.used() - cells.pinned(),
            attention_cells: cells.n_kv(),
            sequence_ids: self.config.seq_ids,
            sequence_ids_running: running,
            sequence_ids_cached: self.scheduler.seq_ids_used() - running,
            waiting: self.scheduler.waiting_count(),
            generated_tokens: self.generated_tokens,
            swap_ram_bytes: sequences.map_or(0, SwapStore::ram_bytes),
            swap_disk_bytes: sequences.map_or(0, SwapStore::disk_bytes),
            prefix_offload_bytes: prefixes.map_or(0, SwapStore::ram_bytes),
            requests: self.scheduler.requests().collect(),
            prefix_cache: self
                .scheduler
                .entries()
                .map(|entry| self.located(entry))
                .collect(),
            counters: self.scheduler.counters(),
        }
    }

    /// The status of an entry, after a look at where the store holds a state that is not in the cells.
    fn located(&self, mut entry: EntryStatus) -> EntryStatus {
        let mut stores = self.swap.both().into_iter().flatten();
        if entry.location == EntryLocation::Memory
            && stores.any(|store| store.is_on_disk(entry.id.0))
        {
            entry.location = EntryLocation::Disk;
        }
        entry
    }

    /// Checks with the backend that no unused sequence id holds cells.
    pub(super) fn check_leaks(&mut self) {
        let cached: HashSet<_> = self.scheduler.entry_seq_ids().collect();
        let ids = (0..self.config.seq_ids).map(SeqId);
        let unused = ids.filter(|id| !cached.contains(id));
        let leaked: u64 = unused.map(|id| u64::from(self.backend.length(id))).sum();
        debug_assert_eq!(leaked, 0, "unused sequence ids hold cells");
        set(&self.metrics.cells_leaked, leaked);
    }
}
