//! What people and programs are told about the models.

use super::residency::State;
use super::{Inner, Models, Slot};
use crate::engine::Engine;
use crate::metrics::{Counters, Kind, Metric};
use std::time::Duration;

/// Where a model is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ModelState {
    /// Not in memory; the next who opens it has it loaded.
    Asleep,
    /// On its way into memory.
    Loading {
        /// The part of its weights that is read, from 0 to 1.
        progress: f32,
    },
    /// In memory.
    Loaded,
    /// On its way out of memory.
    Unloading,
    /// It could not be loaded.
    Failed {
        /// How long until a request tries it again, or until its file is another one.
        again: Duration,
    },
}

impl ModelState {
    /// All names of states.
    pub const NAMES: [&'static str; 5] = ["asleep", "loading", "loaded", "unloading", "failed"];

    /// One word, which never changes.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Asleep => "asleep",
            Self::Loading { .. } => "loading",
            Self::Loaded => "loaded",
            Self::Unloading => "unloading",
            Self::Failed { .. } => "failed",
        }
    }
}

/// What goes on with a model at one moment.
#[derive(Clone, Debug)]
pub struct ModelStatus {
    /// The name under which it is served.
    pub name: String,
    /// Where it is.
    pub state: ModelState,
    /// Bytes of weights and context that it holds in the machine's memory; while it is loaded, that it is
    /// expected to hold.
    pub memory: u64,
    /// Calls that use it.
    pub leases: usize,
    /// Calls that wait until it is loaded.
    pub waiting: usize,
    /// How long nobody has used it, where it is loaded and nobody does.
    pub unused_for: Option<Duration>,
    /// Why it could not be loaded, for the operator.
    pub error: Option<String>,
    /// Whether its engine's thread has ended while it should run.
    pub stopped: bool,
}

/// What is counted over all lives of a model.
#[derive(Debug, Default)]
pub(super) struct Totals {
    pub(super) loads: u64,
    pub(super) unloads: u64,
    pub(super) failures: u64,
    pub(super) load_time: Duration,
    /// What its engines counted that are no more.
    past: Vec<Metric>,
}

impl Totals {
    /// Adds what an engine has counted that ended. What goes up and down ends with it.
    pub(super) fn remember(&mut self, metrics: &[Metric]) {
        let past = std::mem::take(&mut self.past);
        let counted = metrics.iter().filter(|metric| metric.kind != Kind::Gauge);
        self.past = sum(counted.cloned().collect(), &past);
    }

    /// The numbers of an engine that goes on where others ended; without one, what they left.
    fn with(&self, engine: Option<Vec<Metric>>) -> Vec<Metric> {
        // Of a model that was never there all is 0, so that whoever watches it sees it begin.
        let now = engine.unwrap_or_else(|| Counters::default().list());
        sum(now, &self.past)
    }
}

/// Adds the numbers of `past` to those of the same name and labels; what is only there comes last.
fn sum(mut now: Vec<Metric>, past: &[Metric]) -> Vec<Metric> {
    for (index, metric) in past.iter().enumerate() {
        let same = |m: &Metric| m.name == metric.name && m.labels == metric.labels;
        // Mostly they come in the same order.
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

impl Models {
    /// What goes on with each model.
    pub fn status(&self) -> Vec<ModelStatus> {
        let shared = &self.0.0;
        let inner = shared.lock();
        let now = shared.now();
        let names = shared.names.iter().enumerate();
        names
            .map(|(model, name)| {
                let slot = &inner.slots[model];
                let residency = &inner.residency;
                let state = state(&inner, slot, model, now);
                ModelStatus {
                    name: name.clone(),
                    state,
                    memory: residency.held(model),
                    leases: residency.leases(model),
                    waiting: residency.waiting(model),
                    unused_for: residency.unused_for(now, model),
                    error: matches!(state, ModelState::Failed { .. })
                        .then(|| slot.error.as_ref().map(ToString::to_string))
                        .flatten(),
                    stopped: state == ModelState::Loaded
                        && slot.engine.as_ref().is_some_and(|engine| !engine.alive()),
                }
            })
            .collect()
    }

    /// The numbers of each model, by its name: its engine's, over all of its lives, and those about
    /// loading it.
    pub fn metrics(&self) -> Vec<(String, Vec<Metric>)> {
        let statuses = self.status();
        let inner = self.0.0.lock();
        let slots = inner.slots.iter().zip(statuses);
        slots
            .map(|(slot, status)| {
                let engine = slot.engine.as_ref().map(|engine| engine.metrics());
                let mut metrics = slot.totals.with(engine);
                metrics.extend(own(&slot.totals, &status));
                metrics.extend(slot.engine.iter().flat_map(on_devices));
                (status.name, metrics)
            })
            .collect()
    }
}

fn state(inner: &Inner, slot: &Slot, model: usize, now: Duration) -> ModelState {
    match inner.residency.state(model) {
        State::Asleep => ModelState::Asleep,
        State::Loading => ModelState::Loading {
            progress: slot.progress.fraction(),
        },
        State::Loaded => ModelState::Loaded,
        State::Unloading => ModelState::Unloading,
        State::Failed { again } => ModelState::Failed {
            again: again.saturating_sub(now),
        },
    }
}

/// Of one that is loaded: what of it is on devices.
fn on_devices(engine: &Engine) -> Vec<Metric> {
    let memory = engine.device_memory().iter();
    #[allow(clippy::cast_precision_loss)]
    let metrics = memory.map(|(device, bytes)| Metric {
        name: "corral_model_device_memory_bytes",
        help: "Bytes of weights and context that the model holds on a device with a memory of its own.",
        kind: Kind::Gauge,
        labels: vec![("device", device.clone())],
        value: *bytes as f64,
    });
    metrics.collect()
}

fn own(totals: &Totals, status: &ModelStatus) -> Vec<Metric> {
    let metric = |name, help, kind, value| Metric {
        name,
        help,
        kind,
        labels: Vec::new(),
        value,
    };
    let gauge = |name, help, value| metric(name, help, Kind::Gauge, value);
    #[allow(clippy::cast_precision_loss)]
    let counter = |name, help, count: u64| metric(name, help, Kind::Counter, count as f64);
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
        .map(|state| Metric {
            labels: vec![("state", (*state).to_owned())],
            ..gauge(
                "corral_model_state",
                "1 for the state that the model is in, 0 for the others.",
                f64::from(u8::from(*state == status.state.name())),
            )
        })
        .collect();
    metrics.extend([
        gauge(
            "corral_model_load_progress",
            "The part of the weights that is read; 1 once the model is loaded.",
            progress,
        ),
        gauge(
            "corral_model_memory_bytes",
            "Bytes of weights and context that the model holds.",
            memory,
        ),
        gauge("corral_model_leases", "Calls that use the model.", leases),
        gauge(
            "corral_model_waiting",
            "Calls that wait until the model is loaded.",
            waiting,
        ),
        counter(
            "corral_model_loads_total",
            "Times the model was loaded.",
            totals.loads,
        ),
        counter(
            "corral_model_unloads_total",
            "Times the model was unloaded.",
            totals.unloads,
        ),
        counter(
            "corral_model_load_failures_total",
            "Times the model could not be loaded.",
            totals.failures,
        ),
        metric(
            "corral_model_load_seconds_total",
            "Seconds that loading the model took.",
            Kind::Counter,
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
    fn counters_go_on_and_gauges_end() {
        let mut totals = Totals::default();
        let steps = "corral_engine_steps_total";
        let running = "corral_engine_requests_running";
        let gaps = "corral_engine_inter_token_latency_seconds_count";
        assert_eq!(value(&totals.with(None), steps), 0.0);
        for life in 1..4 {
            let counters = Counters::default();
            add(&counters.steps, 10);
            set(&counters.running, 3);
            counters.gap_seconds.observe(0.1);
            let now = totals.with(Some(counters.list()));
            assert_eq!(now.len(), counters.list().len());
            assert_eq!(value(&now, steps), 10.0 * f64::from(life));
            assert_eq!(value(&now, gaps), f64::from(life));
            assert_eq!(value(&now, running), 3.0);
            totals.remember(&counters.list());
            let left = totals.with(None);
            assert_eq!(value(&left, steps), 10.0 * f64::from(life));
            assert_eq!(value(&left, running), 0.0);
        }
    }

    #[test]
    fn what_only_an_earlier_life_counted_stays() {
        let adapter = |value| Metric {
            name: "x_total",
            help: "x",
            kind: Kind::Counter,
            labels: vec![("adapter", "a".to_owned())],
            value,
        };
        let mut totals = Totals::default();
        totals.remember(&[adapter(2.0)]);
        assert_eq!(value(&totals.with(Some(vec![])), "x_total"), 2.0);
        assert_eq!(
            value(&totals.with(Some(vec![adapter(5.0)])), "x_total"),
            7.0
        );
    }
}
