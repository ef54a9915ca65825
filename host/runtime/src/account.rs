//! What the plugins of one deployment have in common, however often it is deployed anew.

use crate::admission::{Calls, Gate, Pool};
use crate::logs::Logs;
use crate::metrics::Counters;
use crate::sampling::Sampling;
use crate::settings::Limits;
use crate::tally::{Bound, Tally};
use corral_engine::{Metric, Tenant};
use std::sync::Arc;

/// A deployment as the runtime knows it: who it is to the engines, its log, its calls, and what is
/// counted of it. Cheap to clone.
///
/// One revision's plugin after the other is loaded for it. What a prompt's beginning left in the
/// cache is found by all of them; and calls that run or wait are counted once for all of them, where
/// each revision's own are held to its own [`Limits`].
#[derive(Clone, Debug)]
pub struct Account(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    tenant: Tenant,
    logs: Arc<Logs>,
    tally: Arc<Tally>,
    calls: Arc<Calls>,
    sampling: Arc<Sampling>,
}

impl Account {
    pub(crate) fn new(
        tenant: Tenant,
        pool: &Arc<Pool>,
        counters: &Arc<Counters>,
        sampling: Arc<Sampling>,
    ) -> Self {
        let tally = Arc::<Tally>::default();
        let calls = Calls::new(Arc::clone(pool), Arc::clone(counters), Arc::clone(&tally));
        Self(Arc::new(Inner {
            tenant,
            logs: Arc::default(),
            tally,
            calls: Arc::new(calls),
            sampling,
        }))
    }

    /// Who it is to the engines, among whom their time is shared fairly.
    pub fn tenant(&self) -> Tenant {
        self.0.tenant
    }

    /// What its plugins wrote lately.
    pub fn logs(&self) -> &Arc<Logs> {
        &self.0.logs
    }

    /// How many of its calls run and wait now.
    pub fn gauges(&self) -> [Metric; 2] {
        self.0.tally.gauges()
    }

    /// What went between its plugins and the host.
    pub fn counts(&self) -> [Metric; 7] {
        self.0.tally.counts()
    }

    /// How often each of its bounds stopped a call, also in the midst of an answer.
    pub fn tripped(&self) -> impl Iterator<Item = (Bound, u64)> {
        self.0.tally.tripped()
    }

    /// Counts a call that was stopped by `bound` before it came here.
    pub fn trip(&self, bound: Bound) {
        self.0.tally.trip(bound);
    }

    pub(crate) fn tally(&self) -> &Arc<Tally> {
        &self.0.tally
    }

    /// What its samplers share.
    pub(crate) fn sampling(&self) -> &Arc<Sampling> {
        &self.0.sampling
    }

    /// The gate for a plugin with these limits.
    pub(crate) fn gate(&self, limits: &Limits) -> Gate {
        Gate::new(Arc::clone(&self.0.calls), limits.concurrent, limits.queue)
    }
}
