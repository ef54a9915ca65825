//! What is counted of each deployment, across its revisions.

use crate::metrics_text::Families;
use corral_engine::Kind;
use corral_runtime::{Account, Allowance, Bound, Quota};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// What of a deployment lasts from one revision to the next.
#[derive(Debug)]
pub(crate) struct Standing {
    /// Who it is to the runtime.
    pub(crate) account: Account,
    /// What all its callers together may use, once a revision has limited that.
    quota: OnceLock<Arc<Quota>>,
    requests: AtomicU64,
    /// Requests that the host answered with an error of its own, by its code. There are no more codes
    /// than the host has.
    refused: Mutex<BTreeMap<&'static str, u64>>,
}

impl Standing {
    pub(crate) fn new(account: Account) -> Self {
        Standing {
            account,
            quota: OnceLock::new(),
            requests: AtomicU64::new(0),
            refused: Mutex::default(),
        }
    }

    /// Of a deployment that has this quota for good, if any.
    pub(crate) fn fixed(account: Account, quota: Option<Arc<Quota>>) -> Self {
        let standing = Standing::new(account);
        if let Some(quota) = quota {
            standing.quota.get_or_init(|| quota);
        }
        standing
    }

    /// The quota for a revision that allows this much. What was used of it is not forgotten when a
    /// revision allows another amount.
    pub(crate) fn quota(&self, name: &str, allowance: Allowance) -> Option<Arc<Quota>> {
        if allowance.is_unlimited() {
            return None;
        }
        let quota = self
            .quota
            .get_or_init(|| Quota::new("deployment", name, allowance));
        quota.allow(allowance);
        Some(Arc::clone(quota))
    }

    /// A request came for it.
    pub(crate) fn request(&self) {
        self.requests.fetch_add(1, Ordering::Relaxed);
    }

    /// The host answered one in its place.
    pub(crate) fn refused(&self, code: &'static str) {
        let mut refused = self.refused.lock().unwrap_or_else(PoisonError::into_inner);
        *refused.entry(code).or_default() += 1;
    }

    /// A request's body was larger than the plugin takes, whoever answered it.
    pub(crate) fn too_large(&self) {
        self.account.trip(Bound::Request);
    }

    /// Writes the counters under the name of the deployment.
    pub(crate) fn write(&self, name: &str, families: &mut Families) {
        families.sample(
            "corral_deployment_requests_total",
            "Requests by the deployment whose route they took.",
            Kind::Counter,
            &[("deployment", name)],
            self.requests.load(Ordering::Relaxed) as f64,
        );
        let refused = self.refused.lock().unwrap_or_else(PoisonError::into_inner);
        for (code, count) in &*refused {
            families.sample(
                "corral_deployment_refused_total",
                "Requests that the host answered with an error of its own, by deployment and code.",
                Kind::Counter,
                &[("deployment", name), ("code", code)],
                *count as f64,
            );
        }
        for gauge in self.account.gauges() {
            families.metric(&gauge, &[("deployment", name)]);
        }
        let bounds = self.account.tripped();
        let bounds = bounds.map(|(bound, count)| (bound.name(), count));
        let quota = self.quota.get().into_iter();
        let limits = quota.flat_map(|quota| quota.refusals());
        let limits = limits.map(|(limit, count)| (limit.name(), count));
        for (limit, count) in together(bounds.chain(limits)) {
            families.sample(
                "corral_deployment_limit_total",
                "Requests and generations that a limit of their deployment stopped, those in the midst \
                 of their answer included, by deployment and limit as corral.toml names it; the pool is \
                 of all deployments together.",
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
    use super::together;

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
