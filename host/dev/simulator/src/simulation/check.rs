//! The invariants that a simulation checks in every step.

use super::{Alive, Simulation};
use corral_scheduler::{
    CHUNK_SIZES, EnqueueError, LogitsKind, MAX_SHORT_STEPS, MemoryOp, RequestState, SeqId, Step,
};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// Most steps of an adapter's turn while others wait.
const TURN_STEPS: u32 = 64;
/// The same on machines whose steps take at least [`SLOW_STEP`] seconds.
const SLOW_TURN_STEPS: u32 = 8;
const SLOW_STEP: f64 = 0.025;

impl Simulation {
    /// The reason of a refusal holds.
    pub(super) fn check_refusal(&self, index: usize, error: EnqueueError) {
        let arrival = &self.arrivals[index];
        match error {
            EnqueueError::TooLarge { needed, limit } => {
                let quota = arrival.quota.map_or(u32::MAX, |quota| quota.cells);
                assert_eq!(limit, quota.min(self.config.cells));
                assert!(needed > limit);
            }
            EnqueueError::QueueFull { .. } => {
                assert!(self.scheduler.waiting_count() >= self.config.max_queue);
            }
            EnqueueError::TenantQueueFull { .. } => {
                assert!(self.waiting_of_tenant(index) >= self.config.max_tenant_queue);
            }
            EnqueueError::DeadlinePassed => {
                let deadline = arrival.deadline_after.map(|time| arrival.at + time);
                assert!(deadline.is_some_and(|deadline| deadline <= self.now));
            }
        }
    }

    /// Waiting requests of an arrival's tenant.
    pub(super) fn waiting_of_tenant(&self, index: usize) -> usize {
        let tenant = |index: usize| self.arrivals[index].tenant;
        let waiting = self.alive.iter().filter(|(id, alive)| {
            self.scheduler.is_waiting(**id) && tenant(alive.index) == tenant(index)
        });
        waiting.count()
    }

    /// The size and rows of a step.
    pub(super) fn check_step(&self, step: &Step, compacted: bool) {
        let tokens: u32 = step.rows.iter().map(|row| row.to - row.from).sum();
        assert!(tokens <= self.config.max_step_tokens);
        let shape = step.shape;
        assert_eq!(tokens, shape.decode_rows + shape.drafts + shape.prefill);
        // The smallest chunk is always allowed.
        let prompts = match shape.prefill > CHUNK_SIZES[0] {
            true => shape.prefill + step.overlapped,
            false => shape.prefill,
        };
        assert!(prompts <= step.prefill_budget, "prompts exceed the budget");
        if step.is_overlap {
            let outputs = step.rows.iter().filter(|row| row.output).count();
            assert_eq!((shape.decode_rows, outputs, step.skipped), (0, 0, 0));
        } else if !step.rows.is_empty() {
            let requests = self.scheduler.requests();
            let decoding = requests.filter(|request| request.state == RequestState::Decode);
            let without_row = step.skipped + step.other_adapters + step.other_tenants;
            let counted = step.shape.decode_rows + without_row;
            assert_eq!(counted as usize, decoding.count());
            let recovering = self.scheduler.is_recovering();
            assert!(step.skipped == 0 || recovering, "a decode row is missing");
        }
        let drafts: u32 = step.rows.iter().map(|row| row.drafts).sum();
        assert_eq!(drafts, step.shape.drafts);
        assert!(drafts == 0 || !self.scheduler.is_recovering());
        for row in &step.rows {
            assert!(row.from < row.known_end() && row.drafts <= self.config.max_drafts);
            assert!(row.output || row.drafts == 0, "drafts without output");
            let alive = &self.alive[&row.request];
            let needs_all =
                alive.needs_all_logits || self.arrivals[alive.index].logits == LogitsKind::All;
            let top_k = self.config.logits_of(row.seq) == LogitsKind::TopK;
            assert!(
                !top_k || (!needs_all && row.drafts == 0),
                "an id of the wrong kind"
            );
            let in_prompt = row.to < alive.prompt;
            assert!(!in_prompt || !row.output, "output inside a prompt");
        }
        let most = usize::from(self.config.max_running());
        assert!(self.scheduler.running_count() <= most, "too many run");
        let paused = self
            .scheduler
            .paused_until()
            .is_some_and(|until| self.now < until);
        let waits = self.scheduler.waiting_until().is_some();
        if self.scheduler.running_count() == 0 || paused || compacted || waits {
            assert!(step.rows.is_empty());
        } else {
            let swaps_in = !self.swap_ins.is_empty();
            let ready = |state| matches!(state, RequestState::Decode | RequestState::Prefill);
            let any_ready = self.scheduler.requests().any(|one| ready(one.state));
            assert!(
                !step.rows.is_empty() || swaps_in || !any_ready,
                "no ready request has a row"
            );
        }
    }

    /// No request that decodes in the engine waits for callers. Checked before the memory operations: where those fail,
    /// a request may become ready after the step was planned.
    pub(super) fn check_wait(&self, step: &Step) {
        let until = self.scheduler.waiting_until();
        if until.is_some() || step.is_overlap {
            let others = self.scheduler.requests().filter(|request| {
                let waits = matches!(
                    request.state,
                    RequestState::WaitsForPrefix | RequestState::SwapsIn | RequestState::Samples
                );
                let arrival = &self.arrivals[self.alive[&request.id].index];
                !waits && arrival.max_tokens > 0 && arrival.external_sampler.is_none()
            });
            assert_eq!(others.count(), 0, "a decoding request waits for callers");
        }
        if let Some(until) = until {
            let most = match self.scheduler.running_count() {
                // Waiting requests start together.
                0 => {
                    assert!(self.scheduler.waiting_count() > 0, "nothing waits");
                    Duration::from_millis(5)
                }
                // A part of a long step.
                _ => Duration::from_millis(10),
            };
            assert!(until > self.now && until - self.now <= most);
        }
    }

    /// A step has one adapter, and decoding requests of the others wait at most two rounds for it, or one where all are
    /// equally urgent.
    pub(super) fn check_adapters(&mut self, step: &Step) {
        if step.rows.is_empty() || step.is_overlap {
            return;
        }
        for row in &step.rows {
            let adapter = self.arrivals[self.alive[&row.request].index].adapter;
            assert_eq!(adapter, step.adapter, "a step of two adapters");
        }
        let adapters: BTreeSet<_> = self.arrivals.iter().map(|a| a.adapter).collect();
        let priorities: BTreeSet<_> = self.arrivals.iter().map(|a| a.priority).collect();
        let others = adapters.len() - 1;
        let rounds = if priorities.len() > 1 { 2 } else { 1 };
        let turn_steps = match self.machine.fixed >= SLOW_STEP {
            true => SLOW_TURN_STEPS,
            false => TURN_STEPS,
        };
        let most = u32::try_from(rounds * others).unwrap() * turn_steps;
        let recovering = self.scheduler.is_recovering();
        for request in self.scheduler.requests() {
            let alive = self.alive.get_mut(&request.id).expect("it runs");
            let waits = request.state == RequestState::Decode && request.adapter != step.adapter;
            alive.adapter_wait = match waits && !recovering {
                true => alive.adapter_wait + 1,
                false => 0,
            };
            assert!(alive.adapter_wait <= most, "{:?} waits", request.id);
        }
    }

    /// A short step leaves out all requests of a tenant or none. A request that is left out is of no higher priority than
    /// those with rows, and waits for a bounded number of steps.
    pub(super) fn check_tenants(&mut self, step: &Step) {
        if step.rows.is_empty() || step.is_overlap || self.scheduler.is_recovering() {
            return;
        }
        let arrival = |alive: &Alive| &self.arrivals[alive.index];
        let with_rows = step.rows.iter().map(|row| &self.alive[&row.request]);
        let tenants: BTreeSet<_> = with_rows.clone().map(|one| arrival(one).tenant).collect();
        let lowest = with_rows.map(|one| arrival(one).priority).min();
        let mut left_out = 0;
        for request in self.scheduler.requests() {
            let alive = self.alive.get_mut(&request.id).expect("it runs");
            let decodes = request.state == RequestState::Decode;
            if !decodes || step.rows.iter().any(|row| row.request == request.id) {
                alive.tenant_wait = 0;
            } else if request.adapter == step.adapter {
                left_out += 1;
                alive.tenant_wait += 1;
                assert!(
                    alive.tenant_wait <= MAX_SHORT_STEPS,
                    "{:?} waits",
                    request.id
                );
                assert!(!tenants.contains(&request.tenant), "a part of a tenant");
                assert!(Some(request.priority) <= lowest, "priority waits");
            }
        }
        assert_eq!(left_out, step.other_tenants);
    }

    /// Groups keep their cell quotas, without drafts.
    pub(super) fn check_quotas(&self, step: &Step) {
        let mut held = BTreeMap::new();
        for request in self.scheduler.requests() {
            let arrival = &self.arrivals[self.alive[&request.id].index];
            let Some(quota) = arrival.quota else {
                continue;
            };
            let row = step.rows.iter().find(|row| row.request == request.id);
            let cells = row.map_or(request.computed, |row| row.known_end());
            let (all, most) = held.entry(quota.group).or_insert((0, 0));
            *all += cells;
            *most = quota.cells.max(*most);
        }
        for (group, (cells, most)) in held {
            assert!(cells <= most, "{group:?} has {cells} cells of {most}");
        }
    }

    /// The mirror matches the backend, and each id has one holder.
    pub(super) fn check_cells(&self, pending: &[MemoryOp]) {
        let (cells, backend) = (self.scheduler.cells(), &self.backend);
        assert_eq!(cells.used() as usize, backend.used(), "after {pending:?}");
        for id in (0..self.config.seq_ids).map(SeqId) {
            let (mirrored, real) = (cells.held_by(id), backend.length(id));
            assert_eq!(mirrored, real, "the mirror of {id:?}");
        }
        let mut held = BTreeSet::new();
        let running = self.scheduler.requests().map(|request| request.seq);
        let entries = self.scheduler.entries().filter_map(|entry| entry.seq);
        for seq in running.chain(entries) {
            assert!(held.insert(seq), "{seq:?} has two holders");
        }
        assert_eq!(held.len(), self.scheduler.seq_ids_used());
        self.scheduler.check_consistency();
        assert!(cells.pinned() <= cells.used());
        if !self.config.prefix_cache {
            assert_eq!(self.scheduler.entries().count(), 0);
        }
    }
}
