//! What the plugins of one deployment have in common, however often it is deployed anew.

use crate::admission::Gate;
use crate::logs::Logs;
use crate::runtime::Shared;
use crate::settings::Limits;
use crate::tally::{Bound, Tally};
use corral_engine::{Metric, Tenant};
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// A deployment as the runtime knows it: who it is to the engines, its log, its places, and what is
/// counted of it. Cheap to clone.
///
/// One revision's plugin after the other is loaded for it. What a prompt's beginning left in the
/// cache is found by all of them; and while an old revision's calls end, both together keep to the
/// bound on calls, unless the new one has another bound.
#[derive(Clone, Debug)]
pub struct Account(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    tenant: Tenant,
    logs: Arc<Logs>,
    tally: Arc<Tally>,
    gate: Mutex<Weak<Gate>>,
}

impl Account {
    pub(crate) fn new(tenant: Tenant) -> Self {
        Self(Arc::new(Inner {
            tenant,
            logs: Arc::default(),
            tally: Arc::default(),
            gate: Mutex::default(),
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

    /// The gate for plugins with these limits: the present one, if it has them too.
    pub(crate) fn gate(&self, limits: &Limits, shared: &Shared) -> Arc<Gate> {
        let mut present = self.0.gate.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(gate) = present.upgrade()
            && gate.is_for(limits.concurrent, limits.queue)
        {
            return gate;
        }
        let gate = Arc::new(Gate::new(
            limits.concurrent,
            limits.queue,
            Arc::clone(&shared.pool),
            Arc::clone(&shared.counters),
            Arc::clone(&self.0.tally),
        ));
        *present = Arc::downgrade(&gate);
        gate
    }
}
