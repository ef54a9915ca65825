//! Predicts how long a step takes: a linear model, fitted while the engine runs.
//!
//! `seconds = a + b * rows + c * prefill + d * tokens * n_kv`, with the decode rows (a draft counts as one), the
//! prefill tokens, the sum of both and the cells that attention runs over. The four coefficients minimize the
//! squared *relative* errors over the last steps, with exponentially decreasing weights, and none is negative. A
//! wrong prediction of a short step stretches an inter-token gap as much as one of a long step.

use crate::step::StepShape;

const TERMS: usize = 4;
/// Factor of a step's weight for each later step: about two hundred steps count.
const DECAY: f64 = 0.995;
/// Steps until predictions are usable.
const MIN_STEPS: u32 = 8;
/// A step that took more than this many times the prediction was delayed by something else. It counts as if it had
/// taken this many times.
const OUTLIER: f64 = 4.0;
/// Keeps coefficients that the steps so far can't separate near their last value.
const RIDGE: f64 = 1e-6;

/// The terms of a step, scaled so that each is about 1 in a large step.
fn terms(shape: StepShape) -> [f64; TERMS] {
    let rows = f64::from(shape.decode_rows) + f64::from(shape.drafts);
    let tokens = rows + f64::from(shape.prefill);
    [
        1.0,
        rows / 64.0,
        f64::from(shape.prefill) / 512.0,
        tokens * f64::from(shape.n_kv) / 1e6,
    ]
}

/// The model.
#[derive(Clone, Debug, Default)]
pub struct CostModel {
    /// Weighted sums of products of the terms, and of the terms with the time.
    products: [[f64; TERMS]; TERMS],
    targets: [f64; TERMS],
    coefficients: [f64; TERMS],
    steps: u32,
}

impl CostModel {
    /// Whether it has seen enough steps.
    pub fn is_fitted(&self) -> bool {
        self.steps >= MIN_STEPS
    }

    /// Seconds of a step.
    pub fn step_seconds(&self, shape: StepShape) -> f64 {
        let terms = terms(shape);
        terms
            .iter()
            .zip(self.coefficients)
            .map(|(t, c)| t * c)
            .sum()
    }

    /// Seconds of a step of prefill tokens alone.
    pub fn prefill_step_seconds(&self, tokens: u32, n_kv: u32) -> f64 {
        self.step_seconds(StepShape {
            prefill: tokens,
            n_kv,
            ..StepShape::default()
        })
    }

    /// Seconds that prefill tokens add to a step.
    pub fn prefill_seconds(&self, tokens: u32, n_kv: u32) -> f64 {
        self.prefill_step_seconds(tokens, n_kv) - self.coefficients[0]
    }

    /// Seconds of every step, whatever its size.
    pub fn fixed_seconds(&self) -> f64 {
        self.coefficients[0]
    }

    /// Seconds that each used cell adds to a step of this many tokens.
    pub fn cell_seconds(&self, tokens: u32) -> f64 {
        self.coefficients[3] * f64::from(tokens) / 1e6
    }

    /// Learns from a step.
    pub fn observe(&mut self, shape: StepShape, seconds: f64) {
        if !seconds.is_finite() || seconds <= 0.0 {
            return;
        }
        let expected = self.step_seconds(shape);
        let seconds = if self.is_fitted() && expected > 0.0 {
            seconds.min(expected * OUTLIER)
        } else {
            seconds
        };
        let weight = 1.0 / (seconds * seconds);
        let terms = terms(shape);
        for i in 0..TERMS {
            for j in 0..TERMS {
                self.products[i][j] = DECAY * self.products[i][j] + weight * terms[i] * terms[j];
            }
            self.targets[i] = DECAY * self.targets[i] + weight * terms[i] * seconds;
        }
        self.steps = self.steps.saturating_add(1);
        self.fit();
    }

    /// Coordinate descent on a quadratic: each coefficient in turn takes its best value, or 0. It starts from the last
    /// fit, so a few iterations suffice. Time that the steps so far can't attribute goes to prefill first. Overrated,
    /// prompts run in small chunks, which corrects it. Underrated, they would fill every step for good.
    fn fit(&mut self) {
        for _ in 0..16 {
            for i in [2, 3, 1, 0] {
                let ridge = RIDGE * self.products[0][0];
                let others: f64 = (0..TERMS)
                    .filter(|&j| j != i)
                    .map(|j| self.products[i][j] * self.coefficients[j])
                    .sum();
                let own = self.products[i][i] + ridge;
                if own > 0.0 {
                    let last = ridge * self.coefficients[i];
                    self.coefficients[i] = ((self.targets[i] - others + last) / own).max(0.0);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape(rows: u32, prefill: u32, n_kv: u32) -> StepShape {
        StepShape {
            decode_rows: rows,
            prefill,
            n_kv,
            ..StepShape::default()
        }
    }

    /// A machine that the model can describe exactly.
    fn machine(shape: StepShape) -> f64 {
        let tokens = f64::from(shape.decode_rows + shape.prefill);
        0.004
            + 0.0005 * f64::from(shape.decode_rows)
            + 0.0002 * f64::from(shape.prefill)
            + 2e-8 * tokens * f64::from(shape.n_kv)
    }

    fn trained(disturb: impl Fn(u32) -> f64) -> CostModel {
        let mut model = CostModel::default();
        for i in 0..400u32 {
            let shape = shape(
                i % 13,
                [0, 0, 16, 32, 0, 512][(i % 6) as usize],
                256 * (1 + i % 9),
            );
            model.observe(shape, machine(shape) * disturb(i));
        }
        model
    }

    fn check(model: &CostModel, within: f64) {
        for (rows, prefill, n_kv) in [(1, 0, 256), (8, 0, 2048), (8, 64, 2048), (0, 512, 512)] {
            let shape = shape(rows, prefill, n_kv);
            let ratio = model.step_seconds(shape) / machine(shape);
            assert!((ratio - 1.0).abs() < within, "{shape:?}: {ratio}");
        }
    }

    #[test]
    fn linear_machine_is_learned() {
        check(&trained(|_| 1.0), 0.05);
    }

    #[test]
    fn outlier_changes_little() {
        check(&trained(|i| if i % 40 == 7 { 50.0 } else { 1.0 }), 0.35);
    }

    #[test]
    fn slower_machine_is_followed() {
        let mut model = trained(|_| 1.0);
        for i in 0..600u32 {
            let shape = shape(1 + i % 8, 32 * (i % 3), 512);
            model.observe(shape, 3.0 * machine(shape));
        }
        let shape = shape(4, 32, 512);
        let ratio = model.step_seconds(shape) / (3.0 * machine(shape));
        assert!((0.8..1.2).contains(&ratio), "{ratio}");
    }

    #[test]
    fn identical_steps_stay_plausible() {
        let mut model = CostModel::default();
        let shape = shape(8, 0, 256);
        for _ in 0..10_000 {
            model.observe(shape, 0.01);
        }
        assert!((model.step_seconds(shape) - 0.01).abs() < 1e-4);
        let other = StepShape {
            decode_rows: 1,
            ..shape
        };
        assert!((0.0..=0.0101).contains(&model.step_seconds(other)));
        model.observe(shape, f64::NAN);
        assert!(model.step_seconds(shape).is_finite());
    }
}
