//! What outlives the revisions of a deployment: its state in the runtime, its quota and the counters of its requests.

use crate::http_counters::DeploymentHttpCounters;
use crate::prometheus::MetricFamilies;
use corral_engine::MetricKind;
use corral_runtime::{DeploymentState, Quota, QuotaLimits};
use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

/// The part of a deployment that all its revisions share.
#[derive(Debug)]
pub(crate) struct DeploymentContext {
    /// The deployment in the runtime, with its counters.
    pub(crate) deployment: DeploymentState,
    /// Usage of all clients together, once a revision with quota limits has served.
    quota: OnceLock<Arc<Quota>>,
    pub(crate) http: DeploymentHttpCounters,
}

impl DeploymentContext {
    pub(crate) fn new(deployment: DeploymentState) -> Self {
        DeploymentContext {
            deployment,
            quota: OnceLock::new(),
            http: DeploymentHttpCounters::default(),
        }
    }

    /// The context of a deployment with a fixed quota.
    pub(crate) fn with_quota(deployment: DeploymentState, quota: Option<Arc<Quota>>) -> Self {
        let context = DeploymentContext::new(deployment);
        if let Some(quota) = quota {
            context.quota.get_or_init(|| quota);
        }
        context
    }

    /// The quota of each of the revisions that serve together, given their limits.
    ///
    /// All revisions share the usage, which continues across revisions; each holds its requests to its own
    /// limits. If one revision allows 10 requests a minute and another 100, the first one answers while
    /// fewer than 10 have come to the deployment. A revision without limits counts usage too, once
    /// another had some.
    pub(crate) fn quotas(&self, name: &str, limits: &[QuotaLimits]) -> Vec<Option<Arc<Quota>>> {
        let limited = limits.iter().any(|limits| !limits.is_unlimited());
        let shared = match limited {
            true => Some(
                self.quota
                    .get_or_init(|| Quota::new("deployment", name, QuotaLimits::default())),
            ),
            false => self.quota.get(),
        };
        let with_limits = |limits: &QuotaLimits| Some(shared?.with_limits(*limits));
        limits.iter().map(with_limits).collect()
    }

    /// How often each limit, as `corral.toml` names it, stopped a request or generation, if it did.
    pub(crate) fn limit_hits(&self) -> BTreeMap<&'static str, u64> {
        let limits = self.deployment.limit_hits();
        let limits = limits.map(|(limit, count)| (limit.name(), count));
        let quota = self.quota.get().into_iter();
        let quota_limits = quota.flat_map(|quota| quota.refusals());
        let quota_limits = quota_limits.map(|(limit, count)| (limit.name(), count));
        sums_by_name(limits.chain(quota_limits))
    }

    /// Writes the metrics of the deployment `name`.
    pub(crate) fn write_metrics(&self, name: &str, families: &mut MetricFamilies) {
        for metric in self.deployment.metrics() {
            families.metric(&metric, &[("deployment", name)]);
        }
        self.http.write(name, families);
        for (limit, count) in self.limit_hits() {
            families.sample(
                "corral_deployment_limit_hits_total",
                "Requests and generations that a limit stopped, even during their response, by deployment and \
                 limit as corral.toml names it; 'pool' is shared by all deployments.",
                MetricKind::Counter,
                &[("deployment", name), ("limit", limit)],
                count as f64,
            );
        }
    }
}

/// Nonzero counts by name: the concurrency limit is counted by both the deployment and its quota.
fn sums_by_name(counts: impl Iterator<Item = (&'static str, u64)>) -> BTreeMap<&'static str, u64> {
    let mut sums = BTreeMap::new();
    for (name, count) in counts.filter(|(_, count)| *count > 0) {
        *sums.entry(name).or_default() += count;
    }
    sums
}

#[cfg(test)]
mod tests {
    use super::*;
    use corral_engine::ModelPool;
    use corral_runtime::{QuotaPermit, Runtime, RuntimeConfig};

    fn requests(number: u32) -> QuotaLimits {
        QuotaLimits {
            requests_per_minute: Some(number),
            ..QuotaLimits::default()
        }
    }

    #[test]
    fn revisions_share_usage_and_keep_their_limits() {
        let settings = RuntimeConfig {
            instances: 1,
            ..RuntimeConfig::default()
        };
        let runtime = Runtime::new(settings, ModelPool::loaded(Vec::new())).expect("starts");
        let context = DeploymentContext::new(runtime.new_deployment());
        let none = QuotaLimits::default();
        assert_eq!(context.quotas("a", &[none]).iter().flatten().count(), 0);
        let first = context.quotas("a", &[requests(2)]).remove(0);
        let enter =
            |quota: &Option<Arc<Quota>>| QuotaPermit::acquire(Vec::from_iter(quota.clone()));
        enter(&first).expect("one of two");
        // Quotas of other revisions do not change those that serve.
        let split = context.quotas("a", &[none, requests(4)]);
        enter(&first).expect("two of two");
        assert_eq!(enter(&first).expect_err("three of two").allowed, 2);
        enter(&split[1]).expect("three of four");
        enter(&split[0]).expect("not limited, but counted");
        assert_eq!(enter(&split[1]).expect_err("five of four").allowed, 4);
    }

    #[test]
    fn counts_of_one_name_are_summed() {
        let counts = [
            ("queued-requests", 1),
            ("concurrent-requests", 2),
            ("pool", 0),
            ("concurrent-requests", 3),
        ];
        let sums = sums_by_name(counts.into_iter());
        assert!(
            sums.into_iter()
                .eq([("concurrent-requests", 5), ("queued-requests", 1)])
        );
    }
}
