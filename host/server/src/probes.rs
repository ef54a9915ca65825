//! `/healthz` and `/readyz`, on both listeners.

use crate::json_response::no_store;
use crate::problem::Problem;
use crate::state::ServerState;
use corral_runtime::Body;
use http::{Method, Response};

/// Answers `path` if it is a probe.
pub(crate) fn answer(
    state: &ServerState,
    method: &Method,
    path: &str,
) -> Option<Result<Response<Body>, Problem>> {
    let answer = match path {
        // Independent of models: an orchestrator must not kill a process that loads a large model.
        "/healthz" => Ok(plain_text("ok\n")),
        "/readyz" => readiness(state),
        _ => return None,
    };
    if !matches!(*method, Method::GET | Method::HEAD) {
        return Some(Err(Problem::method("GET, HEAD")));
    }
    Some(answer)
}

/// 200 if a request would be served now.
fn readiness(state: &ServerState) -> Result<Response<Body>, Problem> {
    let reasons = state.not_ready_reasons();
    if reasons.is_empty() {
        return Ok(plain_text("ready\n"));
    }
    Err(Problem::not_ready(&reasons))
}

/// A short text that is not to be cached.
pub(crate) fn plain_text(text: &'static str) -> Response<Body> {
    no_store(Body::from(text), "text/plain; charset=utf-8")
}
