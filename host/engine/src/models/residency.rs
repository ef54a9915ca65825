//! Which models are in memory: a pure state machine, without threads, clocks or files.
//!
//! [`Residency`] is told what happens (somebody opens a model, a load ended, a lease was given back)
//! and the time; [`Residency::plan`] says what to do. What holds at every moment:
//!
//! - A model is loaded once at a time, and at most [`Limits::loads`] are being loaded.
//! - What is loaded, being loaded and being unloaded takes no more than [`Limits::budget`], as far as
//!   its size was known when it was begun.
//! - A model is unloaded only when nobody holds a lease on it, unless the end has come.
//! - Whoever waits is answered exactly once: at the latest at its deadline, or never if it gives up.
//! - Loads begin in the order in which their first waiters came. Nobody is passed by because it is
//!   large.
//! - Room is made by those that nobody uses, the least recently used first. If all are in use, those
//!   that had their [`Limits::turn`] take no new users until their present ones are done: so whoever
//!   waits for room gets it after one turn and the longest call, however busy the others are.
//!
//! Bounds: [`Limits::waiting`] waiters for each model; everything else is one entry for each model.

use std::collections::BTreeMap;
use std::time::Duration;

/// Time since some fixed moment.
pub type Time = Duration;

/// How long a failed model is left alone before a request tries it again, at first and at most.
const BACK_OFF: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));

/// What has to be kept.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Bytes that all models together may take.
    pub budget: Option<u64>,
    /// How long a model stays that nobody uses.
    pub idle: Option<Duration>,
    /// Loads at once, at least 1.
    pub loads: usize,
    /// Waiters for each model.
    pub waiting: usize,
    /// How long a model that is in use stays open for new users while another one waits for its room.
    pub turn: Duration,
}

/// Somebody who waits for a model. Later ones are greater.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(pub u64);

/// Where a model is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Not in memory.
    Asleep,
    /// On its way into memory.
    Loading,
    /// In memory.
    Loaded,
    /// On its way out of memory.
    Unloading,
    /// Its last load failed.
    Failed {
        /// When a request tries it again.
        again: Time,
    },
}

/// What comes of opening a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Opened {
    /// It is there, and a lease was counted.
    Ready,
    /// It will be said by [`Action::Answer`].
    Waits(Ticket),
    /// Too many wait.
    Full {
        /// A guess of when it is there.
        retry_after: Duration,
    },
    /// It is too late.
    Late,
    /// It could not be loaded a moment ago.
    Failed,
    /// Nothing is opened any more.
    Closed,
}

/// What is said to one who waited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// It is there, and a lease was counted.
    Ready,
    /// The deadline passed first.
    Late,
    /// It could not be loaded.
    Failed,
    /// It takes more than all models together may have.
    TooLarge {
        /// What it is expected to take.
        bytes: u64,
        /// What there is.
        budget: u64,
    },
    /// Nothing is opened any more.
    Closed,
}

/// What is to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Load this model; then call [`Residency::loaded`] or [`Residency::failed`].
    Load(usize),
    /// Unload this model; then call [`Residency::unloaded`].
    Unload(usize),
    /// Tell one who waits.
    Answer(Ticket, Answer),
}

/// One model.
#[derive(Clone, Debug)]
struct Entry {
    state: State,
    /// Bytes that it takes, or is expected to take by the one who looked at its file for this load.
    bytes: Option<u64>,
    leases: usize,
    /// When it was last opened or given back.
    last_used: Time,
    loaded_at: Time,
    /// How long the last load took.
    load_time: Option<Duration>,
    /// Loads that failed since one succeeded.
    failures: u32,
    /// Takes no new users, since another model waits for its room.
    drains: bool,
    /// Is to be unloaded as soon as nobody uses it.
    dismissed: bool,
    /// Never unloaded before the end.
    pinned: bool,
}

impl Entry {
    fn is_idle(&self) -> bool {
        self.state == State::Loaded && self.leases == 0 && !self.pinned
    }

    /// Bytes of memory that it holds.
    fn held(&self) -> u64 {
        match self.state {
            State::Loading | State::Loaded | State::Unloading => self.bytes.unwrap_or(0),
            State::Asleep | State::Failed { .. } => 0,
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct Waiter {
    model: usize,
    deadline: Option<Time>,
}

/// The state of all models.
#[derive(Clone, Debug)]
pub struct Residency {
    limits: Limits,
    entries: Vec<Entry>,
    waiters: BTreeMap<Ticket, Waiter>,
    next_ticket: u64,
    /// What is to be said at the next plan, and of which model.
    answers: Vec<(Ticket, usize, Answer)>,
    closed: bool,
}

impl Residency {
    /// So many models, all asleep.
    pub fn new(limits: Limits, models: usize) -> Self {
        let entry = Entry {
            state: State::Asleep,
            bytes: None,
            leases: 0,
            last_used: Time::ZERO,
            loaded_at: Time::ZERO,
            load_time: None,
            failures: 0,
            drains: false,
            dismissed: false,
            pinned: false,
        };
        Self {
            limits,
            entries: vec![entry; models],
            waiters: BTreeMap::new(),
            next_ticket: 0,
            answers: Vec::new(),
            closed: false,
        }
    }

    /// Takes a model as loaded that somebody else loaded; it stays to the end.
    pub fn adopt(&mut self, model: usize, bytes: u64) {
        let entry = &mut self.entries[model];
        entry.state = State::Loaded;
        entry.bytes = Some(bytes);
        entry.pinned = true;
    }

    /// Where a model is.
    pub fn state(&self, model: usize) -> State {
        self.entries[model].state
    }

    /// Leases on it.
    pub fn leases(&self, model: usize) -> usize {
        self.entries[model].leases
    }

    /// Bytes that it holds, or is expected to hold.
    pub fn held(&self, model: usize) -> u64 {
        self.entries[model].held()
    }

    /// Whether anybody waits for anything.
    pub fn anyone_waits(&self) -> bool {
        !self.waiters.is_empty()
    }

    /// How many wait for it.
    pub fn waiting(&self, model: usize) -> usize {
        self.waiters.values().filter(|w| w.model == model).count()
    }

    /// How long nobody has used it; none while somebody does, or it is not there.
    pub fn unused_for(&self, now: Time, model: usize) -> Option<Duration> {
        let entry = &self.entries[model];
        let unused = entry.state == State::Loaded && entry.leases == 0;
        unused.then(|| now.saturating_sub(entry.last_used))
    }

    /// A guess of how long it takes until a model is there.
    pub fn retry_after(&self, model: usize) -> Duration {
        let guess = self.entries[model].load_time.unwrap_or_default();
        guess.clamp(Duration::from_secs(1), Duration::from_secs(60))
    }

    /// Somebody wants to use a model until `deadline`. `changed` says that its file is another one
    /// than the one that failed.
    pub fn open(
        &mut self,
        now: Time,
        model: usize,
        deadline: Option<Time>,
        changed: bool,
    ) -> Opened {
        if self.closed {
            return Opened::Closed;
        }
        let entry = &mut self.entries[model];
        match entry.state {
            State::Loaded if !entry.drains => {
                entry.leases += 1;
                entry.last_used = now;
                entry.dismissed = false;
                return Opened::Ready;
            }
            State::Failed { again } if now < again && !changed => return Opened::Failed,
            State::Failed { .. } => entry.state = State::Asleep,
            _ => {}
        }
        if deadline.is_some_and(|deadline| deadline <= now) {
            return Opened::Late;
        }
        if self.waiting(model) >= self.limits.waiting {
            let retry_after = self.retry_after(model);
            return Opened::Full { retry_after };
        }
        let ticket = Ticket(self.next_ticket);
        self.next_ticket += 1;
        self.waiters.insert(ticket, Waiter { model, deadline });
        Opened::Waits(ticket)
    }

    /// One who waits goes away, before a plan has answered it.
    pub fn give_up(&mut self, now: Time, ticket: Ticket) {
        self.waiters.remove(&ticket);
        let told = self.answers.iter().position(|(own, ..)| *own == ticket);
        if let Some((_, model, answer)) = told.map(|at| self.answers.remove(at))
            && answer == Answer::Ready
        {
            self.release(now, model);
        }
    }

    /// A lease is given back.
    pub fn release(&mut self, now: Time, model: usize) {
        let entry = &mut self.entries[model];
        debug_assert!(entry.leases > 0, "given back twice");
        entry.leases = entry.leases.saturating_sub(1);
        entry.last_used = now;
    }

    /// Has a model unloaded at the next plan. False if it is not there, or somebody uses it.
    pub fn dismiss(&mut self, model: usize) -> bool {
        let entry = &mut self.entries[model];
        let idle = entry.is_idle();
        entry.dismissed |= idle;
        idle
    }

    /// A model that is to be loaded next, and of which nobody has said yet how large it is.
    pub fn unmeasured(&self) -> Option<usize> {
        self.wanted()
            .find(|model| self.entries[*model].bytes.is_none())
    }

    /// Somebody has looked at the file for the coming load.
    pub fn measured(&mut self, model: usize, bytes: u64) {
        if self.entries[model].state == State::Asleep {
            self.entries[model].bytes = Some(bytes);
        }
    }

    /// A load succeeded; those who waited get their leases.
    pub fn loaded(&mut self, now: Time, model: usize, bytes: u64, took: Duration) {
        let entry = &mut self.entries[model];
        debug_assert_eq!(entry.state, State::Loading);
        entry.state = State::Loaded;
        entry.bytes = Some(bytes);
        entry.failures = 0;
        entry.load_time = Some(took);
        (entry.loaded_at, entry.last_used) = (now, now);
        entry.drains = false;
        entry.dismissed = false;
        self.serve(now, model);
    }

    /// A load, or the look before it, failed; those who waited are told.
    pub fn failed(&mut self, now: Time, model: usize) {
        let entry = &mut self.entries[model];
        debug_assert!(matches!(entry.state, State::Loading | State::Asleep));
        let delay = BACK_OFF.0 * 2_u32.pow(entry.failures.min(16));
        entry.failures += 1;
        entry.bytes = None;
        entry.state = State::Failed {
            again: now + delay.min(BACK_OFF.1),
        };
        self.tell_all(model, Answer::Failed);
    }

    /// It is out of memory.
    pub fn unloaded(&mut self, model: usize) {
        let entry = &mut self.entries[model];
        debug_assert_eq!(entry.state, State::Unloading);
        entry.state = State::Asleep;
        entry.bytes = None;
        entry.drains = false;
        entry.dismissed = false;
    }

    /// Opens nothing any more. The plans that follow unload everything.
    pub fn close(&mut self) {
        self.closed = true;
        let left = std::mem::take(&mut self.waiters);
        let told = left.into_iter();
        self.answers
            .extend(told.map(|(ticket, w)| (ticket, w.model, Answer::Closed)));
    }

    /// Whether it was closed.
    pub fn is_closed(&self) -> bool {
        self.closed
    }

    /// Whether it was closed and everything is out of memory.
    pub fn is_over(&self) -> bool {
        let gone = |entry: &Entry| matches!(entry.state, State::Asleep | State::Failed { .. });
        self.closed && self.entries.iter().all(gone)
    }

    /// What to do now, and all of it has to be done. `free` is the memory that the machine has left,
    /// if that is known: idle models make room for a load also where it would not suffice.
    pub fn plan(&mut self, now: Time, free: Option<u64>) -> Vec<Action> {
        let mut actions = Vec::new();
        if self.closed {
            self.unload_where(|_| true, &mut actions);
        } else {
            self.expire(now);
            self.load(now, free, &mut actions);
            for model in 0..self.entries.len() {
                let entry = &self.entries[model];
                if entry.state == State::Loaded && !entry.drains {
                    self.serve(now, model);
                }
            }
            let idle = self.limits.idle;
            let over = |entry: &Entry| {
                idle.is_some_and(|idle| entry.last_used.saturating_add(idle) <= now)
            };
            let unneeded = |entry: &Entry| entry.is_idle() && (entry.dismissed || over(entry));
            self.unload_where(unneeded, &mut actions);
        }
        let answers = self.answers.drain(..);
        actions.extend(answers.map(|(ticket, _, answer)| Action::Answer(ticket, answer)));
        actions
    }

    /// When to plan next if nothing happens after the plan of `now`.
    pub fn next_timer(&self, now: Time) -> Option<Time> {
        let deadlines = self.waiters.values().filter_map(|waiter| waiter.deadline);
        let idle = self.limits.idle;
        let unused = self.entries.iter().filter(|entry| entry.is_idle());
        let unused = unused.filter_map(|entry| Some(entry.last_used.saturating_add(idle?)));
        // Whoever waits for room looks again when somebody's turn is over.
        let waits = self.wanted().next().is_some();
        let turns = self.entries.iter().filter(|entry| {
            waits && entry.state == State::Loaded && !entry.pinned && !entry.drains
        });
        let turns = turns.map(|entry| entry.loaded_at + self.limits.turn);
        let times = deadlines.chain(unused).chain(turns);
        times.filter(|time| *time > now).min()
    }

    /// Models that are asleep and waited for, in the order in which their first waiters came. One
    /// that comes up twice has several waiters.
    fn wanted(&self) -> impl Iterator<Item = usize> {
        let models = self.waiters.values().map(|waiter| waiter.model);
        models.filter(|model| self.entries[*model].state == State::Asleep)
    }

    fn expire(&mut self, now: Time) {
        let late = |_: &Ticket, waiter: &mut Waiter| waiter.deadline.is_some_and(|at| at <= now);
        let late = self.waiters.extract_if(.., late);
        self.answers
            .extend(late.map(|(ticket, w)| (ticket, w.model, Answer::Late)));
    }

    /// Begins loads as far as there is room, and makes room.
    fn load(&mut self, now: Time, free: Option<u64>, actions: &mut Vec<Action>) {
        for entry in &mut self.entries {
            entry.drains = false;
        }
        loop {
            let Some(model) = self.wanted().next() else {
                return;
            };
            // Whoever has not been looked at is, before the next plan.
            let Some(bytes) = self.entries[model].bytes else {
                return;
            };
            if let Some(budget) = self.limits.budget.filter(|budget| bytes > *budget) {
                self.entries[model].bytes = None;
                self.tell_all(model, Answer::TooLarge { bytes, budget });
                continue;
            }
            let loading = |entry: &&Entry| entry.state == State::Loading;
            if self.entries.iter().filter(loading).count() >= self.limits.loads.max(1)
                || !self.make_room(now, bytes, free, actions)
            {
                return;
            }
            self.entries[model].state = State::Loading;
            actions.push(Action::Load(model));
        }
    }

    /// Whether there is room for so many bytes; if not, sees to it that there will be.
    fn make_room(
        &mut self,
        now: Time,
        bytes: u64,
        free: Option<u64>,
        actions: &mut Vec<Action>,
    ) -> bool {
        let held: u64 = self.entries.iter().map(Entry::held).sum();
        let leaving = |entry: &&Entry| entry.state == State::Unloading;
        let unloading = self.entries.iter().any(|entry| leaving(&entry));
        let to_come: u64 = self.entries.iter().filter(leaving).map(Entry::held).sum();
        let Some(budget) = self.limits.budget.filter(|budget| held + bytes > *budget) else {
            // Nobody knows how much those will give back that are leaving.
            if free.is_none_or(|free| bytes <= free) {
                return true;
            }
            return !unloading && !self.unload_oldest(actions);
        };
        let mut missing = (held + bytes).saturating_sub(budget + to_come);
        while missing > 0 {
            let idle = self.entries.iter().enumerate().filter(|(_, e)| e.is_idle());
            let Some((model, _)) = idle.min_by_key(|(_, entry)| entry.last_used) else {
                break;
            };
            missing = missing.saturating_sub(self.entries[model].held());
            self.unload(model, actions);
        }
        let mut in_use: Vec<_> = self.entries.iter_mut().collect();
        in_use.sort_by_key(|entry| entry.loaded_at);
        for entry in in_use {
            let had_its_turn = entry.loaded_at + self.limits.turn <= now;
            if missing > 0 && entry.state == State::Loaded && !entry.pinned && had_its_turn {
                entry.drains = true;
                missing = missing.saturating_sub(entry.held());
            }
        }
        false
    }

    /// Unloads the least recently used of the idle ones; false if there is none.
    fn unload_oldest(&mut self, actions: &mut Vec<Action>) -> bool {
        let idle = self.entries.iter().enumerate().filter(|(_, e)| e.is_idle());
        let oldest = idle.min_by_key(|(_, entry)| entry.last_used);
        let Some((model, _)) = oldest else {
            return false;
        };
        self.unload(model, actions);
        true
    }

    fn unload(&mut self, model: usize, actions: &mut Vec<Action>) {
        self.entries[model].state = State::Unloading;
        actions.push(Action::Unload(model));
    }

    fn unload_where(&mut self, which: impl Fn(&Entry) -> bool, actions: &mut Vec<Action>) {
        for model in 0..self.entries.len() {
            if self.entries[model].state == State::Loaded && which(&self.entries[model]) {
                self.unload(model, actions);
            }
        }
    }

    /// Gives everyone who waits for a model that is there a lease.
    fn serve(&mut self, now: Time, model: usize) {
        let told = self.tell_all(model, Answer::Ready);
        let entry = &mut self.entries[model];
        if told > 0 {
            entry.leases += told;
            entry.last_used = now;
            entry.dismissed = false;
        }
    }

    /// Answers all who wait for a model; returns how many there were.
    fn tell_all(&mut self, model: usize, answer: Answer) -> usize {
        let before = self.answers.len();
        let its = self.waiters.extract_if(.., |_, w| w.model == model);
        self.answers
            .extend(its.map(|(ticket, _)| (ticket, model, answer)));
        self.answers.len() - before
    }
}

#[cfg(test)]
mod tests;
