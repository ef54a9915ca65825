//! A histogram with fixed buckets, as Prometheus defines it. Any thread may observe; no lock is taken.

use crate::metric_sample::{Metric, MetricKind};
use std::sync::atomic::{AtomicU64, Ordering};

/// Counts observations by upper bounds. The last bucket is unbounded.
#[derive(Debug)]
pub struct Histogram {
    bounds: &'static [f64],
    /// Observations per bucket, one more than bounds.
    counts: Box<[AtomicU64]>,
    /// The sum of all observations, as the bits of an f64.
    sum: AtomicU64,
}

impl Histogram {
    /// A histogram with these upper bounds, in ascending order.
    pub fn new(bounds: &'static [f64]) -> Self {
        Self {
            bounds,
            counts: (0..=bounds.len()).map(|_| AtomicU64::new(0)).collect(),
            sum: AtomicU64::new(0),
        }
    }

    /// Adds an observation.
    pub fn observe(&self, value: f64) {
        let bucket = self.bounds.partition_point(|&bound| bound < value);
        if let Some(count) = self.counts.get(bucket) {
            count.fetch_add(1, Ordering::Relaxed);
        }
        let plus = |sum| Some((f64::from_bits(sum) + value).to_bits());
        // The closure always returns a value, so this does not fail.
        let _ = self
            .sum
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, plus);
    }

    /// Appends the samples of all series. `names` are the histogram's name with `_bucket`, `_sum` and `_count`.
    pub fn append_samples(
        &self,
        names: [&'static str; 3],
        help: &'static str,
        samples: &mut Vec<Metric>,
    ) {
        let metric = |name, value| Metric::new(name, help, MetricKind::Histogram, value);
        let mut total = 0.0;
        for (i, count) in self.counts.iter().enumerate() {
            #[allow(clippy::cast_precision_loss)]
            let count = count.load(Ordering::Relaxed) as f64;
            total += count;
            let bound = self.bounds.get(i);
            let bound = bound.map_or_else(|| "+Inf".to_owned(), f64::to_string);
            samples.push(metric(names[0], total).with_label("le", bound));
        }
        let sum = f64::from_bits(self.sum.load(Ordering::Relaxed));
        samples.push(metric(names[1], sum));
        samples.push(metric(names[2], total));
    }
}

/// The three series' names of a histogram, for [`Histogram::append_samples`].
#[macro_export]
macro_rules! histogram_names {
    ($name:literal) => {
        [
            concat!($name, "_bucket"),
            concat!($name, "_sum"),
            concat!($name, "_count"),
        ]
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn histogram_buckets_are_cumulative() {
        let histogram = Histogram::new(&[0.5, 2.0, 4.0]);
        for value in [0.5, 3.0, 3.0, 99.0] {
            histogram.observe(value);
        }
        let mut samples = Vec::new();
        histogram.append_samples(histogram_names!("x"), "X.", &mut samples);
        let series: Vec<_> = samples
            .iter()
            .map(|sample| {
                let bound = sample.labels.first().map_or("", |(_, bound)| bound);
                (sample.name, bound, sample.value)
            })
            .collect();
        assert_eq!(
            series,
            [
                ("x_bucket", "0.5", 1.0),
                ("x_bucket", "2", 1.0),
                ("x_bucket", "4", 3.0),
                ("x_bucket", "+Inf", 4.0),
                ("x_sum", "", 105.5),
                ("x_count", "", 4.0),
            ]
        );
    }

    #[test]
    fn observations_of_all_threads_are_summed() {
        let histogram = Histogram::new(&[1.0]);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..1000).for_each(|_| histogram.observe(0.5)));
            }
        });
        let mut samples = Vec::new();
        histogram.append_samples(histogram_names!("x"), "X.", &mut samples);
        assert_eq!((samples[2].value, samples[3].value), (2000.0, 4000.0));
    }
}
