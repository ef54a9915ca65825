//! Work of [overlapped](crate::overlap) steps that no later step has accounted for yet.

use crate::prefill_profile::CHUNK_SIZES;
use crate::step::{Row, Step};

/// Overlapped work that is not accounted for.
#[derive(Clone, Debug, Default)]
pub(crate) struct OverlapState {
    /// Planned rows without a result yet.
    pub planned: Vec<Row>,
    /// Tokens that count against the next step.
    pub tokens: u32,
    /// Whether these tokens ran separately from the next step, so that its time does not include theirs.
    ran_separately: bool,
    /// Overlapped prefill in the time of the last planned step. `None`: the last time must not be learned from.
    prefill_in_last_time: Option<u32>,
}

impl OverlapState {
    /// Whether planned rows have no result yet.
    pub fn is_planned(&self) -> bool {
        !self.planned.is_empty()
    }

    /// The rest of a budget, at least the smallest chunk, so that prompts complete.
    pub fn reduce(&self, budget: u32) -> u32 {
        let least = CHUNK_SIZES[0].min(budget);
        budget.saturating_sub(self.tokens).max(least)
    }

    /// Records the next step.
    pub fn step_planned(&mut self, step: &Step) {
        if step.rows.is_empty() {
            self.ran_separately = true;
        } else if step.is_overlap {
            self.prefill_in_last_time = (self.tokens == 0).then_some(0);
            self.tokens += step.shape.prefill;
            self.ran_separately = true;
        } else {
            let includes = self.tokens == 0 || !self.ran_separately;
            self.prefill_in_last_time = includes.then_some(self.tokens);
            (self.tokens, self.ran_separately) = (0, false);
        }
    }

    /// Overlapped prefill in the time of the last planned step. `None`: the last time must not be learned from.
    pub fn prefill_in_last_time(&self) -> Option<u32> {
        self.prefill_in_last_time
    }
}
