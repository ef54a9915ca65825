//! How much of the waiting prompts a step reads.
//!
//! Reading a prompt makes a step longer, and everyone who generates waits for it. So a step with
//! generating rows takes only as many prompt tokens as keep nearly every step within `gap` times the
//! usual time of a step without them, as [`experience`](super::experience) tells. The number
//! comes from a ladder of fixed sizes: equal steps let the backend use its computation graph again. What
//! makes the generating rows whole tiles comes on top, since it costs next to nothing.
//! Without generating rows there is nobody to hold up, and a step is filled.

use super::cost::CostModel;
use super::experience::{Experience, LADDER, UNKNOWN, fill};

/// How prompts are read.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum PrefillPolicy {
    /// As many tokens as keep a step within `gap` times the time of its generating rows alone, or of as
    /// many rows as sequences usually run; at least the smallest chunk, so that prompts always get on. With
    /// what [fills](Self::fill) the rows' tile.
    Budgeted {
        /// At least 1.
        gap: f64,
    },
    /// As many tokens as fit the step, one prompt after the other: what servers do that know no
    /// budget. Here to be measured against.
    SlotOrder,
}

impl Default for PrefillPolicy {
    fn default() -> Self {
        Self::Budgeted { gap: 2.0 }
    }
}

/// Prompts that share a step before the first of them gets more.
const SHARERS: u32 = 4;
/// The least that one of them gets.
const LEAST: u32 = 4;

impl PrefillPolicy {
    /// Prompt tokens that a step with `rows` generating rows may have, where `room` would fit.
    pub fn budget(
        self,
        cost: &CostModel,
        experience: &Experience,
        rows: u32,
        n_kv: u32,
        room: u32,
    ) -> u32 {
        let Some(gap) = self.gap() else {
            return room;
        };
        if rows == 0 {
            return room;
        }
        let chunk = if cost.is_fitted() {
            experience.fitting(gap, cost, rows, n_kv)
        } else {
            LADDER[UNKNOWN]
        };
        chunk.min(room)
    }

    /// Prompt tokens that fill the tile of a step's generating rows, to be added to what [`Self::budget`] says.
    pub fn fill(self, rows: u32) -> u32 {
        self.gap().map_or(0, |_| fill(rows))
    }

    /// What it makes of the time of generating rows at most; `None` if a step may take as long as it
    /// likes.
    pub fn gap(self) -> Option<f64> {
        match self {
            Self::Budgeted { gap } => Some(gap),
            Self::SlotOrder => None,
        }
    }

    /// Deals `budget` tokens out to prompts that need `pending` more tokens each, in the order of
    /// their turns: a part to each of the first few, what is left to the first.
    pub fn share(self, pending: &[u32], mut budget: u32) -> Vec<u32> {
        let part = match self {
            Self::Budgeted { .. } => (budget / SHARERS).max(LEAST),
            Self::SlotOrder => u32::MAX,
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
}

#[cfg(test)]
mod tests {
    use super::super::cost::StepShape;
    use super::*;

    fn fitted() -> CostModel {
        let mut cost = CostModel::default();
        for i in 0..200 {
            let (rows, prefill) = (1 + i % 8, [0, 16, 64, 512][(i % 4) as usize]);
            let seconds = 0.040 + 0.004 * f64::from(rows) + 0.002 * f64::from(prefill);
            cost.observe(
                StepShape {
                    rows,
                    prefill,
                    n_kv: 256,
                    ..StepShape::default()
                },
                seconds,
            );
        }
        cost
    }

    #[test]
    fn the_budget_keeps_the_step_within_its_time_and_is_of_a_fixed_size() {
        let cost = fitted();
        let top = Experience::daring();
        let budget =
            |gap, rows| PrefillPolicy::Budgeted { gap }.budget(&cost, &top, rows, 256, 504);
        // A step of 8 rows takes 72 ms; 16 tokens make it 104, 24 would make it 120; it scatters.
        assert_eq!(budget(2.0, 8), 16);
        assert_eq!(budget(4.0, 8), 64);
        assert_eq!(budget(2.0, 0), 504);
        assert_eq!(
            PrefillPolicy::SlotOrder.budget(&cost, &top, 8, 256, 504),
            504
        );
    }

    #[test]
    fn prompts_get_on_even_where_the_smallest_chunk_is_too_much() {
        let cost = fitted();
        let top = Experience::daring();
        let budget =
            |cost, room| PrefillPolicy::Budgeted { gap: 1.0 }.budget(cost, &top, 8, 256, room);
        assert_eq!((budget(&cost, 504), budget(&cost, 3)), (4, 3));
        assert_eq!(budget(&CostModel::default(), 504), 16);
    }

    #[test]
    fn only_where_there_is_a_budget_rows_are_filled_up() {
        assert_eq!(
            [5, 8].map(|rows| PrefillPolicy::default().fill(rows)),
            [3, 0]
        );
        assert_eq!(PrefillPolicy::SlotOrder.fill(5), 0);
    }

    #[test]
    fn several_prompts_share_a_step() {
        let shared = PrefillPolicy::default();
        assert_eq!(shared.share(&[600, 600, 5], 64), [43, 16, 5]);
        assert_eq!(shared.share(&[600, 600, 5], 8), [4, 4, 0]);
        assert_eq!(shared.share(&[3, 4], 64), [3, 4]);
        assert_eq!(shared.share(&[600; 6], 512), [128, 128, 128, 128, 0, 0]);
        assert_eq!(PrefillPolicy::SlotOrder.share(&[600, 600], 512), [512, 0]);
    }
}
