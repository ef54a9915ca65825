//! The state of a scheduler, for people and metrics, and the drop of prefix cache entries on request. Plans nothing.

use crate::cache_changes::{CacheChange, CacheReport};
use crate::cost_model::CostModel;
use crate::kv_cells::KvCells;
use crate::latency_targets::Latency;
use crate::prefix_cache::{Entry, EntryLocation};
use crate::request::{AdapterId, PrefixScope, Priority, RequestId, RequestProgress, Tenant};
use crate::running::{RunningRequest, Wait};
use crate::scheduler::Scheduler;
use crate::step::{EntryId, SeqId};
use crate::{Time, Token};
use std::time::Duration;

/// What a scheduler did since its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SchedulerCounters {
    /// Prefix cache entries dropped: to free cells or offload memory, or because they cost too much in the cells.
    pub dropped: u64,
    /// Sequences swapped out.
    pub swapped_out: u64,
    /// Prefixes that are not retained that were offloaded.
    pub offloaded: u64,
    /// Sequences and prefixes swapped in.
    pub swapped_in: u64,
    /// Swapped-out sequences whose state was lost: the store was full or failed.
    pub lost: u64,
    /// Running requests preempted.
    pub preempted: u64,
    /// Sequences moved to lower cells.
    pub compacted: u64,
    /// Changes of the adapter between two steps.
    pub adapter_switches: u64,
    /// Rows that were computed again since their highest logits did not suffice.
    pub top_k_retries: u64,
}

/// What a running request does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestState {
    /// Its prompt is being computed.
    Prefill,
    /// It generates.
    Decode,
    /// Another request computes the prefix that it waits for.
    WaitsForPrefix,
    /// Its prefix is being swapped in.
    SwapsIn,
    /// An external sampler picks its next token.
    Samples,
}

impl RequestState {
    /// Its name in status reports.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Prefill => "prefill",
            Self::Decode => "decode",
            Self::WaitsForPrefix => "waits_for_prefix",
            Self::SwapsIn => "swaps_in",
            Self::Samples => "samples",
        }
    }
}

/// A running request.
#[derive(Clone, Debug)]
pub struct RequestStatus {
    /// Its id.
    pub id: RequestId,
    /// Its tenant.
    pub tenant: Tenant,
    /// Its priority.
    pub priority: Priority,
    /// Its targets for the gap between tokens and for the first token.
    pub latency: Latency,
    /// Its adapter.
    pub adapter: AdapterId,
    /// Its sequence id.
    pub seq: SeqId,
    /// Tokens of its prompt.
    pub prompt: u32,
    /// Tokens generated.
    pub generated: u32,
    /// Tokens whose cells are filled.
    pub computed: u32,
    /// Prompt tokens that the prefix cache saved.
    pub cached: u32,
    /// What it does.
    pub state: RequestState,
}

/// What became of the prefix cache entries that were to be dropped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DroppedPrefixes {
    /// Entries dropped.
    pub dropped: usize,
    /// Entries kept, since they are retained or a request waits for them.
    pub kept: usize,
}

/// A prefix cache entry.
#[derive(Clone, Debug)]
pub struct EntryStatus {
    /// Its id.
    pub id: EntryId,
    /// The requests that share it.
    pub scope: PrefixScope,
    /// Its sequence id, unless it is swapped out or offloaded.
    pub seq: Option<SeqId>,
    /// Number of its tokens.
    pub tokens: u32,
    /// Whether it is retained: its owner may return.
    pub retained: bool,
    /// Where its state is.
    pub location: EntryLocation,
    /// Tokens that it shares with the entry before it, in the order of the prefix tree.
    pub shared: u32,
    /// Requests that reused it, or an entry that it replaced.
    pub hits: u64,
}

fn state(running: &RunningRequest) -> RequestState {
    match running.wait {
        Wait::Prefix { .. } => RequestState::WaitsForPrefix,
        Wait::SwapIn { .. } => RequestState::SwapsIn,
        Wait::Sampler => RequestState::Samples,
        Wait::Ready if running.is_decoding() => RequestState::Decode,
        Wait::Ready => RequestState::Prefill,
    }
}

fn entry_status(id: EntryId, entry: &Entry, shared: u32) -> EntryStatus {
    EntryStatus {
        id,
        scope: entry.scope,
        seq: entry.seq(),
        tokens: entry.length(),
        retained: entry.is_retained(),
        location: entry.location(),
        shared,
        hits: entry.hits,
    }
}

impl Scheduler {
    /// Running requests, in order of admission.
    pub fn requests(&self) -> impl Iterator<Item = RequestStatus> {
        self.running.iter().map(|running| RequestStatus {
            id: running.id(),
            tenant: running.request.tenant,
            priority: running.request.priority,
            latency: running.request.latency,
            adapter: running.adapter(),
            seq: running.seq,
            prompt: running.request.prompt_tokens(),
            generated: running.request.progress.generated,
            computed: running.computed,
            cached: running.request.progress.cached,
            state: state(running),
        })
    }

    /// Prefix cache entries, in the order of the prefix tree.
    pub fn entries(&self) -> impl Iterator<Item = EntryStatus> {
        let entries = self.kv.entries.in_order();
        entries.map(|(id, entry, shared)| entry_status(id, entry, shared))
    }

    /// Drops the entries that `select` names, of all in the order of the prefix tree, unless they are retained or a request
    /// waits for them.
    pub fn drop_entries(
        &mut self,
        select: impl FnOnce(&[EntryStatus]) -> Vec<EntryId>,
    ) -> DroppedPrefixes {
        let selected = select(&Vec::from_iter(self.entries()));
        let mut result = DroppedPrefixes::default();
        for id in selected {
            let retained = self.kv.entries.get(id).is_none_or(Entry::is_retained);
            if retained || self.running.is_entry_awaited(id) {
                result.kept += 1;
            } else {
                self.kv.drop_entry(id);
                result.dropped += 1;
            }
        }
        result
    }

    /// From now on, records changes in blocks of this many tokens. False if requests reuse no parts of sequences: then
    /// blocks do not tell what a request finds, and nothing is recorded.
    pub fn follow_cache(&mut self, block: u32) -> bool {
        let follows = self.config.can_reuse_part() && block > 0;
        if follows {
            self.cache_report = Some(CacheReport::new(block, &mut self.kv.entries));
        }
        follows
    }

    /// How the cache changed since the last call. Additions come first.
    pub fn cache_changes(&mut self) -> Vec<CacheChange> {
        let Some(report) = &mut self.cache_report else {
            return Vec::new();
        };
        report.changes(&mut self.kv.entries, &self.running)
    }

    /// All that the cache holds now, as changes of an empty one.
    pub fn cache_contents(&mut self) -> Vec<CacheChange> {
        if let Some(report) = &mut self.cache_report {
            report.clear(&mut self.kv.entries);
        }
        self.cache_changes()
    }

    /// The sequence ids of entries. Unlike [`Scheduler::entries`] it does not visit swapped-out ones.
    pub fn entry_seq_ids(&self) -> impl Iterator<Item = SeqId> {
        self.kv.entries.resident().map(|(_, seq)| seq)
    }

    /// What the scheduler did since its start.
    pub fn counters(&self) -> SchedulerCounters {
        let cache = self.kv.counters;
        SchedulerCounters {
            dropped: cache.dropped,
            swapped_out: cache.swapped_out,
            offloaded: cache.offloaded,
            swapped_in: cache.swapped_in,
            lost: cache.lost,
            preempted: self.preempted,
            compacted: cache.compacted,
            adapter_switches: self.adapters.changes(),
            top_k_retries: self.top_k_retries,
        }
    }

    /// The progress of a request. One in the planned step counts as if the step had succeeded.
    pub fn progress(&self, id: RequestId) -> Option<RequestProgress> {
        let Some(running) = self.running.get(id) else {
            return self.queue.get(id).map(|request| request.progress.clone());
        };
        let planned = self.planned.iter().any(|row| row.request == id);
        Some(match planned {
            true => running.request.progress.clone(),
            false => running.progress(),
        })
    }

    /// Prompt and generated tokens of a running request.
    pub fn tokens(&self, id: RequestId) -> &[Token] {
        let running = self.running.get(id);
        running.map_or(&[], |running| running.tokens())
    }

    /// The requests that a running request shares prefixes with.
    pub fn scope(&self, id: RequestId) -> PrefixScope {
        let running = self.running.get(id);
        running.map_or(PrefixScope::default(), |running| running.request.scope)
    }

    /// Whether a request is in the queue.
    pub fn is_waiting(&self, id: RequestId) -> bool {
        self.queue.get(id).is_some()
    }

    /// Whether the queue has room for one more request of a tenant.
    pub fn has_room(&self, now: Time, tenant: Tenant) -> bool {
        self.queue.check_room(now, tenant).is_ok()
    }

    /// Number of requests in the queue.
    pub fn waiting_count(&self) -> usize {
        self.queue.len()
    }

    /// Number of running requests.
    pub fn running_count(&self) -> usize {
        self.running.len()
    }

    /// When the queue is expected to be half as long: the `Retry-After` of a refused request.
    pub fn retry_after(&self, now: Time) -> Duration {
        self.queue.retry_after(now)
    }

    /// Sequence ids in use.
    pub fn seq_ids_used(&self) -> usize {
        self.kv.ids_used()
    }

    /// The cells as the backend has them once [`Step::memory_ops`](crate::Step::memory_ops) are done.
    pub fn cells(&self) -> &KvCells {
        &self.kv.cells
    }

    /// Cells that running requests hold or were promised.
    pub fn cells_committed(&self) -> u32 {
        let pinned = self.kv.cells.pinned();
        pinned.saturating_add(self.running.promised())
    }

    /// Expected seconds of an adapter change; 0 before any was measured.
    pub fn adapter_switch_seconds(&self) -> f64 {
        self.adapters.change_seconds()
    }

    /// What was learned about the time of steps.
    pub fn cost_model(&self) -> &CostModel {
        &self.costs
    }

    /// Asserts invariants that would take too long to check in every step: for tests.
    pub fn check_consistency(&self) {
        self.kv.entries.check_consistency();
    }
}
