//! What goes on in a scheduler, for people and metrics.

use super::Scheduler;
use super::cells::Cells;
use super::cost::CostModel;
use super::running::Wait;
use super::words::{
    AdapterId, EntryId, PrefixScope, Priority, RequestId, RequestProgress, SeqId, Tenant,
};

/// What was done about memory so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SchedulerCounters {
    /// Entries of the prefix cache dropped: to make room in the cells or where prefixes are put aside, or since it cost
    /// more to keep them than to compute them.
    pub evicted: u64,
    /// Sequences put aside.
    pub swapped_out: u64,
    /// Prefixes that nobody claims, put aside.
    pub offloaded: u64,
    /// Sequences and prefixes brought back.
    pub swapped_in: u64,
    /// Sequences that were put aside and could not be brought back.
    pub lost: u64,
    /// Sequences that ran and gave way to others.
    pub preempted: u64,
    /// Sequences moved to lower cells.
    pub compacted: u64,
    /// Changes from one adapter to another.
    pub adapter_switches: u64,
    /// Rows of which the highest logits did not tell enough.
    pub top_k_retries: u64,
}

/// What a running request does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestState {
    /// Its prompt is being computed.
    Prefill,
    /// It generates.
    Decode,
    /// Another request computes the prefix it waits for.
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

/// A sequence that runs.
#[derive(Clone, Debug)]
pub struct RequestStatus {
    /// Which.
    pub id: RequestId,
    /// Whose.
    pub tenant: Tenant,
    /// How urgent.
    pub priority: Priority,
    /// With what it is computed.
    pub adapter: AdapterId,
    /// Its id.
    pub seq: SeqId,
    /// Tokens of its prompt.
    pub prompt: u32,
    /// Tokens generated.
    pub generated: u32,
    /// Tokens whose cells are filled.
    pub computed: u32,
    /// Prompt tokens found in the cache.
    pub cached: u32,
    /// What it does.
    pub state: RequestState,
}

/// Something that stayed of a sequence that ended.
#[derive(Clone, Debug)]
pub struct EntryStatus {
    /// Which.
    pub id: EntryId,
    /// Who shares it.
    pub scope: PrefixScope,
    /// Its id, unless it was put aside.
    pub seq: Option<SeqId>,
    /// Number of its tokens.
    pub tokens: u32,
    /// Whether somebody means to go on with it.
    pub retained: bool,
}

impl Scheduler {
    /// Those that run, in order of admission.
    pub fn requests(&self) -> impl Iterator<Item = RequestStatus> {
        self.running.iter().map(|running| RequestStatus {
            id: running.key(),
            tenant: running.request.tenant,
            priority: running.request.priority,
            adapter: running.adapter(),
            seq: running.seq,
            prompt: running.request.prompt(),
            generated: running.request.progress.generated,
            computed: running.computed,
            cached: running.request.progress.cached,
            state: match running.wait {
                Wait::Follows { .. } => RequestState::WaitsForPrefix,
                Wait::Fetches { .. } => RequestState::SwapsIn,
                Wait::Chosen => RequestState::Samples,
                Wait::None if running.generates() => RequestState::Decode,
                Wait::None => RequestState::Prefill,
            },
        })
    }

    /// What stayed of those that ended.
    pub fn entries(&self) -> impl Iterator<Item = EntryStatus> {
        self.cache.entries().map(|(id, entry)| EntryStatus {
            id,
            scope: entry.scope,
            seq: entry.seq(),
            tokens: entry.length(),
            retained: entry.is_claimed(),
        })
    }

    /// The ids that what stayed has. Unlike [`Scheduler::entries`] it does not go through all that was put
    /// aside.
    pub fn entry_seq_ids(&self) -> impl Iterator<Item = SeqId> {
        self.cache.in_cells().map(|(_, seq)| seq)
    }

    /// Checks the order in which entries give way.
    pub fn check_consistency(&self) {
        self.cache.check();
    }

    /// What was done about memory so far.
    pub fn counters(&self) -> SchedulerCounters {
        SchedulerCounters {
            adapter_switches: self.rotation.changes(),
            ..self.counters
        }
    }

    /// What a sequence had of the backend until now; of one that is in the step that was planned, with
    /// what that computes.
    pub fn progress(&self, key: RequestId) -> Option<RequestProgress> {
        let running = self.running.iter().find(|running| running.key() == key);
        let Some(running) = running else {
            return self.queue.get(key).map(|request| request.progress.clone());
        };
        let planned = self.planned.iter().any(|row| row.request == key);
        Some(match planned {
            true => running.request.progress.clone(),
            false => running.progress(),
        })
    }

    /// Tokens of a sequence that runs, as far as they are known.
    pub fn tokens(&self, key: RequestId) -> &[crate::Token] {
        let running = self.running.iter().find(|running| running.key() == key);
        running.map_or(&[], |running| running.tokens())
    }

    /// Whether a request is in the queue.
    pub fn is_waiting(&self, key: RequestId) -> bool {
        self.queue.get(key).is_some()
    }

    /// Sequences in the queue.
    pub fn waiting_count(&self) -> usize {
        self.queue.len()
    }

    /// Sequences that hold an id.
    pub fn running_count(&self) -> usize {
        self.running.len()
    }

    /// Ids that are lent.
    pub fn seq_ids_used(&self) -> usize {
        usize::from(self.limits.seq_ids) - self.free.len()
    }

    /// The cells as the backend has them once [`Step::memory`](super::Step::memory) is done.
    pub fn cells(&self) -> &Cells {
        &self.cells
    }

    /// Cells that hold something, or were promised to those that run.
    pub fn cells_reserved(&self) -> u32 {
        let promised: u32 = self.running.iter().map(|r| r.promised()).sum();
        self.cells.pinned().saturating_add(promised)
    }

    /// Seconds that a change of adapters is expected to take; 0 before any was measured.
    pub fn adapter_switch_seconds(&self) -> f64 {
        self.rotation.change_seconds()
    }

    /// What was learnt about the machine.
    pub fn cost_model(&self) -> &CostModel {
        &self.cost
    }
}
