//! The scheduler: [`Scheduler::plan`] makes the decisions of a step in order; [`Scheduler::step_done`] learns its
//! result.

use crate::Time;
use crate::adapter_schedule::AdapterSchedule;
use crate::admission::{Admission, PrefixSource};
use crate::batch_window::BatchWindow;
use crate::cache_changes::CacheReport;
use crate::compaction::Compaction;
use crate::config::SchedulerConfig;
use crate::cost_model::CostModel;
use crate::drafts::DraftPolicy;
use crate::failure::FailureHandling;
use crate::kv_cache::{EndedSequence, KvCache};
use crate::model_drafts::ModelDrafts;
use crate::output_length::OutputLength;
use crate::overlap_state::OverlapState;
use crate::prefill_budget::PrefillBudget;
use crate::queue::Queue;
use crate::request::{Request, RequestId};
use crate::running::{RunningRequest, RunningRequests};
use crate::step::{EnqueueError, MemoryOp, Row, Step, StepResult, StepShape};
use crate::tenant_schedule::TenantSchedule;
use crate::timers::Timers;

/// Decides what each step computes.
#[derive(Clone, Debug)]
pub struct Scheduler {
    pub(crate) config: SchedulerConfig,
    pub(crate) queue: Queue,
    pub(crate) timers: Timers,
    pub(crate) running: RunningRequests,
    pub(crate) kv: KvCache,
    pub(crate) output_length: OutputLength,
    pub(crate) costs: CostModel,
    pub(crate) prefill: PrefillBudget,
    pub(crate) drafts: DraftPolicy,
    pub(crate) model_drafts: ModelDrafts,
    pub(crate) adapters: AdapterSchedule,
    pub(crate) tenants: TenantSchedule,
    pub(crate) window: BatchWindow,
    pub(crate) failure: FailureHandling,
    pub(crate) compaction: Compaction,
    pub(crate) overlap: OverlapState,
    /// What was reported of the cache, if changes are recorded.
    pub(crate) cache_report: Option<CacheReport>,
    /// The rows of the planned step until [`Scheduler::step_done`].
    pub(crate) planned: Vec<Row>,
    /// When a step was last planned.
    pub(crate) planned_at: Time,
    /// The shape of the last step.
    pub(crate) shape: StepShape,
    // Counts since the start.
    pub(crate) admissions: u64,
    pub(crate) preempted: u64,
    pub(crate) top_k_retries: u64,
}

impl Scheduler {
    /// A scheduler without requests.
    pub fn new(mut config: SchedulerConfig) -> Self {
        config.top_k_seq_ids = config.top_k_seq_ids.min(config.seq_ids.saturating_sub(1));
        let least_tokens = u32::from(config.max_running());
        config.max_step_tokens = config.max_step_tokens.max(least_tokens);
        Self {
            config,
            queue: Queue::new(config.max_queue, config.max_tenant_queue),
            timers: Timers::default(),
            running: RunningRequests::default(),
            kv: KvCache::new(config),
            output_length: OutputLength::default(),
            costs: CostModel::default(),
            prefill: PrefillBudget::new(config.prefill),
            drafts: DraftPolicy::default(),
            model_drafts: ModelDrafts::default(),
            adapters: AdapterSchedule::default(),
            tenants: TenantSchedule::default(),
            window: BatchWindow::default(),
            failure: FailureHandling::new(config.max_step_tokens),
            compaction: Compaction::default(),
            overlap: OverlapState::default(),
            cache_report: None,
            planned: Vec::new(),
            planned_at: Time::ZERO,
            shape: StepShape::default(),
            admissions: 0,
            preempted: 0,
            top_k_retries: 0,
        }
    }

    /// Plans the next step. Every step with rows must be followed by [`Scheduler::step_done`].
    pub fn plan(&mut self, now: Time) -> Step {
        debug_assert!(self.is_between_steps(), "plan before step_done");
        self.planned_at = now;
        self.drop_released_entries(now);
        self.window.callers.start_waits(now);

        // Requests past their deadline end; groups that outgrew their quota shrink.
        let due = self.timers.due(now);
        let mut expired = self.expire_deadlines(now, &due);
        self.enforce_quotas();

        // Waiting requests start, unless the batch window is open for more to start with them. Queue times expire after
        // that, so that no request expires while there is room for it.
        let window_closes = self.hold_admission(now, &due);
        let admitted = match window_closes {
            Some(_) => Vec::new(),
            None => self.admit(now),
        };
        expired.extend(self.expire_queue_times(now, &due));

        // The step waits, or moves a sequence, or computes.
        let callers_until = self.wait_for_callers(now);
        self.window.set_wait(callers_until.or(window_closes));
        let mut step = if callers_until.is_some() {
            self.plan_during_wait(now).unwrap_or_default()
        } else if window_closes.is_some() || self.is_paused(now) || self.compact() {
            Step::default()
        } else {
            self.plan_batch()
        };

        self.kv.evict_costly(&self.costs, step.shape);
        self.kv.place(&step.rows);
        step.shape.n_kv = self.kv.cells.n_kv();
        self.planned.clone_from(&step.rows);
        self.shape = step.shape;
        self.overlap.step_planned(&step);
        Step {
            expired,
            memory_ops: self.take_memory_ops(),
            admitted,
            ..step
        }
    }

    /// Starts waiting requests in the queue's order until one has no room. That one keeps its place: until it starts, only
    /// those of [higher priority](crate::queue) overtake it, and those of tenants that run none if its own runs several.
    /// The next request [preempts](crate::preemption) running ones of lower priority; if its tenant runs none, also one
    /// of a tenant that runs several and got no less service.
    fn admit(&mut self, now: Time) -> Vec<RequestId> {
        let mut admitted = Vec::new();
        while let Some(next) = self.next_request() {
            let (id, logits) = (next.id, next.logits);
            let (priority, tenant) = (next.priority, next.tenant);
            let may_run = self.running.len() < usize::from(self.config.max_running());
            let source = may_run.then(|| self.source_with_room(next)).flatten();
            self.queue.block(id);
            let start = source.and_then(|(source, reserved)| {
                let (seq, source) = self.kv.take_id_for(source, logits)?;
                Some((seq, source, reserved))
            });
            let Some((seq, source, reserved)) = start else {
                if self.preempt_for(priority, tenant) {
                    continue;
                }
                break;
            };
            let Some(request) = self.queue.admit(id, now, source.length()) else {
                break;
            };
            self.start(request, seq, source, reserved);
            admitted.push(id);
        }
        self.queue.admissions_done();
        admitted
    }

    /// Records the result of the last planned step. Returns a request that failed alone and has ended.
    pub fn step_done(&mut self, result: StepResult<'_>) -> Option<RequestId> {
        let planned = std::mem::take(&mut self.planned);
        match result {
            StepResult::Decoded {
                gained,
                finished,
                awaits_sampler,
                needs_all_logits,
                took,
            } => {
                self.learn(took.as_secs_f64());
                for row in &planned {
                    let accepted = self.verify_drafts(row, gained);
                    if let Some(running) = self.running.get_mut(row.request) {
                        running.advance(row.known_end() + accepted);
                    }
                }
                for &(id, token) in gained {
                    if let Some(running) = self.running.get_mut(id) {
                        running.request.tokens.push(token);
                        running.drafts.tokens.clear();
                        running.request.progress.generated += 1;
                        let tenant = running.request.tenant;
                        self.queue.charge_generated(tenant);
                    }
                }
                for &id in finished {
                    let Some(running) = self.running.get(id) else {
                        continue;
                    };
                    let request = &running.request;
                    if request.is_next_token() {
                        let retention = request.retention.clone();
                        let was_late = request.progress.late;
                        self.window.callers.expect(retention, was_late, took);
                    } else {
                        self.output_length.observe(request.progress.generated);
                    }
                    self.finish(id);
                }
                self.await_samplers(awaits_sampler, took);
                self.retry_with_all_logits(needs_all_logits);
                self.failure.step_succeeded(&planned, &mut self.running);
                None
            }
            StepResult::Failed { now } => {
                self.adapters.step_failed();
                self.tenants.step_failed();
                self.kv.undo(&planned);
                self.drop_drafts(&planned);
                self.restart(&planned);
                let (running, can_truncate) = (&mut self.running, self.config.can_truncate);
                let failed = self
                    .failure
                    .step_failed(&planned, running, now, can_truncate);
                if let Some(id) = failed {
                    self.fail(id);
                }
                failed
            }
        }
    }

    /// Learns from the time of the last step. If the step changed the adapter, its time teaches only the cost of the
    /// change. The time of overlapped prompts cannot be measured alone, so they count as prompts of this step.
    fn learn(&mut self, seconds: f64) {
        if let Some(overlapped) = self.overlap.prefill_in_step_time() {
            self.shape.prefill += overlapped;
            let (costs, shape) = (&mut self.costs, self.shape);
            if !self.adapters.is_changing() {
                let running = u32::try_from(self.running.len()).unwrap_or(u32::MAX);
                self.window.observe(running);
                self.prefill.profile.observe(costs, running, shape, seconds);
                self.drafts
                    .observe(shape, seconds, costs, &self.prefill.profile);
                costs.observe(shape, seconds);
            } else if costs.is_fitted() {
                self.adapters
                    .observe_change(seconds - costs.step_seconds(shape));
            }
        }
        self.adapters.step_done(seconds);
        self.tenants.step_done(seconds);
    }

    /// Where sequences can't be truncated, restarts the requests of a failed step: parts of it may have been computed.
    pub(crate) fn restart(&mut self, rows: &[Row]) {
        if self.config.can_truncate {
            return;
        }
        for row in rows {
            if let Some(running) = self.running.get_mut(row.request) {
                running.save_progress();
                running.start_at(0);
                // This position never moves back. Else a failure of another request in the same step, at an earlier
                // position, could reset the strikes of this one again and again.
                running.failed_at = running.failed_at.max(Some(row.from));
                self.kv.clear(row.seq);
            }
        }
    }

    /// Adds a request to the queue.
    ///
    /// # Errors
    ///
    /// If the request can never run, has expired, or finds the queue full.
    pub fn enqueue(&mut self, now: Time, mut request: Request) -> Result<(), EnqueueError> {
        if let Some(retention) = &request.continued {
            request.progress.late = self.window.callers.returned(retention, request.arrived_at);
        }
        let needed = request.cells_needed();
        let quota = request.quota.map_or(u32::MAX, |quota| quota.cells);
        let limit = quota.min(self.config.cells);
        if needed > limit {
            return Err(EnqueueError::TooLarge { needed, limit });
        }
        if request.deadline.is_some_and(|deadline| deadline <= now) {
            return Err(EnqueueError::DeadlinePassed);
        }
        self.queue.check_room(now, request.tenant)?;
        self.timers.add(&request);
        self.queue.push(request);
        Ok(())
    }

    /// Ends a request before it has finished, whether it waits or runs: it was canceled, or a time limit passed. Frees
    /// its sequence, unless other requests follow it, its owner may continue it, or its cells hold the only copy of an
    /// offloaded prefix.
    pub fn cancel(&mut self, id: RequestId) {
        debug_assert!(self.is_between_steps(), "cancellation during a step");
        if self.take_waiting(id).is_some() {
            return;
        }
        let Some(running) = self.running.get(id) else {
            return;
        };
        let useful = running.request.retention.is_held() || running.holds_offloaded;
        if useful || self.running.is_followed(id) {
            self.finish(id);
        } else {
            self.fail(id);
        }
    }

    /// Ends a running request that failed, and frees its sequence: its state may be wrong.
    pub fn fail(&mut self, id: RequestId) {
        if let Some(running) = self.take_running(id) {
            self.kv.release(running.seq);
        }
    }

    /// Ends a running request, and keeps its sequence as a prefix cache entry if it may be reused.
    pub(crate) fn finish(&mut self, id: RequestId) {
        let Some(running) = self.take_running(id) else {
            return;
        };
        let RunningRequest {
            request,
            seq,
            computed,
            entry_hits,
            ..
        } = running;
        let mut tokens = request.tokens;
        tokens.truncate(computed as usize);
        let awaited = |entry| self.running.is_entry_awaited(entry);
        let ended = EndedSequence {
            scope: request.scope,
            tokens,
            seq,
            retention: request.retention,
            hits: entry_hits,
        };
        self.kv.keep_or_release(ended, awaited);
    }

    /// Takes a request that ends from the queue.
    pub(crate) fn take_waiting(&mut self, id: RequestId) -> Option<Request> {
        let request = self.queue.remove(id)?;
        self.timers.remove(&request);
        Some(request)
    }

    /// Takes a request that ends from the running ones. Its sequence id stays in use.
    fn take_running(&mut self, id: RequestId) -> Option<RunningRequest> {
        let running = self.running.remove(id)?;
        self.queue.stopped_running(running.request.tenant);
        self.timers.remove(&running.request);
        self.remove_from_prefix_tree(&running);
        Some(running)
    }

    /// Takes the memory operations that must precede anything else.
    pub fn take_memory_ops(&mut self) -> Vec<MemoryOp> {
        self.kv.take_ops()
    }

    /// Whether there is nothing to do until a request arrives.
    pub fn is_idle(&self) -> bool {
        self.queue.is_empty() && self.running.is_empty() && !self.kv.has_ops()
    }

    /// Whether steps are small because one failed lately.
    pub fn is_recovering(&self) -> bool {
        self.failure.is_recovering(&self.running)
    }

    /// When [`Scheduler::plan`] has to be called again even if nothing else happens.
    pub fn next_timer(&self) -> Option<Time> {
        let pause = self.paused_until().filter(|_| self.running.any_ready());
        let timers = self.timers.next().into_iter().chain(pause);
        timers.chain(self.waiting_until()).min()
    }

    /// Until when the last planned step waits: for callers to return, or for more requests to start with it.
    pub fn waiting_until(&self) -> Option<Time> {
        self.window.waits_until()
    }

    /// Until when nothing is computed, because a step failed.
    pub fn paused_until(&self) -> Option<Time> {
        self.failure.paused_until()
    }

    fn is_paused(&self, now: Time) -> bool {
        self.paused_until().is_some_and(|until| now < until)
    }

    /// Whether every planned step was followed by its result.
    pub(crate) fn is_between_steps(&self) -> bool {
        self.planned.is_empty() && !self.overlap.is_planned()
    }

    pub(crate) fn admission(&self) -> Admission<'_> {
        Admission {
            config: &self.config,
            running: &self.running,
            kv: &self.kv,
            costs: &self.costs,
            output_length: &self.output_length,
        }
    }

    /// The best source for a waiting request and the cells it reserves, if there is room for it.
    fn source_with_room(&self, request: &Request) -> Option<(PrefixSource, u32)> {
        let admission = self.admission();
        let source = admission.source(request, u64::MAX);
        let reserved = admission.reservation(request);
        let fits = self.running.is_empty() || admission.fits(source, reserved);
        fits.then_some((source, reserved))
    }

    /// The next request to start.
    pub(crate) fn next_request(&self) -> Option<&Request> {
        let admission = self.admission();
        self.queue
            .next(|request| admission.is_within_quota(request))
    }

    /// Moves a sequence to lower cells if that pays.
    fn compact(&mut self) -> bool {
        self.config.can_reuse_part()
            && !self.running.is_empty()
            && self.compaction.is_due(self.failure.successes())
            && self.kv.compact(&self.costs, self.shape)
    }

    /// Drops swapped-out sequences whose owner released them, a few in each step.
    fn drop_released_entries(&mut self, now: Time) {
        for id in self.kv.entries.sweep(now) {
            if !self.running.is_entry_awaited(id) {
                self.kv.drop_entry(id);
            }
        }
    }
}
