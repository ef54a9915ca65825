//! What the simulation computes while rows are sampled.

use super::Simulation;
use corral_scheduler::CHUNK_SIZES;
use corral_scheduler::{RequestState, Step};
use std::time::Duration;

impl Simulation {
    /// Begins what can be computed while rows are sampled, which takes so long. Says how it will go.
    pub(super) fn begin_ahead(&mut self, sampling: Duration) -> Option<(Step, bool)> {
        let step = self.scheduler.plan_overlap(sampling)?;
        self.check_ahead(&step);
        let inputs = self.inputs(&step.rows);
        let success = self.backend.decode_ahead(&inputs).is_ok();
        self.busy = self.now + self.backend.took();
        self.ahead.0 += 1;
        Some((step, success))
    }

    /// What was begun is taken note of, after the step whose rows were sampled.
    pub(super) fn finish_ahead(&mut self, step: &Step, success: bool) {
        self.scheduler.applied_overlap(success);
        if !success {
            return;
        }
        for row in &step.rows {
            let alive = self.alive.get_mut(&row.request).expect("it had no output");
            alive.submitted += row.tokens();
        }
        self.ahead.1 += step.shape.prefill;
    }

    /// What must hold of what runs ahead: parts of prompts that are being read, without their ends, and no
    /// more than half of a budget.
    fn check_ahead(&self, step: &Step) {
        let tokens: u32 = step.rows.iter().map(|row| row.tokens()).sum();
        assert!(step.is_overlap && step.memory_ops.is_empty() && step.admitted.is_empty());
        assert_eq!((step.shape.rows, step.shape.drafts), (0, 0));
        assert_eq!(step.shape.prefill, tokens);
        assert!(tokens <= step.prefill_budget / 2 && CHUNK_SIZES.contains(&tokens));
        assert!(!self.scheduler.is_recovering());
        for row in &step.rows {
            let mut sequences = self.scheduler.requests();
            let sequence = sequences.find(|sequence| sequence.id == row.request);
            let sequence = sequence.expect("it runs");
            assert_eq!(
                (sequence.state, sequence.adapter),
                (RequestState::Prefill, step.adapter)
            );
            assert!(!row.output && row.from >= sequence.computed);
        }
    }
}
