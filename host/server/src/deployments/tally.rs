//! What is counted of each deployment, across its revisions.

use crate::metrics_text::Families;
use corral_engine::Kind;
use corral_runtime::{Account, Allowance, Quota};
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
    }
}
