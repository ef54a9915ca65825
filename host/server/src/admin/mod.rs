//! The admin listener: metrics, what goes on in the models, which of them are loaded, the API that sees
//! and changes deployments, and the probes once more.
//!
//! It stays up while the public one drains, so that the last numbers can be read and readiness is
//! seen to be off.

mod api;
mod host;
mod logs;
#[cfg(test)]
mod openapi;
mod token;
mod view;

pub(crate) use api::UPLOADS;
pub(crate) use logs::FOLLOWERS;
pub(crate) use token::{Guard, Reach};
pub use token::{Token, TokenError};

use crate::access::Observed;
use crate::metrics_text::{self, Families};
use crate::models;
use crate::probes;
use crate::problem::Problem;
use crate::sequences;
use crate::server::Shared;
use corral_engine::Kind;
use corral_runtime::Body;
use http::header::{CACHE_CONTROL, CONTENT_TYPE};
use http::{HeaderValue, Method, Request, Response};
use hyper::body::Incoming;
use std::sync::Arc;

/// What `GET /` says.
const INDEX: &str = "\
corral admin
/healthz    200 while the process is alive
/readyz     200 while requests can be served, else 503 and what is missing
/sequences  what runs and what is kept in each model, as JSON; 'corral top' shows it
/models     where each model is, as JSON; PUT /models/NAME loads one, DELETE unloads it if it is idle
/cache      DELETE drops what is kept and nobody means to go on with; both need the admin token if there is one
/metrics    counters, as Prometheus text
/deployments, /components
            see and change what is deployed, with the admin token; 'corral deploy' does
/openapi.json
            the same, described for programs
";

/// Answers one request.
pub(crate) async fn answer(shared: Arc<Shared>, request: Request<Incoming>) -> Response<Observed> {
    let answered = answered(&shared, request).await;
    answered
        .unwrap_or_else(Problem::into_response)
        .map(Observed::from)
}

async fn answered(shared: &Shared, request: Request<Incoming>) -> Result<Response<Body>, Problem> {
    shared.guard.is_meant(&request)?;
    let path = request.uri().path();
    if let Some(answer) = probes::answer(shared, request.method(), path) {
        return answer;
    }
    if api::owns(path) {
        return api::answer(shared, request).await;
    }
    match *request.method() {
        Method::GET | Method::HEAD => shared.guard.may_look(request.headers())?,
        _ => shared.guard.may_clear(request.headers())?,
    }
    match path {
        "/" => on_get(request.method(), || probes::plain_text(INDEX)),
        "/metrics" => on_get(request.method(), || metrics(shared)),
        "/sequences" => match *request.method() {
            Method::GET | Method::HEAD => sequences(shared, false).await,
            _ => Err(Problem::method("GET, HEAD")),
        },
        // Not POST: a browser lets any page send one, but no DELETE.
        "/cache" => match *request.method() {
            Method::DELETE => sequences(shared, true).await,
            _ => Err(Problem::method("DELETE")),
        },
        path => models::answer(shared, request.method(), path)
            .await
            .unwrap_or_else(|| Err(Problem::no_route(path))),
    }
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

/// What goes on in the models; with `clear` after their caches are cleared.
async fn sequences(shared: &Shared, clear: bool) -> Result<Response<Body>, Problem> {
    match shared.house.get() {
        Some(house) => {
            let keys = shared.keys.as_deref();
            sequences::answer(house, keys, &shared.looks, clear).await
        }
        None => Err(probes::not_ready(&shared.missing())),
    }
}

fn metrics(shared: &Shared) -> Response<Body> {
    let mut response = Response::new(Body::from(metrics_of(shared)));
    let headers = response.headers_mut();
    headers.insert(
        CONTENT_TYPE,
        HeaderValue::from_static(metrics_text::CONTENT_TYPE),
    );
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

fn metrics_of(shared: &Shared) -> String {
    let mut families = Families::default();
    families.sample(
        "corral_build_info",
        "The version that runs; the value is always 1.",
        Kind::Gauge,
        &[("version", env!("CARGO_PKG_VERSION"))],
        1.0,
    );
    families.sample(
        "corral_ready",
        "1 while requests can be served.",
        Kind::Gauge,
        &[],
        f64::from(u8::from(shared.missing().is_empty())),
    );
    if let Some(bytes) = resident_bytes() {
        families.sample(
            "process_resident_memory_bytes",
            "Memory of the process that is in RAM.",
            Kind::Gauge,
            &[],
            bytes as f64,
        );
    }
    shared.traffic.write(&mut families);
    let mut quotas = shared
        .keys
        .as_ref()
        .map_or_else(Vec::new, |keys| keys.metrics());
    quotas.extend(shared.tls.iter().flat_map(|tls| tls.metrics()));
    for metric in quotas {
        families.metric(&metric, &[]);
    }
    if let Some(house) = shared.house.get() {
        for quota in house.quotas() {
            for metric in quota.metrics() {
                families.metric(&metric, &[]);
            }
        }
        for (name, metrics) in house.models.metrics() {
            let model = [("model", name.as_str())];
            for metric in metrics {
                families.metric(&metric, &model);
            }
        }
        for metric in house.runtime.metrics() {
            families.metric(&metric, &[]);
        }
        house.deployments.write(&mut families);
    }
    families.text()
}

/// The process's resident memory, where the system tells it.
fn resident_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kilobytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kilobytes.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    #[test]
    #[cfg(target_os = "linux")]
    fn resident_memory_is_read() {
        let bytes = super::resident_bytes().expect("Linux tells it");
        assert!((1 << 20..1 << 40).contains(&bytes), "{bytes}");
    }
}
