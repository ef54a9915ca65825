//! Overlapped steps of a simulation.

use super::Simulation;
use corral_scheduler::{CHUNK_SIZES, RequestState, Step};
use std::time::Duration;

impl Simulation {
    /// Starts a step while rows are sampled, which takes `sampling`. Returns it and whether it will succeed.
    pub(super) fn begin_overlap(&mut self, sampling: Duration) -> Option<(Step, bool)> {
        let step = self.scheduler.plan_overlap(sampling)?;
        self.check_overlap(&step);
        let inputs = self.inputs(&step.rows);
        let success = self.backend.decode_ahead(&inputs).is_ok();
        self.busy_until = self.now + self.backend.took();
        self.overlapped.0 += 1;
        Some((step, success))
    }

    /// Reports an overlapped step after the step whose rows were sampled.
    pub(super) fn finish_overlap(&mut self, step: &Step, success: bool) {
        self.scheduler.overlap_done(success);
        if !success {
            return;
        }
        for row in &step.rows {
            let alive = self.alive.get_mut(&row.request).expect("it has no output");
            alive.submitted += row.tokens();
        }
        self.overlapped.1 += step.shape.prefill;
    }

    /// An overlapped step has parts of prompts without their last tokens, and at most half of a budget.
    fn check_overlap(&self, step: &Step) {
        let tokens: u32 = step.rows.iter().map(|row| row.tokens()).sum();
        assert!(step.is_overlap && step.memory_ops.is_empty() && step.admitted.is_empty());
        assert_eq!((step.shape.decode_rows, step.shape.drafts), (0, 0));
        assert_eq!(step.shape.prefill, tokens);
        assert!(tokens <= step.prefill_budget / 2 && CHUNK_SIZES.contains(&tokens));
        assert!(!self.scheduler.is_recovering());
        for row in &step.rows {
            let mut requests = self.scheduler.requests();
            let request = requests.find(|request| request.id == row.request);
            let request = request.expect("it runs");
            assert_eq!(request.state, RequestState::Prefill);
            assert_eq!(request.adapter, step.adapter);
            assert!(!row.output && row.from >= request.computed);
        }
    }
}
