//! State that the plugins of one deployment share, across its revisions.

use crate::admission::{Admission, CallQueue, InstancePermits};
use crate::counters::{CallLimit, DeploymentCounters, ProcessCounters};
use crate::key_values::KeyValueStore;
use crate::logs::Logs;
use crate::outbound::OutboundPermits;
use crate::runtime_config::Limits;
use crate::sampling::resources::SamplerResources;
use corral_engine::{Metric, Tenant};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::sync::Semaphore;

/// A deployment: its tenant, log, permits and counters. Cheap to clone.
///
/// A deployment loads one plugin per revision. All revisions share its prefix cache entries and its queue
/// of calls (see `admission.rs`).
#[derive(Clone, Debug)]
pub struct DeploymentState(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    tenant: Tenant,
    logs: Arc<Logs>,
    counters: Arc<DeploymentCounters>,
    calls: Arc<CallQueue>,
    sampling: Arc<SamplerResources>,
    outbound: OutboundPermits,
    folder_files: Arc<Semaphore>,
    key_values: Arc<Semaphore>,
    is_removed: Arc<AtomicBool>,
}

impl DeploymentState {
    pub(crate) fn new(
        tenant: Tenant,
        pool: &Arc<InstancePermits>,
        process_counters: &Arc<ProcessCounters>,
        sampling: Arc<SamplerResources>,
        outbound: OutboundPermits,
        folder_files: Arc<Semaphore>,
    ) -> Self {
        let counters = Arc::<DeploymentCounters>::default();
        let calls = CallQueue::new(
            Arc::clone(pool),
            Arc::clone(process_counters),
            Arc::clone(&counters),
        );
        Self(Arc::new(Inner {
            tenant,
            logs: Arc::default(),
            counters,
            calls: Arc::new(calls),
            sampling,
            outbound,
            folder_files,
            key_values: KeyValueStore::deployment_permits(),
            is_removed: Arc::default(),
        }))
    }

    /// Marks it as removed: calls that still run can't access the values that plugins keep any more, which a new
    /// deployment of the same name may have.
    pub fn set_removed(&self) {
        self.0.is_removed.store(true, Ordering::SeqCst);
    }

    pub(crate) fn is_removed(&self) -> &Arc<AtomicBool> {
        &self.0.is_removed
    }

    /// Its tenant, to which the engines give a fair share of their time.
    pub fn tenant(&self) -> Tenant {
        self.0.tenant
    }

    /// Lines that its plugins wrote recently.
    pub fn logs(&self) -> &Arc<Logs> {
        &self.0.logs
    }

    /// Its counters and gauges. [`Self::limit_hits`] has those of limits.
    pub fn metrics(&self) -> Vec<Metric> {
        let mut metrics = self.0.counters.metrics();
        metrics.push(Metric::gauge(
            "corral_deployment_log_bytes",
            "Bytes of log lines that the host keeps, by deployment.",
            self.0.logs.bytes() as f64,
        ));
        metrics
    }

    /// How often each limit stopped a call or generation.
    pub fn limit_hits(&self) -> impl Iterator<Item = (CallLimit, u64)> {
        self.0.counters.limit_hits()
    }

    /// Its requests since the start.
    pub fn requests(&self) -> u64 {
        self.0.counters.requests.get()
    }

    /// Counts a request.
    pub fn count_request(&self) {
        self.0.counters.requests.increment();
    }

    /// Counts a request that the server answered with this error code.
    pub fn count_refused_request(&self, code: &'static str) {
        self.0.counters.request_refused(code);
    }

    /// Counts a response that names fields of the request that the plugin ignored.
    pub fn count_ignored_fields(&self) {
        self.0.counters.ignored_fields.increment();
    }

    /// Counts a request that the server stopped because of `limit`.
    pub fn count_limit_hit(&self, limit: CallLimit) {
        self.0.counters.limit_hit(limit);
    }

    pub(crate) fn counters(&self) -> &Arc<DeploymentCounters> {
        &self.0.counters
    }

    /// Permits for its outgoing requests.
    pub(crate) fn outbound(&self) -> &OutboundPermits {
        &self.0.outbound
    }

    /// Permits for its open files in folders.
    pub(crate) fn folder_files(&self) -> &Arc<Semaphore> {
        &self.0.folder_files
    }

    /// Permits for its accesses to values.
    pub(crate) fn key_values(&self) -> &Arc<Semaphore> {
        &self.0.key_values
    }

    pub(crate) fn sampling(&self) -> &Arc<SamplerResources> {
        &self.0.sampling
    }

    /// Admission of a plugin with these limits, whose instance needs this many permits.
    pub(crate) fn admission(&self, limits: &Limits, permits: u32) -> Admission {
        Admission::new(
            Arc::clone(&self.0.calls),
            limits.concurrent,
            limits.waiting_calls,
            permits,
        )
    }
}
