//! The running and waiting calls of one deployment, admitted in order of arrival.

use super::instance_permits::InstancePermits;
use crate::counters::{DeploymentCounters, ProcessCounters};
use std::collections::VecDeque;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::oneshot;

/// The calls of one deployment.
#[derive(Debug)]
pub(crate) struct CallQueue {
    state: Mutex<QueueState>,
    pub(super) pool: Arc<InstancePermits>,
    /// Mean time of a call in milliseconds. Each call has a weight of one eighth.
    pub(super) mean_millis: AtomicU64,
    pub(super) process: Arc<ProcessCounters>,
    pub(super) deployment: Arc<DeploymentCounters>,
}

#[derive(Debug)]
pub(super) struct QueueState {
    /// Calls that hold a deployment permit, including those that wait for the pool.
    pub(super) running: usize,
    /// Permits of the pool that the deployment may still take: its limit minus those of the running calls.
    pub(super) pool_permits_left: usize,
    /// Calls that wait for a deployment permit or for the pool.
    pub(super) waiting: usize,
    /// Calls that wait for a deployment permit, in order of arrival.
    pub(super) queued: VecDeque<QueuedCall>,
    next_number: u64,
}

#[derive(Debug)]
pub(super) struct QueuedCall {
    number: u64,
    concurrent: usize,
    pool_permits: u32,
    admitted: oneshot::Sender<()>,
}

impl QueueState {
    /// Whether another call may run.
    fn allows(&self, concurrent: usize, pool_permits: u32) -> bool {
        self.running < concurrent && pool_permits as usize <= self.pool_permits_left
    }

    /// Counts a call as running.
    fn begin(&mut self, pool_permits: u32) {
        self.running += 1;
        self.pool_permits_left -= pool_permits as usize;
    }

    /// Counts a running call as ended, and admits others.
    fn end(&mut self, pool_permits: u32) {
        self.running -= 1;
        self.pool_permits_left += pool_permits as usize;
        self.admit();
    }

    /// Admits waiting calls in order, while their limits allow.
    fn admit(&mut self) {
        while let Some(first) = self.queued.front()
            && self.allows(first.concurrent, first.pool_permits)
            && let Some(first) = self.queued.pop_front()
        {
            self.begin(first.pool_permits);
            // If the call is gone, its `QueuePosition` returns the permit.
            let _ = first.admitted.send(());
        }
    }
}

impl CallQueue {
    pub(crate) fn new(
        pool: Arc<InstancePermits>,
        process: Arc<ProcessCounters>,
        deployment: Arc<DeploymentCounters>,
    ) -> Self {
        let state = QueueState {
            running: 0,
            pool_permits_left: pool.max_per_deployment(),
            waiting: 0,
            queued: VecDeque::new(),
            next_number: 0,
        };
        Self {
            state: Mutex::new(state),
            pool,
            mean_millis: AtomicU64::new(0),
            process,
            deployment,
        }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, QueueState> {
        // No method leaves the counts inconsistent if it panics.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A permit, if one is free and no call waits for it.
    pub(super) fn try_acquire(
        self: &Arc<Self>,
        concurrent: usize,
        pool_permits: u32,
    ) -> Option<DeploymentPermit> {
        let mut state = self.lock();
        if !state.allows(concurrent, pool_permits) || !state.queued.is_empty() {
            return None;
        }
        state.begin(pool_permits);
        Some(DeploymentPermit {
            calls: Arc::clone(self),
            pool_permits,
        })
    }

    /// Waits in the queue for a permit.
    pub(super) async fn acquire(
        self: &Arc<Self>,
        concurrent: usize,
        pool_permits: u32,
    ) -> DeploymentPermit {
        let (admitted, admission) = oneshot::channel();
        let number = {
            let mut state = self.lock();
            let number = state.next_number;
            state.next_number += 1;
            state.queued.push_back(QueuedCall {
                number,
                concurrent,
                pool_permits,
                admitted,
            });
            // A permit may have become free since the caller tried.
            state.admit();
            number
        };
        let mut position = QueuePosition {
            calls: self,
            number: Some(number),
            pool_permits,
        };
        // The sender is dropped only after use, or by `position`.
        let _ = admission.await;
        position.number = None;
        DeploymentPermit {
            calls: Arc::clone(self),
            pool_permits,
        }
    }
}

/// A call's position in the queue. Dropped before admission, it leaves the queue; dropped after admission, it
/// returns the permit.
struct QueuePosition<'a> {
    calls: &'a CallQueue,
    /// None once the call holds its permit.
    number: Option<u64>,
    pool_permits: u32,
}

impl Drop for QueuePosition<'_> {
    fn drop(&mut self) {
        let Some(number) = self.number else {
            return;
        };
        let mut state = self.calls.lock();
        match state
            .queued
            .binary_search_by_key(&number, |call| call.number)
        {
            Ok(at) => {
                drop(state.queued.remove(at));
                state.admit();
            }
            Err(_) => state.end(self.pool_permits),
        }
    }
}

/// A permit of the deployment. Dropping it admits the next call.
#[derive(Debug)]
pub(super) struct DeploymentPermit {
    pub(super) calls: Arc<CallQueue>,
    /// Permits of the pool that the call holds or waits for.
    pub(super) pool_permits: u32,
}

impl Drop for DeploymentPermit {
    fn drop(&mut self) {
        self.calls.lock().end(self.pool_permits);
    }
}
