//! The runtime of the process.

use crate::account::Account;
use crate::admission::Pool;
use crate::compiler::Compiler;
use crate::engine::{Error, engine};
use crate::host;
use crate::link::{Parts, Templating, part_name, sampling_name};
use crate::linker::linker;
use crate::metrics::Counters;
use crate::models::Visible;
use crate::plugin::Plugin;
use crate::sampling::Sampling;
use crate::settings::{Limits, Link, Links, Settings, Terms};
use crate::state::State;
use crate::ticker::Ticker;
use crate::validate::{Compiled, PluginError, compile};
use bytes::Bytes;
use corral_engine::{Metric, Models, Tenant};
use std::collections::BTreeMap;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;
use tokio::sync::Semaphore;
use wasmtime::Engine;
use wasmtime::component::Linker;

/// Where a plugin comes from.
#[derive(Clone, Debug)]
pub enum Source {
    /// A file with a component.
    File(PathBuf),
    /// A component.
    Bytes(Bytes),
}

impl From<PathBuf> for Source {
    fn from(path: PathBuf) -> Self {
        Self::File(path)
    }
}

impl From<&Path> for Source {
    fn from(path: &Path) -> Self {
        Self::File(path.to_owned())
    }
}

impl From<Bytes> for Source {
    fn from(bytes: Bytes) -> Self {
        Self::Bytes(bytes)
    }
}

impl From<Vec<u8>> for Source {
    fn from(bytes: Vec<u8>) -> Self {
        Self::Bytes(bytes.into())
    }
}

/// Runs plugins. One for the process; cheap to clone.
#[derive(Clone)]
pub struct Runtime(Arc<Shared>);

/// What all plugins share.
pub(crate) struct Shared {
    pub(crate) engine: Engine,
    pub(crate) linker: Linker<State>,
    pub(crate) models: Models,
    pool: Arc<Pool>,
    pub(crate) ticker: Arc<Ticker>,
    pub(crate) counters: Arc<Counters>,
    sampling: Sampling,
    /// For snapshots, of which few are written or read at a time.
    pub(crate) snapshot_turns: Arc<Semaphore>,
    compiler: Compiler,
    component_bytes: usize,
    tenants: AtomicU32,
}

impl std::fmt::Debug for Runtime {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Runtime").finish_non_exhaustive()
    }
}

impl Runtime {
    /// Sets up the pool of instances, the host's functions and the cache.
    ///
    /// # Errors
    /// If address space, a thread or the cache's folder can't be had; the text says what to do.
    pub fn new(settings: Settings, models: Models) -> Result<Self, Error> {
        let engine = engine(&settings)?;
        let linker = linker(&engine)?;
        let ticker = Arc::new(Ticker::start(&engine)?);
        let counters = Arc::<Counters>::default();
        let places = settings.instances as usize;
        let sampling = Sampling::new(places, Arc::clone(&ticker), Arc::clone(&counters));
        Ok(Self(Arc::new(Shared {
            engine,
            linker,
            models,
            pool: Arc::new(Pool::new(places)),
            ticker,
            counters,
            sampling,
            snapshot_turns: host::turns(),
            compiler: Compiler::start()?,
            component_bytes: settings.component_bytes,
            tenants: AtomicU32::new(0),
        })))
    }

    /// Calls of one deployment that can run at once, whatever its limits allow: all places of the pool
    /// but one in eight, and one at least, which are kept for other deployments.
    pub fn most_calls(&self) -> usize {
        self.0.pool.most()
    }

    /// A new deployment, whose plugins [`Runtime::plugin_for`] loads.
    pub fn account(&self) -> Account {
        let shared = &*self.0;
        let sampling = Arc::new(shared.sampling.for_another());
        Account::new(
            shared.new_tenant(),
            &shared.pool,
            &shared.counters,
            sampling,
        )
    }

    /// Loads a plugin of a deployment of its own: [`Runtime::plugin_for`] a new account.
    ///
    /// # Errors
    /// Those of [`Runtime::plugin_for`].
    pub async fn plugin(
        &self,
        name: &str,
        source: impl Into<Source>,
        limits: Limits,
    ) -> Result<Plugin, PluginError> {
        let terms = Terms {
            limits,
            ..Terms::default()
        };
        self.plugin_for(&self.account(), name, source, terms).await
    }

    /// Loads a plugin: reads it and what it is linked with, checks what they are, what they import and
    /// export, and compiles them on a thread where nobody waits. `name` is for logs and messages.
    ///
    /// # Errors
    /// If the file can't be a plugin of this host; the text says why and what to do.
    pub async fn plugin_for(
        &self,
        account: &Account,
        name: &str,
        source: impl Into<Source>,
        mut terms: Terms,
    ) -> Result<Plugin, PluginError> {
        let models = Visible::new(&self.0.models, terms.models.as_deref()).map_err(|model| {
            PluginError::NoModel {
                plugin: name.to_owned(),
                model,
                have: self.0.models.names().map(str::to_owned).collect(),
            }
        })?;
        let (shared, source, plugin) = (Arc::clone(&self.0), source.into(), name.to_owned());
        let stopped = || PluginError::Stopped {
            plugin: name.to_owned(),
        };
        let links = std::mem::take(&mut terms.links);
        let compiled = tokio::task::spawn_blocking(move || shared.compile(&plugin, source, links))
            .await
            .map_err(|_| stopped())??;
        let shared = Arc::clone(&self.0);
        Ok(Plugin::new(name, account, compiled, terms, models, shared))
    }

    /// The runtime's counters as they are now.
    pub fn counters(&self) -> Vec<Metric> {
        self.0.counters.list()
    }
}

impl Shared {
    /// A tenant that nobody else is.
    pub(crate) fn new_tenant(&self) -> Tenant {
        Tenant(self.tenants.fetch_add(1, Ordering::Relaxed))
    }

    fn compile(&self, plugin: &str, source: Source, links: Links) -> Result<Compiled, PluginError> {
        let parts = self.read_all(plugin, source, links)?;
        let bytes = parts.bytes();
        let began = Instant::now();
        let limit = self.component_bytes;
        let compiled = self
            .compiler
            .run(|| compile(&self.engine, &self.linker, plugin, &parts, limit))?;
        self.counters.component_compiled(began.elapsed());
        tracing::info!(
            plugin,
            bytes,
            milliseconds = began.elapsed().as_millis(),
            "loaded a plugin"
        );
        Ok(compiled)
    }

    /// The plugin and what it is linked with, together within the limit of one component.
    fn read_all(&self, plugin: &str, source: Source, links: Links) -> Result<Parts, PluginError> {
        let mut parts = Parts {
            handler: self.read(plugin, source)?,
            templating: None,
            sampling: BTreeMap::new(),
        };
        let within = |name: &str, source: Source, read: usize| {
            let bytes = self.read(&part_name(plugin, name), source)?;
            if read + bytes.len() > self.component_bytes {
                return Err(PluginError::TooLargeTogether {
                    plugin: plugin.to_owned(),
                    limit: self.component_bytes,
                });
            }
            Ok(bytes)
        };
        if let Some(Link { component, inherit }) = links.templating {
            let bytes = within("templating", component, parts.bytes())?;
            parts.templating = Some(Templating { bytes, inherit });
        }
        for (name, component) in links.sampling {
            let bytes = within(&sampling_name(&name), component, parts.bytes())?;
            parts.sampling.insert(name, bytes);
        }
        Ok(parts)
    }

    /// The component, never more of it than one byte beyond the limit.
    fn read(&self, plugin: &str, source: Source) -> Result<Bytes, PluginError> {
        let limit = self.component_bytes;
        let (bytes, size) = match source {
            Source::Bytes(bytes) => {
                let size = bytes.len() as u64;
                (bytes, size)
            }
            Source::File(path) => {
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
