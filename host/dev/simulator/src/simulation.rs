//! Drives a scheduler over the simulated backend in virtual time, as the engine thread does, and checks the invariants
//! in every step. A violation panics.

mod cache_follower;
mod check;
mod draft_model;
mod overlap;
mod record;
mod strikes;
mod swap;
mod text;

use crate::{Fault, Input, Machine, POISON, SimulatedBackend, Size};
use cache_follower::CacheFollower;
use corral_scheduler::{
    EntryId, MemoryOp, PrefixScope, Request, RequestId, RequestProgress, Retention, Row, Scheduler,
    SchedulerConfig, SchedulerCounters, Step, StepResult, Time, Token,
};
pub use record::{Arrival, End, Record, StepRecord};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;
use strikes::StrikeCount;
use swap::PendingSwapIn;
use text::SampledStep;

/// A request that has not ended, as its caller sees it.
#[derive(Debug, Default)]
struct Alive {
    index: usize,
    prompt: u32,
    /// Its prompt and generated tokens.
    text: Vec<Token>,
    /// Tokens that were computed for it, without rejected drafts.
    submitted: u32,
    /// Accepted and rejected drafts.
    drafts: (u32, u32),
    /// Tokens of its last step, once it has ended, and how many of those were not computed.
    last_gained: u32,
    uncomputed: u32,
    admitted: Option<Time>,
    tokens: Vec<Time>,
    overtaken: u32,
    /// Steps of other adapters while it could have had a row.
    adapter_wait: u32,
    /// Steps of its adapter that left it out, since its last row.
    tenant_wait: u32,
    /// An external sampler picks its next token.
    sampling: bool,
    /// The highest logits did not suffice.
    needs_all_logits: bool,
    /// Its tokens that the draft model has computed.
    drafted: u32,
}

/// Steps after which a simulation counts as stuck.
const MAX_STEPS: u64 = 100_000;

/// A scheduler, a backend and a clock.
#[derive(Debug)]
pub struct Simulation {
    config: SchedulerConfig,
    scheduler: Scheduler,
    backend: SimulatedBackend,
    machine: Machine,
    now: Time,
    /// The end of an overlapped step.
    busy_until: Time,
    arrivals: Vec<Arrival>,
    alive: HashMap<RequestId, Alive>,
    strikes: StrikeCount,
    follower: Option<CacheFollower>,
    records: Vec<Option<Record>>,
    /// The texts of finished arrivals.
    texts: HashMap<usize, Vec<Token>>,
    /// The retentions of arrivals that others continue.
    retentions: HashMap<usize, Retention>,
    /// The swapped-out states.
    store: HashMap<EntryId, Vec<u8>>,
    swap_ins: Vec<PendingSwapIn>,
    /// Operations on the store, and the interval at which one fails.
    stored: u64,
    store_fails: Option<u64>,
    /// Arrivals that return or come after another, not scheduled yet.
    returning: Vec<usize>,
    /// Answers of external samplers, not scheduled yet.
    answers: Vec<(Time, usize)>,
    /// The time that steps waited.
    pub waited: Duration,
    /// Time of the draft model since the last step.
    drafting: Duration,
    /// All steps but overlapped ones.
    pub steps: Vec<StepRecord>,
    /// The number of overlapped steps, and of their tokens.
    pub overlapped: (u32, u32),
}

enum Event {
    Arrive(usize),
    Cancel(usize),
    Answer(usize),
}

impl Simulation {
    /// A simulation without arrivals. Faults are by step, from 0.
    pub fn new(config: SchedulerConfig, machine: Machine, faults: BTreeMap<u64, Fault>) -> Self {
        let size = Size {
            seq_ids: config.seq_ids,
            cells: config.cells,
            step_tokens: config.max_step_tokens,
            vocabulary: POISON + 1,
        };
        let backend = SimulatedBackend::new(size, machine, faults).with_top(config.top_k_seq_ids);
        Self {
            config,
            scheduler: Scheduler::new(config),
            backend: match config.can_truncate {
                true => backend,
                false => backend.without_parts(),
            },
            machine,
            now: Time::ZERO,
            busy_until: Time::ZERO,
            arrivals: Vec::new(),
            alive: HashMap::new(),
            strikes: StrikeCount::default(),
            follower: None,
            records: Vec::new(),
            texts: HashMap::new(),
            retentions: HashMap::new(),
            store: HashMap::new(),
            swap_ins: Vec::new(),
            stored: 0,
            store_fails: None,
            returning: Vec::new(),
            answers: Vec::new(),
            waited: Duration::ZERO,
            drafting: Duration::ZERO,
            steps: Vec::new(),
            overlapped: (0, 0),
        }
    }

    /// Lets one in `every` operations on the swap store fail.
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

    /// What the scheduler did.
    pub fn counters(&self) -> SchedulerCounters {
        self.scheduler.counters()
    }

    /// Runs until all `arrivals` have ended. Returns their records in order, then those of arrivals that returned.
    ///
    /// # Panics
    ///
    /// If an invariant is violated, or the simulation does not end.
    pub fn run(&mut self, arrivals: Vec<Arrival>) -> Vec<Record> {
        let mut events: BTreeMap<(Time, usize), Event> = BTreeMap::new();
        for (index, arrival) in arrivals.iter().enumerate() {
            if arrival.after.is_some() {
                continue;
            }
            events.insert((arrival.at, 2 * index), Event::Arrive(index));
            if let Some(after) = arrival.cancels_after {
                events.insert((arrival.at + after, 2 * index + 1), Event::Cancel(index));
            }
        }
        self.records = vec![None; arrivals.len()];
        self.arrivals = arrivals;
        for _ in 0..MAX_STEPS {
            while let Some(entry) = events.first_entry().filter(|e| e.key().0 <= self.now) {
                match entry.remove() {
                    Event::Arrive(index) => self.arrive(index),
                    Event::Cancel(index) => self.cancel(index),
                    Event::Answer(index) => self.answer(index),
                }
            }
            let works = self.step();
            for index in std::mem::take(&mut self.returning) {
                let at = self.arrivals[index].at;
                events.insert((at, 2 * index), Event::Arrive(index));
            }
            for (at, index) in std::mem::take(&mut self.answers) {
                events.insert((at, usize::MAX - index), Event::Answer(index));
            }
            if works {
                continue;
            }
            let next = events.keys().next().map(|(time, _)| *time);
            match next.into_iter().chain(self.scheduler.next_timer()).min() {
                Some(time) => {
                    let time = self.now.max(time);
                    if self.scheduler.waiting_until().is_some() {
                        self.waited += time - self.now;
                    }
                    self.now = time;
                }
                None => return self.finish(),
            }
        }
        panic!("the simulation does not end");
    }

    /// Checks that nothing is left, and returns the records.
    fn finish(&mut self) -> Vec<Record> {
        assert!(self.scheduler.is_idle() && self.alive.is_empty());
        self.retentions.clear();
        self.scheduler.clear_prefix_cache();
        self.run_memory_ops();
        self.check_cache_changes();
        assert!(self.store.is_empty(), "swapped-out states are left");
        assert_eq!(self.scheduler.seq_ids_used(), 0, "ids are left");
        assert_eq!(self.scheduler.cells_committed(), 0, "cells are left");
        assert_eq!((self.scheduler.cells().used(), self.backend.used()), (0, 0));
        let records = std::mem::take(&mut self.records);
        let records = records
            .into_iter()
            .map(|record| record.expect("every request ends"));
        records.collect()
    }

    fn arrive(&mut self, index: usize) {
        let arrival = self.arrivals[index].clone();
        let id = RequestId(index as u64);
        let tokens = self.prompt_of(index);
        let prompt = u32::try_from(tokens.len()).unwrap();
        let is_continued = self.is_continued(index, None)
            || arrival.returns.0 > 0
            || arrival.external_sampler.is_some();
        let retention = is_continued.then(Retention::default);
        let weak = retention.as_ref().map(Retention::downgrade);
        let earlier = arrival.continued.map(|(earlier, _)| earlier);
        let request = Request {
            id,
            tenant: arrival.tenant,
            scope: PrefixScope(u64::from(arrival.tenant.0)).with(arrival.adapter),
            priority: arrival.priority,
            latency: arrival.latency,
            tokens: tokens.clone(),
            max_tokens: arrival.max_tokens,
            arrived_at: arrival.at,
            queue_until: arrival.queue_time.map(|time| arrival.at + time),
            deadline: arrival.deadline_after.map(|time| arrival.at + time),
            quota: arrival.quota,
            retention: weak.unwrap_or_default(),
            continued: earlier.and_then(|earlier| self.retentions.get(&earlier).cloned()),
            logits: arrival.logits,
            progress: RequestProgress::default(),
        };
        if let Some(earlier) =
            earlier.filter(|&earlier| !self.is_continued(earlier, Some(arrival.at)))
        {
            self.retentions.remove(&earlier);
        }
        if let Some(retention) = retention {
            self.retentions.insert(index, retention);
        }
        let alive = Alive {
            index,
            prompt,
            text: tokens,
            ..Alive::default()
        };
        self.alive.insert(id, alive);
        if let Err(error) = self.scheduler.enqueue(self.now, request) {
            self.check_refusal(index, error);
            self.end(id, End::Refused(error));
        }
        // Preempted requests return to the queue, however full it is.
        let preempted = usize::from(self.config.seq_ids);
        assert!(self.scheduler.waiting_count() <= self.config.max_queue + preempted);
        assert!(self.waiting_of_tenant(index) <= self.config.max_tenant_queue + preempted);
    }

    /// Whether another arrival continues this one; if `after` is given, one after that time.
    fn is_continued(&self, index: usize, after: Option<Time>) -> bool {
        self.arrivals.iter().any(|other| {
            let continues = other.continued.is_some_and(|(earlier, _)| earlier == index);
            continues && after.is_none_or(|after| other.at > after)
        })
    }

    fn cancel(&mut self, index: usize) {
        let id = RequestId(index as u64);
        if self.alive.contains_key(&id) {
            self.scheduler.cancel(id);
            self.end(id, End::Canceled);
        }
    }

    fn end(&mut self, id: RequestId, end: End) {
        let progress = self.scheduler.progress(id).unwrap_or_default();
        let alive = self.alive.remove(&id).expect("a request ends once");
        if end == End::Finished {
            let generated = u32::try_from(alive.tokens.len()).unwrap();
            // The scheduler does not know the last tokens yet.
            assert_eq!(alive.last_gained + progress.generated, generated);
            // The last tokens are usually not computed.
            let computed = alive.prompt + generated - alive.uncomputed;
            assert_eq!(
                alive.submitted,
                computed - progress.cached + progress.recomputed,
                "a token was not computed once: {progress:?}"
            );
            self.texts.insert(alive.index, alive.text);
            self.schedule_return(alive.index);
        }
        self.release_retention(alive.index);
        for (next, arrival) in self.arrivals.iter_mut().enumerate() {
            if arrival.after == Some(alive.index) {
                arrival.at += self.now;
                self.returning.push(next);
            }
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
            arrived: self.arrivals[alive.index].at,
            ended: self.now,
            overtaken: alive.overtaken,
            strikes: self.strikes.remove(id),
        });
    }

    /// Releases the sequence of an externally sampled request, unless others continue it.
    fn release_retention(&mut self, index: usize) {
        let sampled = self.arrivals[index].external_sampler.is_some();
        if sampled && !self.is_continued(index, None) {
            self.retentions.remove(&index);
        }
    }

    /// Lets a next-token request return with one more token.
    fn schedule_return(&mut self, index: usize) {
        let arrival = &self.arrivals[index];
        let (times, after) = arrival.returns;
        if times == 0 || arrival.max_tokens > 0 {
            return;
        }
        let next = Arrival {
            at: self.now + after,
            prompt: 1,
            continued: Some((index, u32::MAX)),
            returns: (times - 1, after),
            ..arrival.clone()
        };
        self.returning.push(self.arrivals.len());
        self.arrivals.push(next);
        self.records.push(None);
    }

    /// Plans and computes a step. False if there was nothing to do.
    fn step(&mut self) -> bool {
        self.swap_in();
        self.run_draft_model();
        let step = self.scheduler.plan(self.now);
        for &(id, expired) in &step.expired {
            self.end(id, End::Expired(expired));
        }
        self.check_wait(&step);
        self.apply_memory_ops(&step.memory_ops);
        let is_compaction = |op: &MemoryOp| matches!(op, MemoryOp::Compact(_));
        let compacted = step.memory_ops.iter().any(is_compaction);
        for id in &step.admitted {
            self.admitted(*id);
        }
        self.check_step(&step, compacted);
        self.check_adapters(&step);
        self.check_tenants(&step);
        self.check_quotas(&step);
        if step.rows.is_empty() {
            // Failed operations may have queued others.
            self.run_memory_ops();
            self.check_cells(&[]);
            self.check_cache_changes();
            return compacted || !self.swap_ins.is_empty();
        }
        self.compute(&step);
        let pending = self.scheduler.take_memory_ops();
        self.apply_memory_ops(&pending);
        self.check_cells(&pending);
        self.check_cache_changes();
        self.propose(&step.rows);
        true
    }

    /// Computes the rows of a step and reports the result.
    fn compute(&mut self, step: &Step) {
        let inputs = self.inputs(&step.rows);
        let adapted = self.backend.adapt(step.adapter);
        let decoded = adapted.and_then(|()| self.backend.decode(&inputs));
        let began = self.now;
        // It begins after the overlapped step.
        self.now = self.now.max(self.busy_until) + self.backend.took();
        let mut overlap = None;
        if decoded.is_ok() {
            let outputs = inputs.iter().filter(|input| input.output).count();
            let sampling = Duration::from_secs_f64(self.machine.sample * outputs as f64);
            overlap = self.begin_overlap(sampling);
            self.now += sampling;
        }
        let took = self.now - began;
        self.steps.push(StepRecord {
            running: self.scheduler.running_count(),
            rows: step.shape.decode_rows,
            drafts: step.shape.drafts,
            prefill: step.shape.prefill,
            overlapped: step.overlapped,
            drafting: std::mem::take(&mut self.drafting),
            is_overlap: step.is_overlap,
            failed: decoded.is_err(),
            adapter: step.adapter,
            other_tenants: step.other_tenants,
            took,
        });
        let restart = !self.config.can_truncate;
        self.strikes.stepped(&step.rows, decoded.is_err(), restart);
        if decoded.is_err() {
            let result = StepResult::Failed { now: self.now };
            if let Some(id) = self.scheduler.step_done(result) {
                self.end(id, End::Failed);
            }
            return;
        }
        let SampledStep {
            gained,
            finished,
            awaits_sampler,
            needs_all_logits,
        } = self.sample(&step.rows);
        let result = StepResult::Decoded {
            gained: &gained,
            finished: &finished,
            awaits_sampler: &awaits_sampler,
            needs_all_logits: &needs_all_logits,
            took,
        };
        assert_eq!(self.scheduler.step_done(result), None);
        if let Some((step, success)) = overlap {
            self.finish_overlap(&step, success);
        }
    }

    fn admitted(&mut self, id: RequestId) {
        let alive = self.alive.get_mut(&id).expect("it was waiting");
        if alive.admitted.is_some() {
            return;
        }
        alive.admitted = Some(self.now);
        let tenant = self.arrivals[alive.index].tenant;
        for other in self.alive.values_mut().filter(|a| a.admitted.is_none()) {
            other.overtaken += u32::from(self.arrivals[other.index].tenant != tenant);
        }
    }

    /// The inputs of rows, which must match the texts and the cells.
    fn inputs(&mut self, rows: &[Row]) -> Vec<Input> {
        let mut inputs = Vec::new();
        for row in rows {
            let alive = self.alive.get(&row.request).expect("it has not ended");
            assert!(row.known_end() as usize <= alive.text.len());
            assert_eq!(row.output, row.known_end() as usize == alive.text.len());
            assert_eq!(self.scheduler.tokens(row.request), alive.text);
            let before = &alive.text[..row.from as usize];
            assert_eq!(self.backend.held(row.seq), before, "the cells of a row");
            let known = &alive.text[row.from as usize..row.known_end() as usize];
            let drafts = self.scheduler.drafts_of(row);
            assert_eq!(drafts.len(), row.drafts as usize);
            let generated = alive.text.len() - alive.prompt as usize;
            let most = self.arrivals[alive.index].max_tokens as usize;
            assert!(drafts.is_empty() || generated + drafts.len() < most);
            for (position, &token) in (row.from..).zip(known.iter().chain(drafts)) {
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
