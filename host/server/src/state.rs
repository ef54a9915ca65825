//! State that the requests of both listeners share.

use crate::api_keys::ApiKeys;
use crate::http_counters::HttpCounters;
use crate::kv_events::KvEvents;
use crate::listener::HttpLimits;
use crate::memory_guard::MemoryGuard;
use crate::problem::Problem;
use crate::proxy_headers::TrustedProxies;
use crate::request_id::RequestIdGenerator;
use crate::response_policy::StartingRoutes;
use crate::running_requests::RunningRequests;
use crate::services::Services;
use crate::telemetry::{Telemetry, TelemetryCounters};
use crate::tls::Tls;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

pub(crate) struct ServerState {
    pub(crate) limits: HttpLimits,
    pub(crate) counters: Arc<HttpCounters>,
    pub(crate) request_ids: RequestIdGenerator,
    /// The requests that deployments answer.
    pub(crate) running: Arc<RunningRequests>,
    /// The routes until there are services.
    pub(crate) starting: StartingRoutes,
    pub(crate) services: OnceLock<Services>,
    /// Set before the services, if there is a guard.
    pub(crate) memory: OnceLock<MemoryGuard>,
    pub(crate) api_keys: Option<Arc<ApiKeys>>,
    pub(crate) tls: Option<Arc<Tls>>,
    pub(crate) public_address: SocketAddr,
    /// Whether the public listener has `/metrics` and `/v1/loads`.
    pub(crate) metrics_public: bool,
    pub(crate) trusted_proxies: TrustedProxies,
    /// Errors say what plugins wrote to standard error.
    pub(crate) develop: bool,
    pub(crate) stopping: AtomicBool,
    /// Lines that the log lost; its writer counts them.
    pub(crate) lost_log_lines: Arc<AtomicU64>,
    /// Traces, metrics and logs for collectors, if there is an endpoint.
    pub(crate) telemetry: Option<Arc<Telemetry>>,
    pub(crate) telemetry_counters: Arc<TelemetryCounters>,
    /// Publishes what the models' caches hold.
    pub(crate) kv_events: Option<Arc<KvEvents>>,
}

impl ServerState {
    /// Reasons why requests cannot be served; empty if they can.
    pub(crate) fn not_ready_reasons(&self) -> Vec<String> {
        if self.stopping.load(Ordering::Acquire) {
            return vec!["the server is shutting down".to_owned()];
        }
        match self.services.get() {
            None => vec!["models and plugins are being loaded".to_owned()],
            Some(services) => services.not_ready_reasons(),
        }
    }

    /// The services, or the problem to answer while they are being loaded.
    pub(crate) fn services(&self) -> Result<&Services, Problem> {
        let not_ready = || Problem::not_ready(&self.not_ready_reasons());
        self.services.get().ok_or_else(not_ready)
    }
}
