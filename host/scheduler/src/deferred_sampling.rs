//! Sampling that takes too long for a step: what it costs its tenant, and rows that are not sampled.
//!
//! The engine samples a step's rows one after the other, and all requests wait meanwhile. It divides the time among the
//! tenants. A row of a tenant that used up its part is computed, but not sampled.

use crate::request::{RequestId, Tenant};
use crate::scheduler::Scheduler;
use std::time::Duration;

impl Scheduler {
    /// Whether rows may be deferred: where a sequence can't be truncated, a request would start again.
    pub fn can_defer_sampling(&self) -> bool {
        self.config.can_truncate
    }

    /// Number of tenants that have running or waiting requests.
    pub fn active_tenants(&self) -> usize {
        self.queue.active_tenants()
    }

    /// The tenant of a running request.
    pub fn tenant(&self, id: RequestId) -> Option<Tenant> {
        let running = self.running.get(id);
        running.map(|running| running.request.tenant)
    }

    /// Charges a tenant for sampling.
    pub fn charge_sampling(&mut self, tenant: Tenant, took: Duration) {
        self.queue.charge_sampling(tenant, took);
    }

    /// Computes the last token of requests again, whose rows of the last step were not sampled.
    pub fn defer_sampling(&mut self, requests: &[RequestId]) {
        debug_assert!(requests.is_empty() || self.can_defer_sampling());
        for &id in requests {
            let Some(running) = self.running.get_mut(id) else {
                continue;
            };
            running.save_progress();
            let kept = running.computed.saturating_sub(1);
            self.kv.truncate(running.seq, kept);
            running.start_at(kept);
        }
    }
}
