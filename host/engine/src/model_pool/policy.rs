//! Which models are in memory: a pure state machine, without threads, clocks or files.
//!
//! The pool reports events and the time to [`PoolPolicy`]; [`PoolPolicy::plan`] returns what to do.
//! Invariants:
//!
//! - At most [`PoolLimits::loads`] models load at once.
//! - Loaded, loading and unloading models together take at most [`PoolLimits::budget`] bytes, as far as
//!   their sizes are known when a load starts.
//! - A model with leases is never unloaded before [`PoolPolicy::close`].
//! - Each waiter gets exactly one [`WaitResult`], at its deadline at the latest, unless it is canceled.
//! - Loads start in the order in which their first waiters came; a large model is not passed over.
//! - Idle models make room, least recently used first. If all are in use, models that were loaded for
//!   [`PoolLimits::min_residency`] accept no new leases until their present ones end. So a waiter gets room
//!   after that time and the longest call.
//!
//! Memory: [`PoolLimits::waiters`] waiters and one entry per model.

use std::collections::BTreeMap;
use std::time::Duration;

/// Time since some fixed moment.
pub type Time = Duration;

/// The first and the longest delay before a failed load is retried.
const RETRY_DELAY: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));

/// The limits of a pool.
#[derive(Clone, Copy, Debug)]
pub struct PoolLimits {
    /// Bytes of all models together.
    pub budget: Option<u64>,
    /// How long an idle model stays in memory.
    pub idle: Option<Duration>,
    /// Loads at once, at least 1.
    pub loads: usize,
    /// Waiters for each model.
    pub waiters: usize,
    /// How long a model in use accepts new leases, from its load on, while another model waits for its room.
    pub min_residency: Duration,
}

/// Identifies a caller that waits for a model; later ones are greater.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WaiterId(pub u64);

/// The state of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoadState {
    /// Not in memory.
    Unloaded,
    /// Being loaded.
    Loading,
    /// In memory.
    Loaded,
    /// Being unloaded.
    Unloading,
    /// The last load failed.
    Failed {
        /// When a request may retry it.
        retry_at: Time,
    },
}

/// The result of opening a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpenResult {
    /// The model is loaded; the caller has a lease.
    Ready,
    /// The caller waits for [`Action::Answer`].
    Waits(WaiterId),
    /// Too many callers wait.
    Full {
        /// When to try again.
        retry_after: Duration,
    },
    /// The deadline has passed.
    Late,
    /// The last load failed, and it is too early to retry.
    Failed,
    /// The pool is closed.
    Closed,
}

/// The result for a caller that waited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitResult {
    /// The model is loaded; the caller has a lease.
    Ready,
    /// The deadline passed.
    Late,
    /// The load failed.
    Failed,
    /// The model is larger than the budget of all models.
    TooLarge {
        /// The estimated size.
        bytes: u64,
        /// The budget.
        budget: u64,
    },
    /// The pool was closed.
    Closed,
}

/// What the pool has to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Load this model, then call [`PoolPolicy::loaded`] or [`PoolPolicy::failed`].
    Load(usize),
    /// Unload this model, then call [`PoolPolicy::unloaded`].
    Unload(usize),
    /// Answer a waiter.
    Answer(WaiterId, WaitResult),
}

#[derive(Clone, Debug)]
struct ModelEntry {
    state: LoadState,
    /// The real size, or before the load the estimate for its file.
    bytes: Option<u64>,
    leases: usize,
    /// When a lease last started or ended.
    last_used: Time,
    loaded_at: Time,
    /// Duration of the last load.
    load_time: Option<Duration>,
    /// Failed loads since the last success.
    failures: u32,
    /// Accepts no new leases, since another model waits for its room.
    refuses_leases: bool,
    /// Unload it as soon as it is idle.
    unload_requested: bool,
    /// Never unloaded before the pool closes.
    pinned: bool,
}

impl ModelEntry {
    fn is_idle(&self) -> bool {
        self.state == LoadState::Loaded && self.leases == 0 && !self.pinned
    }

    /// Bytes of memory that it holds.
    fn held(&self) -> u64 {
        match self.state {
            LoadState::Loading | LoadState::Loaded | LoadState::Unloading => {
                self.bytes.unwrap_or(0)
            }
            LoadState::Unloaded | LoadState::Failed { .. } => 0,
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct Waiter {
    model: usize,
    deadline: Option<Time>,
}

/// The state of all models; see the module.
#[derive(Clone, Debug)]
pub struct PoolPolicy {
    limits: PoolLimits,
    entries: Vec<ModelEntry>,
    waiters: BTreeMap<WaiterId, Waiter>,
    next_waiter: u64,
    /// Results for the next plan, with their models.
    answers: Vec<(WaiterId, usize, WaitResult)>,
    closed: bool,
}

impl PoolPolicy {
    /// A policy for this many models, all unloaded.
    pub fn new(limits: PoolLimits, models: usize) -> Self {
        let entry = ModelEntry {
            state: LoadState::Unloaded,
            bytes: None,
            leases: 0,
            last_used: Time::ZERO,
            loaded_at: Time::ZERO,
            load_time: None,
            failures: 0,
            refuses_leases: false,
            unload_requested: false,
            pinned: false,
        };
        Self {
            limits,
            entries: vec![entry; models],
            waiters: BTreeMap::new(),
            next_waiter: 0,
            answers: Vec::new(),
            closed: false,
        }
    }

    /// Marks a model as loaded; it stays until the pool closes.
    pub fn pin(&mut self, model: usize, bytes: u64) {
        let entry = &mut self.entries[model];
        entry.state = LoadState::Loaded;
        entry.bytes = Some(bytes);
        entry.pinned = true;
    }

    /// The state of a model.
    pub fn state(&self, model: usize) -> LoadState {
        self.entries[model].state
    }

    /// Number of leases on a model.
    pub fn leases(&self, model: usize) -> usize {
        self.entries[model].leases
    }

    /// Bytes that a model holds; while it loads, the estimate.
    pub fn held(&self, model: usize) -> u64 {
        self.entries[model].held()
    }

    /// Whether any caller waits.
    pub fn has_waiters(&self) -> bool {
        !self.waiters.is_empty()
    }

    /// Number of callers that wait for a model.
    pub fn waiting(&self, model: usize) -> usize {
        self.waiters.values().filter(|w| w.model == model).count()
    }

    /// How long a model has been loaded and without leases; `None` if it is not.
    pub fn unused_for(&self, now: Time, model: usize) -> Option<Duration> {
        let entry = &self.entries[model];
        let unused = entry.state == LoadState::Loaded && entry.leases == 0;
        unused.then(|| now.saturating_sub(entry.last_used))
    }

    /// An estimate of when a model will be loaded: the duration of its last load.
    pub fn retry_after(&self, model: usize) -> Duration {
        let load_time = self.entries[model].load_time.unwrap_or_default();
        load_time.clamp(Duration::from_secs(1), Duration::from_secs(60))
    }

    /// Opens a model for a caller that waits until `deadline`. `changed`: its file differs from the one
    /// that failed to load.
    pub fn open(
        &mut self,
        now: Time,
        model: usize,
        deadline: Option<Time>,
        changed: bool,
    ) -> OpenResult {
        if self.closed {
            return OpenResult::Closed;
        }
        let entry = &mut self.entries[model];
        match entry.state {
            LoadState::Loaded if !entry.refuses_leases => {
                entry.leases += 1;
                entry.last_used = now;
                entry.unload_requested = false;
                return OpenResult::Ready;
            }
            LoadState::Failed { retry_at } if now < retry_at && !changed => {
                return OpenResult::Failed;
            }
            LoadState::Failed { .. } => entry.state = LoadState::Unloaded,
            _ => {}
        }
        if deadline.is_some_and(|deadline| deadline <= now) {
            return OpenResult::Late;
        }
        if self.waiting(model) >= self.limits.waiters {
            let retry_after = self.retry_after(model);
            return OpenResult::Full { retry_after };
        }
        let id = WaiterId(self.next_waiter);
        self.next_waiter += 1;
        self.waiters.insert(id, Waiter { model, deadline });
        OpenResult::Waits(id)
    }

    /// Cancels a waiter that no plan has answered.
    pub fn cancel(&mut self, now: Time, id: WaiterId) {
        self.waiters.remove(&id);
        let answered = self.answers.iter().position(|(own, ..)| *own == id);
        if let Some((_, model, answer)) = answered.map(|at| self.answers.remove(at))
            && answer == WaitResult::Ready
        {
            self.release(now, model);
        }
    }

    /// A lease ended.
    pub fn release(&mut self, now: Time, model: usize) {
        let entry = &mut self.entries[model];
        debug_assert!(entry.leases > 0, "a lease ended twice");
        entry.leases = entry.leases.saturating_sub(1);
        entry.last_used = now;
    }

    /// Requests that the next plan unloads a model. Returns false if it is in use or not loaded.
    pub fn request_unload(&mut self, model: usize) -> bool {
        let entry = &mut self.entries[model];
        let idle = entry.is_idle();
        entry.unload_requested |= idle;
        idle
    }

    /// A model to load next whose size is unknown.
    pub fn model_of_unknown_size(&self) -> Option<usize> {
        self.wanted()
            .find(|model| self.entries[*model].bytes.is_none())
    }

    /// Sets the estimated size of a model for its next load.
    pub fn set_size(&mut self, model: usize, bytes: u64) {
        if self.entries[model].state == LoadState::Unloaded {
            self.entries[model].bytes = Some(bytes);
        }
    }

    /// A load succeeded; its waiters get leases.
    pub fn loaded(&mut self, now: Time, model: usize, bytes: u64, load_time: Duration) {
        let entry = &mut self.entries[model];
        debug_assert_eq!(entry.state, LoadState::Loading);
        entry.state = LoadState::Loaded;
        entry.bytes = Some(bytes);
        entry.failures = 0;
        entry.load_time = Some(load_time);
        (entry.loaded_at, entry.last_used) = (now, now);
        entry.refuses_leases = false;
        entry.unload_requested = false;
        self.serve(now, model);
    }

    /// A load or its size estimate failed; its waiters get the failure.
    pub fn failed(&mut self, now: Time, model: usize) {
        let entry = &mut self.entries[model];
        debug_assert!(matches!(
            entry.state,
            LoadState::Loading | LoadState::Unloaded
        ));
        let delay = RETRY_DELAY.0 * 2_u32.pow(entry.failures.min(16));
        entry.failures += 1;
        entry.bytes = None;
        entry.state = LoadState::Failed {
            retry_at: now + delay.min(RETRY_DELAY.1),
        };
        self.answer_all(model, WaitResult::Failed);
    }

    /// An unload ended.
    pub fn unloaded(&mut self, model: usize) {
        let entry = &mut self.entries[model];
        debug_assert_eq!(entry.state, LoadState::Unloading);
        entry.state = LoadState::Unloaded;
        entry.bytes = None;
        entry.refuses_leases = false;
        entry.unload_requested = false;
    }

    /// Refuses all later opens and answers all waiters; later plans unload all models.
    pub fn close(&mut self) {
        self.closed = true;
        let waiters = std::mem::take(&mut self.waiters).into_iter();
        self.answers
            .extend(waiters.map(|(id, w)| (id, w.model, WaitResult::Closed)));
    }

    /// Whether the pool was closed.
    pub fn is_closed(&self) -> bool {
        self.closed
    }

    /// Whether the pool was closed and no model is in memory.
    pub fn is_closed_and_empty(&self) -> bool {
        let gone = |entry: &ModelEntry| {
            matches!(entry.state, LoadState::Unloaded | LoadState::Failed { .. })
        };
        self.closed && self.entries.iter().all(gone)
    }

    /// What to do now; the caller must do all of it. `free` is the free memory of the machine, if known:
    /// if a load needs more, idle models make room for it within the budget too.
    pub fn plan(&mut self, now: Time, free: Option<u64>) -> Vec<Action> {
        let mut actions = Vec::new();
        if self.closed {
            self.unload_where(|_| true, &mut actions);
        } else {
            self.expire(now);
            self.load(now, free, &mut actions);
            for model in 0..self.entries.len() {
                let entry = &self.entries[model];
                if entry.state == LoadState::Loaded && !entry.refuses_leases {
                    self.serve(now, model);
                }
            }
            let idle = self.limits.idle;
            let expired = |entry: &ModelEntry| {
                idle.is_some_and(|idle| entry.last_used.saturating_add(idle) <= now)
            };
            let unneeded =
                |entry: &ModelEntry| entry.is_idle() && (entry.unload_requested || expired(entry));
            self.unload_where(unneeded, &mut actions);
        }
        let answers = self.answers.drain(..);
        actions.extend(answers.map(|(id, _, answer)| Action::Answer(id, answer)));
        actions
    }

    /// When to plan next if nothing happens after the plan of `now`.
    pub fn next_timer(&self, now: Time) -> Option<Time> {
        let deadlines = self.waiters.values().filter_map(|waiter| waiter.deadline);
        let idle = self.limits.idle;
        let unused = self.entries.iter().filter(|entry| entry.is_idle());
        let unused = unused.filter_map(|entry| Some(entry.last_used.saturating_add(idle?)));
        // A load that waits for room can drain a model when its minimum residency ends.
        let needs_room = self.wanted().next().is_some();
        let residencies = self.entries.iter().filter(|entry| {
            needs_room && entry.state == LoadState::Loaded && !entry.pinned && !entry.refuses_leases
        });
        let residencies = residencies.map(|entry| entry.loaded_at + self.limits.min_residency);
        let times = deadlines.chain(unused).chain(residencies);
        times.filter(|time| *time > now).min()
    }

    /// Unloaded models with waiters, in the order of their first waiters, once per waiter.
    fn wanted(&self) -> impl Iterator<Item = usize> {
        let models = self.waiters.values().map(|waiter| waiter.model);
        models.filter(|model| self.entries[*model].state == LoadState::Unloaded)
    }

    fn expire(&mut self, now: Time) {
        let late = |_: &WaiterId, waiter: &mut Waiter| waiter.deadline.is_some_and(|at| at <= now);
        let late = self.waiters.extract_if(.., late);
        self.answers
            .extend(late.map(|(id, w)| (id, w.model, WaitResult::Late)));
    }

    /// Starts the loads that fit, and makes room for the next one.
    fn load(&mut self, now: Time, free: Option<u64>, actions: &mut Vec<Action>) {
        for entry in &mut self.entries {
            entry.refuses_leases = false;
        }
        loop {
            let Some(model) = self.wanted().next() else {
                return;
            };
            // The pool sets the size before the next plan.
            let Some(bytes) = self.entries[model].bytes else {
                return;
            };
            if let Some(budget) = self.limits.budget.filter(|budget| bytes > *budget) {
                self.entries[model].bytes = None;
                self.answer_all(model, WaitResult::TooLarge { bytes, budget });
                continue;
            }
            let loading = |entry: &&ModelEntry| entry.state == LoadState::Loading;
            if self.entries.iter().filter(loading).count() >= self.limits.loads.max(1)
                || !self.make_room(now, bytes, free, actions)
            {
                return;
            }
            self.entries[model].state = LoadState::Loading;
            actions.push(Action::Load(model));
        }
    }

    /// Returns whether `bytes` fit now; if not, unloads or drains other models.
    fn make_room(
        &mut self,
        now: Time,
        bytes: u64,
        free: Option<u64>,
        actions: &mut Vec<Action>,
    ) -> bool {
        let held: u64 = self.entries.iter().map(ModelEntry::held).sum();
        let leaving = |entry: &&ModelEntry| entry.state == LoadState::Unloading;
        let unloading = self.entries.iter().any(|entry| leaving(&entry));
        let to_come: u64 = self
            .entries
            .iter()
            .filter(leaving)
            .map(ModelEntry::held)
            .sum();
        let Some(budget) = self.limits.budget.filter(|budget| held + bytes > *budget) else {
            // How much the unloading models return to the machine is unknown.
            if free.is_none_or(|free| bytes <= free) {
                return true;
            }
            if unloading {
                return false;
            }
            let Some(model) = self.oldest_idle() else {
                return true;
            };
            self.unload(model, actions);
            return false;
        };
        let mut missing = (held + bytes).saturating_sub(budget + to_come);
        while missing > 0
            && let Some(model) = self.oldest_idle()
        {
            missing = missing.saturating_sub(self.entries[model].held());
            self.unload(model, actions);
        }
        let mut in_use: Vec<_> = self.entries.iter_mut().collect();
        in_use.sort_by_key(|entry| entry.loaded_at);
        for entry in in_use {
            let residency_over = entry.loaded_at + self.limits.min_residency <= now;
            if missing > 0 && entry.state == LoadState::Loaded && !entry.pinned && residency_over {
                entry.refuses_leases = true;
                missing = missing.saturating_sub(entry.held());
            }
        }
        false
    }

    /// The least recently used idle model.
    fn oldest_idle(&self) -> Option<usize> {
        let idle = self.entries.iter().enumerate().filter(|(_, e)| e.is_idle());
        let oldest = idle.min_by_key(|(_, entry)| entry.last_used);
        oldest.map(|(model, _)| model)
    }

    fn unload(&mut self, model: usize, actions: &mut Vec<Action>) {
        self.entries[model].state = LoadState::Unloading;
        actions.push(Action::Unload(model));
    }

    fn unload_where(&mut self, which: impl Fn(&ModelEntry) -> bool, actions: &mut Vec<Action>) {
        for model in 0..self.entries.len() {
            if self.entries[model].state == LoadState::Loaded && which(&self.entries[model]) {
                self.unload(model, actions);
            }
        }
    }

    /// Gives a lease to each waiter of a loaded model.
    fn serve(&mut self, now: Time, model: usize) {
        let served = self.answer_all(model, WaitResult::Ready);
        let entry = &mut self.entries[model];
        if served > 0 {
            entry.leases += served;
            entry.last_used = now;
            entry.unload_requested = false;
        }
    }

    /// Answers all waiters of a model and returns their number.
    fn answer_all(&mut self, model: usize, answer: WaitResult) -> usize {
        let before = self.answers.len();
        let waiters = self.waiters.extract_if(.., |_, w| w.model == model);
        self.answers
            .extend(waiters.map(|(id, _)| (id, model, answer)));
        self.answers.len() - before
    }
}

#[cfg(test)]
mod tests;
