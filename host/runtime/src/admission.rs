//! Who may run now: bounds on the calls of a deployment, and one on instances of the process.
//!
//! The calls of a deployment are counted once, whichever of its revisions they go to: those that run,
//! and those that wait. Each revision holds its own calls to its own bounds over these counts. So where
//! two with other bounds serve together, since they share the requests or the old one's calls have not
//! ended, the deployment runs as many as the larger bound and never the sum.
//!
//! Who waits goes in the order in which they came, also where a later one has a larger bound: so those
//! of a small bound do not starve. A call holds up those behind it until its own time is over at most.
//!
//! The pool of instances is shared by all deployments, first come first served. One place in eight, and
//! one at least, is never taken by the deployment that has all the others.

use crate::failure::Failure;
use crate::metrics::Counters;
use crate::tally::{Bound, Tally};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use tokio::time::{Instant, timeout_at};

/// Shortest and longest that a refused client is told to wait.
const RETRY: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));
/// Of so many places of the pool one is kept for others.
const KEPT: usize = 8;

/// The instances that may live at once.
#[derive(Debug)]
pub(crate) struct Pool {
    places: Arc<Semaphore>,
    most: usize,
}

impl Pool {
    /// A pool of `instances` places.
    pub(crate) fn new(instances: usize) -> Self {
        let instances = instances.min(Semaphore::MAX_PERMITS);
        let kept = (instances / KEPT).max(1);
        Self {
            places: Arc::new(Semaphore::new(instances)),
            most: instances.saturating_sub(kept).max(1),
        }
    }

    /// The places.
    pub(crate) fn places(&self) -> &Arc<Semaphore> {
        &self.places
    }

    /// Places that one deployment may have: all but those that are kept for others, but one at least.
    pub(crate) fn most(&self) -> usize {
        self.most
    }
}

/// The calls of one deployment.
#[derive(Debug)]
pub(crate) struct Calls {
    state: Mutex<State>,
    pool: Arc<Pool>,
    /// Mean time of a call in milliseconds, each new call counting for an eighth.
    mean: AtomicU64,
    counters: Arc<Counters>,
    tally: Arc<Tally>,
}

#[derive(Debug, Default)]
struct State {
    /// Calls that have a place of the deployment, those included that wait for one of the pool.
    running: usize,
    /// Calls that wait for either.
    waiting: usize,
    /// Those that wait for a place of the deployment, by the numbers in which they came.
    line: VecDeque<Waiter>,
    /// The number of the next one.
    next: u64,
}

#[derive(Debug)]
struct Waiter {
    number: u64,
    bound: usize,
    called: oneshot::Sender<()>,
}

impl State {
    /// Gives places to those whose turn it is.
    fn admit(&mut self) {
        while let Some(first) = self.line.front()
            && self.running < first.bound
            && let Some(first) = self.line.pop_front()
        {
            self.running += 1;
            // Who has gone away meanwhile gives it back: see `Turn`.
            let _ = first.called.send(());
        }
    }
}

impl Calls {
    /// None yet.
    pub(crate) fn new(pool: Arc<Pool>, counters: Arc<Counters>, tally: Arc<Tally>) -> Self {
        Self {
            state: Mutex::default(),
            pool,
            mean: AtomicU64::new(0),
            counters,
            tally,
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Every method leaves the counts in order, wherever it might panic.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A place, if one is free and nobody waits for it.
    fn free(self: &Arc<Self>, bound: usize) -> Option<Place> {
        let mut state = self.lock();
        if state.running >= bound || !state.line.is_empty() {
            return None;
        }
        state.running += 1;
        Some(Place(Arc::clone(self)))
    }

    /// A place, when it is this one's turn.
    async fn in_line(self: &Arc<Self>, bound: usize) -> Place {
        let (called, turn) = oneshot::channel();
        let number = {
            let mut state = self.lock();
            let number = state.next;
            state.next += 1;
            state.line.push_back(Waiter {
                number,
                bound,
                called,
            });
            // One may have come free since it was asked for.
            state.admit();
            number
        };
        let mut waits = Turn {
            calls: self,
            number: Some(number),
        };
        // The sender is dropped only after it was used, or by `waits`.
        let _ = turn.await;
        waits.number = None;
        Place(Arc::clone(self))
    }
}

/// A call that waits in line. Dropped before its turn it leaves the line; dropped after, it gives the
/// place back that it did not come for.
struct Turn<'a> {
    calls: &'a Calls,
    /// None once the place is taken.
    number: Option<u64>,
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let Some(number) = self.number else {
            return;
        };
        let mut state = self.calls.lock();
        match state
            .line
            .binary_search_by_key(&number, |waiter| waiter.number)
        {
            Ok(at) => drop(state.line.remove(at)),
            Err(_) => state.running -= 1,
        }
        state.admit();
    }
}

/// A place of the deployment; dropping it gives it to the next.
#[derive(Debug)]
struct Place(Arc<Calls>);

impl Drop for Place {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.running -= 1;
        state.admit();
    }
}

/// The gate of one plugin: its deployment's calls, and the bounds that hold for its own.
#[derive(Clone, Debug)]
pub(crate) struct Gate {
    calls: Arc<Calls>,
    concurrent: usize,
    queue: usize,
}

/// Places of the deployment and of the pool; dropping it gives them to the next.
#[derive(Debug)]
pub(crate) struct Pass {
    place: Place,
    _instance: OwnedSemaphorePermit,
    since: Instant,
}

impl Gate {
    /// A gate that lets in while fewer than `concurrent` of `calls` run, as far as the pool has room
    /// for one deployment, and lets wait while fewer than `queue` of them do.
    pub(crate) fn new(calls: Arc<Calls>, concurrent: usize, queue: usize) -> Self {
        let concurrent = concurrent.clamp(1, calls.pool.most());
        Self {
            calls,
            concurrent,
            queue,
        }
    }

    /// Waits for a place until `deadline`, if the queue has room.
    pub(crate) async fn enter(&self, deadline: Instant) -> Result<Pass, Failure> {
        let pool = &self.calls.pool.places;
        let mut place = self.calls.free(self.concurrent);
        let mut full = match self.queue {
            0 => Bound::Concurrent,
            _ => Bound::Queue,
        };
        if let Some(taken) = place.take() {
            match Arc::clone(pool).try_acquire_owned() {
                Ok(instance) => return Ok(Pass::new(taken, instance)),
                // It is kept for the wait.
                Err(_) => place = Some(taken),
            }
            full = Bound::Pool;
        }
        let Some(_waiting) = Waiting::begin(&self.calls, self.queue) else {
            return Err(self.busy(full));
        };
        let mut lacks = Bound::Concurrent;
        let both = async {
            let place = match place {
                Some(place) => place,
                None => self.calls.in_line(self.concurrent).await,
            };
            lacks = Bound::Pool;
            (place, Arc::clone(pool).acquire_owned().await)
        };
        match timeout_at(deadline, both).await {
            Ok((place, Ok(instance))) => Ok(Pass::new(place, instance)),
            _ => Err(self.busy(lacks)),
        }
    }

    /// The queue of calls before a new one, over the rate at which calls end.
    fn busy(&self, bound: Bound) -> Failure {
        let before = self.calls.lock().waiting as u64 + 1;
        let mean = self.calls.mean.load(Ordering::Relaxed);
        let wait = Duration::from_millis(mean.saturating_mul(before) / self.concurrent as u64);
        Failure::Busy {
            bound,
            retry_after: wait.clamp(RETRY.0, RETRY.1),
        }
    }
}

impl Pass {
    fn new(place: Place, instance: OwnedSemaphorePermit) -> Self {
        place.0.tally.run_began();
        Self {
            place,
            _instance: instance,
            since: Instant::now(),
        }
    }
}

impl Drop for Pass {
    fn drop(&mut self) {
        let took = u64::try_from(self.since.elapsed().as_millis()).unwrap_or(u64::MAX);
        let mean = &self.place.0.mean;
        let before = mean.load(Ordering::Relaxed);
        mean.store(before - before / 8 + took / 8, Ordering::Relaxed);
        self.place.0.tally.run_ended();
    }
}

struct Waiting<'a>(&'a Calls);

impl<'a> Waiting<'a> {
    fn begin(calls: &'a Calls, queue: usize) -> Option<Self> {
        let mut state = calls.lock();
        if state.waiting >= queue {
            return None;
        }
        state.waiting += 1;
        calls.counters.wait_began();
        calls.tally.wait_began();
        Some(Self(calls))
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.lock().waiting -= 1;
        self.0.counters.wait_ended();
        self.0.tally.wait_ended();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::task::JoinHandle;

    fn soon() -> Instant {
        Instant::now() + Duration::from_millis(20)
    }

    fn late() -> Instant {
        Instant::now() + Duration::from_secs(60)
    }

    fn calls(pool: usize) -> Arc<Calls> {
        let pool = Arc::new(Pool::new(pool));
        Arc::new(Calls::new(pool, Arc::default(), Arc::default()))
    }

    /// Begins to wait at `gate`, as the one after those who wait already.
    async fn wait_at(gate: &Gate) -> JoinHandle<Result<Pass, Failure>> {
        let before = gate.calls.lock().waiting;
        let waiter = tokio::spawn({
            let gate = gate.clone();
            async move { gate.enter(late()).await }
        });
        while gate.calls.lock().waiting == before {
            tokio::task::yield_now().await;
        }
        waiter
    }

    fn idle(calls: &Calls) -> bool {
        let state = calls.lock();
        (state.running, state.waiting, state.line.len()) == (0, 0, 0)
    }

    #[tokio::test]
    async fn the_queue_is_bounded_in_length_and_time_and_empties() {
        let calls = calls(8);
        let gate = Gate::new(Arc::clone(&calls), 1, 1);
        let first = gate.enter(soon()).await.unwrap();
        let waiter = wait_at(&gate).await;
        // At once, or it would take a minute.
        let refused = gate.enter(late()).await.unwrap_err();
        assert_eq!(refused.code(), "busy");
        assert_eq!(refused.bound(), Some(Bound::Queue));
        assert_eq!(calls.tally.gauges().map(|gauge| gauge.value), [1.0, 1.0]);
        drop(first);
        let second = waiter.await.unwrap().unwrap();
        assert_eq!(calls.lock().waiting, 0);
        assert_eq!(gate.enter(soon()).await.unwrap_err().code(), "busy");
        assert_eq!(calls.lock().waiting, 0);
        drop(second);
        gate.enter(soon()).await.unwrap();
        assert!(idle(&calls));
    }

    #[tokio::test]
    async fn revisions_are_held_to_their_own_bounds_over_one_count() {
        let calls = calls(16);
        let small = Gate::new(Arc::clone(&calls), 2, 1);
        let large = Gate::new(Arc::clone(&calls), 3, 2);
        let one = small.enter(late()).await.unwrap();
        let two = small.enter(late()).await.unwrap();
        // Not three more: one.
        let three = large.enter(late()).await.unwrap();
        assert_eq!(calls.lock().running, 3);
        let waits = wait_at(&large).await;
        assert_eq!(small.enter(late()).await.unwrap_err().code(), "busy");
        let last = wait_at(&large).await;
        assert_eq!(large.enter(late()).await.unwrap_err().code(), "busy");
        drop(one);
        let four = waits.await.unwrap().unwrap();
        let small_one = {
            last.abort();
            assert!(last.await.unwrap_err().is_cancelled());
            wait_at(&small).await
        };
        // Who came first goes first, also where the other could run already.
        let after = wait_at(&large).await;
        drop(two);
        assert_eq!(calls.lock().running, 2);
        assert_eq!(calls.lock().line.len(), 2);
        drop(three);
        let (five, six) = (small_one.await.unwrap(), after.await.unwrap());
        assert_eq!(calls.lock().running, 3);
        drop((four, five, six));
        assert!(idle(&calls));
    }

    #[tokio::test]
    async fn who_goes_away_while_it_waits_keeps_no_place() {
        let calls = calls(16);
        let gate = Gate::new(Arc::clone(&calls), 1, 8);
        let held = gate.enter(late()).await.unwrap();
        let gone = wait_at(&gate).await;
        let mut stays = wait_at(&gate).await;
        gone.abort();
        assert!(gone.await.unwrap_err().is_cancelled());
        assert_eq!(calls.lock().line.len(), 1);
        // Called and gone before it came: the place goes on to the next.
        drop(held);
        assert_eq!(calls.lock().line.len(), 0);
        stays.abort();
        let came = (&mut stays).await;
        drop(came);
        assert!(idle(&calls));
        gate.enter(soon()).await.unwrap();
    }

    #[tokio::test]
    async fn plugins_share_the_pool() {
        let pool = Arc::new(Pool::new(2));
        let deployment = || {
            Arc::new(Calls::new(
                Arc::clone(&pool),
                Arc::default(),
                Arc::default(),
            ))
        };
        let gate = || Gate::new(deployment(), 4, 4);
        let (one, other, third) = (gate(), gate(), gate());
        let held = one.enter(soon()).await.unwrap();
        assert!(one.enter(soon()).await.is_err(), "one place is for others");
        let beside = other.enter(soon()).await.unwrap();
        let refused = third.enter(soon()).await.unwrap_err();
        assert_eq!(refused.bound(), Some(Bound::Pool));
        assert!(idle(&third.calls), "a place that was kept is given back");
        drop(held);
        third.enter(soon()).await.unwrap();
        drop(beside);
    }

    #[test]
    fn a_pool_keeps_places_for_others() {
        for (instances, most) in [(1, 1), (2, 1), (3, 2), (8, 7), (16, 14), (256, 224)] {
            assert_eq!(Pool::new(instances).most(), most, "{instances}");
        }
    }

    #[tokio::test]
    async fn a_refusal_names_what_there_is_too_little_of() {
        for (concurrent, queue, instances, bound) in [
            // Nobody may wait.
            (1, 0, 8, Bound::Concurrent),
            // One waits until its time is over.
            (1, 1, 8, Bound::Concurrent),
            (2, 0, 1, Bound::Pool),
            (2, 1, 1, Bound::Pool),
        ] {
            let pool = Arc::new(Pool::new(instances));
            let deployment = || {
                Arc::new(Calls::new(
                    Arc::clone(&pool),
                    Arc::default(),
                    Arc::default(),
                ))
            };
            let (calls, other) = (deployment(), deployment());
            let gate = Gate::new(Arc::clone(&calls), concurrent, queue);
            // A small pool is emptied by another deployment.
            let holder = match instances {
                1 => Gate::new(other, 1, 0),
                _ => gate.clone(),
            };
            let held = holder.enter(soon()).await.unwrap();
            let counted = |at: usize| calls.tally.gauges()[at].value;
            assert_eq!(counted(1), 0.0);
            let refused = gate.enter(soon()).await.unwrap_err();
            assert_eq!(refused.bound(), Some(bound), "{concurrent} {queue}");
            drop(held);
            assert_eq!((counted(0), counted(1)), (0.0, 0.0));
        }
    }
}
