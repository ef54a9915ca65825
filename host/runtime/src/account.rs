//! What the plugins of one deployment have in common, however often it is deployed anew.

use crate::admission::{Calls, Gate, Pool};
use crate::logs::Logs;
use crate::metrics::Counters;
use crate::settings::Limits;
use corral_engine::Tenant;
use std::sync::Arc;

/// A deployment as the runtime knows it: who it is to the engines, its log, and its calls. Cheap to
/// clone.
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
    calls: Arc<Calls>,
}

impl Account {
    pub(crate) fn new(tenant: Tenant, pool: &Arc<Pool>, counters: &Arc<Counters>) -> Self {
        Self(Arc::new(Inner {
            tenant,
            logs: Arc::default(),
            calls: Arc::new(Calls::new(Arc::clone(pool), Arc::clone(counters))),
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

    /// The gate for a plugin with these limits.
    pub(crate) fn gate(&self, limits: &Limits) -> Gate {
        Gate::new(Arc::clone(&self.0.calls), limits.concurrent, limits.queue)
    }
}
