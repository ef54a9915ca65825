//! Statistics of measured values.

use hdrhistogram::Histogram;
use serde_json::Value;

/// Quantiles of values that are not negative, exact to three significant digits.
#[derive(Clone, Debug)]
pub struct Quantiles(Histogram<u64>);

/// Values are stored as billionths: seconds as nanoseconds.
const SCALE: f64 = 1e9;
const DIGITS: u8 = 3;

impl Default for Quantiles {
    fn default() -> Self {
        // The number of digits is valid, so this does not fail.
        #[allow(clippy::expect_used)]
        Self(Histogram::new(DIGITS).expect("three digits are supported"))
    }
}

impl Quantiles {
    /// Adds a value.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    pub fn add(&mut self, value: f64) {
        // The conversion saturates, and the histogram resizes itself: this does not fail.
        let _ = self.0.record((value * SCALE).round() as u64);
    }

    /// Adds all values of `other`.
    pub fn merge(&mut self, other: &Self) {
        // Both resize themselves, so this does not fail.
        let _ = self.0.add(&other.0);
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The smallest value that at least the fraction `quantile` of the values do not exceed; 0 without values.
    #[allow(clippy::cast_precision_loss)]
    pub fn at(&self, quantile: f64) -> f64 {
        self.0.value_at_quantile(quantile).min(self.0.max()) as f64 / SCALE
    }
}

impl FromIterator<f64> for Quantiles {
    fn from_iter<I: IntoIterator<Item = f64>>(values: I) -> Self {
        let mut quantiles = Self::default();
        quantiles.extend(values);
        quantiles
    }
}

impl Extend<f64> for Quantiles {
    fn extend<I: IntoIterator<Item = f64>>(&mut self, values: I) {
        values.into_iter().for_each(|value| self.add(value));
    }
}

/// The exact median; the mean of the middle two of an even number of values; 0 without values.
pub fn median(values: impl IntoIterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match (values.get(middle), values.len() % 2) {
        (Some(&upper), 0) => f64::midpoint(values[middle - 1], upper),
        (Some(&middle), _) => middle,
        (None, _) => 0.0,
    }
}

/// The median, the minimum and the maximum; all 0 without values.
pub fn median_min_max(values: &[f64]) -> [f64; 3] {
    if values.is_empty() {
        return [0.0; 3];
    }
    let min = values.iter().copied().fold(f64::INFINITY, f64::min);
    let max = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    [median(values.iter().copied()), min, max]
}

/// Sets a member of `row` to the median of these values, and two beside it to the minimum and the maximum. Does nothing
/// without values.
pub fn set_range(row: &mut Value, name: &str, values: &[f64]) {
    if values.is_empty() {
        return;
    }
    let [median, min, max] = median_min_max(values);
    row[name] = median.into();
    row[format!("{name}_min")] = min.into();
    row[format!("{name}_max")] = max.into();
}

/// A count to calculate with.
#[allow(clippy::cast_precision_loss)]
pub fn float(count: u64) -> f64 {
    count as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_keep_three_digits() {
        let quantiles: Quantiles = (1..=1000).map(f64::from).collect();
        for (quantile, expected) in [(0.0, 1.0), (0.5, 500.0), (0.99, 990.0), (1.0, 1000.0)] {
            let value = quantiles.at(quantile);
            assert!((value / expected - 1.0).abs() < 1e-3, "{quantile}: {value}");
        }
        let mut both = Quantiles::from_iter([3e-6]);
        both.merge(&Quantiles::from_iter([1e-6, -1.0]));
        assert!((both.at(1.0) - 3e-6).abs() < 1e-8 && both.at(0.0) == 0.0);
        assert!(Quantiles::default().is_empty());
        assert_eq!(Quantiles::default().at(0.5), 0.0);
    }

    #[test]
    fn median_of_even_count_is_mean_of_middle() {
        assert_eq!(median([4.0, 1.0]), 2.5);
        assert_eq!(median([9.0, 1.0, 3.0, 2.0]), 2.5);
        assert_eq!(median([9.0, 1.0, 3.0]), 3.0);
        assert_eq!((median([7.0]), median([])), (7.0, 0.0));
        assert_eq!(median_min_max(&[9.0, 1.0, 3.0, 2.0]), [2.5, 1.0, 9.0]);
        assert_eq!(median_min_max(&[]), [0.0; 3]);
    }
}
