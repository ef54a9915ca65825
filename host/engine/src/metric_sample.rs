//! A sample of a metric, for exporters.

/// Type of a metric, as Prometheus defines it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricKind {
    /// Never decreases.
    Counter,
    /// Increases and decreases.
    Gauge,
    /// One series of a histogram. The name is the histogram's name with `_bucket`, `_sum` or `_count`.
    Histogram,
}

/// One sample of a metric.
#[derive(Clone, Debug)]
pub struct Metric {
    /// Name, after Prometheus's conventions: the unit last, `_total` for counters.
    pub name: &'static str,
    /// Help text, one line.
    pub help: &'static str,
    /// Type.
    pub kind: MetricKind,
    /// Labels, without those that the exporter adds.
    pub labels: Vec<(&'static str, String)>,
    /// Value.
    pub value: f64,
}

impl Metric {
    /// A sample without labels.
    pub fn new(name: &'static str, help: &'static str, kind: MetricKind, value: f64) -> Self {
        Self {
            name,
            help,
            kind,
            labels: Vec::new(),
            value,
        }
    }

    /// A sample of a counter, without labels.
    #[allow(clippy::cast_precision_loss)]
    pub fn counter(name: &'static str, help: &'static str, count: u64) -> Self {
        Self::new(name, help, MetricKind::Counter, count as f64)
    }

    /// A sample of a gauge, without labels.
    pub fn gauge(name: &'static str, help: &'static str, value: f64) -> Self {
        Self::new(name, help, MetricKind::Gauge, value)
    }

    /// The same with one more label.
    #[must_use]
    pub fn with_label(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.labels.push((name, value.into()));
        self
    }
}
