//! Counters of all plugins of the process.

use super::Counter;
use crate::call_error::CallError;
use corral_engine::Metric;
use std::time::Duration;

/// How a call ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CallEnd {
    Completed,
    /// With the index of its error's code in [`CallError::CODES`].
    Failed(usize),
    Canceled,
}

counters! {
    /// Counters of all plugins together.
    ProcessCounters {
        calls_failed: [Counter; CallError::CODES.len()],
    }
    /// Plugin calls, refused calls included.
    pub(crate) calls: Counter = "corral_plugin_calls_total",
    /// Plugin calls that completed.
    calls_completed: Counter = "corral_plugin_calls_completed_total",
    /// Plugin calls canceled because the client disconnected.
    calls_canceled: Counter = "corral_plugin_calls_canceled_total",
    /// Loaded plugins, including replaced ones with calls still running.
    pub(crate) plugins_loaded: Gauge = "corral_plugins_loaded",
    /// Plugin calls waiting for a permit.
    pub(crate) calls_waiting: Gauge = "corral_plugin_calls_waiting",
    /// Plugin calls that computed for long and wait for a turn to continue.
    pub(crate) calls_waiting_for_turn: Gauge = "corral_plugin_calls_waiting_for_turn",
    /// Plugin instances that exist now.
    instances: Gauge = "corral_plugin_instances",
    /// Most plugin instances that existed at once.
    instances_peak: Gauge = "corral_plugin_instances_peak",
    /// Plugin instances created.
    instances_started: Counter = "corral_plugin_instances_started_total",
    /// Time spent creating plugin instances.
    start_nanos: Counter = "corral_plugin_instance_start_seconds_total" / 1e9,
    /// Lifetime of plugin instances.
    instance_nanos: Counter = "corral_plugin_instance_seconds_total" / 1e9,
    /// CPU time of plugins.
    cpu_nanos: Counter = "corral_plugin_cpu_seconds_total" / 1e9,
    /// Components compiled or read from the cache.
    components_loaded: Counter = "corral_plugin_components_loaded_total",
    /// Time spent compiling components or reading them from the cache.
    compile_nanos: Counter = "corral_plugin_compile_seconds_total" / 1e9,
    /// Lines that plugins wrote to standard output and error.
    pub(crate) log_lines: Counter = "corral_plugin_log_lines_total",
    /// Connections of plugins' outgoing HTTP requests that are open or being opened.
    pub(crate) outbound_connections: Gauge = "corral_plugin_outbound_connections",
    /// Sampling plugin instances that exist now.
    pub(crate) sampler_instances: Gauge = "corral_sampling_plugin_instances",
    /// Tokens requested from sampling plugins.
    sampler_calls: Counter = "corral_sampling_plugin_calls_total",
    /// Time from a request for a token to the sampling plugin's answer.
    sampler_nanos: Counter = "corral_sampling_plugin_seconds_total" / 1e9,
    /// Token requests that a sampling plugin failed.
    sampler_failures: Counter = "corral_sampling_plugin_failures_total",
}

impl ProcessCounters {
    /// Counts the end of a call.
    pub(crate) fn call_ended(&self, end: CallEnd) {
        match end {
            CallEnd::Completed => &self.calls_completed,
            CallEnd::Canceled => &self.calls_canceled,
            CallEnd::Failed(code) => &self.calls_failed[code],
        }
        .increment();
    }

    /// Counts an instance from before it is created until [`Self::instance_ended`].
    pub(crate) fn instance_began(&self) {
        self.instances_peak.raise(self.instances.increment());
    }

    /// Counts an instance that took `time` to create.
    pub(crate) fn instance_started(&self, time: Duration) {
        self.instances_started.increment();
        self.start_nanos.add_time(time);
    }

    pub(crate) fn instance_ended(&self, wall: Duration, cpu: Duration) {
        self.instances.decrement();
        self.instance_nanos.add_time(wall);
        self.cpu_nanos.add_time(cpu);
    }

    /// Counts a component that was compiled, or read from the cache, in `time`.
    pub(crate) fn component_loaded(&self, time: Duration) {
        self.components_loaded.increment();
        self.compile_nanos.add_time(time);
    }

    /// Counts a call of a sampling plugin.
    pub(crate) fn sampler_called(&self, time: Duration, failed: bool) {
        self.sampler_calls.increment();
        self.sampler_nanos.add_time(time);
        self.sampler_failures.add(failed.into());
    }

    /// All counters as metrics.
    pub(crate) fn metrics(&self) -> Vec<Metric> {
        let mut metrics = self.table_metrics();
        let failures = CallError::CODES.iter().zip(&self.calls_failed);
        // Canceled calls have a counter of their own.
        let canceled = CallError::Canceled.code();
        for (code, count) in failures.filter(|(code, _)| **code != canceled) {
            let metric = Metric::counter(
                "corral_plugin_calls_failed_total",
                "Plugin calls that failed, by error code.",
                count.get(),
            );
            metrics.push(metric.with_label("code", *code));
        }
        metrics
    }
}
