//! Who may run now: a bound on calls of a plugin, and one on instances of the process.

use crate::failure::Failure;
use crate::metrics::Counters;
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
        }
    }

    /// Whether it has these bounds.
    pub(crate) fn is_for(&self, concurrent: usize, queue: usize) -> bool {
        self.concurrent == concurrent.clamp(1, Semaphore::MAX_PERMITS) && self.queue == queue
    }

    /// Waits for a place until `deadline`, if the queue has room.
    pub(crate) async fn enter(self: &Arc<Self>, deadline: Instant) -> Result<Pass, Failure> {
        if let Ok(plugin) = Arc::clone(&self.plugin).try_acquire_owned()
            && let Ok(pool) = Arc::clone(&self.pool).try_acquire_owned()
        {
            return Ok(self.pass(plugin, pool));
        }
        let Some(_waiting) = Waiting::begin(self) else {
            return Err(self.busy());
        };
        let places = async {
            let plugin = Arc::clone(&self.plugin).acquire_owned().await;
            let pool = Arc::clone(&self.pool).acquire_owned().await;
            (plugin, pool)
        };
        match timeout_at(deadline, places).await {
            Ok((Ok(plugin), Ok(pool))) => Ok(self.pass(plugin, pool)),
            _ => Err(self.busy()),
        }
    }

    fn pass(self: &Arc<Self>, plugin: OwnedSemaphorePermit, pool: OwnedSemaphorePermit) -> Pass {
        Pass {
            _plugin: plugin,
            _pool: pool,
            gate: Arc::clone(self),
            since: Instant::now(),
        }
    }

    /// The queue of calls before a new one, over the rate at which calls end.
    fn busy(&self) -> Failure {
        let before = self.waiting.load(Ordering::Relaxed) as u64 + 1;
        let mean = self.mean.load(Ordering::Relaxed);
        let wait = Duration::from_millis(mean.saturating_mul(before) / self.concurrent as u64);
        Failure::Busy {
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
        Some(Self(gate))
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::Relaxed);
        self.0.counters.wait_ended();
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
        let gate = Arc::new(Gate::new(1, 1, pool, Arc::default()));
        let first = gate.enter(soon()).await.unwrap();
        let waiter = tokio::spawn({
            let gate = Arc::clone(&gate);
            async move { gate.enter(Instant::now() + Duration::from_secs(60)).await }
        });
        while gate.waiting.load(Ordering::Relaxed) == 0 {
            tokio::task::yield_now().await;
        }
        let begun = Instant::now();
        assert_eq!(gate.enter(soon()).await.unwrap_err().code(), "busy");
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
        let gate = || Arc::new(Gate::new(4, 4, Arc::clone(&pool), Arc::default()));
        let (one, other) = (gate(), gate());
        let held = one.enter(soon()).await.unwrap();
        assert!(other.enter(soon()).await.is_err());
        drop(held);
        other.enter(soon()).await.unwrap();
    }
}
