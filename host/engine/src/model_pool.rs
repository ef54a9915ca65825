//! The models of the process by name: loaded when a caller opens one, unloaded when idle.
//!
//! [`policy`] decides, as a pure state machine; the [`manager`] thread acts and sleeps until an event
//! or a timer. Each load and unload runs on a thread of its own, since it takes as long as the disk
//! takes. A caller that opens a model gets a [`ModelLease`]; a model stays loaded while leases exist. If a
//! file cannot be loaded, only the callers of that model get the error.
//!
//! An unloaded model returns all of its memory. Retained sequences are lost and computed again after
//! the next load; counters continue.
//!
//! Limits: [`MAX_WAITERS`] callers that wait for each model, each until its deadline; one load at a time;
//! [`ModelPoolSettings::memory`] bytes for all models.

mod estimate;
mod lease;
mod manager;
mod policy;
mod status;

pub use estimate::ModelSize;
pub use lease::{ModelLease, OpenModel};
pub use status::{ModelState, ModelStatus};

use crate::engine::Engine;
use crate::model_config::ModelConfig;
use crate::{Caller, Error, LoadError};
use corral_llama::{LlamaError, LoadProgress};
use estimate::FileStamp;
use lease::Waiting;
use policy::{LoadState, OpenResult, PoolLimits, PoolPolicy, Time, WaiterId};
use status::ModelTotals;
use std::collections::HashMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Callers that may wait for one model.
const MAX_WAITERS: usize = 1024;
/// Loads at once: parallel loads slow each other on a disk, and memory may not suffice for two.
const MAX_LOADS: usize = 1;
/// How long a model in use accepts new leases, from its load on, while another model waits for its room.
const MIN_RESIDENCY: Duration = Duration::from_secs(5);

/// Settings of a [`ModelPool`].
#[derive(Clone, Debug, Default)]
pub struct ModelPoolSettings {
    /// Bytes that all models together may take, weights and contexts; unlimited if `None`. Idle models
    /// also make room when the machine is short of memory.
    pub memory: Option<u64>,
    /// How long an idle model stays in memory; forever if `None`.
    pub idle: Option<Duration>,
}

/// Why a model could not be opened.
#[derive(Clone, Debug, thiserror::Error)]
pub enum OpenError {
    /// No model has this name.
    #[error("there is no model {wanted}; {available}")]
    Unknown {
        /// The name.
        wanted: String,
        /// The names that exist, in words.
        available: String,
    },
    /// The model cannot be loaded. Later opens fail too, until its file changes or a delay ends.
    #[error("{cause}")]
    NotLoaded {
        /// The model's name.
        name: String,
        /// Why.
        cause: Arc<LoadError>,
    },
    /// The model was not loaded in time, too many callers wait, or the pool is closed.
    #[error(transparent)]
    Unavailable(Error),
}

impl From<OpenError> for Error {
    /// The text does not contain the directory of the file.
    fn from(error: OpenError) -> Self {
        match error {
            OpenError::Unknown { .. } => Self::NotFound(error.to_string()),
            OpenError::NotLoaded { name, cause } => Self::Failed(format!(
                "the model {name} cannot be loaded: {}",
                cause.redacted()
            )),
            OpenError::Unavailable(error) => error,
        }
    }
}

/// The models of the process. Clones share them; dropping the last one unloads all idle models.
#[derive(Clone)]
pub struct ModelPool(Arc<PoolHandle>);

/// Closes the pool when the last [`ModelPool`] is dropped; leases hold only [`PoolShared`].
struct PoolHandle(Arc<PoolShared>);

impl Drop for PoolHandle {
    fn drop(&mut self) {
        self.0.close();
    }
}

/// What threads and leases share.
struct PoolShared {
    names: Vec<String>,
    state: Mutex<PoolState>,
    /// Wakes the manager.
    work: Condvar,
    /// Signals the end of the manager.
    emptied: Condvar,
    /// The policy's time counts from here.
    started: Instant,
    /// Whether a manager thread runs; not if all models are preloaded.
    managed: bool,
}

struct PoolState {
    policy: PoolPolicy,
    slots: Vec<Slot>,
    waiting: HashMap<WaiterId, Waiting>,
    /// The timer for which the manager sleeps.
    timer: Option<Time>,
}

/// A model's data, beside its state in the policy.
struct Slot {
    /// `None` if the model is preloaded.
    config: Option<ModelConfig>,
    /// Set while the model is loaded or unloading.
    engine: Option<Engine>,
    /// The progress of the current load.
    progress: Arc<LoadProgress>,
    /// The file at the last load.
    stamp: Option<FileStamp>,
    /// The real size at the last successful load, and the file it was loaded from.
    measured: Option<(FileStamp, u64)>,
    /// Why the last load failed.
    error: Option<Arc<LoadError>>,
    totals: ModelTotals,
}

impl ModelPool {
    /// A pool that loads models when they are opened. The first model is the default. Fails if no
    /// thread can be started.
    pub fn new(configs: Vec<ModelConfig>, settings: &ModelPoolSettings) -> Result<Self, LoadError> {
        let names = configs.iter().map(|config| config.name.clone()).collect();
        let slots = configs.into_iter().map(|config| Slot::new(Some(config)));
        let shared = Arc::new(PoolShared::new(names, slots.collect(), settings, true));
        let managed = shared.clone();
        std::thread::Builder::new()
            .name("models".into())
            .spawn(move || manager::run(&managed))
            .map_err(|error| {
                LoadError::Config(format!(
                    "the thread that manages models could not be started: {error}; raise the \
                     limit on processes"
                ))
            })?;
        Ok(Self(Arc::new(PoolHandle(shared))))
    }

    /// A pool of preloaded engines, which stay loaded.
    pub fn loaded(engines: Vec<Engine>) -> Self {
        let names = engines.iter().map(|engine| engine.info().name.clone());
        let names = names.collect();
        let slots = engines.iter().map(|_| Slot::new(None)).collect();
        let shared = PoolShared::new(names, slots, &ModelPoolSettings::default(), false);
        let mut pool = shared.lock();
        for (model, engine) in engines.into_iter().enumerate() {
            pool.policy.pin(model, engine.memory());
            pool.slots[model].engine = Some(engine);
        }
        drop(pool);
        Self(Arc::new(PoolHandle(Arc::new(shared))))
    }

    /// The models' names, the default first.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.0.names.iter().map(String::as_str)
    }

    /// Opens a model, or the default one, for `caller`. Ready at once if the model is loaded, else once
    /// it is; all callers share one load.
    ///
    /// Fails with [`OpenError::Unavailable`]: [`Error::DeadlineExceeded`] at the caller's deadline,
    /// [`Error::Overloaded`] if too many callers wait, [`Error::QueueTimeout`] after the caller's queue time, and
    /// [`Error::ShuttingDown`] if the pool is closed.
    ///
    /// A caller that holds a lease on one model and opens another waits for room like all others: until
    /// its deadline, if its own lease takes all of it.
    pub fn open(&self, name: Option<&str>, caller: &Caller) -> OpenModel {
        match self.find(name) {
            Ok(model) => self.0.0.open(model, caller),
            Err(error) => OpenModel::refused(error),
        }
    }

    /// Estimates the bytes of the machine's memory that a model takes, without loading it. Fails as the
    /// load would, as far as the header of the file tells. Blocks: reads the file.
    pub fn estimate_host_bytes(&self, name: &str) -> Result<u64, OpenError> {
        let model = self.find(Some(name))?;
        let pool = self.0.0.lock();
        let (config, held) = (pool.slots[model].config.clone(), pool.policy.held(model));
        drop(pool);
        let Some(config) = config else {
            return Ok(held);
        };
        estimate::estimate_host_bytes(&config).map_err(|cause| OpenError::NotLoaded {
            name: name.to_owned(),
            cause: Arc::new(cause),
        })
    }

    /// Estimates a model's weights and cells, without loading it; `None` if it is preloaded. Fails as the
    /// load would. Blocks: reads the file.
    pub fn estimate(&self, name: &str) -> Result<Option<ModelSize>, OpenError> {
        let model = self.find(Some(name))?;
        let config = self.0.0.lock().slots[model].config.clone();
        let estimate = config.map(|config| estimate::estimate(&config)).transpose();
        estimate.map_err(|cause| OpenError::NotLoaded {
            name: name.to_owned(),
            cause: Arc::new(cause),
        })
    }

    /// Unloads a model if it is idle, and returns whether it is. The next open loads it again.
    pub fn unload(&self, name: &str) -> Result<bool, OpenError> {
        let model = self.find(Some(name))?;
        let idle = self.0.0.lock().policy.request_unload(model);
        self.0.0.work.notify_one();
        Ok(idle)
    }

    /// The engines of the loaded models, for inspection. They are no leases, so callers must not keep
    /// them.
    pub fn engines(&self) -> Vec<Engine> {
        let pool = self.0.0.lock();
        let loaded = |(model, slot): (usize, &Slot)| {
            let loaded = pool.policy.state(model) == LoadState::Loaded;
            slot.engine.clone().filter(|_| loaded)
        };
        pool.slots.iter().enumerate().filter_map(loaded).collect()
    }

    /// Closes the pool: fails all waiters, cancels loads, unloads all models even if in use, and waits
    /// for all of it. Call it before the process exits, so that no computation is cut off.
    pub fn shutdown(&self) {
        self.0.0.close();
        self.0.0.wait_until_empty();
    }

    fn find(&self, name: Option<&str>) -> Result<usize, OpenError> {
        let names = &self.0.0.names;
        let found = match name {
            Some(name) => names.iter().position(|own| own == name),
            None => (!names.is_empty()).then_some(0),
        };
        found.ok_or_else(|| OpenError::Unknown {
            wanted: name.unwrap_or("to be the default one").to_owned(),
            available: if names.is_empty() {
                "this host serves none".to_owned()
            } else {
                format!("there is {}", names.join(", "))
            },
        })
    }
}

impl Slot {
    fn new(config: Option<ModelConfig>) -> Self {
        Self {
            config,
            engine: None,
            progress: Arc::default(),
            stamp: None,
            measured: None,
            error: None,
            totals: ModelTotals::default(),
        }
    }
}

impl PoolShared {
    fn new(
        names: Vec<String>,
        slots: Vec<Slot>,
        settings: &ModelPoolSettings,
        managed: bool,
    ) -> Self {
        let limits = PoolLimits {
            budget: settings.memory,
            idle: settings.idle,
            loads: MAX_LOADS,
            waiters: MAX_WAITERS,
            min_residency: MIN_RESIDENCY,
        };
        Self {
            state: Mutex::new(PoolState {
                policy: PoolPolicy::new(limits, names.len()),
                slots,
                waiting: HashMap::new(),
                timer: None,
            }),
            names,
            work: Condvar::new(),
            emptied: Condvar::new(),
            started: Instant::now(),
            managed,
        }
    }

    fn lock(&self) -> MutexGuard<'_, PoolState> {
        // No code under this lock panics midway.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) -> Time {
        self.started.elapsed()
    }

    fn open(self: &Arc<Self>, model: usize, caller: &Caller) -> OpenModel {
        let changed = self.has_changed(model);
        let arrived = Instant::now();
        let queue_end = caller.queue_time.and_then(|time| arrived.checked_add(time));
        // The earlier end counts: the queue time gives `QueueTimeout`, the deadline `DeadlineExceeded`.
        let overdue_at =
            queue_end.filter(|end| caller.deadline.is_none_or(|deadline| *end < deadline));
        let until = overdue_at.or(caller.deadline);
        let until = until.map(|at| at.saturating_duration_since(self.started));
        let mut pool = self.lock();
        let now = self.now();
        let refused = |error| OpenModel::refused(OpenError::Unavailable(error));
        match pool.policy.open(now, model, until, changed) {
            OpenResult::Ready => match pool.lease(self, model) {
                Some(lease) => OpenModel::ready(lease),
                None => refused(Error::ShuttingDown),
            },
            OpenResult::Waits(id) => {
                pool.waiting.insert(id, Waiting::default());
                self.work.notify_one();
                OpenModel::waiting(self.clone(), model, id, overdue_at.map(|_| arrived))
            }
            OpenResult::Full { retry_after } => refused(Error::Overloaded {
                reason: format!(
                    "{MAX_WAITERS} requests already wait for the model {} to load",
                    self.names[model]
                ),
                retry_after,
            }),
            OpenResult::Late => refused(match overdue_at {
                None => Error::DeadlineExceeded,
                Some(_) => self.overdue(&pool, model, arrived),
            }),
            OpenResult::Failed => OpenModel::refused(pool.not_loaded(&self.names[model], model)),
            OpenResult::Closed => refused(Error::ShuttingDown),
        }
    }

    /// The error of a caller whose queue time has passed.
    fn overdue(&self, pool: &PoolState, model: usize, since: Instant) -> Error {
        Error::QueueTimeout {
            reason: format!(
                "the model {} was not loaded within {:.1} s",
                self.names[model],
                since.elapsed().as_secs_f64()
            ),
            retry_after: pool.policy.retry_after(model),
        }
    }

    /// Whether the file of a model that failed to load has changed since.
    fn has_changed(&self, model: usize) -> bool {
        let pool = self.lock();
        if !matches!(pool.policy.state(model), LoadState::Failed { .. }) {
            return false;
        }
        let slot = &pool.slots[model];
        let (config, stamp) = (slot.config.clone(), slot.stamp);
        drop(pool);
        config.is_some_and(|config| FileStamp::of(&config) != stamp)
    }

    /// A lease ended.
    fn release(&self, model: usize) {
        let mut pool = self.lock();
        let now = self.now();
        pool.policy.release(now, model);
        let next = pool.policy.next_timer(now);
        let sooner = next.is_some_and(|next| pool.timer.is_none_or(|timer| next < timer));
        // Usually the manager has nothing to do, so not every request wakes it.
        if sooner || pool.policy.has_waiters() {
            self.work.notify_one();
        }
    }

    fn close(&self) {
        let mut pool = self.lock();
        pool.policy.close();
        for slot in &pool.slots {
            slot.progress.cancel();
        }
        self.work.notify_one();
    }

    fn wait_until_empty(&self) {
        let mut pool = self.lock();
        if self.managed {
            while !pool.policy.is_closed_and_empty() {
                let waited = self.emptied.wait(pool);
                pool = waited.unwrap_or_else(PoisonError::into_inner);
            }
            return;
        }
        let slots = pool.slots.iter_mut();
        let engines: Vec<_> = slots.filter_map(|slot| slot.engine.take()).collect();
        drop(pool);
        for engine in engines {
            engine.shutdown();
        }
    }
}

impl PoolState {
    /// The lease that the policy has counted.
    fn lease(&self, shared: &Arc<PoolShared>, model: usize) -> Option<ModelLease> {
        let engine = self.slots[model].engine.clone()?;
        Some(ModelLease::new(engine, shared.clone(), model))
    }

    fn not_loaded(&self, name: &str, model: usize) -> OpenError {
        let cause = self.slots[model].error.clone();
        OpenError::NotLoaded {
            name: name.to_owned(),
            cause: cause.unwrap_or_else(|| Arc::new(LoadError::Llama(LlamaError::Canceled))),
        }
    }
}

#[cfg(test)]
mod tests;
