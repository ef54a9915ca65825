//! What is counted of each deployment, across its revisions.

use crate::metrics_text::Families;
use corral_engine::Kind;
use corral_runtime::{DeploymentState, Quota, QuotaLimits};
use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

/// What of a deployment lasts from one revision to the next.
#[derive(Debug)]
pub(crate) struct Standing {
    /// The runtime's state of the deployment, with its counters.
    pub(crate) deployment: DeploymentState,
    /// The usage of all its callers together, once a revision with a quota has served.
    quota: OnceLock<Arc<Quota>>,
}

impl Standing {
    pub(crate) fn new(deployment: DeploymentState) -> Self {
        Standing {
            deployment,
            quota: OnceLock::new(),
        }
    }

    /// A quota for each revision of those that serve together, with these limits.
    ///
    /// All revisions share one usage, which outlasts them. Each request is held to the limits of its own
    /// revision: where one allows 10 requests a minute and the other 100, the first one answers while
    /// fewer than 10 have come in all. A revision without limits is counted too, once another one had some.
    pub(crate) fn quotas(&self, name: &str, limits: &[QuotaLimits]) -> Vec<Option<Arc<Quota>>> {
        let limited = limits.iter().any(|limits| !limits.is_unlimited());
        let shared = match limited {
            true => Some(
                self.quota
                    .get_or_init(|| Quota::new("deployment", name, QuotaLimits::default())),
            ),
            false => self.quota.get(),
        };
        let quota = |limits: &QuotaLimits| Some(shared?.with_limits(*limits));
        limits.iter().map(quota).collect()
    }

    /// A deployment with a fixed quota, if any.
    pub(crate) fn fixed(deployment: DeploymentState, quota: Option<Arc<Quota>>) -> Self {
        let standing = Standing::new(deployment);
        if let Some(quota) = quota {
            standing.quota.get_or_init(|| quota);
        }
        standing
    }

    /// Writes the counters under the name of the deployment.
    pub(crate) fn write(&self, name: &str, families: &mut Families) {
        for metric in self.deployment.metrics() {
            families.metric(&metric, &[("deployment", name)]);
        }
        let call_limits = self.deployment.limit_hits();
        let call_limits = call_limits.map(|(limit, count)| (limit.name(), count));
        let quota = self.quota.get().into_iter();
        let quota_limits = quota.flat_map(|quota| quota.refusals());
        let quota_limits = quota_limits.map(|(limit, count)| (limit.name(), count));
        for (limit, count) in together(call_limits.chain(quota_limits)) {
            families.sample(
                "corral_deployment_limit_total",
                "Requests and generations that a limit of their deployment stopped, by deployment and \
                 limit as corral.toml names it. The pool is shared by all deployments.",
                Kind::Counter,
                &[("deployment", name), ("limit", limit)],
                count as f64,
            );
        }
    }
}

/// The counts by name, those that are 0 left away: there is a limit of calls at once in the deployment, and
/// one in its quota.
fn together(counts: impl Iterator<Item = (&'static str, u64)>) -> BTreeMap<&'static str, u64> {
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
    fn revisions_share_what_was_used_and_keep_what_they_allow() {
        let settings = RuntimeConfig {
            instances: 1,
            ..RuntimeConfig::default()
        };
        let runtime = Runtime::new(settings, ModelPool::loaded(Vec::new())).expect("starts");
        let standing = Standing::new(runtime.new_deployment());
        let none = QuotaLimits::default();
        assert_eq!(standing.quotas("a", &[none]).iter().flatten().count(), 0);
        let first = standing.quotas("a", &[requests(2)]).remove(0);
        let enter =
            |quota: &Option<Arc<Quota>>| QuotaPermit::acquire(Vec::from_iter(quota.clone()));
        enter(&first).expect("one of two");
        // Terms that are made for other revisions change nothing for those that serve.
        let split = standing.quotas("a", &[none, requests(4)]);
        enter(&first).expect("two of two");
        assert_eq!(enter(&first).expect_err("three of two").allowed, 2);
        enter(&split[1]).expect("three of four");
        enter(&split[0]).expect("not limited, and counted");
        assert_eq!(enter(&split[1]).expect_err("five of four").allowed, 4);
    }

    #[test]
    fn counts_of_one_name_are_one_sample() {
        let counts = [
            ("queue", 1),
            ("concurrent", 2),
            ("pool", 0),
            ("concurrent", 3),
        ];
        let sums = together(counts.into_iter());
        assert!(sums.into_iter().eq([("concurrent", 5), ("queue", 1)]));
    }
}
