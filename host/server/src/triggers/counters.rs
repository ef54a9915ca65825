//! Metrics of jobs.

use super::job::{JobRecord, Trigger};
use super::queue::JobCounts;
use crate::prometheus::MetricFamilies;
use corral_engine::MetricKind;
use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

/// Events of jobs since the start, by deployment, trigger and event.
#[derive(Debug, Default)]
pub(super) struct TriggerCounters(Mutex<BTreeMap<(String, Trigger, &'static str), u64>>);

impl TriggerCounters {
    /// Counts an event of a job.
    pub(super) fn count(&self, job: &JobRecord, event: &'static str) {
        let mut counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (job.deployment.clone(), job.trigger(), event);
        *counts.entry(key).or_default() += 1;
    }

    /// Forgets a removed deployment.
    pub(super) fn remove(&self, deployment: &str) {
        let mut counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        counts.retain(|(name, _, _), _| name != deployment);
    }

    pub(super) fn write(&self, families: &mut MetricFamilies) {
        let counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for ((deployment, trigger, event), count) in &*counts {
            families.sample(
                "corral_job_events_total",
                "Jobs by event: submitted, succeeded, dead, canceled, and retried after a failed attempt or deferred \
                 without one; a schedule's runs are submitted too, and skipped if the last one had not ended.",
                MetricKind::Counter,
                &[
                    ("deployment", deployment),
                    ("trigger", trigger.name()),
                    ("event", event),
                ],
                *count as f64,
            );
        }
    }
}

pub(super) fn write_gauges(
    families: &mut MetricFamilies,
    counts: &BTreeMap<String, JobCounts>,
    now_ms: u64,
) {
    let bytes: u64 = counts.values().map(|counts| counts.bytes).sum();
    families.sample(
        "corral_jobs_stored_bytes",
        "Bytes of bodies and results of jobs.",
        MetricKind::Gauge,
        &[],
        bytes as f64,
    );
    for (deployment, counts) in counts {
        for (state, number) in [
            ("waiting", counts.waiting),
            ("running", counts.running),
            ("finished", counts.finished),
        ] {
            families.sample(
                "corral_jobs",
                "Jobs in the store, by state.",
                MetricKind::Gauge,
                &[("deployment", deployment), ("state", state)],
                number as f64,
            );
        }
        let age = counts
            .oldest_waiting_ms
            .map(|since| now_ms.saturating_sub(since));
        families.sample(
            "corral_jobs_oldest_waiting_seconds",
            "Age of the oldest waiting job; 0 if none waits.",
            MetricKind::Gauge,
            &[("deployment", deployment)],
            age.unwrap_or(0) as f64 / 1e3,
        );
    }
}
