//! How many prompt tokens a step computes, and how prompts share them.
//!
//! Prefill makes a step longer, and every decoding request waits for it. So a step with decode rows takes only as many
//! prompt tokens as keep nearly every step within `gap` times the usual time without them, as the
//! [profile](crate::prefill_profile) predicts. The number comes from a few fixed sizes: equal steps let the backend
//! reuse its computation graph. The tokens that fill the tile of the decode rows come on top. Without decode rows
//! nobody waits, and the step is filled.

use crate::cost_model::CostModel;
use crate::prefill_profile::{CHUNK_SIZES, INITIAL_SIZE, PrefillProfile, tile_fill};
use crate::step::StepShape;

/// How prompts are computed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum PrefillPolicy {
    /// As many tokens as keep a step within `gap` times the time of its decode rows, or of as many rows as requests
    /// usually run; at least the smallest chunk.
    Budgeted {
        /// At least 1.
        gap: f64,
    },
    /// As many tokens as fit the step, one prompt after the other, as servers without a budget do: for comparison.
    SlotOrder,
}

impl Default for PrefillPolicy {
    fn default() -> Self {
        Self::Budgeted { gap: 2.0 }
    }
}

impl PrefillPolicy {
    /// The most that prefill may stretch a step; `None` without a bound.
    pub fn gap(self) -> Option<f64> {
        match self {
            Self::Budgeted { gap } => Some(gap),
            Self::SlotOrder => None,
        }
    }
}

/// Prompts that share a step before the first of them gets more, and the least that each gets.
const SHARERS: u32 = 4;
const MIN_SHARE: u32 = 4;

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
            profile: PrefillProfile::default(),
        }
    }

    /// The most that prefill may stretch a step; `None` without a bound.
    pub fn gap(&self) -> Option<f64> {
        self.policy.gap()
    }

    /// Whether prompts are computed in the order of admission, one after the other.
    pub fn is_slot_order(&self) -> bool {
        self.policy == PrefillPolicy::SlotOrder
    }

    /// Prompt tokens of a step that `waiting` requests wait for, at most `room`.
    pub fn tokens(&self, costs: &CostModel, waiting: u32, n_kv: u32, room: u32) -> u32 {
        let Some(gap) = self.gap().filter(|_| waiting > 0) else {
            return room;
        };
        let chunk = match costs.is_fitted() {
            true => self.profile.chunk(gap, costs, waiting, n_kv),
            false => CHUNK_SIZES[INITIAL_SIZE],
        };
        chunk.min(room)
    }

    /// Prompt tokens that fill the tile of so many decode rows, on top of [`PrefillBudget::tokens`].
    pub fn tile_fill(&self, rows: u32) -> u32 {
        self.gap().map_or(0, |_| tile_fill(rows))
    }

    /// Divides `budget` among prompts that need `pending` more tokens each, in their order: a part to each of the first
    /// few, the rest to the first.
    pub fn divide(&self, pending: &[u32], mut budget: u32) -> Vec<u32> {
        let part = match self.policy {
            PrefillPolicy::Budgeted { .. } => (budget / SHARERS).max(MIN_SHARE),
            PrefillPolicy::SlotOrder => u32::MAX,
        };
        let mut shares = vec![0; pending.len()];
        for most in [part, u32::MAX] {
            for (share, &pending) in shares.iter_mut().zip(pending) {
                let more = (pending - *share).min(most).min(budget);
                *share += more;
                budget -= more;
            }
        }
        shares
    }

    /// Records that a step with prompts was planned, which `waiting` requests wait for.
    pub fn planned(&mut self, costs: &CostModel, waiting: u32, n_kv: u32) {
        if let Some(gap) = self.gap() {
            self.profile.planned(gap, costs, waiting, n_kv);
        }
    }

    /// Learns from a step during which so many requests ran. `costs` has not learned from it yet.
    pub fn observe(&mut self, costs: &CostModel, running: u32, shape: StepShape, seconds: f64) {
        if let Some(gap) = self.gap() {
            self.profile.count_running(running);
            self.profile.observe(gap, costs, shape, seconds);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fitted() -> CostModel {
        let mut costs = CostModel::default();
        for i in 0..200 {
            let (rows, prefill) = (1 + i % 8, [0, 16, 64, 512][(i % 4) as usize]);
            let seconds = 0.040 + 0.004 * f64::from(rows) + 0.002 * f64::from(prefill);
            let shape = StepShape {
                rows,
                prefill,
                n_kv: 256,
                ..StepShape::default()
            };
            costs.observe(shape, seconds);
        }
        costs
    }

    fn budget(policy: PrefillPolicy) -> PrefillBudget {
        PrefillBudget {
            policy,
            profile: PrefillProfile::with_open_ceiling(),
        }
    }

    #[test]
    fn budget_keeps_the_target_in_fixed_sizes() {
        let costs = fitted();
        let tokens =
            |gap, rows| budget(PrefillPolicy::Budgeted { gap }).tokens(&costs, rows, 256, 504);
        // A step of 8 rows takes 72 ms; 16 tokens make it 104, 24 would make it 120, and steps scatter.
        assert_eq!(tokens(2.0, 8), 16);
        assert_eq!(tokens(4.0, 8), 64);
        assert_eq!(tokens(2.0, 0), 504);
        let slot_order = budget(PrefillPolicy::SlotOrder);
        assert_eq!(slot_order.tokens(&costs, 8, 256, 504), 504);
    }

    #[test]
    fn smallest_chunk_is_always_allowed() {
        let costs = fitted();
        let strict = budget(PrefillPolicy::Budgeted { gap: 1.0 });
        assert_eq!(strict.tokens(&costs, 8, 256, 504), 4);
        assert_eq!(strict.tokens(&costs, 8, 256, 3), 3);
        assert_eq!(strict.tokens(&CostModel::default(), 8, 256, 504), 16);
    }

    #[test]
    fn tile_is_filled_within_a_budget_only() {
        let default = PrefillBudget::new(PrefillPolicy::default());
        assert_eq!([5, 8].map(|rows| default.tile_fill(rows)), [3, 0]);
        assert_eq!(budget(PrefillPolicy::SlotOrder).tile_fill(5), 0);
    }

    #[test]
    fn prompts_share_a_step() {
        let default = PrefillBudget::new(PrefillPolicy::default());
        assert_eq!(default.divide(&[600, 600, 5], 64), [43, 16, 5]);
        assert_eq!(default.divide(&[600, 600, 5], 8), [4, 4, 0]);
        assert_eq!(default.divide(&[3, 4], 64), [3, 4]);
        assert_eq!(default.divide(&[600; 6], 512), [128, 128, 128, 128, 0, 0]);
        let slot_order = budget(PrefillPolicy::SlotOrder);
        assert_eq!(slot_order.divide(&[600, 600], 512), [512, 0]);
    }
}
