//! Turns of guests that compute.
//!
//! A guest needs no turn for short work: each tenant has [free time](crate::free_cpu_time), which does not refill while
//! guests of the tenant take turns. A guest waits for a turn before each poll while its tenant has no free time, and after
//! each epoch in which it did not pause ([`run_within`](crate::time_limits::run_within)). There is one turn fewer than worker
//! threads, so that one thread always serves other calls; a single thread has one turn. A turn ends with the poll that it
//! allows, at the guest's next epoch at the latest.
//!
//! A sampling plugin is *slow* if its last call computed for long. It then waits for turns although its tenant has free time,
//! unless the tenant is the only one. Otherwise several samplers of a tenant occupy all threads until the free time is used
//! up, and meanwhile no thread reads requests of others.
//!
//! The tenant whose turns used the least CPU time goes next; within a tenant, the guest that waited longest.
//! A tenant gets no credit for time in which it did not wait. The calls admitted bound the guests that wait.

use crate::counters::{DeploymentCounters, ProcessCounters};
use crate::free_cpu_time::{FreeTime, FreeTimes, RefillPause};
use corral_engine::Tenant;
use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::runtime::Handle;
use tokio::sync::oneshot;

/// The turns of the process.
#[derive(Debug)]
pub(crate) struct ComputeTurns {
    /// Turns that guests may have at once.
    max: usize,
    state: Mutex<TurnState>,
    free_times: FreeTimes,
    counters: Arc<ProcessCounters>,
}

#[derive(Debug)]
struct TurnState {
    free: usize,
    queues: BTreeMap<Tenant, TenantQueue>,
    /// [`TenantQueue::used`] of the tenant that got the last turn. That of every waiting tenant is at least this.
    min_used: Duration,
}

#[derive(Debug)]
struct TenantQueue {
    /// CPU time of the tenant's turns, or more: see [`TurnState::queue`].
    used: Duration,
    waiters: VecDeque<oneshot::Sender<Turn>>,
}

impl TurnState {
    /// The queue of `tenant`. A new one begins without credit.
    fn queue(&mut self, tenant: Tenant) -> &mut TenantQueue {
        let used = self.min_used;
        self.queues.entry(tenant).or_insert_with(|| TenantQueue {
            used,
            waiters: VecDeque::new(),
        })
    }

    /// Takes a free turn, and the next guest from its queue.
    fn next_waiter(&mut self) -> Option<(Tenant, oneshot::Sender<Turn>)> {
        if self.free == 0 {
            return None;
        }
        let waiting = self.queues.iter_mut();
        let waiting = waiting.filter(|(_, queue)| !queue.waiters.is_empty());
        let (&tenant, queue) = waiting.min_by_key(|(_, queue)| queue.used)?;
        let waiter = queue.waiters.pop_front()?;
        self.free -= 1;
        self.min_used = queue.used;
        Some((tenant, waiter))
    }

    /// Removes the queues of tenants that neither wait nor used more than a new one would.
    fn remove_unused_queues(&mut self, max: usize) {
        let is_waiting = |queue: &TenantQueue| !queue.waiters.is_empty();
        let idle = self.free == max && !self.queues.values().any(is_waiting);
        let min_used = self.min_used;
        self.queues
            .retain(|_, queue| is_waiting(queue) || (!idle && queue.used > min_used));
    }
}

impl ComputeTurns {
    /// Turns for the worker threads of the current tokio runtime.
    pub(crate) fn for_workers(counters: Arc<ProcessCounters>) -> Arc<Self> {
        let workers = match Handle::try_current() {
            Ok(runtime) => runtime.metrics().num_workers(),
            Err(_) => std::thread::available_parallelism().map_or(1, usize::from),
        };
        Self::new(workers.saturating_sub(1).max(1), counters)
    }

    fn new(max: usize, counters: Arc<ProcessCounters>) -> Arc<Self> {
        let state = TurnState {
            free: max,
            queues: BTreeMap::new(),
            min_used: Duration::ZERO,
        };
        Arc::new(Self {
            max,
            state: Mutex::new(state),
            free_times: FreeTimes::default(),
            counters,
        })
    }

    fn lock(&self) -> MutexGuard<'_, TurnState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Queues a guest of `tenant`. A guest with a turn must end the turn after this call, so that its
    /// tenant's CPU time counts before the next guest is chosen.
    pub(crate) fn wait(self: &Arc<Self>, tenant: Tenant) -> Waiter {
        let (sender, turn) = oneshot::channel();
        let mut state = self.lock();
        let min_used = state.min_used;
        let queue = state.queue(tenant);
        if queue.waiters.is_empty() {
            queue.used = queue.used.max(min_used);
        }
        queue.waiters.push_back(sender);
        drop(state);
        self.counters.calls_waiting_for_turn.increment();
        self.grant();
        Waiter {
            turns: Arc::clone(self),
            tenant,
            turn,
            received: false,
        }
    }

    /// Grants the free turns.
    fn grant(self: &Arc<Self>) {
        loop {
            let next = self.lock().next_waiter();
            let Some((tenant, waiter)) = next else {
                return;
            };
            // If the waiter was dropped meanwhile, this drops the turn, without the lock, and so frees it.
            drop(waiter.send(Turn {
                turns: Arc::clone(self),
                tenant,
                used: Duration::ZERO,
                _pause: None,
            }));
        }
    }
}

/// Where the guest of a call waits for its turns.
#[derive(Debug)]
pub(crate) struct TurnQueue {
    turns: Arc<ComputeTurns>,
    pub(crate) tenant: Tenant,
    /// That of the tenant.
    free_time: Arc<FreeTime>,
    /// Whether it is the queue of a slow sampling plugin.
    is_slow: AtomicBool,
    counters: Arc<DeploymentCounters>,
}

impl TurnQueue {
    /// The queue of the guests of `tenant`.
    pub(crate) fn new(
        turns: &Arc<ComputeTurns>,
        tenant: Tenant,
        counters: &Arc<DeploymentCounters>,
    ) -> Self {
        Self {
            turns: Arc::clone(turns),
            tenant,
            free_time: turns.free_times.of(tenant, Instant::now()),
            is_slow: AtomicBool::new(false),
            counters: Arc::clone(counters),
        }
    }

    /// Whether the guest may not compute without a turn.
    pub(crate) fn needs_turn(&self) -> bool {
        let is_slow = self.is_slow.load(Ordering::Relaxed) && self.free_time.has_other_tenants();
        is_slow || self.free_time.is_used_up(Instant::now)
    }

    /// Sets whether its guest, a sampling plugin, is slow.
    pub(crate) fn set_slow(&self, is_slow: bool) {
        self.is_slow.store(is_slow, Ordering::Relaxed);
    }

    /// Uses up free time of the tenant, for work that ended now.
    pub(crate) fn use_free_time(&self, used: Duration) {
        self.free_time.use_up(used, Instant::now());
    }

    /// Queues the guest: see [`ComputeTurns::wait`]. The tenant's free time does not refill until the turn ends.
    pub(crate) fn wait(&self) -> impl Future<Output = Option<Turn>> + Send + use<> {
        let free_times = &self.turns.free_times;
        let pause = free_times.pause_refill(&self.free_time, Instant::now());
        let waiter = self.turns.wait(self.tenant);
        let counters = Arc::clone(&self.counters);
        async move {
            let mut turn = waiter.turn().await?;
            turn._pause = Some(pause);
            counters.compute_turns.increment();
            Some(turn)
        }
    }
}

/// A guest that waits for a turn. Dropping it gives up its place in the queue, or the turn that it was granted.
#[derive(Debug)]
pub(crate) struct Waiter {
    turns: Arc<ComputeTurns>,
    tenant: Tenant,
    turn: oneshot::Receiver<Turn>,
    received: bool,
}

impl Waiter {
    /// Waits for the turn.
    pub(crate) async fn turn(mut self) -> Option<Turn> {
        let turn = (&mut self.turn).await.ok();
        self.received = turn.is_some();
        turn
    }
}

impl Drop for Waiter {
    fn drop(&mut self) {
        self.turns.counters.calls_waiting_for_turn.decrement();
        if !self.received {
            self.turn.close();
            let mut state = self.turns.lock();
            let queue = state.queue(self.tenant);
            queue.waiters.retain(|waiter| !waiter.is_closed());
        }
    }
}

/// Allows a guest to compute until dropped.
#[derive(Debug)]
pub(crate) struct Turn {
    turns: Arc<ComputeTurns>,
    tenant: Tenant,
    used: Duration,
    _pause: Option<RefillPause>,
}

impl Turn {
    /// Ends the turn, which used this much CPU time.
    pub(crate) fn end(mut self, used: Duration) {
        self.used = used;
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let mut state = self.turns.lock();
        state.free += 1;
        state.queue(self.tenant).used += self.used;
        state.remove_unused_queues(self.turns.max);
        drop(state);
        self.turns.grant();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SLICE: Duration = Duration::from_millis(10);

    fn turns(max: usize) -> Arc<ComputeTurns> {
        ComputeTurns::new(max, Arc::default())
    }

    /// The turn of `waiter`, if it was granted.
    fn received(waiter: &mut Waiter) -> Option<Turn> {
        let turn = waiter.turn.try_recv().ok();
        waiter.received |= turn.is_some();
        turn
    }

    fn waiting(turns: &ComputeTurns) -> u64 {
        turns.counters.calls_waiting_for_turn.get()
    }

    /// Guests that spin: each waits again before its turn ends.
    struct Spinners {
        turns: Arc<ComputeTurns>,
        waiters: Vec<Waiter>,
    }

    impl Spinners {
        fn new(max: usize) -> Self {
            Self {
                turns: turns(max),
                waiters: Vec::new(),
            }
        }

        fn add(&mut self, tenant: u32, count: usize) {
            let new = || self.turns.wait(Tenant(tenant));
            self.waiters.extend(std::iter::repeat_with(new).take(count));
        }

        /// Takes the turn that was granted. Returns its tenant.
        fn take(&mut self) -> (Tenant, Turn) {
            let mut waiters = self.waiters.iter_mut().enumerate();
            let (index, turn) = waiters
                .find_map(|(index, waiter)| Some((index, received(waiter)?)))
                .expect("a turn was granted");
            (self.waiters.remove(index).tenant, turn)
        }

        /// Computes for this many slices. Returns how many each of the tenants 0 to 2 had.
        fn run(&mut self, slices: usize) -> [usize; 3] {
            let mut counts = [0; 3];
            for _ in 0..slices {
                let (tenant, turn) = self.take();
                self.waiters.push(self.turns.wait(tenant));
                turn.end(SLICE);
                counts[tenant.0 as usize] += 1;
            }
            counts
        }
    }

    #[test]
    fn turns_are_bounded_and_first_come_first_served() {
        let turns = turns(2);
        let [mut first, mut second, mut third, mut fourth] =
            std::array::from_fn(|_| turns.wait(Tenant(0)));
        let turn = received(&mut first).expect("the first turn is free");
        let _second = received(&mut second).expect("the second turn is free");
        assert!(received(&mut third).is_none());
        turn.end(SLICE);
        assert!(received(&mut fourth).is_none());
        assert!(received(&mut third).is_some());
        assert!(received(&mut fourth).is_some());
    }

    #[test]
    fn tenants_share_turns_equally() {
        let mut spinners = Spinners::new(1);
        spinners.add(0, 10);
        spinners.add(1, 1);
        assert_eq!(spinners.run(100), [50, 50, 0]);
    }

    #[test]
    fn new_tenant_has_no_credit() {
        let mut spinners = Spinners::new(1);
        spinners.add(0, 2);
        assert_eq!(spinners.run(50), [50, 0, 0]);
        spinners.add(1, 2);
        let [old, new, _] = spinners.run(20);
        assert!(old.abs_diff(new) <= 2, "{old} and {new}");
    }

    #[test]
    fn tenant_that_pauses_keeps_its_used_time() {
        let mut spinners = Spinners::new(1);
        spinners.add(0, 1);
        spinners.add(1, 2);
        spinners.add(2, 2);
        let mut counts = [0_usize; 3];
        for _ in 0..90 {
            let (tenant, turn) = spinners.take();
            counts[tenant.0 as usize] += 1;
            // The guest of tenant 0 blocks, and computes again at once.
            if tenant == Tenant(0) {
                turn.end(SLICE);
                spinners.add(0, 1);
            } else {
                spinners.add(tenant.0, 1);
                turn.end(SLICE);
            }
        }
        assert_eq!(counts, [30; 3]);
    }

    #[test]
    fn slow_sampler_needs_turn_beside_other_tenants() {
        let turns = turns(1);
        let queue = |tenant| TurnQueue::new(&turns, Tenant(tenant), &Arc::default());
        let slow = queue(0);
        slow.set_slow(true);
        assert!(!slow.needs_turn());
        let others = [queue(0), queue(1)];
        assert!(slow.needs_turn());
        assert!(others.iter().all(|other| !other.needs_turn()));
        slow.set_slow(false);
        assert!(!slow.needs_turn());
    }

    #[test]
    fn dropped_waiters_leave_the_queue() {
        let turns = turns(1);
        let [mut first, second, mut third] = std::array::from_fn(|_| turns.wait(Tenant(0)));
        let turn = received(&mut first).expect("the turn is free");
        drop(first);
        drop(second);
        assert_eq!(waiting(&turns), 1);
        assert_eq!(turns.lock().queue(Tenant(0)).waiters.len(), 1);
        drop(turn);
        assert!(received(&mut third).is_some());
    }

    #[test]
    fn turn_sent_to_dropped_waiter_is_granted_again() {
        let turns = turns(1);
        let [first, mut second] = std::array::from_fn(|_| turns.wait(Tenant(0)));
        // Granted, but not received.
        drop(first);
        let turn = received(&mut second).expect("the turn is granted again");
        // As if it were dropped after it was chosen.
        let mut third = turns.wait(Tenant(0));
        third.turn.close();
        let mut fourth = turns.wait(Tenant(1));
        drop(turn);
        assert!(received(&mut fourth).is_some());
        assert_eq!(turns.lock().free, 1);
        drop([second, third, fourth]);
        assert_eq!(waiting(&turns), 0);
    }

    #[test]
    fn idle_turns_hold_no_queues() {
        let turns = turns(2);
        for tenant in 0..4 {
            let mut waiter = turns.wait(Tenant(tenant));
            received(&mut waiter).expect("a turn is free").end(SLICE);
        }
        assert!(turns.lock().queues.is_empty());
    }
}
