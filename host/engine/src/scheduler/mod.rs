//! Which tokens the next step computes: a pure state machine without clock, thread or llama type.
//!
//! A *sequence* is a caller's request; a *seq id* is a resource of the backend. A sequence waits in
//! a bounded [`queue`] until it is its turn and an id and enough cells are free for the most it can
//! ever need, and holds both until it ends: so no step can run out of room, and what is admitted is
//! never thrown out for another. Whoever's turn it is, is not overtaken while it waits for room. Ids
//! are cleared ([`Step::clear`]) before they are lent again.
//!
//! Each step sends what is new and nothing else: one token of every sequence that is generating, and
//! as much of the waiting prompts as the [`prefill`] budget allows. How long steps take is learnt by
//! a [`cost`] model; which [`cells`] they fill is mirrored. A step that fails is halved until it
//! works; a sequence that fails alone, with one token, several times, while others do not, is given
//! up, so that a bad one can't take others with it. When all fail it is the device: nobody is given
//! up for a while, and the pauses between attempts get longer.
//!
//! Time comes in as an argument, counted from any start; so a simulator can drive all this with
//! a clock of its own.
//!
//! Invariants, tested with random workloads on the simulator: every id is either free, held by
//! exactly one sequence, or waiting to be cleared; reserved cells never exceed the limit; a
//! sequence's tokens are computed in order, each once; no generating row is left out of a step but
//! after a failure; every request ends exactly once.

pub mod cells;
pub mod cost;
mod pace;
pub mod prefill;
pub mod queue;

use cells::Cells;
use cost::{CostModel, Shape};
use pace::Pace;
use prefill::{Ceiling, Prefill};
use queue::Queue;
use std::collections::BTreeSet;
use std::time::Duration;

/// A moment: the time since some start that never changes.
pub type Time = Duration;

/// A sequence for as long as it lives; never reused, and higher than all before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key(pub u64);

/// A sequence id of the backend, from 0; lent to one sequence at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SeqId(pub u16);

/// Among whom service is shared fairly.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Tenant(pub u32);

/// Higher goes first, always: whoever waits with a lower one waits until no higher one does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Priority(pub u8);

/// The sizes that bound every step, and how prompts are read.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Sequence ids that the backend has.
    pub seq_ids: u16,
    /// KV cells that all sequences share.
    pub cells: u32,
    /// Most tokens in a step; at least one for each id.
    pub step_tokens: u32,
    /// Most sequences that wait.
    pub queue: usize,
    /// Most sequences of one tenant that wait.
    pub tenant_queue: usize,
    /// How prompts are read while others generate.
    pub prefill: Prefill,
}

/// What is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// Its name from here on.
    pub key: Key,
    /// Whose it is.
    pub tenant: Tenant,
    /// How urgent it is.
    pub priority: Priority,
    /// Tokens of its prompt, at least 1.
    pub prompt: u32,
    /// Most tokens that it generates, at least 1.
    pub max_tokens: u32,
    /// When it came.
    pub arrived: Time,
    /// It is not worth starting later than this.
    pub queue_until: Option<Time>,
    /// It is worth nothing after this.
    pub deadline: Option<Time>,
}

/// A sequence's part of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    /// Whose it is.
    pub key: Key,
    /// Where its cells are.
    pub seq: SeqId,
    /// First position that is computed.
    pub from: u32,
    /// One past the last position that is computed.
    pub to: u32,
    /// Whether a token is sampled after the last position.
    pub output: bool,
}

impl Row {
    fn tokens(&self) -> u32 {
        self.to - self.from
    }
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

/// What to do next, in this order: tell those that expired, clear, then decode the rows together.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Step {
    /// Sequences that are over since their time is.
    pub expired: Vec<(Key, Expired)>,
    /// Ids whose cells are freed.
    pub clear: Vec<SeqId>,
    /// Sequences that left the queue with this step.
    pub admitted: Vec<Key>,
    /// What is computed.
    pub rows: Vec<Row>,
    /// Generating rows, prompt tokens, and the cells that attention will run over.
    pub shape: Shape,
    /// Prompt tokens that the budget allowed.
    pub budget: u32,
    /// Generating sequences that are not in the step: only after a failure.
    pub skipped: u32,
}

/// How a step went.
#[derive(Clone, Copy, Debug)]
pub enum StepResult<'a> {
    /// Its rows were computed.
    Decoded {
        /// Sequences that want no further token.
        ended: &'a [Key],
        /// How long it took.
        took: Duration,
    },
    /// Nothing was computed.
    Failed {
        /// When that was known.
        now: Time,
    },
}

/// Why a request was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// It can never fit: it may need more cells than there are.
    TooLarge {
        /// Cells that it may need.
        needed: u32,
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
    Late,
}

#[derive(Clone, Debug)]
struct Running {
    request: Request,
    seq: SeqId,
    /// Tokens known: the prompt and what was generated.
    tokens: u32,
    /// Tokens whose cells are filled.
    computed: u32,
    /// Cells set aside for it.
    cells: u32,
    /// How often it failed alone since it last got on, failures in one outage counting once; when
    /// that began, and how many steps had gone well at the last time.
    strikes: (u8, Time, u64),
}

impl Running {
    fn pending(&self) -> u32 {
        self.tokens - self.computed
    }

    fn generates(&self) -> bool {
        self.tokens > self.request.prompt
    }

    fn row(&self, tokens: u32) -> Row {
        Row {
            key: self.request.key,
            seq: self.seq,
            from: self.computed,
            to: self.computed + tokens,
            output: tokens == self.pending(),
        }
    }
}

/// How often a sequence may fail alone, with one token, while others get on, before it is given up.
const STRIKES: u8 = 3;
/// How long a sequence may fail alone before it is given up, if nothing else gets on either.
const OUTAGE: Duration = Duration::from_secs(3);
/// Shortest and longest pause after a failure with one token.
const PAUSES: (Duration, Duration) = (Duration::from_millis(5), Duration::from_millis(200));

/// The state machine.
#[derive(Clone, Debug)]
pub struct Scheduler {
    limits: Limits,
    queue: Queue,
    /// In order of admission, but for rotations after a failed step.
    running: Vec<Running>,
    /// Kept sorted, highest first, so that the lowest id is lent next.
    free: Vec<SeqId>,
    to_clear: Vec<SeqId>,
    reserved: u32,
    cells: Cells,
    cost: CostModel,
    pace: Pace,
    /// When something expires. Entries of those that ended before are passed over.
    timers: BTreeSet<(Time, Key)>,
    /// Tokens that the next step may have: below the limit only after a failure.
    most: u32,
    /// Whose turn it was when there was no room.
    turn: Option<Key>,
    ceiling: Ceiling,
    /// Steps that went well.
    succeeded: u64,
    /// Nothing is computed until then, and how long the pause is.
    pause: Option<(Time, Duration)>,
    planned: Vec<Row>,
    shape: Shape,
}

impl Scheduler {
    /// A scheduler with nothing to do.
    pub fn new(mut limits: Limits) -> Self {
        limits.step_tokens = limits.step_tokens.max(u32::from(limits.seq_ids));
        Self {
            limits,
            queue: Queue::default(),
            running: Vec::new(),
            free: (0..limits.seq_ids).rev().map(SeqId).collect(),
            to_clear: Vec::new(),
            reserved: 0,
            cells: Cells::new(limits.cells),
            cost: CostModel::default(),
            pace: Pace::default(),
            timers: BTreeSet::new(),
            most: limits.step_tokens,
            turn: None,
            ceiling: Ceiling::default(),
            succeeded: 0,
            pause: None,
            planned: Vec::new(),
            shape: Shape::default(),
        }
    }

    /// Takes a request into the queue, or says why not.
    pub fn enqueue(&mut self, now: Time, request: Request) -> Result<(), Refused> {
        let needed = cells_needed(&request);
        if needed > self.limits.cells {
            return Err(Refused::TooLarge { needed });
        }
        if request.deadline.is_some_and(|deadline| deadline <= now) {
            return Err(Refused::Late);
        }
        let retry_after = self.retry_after(now);
        if self.queue.len() >= self.limits.queue {
            return Err(Refused::QueueFull { retry_after });
        }
        if self.queue.len_of(request.tenant) >= self.limits.tenant_queue {
            return Err(Refused::TenantQueueFull { retry_after });
        }
        for time in [request.queue_until, request.deadline]
            .into_iter()
            .flatten()
        {
            self.timers.insert((time, request.key));
        }
        self.queue.push(request);
        Ok(())
    }

    /// Takes a sequence out, wherever it is; its id is cleared with the next step.
    pub fn cancel(&mut self, key: Key) {
        debug_assert!(self.planned.is_empty(), "cancel between plan and applied");
        match self.queue.remove(key) {
            Some(request) => self.forget_timers(&request),
            None => self.end(key),
        }
    }

    /// The next step. It has no rows if there is nothing to compute. Every step with rows must be
    /// answered by [`Scheduler::applied`].
    pub fn plan(&mut self, now: Time) -> Step {
        debug_assert!(self.planned.is_empty(), "plan before applied");
        let due = self.due(now);
        let mut expired = self.expire_deadlines(now, &due);
        let clear = std::mem::take(&mut self.to_clear);
        for &id in &clear {
            self.cells.clear(id);
        }
        self.free.extend_from_slice(&clear);
        self.free.sort_unstable_by(|a, b| b.cmp(a));
        let admitted = self.admit(now);
        // Only now: whoever's place is free does not go away for want of one.
        expired.extend(self.expire_waiting(now, &due));
        if self.pause.is_some_and(|(until, _)| now < until) {
            return Step {
                expired,
                clear,
                admitted,
                ..Step::default()
            };
        }
        let mut step = self.rows();
        let placed = self.cells.place(placements(&step.rows));
        debug_assert!(placed, "reserved cells have room");
        step.shape.n_kv = self.cells.n_kv();
        self.planned.clone_from(&step.rows);
        self.shape = step.shape;
        Step {
            expired,
            clear,
            admitted,
            ..step
        }
    }

    /// Takes note of how the last planned step went. Returns a sequence that is given up, since it
    /// failed alone; its id is cleared with the next step.
    pub fn applied(&mut self, result: StepResult<'_>) -> Option<Key> {
        let planned = std::mem::take(&mut self.planned);
        match result {
            StepResult::Decoded { ended, took } => {
                self.ceiling.observe(
                    self.limits.prefill,
                    &self.cost,
                    self.shape,
                    took.as_secs_f64(),
                );
                self.cost.observe(self.shape, took.as_secs_f64());
                self.succeeded += 1;
                self.pause = None;
                for row in &planned {
                    if let Some(running) = self.find(row.key) {
                        running.computed = row.to;
                        running.strikes.0 = 0;
                        if row.output {
                            running.tokens += 1;
                            let tenant = running.request.tenant;
                            self.queue.generated(tenant);
                        }
                    }
                }
                for &key in ended {
                    self.end(key);
                }
                if self.is_recovering() {
                    // Let those be tried next that were left out, then try more at once.
                    let served = |r: &Running| planned.iter().any(|row| row.key == r.request.key);
                    self.running.sort_by_key(served);
                    self.most = self.most.saturating_mul(2).min(self.limits.step_tokens);
                }
                None
            }
            StepResult::Failed { now } => {
                self.cells.undo(placements(&planned));
                let tokens: u32 = planned.iter().map(Row::tokens).sum();
                if tokens > 1 {
                    self.most = tokens / 2;
                    return None;
                }
                let pause = self.pause.map_or(PAUSES.0, |(_, last)| 2 * last);
                let pause = pause.min(PAUSES.1);
                self.pause = Some((now + pause, pause));
                let key = planned.first()?.key;
                if self.strike(key, now) {
                    self.end(key);
                    return Some(key);
                }
                None
            }
        }
    }

    /// Notes that a sequence failed alone. True if it is to be given up: others got on each time in
    /// between, or it has lasted too long.
    fn strike(&mut self, key: Key, now: Time) -> bool {
        let succeeded = self.succeeded;
        let Some(index) = self.running.iter().position(|r| r.request.key == key) else {
            return false;
        };
        // To the end: the next one is tried alone, which tells whether it is this one's fault.
        let mut running = self.running.remove(index);
        let (strikes, since, before) = &mut running.strikes;
        if *strikes == 0 || succeeded > *before {
            *since = if *strikes == 0 { now } else { *since };
            *strikes = strikes.saturating_add(1);
            *before = succeeded;
        }
        let over = *strikes >= STRIKES || now.saturating_sub(*since) >= OUTAGE;
        self.running.push(running);
        over
    }

    /// Whether there is nothing to do until something is enqueued.
    pub fn is_idle(&self) -> bool {
        self.queue.is_empty() && self.running.is_empty() && self.to_clear.is_empty()
    }

    /// Whether steps are small since one failed not long ago.
    pub fn is_recovering(&self) -> bool {
        self.most < self.limits.step_tokens
    }

    /// When [`Scheduler::plan`] has to be called again even if nothing else happens.
    pub fn next_timer(&self) -> Option<Time> {
        let timer = self.timers.first().map(|(time, _)| *time);
        let pause = self.pause.filter(|_| !self.running.is_empty());
        timer.into_iter().chain(pause.map(|(until, _)| until)).min()
    }

    /// Until when nothing is computed, since a step failed.
    pub fn paused_until(&self) -> Option<Time> {
        self.pause.map(|(until, _)| until)
    }

    /// What one who finds the queue full is told: a guess of when half of it will be gone.
    pub fn retry_after(&self, now: Time) -> Duration {
        self.pace.retry_after(now, self.queue.len())
    }

    /// Sequences in the queue.
    pub fn waiting(&self) -> usize {
        self.queue.len()
    }

    /// Sequences that hold an id.
    pub fn running(&self) -> usize {
        self.running.len()
    }

    /// Ids that are lent or not yet cleared.
    pub fn ids_used(&self) -> usize {
        usize::from(self.limits.seq_ids) - self.free.len()
    }

    /// The cells as the backend has them.
    pub fn cells(&self) -> &Cells {
        &self.cells
    }

    /// Cells set aside for the running sequences.
    pub fn cells_reserved(&self) -> u32 {
        self.reserved
    }

    /// What was learnt about the machine.
    pub fn cost(&self) -> &CostModel {
        &self.cost
    }

    fn find(&mut self, key: Key) -> Option<&mut Running> {
        self.running.iter_mut().find(|r| r.request.key == key)
    }

    /// Those whose timers ran out.
    fn due(&mut self, now: Time) -> Vec<Key> {
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

    fn expire_deadlines(&mut self, now: Time, due: &[Key]) -> Vec<(Key, Expired)> {
        let over = |request: &Request| request.deadline.is_some_and(|end| end <= now);
        let mut expired = Vec::new();
        for &key in due {
            if self.queue.get(key).is_some_and(over) {
                if let Some(request) = self.queue.remove(key) {
                    self.forget_timers(&request);
                }
            } else if self.find(key).is_some_and(|running| over(&running.request)) {
                self.end(key);
            } else {
                continue;
            }
            expired.push((key, Expired::Deadline));
        }
        expired
    }

    fn expire_waiting(&mut self, now: Time, due: &[Key]) -> Vec<(Key, Expired)> {
        let mut expired = Vec::new();
        for &key in due {
            if let Some(request) = self.queue.remove(key) {
                let retry_after = self.retry_after(now);
                self.forget_timers(&request);
                expired.push((key, Expired::Queue { retry_after }));
            }
        }
        expired
    }

    /// Whose turn it is: who had it when there was no room, unless a more urgent one came.
    fn next(&self) -> Option<&Request> {
        let first = self.queue.first()?;
        let held = self.turn.and_then(|key| self.queue.get(key));
        Some(
            held.filter(|held| held.priority >= first.priority)
                .unwrap_or(first),
        )
    }

    fn admit(&mut self, now: Time) -> Vec<Key> {
        let mut admitted = Vec::new();
        while let Some(next) = self.next() {
            // Whose turn it is, is not overtaken: so a large one is delayed by those before it and
            // by nobody else.
            let (key, cells) = (next.key, cells_needed(next));
            self.turn = Some(key);
            if self.reserved + cells > self.limits.cells {
                break;
            }
            let Some(seq) = self.free.pop() else {
                break;
            };
            let Some(request) = self.queue.admit(key) else {
                break;
            };
            self.turn = None;
            self.reserved += cells;
            self.pace.admitted(now);
            admitted.push(key);
            self.running.push(Running {
                seq,
                tokens: request.prompt,
                computed: 0,
                cells,
                strikes: (0, Time::ZERO, 0),
                request,
            });
        }
        if self.queue.is_empty() {
            self.pace.rest();
        }
        admitted
    }

    /// The rows of a step: all that generate, then prompts.
    fn rows(&self) -> Step {
        if self.is_recovering() {
            return self.few_rows();
        }
        let mut rows = Vec::with_capacity(self.running.len());
        let generating = self.running.iter().filter(|running| running.generates());
        rows.extend(generating.map(|running| running.row(1)));
        let count = u32::try_from(rows.len()).unwrap_or(u32::MAX);
        let policy = self.limits.prefill;
        let room = self.limits.step_tokens.saturating_sub(count);
        let budget = policy.budget(&self.cost, self.ceiling, count, self.cells.n_kv(), room);
        let mut prompts: Vec<_> = self.running.iter().filter(|r| !r.generates()).collect();
        if policy != Prefill::SlotOrder {
            prompts.sort_by_key(|running| {
                let request = &running.request;
                let had = self.queue.counter(request.tenant);
                let priority = std::cmp::Reverse(request.priority);
                (priority, had, queue::due(request), request.key)
            });
        }
        let pending: Vec<_> = prompts.iter().map(|running| running.pending()).collect();
        let shares = policy.share(&pending, budget);
        for (running, share) in prompts.iter().zip(shares).filter(|(_, share)| *share > 0) {
            rows.push(running.row(share));
        }
        self.shaped(rows, count, budget)
    }

    /// The rows of a step after one failed: few tokens, of those whose turn it is in the rotation
    /// that finds the culprit, whether they generate or not.
    fn few_rows(&self) -> Step {
        let (mut left, mut generating) = (self.most, 0);
        let mut rows = Vec::new();
        for running in &self.running {
            let tokens = running.pending().min(left);
            if tokens > 0 {
                left -= tokens;
                generating += u32::from(running.generates());
                rows.push(running.row(tokens));
            }
        }
        self.shaped(rows, generating, self.most)
    }

    fn shaped(&self, rows: Vec<Row>, generating: u32, budget: u32) -> Step {
        let all = self.running.iter().filter(|r| r.generates()).count();
        let tokens: u32 = rows.iter().map(Row::tokens).sum();
        Step {
            rows,
            shape: Shape {
                rows: generating,
                prefill: tokens - generating,
                n_kv: 0,
            },
            budget,
            skipped: u32::try_from(all).unwrap_or(u32::MAX) - generating,
            ..Step::default()
        }
    }

    fn end(&mut self, key: Key) {
        if let Some(index) = self.running.iter().position(|r| r.request.key == key) {
            let running = self.running.remove(index);
            self.reserved -= running.cells;
            self.to_clear.push(running.seq);
            self.queue.ended(running.request.tenant);
            self.forget_timers(&running.request);
        }
    }

    fn forget_timers(&mut self, request: &Request) {
        for time in [request.queue_until, request.deadline]
            .into_iter()
            .flatten()
        {
            self.timers.remove(&(time, request.key));
        }
    }
}

/// The most cells that a request can ever need. The last generated token is never computed, so it
/// needs none.
fn cells_needed(request: &Request) -> u32 {
    request
        .prompt
        .saturating_add(request.max_tokens.saturating_sub(1))
}

/// What the rows of a step put into cells.
fn placements(rows: &[Row]) -> impl Iterator<Item = (SeqId, u32)> + Clone {
    rows.iter().map(|row| (row.seq, row.tokens()))
}

#[cfg(test)]
mod tests;
