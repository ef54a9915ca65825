//! One simulated host at one rate: what the engine's thread does, in virtual time, and what is found.
//!
//! The scheduler is the real one; the backend is the engine's simulator, which is strict. Beside that it is
//! checked at each step that its tokens are within their bounds and nobody who generates is left out; now
//! and then that the scheduler's books of the cells are the backend's; of each request that it ends once,
//! and of one that got all its tokens that each was computed once; and at the end that nothing is left. An
//! invariant that is broken ends the command.
//!
//! All follows from the seed, but for the time that the scheduler takes, which is measured.

mod aside;
mod check;

use super::chance::Random;
use super::found::{Bound, Found};
use super::store::Store;
use super::workload::{Arrival, LONGEST, MOST_ANSWER, Text, Workload};
use crate::complaint::Complaint;
use aside::Wanted;
use corral_engine::scheduler::{
    AdapterId, Claim, Expired, Key, Layout, Limits, Memory, Overlap, Priority, Progress, Refused,
    Request, Reuse, Rows, Scheduler, Scope, Step, StepResult, Time,
};
use corral_engine::simulator::{Fault, Machine, POISON, Simulator, Size};
use corral_engine::{Backend, Input, Prefill};
use std::collections::{BTreeSet, HashMap};
use std::time::{Duration, Instant};

/// Most tokens of a step.
const STEP_TOKENS: u32 = 512;
/// One tenant may have such a part of the queue.
const TENANT_SHARE: usize = 4;
/// How long a request waits for its turn.
const PATIENCE: Duration = Duration::from_secs(60);
/// By what part steps scatter.
const NOISE: f64 = 0.05;
/// Steps, and turns in which no time passes, after which something is taken to be stuck.
const DRAIN: u64 = 1_000_000;
const STILL: u32 = 10_000;

/// What is simulated.
#[derive(Clone, Copy, Debug)]
pub(super) struct Setup {
    pub chats: usize,
    pub tenants: u64,
    pub ids: u16,
    pub cells: u32,
    /// Most requests that wait.
    pub queue: usize,
    /// Tokens whose states may be put aside.
    pub spill: u64,
    /// Seconds of every step, beside what its tokens take.
    pub step: f64,
    /// Virtual time, and steps, after which nothing comes any more.
    pub time: Time,
    pub steps: u64,
    /// About one in so many steps goes wrong, and one in so many moves of a state.
    pub faults: u64,
    pub seed: u64,
}

/// A chat, whether anybody speaks or not.
#[derive(Debug)]
struct Chat {
    text: Text,
    /// Tokens of it.
    length: u32,
    claim: Option<Claim>,
    /// A turn of it waits or runs.
    busy: bool,
}

/// A request that has not ended.
#[derive(Debug)]
struct Alive {
    text: Text,
    chat: Option<usize>,
    prompt: u32,
    generated: u32,
    /// Tokens after which it ends.
    answer: u32,
    /// Tokens that were computed for it.
    submitted: u32,
    arrived: Time,
    admitted: bool,
    /// When it got its last token.
    last: Option<Time>,
    leaves: Option<Time>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum End {
    Finished,
    Refused(Refused),
    Expired(Expired),
    Left,
    GivenUp,
}

struct Host {
    setup: Setup,
    scheduler: Scheduler,
    backend: Simulator,
    workload: Workload,
    now: Time,
    chats: Vec<Chat>,
    alive: HashMap<Key, Alive>,
    leaves: BTreeSet<(Time, Key)>,
    store: Store,
    wanted: Vec<Wanted>,
    /// Turns in which no time passed.
    still: u32,
    found: Found,
}

/// Simulates a host to which so many requests come in a second.
pub(super) fn run(setup: &Setup, rate: f64) -> Result<Found, Complaint> {
    let mut host = Host::new(setup, rate);
    host.begin();
    let mut next = host.workload.arrival();
    loop {
        let open = host.now < setup.time && host.found.counts.steps < setup.steps;
        while open && next.at <= host.now {
            host.arrive(&next)?;
            next = host.workload.arrival();
        }
        host.leave()?;
        if host.step()? {
            continue;
        }
        let coming = (open && next.at < setup.time).then_some(next.at);
        match coming.into_iter().chain(host.next_event()).min() {
            Some(time) => host.passes_to(time)?,
            None => return host.finish(),
        }
    }
}

impl Host {
    fn new(setup: &Setup, rate: f64) -> Self {
        let mut random = Random::new(!setup.seed);
        let limits = Limits {
            seq_ids: setup.ids,
            top_ids: 0,
            cells: setup.cells,
            step_tokens: STEP_TOKENS.max(u32::from(setup.ids)),
            queue: setup.queue,
            tenant_queue: setup.queue.div_ceil(TENANT_SHARE),
            prefill: Prefill::default(),
            reuse: Reuse::Any,
            spill: setup.spill > 0,
            prefixes: false,
            drafts: 0,
            overlap: Overlap::Off,
        };
        let size = Size {
            seq_ids: limits.seq_ids,
            cells: limits.cells,
            step_tokens: limits.step_tokens,
            vocabulary: POISON + 1,
        };
        let usual = Machine::default();
        let times = setup.step / usual.fixed;
        let machine = Machine {
            fixed: setup.step,
            row: times * usual.row,
            prefill: times * usual.prefill,
            attention: times * usual.attention,
            change: times * usual.change,
            sample: 0.0,
            noise: NOISE,
        };
        let mut every = || 1 + random.below(2 * setup.faults);
        let moves = numbers(setup.steps, &mut every);
        let steps = numbers(setup.steps, &mut every);
        let kinds = [
            Fault::Code(1),
            Fault::Code(-2),
            Fault::Slow(10.0),
            Fault::Code(2),
            Fault::Code(-3),
        ];
        let faults = steps.into_iter().zip(kinds.into_iter().cycle()).collect();
        let backend = Simulator::new(size, machine, faults).with_state_faults(moves);
        Self {
            setup: *setup,
            scheduler: Scheduler::new(limits),
            backend,
            workload: Workload::new(setup.seed, rate, setup.tenants, setup.chats),
            now: Time::ZERO,
            chats: Vec::with_capacity(setup.chats),
            alive: HashMap::new(),
            leaves: BTreeSet::new(),
            store: Store::new(setup.spill),
            wanted: Vec::new(),
            still: 0,
            found: Found::new(rate),
        }
    }

    /// All chats are there, and what was computed of them is put aside.
    fn begin(&mut self) {
        for tenant in self.workload.chats().to_vec() {
            let text = self.workload.text(tenant);
            let length = text.beginning() + self.workload.history();
            let claim = Claim::default();
            if self.setup.spill > 0
                && let Some(layout) = Layout::new(std::iter::once(0..length).collect())
            {
                let tokens = text.tokens(length);
                let state = Simulator::state_of(&tokens, AdapterId::NONE);
                let scope = Scope(u64::from(tenant.0));
                let entry = self.scheduler.adopt(scope, tokens, layout, claim.watch());
                self.put(entry, length, state);
            }
            self.chats.push(Chat {
                text,
                length,
                claim: Some(claim),
                busy: false,
            });
        }
        self.see_to_memory();
    }

    fn arrive(&mut self, arrival: &Arrival) -> Result<(), Complaint> {
        self.found.counts.arrived += 1;
        let key = Key(self.found.counts.arrived);
        // Whose chat is busy asks beside it.
        let chat = arrival.chat.filter(|&chat| !self.chats[chat].busy);
        let anew = chat
            .is_none_or(|chat| self.chats[chat].length + arrival.prompt + MOST_ANSWER > LONGEST);
        let fresh = anew.then(|| self.workload.text(arrival.tenant));
        let (mut claim, mut before) = (None, None);
        let (text, length) = match chat.and_then(|chat| self.chats.get_mut(chat)) {
            Some(chat) => {
                if let Some(text) = fresh {
                    (chat.text, chat.length) = (text, text.beginning());
                    chat.claim = None;
                }
                chat.busy = true;
                before = chat.claim.take();
                claim = Some(Claim::default());
                chat.claim.clone_from(&claim);
                (chat.text, chat.length)
            }
            None => {
                let text = fresh.unwrap_or_else(|| self.workload.text(arrival.tenant));
                (text, text.beginning())
            }
        };
        let prompt = length + arrival.prompt;
        let request = Request {
            key,
            tenant: arrival.tenant,
            scope: Scope(u64::from(arrival.tenant.0)),
            priority: Priority(0),
            tokens: text.tokens(prompt),
            max_tokens: MOST_ANSWER,
            arrived: arrival.at,
            queue_until: Some(arrival.at + PATIENCE),
            deadline: arrival.deadline,
            share: None,
            claim: claim.as_ref().map(Claim::watch).unwrap_or_default(),
            goes_on: before.clone(),
            rows: Rows::Whole,
            progress: Progress::default(),
        };
        let leaves = arrival.leaves.map(|after| arrival.at + after);
        self.leaves.extend(leaves.map(|time| (time, key)));
        let alive = Alive {
            text,
            chat,
            prompt,
            generated: 0,
            answer: arrival.answer,
            submitted: 0,
            arrived: arrival.at,
            admitted: false,
            last: None,
            leaves,
        };
        self.alive.insert(key, alive);
        if let Err(refused) = self.scheduler.enqueue(self.now, request) {
            match refused {
                Refused::QueueFull { .. } => self.hits(Bound::Queue),
                Refused::TenantQueueFull { .. } => self.hits(Bound::TenantQueue),
                Refused::TooLarge { .. } | Refused::Late => {}
            }
            // Whoever is refused keeps what it had.
            if let Some(chat) = chat.and_then(|chat| self.chats.get_mut(chat)) {
                chat.claim = before;
            }
            self.end(key, End::Refused(refused))?;
        }
        let waiting = self.scheduler.waiting();
        self.found.counts.waiting = self.found.counts.waiting.max(waiting as u64);
        // Those that had to give way come back into the queue, however full.
        let most = self.setup.queue + usize::from(self.setup.ids);
        self.holds(waiting <= most, "the queue is bounded")
    }

    /// Those go away whose time has come.
    fn leave(&mut self) -> Result<(), Complaint> {
        while let Some(&(time, key)) = self.leaves.first() {
            if time > self.now {
                break;
            }
            self.scheduler.cancel(key);
            self.end(key, End::Left)?;
        }
        Ok(())
    }

    fn end(&mut self, key: Key, end: End) -> Result<(), Complaint> {
        let progress = self.scheduler.progress(key).unwrap_or_default();
        let Some(alive) = self.alive.remove(&key) else {
            return Err(self.broken("a request ends once"));
        };
        if let Some(time) = alive.leaves {
            self.leaves.remove(&(time, key));
        }
        if let Some(chat) = alive.chat.and_then(|chat| self.chats.get_mut(chat)) {
            chat.busy = false;
            if alive.admitted {
                chat.length = alive.prompt + alive.generated;
            }
        }
        let counts = &mut self.found.counts;
        match end {
            End::Refused(Refused::QueueFull { .. }) => counts.queue_full += 1,
            End::Refused(Refused::TenantQueueFull { .. }) => counts.tenant_full += 1,
            End::Refused(Refused::TooLarge { .. } | Refused::Late) => counts.refused += 1,
            End::Expired(Expired::Queue { .. }) => {
                counts.impatient += 1;
                self.hits(Bound::Patience);
            }
            End::Expired(Expired::Deadline) => counts.deadline += 1,
            End::Left => counts.left += 1,
            End::GivenUp => counts.given_up += 1,
            End::Finished => {
                counts.finished += 1;
                counts.prompt += u64::from(alive.prompt);
                counts.cached += u64::from(progress.cached);
                counts.recomputed += u64::from(progress.recomputed);
                // The last token is sampled and not computed, and the scheduler is still to be told.
                let told = progress.generated + 1 == alive.generated;
                self.holds(told, "each token is told once")?;
                let computed = alive.prompt + alive.generated - 1 + progress.recomputed;
                let once = alive.submitted + progress.cached == computed;
                self.holds(once, "each token is computed once, found or lost")?;
            }
        }
        Ok(())
    }

    /// Plans and computes one step. False if there is nothing to compute before something happens.
    fn step(&mut self) -> Result<bool, Complaint> {
        self.bring_back();
        let began = Instant::now();
        let step = self.scheduler.plan(self.now);
        self.found.plan.note(began.elapsed().as_secs_f64());
        for &(key, expired) in &step.expired {
            self.end(key, End::Expired(expired))?;
        }
        for key in &step.admitted {
            self.admitted(*key)?;
        }
        let gathers = self.scheduler.awaited().is_some();
        if self.scheduler.waiting() > 0 && !gathers && !self.scheduler.is_recovering() {
            let all = self.scheduler.running() >= usize::from(self.setup.ids);
            self.hits(if all { Bound::Ids } else { Bound::Cells });
        }
        let relocated = step.memory.iter().any(|m| matches!(m, Memory::Relocate(_)));
        let lost = self.scheduler.tally().lost;
        self.do_memory(&step.memory);
        if step.rows.is_empty() {
            self.see_to_memory();
            // Who waited for what was lost can get on now.
            return Ok(relocated || self.scheduler.tally().lost > lost);
        }
        self.check(&step)?;
        let inputs = self.inputs(&step)?;
        let adapted = self.backend.adapt(step.adapter);
        let decoded = adapted.and_then(|()| self.backend.decode(&inputs));
        let took = self.backend.took();
        self.now += took;
        self.still = 0;
        let counts = &mut self.found.counts;
        counts.steps += 1;
        counts.rows += step.rows.len() as u64;
        self.found.steps.note(took.as_secs_f64());
        if decoded.is_ok() {
            self.decoded(&step, took)?;
        } else {
            self.found.counts.failed_steps += 1;
            let result = StepResult::Failed { now: self.now };
            if let Some(key) = self.scheduler.applied(result) {
                self.end(key, End::GivenUp)?;
            }
        }
        self.see_to_memory();
        self.check_cells()?;
        let steps = self.found.counts.steps;
        if steps > self.setup.steps + DRAIN {
            return Err(self.broken("it comes to an end"));
        }
        Ok(true)
    }

    fn admitted(&mut self, key: Key) -> Result<(), Complaint> {
        let now = self.now;
        let Some(alive) = self.alive.get_mut(&key) else {
            return Err(self.broken("who is admitted was waiting"));
        };
        if !std::mem::replace(&mut alive.admitted, true) {
            self.found.counts.admitted += 1;
            let waited = now.saturating_sub(alive.arrived);
            self.found.queue.note(waited.as_secs_f64());
        }
        Ok(())
    }

    fn inputs(&self, step: &Step) -> Result<Vec<Input>, Complaint> {
        let mut inputs = Vec::new();
        for row in &step.rows {
            let Some(alive) = self.alive.get(&row.key) else {
                return Err(self.broken("who has a row has not ended"));
            };
            let length = alive.prompt + alive.generated;
            if row.to > length || row.from >= row.to || row.output != (row.to == length) {
                return Err(self.broken("a row computes what is known, and samples behind it"));
            }
            inputs.extend((row.from..row.to).map(|position| Input {
                token: alive.text.token(position),
                position,
                seq: row.seq,
                output: row.is_output(position),
            }));
        }
        Ok(inputs)
    }

    /// A step went well.
    fn decoded(&mut self, step: &Step, took: Duration) -> Result<(), Complaint> {
        let (mut sampled, mut ended) = (Vec::new(), Vec::new());
        for row in &step.rows {
            let Some(alive) = self.alive.get_mut(&row.key) else {
                continue;
            };
            alive.submitted += row.tokens();
            if !row.output {
                continue;
            }
            let token = alive.text.token(alive.prompt + alive.generated);
            alive.generated += 1;
            sampled.push((row.key, token));
            match alive.last.replace(self.now) {
                Some(last) => self.found.gaps.note((self.now - last).as_secs_f64()),
                None => {
                    let first = self.now.saturating_sub(alive.arrived);
                    self.found.first.note(first.as_secs_f64());
                }
            }
            if alive.generated >= alive.answer {
                ended.push(row.key);
            }
        }
        for &key in &ended {
            self.end(key, End::Finished)?;
        }
        let result = StepResult::Decoded {
            sampled: &sampled,
            ended: &ended,
            asked: &[],
            unsettled: &[],
            took,
        };
        let began = Instant::now();
        let given_up = self.scheduler.applied(result);
        self.found.applied.note(began.elapsed().as_secs_f64());
        self.holds(
            given_up.is_none(),
            "nobody is given up by a step that went well",
        )
    }

    fn hits(&mut self, bound: Bound) {
        self.found.hit.entry(bound).or_insert(self.now);
    }

    /// When something happens if nobody comes.
    fn next_event(&self) -> Option<Time> {
        let leaves = self.leaves.first().map(|(time, _)| *time);
        let wanted = self.wanted.iter().map(|wanted| wanted.at).min();
        let timer = self.scheduler.next_timer();
        [leaves, wanted, timer].into_iter().flatten().min()
    }

    fn passes_to(&mut self, time: Time) -> Result<(), Complaint> {
        self.still = if time > self.now { 0 } else { self.still + 1 };
        self.now = self.now.max(time);
        match self.still {
            0..STILL => Ok(()),
            _ => Err(self.broken("time passes")),
        }
    }

    /// Everyone has ended: nothing may be left.
    fn finish(mut self) -> Result<Found, Complaint> {
        self.found.time = self.now;
        let over = self.alive.is_empty() && self.scheduler.is_idle();
        self.holds(over, "every request ends")?;
        let counts = self.found.counts;
        self.holds(counts.ended() == counts.arrived, "every request ends once")?;
        self.chats.clear();
        self.scheduler.clear_cache();
        self.see_to_memory();
        self.holds(self.store.is_empty(), "nothing is left that was put aside")?;
        self.holds(self.scheduler.ids_used() == 0, "no id is left lent")?;
        let reserved = self.scheduler.cells_reserved();
        let used = (self.scheduler.cells().used(), self.backend.used());
        self.holds(reserved == 0 && used == (0, 0), "no cell is left used")?;
        self.found.tally = self.scheduler.tally();
        self.found.counts.aside = self.store.most();
        Ok(self.found)
    }
}

/// Some numbers below `end`, each so far behind the last one as `step` says: at least 1.
fn numbers(end: u64, mut step: impl FnMut() -> u64) -> BTreeSet<u64> {
    let mut all = BTreeSet::new();
    let mut next = step();
    while next < end {
        all.insert(next);
        next = next.saturating_add(step());
    }
    all
}

#[cfg(test)]
mod tests;
