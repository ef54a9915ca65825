//! How long a step takes: a linear model, fitted while it runs.
//!
//! `seconds = a + b * rows + c * prefill + d * tokens * n_kv`, where `rows` generate (a token that is
//! guessed counts as another one), `prefill` tokens of prompts are read, `tokens` is the sum of both and
//! `n_kv` the cells that attention runs over. The four numbers are the least squares of the *relative* errors over the last steps, older
//! ones weighing less and less, under the condition that none is negative. A step counts by its
//! relative error, since a wrong guess of a short step stretches a gap as much as one of a long step.

/// What a step consists of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StepShape {
    /// Sequences that generate.
    pub rows: u32,
    /// Tokens that are guessed, behind theirs.
    pub drafts: u32,
    /// Tokens of prompts.
    pub prefill: u32,
    /// Cells that attention runs over.
    pub n_kv: u32,
}

const TERMS: usize = 4;
/// What a step's weight is multiplied with at each later step: some two hundred steps count.
const FORGET: f64 = 0.995;
/// Steps until the guesses are worth something.
const ENOUGH: u32 = 8;
/// A step that took this much longer than was expected was held up by something else, and counts
/// as if it had taken so much.
const OUTLIER: f64 = 4.0;
/// Keeps terms that the steps so far cannot tell apart from growing without reason.
const RIDGE: f64 = 1e-6;

impl StepShape {
    /// The factors of the four terms, scaled so that each is about 1 in a large step.
    fn terms(self) -> [f64; TERMS] {
        let rows = f64::from(self.rows) + f64::from(self.drafts);
        let tokens = rows + f64::from(self.prefill);
        [
            1.0,
            rows / 64.0,
            f64::from(self.prefill) / 512.0,
            tokens * f64::from(self.n_kv) / 1e6,
        ]
    }
}

/// The model.
#[derive(Clone, Debug, Default)]
pub struct CostModel {
    /// Weighted sums of products of the terms, and of the terms with the time.
    products: [[f64; TERMS]; TERMS],
    targets: [f64; TERMS],
    coefficients: [f64; TERMS],
    seen: u32,
}

impl CostModel {
    /// Whether it has seen enough to be asked.
    pub fn is_fitted(&self) -> bool {
        self.seen >= ENOUGH
    }

    /// Seconds that a step is expected to take.
    pub fn predict(&self, shape: StepShape) -> f64 {
        let terms = shape.terms();
        terms
            .iter()
            .zip(self.coefficients)
            .map(|(t, c)| t * c)
            .sum()
    }

    /// Seconds that so many tokens of prompts are expected to add to a step.
    pub fn prompts(&self, tokens: u32, n_kv: u32) -> f64 {
        self.predict(StepShape {
            rows: 0,
            prefill: tokens,
            n_kv,
            ..StepShape::default()
        }) - self.coefficients[0]
    }

    /// Seconds that every step is expected to take, whatever is in it.
    pub fn fixed(&self) -> f64 {
        self.coefficients[0]
    }

    /// Seconds by which each used cell is expected to make a step of so many tokens longer.
    pub fn cell(&self, tokens: u32) -> f64 {
        self.coefficients[3] * f64::from(tokens) / 1e6
    }

    /// Takes note of how long a step took, in seconds.
    pub fn observe(&mut self, shape: StepShape, seconds: f64) {
        if !seconds.is_finite() || seconds <= 0.0 {
            return;
        }
        let expected = self.predict(shape);
        let seconds = if self.is_fitted() && expected > 0.0 {
            seconds.min(expected * OUTLIER)
        } else {
            seconds
        };
        let weight = 1.0 / (seconds * seconds);
        let terms = shape.terms();
        for i in 0..TERMS {
            for j in 0..TERMS {
                self.products[i][j] = FORGET * self.products[i][j] + weight * terms[i] * terms[j];
            }
            self.targets[i] = FORGET * self.targets[i] + weight * terms[i] * seconds;
        }
        self.seen = self.seen.saturating_add(1);
        self.fit();
    }

    /// Coordinate descent on a quadratic: each coefficient in turn takes its best value, or 0.
    /// It starts from the last fit, so a few rounds are enough. What the steps so far cannot tell
    /// apart goes to the prompts and not to the constant: taken for dear, they are read in small
    /// pieces, which tells; taken for free, they would fill every step and go on doing so.
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

    /// A machine whose steps cost what the model can say.
    fn machine(shape: StepShape) -> f64 {
        let tokens = f64::from(shape.rows + shape.prefill);
        0.004
            + 0.0005 * f64::from(shape.rows)
            + 0.0002 * f64::from(shape.prefill)
            + 2e-8 * tokens * f64::from(shape.n_kv)
    }

    fn trained(disturb: impl Fn(u32) -> f64) -> CostModel {
        let mut model = CostModel::default();
        for i in 0..400u32 {
            let shape = StepShape {
                rows: i % 13,
                prefill: [0, 0, 16, 32, 0, 512][(i % 6) as usize],
                n_kv: 256 * (1 + i % 9),
                ..StepShape::default()
            };
            model.observe(shape, machine(shape) * disturb(i));
        }
        model
    }

    fn check(model: &CostModel, within: f64) {
        for (rows, prefill, n_kv) in [(1, 0, 256), (8, 0, 2048), (8, 64, 2048), (0, 512, 512)] {
            let shape = StepShape {
                rows,
                prefill,
                n_kv,
                ..StepShape::default()
            };
            let ratio = model.predict(shape) / machine(shape);
            assert!((ratio - 1.0).abs() < within, "{shape:?}: {ratio}");
        }
    }

    #[test]
    fn it_finds_a_machine_that_is_linear() {
        check(&trained(|_| 1.0), 0.05);
    }

    #[test]
    fn a_step_that_was_held_up_changes_little() {
        check(&trained(|i| if i % 40 == 7 { 50.0 } else { 1.0 }), 0.35);
    }

    #[test]
    fn it_follows_a_machine_that_becomes_slower() {
        let mut model = trained(|_| 1.0);
        for i in 0..600u32 {
            let shape = StepShape {
                rows: 1 + i % 8,
                prefill: 32 * (i % 3),
                n_kv: 512,
                ..StepShape::default()
            };
            model.observe(shape, 3.0 * machine(shape));
        }
        let shape = StepShape {
            rows: 4,
            prefill: 32,
            n_kv: 512,
            ..StepShape::default()
        };
        let ratio = model.predict(shape) / (3.0 * machine(shape));
        assert!((0.8..1.2).contains(&ratio), "{ratio}");
    }

    #[test]
    fn steps_that_are_all_alike_give_no_nonsense() {
        let mut model = CostModel::default();
        let shape = StepShape {
            rows: 8,
            prefill: 0,
            n_kv: 256,
            ..StepShape::default()
        };
        for _ in 0..10_000 {
            model.observe(shape, 0.01);
        }
        assert!((model.predict(shape) - 0.01).abs() < 1e-4);
        let other = StepShape { rows: 1, ..shape };
        assert!((0.0..=0.0101).contains(&model.predict(other)));
        model.observe(shape, f64::NAN);
        assert!(model.predict(shape).is_finite());
    }
}
