//! The runtime of the process: what all plugins share, and loading plugins.

use crate::admission::InstancePermits;
use crate::compiled_plugin::{CompiledPlugin, compile, initialize};
use crate::compiler::Compiler;
use crate::component_source::ComponentSource;
use crate::composition::{
    LinkedBytes, PluginComponents, component_name, middleware_link_name, sampling_link_name,
};
use crate::compute_turns::ComputeTurns;
use crate::counters::{ProcessCounters, child_metrics};
use crate::deployment::DeploymentState;
use crate::deployment_lookup::DeploymentLookup;
use crate::deployment_snapshots::snapshot_permits;
use crate::epoch_ticker::Ticker;
use crate::folders::FolderFiles;
use crate::initialization::InitializationLimits;
use crate::isolated_compiler::IsolatedCompiler;
use crate::key_values::KeyValueStore;
use crate::models::VisibleModels;
use crate::outbound::OutboundClient;
use crate::plugin::Plugin;
use crate::plugin_error::PluginError;
use crate::runtime_config::{
    Limits, LinkedComponent, LinkedComponents, PluginConfig, RuntimeConfig, waiting_instances,
};
use crate::sampling::resources::SamplerResources;
use crate::shared_services::SharedServices;
use crate::wasm_engine::{SetupError, pool_metrics};
use bytes::Bytes;
use corral_engine::{Metric, ModelPool, Tenant};
use std::collections::BTreeMap;
use std::io::Read;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;
use tokio::sync::Semaphore;

/// Loads and runs plugins. One per process; cheap to clone.
#[derive(Clone)]
pub struct Runtime(Arc<SharedServices>);

impl std::fmt::Debug for Runtime {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Runtime").finish_non_exhaustive()
    }
}

impl Runtime {
    /// Sets up the instance pool, the host functions and the cache of compiled plugins. Call it in the tokio
    /// runtime that will run the plugins: one of its threads is kept from plugins that compute for long.
    ///
    /// # Errors
    /// If the address space, a thread or the cache directory is not available; the text says what to do.
    pub fn new(mut config: RuntimeConfig, models: ModelPool) -> Result<Self, SetupError> {
        // Child processes have another working directory.
        if let Some(cache) = &mut config.cache {
            *cache = std::path::absolute(&*cache).map_err(|error| SetupError::Cache {
                dir: cache.clone(),
                cause: error.to_string(),
            })?;
        }
        let isolated = config
            .children
            .clone()
            .map(|children| IsolatedCompiler::new(children, config.cache.clone()));
        let compiler = Compiler::start(&config, isolated)?;
        let ticker = Arc::new(Ticker::start(compiler.engines())?);
        let counters = Arc::<ProcessCounters>::default();
        let instances = config.instances as usize;
        let sampling = SamplerResources::new(instances, Arc::clone(&ticker), Arc::clone(&counters));
        let turns = ComputeTurns::for_workers(Arc::clone(&counters));
        let outbound = OutboundClient::new(&config.outbound, Arc::clone(&counters));
        Ok(Self(Arc::new(SharedServices {
            models,
            pool: Arc::new(InstancePermits::new(instances)),
            waiting_instances: Arc::new(Semaphore::new(waiting_instances(instances))),
            ticker,
            counters,
            sampling,
            turns,
            snapshot_permits: snapshot_permits(),
            key_values: config
                .key_values
                .map(|file| Arc::new(KeyValueStore::new(file))),
            secrets: config.secrets,
            folders: config.folders,
            folder_files: FolderFiles::new(config.folder_files),
            outbound: Arc::new(outbound),
            tokenization: Arc::default(),
            compiler,
            component_bytes: config.component_bytes,
            deployment_lookup: Arc::default(),
            next_tenant: AtomicU32::new(0),
        })))
    }

    /// Sets where plugins find the deployments that they call. Only the first call has an effect.
    pub fn set_deployment_lookup(&self, lookup: Arc<dyn DeploymentLookup>) {
        self.0.deployment_lookup.get_or_init(|| lookup);
    }

    /// Most calls of one deployment that can run at once: all instances of the pool but the reserved ones,
    /// and at least one.
    pub fn max_calls(&self) -> usize {
        self.0.pool.max_per_deployment()
    }

    /// A new deployment, for [`Runtime::load_plugin_into`].
    pub fn new_deployment(&self) -> DeploymentState {
        let shared = &*self.0;
        DeploymentState::new(
            Tenant(shared.next_tenant.fetch_add(1, Ordering::Relaxed)),
            &shared.pool,
            &shared.counters,
            Arc::new(shared.sampling.for_another_deployment()),
            shared.outbound.deployment_permits(),
            shared.folder_files.deployment_permits(),
        )
    }

    /// Loads a plugin into a deployment of its own.
    ///
    /// # Errors
    /// As [`Runtime::load_plugin_into`].
    pub async fn load_plugin(
        &self,
        name: &str,
        source: impl Into<ComponentSource>,
        limits: Limits,
    ) -> Result<Plugin, PluginError> {
        let config = PluginConfig {
            limits,
            ..PluginConfig::default()
        };
        self.load_plugin_into(&self.new_deployment(), name, source, config)
            .await
    }

    /// Loads a plugin: reads it and its linked components, checks and composes them, and compiles the
    /// result in the background. `name` is for logs and messages.
    ///
    /// # Errors
    /// If the component is not a plugin for this host; the text says why and what to do.
    pub async fn load_plugin_into(
        &self,
        deployment: &DeploymentState,
        name: &str,
        source: impl Into<ComponentSource>,
        mut config: PluginConfig,
    ) -> Result<Plugin, PluginError> {
        let models =
            VisibleModels::new(&self.0.models, config.models.as_deref()).map_err(|model| {
                PluginError::NoModel {
                    plugin: name.to_owned(),
                    model,
                    known: self.0.models.names().map(str::to_owned).collect(),
                }
            })?;
        let is_undefined = |secret: &&String| self.0.secrets.get(secret).is_none();
        if let Some(secret) = config.secrets.iter().find(is_undefined) {
            return Err(PluginError::NoSecret {
                plugin: name.to_owned(),
                secret: secret.clone(),
            });
        }
        let is_missing = |folder: &&String| self.0.folders.get(folder).is_none();
        if let Some(folder) = config.folders.iter().find(is_missing) {
            return Err(PluginError::NoFolder {
                plugin: name.to_owned(),
                folder: folder.clone(),
            });
        }
        let (shared, source, plugin) = (Arc::clone(&self.0), source.into(), name.to_owned());
        let linked = std::mem::take(&mut config.linked);
        let initialization = config.initialize.then_some(InitializationLimits {
            memory: config.limits.memory,
            component: shared.component_bytes,
        });
        let compile = move || shared.compile(&plugin, source, linked, initialization);
        let compiled =
            tokio::task::spawn_blocking(compile)
                .await
                .map_err(|_| PluginError::Stopped {
                    plugin: name.to_owned(),
                })??;
        let shared = Arc::clone(&self.0);
        Ok(Plugin::new(
            name, deployment, compiled, config, models, shared,
        ))
    }

    /// Removes the values that plugins of a deployment keep. Blocks on the disk. A failure is logged. Calls that still run
    /// may write again, unless the deployment is [marked as removed](DeploymentState::set_removed) before.
    pub fn remove_key_values(&self, deployment: &str) {
        if let Some(values) = &self.0.key_values {
            // Logged there.
            let _ = values.remove_deployment(deployment);
        }
    }

    /// Counters and gauges of all plugins together.
    pub fn metrics(&self) -> Vec<Metric> {
        let mut metrics = self.0.counters.metrics();
        metrics.extend(self.0.tokenization.metrics());
        metrics.extend(pool_metrics(self.0.compiler.main_engine()));
        metrics.extend(
            self.0
                .compiler
                .children()
                .into_iter()
                .flat_map(child_metrics),
        );
        metrics
    }
}

impl SharedServices {
    fn compile(
        &self,
        plugin: &str,
        source: ComponentSource,
        linked: LinkedComponents,
        initialization: Option<InitializationLimits>,
    ) -> Result<CompiledPlugin, PluginError> {
        let mut components = self.read_components(plugin, source, linked)?;
        let bytes = components.bytes();
        let began = Instant::now();
        let initialized = initialization
            .map(|limits| initialize(&self.compiler, plugin, &mut components, limits))
            .transpose()?;
        let limit = self.component_bytes;
        let mut compiled = compile(&self.compiler, plugin, &components, limit)?;
        compiled.initialized = initialized;
        self.counters.component_loaded(began.elapsed());
        tracing::debug!(
            plugin,
            bytes,
            milliseconds = began.elapsed().as_millis(),
            "loaded a plugin"
        );
        Ok(compiled)
    }

    /// Reads the plugin and its linked components, at most `component_bytes` together.
    fn read_components(
        &self,
        plugin: &str,
        source: ComponentSource,
        linked: LinkedComponents,
    ) -> Result<PluginComponents, PluginError> {
        let mut components = PluginComponents {
            handler: self.read(plugin, source)?,
            templating: None,
            sampling: BTreeMap::new(),
            middleware: Vec::new(),
        };
        let read_linked = |link: &str, source: ComponentSource, so_far: usize| {
            let bytes = self.read(&component_name(plugin, link), source)?;
            if so_far + bytes.len() > self.component_bytes {
                return Err(PluginError::TooLargeTogether {
                    plugin: plugin.to_owned(),
                    limit: self.component_bytes,
                });
            }
            Ok(bytes)
        };
        if let Some(LinkedComponent { component, inherit }) = linked.templating {
            let bytes = read_linked("templating", component, components.bytes())?;
            components.templating = Some(LinkedBytes { bytes, inherit });
        }
        for (name, component) in linked.sampling {
            let bytes = read_linked(&sampling_link_name(&name), component, components.bytes())?;
            components.sampling.insert(name, bytes);
        }
        for (index, LinkedComponent { component, inherit }) in
            linked.middleware.into_iter().enumerate()
        {
            let link = middleware_link_name(index);
            let bytes = read_linked(&link, component, components.bytes())?;
            components.middleware.push(LinkedBytes { bytes, inherit });
        }
        Ok(components)
    }

    /// Reads a component. Stops one byte beyond the limit.
    fn read(&self, plugin: &str, source: ComponentSource) -> Result<Bytes, PluginError> {
        let limit = self.component_bytes;
        let (bytes, size) = match source {
            ComponentSource::Bytes(bytes) => {
                let size = bytes.len() as u64;
                (bytes, size)
            }
            ComponentSource::File(path) => {
                let read = || {
                    let file = std::fs::File::open(&path)?;
                    let size = file.metadata()?.len();
                    let mut bytes = Vec::new();
                    file.take(limit as u64 + 1).read_to_end(&mut bytes)?;
                    Ok((Bytes::from(bytes), size))
                };
                read().map_err(|cause| PluginError::Unreadable {
                    path: path.clone(),
                    cause,
                })?
            }
        };
        if bytes.len() > limit {
            return Err(PluginError::TooLarge {
                plugin: plugin.to_owned(),
                bytes: size.max(bytes.len() as u64),
                limit,
            });
        }
        Ok(bytes)
    }
}
