//! The admin listener: probes, metrics, the status of the models, the API for deployments, and the console.

mod audit;
mod authorization;
mod call;
mod console;
mod console_snapshot;
mod deployment_api;
mod engine_status;
mod events;
mod host_check;
mod jobs;
mod logs;
mod models;
#[cfg(test)]
mod openapi;
mod prefix_cache;
mod prefix_lists;
mod same_origin;
mod session;
mod types;

pub use audit::AUDIT_TARGET;
use audit::AuditedChange;
pub(crate) use authorization::{AdminExposure, AdminGuard};
pub use authorization::{AdminToken, AdminTokenError};
use events::EventFeed;
use prefix_lists::PrefixLists;

use crate::deployments::ChangeError;
use crate::deployments::artifact::VerifyKey;
use crate::json_response::{json_response, no_store};
use crate::probes;
use crate::problem::Problem;
use crate::process_metrics;
use crate::prometheus::{self, MetricFamilies};
use crate::request_log::LoggedBody;
use crate::state::ServerState;
use corral_engine::MetricKind;
use corral_runtime::Body;
use http::{Method, Request, Response, StatusCode};
use hyper::body::Incoming;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tokio::sync::Semaphore;

/// Body of `GET /`.
const INDEX: &str = "\
corral admin
/healthz        200 while the process is alive
/readyz         200 while requests can be served, else 503 with the reason
/requests       requests and cached prefixes of each model, as JSON; 'corral top' shows it;
                DELETE /requests/ID cancels a request, by its x-request-id
/events         what the server does, each second, as server-sent events
/models         state of each model, as JSON; PUT /models/NAME loads one, DELETE unloads an idle one
/prefix-cache   cached prefixes, as JSON; DELETE drops those that are not retained, of ?deployment=NAME,
                or one: /prefix-cache/MODEL/ENTRY, with ?first_tokens=N all that begin with its first N tokens
/metrics        counters, as Prometheus text
/deployments, /components
                list and change deployments; 'corral deploy' does
/cluster        hosts of the cluster, as JSON; 'corral list' shows them
/call/PATH      a request to PATH of the public listener
/session        what the caller may do
/ui             the console, a page for browsers
/openapi.json   description of the API for programs
If there is an admin token, every change needs it, and so does all of /deployments, /components and /cluster.
";

/// State of the admin listener.
pub(crate) struct AdminState {
    server: Arc<ServerState>,
    guard: AdminGuard,
    /// Permits for status queries.
    status_queries: Arc<Semaphore>,
    prefix_lists: PrefixLists,
    /// Permits for uploads of components.
    uploads: Semaphore,
    /// Permits for clients that follow logs.
    log_followers: Arc<Semaphore>,
    events: Arc<EventFeed>,
    /// Permits for calls of routes.
    calls: Arc<Semaphore>,
    /// Whether browsers get the console.
    console: bool,
    /// The key that must have signed what is deployed.
    verify_key: Option<Arc<VerifyKey>>,
}

impl AdminState {
    pub(crate) fn new(
        server: Arc<ServerState>,
        guard: AdminGuard,
        console: bool,
        verify_key: Option<Arc<VerifyKey>>,
    ) -> Self {
        AdminState {
            server,
            guard,
            status_queries: Arc::new(Semaphore::new(engine_status::MAX_STATUS_QUERIES)),
            prefix_lists: PrefixLists::default(),
            uploads: Semaphore::new(deployment_api::MAX_UPLOADS),
            log_followers: Arc::new(Semaphore::new(logs::MAX_LOG_FOLLOWERS)),
            events: Arc::default(),
            calls: Arc::new(Semaphore::new(call::MAX_CALLS)),
            console,
            verify_key,
        }
    }
}

/// Answers one request.
pub(crate) async fn answer(
    state: Arc<AdminState>,
    request: Request<Incoming>,
) -> Response<LoggedBody> {
    // In this task, so that a client that disconnects ends its call.
    if call::owns(request.uri().path()) {
        return call::answer(&state, request).await;
    }
    let answered = match AuditedChange::begin(&state, &request) {
        Some(change) => {
            // A task of its own, so that the change is logged even if its client disconnects.
            let attempt = tokio::spawn(async move {
                let answered = route(&state, request).await;
                change.log(&answered);
                answered
            });
            attempt
                .await
                .unwrap_or_else(|_| Err(ChangeError::Internal.into()))
        }
        None => route(&state, request).await,
    };
    answered
        .unwrap_or_else(Problem::into_response)
        .map(LoggedBody::from)
}

async fn route(state: &AdminState, request: Request<Incoming>) -> Result<Response<Body>, Problem> {
    let server = &*state.server;
    state.guard.check_host(&request)?;
    if state.console
        && let Some(answer) = console::answer(&request)
    {
        return answer;
    }
    same_origin::check(&request)?;
    let path = request.uri().path();
    if let Some(answer) = probes::answer(server, request.method(), path) {
        return answer;
    }
    if path == "/session" {
        return on_get(request.method(), || {
            session::answer(state, request.headers())
        });
    }
    if deployment_api::owns(path) {
        return deployment_api::answer(state, request).await;
    }
    match *request.method() {
        Method::GET | Method::HEAD => state.guard.check_read(request.headers())?,
        _ => state.guard.check_manage_models(request.headers())?,
    }
    match path {
        "/" => on_get(request.method(), || probes::plain_text(INDEX)),
        "/metrics" => on_get(request.method(), || {
            no_store(
                Body::from(metric_families(state).text()),
                prometheus::CONTENT_TYPE,
            )
        }),
        "/requests" => match *request.method() {
            Method::GET | Method::HEAD => engine_status::status(state).await,
            _ => Err(Problem::method("GET, HEAD")),
        },
        "/events" => match *request.method() {
            Method::GET => state.events.answer(&state.server),
            _ => Err(Problem::method("GET")),
        },
        path if path.starts_with("/requests/") => cancel(server, request.method(), path),
        path if path.starts_with("/prefix-cache") => {
            prefix_cache::answer(state, request.method(), request.uri())
                .await
                .unwrap_or_else(|| Err(Problem::no_route(path)))
        }
        path => models::answer(server, request.method(), path)
            .await
            .unwrap_or_else(|| Err(Problem::no_route(path))),
    }
}

/// Cancels the request that `path` names.
fn cancel(server: &ServerState, method: &Method, path: &str) -> Result<Response<Body>, Problem> {
    let id = path.strip_prefix("/requests/").unwrap_or_default();
    if *method != Method::DELETE {
        return Err(Problem::method("DELETE"));
    }
    if !server.running.cancel(id) {
        return Err(Problem::new(
            StatusCode::NOT_FOUND,
            "no-request",
            "no request of this id runs; it may have ended: GET /events lists those that run",
        ));
    }
    server.counters.count_canceled();
    let json = serde_json::json!({ "canceled": id });
    Ok(json_response(StatusCode::OK, json.to_string()))
}

fn on_get(
    method: &Method,
    make: impl FnOnce() -> Response<Body>,
) -> Result<Response<Body>, Problem> {
    match *method {
        Method::GET | Method::HEAD => Ok(make()),
        _ => Err(Problem::method("GET, HEAD")),
    }
}

/// All metrics now.
pub(crate) fn metric_families(admin: &AdminState) -> MetricFamilies {
    let state = &admin.server;
    let mut families = MetricFamilies::default();
    families.sample(
        "corral_build_info",
        "The running version; the value is always 1.",
        MetricKind::Gauge,
        &[("version", env!("CARGO_PKG_VERSION"))],
        1.0,
    );
    families.sample(
        "corral_ready",
        "1 while requests can be served.",
        MetricKind::Gauge,
        &[],
        f64::from(u8::from(state.not_ready_reasons().is_empty())),
    );
    process_metrics::write(&mut families);
    families.sample(
        "corral_log_lines_lost_total",
        "Lines that the log lost because the reader of standard error was too slow.",
        MetricKind::Counter,
        &[],
        state.lost_log_lines.load(Ordering::Relaxed) as f64,
    );
    state.telemetry_counters.write(&mut families);
    state.counters.write(&mut families);
    admin.events.write_metrics(&mut families);
    if let Some(kv_events) = &state.kv_events {
        kv_events.write_metrics(&mut families);
    }
    if let Some(memory) = state.memory.get() {
        memory.write(&mut families);
    }
    let keys = state.api_keys.iter().flat_map(|keys| keys.metrics());
    let tls = state.tls.iter().flat_map(|tls| tls.metrics());
    for metric in keys.chain(tls) {
        families.metric(&metric, &[]);
    }
    if let Some(services) = state.services.get() {
        for quota in services.deployments.quotas() {
            for metric in quota.metrics() {
                families.metric(&metric, &[]);
            }
        }
        for (name, metrics) in services.models.metrics() {
            let model = [("model", name.as_str())];
            for metric in metrics {
                families.metric(&metric, &model);
            }
        }
        for metric in services.runtime.metrics() {
            families.metric(&metric, &[]);
        }
        services.deployments.write_metrics(&mut families);
    }
    families
}
