//! When the draft model computes: which requests can have drafts, and the step that the drafts would join.

use crate::Token;
use crate::drafts::SKIPPED_DRAFT_DECAY;
use crate::model_drafts::{DraftCandidate, DraftPlan, DraftState, NextStep};
use crate::request::{LogitsKind, RequestId};
use crate::scheduler::Scheduler;
use crate::step::StepShape;
use std::time::Duration;

impl Scheduler {
    /// Decides what the draft model computes before the next step. `state` gets a request and its tokens; `None` means
    /// that the draft model can't draft for it. Call [`Scheduler::draft_step_done`] after each of its steps, and
    /// [`Scheduler::add_model_drafts`] for each plan with drafts.
    pub fn plan_drafts(
        &mut self,
        mut state: impl FnMut(RequestId, &[Token]) -> Option<DraftState>,
    ) -> Vec<DraftPlan> {
        debug_assert!(self.is_between_steps(), "plan_drafts during a step");
        if self.config.max_drafts == 0 || !self.costs.is_fitted() || self.is_recovering() {
            return Vec::new();
        }
        let (mut rows, mut adapter) = (0, None);
        for running in self.running.iter() {
            if running.is_prefilling() {
                return Vec::new();
            }
            if running.is_decoding() {
                rows += 1;
                if *adapter.get_or_insert(running.adapter()) != running.adapter() {
                    return Vec::new();
                }
            }
        }
        let expected_output = f64::from(self.output_length.expected());
        let mut candidates = Vec::new();
        for running in self.running.iter().filter(|running| running.is_decoding()) {
            let (request, drafts) = (&running.request, &running.drafts);
            let generated = request.progress.generated;
            // One more token is sampled after the drafts.
            let left = request.max_tokens.saturating_sub(generated + 1);
            let single_output = self.config.logits_of(running.seq) == LogitsKind::TopK;
            let can = left > 0
                && !running.is_sampled_externally()
                && !single_output
                && drafts.tokens.is_empty();
            let state = can.then(|| state(running.id(), running.tokens())).flatten();
            let Some(state) = state.filter(|state| state.max_drafts > 0) else {
                continue;
            };
            // A request that has generated much will probably generate as much again.
            let remaining = expected_output.max(f64::from(generated));
            candidates.push(DraftCandidate {
                request: running.id(),
                acceptance: self.model_drafts.acceptance.planned(drafts),
                max_drafts: state.max_drafts.min(left).min(self.config.max_drafts),
                uncomputed: state.uncomputed.max(1),
                remaining: remaining.min(f64::from(left)),
            });
        }
        if candidates.is_empty() {
            return Vec::new();
        }
        candidates.sort_by(|a, b| b.acceptance.total_cmp(&a.acceptance));
        let shape = StepShape {
            decode_rows: rows,
            n_kv: self.kv.cells.n_kv(),
            ..StepShape::default()
        };
        let (costs, profile) = (&self.costs, &self.prefill.profile);
        let seconds = |drafts| profile.seconds(costs, StepShape { drafts, ..shape });
        let cells = self.kv.cells.free().saturating_sub(rows);
        let room = self.config.max_step_tokens.saturating_sub(rows);
        let step = NextStep {
            shape,
            max_drafts: room.min(self.drafts.most()).min(cells),
            // A request that runs alone delays nobody.
            max_seconds: match self.running.len() == 1 {
                true => f64::INFINITY,
                false => profile.max_seconds(costs, shape),
            },
            max_tokens: self.config.max_step_tokens,
            seconds: &seconds,
        };
        let plans = self.model_drafts.plan(&candidates, step);
        for candidate in &candidates {
            let is_planned = |plan: &DraftPlan| plan.request == candidate.request;
            if !plans.iter().any(is_planned)
                && let Some(running) = self.running.get_mut(candidate.request)
            {
                running.drafts.planned.decay_rejections(SKIPPED_DRAFT_DECAY);
            }
        }
        plans
    }

    /// Learns from a step of the draft model: it computed `rows` sequences with `tokens` tokens together.
    pub fn draft_step_done(&mut self, rows: u32, tokens: u32, took: Duration) {
        let shape = StepShape {
            decode_rows: rows,
            prefill: tokens.saturating_sub(rows),
            n_kv: self.kv.cells.n_kv(),
            ..StepShape::default()
        };
        self.model_drafts.costs.observe(shape, took.as_secs_f64());
    }
}
