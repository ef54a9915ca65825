//! The scheduler over the simulator, in virtual time: what the engine's thread does, with every
//! invariant checked at every step. A broken one panics.

use super::{Fault, Machine, POISON, Simulator, Size};
use crate::Token;
use crate::backend::{Backend, Input};
use crate::scheduler::speculation::accepted;
use crate::scheduler::{
    AdapterId, Claim, EntryId, Expired, Key, Limits, Memory, Priority, Refused, Request, Reuse,
    Row, Scheduler, Scope, SeqId, Step, StepResult, Tally, Tenant, Time,
};
use std::collections::{BTreeMap, BTreeSet, HashMap};
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
    /// With what it is computed.
    pub adapter: AdapterId,
    /// Tokens of the prompt, at least 1; those of `goes_on` come before them.
    pub prompt: u32,
    /// How many of them are the same for all of a family, and which family.
    pub family: (u32, u64),
    /// Its text goes on with so many tokens of an earlier one's, if that one has finished.
    pub goes_on: Option<(usize, u32)>,
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
    /// Up to so many drafts are proposed after each of its steps; some are wrong.
    pub drafts: u32,
    /// Up to so many tokens are certain after some that are sampled.
    pub forced: u32,
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
    /// When it left the queue for the first time.
    pub admitted: Option<Time>,
    /// When each of its tokens was there.
    pub tokens: Vec<Time>,
    /// Tokens that it came with.
    pub prompt: u32,
    /// Tokens of its prompt that were not computed.
    pub cached: u32,
    /// Tokens that were computed again after a preemption.
    pub recomputed: u32,
    /// Drafts that were computed and were right, and those that were not.
    pub drafts: (u32, u32),
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
    /// Drafts in them.
    pub drafts: u32,
    /// Prompt tokens.
    pub prefill: u32,
    /// Whether nothing came of it.
    pub failed: bool,
    /// With what it was computed.
    pub adapter: AdapterId,
    /// How long it took.
    pub took: Duration,
}

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
}

/// Something put aside that somebody waits for.
#[derive(Debug)]
struct Wanted {
    entry: EntryId,
    key: Key,
    /// Looks until it is at hand.
    looks: u64,
}

/// Most steps of an adapter's turn while others wait, on machines whose steps take 25 ms or more.
const TURN: u32 = 8;
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
    /// Texts of those that finished.
    texts: HashMap<usize, Vec<Token>>,
    /// Held for those that go on with an earlier one.
    claims: HashMap<usize, Claim>,
    /// What was put aside.
    store: HashMap<EntryId, Vec<u8>>,
    wanted: Vec<Wanted>,
    /// Operations on the store, and every how many of them one fails.
    stored: u64,
    store_fails: Option<u64>,
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
            backend: match limits.reuse {
                Reuse::Whole => Simulator::new(size, machine, faults).without_parts(),
                Reuse::Any | Reuse::Off => Simulator::new(size, machine, faults),
            },
            now: Time::ZERO,
            arrivals: Vec::new(),
            alive: HashMap::new(),
            records: Vec::new(),
            texts: HashMap::new(),
            claims: HashMap::new(),
            store: HashMap::new(),
            wanted: Vec::new(),
            stored: 0,
            store_fails: None,
            steps: Vec::new(),
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
    pub fn tally(&self) -> Tally {
        self.scheduler.tally()
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
        self.claims.clear();
        self.scheduler.clear_cache();
        self.see_to_memory();
        assert!(self.store.is_empty(), "something put aside was left behind");
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
        let arrival = self.arrivals[index].clone();
        let key = Key(index as u64);
        let tokens = self.prompt_of(index);
        let prompt = u32::try_from(tokens.len()).unwrap();
        let went_on = self.arrivals.iter().any(|other| {
            let earlier = |(earlier, _)| earlier == index;
            other.goes_on.is_some_and(earlier)
        });
        let claim = went_on.then(Claim::default);
        let watch = claim.as_ref().map(Claim::watch).unwrap_or_default();
        let request = Request {
            key,
            tenant: arrival.tenant,
            scope: Scope(u64::from(arrival.tenant.0)).with(arrival.adapter),
            priority: arrival.priority,
            tokens: tokens.clone(),
            max_tokens: arrival.max_tokens,
            arrived: arrival.at,
            queue_until: arrival.patience.map(|time| arrival.at + time),
            deadline: arrival.time.map(|time| arrival.at + time),
            claim: watch,
            goes_on: arrival
                .goes_on
                .and_then(|(earlier, _)| self.claims.get(&earlier).cloned()),
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
        };
        self.alive.insert(key, alive);
        if let Err(refused) = self.scheduler.enqueue(self.now, request) {
            match refused {
                Refused::TooLarge { needed } => assert!(needed > self.limits.cells),
                Refused::QueueFull { .. } => {
                    assert!(self.scheduler.waiting() >= self.limits.queue);
                }
                Refused::TenantQueueFull { .. } => {
                    assert!(self.waiting_of(index) >= self.limits.tenant_queue);
                }
                Refused::Late => {
                    let arrival = &self.arrivals[index];
                    let deadline = arrival.time.map(|time| arrival.at + time);
                    assert!(deadline.is_some_and(|deadline| deadline <= self.now));
                }
            }
            self.end(key, End::Refused(refused));
        }
        // Those that had to give way come back into the queue, however full.
        let back = usize::from(self.limits.seq_ids);
        assert!(self.scheduler.waiting() <= self.limits.queue + back);
        assert!(self.waiting_of(index) <= self.limits.tenant_queue + back);
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
        let key = Key(index as u64);
        if self.alive.contains_key(&key) {
            self.scheduler.cancel(key);
            self.end(key, End::Left);
        }
    }

    fn end(&mut self, key: Key, end: End) {
        let progress = self.scheduler.progress(key).cloned().unwrap_or_default();
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
        }
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
        });
    }

    /// Plans and computes one step. False if there was nothing to compute.
    fn step(&mut self) -> bool {
        self.bring_back();
        let step = self.scheduler.plan(self.now);
        for &(key, expired) in &step.expired {
            self.end(key, End::Expired(expired));
        }
        self.do_memory(&step.memory);
        let relocated = step.memory.iter().any(|m| matches!(m, Memory::Relocate(_)));
        for key in &step.admitted {
            self.admitted(*key);
        }
        self.check(&step, relocated);
        self.check_turns(&step);
        if step.rows.is_empty() {
            // What could not be put aside may have left something to forget.
            self.see_to_memory();
            self.check_cells(&[]);
            return relocated || !self.wanted.is_empty();
        }
        let inputs = self.inputs(&step.rows);
        let adapted = self.backend.adapt(step.adapter);
        let decoded = adapted.and_then(|()| self.backend.decode(&inputs));
        let took = self.backend.took();
        self.now += took;
        self.steps.push(Taken {
            rows: step.shape.rows - step.drafts,
            drafts: step.drafts,
            prefill: step.shape.prefill,
            failed: decoded.is_err(),
            adapter: step.adapter,
            took,
        });
        if decoded.is_err() {
            if let Some(key) = self.scheduler.applied(StepResult::Failed { now: self.now }) {
                self.end(key, End::GivenUp);
            }
        } else {
            let (sampled, ended) = self.computed(&step.rows);
            let result = StepResult::Decoded {
                sampled: &sampled,
                ended: &ended,
                took,
            };
            assert_eq!(self.scheduler.applied(result), None);
        }
        let pending = self.scheduler.take_memory();
        self.do_memory(&pending);
        self.check_cells(&pending);
        self.propose(&step.rows);
        true
    }

    /// Does what has to be done to the cells.
    fn see_to_memory(&mut self) {
        loop {
            let memory = self.scheduler.take_memory();
            if memory.is_empty() {
                return;
            }
            self.do_memory(&memory);
        }
    }

    fn do_memory(&mut self, memory: &[Memory]) {
        for operation in memory {
            match *operation {
                Memory::Clear(seq) => self.backend.clear(seq),
                Memory::Share { from, to, length } => self.backend.share(from, to, length),
                Memory::Truncate { seq, length } => self.backend.truncate(seq, length),
                Memory::Spill { entry, seq } => {
                    let saved = if self.store_fails() {
                        None
                    } else {
                        self.backend.save(seq, usize::MAX).ok()
                    };
                    match saved {
                        Some(state) => {
                            self.store.insert(entry, state);
                        }
                        None => self.scheduler.lost(entry),
                    }
                }
                Memory::Fetch { entry, key } => {
                    let looks = self.stored % 3;
                    self.wanted.push(Wanted { entry, key, looks });
                }
                Memory::Relocate(seq) => {
                    let state = self.backend.save(seq, usize::MAX);
                    self.backend.clear(seq);
                    let moved = state.is_ok_and(|state| self.backend.load(seq, &state));
                    if !moved {
                        self.scheduler.spoiled(seq);
                    }
                }
                Memory::Forget(entry) => {
                    self.store.remove(&entry);
                }
            }
        }
    }

    fn store_fails(&mut self) -> bool {
        self.stored += 1;
        self.store_fails
            .is_some_and(|every| self.stored.is_multiple_of(every))
    }

    /// Brings back what was put aside and is wanted again.
    fn bring_back(&mut self) {
        for mut wanted in std::mem::take(&mut self.wanted) {
            if wanted.looks > 0 {
                wanted.looks -= 1;
                self.wanted.push(wanted);
                continue;
            }
            let (entry, key) = (wanted.entry, wanted.key);
            let Some(seq) = self.scheduler.restore(key, entry) else {
                self.see_to_memory();
                continue;
            };
            self.see_to_memory();
            let fails = self.store_fails();
            match self.store.remove(&entry).filter(|_| !fails) {
                None => self.scheduler.lost(entry),
                Some(state) => {
                    let success = self.backend.load(seq, &state);
                    if self.scheduler.restored(key, entry, success) {
                        self.store.insert(entry, state);
                    }
                }
            }
        }
        self.see_to_memory();
    }

    fn admitted(&mut self, key: Key) {
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

    /// What must hold of every step.
    fn check(&self, step: &Step, relocated: bool) {
        let tokens: u32 = step.rows.iter().map(|row| row.to - row.from).sum();
        assert!(tokens <= self.limits.step_tokens);
        assert_eq!(tokens, step.shape.rows + step.shape.prefill);
        assert!(step.shape.prefill <= step.budget, "prompts within budget");
        if !step.rows.is_empty() {
            let generating = self
                .scheduler
                .sequences()
                .filter(|s| s.state == "generates");
            let generated = step.shape.rows - step.drafts;
            let in_step = (generated + step.skipped + step.off_turn) as usize;
            assert_eq!(in_step, generating.count());
            let excused = self.scheduler.is_recovering();
            assert!(step.skipped == 0 || excused, "a row was left out");
        }
        let drafts: u32 = step.rows.iter().map(|row| row.drafts).sum();
        assert_eq!(drafts, step.drafts);
        assert!(drafts == 0 || !self.scheduler.is_recovering());
        for row in &step.rows {
            assert!(row.from < row.certain() && row.drafts <= self.limits.drafts);
            assert!(
                row.output || row.drafts == 0,
                "drafts follow what is certain"
            );
        }
        let paused = self
            .scheduler
            .paused_until()
            .is_some_and(|until| self.now < until);
        if self.scheduler.running() == 0 || paused || relocated {
            assert!(step.rows.is_empty());
        } else {
            let coming = !self.wanted.is_empty();
            assert!(!step.rows.is_empty() || coming, "nobody gets on");
        }
        let prompts = step.rows.iter().filter(|row| row.to < self.prompt(row.key));
        for row in prompts {
            assert!(!row.output, "no token is sampled inside a prompt");
        }
    }

    /// A step is of one adapter, and who generates waits for its own turn no longer than it should:
    /// two rounds of the other adapters, or one where all are equally urgent.
    fn check_turns(&mut self, step: &Step) {
        if step.rows.is_empty() {
            return;
        }
        for row in &step.rows {
            let adapter = self.arrivals[self.alive[&row.key].index].adapter;
            assert_eq!(adapter, step.adapter, "a step of one adapter");
        }
        let adapters: BTreeSet<_> = self.arrivals.iter().map(|a| a.adapter).collect();
        let urgencies: BTreeSet<_> = self.arrivals.iter().map(|a| a.priority).collect();
        let others = adapters.len() - 1;
        let rounds = if urgencies.len() > 1 { 2 } else { 1 };
        let most = u32::try_from(rounds * others).unwrap() * TURN;
        let excused = self.scheduler.is_recovering();
        for sequence in self.scheduler.sequences() {
            let alive = self.alive.get_mut(&sequence.key).expect("it runs");
            let off_turn = sequence.state == "generates" && sequence.adapter != step.adapter;
            let more = off_turn && !excused;
            alive.off_turn = if more { alive.off_turn + 1 } else { 0 };
            assert!(alive.off_turn <= most, "{:?} waits", sequence.key);
        }
    }

    fn check_cells(&self, pending: &[Memory]) {
        let (cells, backend) = (self.scheduler.cells(), &self.backend);
        assert_eq!(cells.used() as usize, backend.used(), "after {pending:?}");
        for id in (0..self.limits.seq_ids).map(SeqId) {
            let (mirrored, real) = (cells.held_by(id), backend.length(id));
            assert_eq!(mirrored, real, "the mirror of {id:?}");
        }
        let mut held = std::collections::BTreeSet::new();
        let running = self.scheduler.sequences().map(|sequence| sequence.seq);
        let kept = self.scheduler.entries().filter_map(|entry| entry.seq);
        for seq in running.chain(kept) {
            assert!(held.insert(seq), "{seq:?} has two holders");
        }
        assert_eq!(held.len(), self.scheduler.ids_used());
        assert!(cells.pinned() <= cells.used());
        if self.limits.reuse == Reuse::Off {
            assert_eq!(self.scheduler.entries().count(), 0);
        }
    }

    fn prompt(&self, key: Key) -> u32 {
        self.alive[&key].prompt
    }

    /// The prompt of an arrival.
    fn prompt_of(&self, index: usize) -> Vec<Token> {
        let arrival = &self.arrivals[index];
        let earlier = arrival.goes_on.and_then(|(earlier, tokens)| {
            let text = self.texts.get(&earlier)?;
            text.get(..(tokens as usize).min(text.len()))
        });
        let mut tokens = earlier.unwrap_or_default().to_vec();
        let (shared, family) = arrival.family;
        let key = Key(index as u64);
        for position in 0..arrival.prompt {
            let same = position < shared && arrival.goes_on.is_none();
            let of = if same { Key(1 << 32 | family) } else { key };
            tokens.push(token(of, position));
        }
        if let Some(last) = tokens.last_mut().filter(|_| arrival.poisoned) {
            *last = POISON;
        }
        tokens
    }

    fn inputs(&mut self, rows: &[Row]) -> Vec<Input> {
        let mut inputs = Vec::new();
        for row in rows {
            let alive = self.alive.get(&row.key).expect("a row of one that ended");
            assert!(row.certain() as usize <= alive.text.len());
            assert_eq!(row.output, row.certain() as usize == alive.text.len());
            assert_eq!(self.scheduler.tokens(row.key), alive.text);
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

    /// What came of a step that was computed: tokens in the order of the rows, and who ended.
    fn computed(&mut self, rows: &[Row]) -> (Vec<(Key, Token)>, Vec<Key>) {
        let (mut sampled, mut ended) = (Vec::new(), Vec::new());
        for row in rows {
            let draft = self.scheduler.draft(row).to_vec();
            let alive = self.alive.get_mut(&row.key).expect("checked before");
            alive.submitted += row.certain() - row.from;
            if !row.output {
                continue;
            }
            let arrival = &self.arrivals[alive.index];
            let last = arrival.max_tokens.min(arrival.ends_after.max(1)) as usize;
            let (had, before) = (alive.tokens.len(), alive.text.len());
            while alive.tokens.len() < last {
                let gained = alive.text.len() - before;
                if gained > draft.len() || draft[..gained] != alive.text[before..] {
                    break;
                }
                // One is sampled, and some are certain to follow it.
                let chance = mix(row.key, alive.text.len(), 1);
                let forced = match arrival.forced {
                    most if most > 0 && chance.is_multiple_of(3) => {
                        chance / 3 % (u64::from(most) + 1)
                    }
                    _ => 0,
                };
                for _ in 0..=forced {
                    if alive.tokens.len() < last {
                        let position = u32::try_from(alive.text.len()).unwrap();
                        alive.text.push(token(row.key, position));
                        alive.tokens.push(self.now);
                    }
                }
            }
            let gained = &alive.text[before..];
            let right = accepted(&draft, gained);
            alive.submitted += right;
            alive.drafts.0 += right;
            alive.drafts.1 += row.drafts - right;
            sampled.extend(gained.iter().map(|&token| (row.key, token)));
            if alive.tokens.len() >= last {
                alive.told = u32::try_from(alive.tokens.len() - had).unwrap();
                alive.left = alive.told - right;
                ended.push(row.key);
            }
        }
        for &key in &ended {
            self.end(key, End::Finished);
        }
        (sampled, ended)
    }

    /// Guesses what comes next, sometimes wrongly.
    fn propose(&mut self, rows: &[Row]) {
        for row in rows {
            let Some(alive) = self.alive.get(&row.key) else {
                continue;
            };
            let chance = mix(row.key, alive.text.len(), 2);
            let most = u64::from(self.arrivals[alive.index].drafts);
            let right = chance / 7 % (most + 1);
            let mut draft = Vec::new();
            for (place, position) in (0..chance % (most + 1)).zip(alive.text.len()..) {
                let next = token(row.key, u32::try_from(position).unwrap());
                // Some wrong ones would make the step fail.
                let wrong = if chance.is_multiple_of(31) {
                    POISON
                } else {
                    next ^ 1
                };
                draft.push(if place < right { next } else { wrong });
            }
            if !draft.is_empty() {
                self.scheduler.propose(row.key, &draft);
            }
        }
    }
}

/// A number that looks random, and is the same for the same arguments.
fn mix(key: Key, position: usize, salt: u64) -> u64 {
    let mut x = (key.0 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    x ^= (position as u64).wrapping_mul(0xbf58_476d_1ce4_e5b9) ^ (salt << 56);
    x = (x ^ (x >> 30)).wrapping_mul(0x94d0_49bb_1331_11eb);
    (x ^ (x >> 31)) >> 8
}

/// The token of a sequence at a position: another one for each of both, so that a mix-up shows.
fn token(key: Key, position: u32) -> Token {
    let mixed = (key.0 + 1)
        .wrapping_mul(0x9e37_79b9_7f4a_7c15)
        .wrapping_add(u64::from(position).wrapping_mul(0xbf58_476d_1ce4_e5b9));
    #[allow(clippy::cast_possible_truncation)]
    let high = (mixed >> 33) as Token;
    high % POISON
}

enum Event {
    Arrive(usize),
    Leave(usize),
}
