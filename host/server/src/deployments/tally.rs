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
    /// The books of what all its callers together use, once a revision that limits that has served.
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

    /// A quota for each revision of those that serve together, which allow this much each.
    ///
    /// What was used is one book for the deployment, whichever revision used it, and is not forgotten
    /// when another one takes over. Each request is held to what its own revision allows of that: so
    /// where two share the requests and one allows 10 a minute and the other 100, the first one
    /// answers while fewer than 10 have come in all. One without limits is counted too, once another
    /// one has had some.
    pub(crate) fn quotas(&self, name: &str, allowances: &[Allowance]) -> Vec<Option<Arc<Quota>>> {
        let limited = allowances.iter().any(|allowance| !allowance.is_unlimited());
        let books = match limited {
            true => Some(
                self.quota
                    .get_or_init(|| Quota::new("deployment", name, Allowance::default())),
            ),
            false => self.quota.get(),
        };
        let held = |allowance: &Allowance| Some(books?.held_to(*allowance));
        allowances.iter().map(held).collect()
    }

    /// Of a deployment that has this quota for good, if any.
    pub(crate) fn fixed(account: Account, quota: Option<Arc<Quota>>) -> Self {
        let standing = Standing::new(account);
        if let Some(quota) = quota {
            standing.quota.get_or_init(|| quota);
        }
        standing
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
                "corral_deployment_requests_refused_total",
                "Requests that the host answered with an error of its own, by deployment and code.",
                Kind::Counter,
                &[("deployment", name), ("code", code)],
                *count as f64,
            );
        }
        let gauges = self.account.gauges().into_iter();
        for metric in gauges.chain(self.account.counts()) {
            families.metric(&metric, &[("deployment", name)]);
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
    use super::*;
    use corral_engine::Models;
    use corral_runtime::{Runtime, Settings, Visit};

    fn requests(number: u32) -> Allowance {
        Allowance {
            requests_per_minute: Some(number),
            ..Allowance::default()
        }
    }

    #[test]
    fn revisions_share_what_was_used_and_keep_what_they_allow() {
        let settings = Settings {
            instances: 1,
            ..Settings::default()
        };
        let runtime = Runtime::new(settings, Models::loaded(Vec::new())).expect("starts");
        let standing = Standing::new(runtime.account());
        let none = Allowance::default();
        assert_eq!(standing.quotas("a", &[none]).iter().flatten().count(), 0);
        let first = standing.quotas("a", &[requests(2)]).remove(0);
        let enter = |quota: &Option<Arc<Quota>>| Visit::begin(Vec::from_iter(quota.clone()));
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
