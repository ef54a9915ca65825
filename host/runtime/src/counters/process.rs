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

/// Counters of all plugins together.
#[derive(Debug, Default)]
pub(crate) struct ProcessCounters {
    pub(crate) calls: Counter,
    calls_completed: Counter,
    calls_canceled: Counter,
    calls_failed: [Counter; CallError::CODES.len()],
    pub(crate) calls_waiting: Counter,
    pub(crate) calls_waiting_for_turn: Counter,
    pub(crate) plugins_loaded: Counter,
    pub(crate) log_lines: Counter,
    pub(crate) sampler_instances: Counter,
    instances: Counter,
    instances_peak: Counter,
    instances_started: Counter,
    start_nanos: Counter,
    cpu_nanos: Counter,
    instance_nanos: Counter,
    components_loaded: Counter,
    compile_nanos: Counter,
    sampler_calls: Counter,
    sampler_nanos: Counter,
    sampler_failures: Counter,
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
        let mut metrics = vec![
            self.calls.count_metric(
                "corral_plugin_calls_total",
                "Plugin calls, refused calls included.",
            ),
            self.calls_completed.count_metric(
                "corral_plugin_calls_completed_total",
                "Plugin calls that completed.",
            ),
            self.calls_canceled.count_metric(
                "corral_plugin_calls_canceled_total",
                "Plugin calls canceled because the client disconnected.",
            ),
        ];
        metrics.extend(
            CallError::CODES
                .iter()
                .zip(&self.calls_failed)
                .map(|(code, count)| {
                    let mut metric = count.count_metric(
                        "corral_plugin_calls_failed_total",
                        "Plugin calls that failed, by error code.",
                    );
                    metric.labels.push(("code", (*code).to_owned()));
                    metric
                }),
        );
        metrics.extend([
            self.plugins_loaded.gauge_metric(
                "corral_plugins_loaded",
                "Loaded plugins, including replaced ones with calls still running.",
            ),
            self.calls_waiting.gauge_metric(
                "corral_plugin_calls_waiting",
                "Plugin calls waiting for a permit.",
            ),
            self.calls_waiting_for_turn.gauge_metric(
                "corral_plugin_calls_waiting_for_turn",
                "Plugin calls that computed for long and wait for a turn to continue.",
            ),
            self.instances.gauge_metric(
                "corral_plugin_instances",
                "Plugin instances that exist now.",
            ),
            self.instances_peak.gauge_metric(
                "corral_plugin_instances_peak",
                "Most plugin instances that existed at once.",
            ),
            self.instances_started.count_metric(
                "corral_plugin_instances_started_total",
                "Plugin instances created.",
            ),
            self.start_nanos.seconds_metric(
                "corral_plugin_instance_start_seconds_total",
                "Time spent creating plugin instances.",
            ),
            self.instance_nanos.seconds_metric(
                "corral_plugin_instance_seconds_total",
                "Lifetime of plugin instances.",
            ),
            self.cpu_nanos
                .seconds_metric("corral_plugin_cpu_seconds_total", "CPU time of plugins."),
            self.components_loaded.count_metric(
                "corral_plugin_components_loaded_total",
                "Components compiled or read from the cache.",
            ),
            self.compile_nanos.seconds_metric(
                "corral_plugin_compile_seconds_total",
                "Time spent compiling components or reading them from the cache.",
            ),
            self.log_lines.count_metric(
                "corral_plugin_log_lines_total",
                "Lines that plugins wrote to standard output and error.",
            ),
            self.sampler_instances.gauge_metric(
                "corral_sampling_plugin_instances",
                "Sampling plugin instances that exist now.",
            ),
            self.sampler_calls.count_metric(
                "corral_sampling_plugin_calls_total",
                "Tokens requested from sampling plugins.",
            ),
            self.sampler_nanos.seconds_metric(
                "corral_sampling_plugin_seconds_total",
                "Time from a request for a token to the sampling plugin's answer.",
            ),
            self.sampler_failures.count_metric(
                "corral_sampling_plugin_failures_total",
                "Token requests that a sampling plugin failed.",
            ),
        ]);
        metrics
    }
}
