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
const LADDER: [u32; 13] = [8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512];
/// What is tried before anything is known of the machine: a place on the ladder.
const UNKNOWN: usize = 2;
/// Steps scatter around what is expected of them: aim below the target.
const MARGIN: f64 = 0.8;
/// Prompts that share a step before the first of them gets more.
const SHARERS: u32 = 4;
/// The least that one of them gets.
const LEAST: u32 = 4;

/// How much has been seen to go well. The expectation rests on steps like those so far; so the size
/// rises by one place on the ladder at a time, and only after that one kept its time.
#[derive(Clone, Copy, Debug)]
pub struct Ceiling(usize);

impl Default for Ceiling {
    fn default() -> Self {
        Self(UNKNOWN)
    }
}

impl Ceiling {
    /// A step with `rows` generating rows was computed in so many seconds.
    pub fn observe(&mut self, policy: Prefill, cost: &CostModel, shape: Shape, seconds: f64) {
        let Prefill::Budgeted { gap } = policy else {
            return;
        };
        if shape.rows == 0 || shape.prefill == 0 || !cost.is_fitted() {
            return;
        }
        let alone = cost.predict(Shape {
            prefill: 0,
            ..shape
        });
        let place = LADDER.partition_point(|&chunk| chunk < shape.prefill);
        if seconds > gap * alone {
            self.0 = place.saturating_sub(1);
        } else if place >= self.0 {
            self.0 = (place + 1).min(LADDER.len() - 1);
        }
    }
}

impl Prefill {
    /// Prompt tokens that a step with `rows` generating rows may have, where `room` would fit.
    pub fn budget(
        self,
        cost: &CostModel,
        ceiling: Ceiling,
        rows: u32,
        n_kv: u32,
        room: u32,
    ) -> u32 {
        let Self::Budgeted { gap } = self else {
            return room;
        };
        if rows == 0 {
            return room;
        }
        let tried = &LADDER[..=ceiling.0];
        let chunk = if cost.is_fitted() {
            let seconds = |prefill| {
                cost.predict(Shape {
                    rows,
                    prefill,
                    n_kv,
                })
            };
            let most = MARGIN * gap * seconds(0);
            let fits = tried.iter().rev().find(|&&chunk| seconds(chunk) <= most);
            fits.copied().unwrap_or(LADDER[0])
        } else {
            LADDER[UNKNOWN]
        };
        chunk.min(room)
    }

    /// Seconds that a step with `rows` generating rows is meant to take at most; `None` if it may take
    /// as long as it likes.
    pub fn longest(self, cost: &CostModel, rows: u32, n_kv: u32) -> Option<f64> {
        let Self::Budgeted { gap } = self else {
            return None;
        };
        let alone = Shape {
            rows,
            prefill: 0,
            n_kv,
        };
        Some(MARGIN * gap * cost.predict(alone))
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

    const TOP: Ceiling = Ceiling(LADDER.len() - 1);

    #[test]
    fn the_budget_keeps_the_step_within_its_time_and_is_of_a_fixed_size() {
        let cost = fitted();
        let budget = |gap, rows| Prefill::Budgeted { gap }.budget(&cost, TOP, rows, 256, 504);
        // A step of 8 rows takes 72 ms; 16 tokens make it 104, 24 would make it 120.
        assert_eq!(budget(2.0, 8), 16);
        assert_eq!(budget(4.0, 8), 64);
        assert_eq!(budget(2.0, 0), 504);
        assert_eq!(Prefill::SlotOrder.budget(&cost, TOP, 8, 256, 504), 504);
    }

    #[test]
    fn prompts_get_on_even_where_the_smallest_chunk_is_too_much() {
        let cost = fitted();
        let budget = |cost, room| Prefill::Budgeted { gap: 1.0 }.budget(cost, TOP, 8, 256, room);
        assert_eq!((budget(&cost, 504), budget(&cost, 3)), (8, 3));
        assert_eq!(budget(&CostModel::default(), 504), 16);
    }

    #[test]
    fn sizes_rise_one_by_one_and_fall_when_a_step_takes_too_long() {
        let cost = fitted();
        let policy = Prefill::Budgeted { gap: 100.0 };
        let mut ceiling = Ceiling::default();
        let budget = |ceiling| policy.budget(&cost, ceiling, 8, 256, 504);
        let mut sizes = vec![budget(ceiling)];
        for seconds in [0.1, 0.1, 0.1, 9.0, 0.1] {
            let prefill = budget(ceiling);
            let shape = Shape {
                rows: 8,
                prefill,
                n_kv: 256,
            };
            ceiling.observe(policy, &cost, shape, seconds);
            sizes.push(budget(ceiling));
        }
        assert_eq!(sizes, [16, 24, 32, 48, 32, 48]);
    }

    #[test]
    fn several_prompts_share_a_step() {
        let shared = Prefill::default();
        assert_eq!(shared.share(&[600, 600, 5], 64), [43, 16, 5]);
        assert_eq!(shared.share(&[600, 600, 5], 8), [4, 4, 0]);
        assert_eq!(shared.share(&[3, 4], 64), [3, 4]);
        assert_eq!(shared.share(&[600; 6], 512), [128, 128, 128, 128, 0, 0]);
        assert_eq!(Prefill::SlotOrder.share(&[600, 600], 512), [512, 0]);
    }
}
