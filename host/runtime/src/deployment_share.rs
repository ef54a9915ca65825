//! The share of one deployment in what all deployments use.

use std::sync::Arc;
use tokio::sync::Semaphore;

/// Permits of one deployment for what all share, which is limited to `all`: a quarter, and at least one.
pub(crate) fn deployment_share(all: usize) -> Arc<Semaphore> {
    Arc::new(Semaphore::new((all / 4).max(1)))
}
