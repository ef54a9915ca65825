//! Status and metrics of the models.

use super::policy::LoadState;
use super::{ModelPool, PoolState, Slot};
use crate::engine::Engine;
use crate::metric_sample::{Metric, MetricKind};
use crate::metrics::EngineMetrics;
use std::time::Duration;
use strum::{IntoStaticStr, VariantNames};

/// The state of a model.
#[derive(Clone, Copy, Debug, PartialEq, IntoStaticStr, VariantNames)]
#[strum(serialize_all = "lowercase")]
pub enum ModelState {
    /// Not in memory; the next open loads it.
    Unloaded,
    /// Being loaded.
    Loading {
        /// The fraction of the weights that is read.
        progress: f32,
    },
    /// In memory.
    Loaded,
    /// Being unloaded.
    Unloading,
    /// The last load failed.
    Failed {
        /// The delay before a request retries it, unless its file changes.
        retry_after: Duration,
    },
}

impl ModelState {
    /// The names of all states.
    pub const NAMES: &'static [&'static str] = Self::VARIANTS;

    /// The state's name, which is stable.
    pub fn name(&self) -> &'static str {
        self.into()
    }
}

/// A model's status at one moment.
#[derive(Clone, Debug)]
pub struct ModelStatus {
    /// The model's name.
    pub name: String,
    /// Its state.
    pub state: ModelState,
    /// Bytes of weights and context in the machine's memory; while it loads, an estimate.
    pub memory: u64,
    /// Number of calls that use it.
    pub leases: usize,
    /// Number of calls that wait for it to load.
    pub waiting: usize,
    /// How long it has been loaded and idle.
    pub unused_for: Option<Duration>,
    /// Why the last load failed, for the operator.
    pub error: Option<String>,
    /// Whether its engine thread has ended unexpectedly.
    pub stopped: bool,
}

/// Metrics over all loads of a model.
#[derive(Debug, Default)]
pub(super) struct ModelTotals {
    pub(super) loads: u64,
    pub(super) unloads: u64,
    pub(super) failures: u64,
    pub(super) load_time: Duration,
    /// The counters of its earlier engines.
    past: Vec<Metric>,
}

impl ModelTotals {
    /// Adds the counters of an engine that ended; its gauges are dropped.
    pub(super) fn add(&mut self, metrics: &[Metric]) {
        let past = std::mem::take(&mut self.past);
        let counted = metrics
            .iter()
            .filter(|metric| metric.kind != MetricKind::Gauge);
        self.past = sum(counted.cloned().collect(), &past);
    }

    /// The metrics of the present engine plus the earlier counters.
    fn with(&self, engine: Option<Vec<Metric>>) -> Vec<Metric> {
        // A model that was never loaded exports zeros, so that the first increment is visible.
        let now = engine.unwrap_or_else(|| EngineMetrics::default().samples());
        sum(now, &self.past)
    }
}

/// Adds the values of `past` to metrics of the same name and labels, and appends the others.
fn sum(mut now: Vec<Metric>, past: &[Metric]) -> Vec<Metric> {
    for (index, metric) in past.iter().enumerate() {
        let same = |m: &Metric| m.name == metric.name && m.labels == metric.labels;
        // Usually both have the same order.
        let at = match now.get(index) {
            Some(found) if same(found) => Some(index),
            _ => now.iter().position(same),
        };
        match at {
            Some(at) => now[at].value += metric.value,
            None => now.push(metric.clone()),
        }
    }
    now
}

impl ModelPool {
    /// The status of each model.
    pub fn status(&self) -> Vec<ModelStatus> {
        let shared = &self.0.0;
        let pool = shared.lock();
        let now = shared.now();
        let names = shared.names.iter().enumerate();
        names
            .map(|(model, name)| {
                let slot = &pool.slots[model];
                let policy = &pool.policy;
                let state = state(&pool, slot, model, now);
                ModelStatus {
                    name: name.clone(),
                    state,
                    memory: policy.held(model),
                    leases: policy.leases(model),
                    waiting: policy.waiting(model),
                    unused_for: policy.unused_for(now, model),
                    error: matches!(state, ModelState::Failed { .. })
                        .then(|| slot.error.as_ref().map(ToString::to_string))
                        .flatten(),
                    stopped: state == ModelState::Loaded
                        && slot
                            .engine
                            .as_ref()
                            .is_some_and(|engine| !engine.is_alive()),
                }
            })
            .collect()
    }

    /// The metrics of each model, with its name: those of its engines since the start, and those of the
    /// pool.
    pub fn metrics(&self) -> Vec<(String, Vec<Metric>)> {
        let statuses = self.status();
        let pool = self.0.0.lock();
        let slots = pool.slots.iter().zip(statuses);
        slots
            .map(|(slot, status)| {
                let engine = slot.engine.as_ref().map(|engine| engine.metrics());
                let mut metrics = slot.totals.with(engine);
                metrics.extend(pool_metrics(&slot.totals, &status));
                metrics.extend(slot.engine.iter().flat_map(device_memory));
                (status.name, metrics)
            })
            .collect()
    }
}

fn state(pool: &PoolState, slot: &Slot, model: usize, now: Duration) -> ModelState {
    match pool.policy.state(model) {
        LoadState::Unloaded => ModelState::Unloaded,
        LoadState::Loading => ModelState::Loading {
            progress: slot.progress.fraction(),
        },
        LoadState::Loaded => ModelState::Loaded,
        LoadState::Unloading => ModelState::Unloading,
        LoadState::Failed { retry_at } => ModelState::Failed {
            retry_after: retry_at.saturating_sub(now),
        },
    }
}

fn device_memory(engine: &Engine) -> Vec<Metric> {
    let memory = engine.device_memory().iter();
    #[allow(clippy::cast_precision_loss)]
    let metrics = memory.map(|(device, bytes)| {
        let help = "Bytes of the model's weights and context on a device with its own memory.";
        Metric::gauge("corral_model_device_memory_bytes", help, *bytes as f64)
            .with_label("device", device)
    });
    metrics.collect()
}

fn pool_metrics(totals: &ModelTotals, status: &ModelStatus) -> Vec<Metric> {
    let progress = match status.state {
        ModelState::Loading { progress } => f64::from(progress),
        ModelState::Loaded => 1.0,
        _ => 0.0,
    };
    #[allow(clippy::cast_precision_loss)]
    let (memory, leases, waiting) = (
        status.memory as f64,
        status.leases as f64,
        status.waiting as f64,
    );
    let mut metrics: Vec<_> = ModelState::NAMES
        .iter()
        .map(|state| {
            Metric::gauge(
                "corral_model_state",
                "1 for the model's current state, 0 for the others.",
                f64::from(u8::from(*state == status.state.name())),
            )
            .with_label("state", *state)
        })
        .collect();
    metrics.extend([
        Metric::gauge(
            "corral_model_load_progress",
            "The fraction of the weights that is read; 1 once the model is loaded.",
            progress,
        ),
        Metric::gauge(
            "corral_model_memory_bytes",
            "Bytes of the model's weights and context.",
            memory,
        ),
        Metric::gauge("corral_model_leases", "Calls that use the model.", leases),
        Metric::gauge(
            "corral_model_calls_waiting",
            "Calls that wait for the model to load.",
            waiting,
        ),
        Metric::counter(
            "corral_model_loads_total",
            "Loads of the model.",
            totals.loads,
        ),
        Metric::counter(
            "corral_model_unloads_total",
            "Unloads of the model.",
            totals.unloads,
        ),
        Metric::counter(
            "corral_model_load_failures_total",
            "Loads of the model that failed.",
            totals.failures,
        ),
        Metric::new(
            "corral_model_load_seconds_total",
            "Time spent loading the model, in seconds.",
            MetricKind::Counter,
            totals.load_time.as_secs_f64(),
        ),
    ]);
    metrics
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::{add, set};

    fn value(metrics: &[Metric], name: &str) -> f64 {
        let mut named = metrics.iter().filter(|metric| metric.name == name);
        named.next_back().expect(name).value
    }

    #[test]
    fn counters_continue_and_gauges_reset() {
        let mut totals = ModelTotals::default();
        let steps = "corral_engine_steps_total";
        let running = "corral_engine_requests_running";
        let gaps = "corral_engine_inter_token_latency_seconds_count";
        assert_eq!(value(&totals.with(None), steps), 0.0);
        for load in 1..4 {
            let counters = EngineMetrics::default();
            add(&counters.steps, 10);
            set(&counters.running, 3);
            counters.inter_token_latency.observe(0.1);
            let now = totals.with(Some(counters.samples()));
            assert_eq!(now.len(), counters.samples().len());
            assert_eq!(value(&now, steps), 10.0 * f64::from(load));
            assert_eq!(value(&now, gaps), f64::from(load));
            assert_eq!(value(&now, running), 3.0);
            totals.add(&counters.samples());
            let left = totals.with(None);
            assert_eq!(value(&left, steps), 10.0 * f64::from(load));
            assert_eq!(value(&left, running), 0.0);
        }
    }

    #[test]
    fn counters_of_earlier_engines_stay() {
        let adapter = |count| Metric::counter("x_total", "x", count).with_label("adapter", "a");
        let mut totals = ModelTotals::default();
        totals.add(&[adapter(2)]);
        assert_eq!(value(&totals.with(Some(vec![])), "x_total"), 2.0);
        assert_eq!(value(&totals.with(Some(vec![adapter(5)])), "x_total"), 7.0);
    }
}
