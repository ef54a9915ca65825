//! What must hold of a simulated host.

use super::{Host, STEP_TOKENS};
use crate::complaint::Complaint;
use corral_engine::Backend;
use corral_engine::scheduler::{SeqId, Step};

/// Steps between two looks at all ids.
const LOOK: u64 = 128;

impl Host {
    /// What must hold of every step.
    pub(super) fn check(&mut self, step: &Step) -> Result<(), Complaint> {
        let tokens: u32 = step.rows.iter().map(|row| row.tokens()).sum();
        let most = STEP_TOKENS.max(u32::from(self.setup.ids));
        self.holds(tokens <= most, "a step's tokens fit it")?;
        let within = step.shape.prefill <= step.budget;
        self.holds(within, "prompts keep to their budget")?;
        let all = step.skipped == 0 || self.scheduler.is_recovering();
        self.holds(all, "nobody who generates is left out")
    }

    /// What the scheduler says of the cells is so.
    pub(super) fn check_cells(&mut self) -> Result<(), Complaint> {
        let used = self.scheduler.cells().used();
        let same = used as usize == self.backend.used();
        self.holds(same, "as many cells are used as the books say")?;
        if !self.found.counts.steps.is_multiple_of(LOOK) {
            return Ok(());
        }
        let cells = self.scheduler.cells();
        let mirrored = (0..self.setup.ids)
            .map(SeqId)
            .all(|id| cells.held_by(id) == self.backend.length(id));
        self.holds(mirrored, "each id holds what the books say")
    }

    pub(super) fn holds(&mut self, so: bool, invariant: &str) -> Result<(), Complaint> {
        if so {
            self.found.counts.checks += 1;
            return Ok(());
        }
        Err(self.broken(invariant))
    }

    pub(super) fn broken(&self, invariant: &str) -> Complaint {
        let told = format!(
            "an invariant is broken at a rate of {} with seed {}, after {:.3} s of virtual time and {} \
             steps: {invariant}; this is a mistake in the scheduler or in the simulation of it",
            self.found.rate,
            self.setup.seed,
            self.now.as_secs_f64(),
            self.found.counts.steps,
        );
        Complaint::Failed(told.into())
    }
}
