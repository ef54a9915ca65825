//! Places of samplers' instances: so many in all, and for one deployment all of them but a few.

use crate::admission::Pool;
use std::sync::Arc;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Of so many places for generations there is one more for checks.
const CHECKS: usize = 8;

/// Places beside those of `instances` samplers, where settings are checked: one at least.
pub(crate) fn check_places(instances: usize) -> usize {
    (instances / CHECKS).max(1)
}

/// Places as one deployment sees them.
#[derive(Debug)]
pub(super) struct Places {
    pool: Arc<Pool>,
    /// What it may have of them.
    own: Arc<Semaphore>,
}

/// A place; dropping it frees it.
pub(super) type Permit = [OwnedSemaphorePermit; 2];

impl Places {
    /// So many, for the first deployment.
    pub(super) fn new(places: usize) -> Self {
        Self::of(Arc::new(Pool::new(places)))
    }

    /// The same for another one.
    pub(super) fn for_another(&self) -> Self {
        Self::of(Arc::clone(&self.pool))
    }

    fn of(pool: Arc<Pool>) -> Self {
        let own = Arc::new(Semaphore::new(pool.most()));
        Self { pool, own }
    }

    /// Waits for one, behind those of the same deployment that came before. Nothing once the host stops.
    pub(super) async fn take(&self) -> Option<Permit> {
        let own = Arc::clone(&self.own).acquire_owned().await.ok()?;
        let shared = Arc::clone(self.pool.places()).acquire_owned().await.ok()?;
        Some([own, shared])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    /// A place, if there is one.
    fn now(places: &Places) -> Option<Permit> {
        match pin!(places.take()).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(permit) => permit,
            Poll::Pending => None,
        }
    }

    #[test]
    fn one_deployment_leaves_places_for_others() {
        let one = Places::new(8);
        let other = one.for_another();
        let held: Vec<_> = (0..7).map(|_| now(&one).unwrap()).collect();
        assert!(now(&one).is_none());
        let last = now(&other).unwrap();
        assert!(now(&other).is_none());
        drop(held);
        assert!(now(&one).is_some());
        drop(last);
    }

    #[test]
    fn there_is_a_place_for_a_check_however_few_instances_there_are() {
        for (instances, checks) in [(1, 1), (8, 1), (16, 2), (256, 32)] {
            assert_eq!(check_places(instances), checks, "{instances}");
            assert!(now(&Places::new(checks)).is_some());
        }
    }
}
