//! The setting of [overlap](crate::overlap), and overlapped work that no later step has accounted for yet.

use crate::prefill_profile::CHUNK_SIZES;
use crate::step::{Row, Step};

/// Whether prompts are computed while nothing else can be: while rows are sampled, and while steps wait
/// for callers that sample themselves. See [`plan_overlap`](crate::Scheduler::plan_overlap).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Overlap {
    /// Where it is expected to save time.
    #[default]
    Auto,
    /// Never.
    Off,
    /// Wherever it is possible: for tests.
    On,
}

impl Overlap {
    /// The setting for a model of which the CPU computes a part, if `on_cpu`. A CPU that samples can't
    /// compute at the same time, so `Auto` is off there.
    #[must_use]
    pub fn resolve(self, on_cpu: bool) -> Self {
        match self {
            Self::Auto if on_cpu => Self::Off,
            overlap => overlap,
        }
    }

    /// Cells to free for overlapped prompts, beside the tokens that a step takes itself.
    pub(crate) fn cells_to_free(self, pending: u32, budget: u32) -> u32 {
        match self {
            Self::Off => 0,
            Self::Auto | Self::On => pending.min(budget),
        }
    }
}

/// Overlapped work that counts against no step yet.
#[derive(Clone, Debug, Default)]
pub(crate) struct OverlapState {
    /// Planned rows without a result yet.
    pub planned: Vec<Row>,
    /// Tokens that count against the next step.
    pub tokens: u32,
    /// Whether these tokens are computed before the next step begins, so that its time does not include theirs.
    ran_separately: bool,
    /// See [`OverlapState::prefill_in_step_time`].
    prefill_in_step_time: Option<u32>,
}

impl OverlapState {
    /// Whether planned rows have no result yet.
    pub fn is_planned(&self) -> bool {
        !self.planned.is_empty()
    }

    /// What overlapped tokens leave of a budget: at least the smallest chunk, so that prompts complete.
    pub fn reduce(&self, budget: u32) -> u32 {
        let least = CHUNK_SIZES[0].min(budget);
        budget.saturating_sub(self.tokens).max(least)
    }

    /// Records the next step.
    pub fn step_planned(&mut self, step: &Step) {
        if step.rows.is_empty() {
            self.ran_separately = true;
        } else if step.is_overlap {
            self.prefill_in_step_time = (self.tokens == 0).then_some(0);
            self.tokens += step.shape.prefill;
            self.ran_separately = true;
        } else {
            let includes = self.tokens == 0 || !self.ran_separately;
            self.prefill_in_step_time = includes.then_some(self.tokens);
            (self.tokens, self.ran_separately) = (0, false);
        }
    }

    /// Overlapped prompt tokens whose time the last planned step includes. `None` if that is unknown: then nothing can be
    /// learned from the step's time.
    pub fn prefill_in_step_time(&self) -> Option<u32> {
        self.prefill_in_step_time
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::{AdapterId, RequestId};
    use crate::step::{SeqId, StepShape};

    fn step(prefill: u32, is_overlap: bool) -> Step {
        let row = Row {
            request: RequestId(1),
            seq: SeqId(0),
            from: 0,
            to: prefill,
            output: false,
            drafts: 0,
        };
        Step {
            rows: vec![row],
            adapter: AdapterId::NONE,
            shape: StepShape {
                prefill,
                ..StepShape::default()
            },
            is_overlap,
            ..Step::default()
        }
    }

    #[test]
    fn overlapped_tokens_reduce_one_budget() {
        let mut overlap = OverlapState {
            tokens: 24,
            ..OverlapState::default()
        };
        assert_eq!(overlap.reduce(64), 40);
        assert_eq!(overlap.reduce(25), CHUNK_SIZES[0]);
        overlap.step_planned(&step(40, false));
        assert_eq!(overlap.prefill_in_step_time(), Some(24));
        assert_eq!(overlap.reduce(64), 64);
    }

    #[test]
    fn separate_work_is_not_learned_from() {
        let mut overlap = OverlapState::default();
        overlap.step_planned(&step(16, true));
        assert_eq!(overlap.prefill_in_step_time(), Some(0));
        overlap.step_planned(&step(16, true));
        assert_eq!(
            overlap.prefill_in_step_time(),
            None,
            "it may wait for the first"
        );
        overlap.step_planned(&step(8, false));
        assert_eq!(overlap.prefill_in_step_time(), None);
        overlap.step_planned(&step(8, false));
        assert_eq!(overlap.prefill_in_step_time(), Some(0));
    }
}
