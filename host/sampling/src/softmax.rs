//! Sums of a softmax, and the bounds of temperatures.

/// Divisors stay within these bounds, so that no usual logit becomes infinite. Usual
/// logits that differ do so by more than 1e-18, so the lower bound draws the same token as temperature 0.
const DIVISORS: std::ops::RangeInclusive<f32> = 1e-20..=1e20;

/// Clamps a divisor into [`DIVISORS`].
pub fn clamp_divisor(value: f32) -> f32 {
    value.clamp(*DIVISORS.start(), *DIVISORS.end())
}

/// The sums of a softmax, where `d` is a logit minus the highest logit.
#[derive(Clone, Copy, Debug)]
pub struct SoftmaxSums {
    /// The highest logit.
    pub highest: f32,
    /// Sum of e^d.
    pub total: f64,
    /// Sum of d e^d.
    pub weighted: f64,
}

impl SoftmaxSums {
    /// Entropy of the softmax in nats: with p = e^d / Z, the sum of -p ln p is ln Z - sum(p d).
    pub fn entropy(&self) -> f64 {
        self.total.ln() - self.weighted / self.total
    }

    /// The logit of a token whose probability has this natural logarithm.
    pub fn logit(&self, log_probability: f64) -> f32 {
        (f64::from(self.highest) + self.total.ln() + log_probability) as f32
    }
}
