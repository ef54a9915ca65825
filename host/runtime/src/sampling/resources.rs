//! What the sampling plugins of a deployment share.

use super::permits::SamplerPermits;
use crate::counters::ProcessCounters;
use crate::epoch_ticker::Ticker;
use crate::runtime_config::check_instances;
use std::sync::Arc;
use std::time::Duration;

/// How long an instance waits for a permit.
const PERMIT_TIMEOUT: Duration = Duration::from_secs(5);

/// A deployment's part of the permits of all deployments.
pub(crate) struct SamplerResources {
    pub(super) generation_permits: SamplerPermits,
    /// Separate, so that checks do not wait for generations.
    pub(super) check_permits: SamplerPermits,
    pub(super) permit_timeout: Duration,
    pub(super) ticker: Arc<Ticker>,
    pub(super) counters: Arc<ProcessCounters>,
}

impl SamplerResources {
    /// With permits for the instances of this many generations.
    pub(crate) fn new(
        instances: usize,
        ticker: Arc<Ticker>,
        counters: Arc<ProcessCounters>,
    ) -> Self {
        Self {
            generation_permits: SamplerPermits::new(instances),
            check_permits: SamplerPermits::new(check_instances(instances)),
            permit_timeout: PERMIT_TIMEOUT,
            ticker,
            counters,
        }
    }

    /// The same permits, for another deployment.
    pub(crate) fn for_another_deployment(&self) -> Self {
        Self {
            generation_permits: self.generation_permits.for_another_deployment(),
            check_permits: self.check_permits.for_another_deployment(),
            permit_timeout: self.permit_timeout,
            ticker: Arc::clone(&self.ticker),
            counters: Arc::clone(&self.counters),
        }
    }
}

impl std::fmt::Debug for SamplerResources {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SamplerResources")
            .field("generation_permits", &self.generation_permits)
            .field("check_permits", &self.check_permits)
            .finish_non_exhaustive()
    }
}
