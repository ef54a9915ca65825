//! Wasmtime's configuration: the pool of instances, the compiler, and the cache of compiled code.

use crate::sampling::check_places;
use crate::settings::{CORE_INSTANCES, MEMORIES, Settings, TABLE_ELEMENTS, TABLES};
use std::fs::{DirBuilder, Metadata};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use wasmtime::{
    Cache, CacheConfig, Config, Enabled, Engine, InstanceAllocationStrategy,
    PoolingAllocationConfig,
};

/// Address space of one linear memory: 4 GiB, so that bounds checks cost nothing.
const MEMORY_RESERVATION: usize = 4 << 30;
/// Bytes of a memory that stay resident between instances: cheaper to clear than to map again.
const MEMORY_RESIDENT: usize = 2 << 20;
/// The same for a table.
const TABLE_RESIDENT: usize = 512 << 10;
/// Stack of a guest task; half of it is for host functions that the guest calls.
const ASYNC_STACK: usize = 1 << 20;
/// Part of the stack that guest code may use.
const WASM_STACK: usize = 512 << 10;
/// Stacks that one instance may need: one for each task that is suspended inside a call.
const STACKS: u32 = 4;

/// Why the runtime could not be set up. Each text says what to do.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// There is no use in a runtime without instances.
    #[error("0 plugin instances serve nobody; allow at least 1")]
    NoInstances,
    /// The pool could not be reserved.
    #[error(
        "cannot reserve address space for {instances} plugin instances: {cause}; allow fewer, or lift the limit on virtual memory (ulimit -v)"
    )]
    Pool {
        /// Instances that were asked for.
        instances: u32,
        /// What wasmtime said.
        cause: String,
    },
    /// The folder for compiled plugins can't be used.
    #[error("cannot keep compiled plugins in {folder}: {cause}; give a folder that only this user can write to", folder = folder.display())]
    Cache {
        /// The folder.
        folder: PathBuf,
        /// What is wrong with it.
        cause: String,
    },
    /// The host functions could not be linked: a mistake in this build.
    #[error("cannot set up the host's functions: {0}")]
    Link(String),
    /// No thread could be started.
    #[error("cannot start a thread: {0}")]
    Thread(#[from] io::Error),
}

/// Makes the wasmtime engine of the process.
pub(crate) fn engine(settings: &Settings) -> Result<Engine, Error> {
    let instances = settings.instances;
    if instances == 0 {
        return Err(Error::NoInstances);
    }
    let mut config = Config::new();
    config
        .wasm_component_model(true)
        .wasm_component_model_async(true)
        .epoch_interruption(true)
        .memory_init_cow(true)
        .memory_reservation(MEMORY_RESERVATION as u64)
        .max_wasm_stack(WASM_STACK)
        .async_stack_size(ASYNC_STACK)
        .allocation_strategy(InstanceAllocationStrategy::Pooling(pool(instances)));
    if let Some(folder) = &settings.cache {
        config.cache(Some(cache(folder)?));
    }
    Engine::new(&config).map_err(|error| Error::Pool {
        instances,
        cause: format!("{error:#}"),
    })
}

/// A pool in which `instances` plugin instances, as many of sampling plugins, and those where settings are
/// checked always find room, whatever each consists of.
fn pool(instances: u32) -> PoolingAllocationConfig {
    let checks = u32::try_from(check_places(instances as usize)).unwrap_or(u32::MAX);
    let instances = instances.saturating_mul(2).saturating_add(checks);
    let mut pool = PoolingAllocationConfig::new();
    pool.total_component_instances(instances)
        .max_core_instances_per_component(CORE_INSTANCES)
        .total_core_instances(instances.saturating_mul(CORE_INSTANCES))
        .max_memories_per_component(MEMORIES)
        .total_memories(instances.saturating_mul(MEMORIES))
        .max_memory_size(MEMORY_RESERVATION)
        .max_tables_per_component(TABLES)
        .total_tables(instances.saturating_mul(TABLES))
        .table_elements(TABLE_ELEMENTS)
        .total_stacks(instances.saturating_mul(STACKS))
        .linear_memory_keep_resident(MEMORY_RESIDENT)
        .table_keep_resident(TABLE_RESIDENT)
        .pagemap_scan(Enabled::Auto);
    pool
}

/// Wasmtime's own cache: keyed by the hash of the component, the compiler's version and its
/// settings, and written atomically. What is in it is trusted code, so the folder must be ours.
fn cache(folder: &Path) -> Result<Cache, Error> {
    let refuse = |cause: String| Error::Cache {
        folder: folder.to_owned(),
        cause,
    };
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(folder)
        .map_err(|error| refuse(error.to_string()))?;
    let metadata = folder
        .metadata()
        .map_err(|error| refuse(error.to_string()))?;
    private(&metadata).map_err(|cause| refuse(cause.to_owned()))?;
    let ours = folder
        .canonicalize()
        .map_err(|error| refuse(error.to_string()))?;
    let mut config = CacheConfig::new();
    // Wasmtime's clean-up removes whatever it doesn't know from its folder: it gets one of its own,
    // so that nobody loses what else lies in the folder that was named.
    config.with_directory(ours.join("wasmtime"));
    Cache::new(config).map_err(|error| refuse(format!("{error:#}")))
}

/// Whether nobody else can put code into the folder.
fn private(metadata: &Metadata) -> Result<(), &'static str> {
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
    fn a_cache_that_others_can_write_to_is_refused() {
        let folder = std::env::temp_dir().join(format!("corral-cache-{}", std::process::id()));
        let settings = Settings {
            instances: 1,
            cache: Some(folder.clone()),
            ..Settings::default()
        };
        engine(&settings).unwrap();
        let mode = folder.metadata().unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o700);
        std::fs::set_permissions(&folder, PermissionsExt::from_mode(0o777)).unwrap();
        let error = engine(&settings).unwrap_err().to_string();
        std::fs::remove_dir_all(&folder).unwrap();
        assert!(error.contains("other users may write to it"), "{error}");
    }

    #[test]
    fn a_pool_of_none_is_refused() {
        let settings = Settings {
            instances: 0,
            ..Settings::default()
        };
        assert!(matches!(engine(&settings), Err(Error::NoInstances)));
    }
}
