//! Who may run now: a bound on calls of a plugin, and one on instances of the process.

use crate::failure::Failure;
use crate::metrics::Counters;
use crate::tally::{Bound, Tally};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout_at};

/// Shortest and longest that a refused client is told to wait.
const RETRY: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));

/// The gate of one plugin.
#[derive(Debug)]
pub(crate) struct Gate {
    plugin: Arc<Semaphore>,
    pool: Arc<Semaphore>,
    concurrent: usize,
    waiting: AtomicUsize,
    queue: usize,
    /// Mean time of a call in milliseconds, each new call counting for an eighth.
    mean: AtomicU64,
    counters: Arc<Counters>,
    tally: Arc<Tally>,
}

/// A place; dropping it gives it to the next.
#[derive(Debug)]
pub(crate) struct Pass {
    _plugin: OwnedSemaphorePermit,
    _pool: OwnedSemaphorePermit,
    gate: Arc<Gate>,
    since: Instant,
}

impl Gate {
    /// A gate that lets `concurrent` calls run, as far as `pool` has room, and `queue` wait.
    pub(crate) fn new(
        concurrent: usize,
        queue: usize,
        pool: Arc<Semaphore>,
        counters: Arc<Counters>,
        tally: Arc<Tally>,
    ) -> Self {
        let concurrent = concurrent.clamp(1, Semaphore::MAX_PERMITS);
        Self {
            plugin: Arc::new(Semaphore::new(concurrent)),
            pool,
            concurrent,
            waiting: AtomicUsize::new(0),
            queue,
            mean: AtomicU64::new(0),
            counters,
            tally,
        }
    }

    /// Whether it has these bounds.
    pub(crate) fn is_for(&self, concurrent: usize, queue: usize) -> bool {
        self.concurrent == concurrent.clamp(1, Semaphore::MAX_PERMITS) && self.queue == queue
    }

    /// Waits for a place until `deadline`, if the queue has room.
    pub(crate) async fn enter(self: &Arc<Self>, deadline: Instant) -> Result<Pass, Failure> {
        let full = match Arc::clone(&self.plugin).try_acquire_owned() {
            Ok(plugin) => match Arc::clone(&self.pool).try_acquire_owned() {
                Ok(pool) => return Ok(self.pass(plugin, pool)),
                Err(_) => Bound::Pool,
            },
            Err(_) if self.queue > 0 => Bound::Queue,
            Err(_) => Bound::Concurrent,
        };
        let Some(_waiting) = Waiting::begin(self) else {
            return Err(self.busy(full));
        };
        let mut lacks = Bound::Concurrent;
        let places = async {
            let plugin = Arc::clone(&self.plugin).acquire_owned().await;
            lacks = Bound::Pool;
            let pool = Arc::clone(&self.pool).acquire_owned().await;
            (plugin, pool)
        };
        match timeout_at(deadline, places).await {
            Ok((Ok(plugin), Ok(pool))) => Ok(self.pass(plugin, pool)),
            _ => Err(self.busy(lacks)),
        }
    }

    fn pass(self: &Arc<Self>, plugin: OwnedSemaphorePermit, pool: OwnedSemaphorePermit) -> Pass {
        self.tally.run_began();
        Pass {
            _plugin: plugin,
            _pool: pool,
            gate: Arc::clone(self),
            since: Instant::now(),
        }
    }

    /// The queue of calls before a new one, over the rate at which calls end.
    fn busy(&self, bound: Bound) -> Failure {
        let before = self.waiting.load(Ordering::Relaxed) as u64 + 1;
        let mean = self.mean.load(Ordering::Relaxed);
        let wait = Duration::from_millis(mean.saturating_mul(before) / self.concurrent as u64);
        Failure::Busy {
            bound,
            retry_after: wait.clamp(RETRY.0, RETRY.1),
        }
    }
}

impl Drop for Pass {
    fn drop(&mut self) {
        let took = u64::try_from(self.since.elapsed().as_millis()).unwrap_or(u64::MAX);
        let mean = self.gate.mean.load(Ordering::Relaxed);
        let mean = mean - mean / 8 + took / 8;
        self.gate.mean.store(mean, Ordering::Relaxed);
        self.gate.tally.run_ended();
    }
}

struct Waiting<'a>(&'a Gate);

impl<'a> Waiting<'a> {
    fn begin(gate: &'a Gate) -> Option<Self> {
        gate.waiting
            .try_update(Ordering::Relaxed, Ordering::Relaxed, |waiting| {
                (waiting < gate.queue).then_some(waiting + 1)
            })
            .ok()?;
        gate.counters.wait_began();
        gate.tally.wait_began();
        Some(Self(gate))
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::Relaxed);
        self.0.counters.wait_ended();
        self.0.tally.wait_ended();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn soon() -> Instant {
        Instant::now() + Duration::from_millis(20)
    }

    #[tokio::test]
    async fn the_queue_is_bounded_in_length_and_time_and_empties() {
        let pool = Arc::new(Semaphore::new(8));
        let gate = Arc::new(Gate::new(1, 1, pool, Arc::default(), Arc::default()));
        let first = gate.enter(soon()).await.unwrap();
        let waiter = tokio::spawn({
            let gate = Arc::clone(&gate);
            async move { gate.enter(Instant::now() + Duration::from_secs(60)).await }
        });
        while gate.waiting.load(Ordering::Relaxed) == 0 {
            tokio::task::yield_now().await;
        }
        let begun = Instant::now();
        let refused = gate.enter(soon()).await.unwrap_err();
        assert_eq!(refused.code(), "busy");
        assert_eq!(refused.bound(), Some(Bound::Queue));
        assert_eq!(gate.tally.gauges().map(|gauge| gauge.value), [1.0, 1.0]);
        assert!(begun.elapsed() < Duration::from_millis(15), "no wait");
        drop(first);
        let second = waiter.await.unwrap().unwrap();
        assert_eq!(gate.waiting.load(Ordering::Relaxed), 0);
        assert_eq!(gate.enter(soon()).await.unwrap_err().code(), "busy");
        assert_eq!(gate.waiting.load(Ordering::Relaxed), 0);
        drop(second);
        gate.enter(soon()).await.unwrap();
    }

    #[tokio::test]
    async fn plugins_share_the_pool() {
        let pool = Arc::new(Semaphore::new(1));
        let gate = || {
            let pool = Arc::clone(&pool);
            Arc::new(Gate::new(4, 4, pool, Arc::default(), Arc::default()))
        };
        let (one, other) = (gate(), gate());
        let held = one.enter(soon()).await.unwrap();
        let refused = other.enter(soon()).await.unwrap_err();
        assert_eq!(refused.bound(), Some(Bound::Pool));
        drop(held);
        other.enter(soon()).await.unwrap();
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
            let pool = Arc::new(Semaphore::new(instances));
            let tally = Arc::<Tally>::default();
            let gate = Gate::new(concurrent, queue, pool, Arc::default(), Arc::clone(&tally));
            let gate = Arc::new(gate);
            let held = gate.enter(soon()).await.unwrap();
            let counted = |at: usize| tally.gauges()[at].value;
            assert_eq!((counted(0), counted(1)), (1.0, 0.0));
            let refused = gate.enter(soon()).await.unwrap_err();
            assert_eq!(refused.bound(), Some(bound), "{concurrent} {queue}");
            drop(held);
            assert_eq!((counted(0), counted(1)), (0.0, 0.0));
        }
    }
}
