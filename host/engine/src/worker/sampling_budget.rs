//! Divides a step's sampling time among tenants.
//!
//! All requests wait while the worker samples a step's rows. If several tenants have requests, each may take an equal
//! part of the time that computing the step took, or of [`MIN_BUDGET`] if that is longer. Beyond it, the tenant's other
//! rows are deferred: their last token is computed again in the next step, where they come first. A tenant's first row
//! is always sampled. The time also counts as service of the tenant.

use crate::cpu_time::thread_cpu_time;
use corral_scheduler::{Scheduler, Tenant};
use std::time::Duration;

/// CPU time for sampling in a step, all tenants together. Common samplers take a hundredth of it for a token.
const MIN_BUDGET: Duration = Duration::from_millis(5);

/// The sampling time of a step.
pub(super) struct SamplingBudget {
    /// What each tenant may take. `None` if only one has requests; then nothing is measured.
    share: Option<Duration>,
    /// Whether rows may be deferred.
    can_defer: bool,
    taken: Vec<(Tenant, Duration)>,
}

impl SamplingBudget {
    /// Divides the budget of a step that took this long to compute.
    pub fn for_step(compute_time: Duration, scheduler: &Scheduler) -> Self {
        let tenants = u32::try_from(scheduler.active_tenants()).unwrap_or(u32::MAX);
        Self {
            share: (tenants > 1).then(|| compute_time.max(MIN_BUDGET) / tenants),
            can_defer: scheduler.can_defer_sampling(),
            taken: Vec::new(),
        }
    }

    /// Samples a row of a request, unless its tenant has no time left: then it is deferred, and the result is false.
    pub fn sample(&mut self, tenant: Option<Tenant>, sample: impl FnOnce()) -> bool {
        let (Some(share), Some(tenant)) = (self.share, tenant) else {
            sample();
            return true;
        };
        let index = self.taken.iter().position(|(other, _)| *other == tenant);
        let index = index.unwrap_or_else(|| {
            self.taken.push((tenant, Duration::ZERO));
            self.taken.len() - 1
        });
        if self.can_defer && self.taken[index].1 >= share {
            return false;
        }
        let start = thread_cpu_time();
        sample();
        self.taken[index].1 += thread_cpu_time().saturating_sub(start);
        true
    }

    /// The time of each tenant.
    pub fn taken(self) -> Vec<(Tenant, Duration)> {
        self.taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn budget(can_defer: bool) -> SamplingBudget {
        SamplingBudget {
            share: Some(Duration::from_millis(1)),
            can_defer,
            taken: Vec::new(),
        }
    }

    /// Takes more CPU time than a tenant's share.
    fn sample_slowly() {
        let start = thread_cpu_time();
        while thread_cpu_time().saturating_sub(start) < Duration::from_millis(2) {}
    }

    #[test]
    fn rows_beyond_share_of_tenant_are_deferred() {
        let mut budget = budget(true);
        let [greedy, other] = [1, 2].map(|number| Some(Tenant(number)));
        assert!(budget.sample(greedy, sample_slowly));
        assert!(!budget.sample(greedy, || unreachable!("it has no time left")));
        assert!(budget.sample(other, || {}));
        let taken = budget.taken();
        assert_eq!(taken.len(), 2);
        assert!(taken[0].1 >= Duration::from_millis(1), "{taken:?}");
    }

    #[test]
    fn time_counts_where_no_row_can_wait() {
        let mut budget = budget(false);
        for _ in 0..2 {
            assert!(budget.sample(Some(Tenant(1)), sample_slowly));
        }
        let taken = budget.taken();
        assert!(taken[0].1 >= Duration::from_millis(4), "{taken:?}");
    }
}
