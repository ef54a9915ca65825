//! Metrics of child processes.

use super::metric;
use corral_engine::{Metric, MetricKind};
use corral_isolation::ChildCounters;

/// The counts as metrics.
pub(crate) fn child_metrics(counters: ChildCounters) -> [Metric; 4] {
    let count = |name, help, kind, count: u64| metric(name, help, kind, count as f64);
    [
        count(
            "corral_child_processes",
            "Child processes that compile components or check model files now.",
            MetricKind::Gauge,
            counters.running,
        ),
        count(
            "corral_child_processes_started_total",
            "Child processes started.",
            MetricKind::Counter,
            counters.started,
        ),
        count(
            "corral_child_processes_failed_total",
            "Child processes that crashed or refused their input.",
            MetricKind::Counter,
            counters.failed,
        ),
        count(
            "corral_child_processes_killed_total",
            "Child processes that exceeded a limit of memory or time.",
            MetricKind::Counter,
            counters.killed,
        ),
    ]
}
