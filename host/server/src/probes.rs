//! `/healthz` and `/readyz`: for whoever watches the process, on both listeners.

use crate::problem::Problem;
use crate::server::Shared;
use corral_runtime::Body;
use http::header::{CACHE_CONTROL, CONTENT_TYPE};
use http::{HeaderValue, Method, Response, StatusCode};
use std::time::Duration;

/// Answers `path` if it is a probe.
pub(crate) fn answer(
    shared: &Shared,
    method: &Method,
    path: &str,
) -> Option<Result<Response<Body>, Problem>> {
    let probe = match path {
        "/healthz" => health,
        "/readyz" => readiness,
        _ => return None,
    };
    if !matches!(*method, Method::GET | Method::HEAD) {
        return Some(Err(Problem::method("GET, HEAD")));
    }
    Some(probe(shared))
}

/// The process is there and its event loop turns. Says nothing about models: a watcher that kills
/// on this must not kill while a large model is being loaded.
fn health(_: &Shared) -> Result<Response<Body>, Problem> {
    Ok(plain_text("ok\n"))
}

/// A request would be answered now.
fn readiness(shared: &Shared) -> Result<Response<Body>, Problem> {
    let missing = shared.missing();
    if missing.is_empty() {
        return Ok(plain_text("ready\n"));
    }
    Err(not_ready(&missing))
}

/// The answer to everything while something is missing.
pub(crate) fn not_ready(missing: &[String]) -> Problem {
    Problem::new(
        StatusCode::SERVICE_UNAVAILABLE,
        "not-ready",
        format!("{}; try again later", missing.join("; ")),
    )
    .retry_after(Duration::from_secs(1))
}

/// A short text, not to be cached.
pub(crate) fn plain_text(text: &'static str) -> Response<Body> {
    let mut response = Response::new(Body::from(text));
    let headers = response.headers_mut();
    headers.insert(
        CONTENT_TYPE,
        HeaderValue::from_static("text/plain; charset=utf-8"),
    );
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}
