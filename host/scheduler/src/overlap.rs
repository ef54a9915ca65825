//! Overlap: prompts that are computed while nothing else can be.
//!
//! The backend is idle while the rows of a step are sampled, and while a step waits for [callers that
//! return](crate::returning_callers). Meanwhile it computes a part of the prompts of running requests: never a last
//! token, so that there is nothing to sample; in free cells, so that nothing is evicted; and with the adapter of the
//! last step.
//!
//! The work may still run when the next step begins, and delays its decode rows. So it counts against that step's
//! [prefill budget](crate::prefill_budget), and takes at most half of it: the other half can finish prompts. It has a
//! [chunk size](CHUNK_SIZES), so that the backend can reuse its graphs.
//!
//! Its time can't be measured alone, since the next step ends when both are done. So the time of that step counts for
//! its own prompt tokens and the overlapped ones. If anything ran between the two, that time is not learned from.
//!
//! An extra step has the fixed cost of every step. So overlap pays where sampling takes longer than that.
//!
//! Optional ([`Overlap`]), and not yet measured on a GPU.

use crate::Time;
use crate::overlap_state::Overlap;
use crate::prefill_profile::CHUNK_SIZES;
use crate::request::length;
use crate::running::{RunningRequest, count};
use crate::scheduler::Scheduler;
use crate::step::{Row, Step, StepShape};
use std::time::Duration;

impl Scheduler {
    /// The prompts to compute while the rows of the last planned step are sampled, which usually takes `idle`. Call it
    /// between [`Scheduler::plan`] and [`Scheduler::step_done`] of a computed step. If it returns a step, call
    /// [`Scheduler::overlap_done`] right after `step_done`. The backend must be idle meanwhile.
    pub fn plan_overlap(&mut self, idle: Duration) -> Option<Step> {
        debug_assert!(!self.overlap.is_planned(), "two overlapped steps");
        let pays = match self.config.overlap {
            Overlap::Off => false,
            Overlap::Auto => {
                let fixed = self.costs.fixed_seconds();
                self.costs.is_fitted() && fixed > 0.0 && idle.as_secs_f64() > fixed
            }
            Overlap::On => true,
        };
        let outputs = self.planned.iter().filter(|row| row.output).count();
        // Queued memory operations would have to be done first. Prompts would make a short step long.
        if !pays || outputs == 0 || self.kv.has_ops() || !self.tenants.plans_full() {
            return None;
        }
        let outputs = u32::try_from(outputs).unwrap_or(u32::MAX);
        let delayed = count(self.running.delayed_by_long_step()).max(outputs);
        let mut step = self.prompts_alone(delayed, |_| true)?;
        self.kv.place(&step.rows);
        step.shape.n_kv = self.kv.cells.n_kv();
        self.overlap.planned.clone_from(&step.rows);
        Some(step)
    }

    /// Records whether the overlapped step was computed. If it failed, the next steps are smaller, as after any
    /// failure.
    pub fn overlap_done(&mut self, success: bool) {
        debug_assert!(self.planned.is_empty(), "overlap_done before step_done");
        let mut rows = std::mem::take(&mut self.overlap.planned);
        // The cells of a request that ended are gone.
        rows.retain(|row| {
            let running = self.running.get(row.request);
            running.is_some_and(|running| running.seq == row.seq)
        });
        if !success {
            self.adapters.step_failed();
            self.kv.undo(&rows);
            self.restart(&rows);
            // Half of the next step with these rows. Decoding requests were not part of them and all continue.
            let tokens: u32 = rows.iter().map(Row::tokens).sum();
            let decoding = self.running.decoding();
            self.failure
                .halve(tokens.saturating_add(decoding.saturating_mul(2)));
            return;
        }
        for row in &rows {
            self.overlap.tokens += row.tokens();
            if let Some(running) = self.running.get_mut(row.request) {
                running.advance(row.to);
            }
        }
    }

    /// A step of prompts alone while the planned step waits for callers, if it is done by then.
    pub(crate) fn plan_during_wait(&mut self, now: Time) -> Option<Step> {
        let left = self.window.waits_until()?.saturating_sub(now).as_secs_f64();
        let off = self.config.overlap == Overlap::Off;
        if off || !self.costs.is_fitted() || self.adapters.is_changing() {
            return None;
        }
        let n_kv = self.kv.cells.n_kv();
        self.prefill.profile.max_step_stretch = self.stretch(self.adapters.current());
        let delayed = count(self.running.delayed_by_long_step());
        let fits = |size| self.costs.prefill_step_seconds(size, n_kv) <= left;
        let step = self.prompts_alone(delayed, fits)?;
        self.window.set_wait(None);
        Some(step)
    }

    /// A step of prompts alone, of a size that `fits`. It may delay the next rows of `delayed` requests.
    fn prompts_alone(&self, delayed: u32, fits: impl Fn(u32) -> bool) -> Option<Step> {
        let paused = self.failure.paused_until().is_some();
        if self.prefill.is_unbudgeted() || self.is_recovering() || paused {
            return None;
        }
        let (adapter, n_kv) = (self.adapters.current(), self.kv.cells.n_kv());
        // A request continues where its row of the last planned step ends.
        let computed = |running: &RunningRequest| {
            let row = self.planned.iter().find(|row| row.request == running.id());
            row.map_or(running.computed, |row| row.to)
        };
        let pending = |running: &&RunningRequest| {
            let end = length(running.tokens()).saturating_sub(1);
            end.saturating_sub(computed(running))
        };
        let prompts = self.prompts(adapter);
        let pending: Vec<_> = prompts.iter().map(pending).collect();
        let room = self.config.max_step_tokens.saturating_sub(delayed);
        let (budget, _) = self.prefill.tokens(&self.costs, delayed, n_kv, room);
        let most = (budget / 2).saturating_sub(self.overlap.tokens);
        let free = self.kv.cells.free().saturating_sub(delayed);
        let most = most.min(free).min(pending.iter().sum());
        let mut sizes = CHUNK_SIZES.iter().rev().copied();
        let size = sizes.find(|&size| size <= most && fits(size))?;
        let shares = self.prefill.divide(&pending, size);
        let parts = prompts.iter().zip(shares).filter(|(_, share)| *share > 0);
        let rows = parts.map(|(running, share)| Row {
            request: running.id(),
            seq: running.seq,
            from: computed(running),
            to: computed(running) + share,
            output: false,
            drafts: 0,
        });
        Some(Step {
            rows: rows.collect(),
            adapter,
            shape: StepShape {
                prefill: size,
                ..StepShape::default()
            },
            prefill_budget: budget,
            is_overlap: true,
            ..Step::default()
        })
    }
}
