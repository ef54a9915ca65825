//! What the runtime counts: one [`Counters`] for the process.

use crate::failure::Failure;
use corral_engine::{Kind, Metric};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// How a call ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    Done,
    Failed(usize),
    Cancelled,
}

/// Counters of all plugins together.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    calls: AtomicU64,
    done: AtomicU64,
    cancelled: AtomicU64,
    failed: [AtomicU64; Failure::CODES.len()],
    waiting: AtomicU64,
    live: AtomicU64,
    peak: AtomicU64,
    started: AtomicU64,
    start_nanos: AtomicU64,
    cpu_nanos: AtomicU64,
    call_nanos: AtomicU64,
    compiled: AtomicU64,
    compile_nanos: AtomicU64,
    log_lines: AtomicU64,
    loaded: AtomicU64,
    samplers: AtomicU64,
    sampler_calls: AtomicU64,
    sampler_nanos: AtomicU64,
    sampler_failures: AtomicU64,
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

impl Counters {
    /// A call came in.
    pub(crate) fn call(&self) {
        self.calls.fetch_add(1, Ordering::Relaxed);
    }

    /// A call ended, however far it got.
    pub(crate) fn ended(&self, ending: Ending) {
        match ending {
            Ending::Done => &self.done,
            Ending::Cancelled => &self.cancelled,
            Ending::Failed(index) => &self.failed[index],
        }
        .fetch_add(1, Ordering::Relaxed);
    }

    /// A call began to wait for a place.
    pub(crate) fn wait_began(&self) {
        self.waiting.fetch_add(1, Ordering::Relaxed);
    }

    /// A call no longer waits.
    pub(crate) fn wait_ended(&self) {
        self.waiting.fetch_sub(1, Ordering::Relaxed);
    }

    /// An instance is about to be made.
    pub(crate) fn instance_began(&self) {
        let live = self.live.fetch_add(1, Ordering::Relaxed) + 1;
        self.peak.fetch_max(live, Ordering::Relaxed);
    }

    /// An instance is there, after `time`.
    pub(crate) fn instance_started(&self, time: Duration) {
        self.started.fetch_add(1, Ordering::Relaxed);
        self.start_nanos.fetch_add(nanos(time), Ordering::Relaxed);
    }

    /// An instance is gone.
    pub(crate) fn instance_ended(&self, wall: Duration, cpu: Duration) {
        self.live.fetch_sub(1, Ordering::Relaxed);
        self.call_nanos.fetch_add(nanos(wall), Ordering::Relaxed);
        self.cpu_nanos.fetch_add(nanos(cpu), Ordering::Relaxed);
    }

    /// A component was compiled, or fetched from the cache, in `time`.
    pub(crate) fn component_compiled(&self, time: Duration) {
        self.compiled.fetch_add(1, Ordering::Relaxed);
        self.compile_nanos.fetch_add(nanos(time), Ordering::Relaxed);
    }

    /// A plugin can be called from now on.
    pub(crate) fn loaded(&self) {
        self.loaded.fetch_add(1, Ordering::Relaxed);
    }

    /// A plugin is gone, and the last of its calls.
    pub(crate) fn unloaded(&self) {
        self.loaded.fetch_sub(1, Ordering::Relaxed);
    }

    /// A plugin wrote a line to its log.
    pub(crate) fn log_line(&self) {
        self.log_lines.fetch_add(1, Ordering::Relaxed);
    }

    /// An instance of a sampling plugin has a place.
    pub(crate) fn sampler_began(&self) {
        self.samplers.fetch_add(1, Ordering::Relaxed);
    }

    /// It is gone.
    pub(crate) fn sampler_ended(&self) {
        self.samplers.fetch_sub(1, Ordering::Relaxed);
    }

    /// A sampling plugin was asked for a token, and there was an answer after `time`.
    pub(crate) fn sampled(&self, time: Duration, failed: bool) {
        self.sampler_calls.fetch_add(1, Ordering::Relaxed);
        self.sampler_nanos.fetch_add(nanos(time), Ordering::Relaxed);
        self.sampler_failures
            .fetch_add(failed.into(), Ordering::Relaxed);
    }

    /// All of them as they are now.
    pub(crate) fn list(&self) -> Vec<Metric> {
        #[allow(clippy::cast_precision_loss)]
        let metric = |name, help, kind, value: &AtomicU64, scale: f64| Metric {
            name,
            help,
            kind,
            labels: Vec::new(),
            value: value.load(Ordering::Relaxed) as f64 / scale,
        };
        let count = |name, help, value| metric(name, help, Kind::Counter, value, 1.0);
        let gauge = |name, help, value| metric(name, help, Kind::Gauge, value, 1.0);
        let seconds = |name, help, value| metric(name, help, Kind::Counter, value, 1e9);
        let mut list = vec![
            count(
                "corral_plugin_calls_total",
                "Calls of plugins, refused ones included.",
                &self.calls,
            ),
            count(
                "corral_plugin_calls_completed_total",
                "Calls that ended as the plugin wanted.",
                &self.done,
            ),
            count(
                "corral_plugin_calls_cancelled_total",
                "Calls whose client went away.",
                &self.cancelled,
            ),
        ];
        for (code, value) in Failure::CODES.iter().zip(&self.failed) {
            let mut metric = count(
                "corral_plugin_calls_failed_total",
                "Calls that failed, by code.",
                value,
            );
            metric.labels.push(("code", (*code).to_owned()));
            list.push(metric);
        }
        list.extend([
            gauge(
                "corral_plugins_loaded",
                "Plugins that can be called, and replaced ones whose last calls have not ended.",
                &self.loaded,
            ),
            gauge(
                "corral_plugin_calls_waiting",
                "Calls that wait for a place.",
                &self.waiting,
            ),
            gauge(
                "corral_plugin_instances",
                "Plugin instances that live.",
                &self.live,
            ),
            gauge(
                "corral_plugin_instances_peak",
                "Most plugin instances that ever lived at once.",
                &self.peak,
            ),
            count(
                "corral_plugin_instances_started_total",
                "Plugin instances made.",
                &self.started,
            ),
            seconds(
                "corral_plugin_instance_start_seconds_total",
                "Time that it took to make them.",
                &self.start_nanos,
            ),
            seconds(
                "corral_plugin_instance_seconds_total",
                "Time that instances lived.",
                &self.call_nanos,
            ),
            seconds(
                "corral_plugin_cpu_seconds_total",
                "Processor time of plugins.",
                &self.cpu_nanos,
            ),
            count(
                "corral_plugin_components_loaded_total",
                "Components compiled or fetched from the cache.",
                &self.compiled,
            ),
            seconds(
                "corral_plugin_compile_seconds_total",
                "Time that it took.",
                &self.compile_nanos,
            ),
            count(
                "corral_plugin_log_lines_total",
                "Lines that plugins wrote to standard output and error.",
                &self.log_lines,
            ),
            gauge(
                "corral_sampling_plugin_instances",
                "Instances of sampling plugins that live.",
                &self.samplers,
            ),
            count(
                "corral_sampling_plugin_calls_total",
                "Tokens that sampling plugins were asked for.",
                &self.sampler_calls,
            ),
            seconds(
                "corral_sampling_plugin_seconds_total",
                "Time from these questions to their answers.",
                &self.sampler_nanos,
            ),
            count(
                "corral_sampling_plugin_failures_total",
                "Tokens for which there was no valid answer.",
                &self.sampler_failures,
            ),
        ]);
        list
    }
}
