//! The pool of instances that all deployments share.

use std::sync::Arc;
use tokio::sync::Semaphore;

/// The pool reserves one permit out of this many.
const RESERVED_ONE_IN: usize = 8;

/// Permits for instances, shared by all deployments.
#[derive(Debug)]
pub(crate) struct InstancePermits {
    permits: Arc<Semaphore>,
    max_per_deployment: usize,
}

impl InstancePermits {
    /// A pool of `instances` permits.
    pub(crate) fn new(instances: usize) -> Self {
        let instances = instances.min(Semaphore::MAX_PERMITS);
        let reserved = (instances / RESERVED_ONE_IN).max(1);
        Self {
            permits: Arc::new(Semaphore::new(instances)),
            max_per_deployment: instances.saturating_sub(reserved).max(1),
        }
    }

    pub(crate) fn permits(&self) -> &Arc<Semaphore> {
        &self.permits
    }

    /// Permits that one deployment may hold: all but the reserved ones, and at least one.
    pub(crate) fn max_per_deployment(&self) -> usize {
        self.max_per_deployment
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pool_reserves_permits() {
        for (instances, max) in [(1, 1), (2, 1), (3, 2), (8, 7), (16, 14), (256, 224)] {
            let pool = InstancePermits::new(instances);
            assert_eq!(pool.max_per_deployment(), max, "{instances}");
        }
    }
}
