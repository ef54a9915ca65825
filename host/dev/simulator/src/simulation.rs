//! The scheduler over the simulator, in virtual time: what the engine's thread does, with every
//! invariant checked at every step. A broken one panics.

mod ahead;
mod aside;
mod blame;
mod check;
mod record;
mod text;

use super::{Fault, Input, Machine, POISON, Simulator, Size};
use aside::Wanted;
use blame::Blame;
use corral_scheduler::{
    EnqueueError, EntryId, MemoryOp, PrefixScope, Request, RequestId, Retention, Row, Scheduler,
    SchedulerConfig, SchedulerCounters, StepResult, Time, Token,
};
pub use record::{Arrival, End, Record, Taken};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;
use text::Computed;

/// What the outside knows of a request that has not ended.
#[derive(Debug)]
struct Alive {
    index: usize,
    prompt: u32,
    /// Its prompt and what was generated.
    text: Vec<Token>,
    /// Tokens that were computed for it, but for drafts that were wrong.
    submitted: u32,
    drafts: (u32, u32),
    /// Tokens of its last step, if it has ended.
    told: u32,
    /// How many of those were not computed.
    left: u32,
    admitted: Option<Time>,
    tokens: Vec<Time>,
    passed_by: u32,
    /// Steps since it could have had a row and was the turn of another adapter.
    off_turn: u32,
    /// Its next token is being chosen.
    asked: bool,
    /// The highest logits were not enough.
    unsettled: bool,
}

/// Steps after which a simulation that has not ended is taken to be stuck.
const STUCK: u64 = 100_000;

/// Logits that the simulator gives where it does not give all.
const CANDIDATES: u32 = 4;

/// A scheduler, a simulator, and a clock.
#[derive(Debug)]
pub struct Simulation {
    limits: SchedulerConfig,
    scheduler: Scheduler,
    backend: Simulator,
    machine: Machine,
    now: Time,
    /// Until when what ran ahead is computed.
    busy: Time,
    arrivals: Vec<Arrival>,
    alive: HashMap<RequestId, Alive>,
    blame: Blame,
    records: Vec<Option<Record>>,
    /// Texts of those that finished.
    texts: HashMap<usize, Vec<Token>>,
    /// Held for those that go on with an earlier one.
    claims: HashMap<usize, Retention>,
    /// What was put aside.
    store: HashMap<EntryId, Vec<u8>>,
    wanted: Vec<Wanted>,
    /// Operations on the store, and every how many of them one fails.
    stored: u64,
    store_fails: Option<u64>,
    /// Those that come back, as arrivals, from the last one that is known on.
    back: Vec<usize>,
    /// Whose tokens are chosen, and when, from the last one that is known on.
    chosen: Vec<(Time, usize)>,
    /// Time in which nothing was computed, for the sake of those that were expected back.
    pub awaited: Duration,
    /// The steps in their order, but for those that ran while rows were sampled.
    pub steps: Vec<Taken>,
    /// Those that did, and the tokens that they computed.
    pub ahead: (u32, u32),
}

impl Simulation {
    /// Nothing has come yet.
    pub fn new(limits: SchedulerConfig, machine: Machine, faults: BTreeMap<u64, Fault>) -> Self {
        let size = Size {
            seq_ids: limits.seq_ids,
            cells: limits.cells,
            step_tokens: limits.max_step_tokens,
            vocabulary: POISON + 1,
        };
        let backend =
            Simulator::new(size, machine, faults).with_top(limits.top_k_seq_ids, CANDIDATES);
        Self {
            limits,
            scheduler: Scheduler::new(limits),
            backend: match !limits.can_truncate {
                true => backend.without_parts(),
                false => backend,
            },
            machine,
            now: Time::ZERO,
            busy: Time::ZERO,
            arrivals: Vec::new(),
            alive: HashMap::new(),
            blame: Blame::default(),
            records: Vec::new(),
            texts: HashMap::new(),
            claims: HashMap::new(),
            store: HashMap::new(),
            wanted: Vec::new(),
            stored: 0,
            store_fails: None,
            back: Vec::new(),
            chosen: Vec::new(),
            awaited: Duration::ZERO,
            steps: Vec::new(),
            ahead: (0, 0),
        }
    }

    /// Lets every so many-th operation on what is put aside fail.
    #[must_use]
    pub fn with_failing_store(mut self, every: Option<u64>) -> Self {
        self.store_fails = every;
        self
    }

    /// Lets these of the backend's saves and loads fail, counted together from 0.
    #[must_use]
    pub fn with_state_faults(mut self, faults: BTreeSet<u64>) -> Self {
        self.backend = self.backend.with_state_faults(faults);
        self
    }

    /// What was done about memory.
    pub fn counters(&self) -> SchedulerCounters {
        self.scheduler.counters()
    }

    /// Runs until all `arrivals` have ended; returns what became of each, in their order, and then of those
    /// that came back, in theirs.
    ///
    /// # Panics
    ///
    /// If an invariant is broken, or it does not come to an end.
    pub fn run(&mut self, arrivals: Vec<Arrival>) -> Vec<Record> {
        let mut events: BTreeMap<(Time, usize), Event> = BTreeMap::new();
        for (index, arrival) in arrivals.iter().enumerate() {
            events.insert((arrival.at, 2 * index), Event::Arrive(index));
            if let Some(after) = arrival.leaves {
                events.insert((arrival.at + after, 2 * index + 1), Event::Leave(index));
            }
        }
        self.records = vec![None; arrivals.len()];
        self.arrivals = arrivals;
        for _ in 0..STUCK {
            while let Some(entry) = events.first_entry().filter(|e| e.key().0 <= self.now) {
                match entry.remove() {
                    Event::Arrive(index) => self.arrive(index),
                    Event::Leave(index) => self.leave(index),
                    Event::Choose(index) => self.choose(index),
                }
            }
            let works = self.step();
            for index in std::mem::take(&mut self.back) {
                let at = self.arrivals[index].at;
                events.insert((at, 2 * index), Event::Arrive(index));
            }
            for (at, index) in std::mem::take(&mut self.chosen) {
                events.insert((at, usize::MAX - index), Event::Choose(index));
            }
            if works {
                continue;
            }
            let next = events.keys().next().map(|(time, _)| *time);
            match next.into_iter().chain(self.scheduler.next_timer()).min() {
                Some(time) => {
                    let time = self.now.max(time);
                    if self.scheduler.waiting_until().is_some() {
                        self.awaited += time - self.now;
                    }
                    self.now = time;
                }
                None => return self.finish(),
            }
        }
        panic!("the simulation does not end");
    }

    fn finish(&mut self) -> Vec<Record> {
        assert!(self.scheduler.is_idle() && self.alive.is_empty());
        self.claims.clear();
        self.scheduler.clear_prefix_cache();
        self.see_to_memory();
        assert!(self.store.is_empty(), "something put aside was left behind");
        assert_eq!(self.scheduler.seq_ids_used(), 0, "ids were left behind");
        assert_eq!(self.scheduler.cells_reserved(), 0, "cells were left behind");
        assert_eq!((self.scheduler.cells().used(), self.backend.used()), (0, 0));
        let records = std::mem::take(&mut self.records);
        let records = records
            .into_iter()
            .map(|record| record.expect("every request ends"));
        records.collect()
    }

    fn arrive(&mut self, index: usize) {
        let arrival = self.arrivals[index].clone();
        let key = RequestId(index as u64);
        let tokens = self.prompt_of(index);
        let prompt = u32::try_from(tokens.len()).unwrap();
        let went_on = self.arrivals.iter().any(|other| {
            let earlier = |(earlier, _)| earlier == index;
            other.goes_on.is_some_and(earlier)
        });
        let went_on = went_on || arrival.comes_back.0 > 0 || arrival.asks.is_some();
        let claim = went_on.then(Retention::default);
        let watch = claim.as_ref().map(Retention::downgrade).unwrap_or_default();
        let request = Request {
            id: key,
            tenant: arrival.tenant,
            scope: PrefixScope(u64::from(arrival.tenant.0)).with(arrival.adapter),
            priority: arrival.priority,
            tokens: tokens.clone(),
            max_tokens: arrival.max_tokens,
            arrived_at: arrival.at,
            queue_until: arrival.patience.map(|time| arrival.at + time),
            deadline: arrival.time.map(|time| arrival.at + time),
            quota: arrival.share,
            retention: watch,
            continues: arrival
                .goes_on
                .and_then(|(earlier, _)| self.claims.get(&earlier).cloned()),
            logits: arrival.rows,
            progress: Default::default(),
        };
        if let Some((earlier, _)) = arrival.goes_on {
            let still = |other: &Arrival| {
                other.goes_on.is_some_and(|(e, _)| e == earlier) && other.at > arrival.at
            };
            if !self.arrivals.iter().any(still) {
                self.claims.remove(&earlier);
            }
        }
        if let Some(claim) = claim {
            self.claims.insert(index, claim);
        }
        let alive = Alive {
            index,
            prompt,
            text: tokens,
            submitted: 0,
            drafts: (0, 0),
            told: 0,
            left: 0,
            admitted: None,
            tokens: Vec::new(),
            passed_by: 0,
            off_turn: 0,
            asked: false,
            unsettled: false,
        };
        self.alive.insert(key, alive);
        if let Err(refused) = self.scheduler.enqueue(self.now, request) {
            match refused {
                EnqueueError::TooLarge { needed, limit } => {
                    let share = self.arrivals[index].share;
                    let share = share.map_or(u32::MAX, |share| share.cells);
                    assert_eq!(limit, share.min(self.limits.cells));
                    assert!(needed > limit);
                }
                EnqueueError::QueueFull { .. } => {
                    assert!(self.scheduler.waiting_count() >= self.limits.max_queue);
                }
                EnqueueError::TenantQueueFull { .. } => {
                    assert!(self.waiting_of(index) >= self.limits.max_tenant_queue);
                }
                EnqueueError::DeadlinePassed => {
                    let arrival = &self.arrivals[index];
                    let deadline = arrival.time.map(|time| arrival.at + time);
                    assert!(deadline.is_some_and(|deadline| deadline <= self.now));
                }
            }
            self.end(key, End::Refused(refused));
        }
        // Those that had to give way come back into the queue, however full.
        let back = usize::from(self.limits.seq_ids);
        assert!(self.scheduler.waiting_count() <= self.limits.max_queue + back);
        assert!(self.waiting_of(index) <= self.limits.max_tenant_queue + back);
    }

    /// How many of the tenant of that arrival wait.
    fn waiting_of(&self, index: usize) -> usize {
        let tenant = |index: usize| self.arrivals[index].tenant;
        let waiting = self.alive.iter().filter(|(key, alive)| {
            self.scheduler.is_waiting(**key) && tenant(alive.index) == tenant(index)
        });
        waiting.count()
    }

    fn leave(&mut self, index: usize) {
        let key = RequestId(index as u64);
        if self.alive.contains_key(&key) {
            self.scheduler.cancel(key);
            self.end(key, End::Left);
        }
    }

    fn end(&mut self, key: RequestId, end: End) {
        let progress = self.scheduler.progress(key).unwrap_or_default();
        let alive = self.alive.remove(&key).expect("a request ends once");
        if end == End::Finished {
            let generated = u32::try_from(alive.tokens.len()).unwrap();
            let told = alive.told + progress.generated;
            assert_eq!(told, generated, "the last ones are still to be said");
            // Those of the last step were sampled or certain, and most often not computed any more.
            let computed = alive.prompt + generated - alive.left;
            assert_eq!(
                alive.submitted,
                computed - progress.cached + progress.recomputed,
                "each token once but for those that were found or lost: {progress:?}"
            );
            self.texts.insert(alive.index, alive.text);
            self.comes_back(alive.index);
        }
        self.let_go(alive.index);
        let record = &mut self.records[alive.index];
        assert!(record.is_none(), "a request ends once");
        *record = Some(Record {
            end,
            admitted: alive.admitted,
            tokens: alive.tokens,
            prompt: alive.prompt,
            cached: progress.cached,
            recomputed: progress.recomputed,
            drafts: alive.drafts,
            ended: self.now,
            passed_by: alive.passed_by,
            blamed: self.blame.forget(key),
        });
    }

    /// Who had its tokens chosen holds on to its text no longer, unless others go on with it.
    fn let_go(&mut self, index: usize) {
        let goes_on = |other: &Arrival| other.goes_on.is_some_and(|(earlier, _)| earlier == index);
        if self.arrivals[index].asks.is_some() && !self.arrivals.iter().any(goes_on) {
            self.claims.remove(&index);
        }
    }

    /// One that was told what may come next thinks, and then comes back with one token more.
    fn comes_back(&mut self, index: usize) {
        let arrival = &self.arrivals[index];
        let (times, thinks) = arrival.comes_back;
        if times == 0 || arrival.max_tokens > 0 {
            return;
        }
        let back = Arrival {
            at: self.now + thinks,
            prompt: 1,
            goes_on: Some((index, u32::MAX)),
            comes_back: (times - 1, thinks),
            ..arrival.clone()
        };
        self.back.push(self.arrivals.len());
        self.arrivals.push(back);
        self.records.push(None);
    }

    /// Plans and computes one step. False if there was nothing to compute.
    fn step(&mut self) -> bool {
        self.bring_back();
        let step = self.scheduler.plan(self.now);
        for &(key, expired) in &step.expired {
            self.end(key, End::Expired(expired));
        }
        self.check_awaited(&step);
        self.do_memory(&step.memory_ops);
        let relocated = step
            .memory_ops
            .iter()
            .any(|m| matches!(m, MemoryOp::Compact(_)));
        for key in &step.admitted {
            self.admitted(*key);
        }
        self.check(&step, relocated);
        self.check_turns(&step);
        self.check_shares(&step);
        if step.rows.is_empty() {
            // What could not be put aside may have left something to forget.
            self.see_to_memory();
            self.check_cells(&[]);
            return relocated || !self.wanted.is_empty();
        }
        let inputs = self.inputs(&step.rows);
        let adapted = self.backend.adapt(step.adapter);
        let decoded = adapted.and_then(|()| self.backend.decode(&inputs));
        let began = self.now;
        // It begins when what ran ahead is computed.
        self.now = self.now.max(self.busy) + self.backend.took();
        let mut ahead = None;
        if decoded.is_ok() {
            let outputs = inputs.iter().filter(|input| input.output).count();
            let sampling = Duration::from_secs_f64(self.machine.sample * outputs as f64);
            ahead = self.begin_ahead(sampling);
            self.now += sampling;
        }
        let took = self.now - began;
        self.steps.push(Taken {
            running: self.scheduler.running_count(),
            rows: step.shape.rows,
            drafts: step.shape.drafts,
            prefill: step.shape.prefill,
            ahead: step.overlapped,
            meanwhile: step.is_overlap,
            failed: decoded.is_err(),
            adapter: step.adapter,
            took,
        });
        let anew = !self.limits.can_truncate;
        self.blame.stepped(&step.rows, decoded.is_err(), anew);
        if decoded.is_err() {
            if let Some(key) = self.scheduler.applied(StepResult::Failed { now: self.now }) {
                self.end(key, End::GivenUp);
            }
        } else {
            let Computed {
                sampled,
                ended,
                asked,
                unsettled,
            } = self.computed(&step.rows);
            let result = StepResult::Decoded {
                sampled: &sampled,
                finished: &ended,
                sampled_externally: &asked,
                needs_all_logits: &unsettled,
                took,
            };
            assert_eq!(self.scheduler.applied(result), None);
            if let Some((step, success)) = ahead {
                self.finish_ahead(&step, success);
            }
        }
        let pending = self.scheduler.take_memory_ops();
        self.do_memory(&pending);
        self.check_cells(&pending);
        self.propose(&step.rows);
        true
    }

    fn admitted(&mut self, key: RequestId) {
        let alive = self.alive.get_mut(&key).expect("it was waiting");
        if alive.admitted.is_some() {
            return;
        }
        alive.admitted = Some(self.now);
        let tenant = self.arrivals[alive.index].tenant;
        for other in self.alive.values_mut().filter(|a| a.admitted.is_none()) {
            other.passed_by += u32::from(self.arrivals[other.index].tenant != tenant);
        }
    }

    fn inputs(&mut self, rows: &[Row]) -> Vec<Input> {
        let mut inputs = Vec::new();
        for row in rows {
            let alive = self
                .alive
                .get(&row.request)
                .expect("a row of one that ended");
            assert!(row.certain() as usize <= alive.text.len());
            assert_eq!(row.output, row.certain() as usize == alive.text.len());
            assert_eq!(self.scheduler.tokens(row.request), alive.text);
            let before = &alive.text[..row.from as usize];
            assert_eq!(self.backend.held(row.seq), before, "what its cells hold");
            let certain = &alive.text[row.from as usize..row.certain() as usize];
            let draft = self.scheduler.draft(row);
            assert_eq!(draft.len(), row.drafts as usize);
            let generated = alive.text.len() - alive.prompt as usize;
            let most = self.arrivals[alive.index].max_tokens as usize;
            assert!(draft.is_empty() || generated + draft.len() < most);
            for (position, &token) in (row.from..).zip(certain.iter().chain(draft)) {
                inputs.push(Input {
                    token,
                    position,
                    seq: row.seq,
                    output: row.is_output(position),
                });
            }
        }
        inputs
    }
}

enum Event {
    Arrive(usize),
    Leave(usize),
    Choose(usize),
}
