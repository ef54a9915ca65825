//! Small plugins in WebAssembly text, and helpers to run them. The server's unit tests use them too.

#![allow(dead_code, unused_imports)]

mod components;

pub use components::{blocked_command, command, http_2, http_3};
use corral_engine::ModelPool;
use corral_runtime::{Limits, Plugin, Runtime, RuntimeConfig};

/// A runtime without models.
pub fn runtime(instances: u32) -> Runtime {
    let config = RuntimeConfig {
        instances,
        ..RuntimeConfig::default()
    };
    Runtime::new(config, ModelPool::loaded(Vec::new())).unwrap()
}

/// Loads a plugin into a deployment of its own.
pub async fn load(runtime: &Runtime, bytes: Vec<u8>, limits: Limits) -> Plugin {
    runtime.load_plugin("guest", bytes, limits).await.unwrap()
}

/// The value of a counter, of the sample with this label value if given.
pub fn counter(runtime: &Runtime, name: &str, label: Option<&str>) -> f64 {
    let metrics = runtime.metrics();
    let found = metrics.iter().find(|metric| {
        metric.name == name
            && label.is_none_or(|label| metric.labels.iter().any(|(_, value)| value == label))
    });
    found.unwrap().value
}

/// Waits until no instance exists, at most 30 s.
pub async fn idle(runtime: &Runtime) {
    for _ in 0..6000 {
        if counter(runtime, "corral_plugin_instances", None) == 0.0 {
            return;
        }
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
    panic!("an instance still exists");
}
