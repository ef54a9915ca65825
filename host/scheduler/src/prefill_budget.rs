//! How many prompt tokens a step computes, and how prompts share them.
//!
//! Prefill makes a step longer, and every decoding request waits for it. So a step with decode rows takes only as many
//! prompt tokens as keep nearly every step within `max_step_stretch` times the usual time without them, as the
//! [profile](crate::prefill_profile) predicts. The number is one of a few fixed sizes, so that the backend can reuse
//! its computation graph. Without decode rows no request waits for the step, and prompts fill it.
//!
//! A matrix multiplication computes rows in *tiles* of a fixed height, in the same time whether a tile is full or not.
//! So the prompt tokens that fill the last tile of the decode rows are almost free, and come on top of the budget.

use crate::cost_model::CostModel;
use crate::prefill_profile::{CHUNK_SIZES, INITIAL_SIZE, PrefillProfile, tile_fill};
use crate::step::StepShape;

/// How prompts are computed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum PrefillPolicy {
    /// As many tokens as keep a step within `max_step_stretch` times the time of its decode rows, but at least the
    /// smallest chunk. If more requests usually run than the step has decode rows, the time of that many rows counts.
    Budgeted {
        /// At least 1.
        max_step_stretch: f64,
    },
    /// As many tokens as fit the step, one prompt after the other in the order of admission. For comparisons with
    /// servers that have no budget.
    Unbudgeted,
}

impl Default for PrefillPolicy {
    fn default() -> Self {
        Self::Budgeted {
            max_step_stretch: 2.0,
        }
    }
}

impl PrefillPolicy {
    /// The most that prefill may stretch a step; `None` without a bound.
    pub fn max_step_stretch(self) -> Option<f64> {
        match self {
            Self::Budgeted { max_step_stretch } => Some(max_step_stretch),
            Self::Unbudgeted => None,
        }
    }
}

/// The budget is divided into so many equal shares, one for each of the first prompts. The first prompt gets the rest.
const SHARES: u32 = 4;
/// Fewest tokens of a share.
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
    pub fn max_step_stretch(&self) -> Option<f64> {
        self.policy.max_step_stretch()
    }

    /// Whether prompts are computed in the order of admission, one after the other.
    pub fn is_unbudgeted(&self) -> bool {
        self.policy == PrefillPolicy::Unbudgeted
    }

    /// Prompt tokens of a step beside `decoding` decoding requests, at most `room`.
    pub fn tokens(&self, costs: &CostModel, decoding: u32, n_kv: u32, room: u32) -> u32 {
        let Some(max_step_stretch) = self.max_step_stretch().filter(|_| decoding > 0) else {
            return room;
        };
        let chunk = match costs.is_fitted() {
            true => self.profile.chunk(max_step_stretch, costs, decoding, n_kv),
            false => CHUNK_SIZES[INITIAL_SIZE],
        };
        chunk.min(room)
    }

    /// Prompt tokens that fill the tile of so many decode rows, on top of [`PrefillBudget::tokens`].
    pub fn tile_fill(&self, rows: u32) -> u32 {
        self.max_step_stretch().map_or(0, |_| tile_fill(rows))
    }

    /// Divides `budget` among prompts that need `pending` more tokens each, in their order: a share to each of the first
    /// few, the rest to the first.
    pub fn divide(&self, pending: &[u32], mut budget: u32) -> Vec<u32> {
        let equal = match self.policy {
            PrefillPolicy::Budgeted { .. } => (budget / SHARES).max(MIN_SHARE),
            PrefillPolicy::Unbudgeted => u32::MAX,
        };
        let mut shares = vec![0; pending.len()];
        for most in [equal, u32::MAX] {
            for (share, &pending) in shares.iter_mut().zip(pending) {
                let more = (pending - *share).min(most).min(budget);
                *share += more;
                budget -= more;
            }
        }
        shares
    }

    /// Records that a step with prompts was planned, beside `decoding` decoding requests.
    pub fn planned(&mut self, costs: &CostModel, decoding: u32, n_kv: u32) {
        if let Some(max_step_stretch) = self.max_step_stretch() {
            self.profile
                .planned(max_step_stretch, costs, decoding, n_kv);
        }
    }

    /// Learns from a step during which so many requests ran. `costs` has not learned from it yet.
    pub fn observe(&mut self, costs: &CostModel, running: u32, shape: StepShape, seconds: f64) {
        if let Some(max_step_stretch) = self.max_step_stretch() {
            self.profile.count_running(running);
            self.profile
                .observe(max_step_stretch, costs, shape, seconds);
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
        let tokens = |max_step_stretch, rows| {
            budget(PrefillPolicy::Budgeted { max_step_stretch }).tokens(&costs, rows, 256, 504)
        };
        // A step of 8 rows takes 72 ms; 16 tokens make it 104, 24 would make it 120, and steps scatter.
        assert_eq!(tokens(2.0, 8), 16);
        assert_eq!(tokens(4.0, 8), 64);
        assert_eq!(tokens(2.0, 0), 504);
        let unbudgeted = budget(PrefillPolicy::Unbudgeted);
        assert_eq!(unbudgeted.tokens(&costs, 8, 256, 504), 504);
    }

    #[test]
    fn smallest_chunk_is_always_allowed() {
        let costs = fitted();
        let strict = budget(PrefillPolicy::Budgeted {
            max_step_stretch: 1.0,
        });
        assert_eq!(strict.tokens(&costs, 8, 256, 504), 4);
        assert_eq!(strict.tokens(&costs, 8, 256, 3), 3);
        assert_eq!(strict.tokens(&CostModel::default(), 8, 256, 504), 16);
    }

    #[test]
    fn tile_is_filled_within_a_budget_only() {
        let default = PrefillBudget::new(PrefillPolicy::default());
        assert_eq!([5, 8].map(|rows| default.tile_fill(rows)), [3, 0]);
        assert_eq!(budget(PrefillPolicy::Unbudgeted).tile_fill(5), 0);
    }

    #[test]
    fn prompts_share_a_step() {
        let default = PrefillBudget::new(PrefillPolicy::default());
        assert_eq!(default.divide(&[600, 600, 5], 64), [43, 16, 5]);
        assert_eq!(default.divide(&[600, 600, 5], 8), [4, 4, 0]);
        assert_eq!(default.divide(&[3, 4], 64), [3, 4]);
        assert_eq!(default.divide(&[600; 6], 512), [128, 128, 128, 128, 0, 0]);
        let unbudgeted = budget(PrefillPolicy::Unbudgeted);
        assert_eq!(unbudgeted.divide(&[600, 600], 512), [512, 0]);
    }
}
