//! Metrics of child processes.

use corral_engine::Metric;
use corral_isolation::ChildCounters;

/// The counts as metrics.
pub(crate) fn child_metrics(counters: ChildCounters) -> [Metric; 4] {
    [
        Metric::gauge(
            "corral_child_processes",
            "Child processes that compile components or check model files now.",
            counters.running as f64,
        ),
        Metric::counter(
            "corral_child_processes_started_total",
            "Child processes started.",
            counters.started,
        ),
        Metric::counter(
            "corral_child_processes_failed_total",
            "Child processes that crashed or refused their input.",
            counters.failed,
        ),
        Metric::counter(
            "corral_child_processes_killed_total",
            "Child processes that exceeded a limit of memory or time.",
            counters.killed,
        ),
    ]
}
