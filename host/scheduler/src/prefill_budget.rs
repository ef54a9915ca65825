//! How many prompt tokens a step computes, and how prompts share them.
//!
//! Prefill makes a step longer, and every decoding request waits for it. So a step with decode rows takes only as many
//! prompt tokens as keep nearly every step within its [stretch](crate::latency_targets): a multiple of the usual time without
//! them, as the [profile](crate::prefill_profile) predicts. The number is one of a few fixed sizes, so that the backend
//! can reuse its computation graph. Without decode rows no request waits for the step, and prompts fill it.
//!
//! A step computes one prompt after another, since two that share it end later than one of them could. Only the
//! [first](crate::batch::prompts) leaves a quarter to the others: it may be late and long, and they short.
//!
//! A matrix multiplication computes rows in *tiles* of a fixed height, in the same time whether a tile is full or not.
//! So the prompt tokens that fill the last tile of the decode rows are almost free, and come on top of the budget.

use crate::cost_model::CostModel;
use crate::prefill_profile::{PrefillProfile, tile_fill};
use std::iter;

/// How prompts are computed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PrefillPolicy {
    /// As many tokens as keep a step within its [stretch](crate::latency_targets), but at least the smallest chunk. If more
    /// requests usually run than the step has decode rows, the time of that many rows counts.
    #[default]
    Budgeted,
    /// As many tokens as fit the step, one prompt after the other in the order of admission. For comparisons with
    /// servers that have no budget.
    Unbudgeted,
}

/// The policy and the profile.
#[derive(Clone, Debug)]
pub(crate) struct PrefillBudget {
    policy: PrefillPolicy,
    pub profile: PrefillProfile,
}

impl PrefillBudget {
    /// Nothing is learned yet.
    pub fn new(policy: PrefillPolicy) -> Self {
        Self {
            policy,
            profile: PrefillProfile::new(),
        }
    }

    /// Whether prompts are computed in the order of admission, one after the other.
    pub fn is_unbudgeted(&self) -> bool {
        self.policy == PrefillPolicy::Unbudgeted
    }

    /// Prompt tokens of a step beside `decoding` decoding requests, at most `room`, and whether the step probes a size.
    pub fn tokens(&self, costs: &CostModel, decoding: u32, n_kv: u32, room: u32) -> (u32, bool) {
        if decoding == 0 || self.is_unbudgeted() {
            return (room, false);
        }
        let (chunk, is_probe) = self.profile.chunk(costs, decoding, n_kv);
        (chunk.min(room), is_probe)
    }

    /// Prompt tokens that fill the tile of this many decode rows, on top of [`PrefillBudget::tokens`].
    pub fn tile_fill(&self, rows: u32) -> u32 {
        match self.is_unbudgeted() {
            true => 0,
            false => tile_fill(rows),
        }
    }

    /// Divides `budget` among prompts that need `pending` more tokens each: three quarters to the first, then all of it
    /// in the order of the others, and what they leave to the first.
    pub fn divide(&self, pending: &[u32], mut budget: u32) -> Vec<u32> {
        let mut shares = vec![0; pending.len()];
        let first = match self.policy {
            PrefillPolicy::Budgeted => budget - budget / 4,
            PrefillPolicy::Unbudgeted => budget,
        };
        let all = (1..pending.len()).chain([0]).map(|index| (index, u32::MAX));
        for (index, most) in iter::once((0, first)).chain(all) {
            if let (Some(share), Some(pending)) = (shares.get_mut(index), pending.get(index)) {
                let more = (pending - *share).min(most).min(budget);
                *share += more;
                budget -= more;
            }
        }
        shares
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::step::StepShape;

    fn fitted() -> CostModel {
        let mut costs = CostModel::default();
        for i in 0..200 {
            let (rows, prefill) = (1 + i % 8, [0, 16, 64, 512][(i % 4) as usize]);
            let seconds = 0.040 + 0.004 * f64::from(rows) + 0.002 * f64::from(prefill);
            let shape = StepShape {
                decode_rows: rows,
                prefill,
                n_kv: 256,
                ..StepShape::default()
            };
            costs.observe(shape, seconds);
        }
        costs
    }

    fn budget(max_step_stretch: f64) -> PrefillBudget {
        let mut budget = PrefillBudget::new(PrefillPolicy::Budgeted);
        budget.profile.max_step_stretch = max_step_stretch;
        budget
    }

    #[test]
    fn budget_keeps_the_target_in_fixed_sizes() {
        let costs = fitted();
        for (max_step_stretch, rows, room, tokens) in [
            // A step of 8 rows takes 72 ms; 16 tokens make it 104, 24 would make it 120, and steps scatter.
            (2.0, 8, 504, 16),
            // The smallest chunk is always allowed.
            (1.0, 8, 504, 4),
            (1.0, 8, 3, 3),
            (2.0, 0, 504, 504),
        ] {
            let budget = budget(max_step_stretch).tokens(&costs, rows, 256, room);
            assert_eq!(budget, (tokens, false), "{max_step_stretch} {rows} {room}");
        }
        let unmeasured = budget(1.0).tokens(&CostModel::default(), 8, 256, 504);
        assert_eq!(unmeasured, (16, false));
        let unbudgeted = PrefillBudget::new(PrefillPolicy::Unbudgeted);
        assert_eq!(unbudgeted.tokens(&costs, 8, 256, 504), (504, false));
    }

    #[test]
    fn tile_is_filled_within_a_budget_only() {
        let default = budget(2.0);
        assert_eq!([5, 8].map(|rows| default.tile_fill(rows)), [3, 0]);
        assert_eq!(
            PrefillBudget::new(PrefillPolicy::Unbudgeted).tile_fill(5),
            0
        );
    }

    #[test]
    fn prompts_share_a_step() {
        let default = budget(2.0);
        assert_eq!(default.divide(&[600, 5, 600], 64), [48, 5, 11]);
        assert_eq!(default.divide(&[600, 5], 64), [59, 5]);
        assert_eq!(default.divide(&[600, 600], 4), [3, 1]);
        assert_eq!(default.divide(&[3, 4], 64), [3, 4]);
        assert_eq!(default.divide(&[600], 512), [512]);
        assert_eq!(default.divide(&[], 512), [0; 0]);
        let unbudgeted = PrefillBudget::new(PrefillPolicy::Unbudgeted);
        assert_eq!(unbudgeted.divide(&[600, 600], 512), [512, 0]);
    }
}
