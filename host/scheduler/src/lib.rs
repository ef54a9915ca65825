//! Which tokens the next step computes: a pure state machine without clock, thread or llama type.
//!
//! A *sequence* is a caller's request; a *seq id* and *cells* are resources of the backend. A request
//! waits in a bounded [`queue`] until it is its turn and there is an id and [`room`] for it. Whoever's
//! turn it is, is not overtaken while it waits for room. What it begins with may be in the cells
//! already, since another one ended or runs that began alike ([`cache`]): then those cells are shared
//! and not computed again. What is to be done to the cells ([`Step::memory`]) is done in order, before
//! the rows of the step are computed.
//!
//! Each step sends what is new and nothing else: one token of every sequence that is generating, and
//! as much of the waiting prompts as the [`prefill`] budget allows. How long steps take is learnt by
//! a [`cost`] model; which [`cells`] they fill is mirrored. Where there is time to spare, a row may go
//! on with tokens that are guessed ([`speculation`]).
//!
//! Where prompts wait and nothing else can be computed, a part of them is read [`ahead`] of the next step, and
//! counts against its budget.
//!
//! Time comes in as an argument, counted from any start; so a simulator can drive all this with
//! a clock of its own.
//!
//! Invariants, tested with random workloads on the simulator: every id is either free or held by
//! exactly one sequence or entry, and who needs all logits runs on one that gives them ([`ids`]); a
//! sequence's tokens are computed in order, each once but after a
//! preemption; no generating row is left out of a step but after a failure, or since it is the turn of
//! another adapter ([`rotation`]); of drafts that were wrong nothing stays; every request ends exactly
//! once, and none fails for another's sake.

#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod admission;
mod ahead;
pub mod cache;
mod ceiling;
pub mod cells;
mod choices;
mod cohort;
pub mod cost;
pub mod experience;
mod gathering;
mod ids;
mod pace;
mod placement;
mod prefill;
pub mod queue;
mod recovery;
mod rent;
mod room;
mod rotation;
mod rows;
mod running;
pub mod speculation;
pub mod tree;
mod view;
mod words;

use admission::Usual;
use ahead::Ahead;
use cache::Cache;
use cells::Cells;
pub use cells::Layout;
use cohort::Cohort;
use cost::{CostModel, StepShape};
use experience::Experience;
use pace::Pace;
pub use prefill::PrefillPolicy;
use queue::Queue;
use recovery::Recovery;
use rotation::Rotation;
use rows::placements;
use running::Running;
use speculation::Speculation;
pub use speculation::accepted as accepted_drafts;
use std::collections::BTreeSet;
use std::time::Duration;
pub use view::{EntryStatus, RequestState, RequestStatus, SchedulerCounters};
pub use words::{
    AdapterId, CellQuota, EnqueueError, EntryId, Expired, LogitsKind, MemoryOp, Overlap,
    PrefixScope, Priority, Request, RequestId, RequestProgress, Retention, Row, SchedulerConfig,
    SeqId, Step, StepResult, Tenant, WeakRetention,
};

/// Index into a model's vocabulary.
pub type Token = u32;

/// A moment: the time since some start that never changes.
pub type Time = Duration;

/// What moving the state of a token is taken to cost before it was measured, in seconds.
const STATE_SECONDS: f64 = 30e-6;

/// The state machine.
#[derive(Clone, Debug)]
pub struct Scheduler {
    limits: SchedulerConfig,
    queue: Queue,
    /// In order of admission, but for rotations after a failed step.
    running: Vec<Running>,
    cache: Cache,
    /// Kept sorted, highest first, so that the lowest id is lent next.
    free: Vec<SeqId>,
    /// What has still to be done to the backend's cells; in the books it is done.
    memory: Vec<MemoryOp>,
    cells: Cells,
    cost: CostModel,
    pace: Pace,
    usual: Usual,
    /// Seconds to move the state of a token out of the cells or into them.
    state_seconds: f64,
    /// Tokens of the longest prefix that can be put aside, as far as is known.
    longest_prefix: u32,
    /// When something expires. Entries of those that ended before are passed over.
    timers: BTreeSet<(Time, RequestId)>,
    /// Whose turn it was when there was no room.
    turn: Option<RequestId>,
    experience: Experience,
    recovery: Recovery,
    rotation: Rotation,
    speculation: Speculation,
    cohort: Cohort,
    /// Until when those that came first wait for others.
    gathers: Option<Time>,
    /// Until when the step that was planned last waits, for those that sample themselves or that are on their way.
    awaited: Option<Time>,
    /// Sequences that were admitted.
    admissions: u64,
    swept: Time,
    /// Where the round of the sweep that is under way goes on.
    sweeping: Option<EntryId>,
    /// Steps that had gone well when it was last looked who is placed high.
    looked: u64,
    counters: SchedulerCounters,
    planned: Vec<Row>,
    shape: StepShape,
    ahead: Ahead,
}

impl Scheduler {
    /// A scheduler with nothing to do.
    pub fn new(mut limits: SchedulerConfig) -> Self {
        limits.top_k_seq_ids = limits.top_k_seq_ids.min(limits.seq_ids.saturating_sub(1));
        limits.max_step_tokens = limits.max_step_tokens.max(u32::from(limits.running()));
        Self {
            limits,
            queue: Queue::default(),
            running: Vec::new(),
            cache: Cache::default(),
            free: (0..limits.seq_ids).rev().map(SeqId).collect(),
            memory: Vec::new(),
            cells: Cells::new(limits.cells),
            cost: CostModel::default(),
            pace: Pace::default(),
            usual: Usual::default(),
            state_seconds: STATE_SECONDS,
            longest_prefix: u32::MAX,
            timers: BTreeSet::new(),
            turn: None,
            experience: Experience::default(),
            recovery: Recovery::new(limits.max_step_tokens),
            rotation: Rotation::default(),
            speculation: Speculation::default(),
            cohort: Cohort::default(),
            gathers: None,
            awaited: None,
            admissions: 0,
            swept: Time::ZERO,
            sweeping: None,
            looked: 0,
            counters: SchedulerCounters::default(),
            planned: Vec::new(),
            shape: StepShape::default(),
            ahead: Ahead::default(),
        }
    }

    /// Takes a request into the queue, or says why not.
    pub fn enqueue(&mut self, now: Time, mut request: Request) -> Result<(), EnqueueError> {
        if let Some(goes_on) = &request.continues {
            request.progress.late = !self.cohort.back(goes_on, request.arrived_at);
        }
        let needed = request.cells_needed();
        let share = request.quota.map_or(u32::MAX, |share| share.cells);
        let limit = share.min(self.limits.cells);
        if needed > limit {
            return Err(EnqueueError::TooLarge { needed, limit });
        }
        if request.deadline.is_some_and(|deadline| deadline <= now) {
            return Err(EnqueueError::DeadlinePassed);
        }
        let retry_after = self.retry_after(now);
        if self.queue.len() >= self.limits.max_queue {
            return Err(EnqueueError::QueueFull { retry_after });
        }
        if self.queue.len_of(request.tenant) >= self.limits.max_tenant_queue {
            return Err(EnqueueError::TenantQueueFull { retry_after });
        }
        self.timers.extend(request.timers());
        self.queue.push(request);
        Ok(())
    }

    /// Takes a sequence out, wherever it is; its cells are freed before the next step, unless others
    /// wait for what it reads, somebody means to go on with it, or a prefix was brought back for it, of which
    /// there may be no other copy.
    pub fn cancel(&mut self, key: RequestId) {
        debug_assert!(self.is_between(), "cancel between plan and applied");
        match self.queue.remove(key) {
            Some(request) => self.forget_timers(&request),
            None => {
                if let Some(running) = self.end(key) {
                    let wanted = running.request.retention.is_held() || running.fetched;
                    if wanted || self.is_followed(key) {
                        self.keep(running);
                    } else {
                        self.discard(running);
                    }
                }
            }
        }
    }

    /// Takes out a sequence that runs and went wrong: nobody gets anything of it.
    pub fn fail_request(&mut self, key: RequestId) {
        if let Some(running) = self.end(key) {
            self.discard(running);
        }
    }

    /// The next step. It has no rows if there is nothing to compute. Every step with rows must be
    /// answered by [`Scheduler::applied`].
    pub fn plan(&mut self, now: Time) -> Step {
        debug_assert!(self.is_between(), "plan before applied");
        self.sweep_now_and_then(now);
        self.cohort.begin(now);
        let due = self.due(now);
        let mut expired = self.expire_deadlines(now, &due);
        self.keep_shares();
        let gathers = self.gather(now, &due);
        let admitted = match gathers {
            Some(_) => Vec::new(),
            None => self.admit(now),
        };
        // Only now: whoever's place is free does not go away for want of one.
        expired.extend(self.expire_waiting(now, &due));
        let paused = self
            .recovery
            .paused_until()
            .is_some_and(|until| now < until);
        let mut step = if self.await_cohort(now) {
            self.meanwhile(now).unwrap_or_default()
        } else if gathers.is_some() {
            self.awaited = gathers;
            Step::default()
        } else if paused || self.relocate() {
            Step::default()
        } else {
            self.rows()
        };
        self.collect_rent(step.shape);
        let placed = self.cells.place(placements(&step.rows));
        debug_assert!(placed, "there was room made for the rows");
        step.shape.n_kv = self.cells.n_kv();
        self.planned.clone_from(&step.rows);
        self.shape = step.shape;
        self.ahead.precedes(&step);
        Step {
            expired,
            memory_ops: self.take_memory_ops(),
            admitted,
            ..step
        }
    }

    /// What has to be done to the cells before anything else is.
    pub fn take_memory_ops(&mut self) -> Vec<MemoryOp> {
        std::mem::take(&mut self.memory)
    }

    /// Takes note of how the last planned step went. Returns a sequence that is given up, since it
    /// failed alone; its cells are freed before the next step.
    pub fn applied(&mut self, result: StepResult<'_>) -> Option<RequestId> {
        let planned = std::mem::take(&mut self.planned);
        match result {
            StepResult::Decoded {
                sampled,
                finished,
                sampled_externally,
                needs_all_logits,
                took,
            } => {
                self.learn(&planned, took.as_secs_f64());
                for row in &planned {
                    let right = self.verify(row, sampled);
                    if let Some(running) = self.find(row.request) {
                        running.gets_on(row.certain() + right);
                    }
                }
                for &(key, token) in sampled {
                    if let Some(running) = self.find(key) {
                        running.request.tokens.push(token);
                        running.guess.draft.clear();
                        running.request.progress.generated += 1;
                        let tenant = running.request.tenant;
                        self.queue.generated(tenant);
                    }
                }
                for &key in finished {
                    if let Some(running) = self.end(key) {
                        let request = &running.request;
                        if request.looks() {
                            let punctual = !request.progress.late;
                            self.cohort.tell(request.retention.clone(), punctual, took);
                        } else {
                            self.usual.observe(request.progress.generated);
                        }
                        self.keep(running);
                    }
                }
                self.ask(sampled_externally, took);
                self.look_again(needs_all_logits);
                self.recover(&planned);
                None
            }
            StepResult::Failed { now } => {
                self.rotation.failed();
                self.cells.undo(placements(&planned));
                self.drop_drafts(&planned);
                self.start_anew(&planned);
                let key = self.fail(&planned, now)?;
                self.fail_request(key);
                Some(key)
            }
        }
    }

    /// A memory that can't go back is spoiled by a step that failed half-way: what it computes runs
    /// in several parts, and those that went well stay. So whoever was in the step starts anew.
    fn start_anew(&mut self, planned: &[Row]) {
        if self.limits.can_truncate {
            return;
        }
        for row in planned {
            if let Some(running) = self.find(row.request) {
                running.stops();
                running.starts_at(0);
                // Never before where it failed last: there it was read well, and who fails beside it while it
                // reads that again would excuse it for ever.
                running.failed_at = running.failed_at.max(Some(row.from));
                self.cells.clear(row.seq);
                self.memory.push(MemoryOp::Clear(row.seq));
            }
        }
    }

    /// A step took so long. One that began with a change of adapters tells what that costs, and
    /// nothing of rows. What ran ahead of it, and may have gone on when it began, is counted as a part of it:
    /// nothing else tells how long that takes.
    fn learn(&mut self, planned: &[Row], seconds: f64) {
        let Some(ahead) = self.ahead.told() else {
            self.rotation.stepped(seconds);
            return;
        };
        self.shape.prefill += ahead;
        if self.rotation.is_changing() {
            if self.cost.is_fitted() {
                let more = seconds - self.cost.predict(self.shape);
                self.rotation.observe(more);
            }
        } else {
            if let Some(gap) = self.limits.prefill.gap() {
                let running = u32::try_from(self.running.len()).unwrap_or(u32::MAX);
                self.experience.ran(running);
                self.experience
                    .observe(gap, &self.cost, self.shape, seconds);
            }
            self.watch_drafts(planned, seconds);
            self.cost.observe(self.shape, seconds);
        }
        self.rotation.stepped(seconds);
    }

    /// Whether no step is planned that was not answered.
    fn is_between(&self) -> bool {
        self.planned.is_empty() && !self.ahead.is_planned()
    }

    /// Whether there is nothing to do until something is enqueued.
    pub fn is_idle(&self) -> bool {
        self.queue.is_empty() && self.running.is_empty() && self.memory.is_empty()
    }

    /// Whether steps are small since one failed not long ago.
    pub fn is_recovering(&self) -> bool {
        self.recovery.goes_on() || self.running.iter().any(|r| r.failed_at.is_some())
    }

    /// When [`Scheduler::plan`] has to be called again even if nothing else happens.
    pub fn next_timer(&self) -> Option<Time> {
        let timer = self.timers.first().map(|(time, _)| *time);
        let ready = self.running.iter().any(Running::is_ready);
        let pause = self.paused_until().filter(|_| ready);
        let timers = timer.into_iter().chain(pause);
        timers.chain(self.awaited).min()
    }

    /// Whether the step that was planned last waits for those that sample what comes next themselves, or for others
    /// to begin with, and until when.
    pub fn waiting_until(&self) -> Option<Time> {
        self.awaited
    }

    /// It waits only where nobody else could get on, but others of them could.
    fn await_cohort(&mut self, now: Time) -> bool {
        let mut ready = self.running.iter().filter(|running| running.is_ready());
        let first = ready.next().is_some_and(Running::is_guided);
        let guided = first && ready.all(Running::is_guided);
        let awaited = self.cohort.awaits(now);
        self.awaited = awaited.filter(|_| guided && !self.is_recovering());
        self.awaited.is_some()
    }

    /// Until when nothing is computed, since a step failed.
    pub fn paused_until(&self) -> Option<Time> {
        self.recovery.paused_until()
    }

    /// What one who finds the queue full is told: a guess of when half of it will be gone.
    pub fn retry_after(&self, now: Time) -> Duration {
        self.pace.retry_after(now, self.queue.len())
    }

    fn find(&mut self, key: RequestId) -> Option<&mut Running> {
        self.running.iter_mut().find(|r| r.key() == key)
    }

    /// Those whose timers ran out.
    fn due(&mut self, now: Time) -> Vec<RequestId> {
        let mut due = Vec::new();
        while let Some(timer) = self
            .timers
            .first()
            .copied()
            .filter(|(time, _)| *time <= now)
        {
            self.timers.remove(&timer);
            due.push(timer.1);
        }
        due
    }

    fn expire_deadlines(&mut self, now: Time, due: &[RequestId]) -> Vec<(RequestId, Expired)> {
        let over = |request: &Request| request.deadline.is_some_and(|end| end <= now);
        let mut expired = Vec::new();
        for &key in due {
            let running = self.running.iter().find(|r| r.key() == key);
            let request = running.map(|r| &r.request).or_else(|| self.queue.get(key));
            if request.is_some_and(over) {
                self.cancel(key);
                expired.push((key, Expired::Deadline));
            }
        }
        expired
    }

    fn expire_waiting(&mut self, now: Time, due: &[RequestId]) -> Vec<(RequestId, Expired)> {
        let mut expired = Vec::new();
        for &key in due {
            let patience = self.queue.get(key).and_then(|request| request.queue_until);
            if patience.is_some_and(|until| until <= now) {
                let retry_after = self.retry_after(now);
                self.cancel(key);
                expired.push((key, Expired::Queue { retry_after }));
            }
        }
        expired
    }

    /// Takes a sequence from among those that run.
    fn end(&mut self, key: RequestId) -> Option<Running> {
        let index = self.running.iter().position(|r| r.key() == key)?;
        let running = self.running.remove(index);
        self.queue.ended(running.request.tenant);
        self.forget_timers(&running.request);
        Some(running)
    }

    /// Nothing is kept of a sequence that ended.
    fn discard(&mut self, running: Running) {
        self.unlist(&running);
        self.release(running.seq);
    }

    fn forget_timers(&mut self, request: &Request) {
        for timer in request.timers() {
            self.timers.remove(&timer);
        }
    }
}

#[cfg(test)]
mod tests;
