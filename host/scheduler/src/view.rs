//! What goes on in a scheduler, for people and metrics.

use super::Scheduler;
use super::cells::Cells;
use super::cost::CostModel;
use super::running::Wait;
use super::words::{AdapterId, EntryId, Key, Priority, Progress, Scope, SeqId, Tenant};

/// What was done about memory so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Entries of the prefix cache dropped: to make room in the cells or where prefixes are put aside, or since it cost
    /// more to keep them than to compute them.
    pub evicted: u64,
    /// Sequences put aside.
    pub spilled: u64,
    /// Prefixes that nobody claims, put aside.
    pub prefixes: u64,
    /// Sequences and prefixes brought back.
    pub restored: u64,
    /// Sequences that were put aside and could not be brought back.
    pub lost: u64,
    /// Sequences that ran and gave way to others.
    pub preempted: u64,
    /// Sequences moved to lower cells.
    pub relocated: u64,
    /// Changes from one adapter to another.
    pub adapter_changes: u64,
    /// Rows of which the highest logits did not tell enough.
    pub unsettled: u64,
}

/// A sequence that runs.
#[derive(Clone, Debug)]
pub struct SequenceView {
    /// Which.
    pub key: Key,
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
    /// What it does: `reads`, `generates`, `follows` or `fetches`; or `asks`, while its next token is chosen.
    pub state: &'static str,
}

/// Something that stayed of a sequence that ended.
#[derive(Clone, Debug)]
pub struct EntryView {
    /// Which.
    pub entry: EntryId,
    /// Who shares it.
    pub scope: Scope,
    /// Its id, unless it was put aside.
    pub seq: Option<SeqId>,
    /// Number of its tokens.
    pub tokens: u32,
    /// Whether somebody means to go on with it.
    pub claimed: bool,
}

impl Scheduler {
    /// Those that run, in order of admission.
    pub fn sequences(&self) -> impl Iterator<Item = SequenceView> {
        self.running.iter().map(|running| SequenceView {
            key: running.key(),
            tenant: running.request.tenant,
            priority: running.request.priority,
            adapter: running.adapter(),
            seq: running.seq,
            prompt: running.request.prompt(),
            generated: running.request.progress.generated,
            computed: running.computed,
            cached: running.request.progress.cached,
            state: match running.wait {
                Wait::Follows { .. } => "follows",
                Wait::Fetches { .. } => "fetches",
                Wait::Chosen => "asks",
                Wait::None if running.generates() => "generates",
                Wait::None => "reads",
            },
        })
    }

    /// What stayed of those that ended.
    pub fn entries(&self) -> impl Iterator<Item = EntryView> {
        self.cache.entries().map(|(id, entry)| EntryView {
            entry: id,
            scope: entry.scope,
            seq: entry.seq(),
            tokens: entry.length(),
            claimed: entry.is_claimed(),
        })
    }

    /// The ids that what stayed has. Unlike [`Scheduler::entries`] it does not go through all that was put
    /// aside.
    pub fn ids_kept(&self) -> impl Iterator<Item = SeqId> {
        self.cache.in_cells().map(|(_, seq)| seq)
    }

    /// Checks the order in which entries give way.
    pub fn check_cache(&self) {
        self.cache.check();
    }

    /// What was done about memory so far.
    pub fn tally(&self) -> Tally {
        Tally {
            adapter_changes: self.rotation.changes(),
            ..self.tally
        }
    }

    /// What a sequence had of the backend until now; of one that is in the step that was planned, with
    /// what that computes.
    pub fn progress(&self, key: Key) -> Option<Progress> {
        let running = self.running.iter().find(|running| running.key() == key);
        let Some(running) = running else {
            return self.queue.get(key).map(|request| request.progress.clone());
        };
        let planned = self.planned.iter().any(|row| row.key == key);
        Some(match planned {
            true => running.request.progress.clone(),
            false => running.progress(),
        })
    }

    /// Tokens of a sequence that runs, as far as they are known.
    pub fn tokens(&self, key: Key) -> &[crate::Token] {
        let running = self.running.iter().find(|running| running.key() == key);
        running.map_or(&[], |running| running.tokens())
    }

    /// Whether a request is in the queue.
    pub fn is_waiting(&self, key: Key) -> bool {
        self.queue.get(key).is_some()
    }

    /// Sequences in the queue.
    pub fn waiting(&self) -> usize {
        self.queue.len()
    }

    /// Sequences that hold an id.
    pub fn running(&self) -> usize {
        self.running.len()
    }

    /// Ids that are lent.
    pub fn ids_used(&self) -> usize {
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
    pub fn change_seconds(&self) -> f64 {
        self.rotation.change_seconds()
    }

    /// What was learnt about the machine.
    pub fn cost(&self) -> &CostModel {
        &self.cost
    }
}
