//! The scheduler over the simulator, in virtual time: what the engine's thread does, with every
//! invariant checked at every step. A broken one panics.

use super::{Fault, Machine, POISON, Simulator, Size};
use crate::Token;
use crate::backend::{Backend, Input};
use crate::scheduler::{
    Expired, Key, Limits, Priority, Refused, Request, Row, Scheduler, SeqId, Step, StepResult,
    Tenant, Time,
};
use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

/// A request that comes, and what becomes of it if nobody interferes.
#[derive(Clone, Debug, Default)]
pub struct Arrival {
    /// When.
    pub at: Time,
    /// Whose.
    pub tenant: Tenant,
    /// How urgent.
    pub priority: Priority,
    /// Tokens of the prompt, at least 1.
    pub prompt: u32,
    /// Most tokens it may generate, at least 1.
    pub max_tokens: u32,
    /// Tokens after which it ends by itself, if that is sooner.
    pub ends_after: u32,
    /// How long it waits at most.
    pub patience: Option<Duration>,
    /// How long it may take at all.
    pub time: Option<Duration>,
    /// The caller goes away so long after its arrival.
    pub leaves: Option<Duration>,
    /// Its prompt makes each step fail.
    pub poisoned: bool,
}

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// It got all its tokens.
    Finished,
    /// It was not taken.
    Refused(Refused),
    /// A time of its own ran out.
    Expired(Expired),
    /// Its caller went away.
    Left,
    /// It failed alone.
    GivenUp,
}

/// What became of a request.
#[derive(Clone, Debug)]
pub struct Record {
    /// How it ended.
    pub end: End,
    /// When it left the queue.
    pub admitted: Option<Time>,
    /// When each of its tokens was there.
    pub tokens: Vec<Time>,
    /// When it ended.
    pub ended: Time,
    /// Requests of other tenants that were admitted while it waited.
    pub passed_by: u32,
}

/// A step that was taken.
#[derive(Clone, Copy, Debug)]
pub struct Taken {
    /// Generating rows.
    pub rows: u32,
    /// Prompt tokens.
    pub prefill: u32,
    /// Whether nothing came of it.
    pub failed: bool,
    /// How long it took.
    pub took: Duration,
}

/// What the outside knows of a request that has not ended.
#[derive(Debug)]
struct Alive {
    index: usize,
    computed: u32,
    admitted: Option<Time>,
    tokens: Vec<Time>,
    passed_by: u32,
}

/// Steps after which a simulation that has not ended is taken to be stuck.
const STUCK: u64 = 2_000_000;

/// A scheduler, a simulator, and a clock.
#[derive(Debug)]
pub struct Simulation {
    limits: Limits,
    scheduler: Scheduler,
    backend: Simulator,
    now: Time,
    arrivals: Vec<Arrival>,
    alive: HashMap<Key, Alive>,
    records: Vec<Option<Record>>,
    /// Whose cells an id holds, as the backend would know it.
    holders: HashMap<SeqId, Key>,
    /// The steps in their order.
    pub steps: Vec<Taken>,
}

impl Simulation {
    /// Nothing has come yet.
    pub fn new(limits: Limits, machine: Machine, faults: BTreeMap<u64, Fault>) -> Self {
        let size = Size {
            seq_ids: limits.seq_ids,
            cells: limits.cells,
            step_tokens: limits.step_tokens,
            vocabulary: POISON + 1,
        };
        Self {
            limits,
            scheduler: Scheduler::new(limits),
            backend: Simulator::new(size, machine, faults),
            now: Time::ZERO,
            arrivals: Vec::new(),
            alive: HashMap::new(),
            records: Vec::new(),
            holders: HashMap::new(),
            steps: Vec::new(),
        }
    }

    /// Runs until all `arrivals` have ended; returns what became of each, in their order.
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
                }
            }
            if self.step() {
                continue;
            }
            let next = events.keys().next().map(|(time, _)| *time);
            match next.into_iter().chain(self.scheduler.next_timer()).min() {
                Some(time) => self.now = self.now.max(time),
                None => return self.finish(),
            }
        }
        panic!("the simulation does not end");
    }

    fn finish(&mut self) -> Vec<Record> {
        assert!(self.scheduler.is_idle() && self.alive.is_empty());
        assert_eq!(self.scheduler.ids_used(), 0, "ids were left behind");
        assert_eq!(self.scheduler.cells_reserved(), 0, "cells were left behind");
        assert_eq!((self.scheduler.cells().used(), self.backend.used()), (0, 0));
        let records = std::mem::take(&mut self.records);
        let records = records
            .into_iter()
            .map(|record| record.expect("every request ends"));
        records.collect()
    }

    fn arrive(&mut self, index: usize) {
        let arrival = &self.arrivals[index];
        let key = Key(index as u64);
        let request = Request {
            key,
            tenant: arrival.tenant,
            priority: arrival.priority,
            prompt: arrival.prompt,
            max_tokens: arrival.max_tokens,
            arrived: arrival.at,
            queue_until: arrival.patience.map(|time| arrival.at + time),
            deadline: arrival.time.map(|time| arrival.at + time),
        };
        let alive = Alive {
            index,
            computed: 0,
            admitted: None,
            tokens: Vec::new(),
            passed_by: 0,
        };
        self.alive.insert(key, alive);
        if let Err(refused) = self.scheduler.enqueue(self.now, request) {
            match refused {
                Refused::TooLarge { needed } => assert!(needed > self.limits.cells),
                Refused::QueueFull { .. } => {
                    assert_eq!(self.scheduler.waiting(), self.limits.queue);
                }
                Refused::TenantQueueFull { .. } => {
                    // This one is among those that live, and does not wait.
                    assert_eq!(self.waiting_of(index) - 1, self.limits.tenant_queue);
                }
                Refused::Late => {
                    let arrival = &self.arrivals[index];
                    let deadline = arrival.time.map(|time| arrival.at + time);
                    assert!(deadline.is_some_and(|deadline| deadline <= self.now));
                }
            }
            self.end(key, End::Refused(refused));
        }
        assert!(self.scheduler.waiting() <= self.limits.queue);
        assert!(self.waiting_of(index) <= self.limits.tenant_queue);
    }

    /// How many of the tenant of that arrival wait.
    fn waiting_of(&self, index: usize) -> usize {
        let tenant = |index: usize| self.arrivals[index].tenant;
        let waits = |a: &&Alive| a.admitted.is_none() && tenant(a.index) == tenant(index);
        self.alive.values().filter(waits).count()
    }

    fn leave(&mut self, index: usize) {
        let key = Key(index as u64);
        if self.alive.contains_key(&key) {
            self.scheduler.cancel(key);
            self.end(key, End::Left);
        }
    }

    fn end(&mut self, key: Key, end: End) {
        let alive = self.alive.remove(&key).expect("a request ends once");
        let record = &mut self.records[alive.index];
        assert!(record.is_none(), "a request ends once");
        *record = Some(Record {
            end,
            admitted: alive.admitted,
            tokens: alive.tokens,
            ended: self.now,
            passed_by: alive.passed_by,
        });
    }

    /// Plans and computes one step. False if there was nothing to compute.
    fn step(&mut self) -> bool {
        let step = self.scheduler.plan(self.now);
        for &(key, expired) in &step.expired {
            self.end(key, End::Expired(expired));
        }
        for id in &step.clear {
            self.backend.clear(*id);
            self.holders.remove(id);
        }
        for key in &step.admitted {
            self.admitted(*key);
        }
        self.check(&step);
        if step.rows.is_empty() {
            return false;
        }
        let inputs = self.inputs(&step.rows);
        let decoded = self.backend.decode(&inputs);
        let took = self.backend.took();
        self.now += took;
        self.steps.push(Taken {
            rows: step.shape.rows,
            prefill: step.shape.prefill,
            failed: decoded.is_err(),
            took,
        });
        if decoded.is_err() {
            if let Some(key) = self.scheduler.applied(StepResult::Failed { now: self.now }) {
                self.end(key, End::GivenUp);
            }
        } else {
            let ended = self.computed(&step.rows);
            let result = StepResult::Decoded {
                ended: &ended,
                took,
            };
            assert_eq!(self.scheduler.applied(result), None);
        }
        self.check_cells();
        true
    }

    fn admitted(&mut self, key: Key) {
        let alive = self.alive.get_mut(&key).expect("it was waiting");
        assert_eq!(alive.admitted.replace(self.now), None, "admitted once");
        let tenant = self.arrivals[alive.index].tenant;
        for other in self.alive.values_mut().filter(|a| a.admitted.is_none()) {
            other.passed_by += u32::from(self.arrivals[other.index].tenant != tenant);
        }
    }

    /// What must hold of every step.
    fn check(&self, step: &Step) {
        let tokens: u32 = step.rows.iter().map(|row| row.to - row.from).sum();
        assert!(tokens <= self.limits.step_tokens);
        assert_eq!(tokens, step.shape.rows + step.shape.prefill);
        assert!(step.shape.prefill <= step.budget, "prompts within budget");
        if !step.rows.is_empty() {
            let generating = self.alive.values().filter(|a| !a.tokens.is_empty());
            let in_step = (step.shape.rows + step.skipped) as usize;
            assert_eq!(in_step, generating.count());
            let excused = self.scheduler.is_recovering();
            assert!(step.skipped == 0 || excused, "a row was left out");
        }
        assert!(self.scheduler.cells_reserved() <= self.limits.cells);
        let paused = self
            .scheduler
            .paused_until()
            .is_some_and(|until| self.now < until);
        let nothing = self.scheduler.running() == 0 || paused;
        assert_eq!(step.rows.is_empty(), nothing);
        let prompts = step.rows.iter().filter(|row| row.to < self.prompt(row.key));
        for row in prompts {
            assert!(!row.output, "no token is sampled inside a prompt");
        }
    }

    fn check_cells(&self) {
        assert_eq!(self.scheduler.cells().used() as usize, self.backend.used());
        for id in (0..self.limits.seq_ids).map(SeqId) {
            let (mirrored, real) = (self.scheduler.cells().held_by(id), self.backend.length(id));
            assert_eq!(mirrored, real, "the mirror of {id:?}");
        }
    }

    fn prompt(&self, key: Key) -> u32 {
        self.arrivals[self.alive[&key].index].prompt
    }

    /// The tokens of a sequence: its number in all positions, so that a mix-up shows.
    fn token(&self, key: Key, position: u32) -> Token {
        let arrival = &self.arrivals[self.alive[&key].index];
        let poisoned = arrival.poisoned && position + 1 == arrival.prompt;
        if poisoned {
            POISON
        } else {
            Token::try_from(key.0).unwrap_or(0) % POISON
        }
    }

    fn inputs(&mut self, rows: &[Row]) -> Vec<Input> {
        let mut inputs = Vec::new();
        for row in rows {
            let alive = self.alive.get(&row.key).expect("a row of one that ended");
            assert_eq!(row.from, alive.computed, "each token once and in order");
            let known = self.prompt(row.key) + u32::try_from(alive.tokens.len()).unwrap();
            assert!(row.from < row.to && row.to <= known);
            assert_eq!(row.output, row.to == known);
            let holder = *self.holders.entry(row.seq).or_insert(row.key);
            assert_eq!(holder, row.key, "an id has one holder until it is cleared");
            for position in row.from..row.to {
                inputs.push(Input {
                    token: self.token(row.key, position),
                    position,
                    seq: row.seq,
                    output: row.output && position + 1 == row.to,
                });
            }
        }
        inputs
    }

    fn computed(&mut self, rows: &[Row]) -> Vec<Key> {
        let mut ended = Vec::new();
        for row in rows {
            let own = self.token(row.key, 0);
            let held = self.backend.held(row.seq);
            assert!(held.iter().all(|&token| token == own), "a mix-up of cells");
            let alive = self.alive.get_mut(&row.key).expect("checked before");
            alive.computed = row.to;
            if row.output {
                alive.tokens.push(self.now);
                let arrival = &self.arrivals[alive.index];
                let last = arrival.max_tokens.min(arrival.ends_after.max(1));
                if alive.tokens.len() >= last as usize {
                    ended.push(row.key);
                }
            }
        }
        for &key in &ended {
            self.end(key, End::Finished);
        }
        ended
    }
}

enum Event {
    Arrive(usize),
    Leave(usize),
}
