//! Admission: permits for the calls of a deployment and for the instances of the process.
//!
//! A deployment counts the running and waiting calls of all its revisions together. Each revision compares
//! its own limits with that count: two revisions with limits of 4 and 6 run at most 6 calls together.
//!
//! Waiting calls are admitted in order of arrival, even if a later one has a larger limit, so that calls
//! with a small limit do not starve. All deployments share the instance pool, first come first served. All
//! revisions of a deployment together hold at most seven eighths of the pool's permits, and leave at least one.
//! A plugin composed of many components takes several permits, because each component may keep a stack of
//! the pool.

mod call_queue;
mod instance_permits;

pub(crate) use call_queue::CallQueue;
pub(crate) use instance_permits::InstancePermits;

use crate::call_error::CallError;
use crate::counters::CallLimit;
use call_queue::DeploymentPermit;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{Instant, timeout_at};

/// Bounds of the `Retry-After` of a refused call.
const MIN_RETRY: Duration = Duration::from_secs(1);
const MAX_RETRY: Duration = Duration::from_secs(60);
/// Admission of one plugin: its deployment's calls, and its own limits.
#[derive(Clone, Debug)]
pub(crate) struct Admission {
    calls: Arc<CallQueue>,
    concurrent: usize,
    queue: usize,
    /// Permits of the pool for each call.
    pool_permits: u32,
}

/// Permits of the deployment and of the pool. Dropping it releases both.
#[derive(Debug)]
pub(crate) struct CallPermit {
    deployment: DeploymentPermit,
    _instance: OwnedSemaphorePermit,
    since: Instant,
}

impl Admission {
    /// Admits calls while fewer than `concurrent` of `calls` run, and the pool's limit for one deployment
    /// allows. Up to `queue` of them may wait. Each takes `pool_permits`, at most as many as that limit.
    pub(crate) fn new(
        calls: Arc<CallQueue>,
        concurrent: usize,
        queue: usize,
        pool_permits: u32,
    ) -> Self {
        let max = u32::try_from(calls.pool.max_per_deployment()).unwrap_or(u32::MAX);
        Self {
            calls,
            concurrent: concurrent.max(1),
            queue,
            pool_permits: pool_permits.clamp(1, max),
        }
    }

    /// Waits for permits until `deadline`, if the queue has room.
    pub(crate) async fn acquire(&self, deadline: Instant) -> Result<CallPermit, CallError> {
        let pool = self.calls.pool.permits();
        let mut permit = self.calls.try_acquire(self.concurrent, self.pool_permits);
        let mut limit = match self.queue {
            0 => CallLimit::Concurrent,
            _ => CallLimit::Queue,
        };
        if let Some(own) = permit.take() {
            match Arc::clone(pool).try_acquire_many_owned(self.pool_permits) {
                Ok(instance) => return Ok(CallPermit::new(own, instance)),
                // Keep the deployment's permit while waiting for the pool.
                Err(_) => permit = Some(own),
            }
            limit = CallLimit::Pool;
        }
        let Some(_waiting) = WaitingCount::begin(&self.calls, self.queue) else {
            return Err(self.busy(limit));
        };
        let mut missing = CallLimit::Concurrent;
        let both = async {
            let own = match permit {
                Some(own) => own,
                None => self.calls.acquire(self.concurrent, self.pool_permits).await,
            };
            missing = CallLimit::Pool;
            let instances = Arc::clone(pool).acquire_many_owned(self.pool_permits);
            (own, instances.await)
        };
        match timeout_at(deadline, both).await {
            Ok((own, Ok(instance))) => Ok(CallPermit::new(own, instance)),
            _ => Err(self.busy(missing)),
        }
    }

    /// Estimates the wait as the queue's length over the rate at which calls end.
    fn busy(&self, limit: CallLimit) -> CallError {
        let ahead = self.calls.lock().waiting as u64 + 1;
        let mean = self.calls.mean_millis.load(Ordering::Relaxed);
        let max = self.calls.pool.max_per_deployment() / self.pool_permits as usize;
        let concurrent = self.concurrent.min(max) as u64;
        let wait = Duration::from_millis(mean.saturating_mul(ahead) / concurrent);
        CallError::Busy {
            limit,
            retry_after: wait.clamp(MIN_RETRY, MAX_RETRY),
        }
    }
}

impl CallPermit {
    fn new(deployment: DeploymentPermit, instance: OwnedSemaphorePermit) -> Self {
        let counters = &deployment.calls.deployment;
        counters.calls_running.increment();
        counters.pool_permits.add(deployment.pool_permits.into());
        Self {
            deployment,
            _instance: instance,
            since: Instant::now(),
        }
    }
}

impl Drop for CallPermit {
    fn drop(&mut self) {
        let calls = &self.deployment.calls;
        let time = u64::try_from(self.since.elapsed().as_millis()).unwrap_or(u64::MAX);
        let mean = calls.mean_millis.load(Ordering::Relaxed);
        calls
            .mean_millis
            .store(mean - mean / 8 + time / 8, Ordering::Relaxed);
        let counters = &calls.deployment;
        counters.calls_running.decrement();
        counters
            .pool_permits
            .subtract(self.deployment.pool_permits.into());
    }
}

/// Counts a call as waiting until it is dropped.
struct WaitingCount<'a>(&'a CallQueue);

impl<'a> WaitingCount<'a> {
    fn begin(calls: &'a CallQueue, queue: usize) -> Option<Self> {
        let mut state = calls.lock();
        if state.waiting >= queue {
            return None;
        }
        state.waiting += 1;
        calls.process.calls_waiting.increment();
        calls.deployment.calls_waiting.increment();
        Some(Self(calls))
    }
}

impl Drop for WaitingCount<'_> {
    fn drop(&mut self) {
        self.0.lock().waiting -= 1;
        self.0.process.calls_waiting.decrement();
        self.0.deployment.calls_waiting.decrement();
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

    fn deployment(pool: &Arc<InstancePermits>) -> Arc<CallQueue> {
        let pool = Arc::clone(pool);
        Arc::new(CallQueue::new(pool, Arc::default(), Arc::default()))
    }

    fn calls(pool: usize) -> Arc<CallQueue> {
        deployment(&Arc::new(InstancePermits::new(pool)))
    }

    fn admission(calls: &Arc<CallQueue>, concurrent: usize, queue: usize) -> Admission {
        Admission::new(Arc::clone(calls), concurrent, queue, 1)
    }

    /// Starts a call that waits behind all others.
    async fn wait(admission: &Admission) -> JoinHandle<Result<CallPermit, CallError>> {
        let before = admission.calls.lock().waiting;
        let waiter = tokio::spawn({
            let admission = admission.clone();
            async move { admission.acquire(late()).await }
        });
        while admission.calls.lock().waiting == before {
            tokio::task::yield_now().await;
        }
        waiter
    }

    async fn refusal(admission: &Admission, deadline: Instant) -> Option<CallLimit> {
        let error = admission.acquire(deadline).await.unwrap_err();
        assert_eq!(error.code(), "busy");
        error.limit()
    }

    fn idle(calls: &CallQueue) -> bool {
        let state = calls.lock();
        let left = state.pool_permits_left == calls.pool.max_per_deployment();
        left && (state.running, state.waiting, state.queued.len()) == (0, 0, 0)
    }

    #[tokio::test]
    async fn queue_is_bounded_in_length_and_time() {
        let calls = calls(8);
        let admission = admission(&calls, 1, 1);
        let first = admission.acquire(soon()).await.unwrap();
        let waiter = wait(&admission).await;
        // Refused at once: the deadline is a minute away.
        assert_eq!(refusal(&admission, late()).await, Some(CallLimit::Queue));
        assert_eq!(calls.deployment.calls_running.get(), 1);
        assert_eq!(calls.deployment.calls_waiting.get(), 1);
        drop(first);
        let second = waiter.await.unwrap().unwrap();
        assert_eq!(calls.lock().waiting, 0);
        refusal(&admission, soon()).await;
        assert_eq!(calls.lock().waiting, 0);
        drop(second);
        admission.acquire(soon()).await.unwrap();
        assert!(idle(&calls));
    }

    #[tokio::test]
    async fn revisions_apply_own_limits_to_one_count() {
        let calls = calls(16);
        let small = admission(&calls, 2, 1);
        let large = admission(&calls, 3, 2);
        let one = small.acquire(late()).await.unwrap();
        let two = small.acquire(late()).await.unwrap();
        // One more, not three.
        let three = large.acquire(late()).await.unwrap();
        assert_eq!(calls.lock().running, 3);
        let waits = wait(&large).await;
        refusal(&small, late()).await;
        let last = wait(&large).await;
        refusal(&large, late()).await;
        drop(one);
        let four = waits.await.unwrap().unwrap();
        let small_one = {
            last.abort();
            assert!(last.await.unwrap_err().is_cancelled());
            wait(&small).await
        };
        // Arrival order holds even where the later call's limit would let it run.
        let after = wait(&large).await;
        drop(two);
        assert_eq!(calls.lock().running, 2);
        assert_eq!(calls.lock().queued.len(), 2);
        drop(three);
        let (five, six) = (small_one.await.unwrap(), after.await.unwrap());
        assert_eq!(calls.lock().running, 3);
        drop((four, five, six));
        assert!(idle(&calls));
    }

    #[tokio::test]
    async fn canceled_waiters_leave_the_line() {
        let calls = calls(16);
        let admission = admission(&calls, 1, 8);
        let held = admission.acquire(late()).await.unwrap();
        let gone = wait(&admission).await;
        let mut stays = wait(&admission).await;
        gone.abort();
        assert!(gone.await.unwrap_err().is_cancelled());
        assert_eq!(calls.lock().queued.len(), 1);
        // Cancelled between admission and its next poll: the permit is free again.
        drop(held);
        assert_eq!(calls.lock().queued.len(), 0);
        stays.abort();
        let result = (&mut stays).await;
        drop(result);
        assert!(idle(&calls));
        admission.acquire(soon()).await.unwrap();
    }

    #[tokio::test]
    async fn deployments_share_the_pool() {
        let pool = Arc::new(InstancePermits::new(2));
        let new = || admission(&deployment(&pool), 4, 4);
        let (one, other, third) = (new(), new(), new());
        let held = one.acquire(soon()).await.unwrap();
        assert!(one.acquire(soon()).await.is_err(), "one permit is reserved");
        let beside = other.acquire(soon()).await.unwrap();
        assert_eq!(refusal(&third, soon()).await, Some(CallLimit::Pool));
        assert!(idle(&third.calls), "the deployment's permit is free again");
        drop(held);
        third.acquire(soon()).await.unwrap();
        drop(beside);
    }

    #[tokio::test]
    async fn large_plugins_take_several_permits() {
        let pool = Arc::new(InstancePermits::new(16));
        let large = Admission::new(deployment(&pool), 64, 0, 5);
        let small = admission(&deployment(&pool), 64, 0);
        // At most 14 of the 16 permits.
        let one = large.acquire(soon()).await.unwrap();
        let two = large.acquire(soon()).await.unwrap();
        assert_eq!(
            refusal(&large, soon()).await,
            Some(CallLimit::Concurrent),
            "a third call would need a share of others"
        );
        let mut others = Vec::new();
        for _ in 0..6 {
            others.push(small.acquire(soon()).await.unwrap());
        }
        assert_eq!(refusal(&small, soon()).await, Some(CallLimit::Pool));
        drop(one);
        others.push(small.acquire(soon()).await.unwrap());
        drop((two, others));
        // More than the pool lets a deployment hold.
        let largest = Admission::new(deployment(&pool), 64, 0, 99);
        largest.acquire(soon()).await.unwrap();
    }

    #[tokio::test]
    async fn revisions_share_permits_of_the_pool() {
        let pool = Arc::new(InstancePermits::new(16));
        let calls = deployment(&pool);
        let large = Admission::new(Arc::clone(&calls), 64, 1, 5);
        let small = admission(&calls, 64, 0);
        let one = large.acquire(soon()).await.unwrap();
        let two = large.acquire(soon()).await.unwrap();
        let mut others = Vec::new();
        for _ in 0..4 {
            others.push(small.acquire(soon()).await.unwrap());
        }
        // The deployment holds 14 of the 16 permits.
        assert_eq!(refusal(&small, soon()).await, Some(CallLimit::Concurrent));
        assert_eq!(pool.permits().available_permits(), 2);
        let waits = wait(&large).await;
        others.clear();
        assert_eq!(calls.lock().queued.len(), 1, "four permits do not suffice");
        drop(one);
        let three = waits.await.unwrap().unwrap();
        assert_eq!(calls.lock().pool_permits_left, 4);
        drop((two, three));
        assert!(idle(&calls));
    }

    #[tokio::test]
    async fn refusal_names_the_missing_permit() {
        for (concurrent, queue, instances, limit) in [
            // No call may wait.
            (1, 0, 8, CallLimit::Concurrent),
            // The call waits until its deadline.
            (1, 1, 8, CallLimit::Concurrent),
            (2, 0, 1, CallLimit::Pool),
            (2, 1, 1, CallLimit::Pool),
        ] {
            let pool = Arc::new(InstancePermits::new(instances));
            let (calls, other) = (deployment(&pool), deployment(&pool));
            let tried = admission(&calls, concurrent, queue);
            // Another deployment uses up a small pool.
            let holder = match instances {
                1 => admission(&other, 1, 0),
                _ => tried.clone(),
            };
            let held = holder.acquire(soon()).await.unwrap();
            let counts = || {
                let counters = &calls.deployment;
                (counters.calls_running.get(), counters.calls_waiting.get())
            };
            assert_eq!(counts().1, 0);
            let refused = refusal(&tried, soon()).await;
            assert_eq!(refused, Some(limit), "{concurrent} {queue}");
            drop(held);
            assert_eq!(counts(), (0, 0));
        }
    }
}
