//! Permits for instances of sampling plugins, shared by all deployments. One deployment cannot hold all.

use crate::admission::InstancePermits;
use std::sync::Arc;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// The permits as one deployment sees them.
#[derive(Debug)]
pub(super) struct SamplerPermits {
    pool: Arc<InstancePermits>,
    /// Permits that the deployment may still hold.
    own: Arc<Semaphore>,
}

/// A permit of the deployment and one of the pool. Dropping it releases both.
pub(super) type SamplerPermit = [OwnedSemaphorePermit; 2];

impl SamplerPermits {
    /// `instances` permits, for the first deployment.
    pub(super) fn new(instances: usize) -> Self {
        Self::of(Arc::new(InstancePermits::new(instances)))
    }

    /// The same permits, for another deployment.
    pub(super) fn for_another_deployment(&self) -> Self {
        Self::of(Arc::clone(&self.pool))
    }

    fn of(pool: Arc<InstancePermits>) -> Self {
        let own = Arc::new(Semaphore::new(pool.max_per_deployment()));
        Self { pool, own }
    }

    /// Waits for a permit, in order of arrival within the deployment. None if the host stops.
    pub(super) async fn acquire(&self) -> Option<SamplerPermit> {
        let own = Arc::clone(&self.own).acquire_owned().await.ok()?;
        let pool = Arc::clone(self.pool.permits()).acquire_owned().await.ok()?;
        Some([own, pool])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime_config::check_instances;
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    fn try_acquire(permits: &SamplerPermits) -> Option<SamplerPermit> {
        match pin!(permits.acquire()).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(permit) => permit,
            Poll::Pending => None,
        }
    }

    #[test]
    fn one_deployment_cannot_hold_all_permits() {
        let one = SamplerPermits::new(8);
        let other = one.for_another_deployment();
        let held: Vec<_> = (0..7).map(|_| try_acquire(&one).unwrap()).collect();
        assert!(try_acquire(&one).is_none());
        let last = try_acquire(&other).unwrap();
        assert!(try_acquire(&other).is_none());
        drop(held);
        assert!(try_acquire(&one).is_some());
        drop(last);
    }

    #[test]
    fn smallest_pool_allows_one_check() {
        for (instances, checks) in [(1, 1), (8, 1), (16, 2), (256, 32)] {
            assert_eq!(check_instances(instances), checks, "{instances}");
            assert!(try_acquire(&SamplerPermits::new(checks)).is_some());
        }
    }
}
