//! The models of the process by name: loaded when somebody opens one, unloaded when nobody uses it.
//!
//! [`Residency`] decides, a pure state machine; [`keeper`] does, in one thread that sleeps until
//! something happens or a time is over, and one for each load and unloading, since those take as long
//! as the disk takes. Whoever opens a model gets a [`Lease`]: as long as there is one the model stays.
//! A file that can't be loaded fails those who asked for it, and nobody else.
//!
//! A model that is unloaded gives back all of its memory; what was kept of sequences is gone, and
//! computed again when it is back. Its counters go on where they were.
//!
//! Bounds: [`WAITING`] openings that wait for each model, each until its deadline; one load at a time;
//! [`Settings::memory`] bytes for all models.

mod file;
mod keeper;
mod lease;
mod machine;
mod residency;
mod status;

pub use file::Expected;
pub use lease::{Lease, Opening};
pub use machine::machine_memory;
pub use status::{ModelState, ModelStatus};

use crate::config::Config;
use crate::engine::Engine;
use crate::{Caller, Error, LoadError};
use corral_llama::{LlamaError, LoadProgress};
use file::Print;
use lease::Waiting;
use residency::{Limits, Opened, Residency, State, Ticket, Time};
use status::Totals;
use std::collections::HashMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Openings that may wait for one model.
const WAITING: usize = 1024;
/// Loads at once: a disk serves one reader best, and so does memory that may not suffice for two.
const LOADS: usize = 1;
/// How long a model that is in use stays open for new users while another waits for its room.
const TURN: Duration = Duration::from_secs(5);

/// What all models share.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    /// Bytes that the models in memory may take together, weights and contexts. Without it as much as
    /// the machine has. In any case those that nobody uses make room for others where memory is short.
    pub memory: Option<u64>,
    /// How long a model stays in memory that nobody uses; for ever without it.
    pub idle: Option<Duration>,
}

/// Why a model could not be opened.
#[derive(Clone, Debug, thiserror::Error)]
pub enum OpenError {
    /// No model has this name.
    #[error("there is no model {wanted}; {have}")]
    Unknown {
        /// The name.
        wanted: String,
        /// Which models there are, in words.
        have: String,
    },
    /// It can't be loaded now, and others find the same until its file is another one or some time has
    /// passed.
    #[error("{cause}")]
    NotLoaded {
        /// The name under which it is served.
        name: String,
        /// Why.
        cause: Arc<LoadError>,
    },
    /// It is not there in time, or will not be.
    #[error(transparent)]
    NotNow(Error),
}

impl From<OpenError> for Error {
    /// In words for whoever asked, who does not learn where the file is.
    fn from(error: OpenError) -> Self {
        match error {
            OpenError::Unknown { .. } => Self::NotFound(error.to_string()),
            OpenError::NotLoaded { name, cause } => Self::Failed(format!(
                "the model {name} can't be loaded: {}",
                cause.without_folder()
            )),
            OpenError::NotNow(error) => error,
        }
    }
}

/// The models by name. Cheap to clone; with the last clone all that is not in use is unloaded.
#[derive(Clone)]
pub struct Models(Arc<Owner>);

struct Owner(Arc<Shared>);

impl Drop for Owner {
    fn drop(&mut self) {
        self.0.close();
    }
}

/// What the threads and all leases share.
struct Shared {
    names: Vec<String>,
    inner: Mutex<Inner>,
    /// Wakes the keeper.
    work: Condvar,
    /// Wakes those who wait for the end.
    over: Condvar,
    /// The residency's time counts from here.
    started: Instant,
    /// Whether a thread does what the residency says; not where all models were loaded before.
    kept: bool,
}

struct Inner {
    residency: Residency,
    slots: Vec<Slot>,
    waiting: HashMap<Ticket, Waiting>,
    /// Until when the keeper sleeps if nobody wakes it.
    armed: Option<Time>,
}

/// What belongs to one model beside its state.
struct Slot {
    /// None if it was loaded by somebody else.
    config: Option<Config>,
    /// There while it is loaded or on its way out.
    engine: Option<Engine>,
    /// Of the load that runs.
    progress: Arc<LoadProgress>,
    /// The file when it was looked at for the last load.
    print: Option<Print>,
    /// What it really took when it was loaded from that file.
    took: Option<(Print, u64)>,
    /// Why the last load failed.
    error: Option<Arc<LoadError>>,
    totals: Totals,
}

impl Models {
    /// Models that are loaded when they are opened. The first is the default one; of two with the same
    /// name the first is found. The error says that no thread could be started.
    pub fn new(configs: Vec<Config>, settings: &Settings) -> Result<Self, LoadError> {
        let names = configs.iter().map(|config| config.name.clone()).collect();
        let slots = configs.into_iter().map(|config| Slot::new(Some(config)));
        let shared = Arc::new(Shared::new(names, slots.collect(), settings, true));
        let kept = shared.clone();
        std::thread::Builder::new()
            .name("models".into())
            .spawn(move || keeper::keep(&kept))
            .map_err(|error| {
                LoadError::Config(format!(
                    "the thread that keeps the models could not be started: {error}; raise the \
                     limit of processes"
                ))
            })?;
        Ok(Self(Arc::new(Owner(shared))))
    }

    /// Models that are loaded already, and stay so.
    pub fn loaded(engines: Vec<Engine>) -> Self {
        let names = engines.iter().map(|engine| engine.info().name.clone());
        let names = names.collect();
        let slots = engines.iter().map(|_| Slot::new(None)).collect();
        let shared = Shared::new(names, slots, &Settings::default(), false);
        let mut inner = shared.lock();
        for (model, engine) in engines.into_iter().enumerate() {
            inner.residency.adopt(model, engine.memory());
            inner.slots[model].engine = Some(engine);
        }
        drop(inner);
        Self(Arc::new(Owner(Arc::new(shared))))
    }

    /// Their names, the default one first.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.0.names.iter().map(String::as_str)
    }

    /// Opens the model of this name, or the default one, on behalf of `caller`. Ready at once if it is
    /// in memory; otherwise as soon as it was loaded, which happens once however many wait for it.
    ///
    /// [`OpenError::NotNow`] with [`Error::Deadline`] at the caller's deadline, with
    /// [`Error::Refused`] if too many wait, [`Error::Overdue`] if it was not there within the caller's queue time, and with
    /// [`Error::Cancelled`] at the end of the process.
    ///
    /// Who holds a lease on one model and opens another waits for room like everybody else: where all
    /// of it is taken by the first, until the deadline.
    pub fn open(&self, name: Option<&str>, caller: &Caller) -> Opening {
        match self.find(name) {
            Ok(model) => self.0.0.open(model, caller),
            Err(error) => Opening::refused(error),
        }
    }

    /// Looks at a model's file without loading it: the bytes of the machine's memory that it is expected to
    /// take. The error is what the load would say, as far as a look can tell. Reads the head of the file:
    /// blocks.
    pub fn look(&self, name: &str) -> Result<u64, OpenError> {
        let model = self.find(Some(name))?;
        let inner = self.0.0.lock();
        let (config, held) = (
            inner.slots[model].config.clone(),
            inner.residency.held(model),
        );
        drop(inner);
        let Some(config) = config else {
            return Ok(held);
        };
        file::expected_bytes(&config).map_err(|cause| OpenError::NotLoaded {
            name: name.to_owned(),
            cause: Arc::new(cause),
        })
    }

    /// What a model's file says that it takes for weights and cells, without loading it; none of one that was
    /// loaded by somebody else. The error is what the load would say. Reads the head of the file: blocks.
    pub fn expected(&self, name: &str) -> Result<Option<Expected>, OpenError> {
        let model = self.find(Some(name))?;
        let config = self.0.0.lock().slots[model].config.clone();
        let expected = config.map(|config| file::expected(&config)).transpose();
        expected.map_err(|cause| OpenError::NotLoaded {
            name: name.to_owned(),
            cause: Arc::new(cause),
        })
    }

    /// Unloads a model if nobody uses it, and says whether that is begun. The next who opens it has it
    /// loaded again.
    pub fn unload(&self, name: &str) -> Result<bool, OpenError> {
        let model = self.find(Some(name))?;
        let idle = self.0.0.lock().residency.dismiss(model);
        self.0.0.work.notify_one();
        Ok(idle)
    }

    /// The engines of those that are loaded now, for a look at them. This is no use: a model that is
    /// looked at may be unloaded, so no one must keep what is returned.
    pub fn engines(&self) -> Vec<Engine> {
        let inner = self.0.0.lock();
        let loaded = |(model, slot): (usize, &Slot)| {
            let loaded = inner.residency.state(model) == State::Loaded;
            slot.engine.clone().filter(|_| loaded)
        };
        inner.slots.iter().enumerate().filter_map(loaded).collect()
    }

    /// Answers everyone who waits, gives up the loads that run, unloads all models also where they are
    /// in use, and waits for that. To be called before the process exits, so that no computation is
    /// cut.
    pub fn shutdown(&self) {
        self.0.0.close();
        self.0.0.wait_for_end();
    }

    fn find(&self, name: Option<&str>) -> Result<usize, OpenError> {
        let names = &self.0.0.names;
        let found = match name {
            Some(name) => names.iter().position(|own| own == name),
            None => (!names.is_empty()).then_some(0),
        };
        found.ok_or_else(|| OpenError::Unknown {
            wanted: name.unwrap_or("to be the default one").to_owned(),
            have: if names.is_empty() {
                "this host serves none".to_owned()
            } else {
                format!("there is {}", names.join(", "))
            },
        })
    }
}

impl Slot {
    fn new(config: Option<Config>) -> Self {
        Self {
            config,
            engine: None,
            progress: Arc::default(),
            print: None,
            took: None,
            error: None,
            totals: Totals::default(),
        }
    }
}

impl Shared {
    fn new(names: Vec<String>, slots: Vec<Slot>, settings: &Settings, kept: bool) -> Self {
        let limits = Limits {
            budget: settings.memory,
            idle: settings.idle,
            loads: LOADS,
            waiting: WAITING,
            turn: TURN,
        };
        Self {
            inner: Mutex::new(Inner {
                residency: Residency::new(limits, names.len()),
                slots,
                waiting: HashMap::new(),
                armed: None,
            }),
            names,
            work: Condvar::new(),
            over: Condvar::new(),
            started: Instant::now(),
            kept,
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // What is done under this lock does not panic half-way.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) -> Time {
        self.started.elapsed()
    }

    fn open(self: &Arc<Self>, model: usize, caller: &Caller) -> Opening {
        let changed = self.has_changed(model);
        let arrived = Instant::now();
        let turn = caller.queue_time.and_then(|time| arrived.checked_add(time));
        // Of two ends the earlier one counts; only at the deadline it is of no use any more.
        let refuse = turn.filter(|turn| caller.deadline.is_none_or(|deadline| *turn < deadline));
        let until = refuse.or(caller.deadline);
        let until = until.map(|at| at.saturating_duration_since(self.started));
        let mut inner = self.lock();
        let now = self.now();
        let refused = |error| Opening::refused(OpenError::NotNow(error));
        match inner.residency.open(now, model, until, changed) {
            Opened::Ready => match inner.lease(self, model) {
                Some(lease) => Opening::ready(lease),
                None => refused(Error::Cancelled),
            },
            Opened::Waits(ticket) => {
                inner.waiting.insert(ticket, Waiting::default());
                self.work.notify_one();
                Opening::waiting(self.clone(), model, ticket, refuse.map(|_| arrived))
            }
            Opened::Full { retry_after } => refused(Error::Refused {
                reason: format!(
                    "{WAITING} requests wait already for the model {} to be loaded",
                    self.names[model]
                ),
                retry_after,
            }),
            Opened::Late => refused(match refuse {
                None => Error::Deadline,
                Some(_) => self.overdue(&inner, model, arrived),
            }),
            Opened::Failed => Opening::refused(inner.not_loaded(&self.names[model], model)),
            Opened::Closed => refused(Error::Cancelled),
        }
    }

    /// For one who was willing to wait only so long.
    fn overdue(&self, inner: &Inner, model: usize, since: Instant) -> Error {
        Error::Overdue {
            reason: format!(
                "the model {} was not loaded within {:.1} s",
                self.names[model],
                since.elapsed().as_secs_f64()
            ),
            retry_after: inner.residency.retry_after(model),
        }
    }

    /// Whether a model that could not be loaded has another file by now.
    fn has_changed(&self, model: usize) -> bool {
        let inner = self.lock();
        if !matches!(inner.residency.state(model), State::Failed { .. }) {
            return false;
        }
        let slot = &inner.slots[model];
        let (config, print) = (slot.config.clone(), slot.print);
        drop(inner);
        config.is_some_and(|config| Print::of(&config.path) != print)
    }

    /// A lease was given back.
    fn release(&self, model: usize) {
        let mut inner = self.lock();
        let now = self.now();
        inner.residency.release(now, model);
        let next = inner.residency.next_timer(now);
        let sooner = next.is_some_and(|next| inner.armed.is_none_or(|armed| next < armed));
        // Mostly the keeper has nothing to do about it, and need not be woken for each request.
        if sooner || inner.residency.anyone_waits() {
            self.work.notify_one();
        }
    }

    fn close(&self) {
        let mut inner = self.lock();
        inner.residency.close();
        for slot in &inner.slots {
            slot.progress.cancel();
        }
        self.work.notify_one();
    }

    fn wait_for_end(&self) {
        let mut inner = self.lock();
        if self.kept {
            while !inner.residency.is_over() {
                let waited = self.over.wait(inner);
                inner = waited.unwrap_or_else(PoisonError::into_inner);
            }
            return;
        }
        let slots = inner.slots.iter_mut();
        let engines: Vec<_> = slots.filter_map(|slot| slot.engine.take()).collect();
        drop(inner);
        for engine in engines {
            engine.shutdown();
        }
    }
}

impl Inner {
    /// The lease that the residency has counted.
    fn lease(&self, shared: &Arc<Shared>, model: usize) -> Option<Lease> {
        let engine = self.slots[model].engine.clone()?;
        Some(Lease::new(engine, shared.clone(), model))
    }

    fn not_loaded(&self, name: &str, model: usize) -> OpenError {
        let cause = self.slots[model].error.clone();
        OpenError::NotLoaded {
            name: name.to_owned(),
            cause: cause.unwrap_or_else(|| Arc::new(LoadError::Llama(LlamaError::Cancelled))),
        }
    }
}

#[cfg(test)]
mod tests;
