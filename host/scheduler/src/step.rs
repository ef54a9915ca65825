//! What the scheduler tells the backend to do, and how the backend answers.

use crate::request::{AdapterId, RequestId};
use crate::{Time, Token};
use std::time::Duration;

/// A sequence id of the backend, from 0. One request or entry has it at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SeqId(pub u16);

/// A prefix cache entry's id: never reused, and higher than all before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct EntryId(pub u64);

/// A request's part of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    /// The request.
    pub request: RequestId,
    /// Its sequence id.
    pub seq: SeqId,
    /// First position to compute.
    pub from: u32,
    /// One past the last position to compute.
    pub to: u32,
    /// Whether tokens are sampled: after the last known token, and after each draft.
    pub output: bool,
    /// How many of the last positions hold drafts (see [`Scheduler::drafts_of`](crate::Scheduler::drafts_of)).
    /// Only rows with output have some.
    pub drafts: u32,
}

impl Row {
    /// Number of positions.
    pub fn tokens(&self) -> u32 {
        self.to - self.from
    }

    /// One past the last position whose token is known.
    pub fn known_end(&self) -> u32 {
        self.to - self.drafts
    }

    /// Whether the step needs logits after a position.
    pub fn is_output(&self, position: u32) -> bool {
        self.output && position + 1 >= self.known_end()
    }
}

/// The cells that the rows of a step take.
pub(crate) fn cells_of(rows: &[Row]) -> impl Iterator<Item = (SeqId, u32)> + Clone {
    rows.iter().map(|row| (row.seq, row.tokens()))
}

/// The parts of a step that decide how long it takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StepShape {
    /// Rows that decode.
    pub decode_rows: u32,
    /// Draft tokens in them.
    pub drafts: u32,
    /// Other tokens: of prompts, and the known tokens of decode rows beside the first.
    pub prefill: u32,
    /// Cells that attention runs over.
    pub n_kv: u32,
}

/// A change of the backend's cells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MemoryOp {
    /// Free all cells of an id.
    Clear(SeqId),
    /// Let `to`, which holds nothing, hold the first `length` positions of `from` too.
    Share {
        /// The holder.
        from: SeqId,
        /// The new holder.
        to: SeqId,
        /// Number of positions.
        length: u32,
    },
    /// Free the positions of an id from `length` on.
    Truncate {
        /// The id.
        seq: SeqId,
        /// Positions that stay.
        length: u32,
    },
    /// Copy an id's state out of the cells: into the store of prefixes if
    /// [`is_offloaded_prefix`](crate::Scheduler::is_offloaded_prefix), else into that of sequences. If that fails,
    /// call [`entry_lost`](crate::Scheduler::entry_lost).
    SwapOut {
        /// The entry that the state belongs to.
        entry: EntryId,
        /// The id.
        seq: SeqId,
    },
    /// Read an entry's state. Once it is at hand, load it between two steps: see
    /// [`begin_swap_in`](crate::Scheduler::begin_swap_in).
    SwapIn {
        /// The entry.
        entry: EntryId,
        /// The request that waits for it.
        request: RequestId,
    },
    /// Drop the state of an entry that was swapped out.
    Discard(EntryId),
    /// Save an id's state, clear the id, and load the state again, which moves it to the lowest free
    /// cells. The step has no rows. If that fails, clear the id and call
    /// [`compaction_failed`](crate::Scheduler::compaction_failed).
    Compact(SeqId),
}

/// Which time limit of a request passed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expired {
    /// It waited in the queue for too long.
    Queue {
        /// When the queue is expected to be half as long.
        retry_after: Duration,
    },
    /// Its deadline passed.
    Deadline,
}

/// What to do next, in this order: end the expired requests, change the memory, decode the rows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Step {
    /// Requests that expired.
    pub expired: Vec<(RequestId, Expired)>,
    /// Changes of the cells, in order.
    pub memory_ops: Vec<MemoryOp>,
    /// Requests that left the queue.
    pub admitted: Vec<RequestId>,
    /// What to compute. Empty if there is nothing to compute.
    pub rows: Vec<Row>,
    /// The adapter of all rows.
    pub adapter: AdapterId,
    /// The step's size.
    pub shape: StepShape,
    /// Prompt tokens that the prefill budget allowed, including [`overlapped`](Step::overlapped) ones.
    pub prefill_budget: u32,
    /// Prompt tokens that were computed in overlap with the step before. They count against the budget.
    pub overlapped: u32,
    /// Whether the step has only parts of prompts, without output, and runs while nothing else can.
    pub is_overlap: bool,
    /// Decoding requests of this adapter without a row: only after a failure.
    pub skipped: u32,
    /// Decoding requests of other adapters.
    pub other_adapters: u32,
    /// Decoding requests of this adapter that a short step leaves out, since their tenants make steps long.
    pub other_tenants: u32,
}

/// How a step went.
#[derive(Clone, Copy, Debug)]
pub enum StepResult<'a> {
    /// Its rows were computed.
    Decoded {
        /// The tokens that each row with output gained, those of a row in order: accepted drafts, the
        /// token sampled after them, and forced tokens that follow it.
        gained: &'a [(RequestId, Token)],
        /// Requests that need no further token. A [next-token request](crate::Request::is_next_token)
        /// gains none, and finishes with its first row with output.
        finished: &'a [RequestId],
        /// Rows with output whose next token an external sampler picks. They wait until
        /// [`external_sample_arrived`](crate::Scheduler::external_sample_arrived) is called.
        awaits_sampler: &'a [RequestId],
        /// Rows with output whose highest logits did not suffice. Their last token is computed again
        /// with all logits.
        needs_all_logits: &'a [RequestId],
        /// How long the step took.
        took: Duration,
    },
    /// Nothing was computed, or nothing that counts.
    Failed {
        /// When the failure was known.
        now: Time,
    },
}

/// Why the queue refused a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EnqueueError {
    /// It may need more cells than there are, or than its quota has.
    TooLarge {
        /// Cells that it may need.
        needed: u32,
        /// Cells that it may have.
        limit: u32,
    },
    /// The queue is full.
    QueueFull {
        /// When the queue is expected to be half as long.
        retry_after: Duration,
    },
    /// The tenant's part of the queue is full.
    TenantQueueFull {
        /// When the queue is expected to be half as long.
        retry_after: Duration,
    },
    /// Its deadline has passed already.
    DeadlinePassed,
}
