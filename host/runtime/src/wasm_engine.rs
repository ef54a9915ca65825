//! Wasmtime's configuration: the instance pool, the code generator, and the cache of compiled code.

use crate::runtime_config::{
    CORE_INSTANCES, MEMORIES, RuntimeConfig, TABLE_ELEMENTS, TABLES, check_instances,
    waiting_instances,
};
use corral_engine::Metric;
use std::fs::{DirBuilder, Metadata};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use wasmtime::{
    Cache, CacheConfig, Config, Enabled, Engine, InstanceAllocationStrategy, OptLevel,
    PoolingAllocationConfig, ResourcesRequired, Strategy,
};

/// Linear memories for each permit of the instance pool. Each reserves 4 GiB of address space.
pub(crate) const PERMIT_MEMORIES: u32 = 4;
/// Tables for each permit.
pub(crate) const PERMIT_TABLES: u32 = 16;
/// Address space of one linear memory. With 4 GiB, bounds checks cost nothing.
const MEMORY_RESERVATION: usize = 4 << 30;
/// Bytes of a memory that stay resident between instances, since clearing them is cheaper than mapping.
const MEMORY_RESIDENT: usize = 2 << 20;
/// The same for a table.
const TABLE_RESIDENT: usize = 512 << 10;
/// Part of a guest task's stack for the host functions that the guest calls.
const HOST_STACK: usize = 512 << 10;
/// Part of a guest task's stack for its own code.
const WASM_STACK: usize = 512 << 10;
/// Stack for guest code of [`CodeGenerator::Baseline`], which keeps all variables there.
const BASELINE_STACK: usize = 4 * WASM_STACK;
/// Stacks for each permit of the instance pool.
const STACKS: u32 = 4;
/// Stacks of an instance beside those of its blocked tasks: one that runs tasks, and one that wasmtime keeps
/// for the next.
const SPARE_STACKS: u32 = 2;
/// Component instances of a plugin that needs one permit.
pub(crate) const SMALL_COMPONENT_INSTANCES: u32 = STACKS - SPARE_STACKS;
/// A pool of more instances lets one deployment hold [`MAX_PERMITS`].
const SMALL_POOL: u32 = 18;
/// Permits that suffice for any plugin.
const MAX_PERMITS: u32 = instance_permits(CORE_INSTANCES);

/// Permits of the instance pool that a plugin of this many component instances needs. Each of these may
/// block in one task, since wasmtime lets no other task enter it meanwhile.
pub(crate) const fn instance_permits(component_instances: u32) -> u32 {
    (component_instances + SPARE_STACKS).div_ceil(STACKS)
}

/// Permits of the instance pool that a plugin needs for its component instances, its memories and its tables.
pub(crate) fn plugin_permits(
    component_instances: u32,
    resources: Option<ResourcesRequired>,
) -> u32 {
    let (memories, tables) = match resources {
        Some(resources) => (resources.num_memories, resources.num_tables),
        // It imports modules or components, which the host does not offer.
        None => (MEMORIES, TABLES),
    };
    instance_permits(component_instances)
        .max(memories.div_ceil(PERMIT_MEMORIES))
        .max(tables.div_ceil(PERMIT_TABLES))
}

/// Why the runtime could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum SetupError {
    /// The configuration allows no instances.
    #[error("the runtime is configured for 0 plugin instances; allow at least 1")]
    NoInstances,
    /// The address space for the pool is not available.
    #[error(
        "cannot reserve address space for {instances} plugin instances: {cause}; allow fewer, or lift the limit on virtual memory (ulimit -v)"
    )]
    Pool {
        /// Configured instances.
        instances: u32,
        /// Wasmtime's error.
        cause: String,
    },
    /// The cache directory cannot be used.
    #[error("cannot store compiled plugins in {dir}: {cause}; give a directory that only this user can write to", dir = dir.display())]
    Cache {
        /// The directory.
        dir: PathBuf,
        /// What is wrong with it.
        cause: String,
    },
    /// The host functions do not link: a bug in this build.
    #[error("cannot link the host functions: {0}; this is a bug, report it")]
    HostFunctions(String),
    /// A thread could not be started.
    #[error("cannot start a thread: {0}")]
    Thread(#[from] io::Error),
}

/// What generates the code of an engine. Wasmtime's cache and our records distinguish their code, since it depends on
/// the engine's settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CodeGenerator {
    /// Cranelift.
    Optimizing,
    /// Winch: compiles in a fifth of the time. It does not know all instructions, and is there for x86-64 only.
    Baseline,
    /// Cranelift without optimization, for what [`Self::Baseline`] cannot compile.
    Unoptimized,
}

impl CodeGenerator {
    /// Those of a runtime, in the order in which it tries them.
    pub(crate) fn of(runtime: &RuntimeConfig) -> &'static [Self] {
        match runtime.develop {
            true if cfg!(target_arch = "x86_64") => &[Self::Baseline, Self::Unoptimized],
            true => &[Self::Unoptimized],
            false => &[Self::Optimizing],
        }
    }
}

/// Creates a wasmtime engine. Only the first of the process has an instance pool, since address space is limited: others
/// exist while developing, when the time that an instance takes to start does not matter.
pub(crate) fn wasm_engine(
    runtime: &RuntimeConfig,
    generator: CodeGenerator,
) -> Result<Engine, SetupError> {
    let instances = runtime.instances;
    if instances == 0 {
        return Err(SetupError::NoInstances);
    }
    let mut config = code_config(generator);
    if CodeGenerator::of(runtime).first() == Some(&generator) {
        config.allocation_strategy(InstanceAllocationStrategy::Pooling(pool(instances)));
    }
    if let Some(dir) = &runtime.cache {
        config.cache(Some(cache(dir)?));
    }
    Engine::new(&config).map_err(|error| SetupError::Pool {
        instances,
        cause: format!("{error:#}"),
    })
}

/// The settings that decide what code a component compiles to.
fn code_config(generator: CodeGenerator) -> Config {
    let mut config = Config::new();
    let mut wasm_stack = WASM_STACK;
    match generator {
        CodeGenerator::Optimizing => {}
        CodeGenerator::Baseline => {
            config.strategy(Strategy::Winch);
            wasm_stack = BASELINE_STACK;
        }
        CodeGenerator::Unoptimized => {
            config.cranelift_opt_level(OptLevel::None);
        }
    }
    config
        .wasm_component_model(true)
        .wasm_component_model_async(true)
        .epoch_interruption(true)
        .memory_init_cow(true)
        .memory_reservation(MEMORY_RESERVATION as u64)
        .max_wasm_stack(wasm_stack)
        .async_stack_size(wasm_stack + HOST_STACK);
    config
}

/// An engine without a pool that compiles the same code as the process's, into a cache in `dir` if there is one.
pub(crate) fn compile_engine(
    generator: CodeGenerator,
    dir: Option<&Path>,
) -> wasmtime::Result<Engine> {
    let mut config = code_config(generator);
    if let Some(dir) = dir {
        let mut cache = CacheConfig::new();
        cache.with_directory(dir);
        config.cache(Some(Cache::new(cache)?));
    }
    Engine::new(&config)
}

/// An engine without a pool that counts instructions, for components that run once.
pub(crate) fn initialization_engine() -> wasmtime::Result<Engine> {
    let mut config = code_config(CodeGenerator::Unoptimized);
    // The image of a memory would be a file, which a child may not write.
    config
        .epoch_interruption(false)
        .consume_fuel(true)
        .memory_init_cow(false);
    Engine::new(&config)
}

/// A pool with room for `instances` plugin instances, those that wait for another call, as many instances of sampling
/// plugins, and those that check settings, whatever each consists of.
fn pool(instances: u32) -> PoolingAllocationConfig {
    let count = |instances: usize| u32::try_from(instances).unwrap_or(u32::MAX);
    let checks = count(check_instances(instances as usize));
    let waiting = count(waiting_instances(instances as usize));
    let samplers = instances.saturating_add(checks);
    // A pool with fewer permits than some plugin needs has room for such a plugin in each instance.
    let permits = instances.max(MAX_PERMITS * instances.min(SMALL_POOL));
    let others = samplers.saturating_add(waiting);
    let permits = permits.saturating_add(others);
    let instances = instances.saturating_add(others);
    let mut pool = PoolingAllocationConfig::new();
    pool.total_component_instances(instances)
        .max_core_instances_per_component(CORE_INSTANCES)
        .total_core_instances(instances.saturating_mul(CORE_INSTANCES))
        .max_memories_per_component(MEMORIES)
        .total_memories(permits.saturating_mul(PERMIT_MEMORIES))
        .max_memory_size(MEMORY_RESERVATION)
        .max_tables_per_component(TABLES)
        .total_tables(permits.saturating_mul(PERMIT_TABLES))
        .table_elements(TABLE_ELEMENTS)
        .total_stacks(permits.saturating_mul(STACKS))
        .linear_memory_keep_resident(MEMORY_RESIDENT)
        .table_keep_resident(TABLE_RESIDENT)
        .pagemap_scan(Enabled::Auto);
    pool
}

/// Gauges of the instance pool.
pub(crate) fn pool_metrics(engine: &Engine) -> Vec<Metric> {
    let Some(pool) = engine.pooling_allocator_metrics() else {
        return Vec::new();
    };
    let idle = pool.unused_memory_bytes_resident() + pool.unused_table_bytes_resident();
    vec![
        Metric::gauge(
            "corral_plugin_stacks",
            "Stacks of running and blocked plugin tasks.",
            pool.stacks() as f64,
        ),
        Metric::gauge(
            "corral_plugin_pool_idle_bytes",
            "Memory that ended plugin instances left in the instance pool for the next ones.",
            idle as f64,
        ),
    ]
}

/// Wasmtime's cache, keyed by the component's hash, the compiler's version and its settings. Entries are
/// executed without a check, so only this user may write to the directory.
fn cache(dir: &Path) -> Result<Cache, SetupError> {
    let refuse = |cause: String| SetupError::Cache {
        dir: dir.to_owned(),
        cause,
    };
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(dir)
        .map_err(|error| refuse(error.to_string()))?;
    let metadata = dir.metadata().map_err(|error| refuse(error.to_string()))?;
    check_private(&metadata).map_err(|cause| refuse(cause.to_owned()))?;
    let dir = dir
        .canonicalize()
        .map_err(|error| refuse(error.to_string()))?;
    let mut config = CacheConfig::new();
    // Wasmtime removes files that it does not know from its directory, so it gets one of its own.
    config.with_directory(dir.join("wasmtime"));
    Cache::new(config).map_err(|error| refuse(format!("{error:#}")))
}

/// Checks that only this user can write to the directory.
fn check_private(metadata: &Metadata) -> Result<(), &'static str> {
    if metadata.uid() != rustix::process::geteuid().as_raw() {
        return Err("it belongs to another user");
    }
    if metadata.mode() & 0o022 != 0 {
        return Err("other users may write to it");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn cache_writable_by_others_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path().join("cache");
        let config = RuntimeConfig {
            instances: 1,
            cache: Some(dir.clone()),
            ..RuntimeConfig::default()
        };
        wasm_engine(&config, CodeGenerator::Optimizing).unwrap();
        let mode = dir.metadata().unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o700);
        std::fs::set_permissions(&dir, PermissionsExt::from_mode(0o777)).unwrap();
        let error = wasm_engine(&config, CodeGenerator::Optimizing)
            .unwrap_err()
            .to_string();
        assert!(error.contains("other users may write to it"), "{error}");
    }

    #[test]
    fn small_component_needs_one_permit() {
        assert_eq!(instance_permits(1), 1);
        assert_eq!(instance_permits(SMALL_COMPONENT_INSTANCES), 1);
        assert_eq!(instance_permits(SMALL_COMPONENT_INSTANCES + 1), 2);
        assert_eq!(instance_permits(40), 11);
        let needs = |num_memories, num_tables| {
            let resources = ResourcesRequired {
                num_memories,
                num_tables,
                max_initial_memory_size: None,
                max_initial_table_size: None,
            };
            plugin_permits(1, Some(resources))
        };
        assert_eq!((needs(4, 16), needs(5, 2), needs(1, 33)), (1, 2, 3));
    }

    #[test]
    fn admitted_plugins_find_their_stacks() {
        for instances in 1..100 {
            let reserved = (instances / 8).max(1);
            let max = (instances - reserved).max(1);
            // All permits go to plugins of the largest kind, or as many as the pool allows.
            let permits = MAX_PERMITS.min(max);
            let plugins = instances / permits;
            let samplers = instances + check_instances(instances as usize) as u32;
            let pool = pool(instances);
            for (needed, per_permit, total) in [
                (
                    CORE_INSTANCES + SPARE_STACKS,
                    STACKS,
                    pool.get_total_stacks(),
                ),
                (MEMORIES, PERMIT_MEMORIES, pool.get_total_memories()),
                (TABLES, PERMIT_TABLES, pool.get_total_tables()),
            ] {
                let needed = plugins * needed + samplers * per_permit;
                assert!(needed <= total, "{instances}: {needed} of {total}");
            }
        }
    }

    #[test]
    fn zero_instances_are_refused() {
        let config = RuntimeConfig {
            instances: 0,
            ..RuntimeConfig::default()
        };
        assert!(matches!(
            wasm_engine(&config, CodeGenerator::Optimizing),
            Err(SetupError::NoInstances)
        ));
    }
}
