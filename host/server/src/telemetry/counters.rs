//! Counts what is sent to collectors, and what is lost on the way.

use super::settings::Signal;
use crate::prometheus::MetricFamilies;
use corral_engine::MetricKind;
use std::sync::atomic::{AtomicU64, Ordering};

/// Spans, data points and log records since the start.
#[derive(Debug, Default)]
pub(crate) struct TelemetryCounters {
    exported: [AtomicU64; Signal::ALL.len()],
    dropped: [AtomicU64; Signal::ALL.len()],
}

impl TelemetryCounters {
    pub(super) fn exported(&self, signal: Signal, count: u64) {
        self.exported[signal as usize].fetch_add(count, Ordering::Relaxed);
    }

    pub(super) fn dropped(&self, signal: Signal, count: u64) {
        self.dropped[signal as usize].fetch_add(count, Ordering::Relaxed);
    }

    pub(crate) fn write(&self, families: &mut MetricFamilies) {
        for (name, help, counts) in [
            (
                "corral_telemetry_exported_total",
                "Spans, metric data points and log records that OTLP collectors took, by signal.",
                &self.exported,
            ),
            (
                "corral_telemetry_dropped_total",
                "Spans, metric data points and log records that were dropped because a queue was full or a collector \
                 failed, by signal.",
                &self.dropped,
            ),
        ] {
            for signal in Signal::ALL {
                let value = counts[signal as usize].load(Ordering::Relaxed) as f64;
                let labels = [("signal", signal.name())];
                families.sample(name, help, MetricKind::Counter, &labels, value);
            }
        }
    }
}
