//! What the scheduler is asked and what it answers.

use super::Time;
use super::cost::StepShape;
use super::prefill::PrefillPolicy;
use crate::Token;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// A request for as long as it lives; never reused, and higher than all before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RequestId(pub u64);

/// A sequence id of the backend, from 0; lent to one holder at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SeqId(pub u16);

/// Something that stays of a sequence that ended; never reused, and higher than all before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct EntryId(pub u64);

/// Among whom service is shared fairly.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Tenant(pub u32);

/// Among whom prefixes are shared. How quickly a prompt is read tells whether somebody in the same
/// scope asked something that begins alike; so a scope is one tenant, unless several agreed to
/// share; with one [adapter](PrefixScope::with) each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PrefixScope(pub u64);

/// What a sequence is computed with: the model alone, or one of the adapters that were loaded with
/// it, counted from 1. A step computes with one of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct AdapterId(pub u8);

impl AdapterId {
    /// The model alone.
    pub const NONE: Self = Self(0);
    /// Most adapters of a model.
    pub const MOST: u8 = 16;
}

/// Where the adapter stands in a scope: above whatever tells those who share from others.
const ADAPTER_SHIFT: u32 = 48;

impl PrefixScope {
    /// The same people, with this adapter. What one adapter computed is of no use to another, nor
    /// to the model alone; so they share nothing.
    #[must_use]
    pub fn with(self, adapter: AdapterId) -> Self {
        Self(self.group() | u64::from(adapter.0) << ADAPTER_SHIFT)
    }

    /// What they compute with.
    pub fn adapter(self) -> AdapterId {
        AdapterId((self.0 >> ADAPTER_SHIFT) as u8)
    }

    /// Who they are, whatever they compute with.
    pub fn group(self) -> u64 {
        self.0 & ((1 << ADAPTER_SHIFT) - 1)
    }
}

/// Higher goes first, always: whoever waits with a lower one waits until no higher one does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Priority(pub u8);

/// Held by whoever means to go on with a sequence after it ended. All clones are one claim.
#[derive(Clone, Debug, Default)]
pub struct Retention(Arc<()>);

impl Retention {
    /// What is told to the scheduler: it sees when the last clone is gone.
    pub fn downgrade(&self) -> WeakRetention {
        WeakRetention(Arc::downgrade(&self.0))
    }
}

/// Tells whether a [`Retention`] is still held. The default is one that never was.
#[derive(Clone, Debug, Default)]
pub struct WeakRetention(Weak<()>);

impl WeakRetention {
    /// Whether anybody holds the claim.
    pub fn is_held(&self) -> bool {
        self.0.strong_count() > 0
    }

    /// Whether both watch one claim.
    pub(super) fn is(&self, other: &Self) -> bool {
        self.0.ptr_eq(&other.0)
    }

    /// Whether it watches this claim.
    pub(super) fn is_of(&self, claim: &Retention) -> bool {
        self.0.as_ptr() == Arc::as_ptr(&claim.0)
    }

    /// Whether anybody holds the claim, not counting `own`.
    pub(super) fn is_held_beside(&self, own: Option<&Retention>) -> bool {
        let counted = own.is_some_and(|own| self.is_of(own));
        self.0.strong_count() > usize::from(counted)
    }
}

/// How much of the logits after its tokens a request needs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum LogitsKind {
    /// The highest are enough, as a rule.
    TopK,
    /// All of them.
    #[default]
    All,
}

/// Whether prompts are read while nothing else can be computed: while rows are sampled, and while callers
/// that sample themselves are waited for. See [`plan_ahead`](super::Scheduler::plan_ahead).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Overlap {
    /// Where it is expected to save time.
    #[default]
    Auto,
    /// Never.
    Off,
    /// Wherever it can be done, whether it saves time or not: for tests.
    On,
}

impl Overlap {
    /// What becomes of it for a model of which the processor computes a part: that can't compute at the time at
    /// which it samples.
    pub fn of(self, with_processor: bool) -> Self {
        match self {
            Self::Auto if with_processor => Self::Off,
            asked => asked,
        }
    }
}

/// The sizes that bound every step, and how prompts are read.
#[derive(Clone, Copy, Debug)]
pub struct SchedulerConfig {
    /// Sequence ids that the backend has.
    pub seq_ids: u16,
    /// For so many of them, the first ones, the backend gives the highest logits only, and after one
    /// position of a step. As many sequences run at once as there are others.
    pub top_k_seq_ids: u16,
    /// KV cells that all sequences share.
    pub cells: u32,
    /// Most tokens in a step; at least one for each sequence that runs.
    pub max_step_tokens: u32,
    /// Most sequences that wait.
    pub max_queue: usize,
    /// Most sequences of one tenant that wait.
    pub max_tenant_queue: usize,
    /// How prompts are read while others generate.
    pub prefill: PrefillPolicy,
    /// Whether requests reuse what earlier ones computed of the same prefix.
    pub prefix_cache: bool,
    /// Whether the model's memory can drop the last positions of a sequence. Recurrent state and sliding windows
    /// can't: there a prefix is reused as a whole only, and a sequence of a failed step starts again from its first
    /// token.
    pub can_truncate: bool,
    /// Whether the state of sequences can be put aside and brought back.
    pub swap: bool,
    /// Whether that of prefixes can that nobody claims.
    pub offload_prefixes: bool,
    /// Most drafts in a row; 0 where a sequence can't be truncated, since it could not be rid of
    /// those that turn out wrong.
    pub max_drafts: u32,
    /// Whether prompts are read ahead. Anything but [`Overlap::Off`] is for a backend that computes by
    /// itself while the caller does something else.
    pub overlap: Overlap,
}

impl SchedulerConfig {
    /// Most sequences that run at once.
    pub fn running(&self) -> u16 {
        self.seq_ids.saturating_sub(self.top_k_seq_ids)
    }

    /// Whether a part of what is in the cells of a sequence can be reused.
    pub(super) fn reuses_parts(&self) -> bool {
        self.prefix_cache && self.can_truncate
    }

    /// What the backend gives for an id.
    pub fn logits_of(&self, seq: SeqId) -> LogitsKind {
        match seq.0 < self.top_k_seq_ids {
            true => LogitsKind::TopK,
            false => LogitsKind::All,
        }
    }
}

/// What is asked for.
#[derive(Clone, Debug)]
pub struct Request {
    /// Its name from here on.
    pub id: RequestId,
    /// Whose it is.
    pub tenant: Tenant,
    /// With whom it shares prefixes, and with which adapter it is computed.
    pub scope: PrefixScope,
    /// How urgent it is.
    pub priority: Priority,
    /// Its prompt, at least one token; and after a preemption what it had generated until then.
    pub tokens: Vec<Token>,
    /// Most tokens that it generates; 0 for one that only wants to know what may come next.
    pub max_tokens: u32,
    /// When it came.
    pub arrived_at: Time,
    /// It is not worth starting later than this.
    pub queue_until: Option<Time>,
    /// It is worth nothing after this.
    pub deadline: Option<Time>,
    /// How many cells it may have together with others.
    pub quota: Option<CellQuota>,
    /// Whether somebody means to go on with the sequence after this.
    pub retention: WeakRetention,
    /// Keeps what it goes on with from being given up, until it has begun.
    pub continues: Option<Retention>,
    /// What it needs to see of logits.
    pub logits: LogitsKind,
    /// What it had before it was preempted. The default for a new one.
    pub progress: RequestProgress,
}

/// What a request had of the backend, over all times that it was taken up.
#[derive(Clone, Debug, Default)]
pub struct RequestProgress {
    /// Tokens it generated.
    pub generated: u32,
    /// Prompt tokens that it did not have to compute, since they were in the cache.
    pub cached: u32,
    /// Tokens that were computed before and had to be computed again.
    pub recomputed: u32,
    /// The furthest position it was ever computed to.
    pub reached: u32,
    /// Times it was preempted.
    pub preempted: u32,
    /// Its caller took too long to come back with it, so nobody waits for it the next time.
    pub late: bool,
}

impl Request {
    /// Tokens that it came with.
    pub fn prompt(&self) -> u32 {
        length(&self.tokens) - self.progress.generated
    }

    /// Whether it ends with the distribution after its last token, and generates nothing.
    pub fn looks(&self) -> bool {
        self.max_tokens == 0
    }

    /// The most cells that it can ever need. The last generated token is never computed, so it
    /// needs none.
    pub fn cells_needed(&self) -> u32 {
        self.prompt()
            .saturating_add(self.max_tokens.saturating_sub(1))
    }

    /// When something happens to it if nothing else does.
    pub(super) fn timers(&self) -> impl Iterator<Item = (Time, RequestId)> {
        let times = [self.queue_until, self.deadline].into_iter().flatten();
        times.map(|time| (time, self.id))
    }
}

/// A number of tokens. More than `u32::MAX` were refused long before.
pub(super) fn length(tokens: &[Token]) -> u32 {
    u32::try_from(tokens.len()).unwrap_or(u32::MAX)
}

/// A bound on the cells that a group of sequences may have together while they run. A prefix that several
/// of them share counts for each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CellQuota {
    /// Which group: whoever has the same number.
    pub group: u32,
    /// How many, as far as this member is concerned.
    pub cells: u32,
}

/// A sequence's part of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    /// Whose it is.
    pub request: RequestId,
    /// Where its cells are.
    pub seq: SeqId,
    /// First position that is computed.
    pub from: u32,
    /// One past the last position that is computed.
    pub to: u32,
    /// Whether a token is sampled: after the last token that is certain, and after each draft.
    pub output: bool,
    /// How many of the last positions hold drafts: tokens that are guessed (see
    /// [`Scheduler::draft`](super::Scheduler::draft)). Only in rows with output.
    pub drafts: u32,
}

impl Row {
    /// Number of positions.
    pub fn tokens(&self) -> u32 {
        self.to - self.from
    }

    /// One past the last position whose token is certain.
    pub fn certain(&self) -> u32 {
        self.to - self.drafts
    }

    /// Whether logits are wanted after a position.
    pub fn is_output(&self, position: u32) -> bool {
        self.output && position + 1 >= self.certain()
    }
}

/// Something to be done to the backend's cells, each in its turn and before the rows are computed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MemoryOp {
    /// Free all cells of an id.
    Clear(SeqId),
    /// Let `to`, which holds nothing, hold the first positions of `from` too.
    Share {
        /// Who has them.
        from: SeqId,
        /// Who gets them.
        to: SeqId,
        /// How many.
        length: u32,
    },
    /// Free the positions of an id from `length` on.
    Truncate {
        /// Whose.
        seq: SeqId,
        /// How many stay.
        length: u32,
    },
    /// Put a copy of an id's state aside: with the prefixes if it
    /// [is one](super::Scheduler::is_prefix). If that can't be done, say so by
    /// [`Scheduler::lost`](super::Scheduler::lost).
    SwapOut {
        /// Under which name.
        entry: EntryId,
        /// Whose.
        seq: SeqId,
    },
    /// Get what was put aside ready, and when it is, bring it back between two steps: see
    /// [`Scheduler::restore`](super::Scheduler::restore).
    SwapIn {
        /// Under which name.
        entry: EntryId,
        /// Who waits for it.
        request: RequestId,
    },
    /// What was put aside is of no use any more.
    Discard(EntryId),
    /// Take the state of an id out and put it back, so that it comes to lie lower. Nothing else is
    /// computed in this step. If that can't be done, clear the id and say so by
    /// [`Scheduler::spoiled`](super::Scheduler::spoiled).
    Compact(SeqId),
}

/// Which of its times ran out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expired {
    /// It waited as long as it wanted to.
    Queue {
        /// A guess of when it would have been served.
        retry_after: Duration,
    },
    /// Its deadline passed.
    Deadline,
}

/// What to do next, in this order: tell those that expired, see to the memory, then decode the rows
/// together.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Step {
    /// Sequences that are over since their time is.
    pub expired: Vec<(RequestId, Expired)>,
    /// What is done to the cells first.
    pub memory_ops: Vec<MemoryOp>,
    /// Sequences that left the queue with this step.
    pub admitted: Vec<RequestId>,
    /// What is computed.
    pub rows: Vec<Row>,
    /// With what all of them are computed.
    pub adapter: AdapterId,
    /// Generating rows, and drafts behind them; prompt tokens, and others that
    /// are certain beside the first of a generating row; and the cells that attention will run over.
    pub shape: StepShape,
    /// Prompt tokens that the budget allowed: with those that fill the tile of the generating rows, and those that
    /// ran ahead.
    pub prefill_budget: u32,
    /// Prompt tokens that ran ahead of this step and count against its budget.
    pub overlapped: u32,
    /// It has nothing but parts of prompts, without output, and runs while nothing else can be computed.
    pub is_overlap: bool,
    /// Generating sequences of the step's adapter that are not in it: only after a failure.
    pub skipped: u32,
    /// Generating sequences of other adapters, whose turn it is not.
    pub other_adapters: u32,
}

/// How a step went.
#[derive(Clone, Copy, Debug)]
pub enum StepResult<'a> {
    /// Its rows were computed.
    Decoded {
        /// What each row with output brought, in the order of the rows: at least one token, or several
        /// one after the other: drafts that were right, the one that was sampled after them, and those
        /// that are certain to follow it.
        sampled: &'a [(RequestId, Token)],
        /// Sequences that want no further token. One that [looks](Request::looks) gets none, and ends with
        /// its first row with output.
        finished: &'a [RequestId],
        /// LogitsKind with output whose next token is chosen elsewhere: each waits until it is
        /// [told](super::Scheduler::chosen).
        sampled_externally: &'a [RequestId],
        /// LogitsKind with output of which the highest logits did not tell enough: their last token is computed
        /// again, where all logits are seen.
        needs_all_logits: &'a [RequestId],
        /// How long it took.
        took: Duration,
    },
    /// Nothing was computed, or nothing that counts.
    Failed {
        /// When that was known.
        now: Time,
    },
}

/// Why a request was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EnqueueError {
    /// It can never fit: it may need more cells than there are, or than its share.
    TooLarge {
        /// Cells that it may need.
        needed: u32,
        /// Cells that it may have.
        limit: u32,
    },
    /// The queue is full.
    QueueFull {
        /// A guess of when half of it will be gone.
        retry_after: Duration,
    },
    /// The tenant's part of the queue is full.
    TenantQueueFull {
        /// A guess of when half of the queue will be gone.
        retry_after: Duration,
    },
    /// Its deadline has passed already.
    DeadlinePassed,
}
