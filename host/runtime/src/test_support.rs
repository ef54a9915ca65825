//! Builders for unit tests.

use crate::compiler::Compiler;
use crate::deployment_snapshots::{DeploymentSnapshots, snapshot_permits};
use crate::linker::linker;
use crate::models::VisibleModels;
use crate::runtime_config::{RuntimeConfig, SystemGrants};
use crate::sampling::resources::SamplerResources;
use crate::state::{State, StoreGrants};
use crate::wasm_engine::{CodeGenerator, wasm_engine};
use corral_engine::ModelPool;
use std::sync::Arc;
use wasmtime::Engine;
use wasmtime::component::Linker;

/// A configuration with this many plugin instances.
pub(crate) fn config(instances: u32) -> RuntimeConfig {
    RuntimeConfig {
        instances,
        ..RuntimeConfig::default()
    }
}

/// A wasmtime engine with room for one plugin instance, and its linker.
pub(crate) fn engine_and_linker() -> (Engine, Linker<State>) {
    let engine = wasm_engine(&config(1), CodeGenerator::Optimizing).unwrap();
    let linker = linker(&engine).unwrap();
    (engine, linker)
}

/// A compiler without child processes.
pub(crate) fn compiler() -> Compiler {
    Compiler::start(&config(1), None).unwrap()
}

/// Grants without models and linked sampling plugins.
pub(crate) fn grants(sampling: Arc<SamplerResources>) -> Arc<StoreGrants> {
    Arc::new(StoreGrants {
        models: VisibleModels::new(&ModelPool::loaded(Vec::new()), None).unwrap(),
        snapshots: DeploymentSnapshots::new("x", snapshot_permits()),
        key_values: None,
        config: None,
        folders: None,
        outbound: None,
        deployments: None,
        messages: None,
        system: SystemGrants::default(),
        tokenization: Arc::default(),
        samplers: Arc::default(),
        sampling,
        turns: None,
    })
}
