//! Idle instances of deployments with `[reuse]`, which wait for the next call.
//!
//! An instance waits only after a call that did not trap, exceeded no limit, and left no handle of `corral:inference` and no open
//! body. It serves calls of the same tenant only: what a guest keeps in its memory, no other tenant can reach. It ends
//! after a number of calls and at an age, waiting or not, and with its plugin.
//!
//! Waiting instances hold permits of their own, beside those of running calls, so they keep no call from its instance:
//! where no permit is free, an ended call's instance is dropped.

use crate::counters::DeploymentCounters;
use crate::runtime_config::Reuse;
use crate::state::State;
use corral_engine::Tenant;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::AbortHandle;
use tokio::time::Instant;
use wasmtime::Store;
use wasmtime_wasi_http::handler::Proxy;

/// A reused instance.
pub(crate) struct ReusedInstance {
    pub(crate) store: Store<State>,
    pub(crate) proxy: Proxy,
    pub(crate) started: Instant,
    /// Calls that it has served.
    pub(crate) calls: u32,
}

/// Whose calls an instance serves: the tenant, and the name of its API key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct InstanceOwner {
    pub(crate) tenant: Tenant,
    pub(crate) name: Arc<str>,
}

/// The waiting instances of a plugin.
pub(crate) struct IdleInstances {
    reuse: Reuse,
    waiting: Mutex<Vec<Waiting>>,
    /// Permits of all plugins.
    permits: Arc<Semaphore>,
    /// Permits for each instance.
    instance_permits: u32,
    counters: Arc<DeploymentCounters>,
}

struct Waiting {
    owner: InstanceOwner,
    instance: ReusedInstance,
    expiry: AbortHandle,
    _permit: OwnedSemaphorePermit,
}

impl IdleInstances {
    pub(crate) fn new(
        reuse: Reuse,
        permits: Arc<Semaphore>,
        instance_permits: u32,
        counters: Arc<DeploymentCounters>,
    ) -> Self {
        Self {
            reuse,
            waiting: Mutex::default(),
            permits,
            instance_permits,
            counters,
        }
    }

    /// The instance of this owner that has waited for the shortest time: the others may expire.
    pub(crate) fn take(&self, owner: &InstanceOwner) -> Option<ReusedInstance> {
        let mut waiting = self.lock();
        let index = waiting.iter().rposition(|one| one.owner == *owner)?;
        let Waiting {
            instance, expiry, ..
        } = waiting.remove(index);
        drop(waiting);
        expiry.abort();
        self.counters.instances_waiting.decrement();
        self.counters.instances_reused.increment();
        Some(instance)
    }

    /// Lets an instance wait, or drops it if it has reached its limits or no permit is free.
    pub(crate) fn put(self: &Arc<Self>, owner: InstanceOwner, instance: ReusedInstance) {
        let left = self.reuse.age.saturating_sub(instance.started.elapsed());
        if instance.calls >= self.reuse.calls || left.is_zero() {
            return;
        }
        let Ok(permit) = Arc::clone(&self.permits).try_acquire_many_owned(self.instance_permits)
        else {
            return;
        };
        let mut waiting = self.lock();
        // Evicts the instance that has waited longest: its owner calls least.
        let displaced = match waiting.len() >= self.reuse.instances {
            true if waiting.is_empty() => return,
            true => Some(waiting.remove(0)),
            false => None,
        };
        let (started, idle) = (instance.started, Arc::downgrade(self));
        let expiry = tokio::spawn(async move {
            tokio::time::sleep(left).await;
            expire(&idle, started);
        });
        waiting.push(Waiting {
            owner,
            instance,
            expiry: expiry.abort_handle(),
            _permit: permit,
        });
        self.counters.instances_waiting.increment();
        drop(waiting);
        if let Some(displaced) = displaced {
            displaced.expiry.abort();
            self.counters.instances_waiting.decrement();
        }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Waiting>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for IdleInstances {
    fn drop(&mut self) {
        for waiting in self.lock().drain(..) {
            waiting.expiry.abort();
            self.counters.instances_waiting.decrement();
        }
    }
}

/// Drops the instances that are as old as the one that started then, or older.
fn expire(idle: &Weak<IdleInstances>, started: Instant) {
    let Some(idle) = idle.upgrade() else {
        return;
    };
    let mut waiting = idle.lock();
    let (expired, left) = waiting
        .drain(..)
        .partition::<Vec<_>, _>(|one| one.instance.started <= started);
    *waiting = left;
    drop(waiting);
    // Their stores are dropped without the lock.
    for _ in expired {
        idle.counters.instances_waiting.decrement();
    }
}
