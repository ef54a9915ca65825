//! Plans a step that computes: chooses its adapter, the tenants that it leaves out and its prompt tokens, and makes room
//! for its rows. [`batch`](crate::batch) puts the rows together.
//!
//! Room is made for no more than the step computes: neither for other adapters nor for tenants that it leaves out.

use crate::adapter_schedule::AdapterCandidate;
use crate::batch;
use crate::prefill_slowdown::{self, PrefillNeed};
use crate::request::AdapterId;
use crate::running::{DecodingCount, RunningRequest, count};
use crate::scheduler::Scheduler;
use crate::step::{Step, StepShape};
use crate::tenant_schedule::{LeftOutTenants, MIN_STRETCH, demands};

/// What a step computes, before its rows are chosen.
struct BatchPlan {
    adapter: AdapterId,
    decoding: DecodingCount,
    left_out: LeftOutTenants,
    /// Most prompt tokens, including overlapped ones.
    allowed: u32,
    is_probe: bool,
}

impl BatchPlan {
    fn decode_rows(&self) -> u32 {
        self.decoding.own - self.left_out.rows()
    }
}

impl Scheduler {
    /// Decode rows, prompts within the budget, and drafts, of the adapter whose turn it is. There are cells for all.
    pub(crate) fn plan_batch(&mut self) -> Step {
        self.update_followers();
        if self.is_recovering() {
            return self.plan_recovery_batch();
        }
        let Some(plan) = self.next_batch() else {
            return Step::default();
        };
        let (adapter, decode_rows) = (plan.adapter, plan.decode_rows());
        let budget = self.overlap.reduce(plan.allowed);
        let most = plan.left_out.limit_prefill(budget);
        let budget = most.min(self.make_room_for_prefill(&plan, most));
        let mut prompts = self.prompts(adapter);
        prompts.retain(|prompt| !plan.left_out.contains(prompt));
        let (running, prefill) = (&self.running, &self.prefill);
        let rows = batch::rows(running, adapter, &plan.left_out, &prompts, budget, prefill);
        let overlapped = self.overlap.tokens;
        let allowed = plan.allowed.min(budget + overlapped);
        let left_out = plan.left_out.rows();
        let mut step = batch::step(adapter, rows, decode_rows, plan.decoding, left_out, allowed);
        step.overlapped = overlapped;
        if step.shape.prefill > 0 {
            self.prefill.profile.planned(plan.is_probe);
        }
        let (running, kv) = (&mut self.running, &mut self.kv);
        let (costs, profile) = (&self.costs, &self.prefill.profile);
        let common = &self.model_drafts.acceptance;
        self.drafts
            .extend(&mut step, running, kv, costs, profile, common);
        step
    }

    /// A small step after a failure, which helps to find the request at fault.
    fn plan_recovery_batch(&mut self) -> Step {
        while self.running.any_ready() && !self.kv.make_room(1) {
            if !self.preempt_least_important() {
                break;
            }
        }
        let tokens = self.failure.step_tokens();
        self.kv.make_room(tokens);
        let tokens = tokens.min(self.kv.cells.free());
        let one_by_one = !self.config.can_truncate && self.failure.is_one_by_one();
        let (adapter, rows, decoding) = batch::recovery_rows(&self.running, tokens, one_by_one);
        if !rows.is_empty() {
            self.adapters.begin_step(adapter, &[]);
        }
        let all_decoding = self.running.decoding_by_adapter(adapter);
        batch::step(adapter, rows, decoding, all_decoding, 0, tokens)
    }

    /// What the next step computes. Each of its decode rows has a free cell; without decode rows, one token of a prompt
    /// has. `None` if there is nothing to compute.
    fn next_batch(&mut self) -> Option<BatchPlan> {
        loop {
            let mut candidates = batch::adapters(&self.running);
            candidates.retain(|(_, decodes)| *decodes || self.kv.make_room(1));
            let candidates: Vec<_> = candidates.into_iter().map(|(one, _)| one).collect();
            if let Some(plan) = self.batch_plan(&candidates)
                && self.kv.make_room(plan.decode_rows().max(1))
            {
                self.adapters.begin_step(plan.adapter, &candidates);
                self.tenants.begin_step(plan.adapter, &plan.left_out);
                return Some(plan);
            }
            if !self.running.any_ready() {
                return None;
            }
            if !self.preempt_least_important() {
                debug_assert!(false, "a single request has room");
                return None;
            }
        }
    }

    /// A step of one of these adapters. Does not check for free cells.
    fn batch_plan(&mut self, candidates: &[AdapterCandidate]) -> Option<BatchPlan> {
        let adapter = self.adapters.next(candidates)?;
        let decoding = self.running.decoding_by_adapter(adapter);
        let room = self.config.max_step_tokens.saturating_sub(decoding.own);
        // A long step delays the requests of other adapters and of tenants that are left out as well.
        let delayed = count(self.running.delayed_by_long_step());
        let n_kv = self.kv.cells.n_kv();
        self.prefill.profile.max_step_stretch = self.stretch(adapter);
        let (allowed, is_probe) = self.prefill.tokens(&self.costs, delayed, n_kv, room);
        let allowed = (allowed + self.prefill.tile_fill(decoding.own)).min(room);
        let budget = self.overlap.reduce(allowed);
        let left_out = self.tenants_to_leave_out(adapter, budget);
        Some(BatchPlan {
            adapter,
            decoding,
            // A probe has the whole budget.
            is_probe: is_probe && left_out.limit_prefill(budget) == budget,
            left_out,
            allowed,
        })
    }

    /// The requests of an adapter in prefill, in the order of service.
    pub(crate) fn prompts(&self, adapter: AdapterId) -> Vec<&RunningRequest> {
        batch::prompts(
            &self.running,
            &self.queue,
            &self.prefill,
            adapter,
            self.planned_at,
        )
    }

    /// How many times as long as its decode rows a step of an adapter may take.
    pub(crate) fn stretch(&self, adapter: AdapterId) -> f64 {
        let prompts = self.prompts(adapter);
        let n_kv = self.kv.cells.n_kv();
        let margin = self.prefill.profile.margin();
        let is_delayed = self.running.delayed_by_long_step().next().is_some();
        let delayed = || {
            // Without decoding requests, those that are about to decode.
            let all = self.running.iter().filter(move |_| !is_delayed);
            self.running.delayed_by_long_step().chain(all)
        };
        let (costs, now) = (&self.costs, self.planned_at);
        // Most steps have no prompts, which need nothing.
        let need = match prompts.is_empty() {
            true => PrefillNeed::default(),
            false => PrefillNeed::of(prompts.into_iter(), delayed(), costs, n_kv, now, margin),
        };
        prefill_slowdown::stretch(delayed(), need)
    }

    /// The tenants that the next step of an adapter leaves out. The step may have `budget` prompt tokens. At least one row
    /// stays, provided that `budget` is above 0 whenever a request is in prefill.
    fn tenants_to_leave_out(&self, adapter: AdapterId, budget: u32) -> LeftOutTenants {
        let (costs, n_kv) = (&self.costs, self.kv.cells.n_kv());
        let seconds = |rows, prefill: u32| {
            costs.step_seconds(StepShape {
                decode_rows: rows,
                prefill: prefill.min(budget),
                n_kv,
                ..StepShape::default()
            })
        };
        // The numbers of running requests are cheap to compare, and usually show that no tenant is large.
        let Some((fewest, most)) = self.queue.running_range().filter(|_| costs.is_fitted()) else {
            return LeftOutTenants::default();
        };
        let is_large =
            |time: &dyn Fn(u32, u32) -> f64| time(most, 0) > MIN_STRETCH * time(fewest, 0);
        let by_rows = |rows, prefill| f64::from(rows) + f64::from(prefill);
        let time: &dyn Fn(u32, u32) -> f64 = if is_large(&seconds) {
            &seconds
        } else if self.tenants.is_probe_due(adapter) && is_large(&by_rows) {
            &by_rows
        } else {
            return LeftOutTenants::default();
        };
        let demands = demands(&self.running, adapter, budget);
        self.tenants.next(adapter, demands, time)
    }

    /// Frees cells for up to `budget` prompt tokens of a step, beside its decode rows and without a preemption. Returns
    /// how many of these tokens the step may take: all, unless too few cells are free.
    fn make_room_for_prefill(&mut self, plan: &BatchPlan, budget: u32) -> u32 {
        let own = self
            .running
            .iter()
            .filter(|one| one.adapter() == plan.adapter);
        let own = own.filter(|one| !plan.left_out.contains(one));
        let pending: u32 = own.map(RunningRequest::prefill_tokens).sum();
        let wanted = budget.min(pending);
        if wanted == 0 {
            return budget;
        }
        // Overlapped prompts make no room for themselves.
        let overlap = self.config.overlap;
        let overlapped = overlap.cells_to_free(pending - wanted, budget);
        let decoding = plan.decode_rows();
        let rows = decoding.saturating_add(wanted);
        self.kv.make_room(rows.saturating_add(overlapped));
        let room = self.kv.cells.free().saturating_sub(decoding);
        if room >= wanted { budget } else { room }
    }
}
