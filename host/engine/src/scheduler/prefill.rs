//! How much of the waiting prompts a step reads.
//!
//! Reading a prompt makes a step longer, and everyone who generates waits for it. So a step with
//! generating rows takes only as many prompt tokens as keep its expected time within `gap` times
//! that of the same step without them. The number comes from a ladder of fixed sizes: equal steps
//! let the backend use its computation graph again. Without generating rows there is nobody to
//! hold up, and a step is filled.

use super::cost::{CostModel, Shape};

/// How prompts are read.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Prefill {
    /// As many tokens as keep a step within `gap` times the time of its generating rows alone; at
    /// least the smallest chunk, so that prompts always get on.
    Budgeted {
        /// At least 1.
        gap: f64,
    },
    /// As many tokens as fit the step, one prompt after the other: what servers do that know no
    /// budget. Here to be measured against.
    SlotOrder,
}

impl Default for Prefill {
    fn default() -> Self {
        Self::Budgeted { gap: 2.0 }
    }
}

/// Sizes of a step's share of prompts.
const LADDER: [u32; 7] = [8, 16, 32, 64, 128, 256, 512];
/// What is tried before anything is known of the machine.
const UNKNOWN: u32 = 16;
/// What each waiting prompt gets before the first one gets more.
const QUANTUM: u32 = 16;

impl Prefill {
    /// Prompt tokens that a step with `rows` generating rows may have, where `room` would fit.
    pub fn budget(self, cost: &CostModel, rows: u32, n_kv: u32, room: u32) -> u32 {
        let Self::Budgeted { gap } = self else {
            return room;
        };
        if rows == 0 {
            return room;
        }
        let chunk = if cost.is_fitted() {
            let seconds = |prefill| {
                cost.predict(Shape {
                    rows,
                    prefill,
                    n_kv,
                })
            };
            let most = gap * seconds(0);
            let fits = LADDER.iter().rev().find(|&&chunk| seconds(chunk) <= most);
            fits.copied().unwrap_or(LADDER[0])
        } else {
            UNKNOWN
        };
        chunk.min(room)
    }

    /// Deals `budget` tokens out to prompts that need `pending` more tokens each, in the order of
    /// their turns: a little to each as far as it goes, what is left to the first.
    pub fn share(self, pending: &[u32], mut budget: u32) -> Vec<u32> {
        let quantum = match self {
            Self::Budgeted { .. } => QUANTUM,
            Self::SlotOrder => u32::MAX,
        };
        let mut shares = vec![0; pending.len()];
        for most in [quantum, u32::MAX] {
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
    use super::*;

    fn fitted() -> CostModel {
        let mut cost = CostModel::default();
        for i in 0..200 {
            let (rows, prefill) = (1 + i % 8, [0, 16, 64, 512][(i % 4) as usize]);
            let seconds = 0.040 + 0.004 * f64::from(rows) + 0.002 * f64::from(prefill);
            cost.observe(
                Shape {
                    rows,
                    prefill,
                    n_kv: 256,
                },
                seconds,
            );
        }
        cost
    }

    #[test]
    fn the_budget_keeps_the_step_within_its_time_and_is_of_a_fixed_size() {
        let cost = fitted();
        // A step of 8 rows takes 72 ms: 32 tokens make it 136, 64 would make it 200.
        assert_eq!(Prefill::default().budget(&cost, 8, 256, 504), 32);
        assert_eq!(
            Prefill::Budgeted { gap: 4.0 }.budget(&cost, 8, 256, 504),
            64
        );
        assert_eq!(Prefill::default().budget(&cost, 0, 256, 512), 512);
        assert_eq!(Prefill::SlotOrder.budget(&cost, 8, 256, 504), 504);
    }

    #[test]
    fn prompts_get_on_even_where_the_smallest_chunk_is_too_much() {
        let cost = fitted();
        assert_eq!(Prefill::Budgeted { gap: 1.0 }.budget(&cost, 8, 256, 504), 8);
        assert_eq!(Prefill::Budgeted { gap: 1.0 }.budget(&cost, 8, 256, 3), 3);
        assert_eq!(
            Prefill::default().budget(&CostModel::default(), 8, 256, 504),
            16
        );
    }

    #[test]
    fn several_prompts_share_a_step() {
        let shared = Prefill::default();
        assert_eq!(shared.share(&[600, 600, 5], 64), [43, 16, 5]);
        assert_eq!(shared.share(&[600, 600, 5], 20), [16, 4, 0]);
        assert_eq!(shared.share(&[3, 4], 64), [3, 4]);
        assert_eq!(Prefill::SlotOrder.share(&[600, 600], 512), [512, 0]);
    }
}
