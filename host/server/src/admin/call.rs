//! `/call/PATH`: a request to the path of the public listener, for the console.
//!
//! It goes through the code of the public listener, with its limits, log and counters. Of the client's headers only the
//! content's type and length, and what it accepts, reach the plugin; never the admin token. The response must not become
//! a page of the admin listener or lead the console to another of its routes, since the browser would send the token
//! there. So it has a policy that lets it do nothing, and only headers without an effect in browsers.

use super::audit::AuditedChange;
use super::{AdminState, same_origin};
use crate::problem::Problem;
use crate::public_requests;
use crate::request_log::LoggedBody;
use crate::running_requests::RequestSource;
use http::header::{
    ACCEPT, CACHE_CONTROL, CONTENT_ENCODING, CONTENT_LANGUAGE, CONTENT_LENGTH,
    CONTENT_SECURITY_POLICY, CONTENT_TYPE, EXPECT, HOST, HeaderName, LOCATION, RETRY_AFTER,
    X_CONTENT_TYPE_OPTIONS,
};
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode, Uri};
use hyper::body::Incoming;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::OwnedSemaphorePermit;

/// Calls at once. With the clients of events and logs they leave connections of one address for the rest of the API.
pub(super) const MAX_CALLS: usize = 8;
/// `Retry-After` while so many run.
const RETRY: Duration = Duration::from_secs(1);
/// Headers of a request that a plugin gets.
const REQUEST_HEADERS: [HeaderName; 4] = [ACCEPT, CONTENT_LENGTH, CONTENT_TYPE, EXPECT];
/// Headers of a response that a client gets, beside those that begin with `x-`.
const RESPONSE_HEADERS: [HeaderName; 5] = [
    CONTENT_ENCODING,
    CONTENT_LANGUAGE,
    CONTENT_LENGTH,
    CONTENT_TYPE,
    RETRY_AFTER,
];
/// Status in the audit line of a client that left before the response.
const CLIENT_LEFT: u16 = 499;
/// Headers of a response that proxies act upon, and the one below.
const ACTIVE_HEADERS: [&str; 4] = [
    "x-accel-redirect",
    "x-sendfile",
    "x-lighttpd-send-file",
    "x-corral-location",
];
/// Where the plugin would send the client.
const PLUGIN_LOCATION: HeaderName = HeaderName::from_static("x-corral-location");

/// Whether `path` is a call.
pub(super) fn owns(path: &str) -> bool {
    public_path(path).is_some()
}

/// The path on the public listener.
fn public_path(path: &str) -> Option<&str> {
    let rest = path.strip_prefix("/call")?;
    rest.starts_with('/').then_some(rest)
}

/// Answers a call. Its audit line is written with the head of its response.
pub(super) async fn answer(state: &AdminState, request: Request<Incoming>) -> Response<LoggedBody> {
    let path = public_path(request.uri().path()).unwrap_or_default();
    let services = state.server.services.get();
    let deployment = services.and_then(|services| services.deployments.find(path));
    let deployment = deployment.map(|deployment| deployment.name.to_string());
    let audited = AuditedCall(Some(AuditedChange::begin_call(state, &request, deployment)));
    match prepare(state, request) {
        Ok((request, source, permit)) => {
            let server = Arc::clone(&state.server);
            let response =
                public_requests::answer_from(server, request, source, Some(permit)).await;
            audited.end(|line| line.log_status(response.status()));
            contained(response)
        }
        Err(problem) => {
            audited.end(|line| line.log_problem(&problem));
            problem.into_response().map(LoggedBody::from)
        }
    }
}

/// The audit line of a call. A client that leaves before the head of the response drops it.
struct AuditedCall(Option<AuditedChange>);

impl AuditedCall {
    fn end(mut self, write: impl FnOnce(AuditedChange)) {
        self.0.take().map(write);
    }
}

impl Drop for AuditedCall {
    fn drop(&mut self) {
        if let Some(line) = self.0.take() {
            let left = StatusCode::from_u16(CLIENT_LEFT);
            line.log_status(left.unwrap_or(StatusCode::REQUEST_TIMEOUT));
        }
    }
}

/// The request as the public listener would get it.
fn prepare<B>(
    state: &AdminState,
    request: Request<B>,
) -> Result<(Request<B>, RequestSource, OwnedSemaphorePermit), Problem> {
    state.guard.check_host(&request)?;
    same_origin::check(&request)?;
    state.guard.check_manage_models(request.headers())?;
    let permit = Arc::clone(&state.calls).try_acquire_owned().map_err(|_| {
        let detail = format!("{MAX_CALLS} calls run already; wait for one of them or cancel it");
        Problem::new(StatusCode::SERVICE_UNAVAILABLE, "too-many-calls", detail).retry_after(RETRY)
    })?;
    let source = RequestSource::Console {
        has_token: state.guard.check_token(request.headers()).is_ok(),
    };
    let host = state.server.public_address.to_string();
    Ok((forwarded(request, &host)?, source, permit))
}

fn forwarded<B>(request: Request<B>, host: &str) -> Result<Request<B>, Problem> {
    let (mut head, body) = request.into_parts();
    let target = head
        .uri
        .path_and_query()
        .map_or("", |target| target.as_str());
    let target = target.strip_prefix("/call").unwrap_or_default();
    head.uri = target
        .parse::<Uri>()
        .map_err(|_| Problem::bad_request("the path after /call is invalid; write /call/PATH"))?;
    let mut headers = picked(&head.headers, |name| REQUEST_HEADERS.contains(name));
    let host = HeaderValue::try_from(host);
    headers.insert(HOST, host.unwrap_or(HeaderValue::from_static("localhost")));
    head.headers = headers;
    Ok(Request::from_parts(head, body))
}

/// The response without anything that a browser acts upon.
fn contained<B>(mut response: Response<B>) -> Response<B> {
    let sent = response.headers();
    let is_harmless = |name: &HeaderName| {
        let is_own = name.as_str().starts_with("x-") && !ACTIVE_HEADERS.contains(&name.as_str());
        RESPONSE_HEADERS.contains(name) || is_own
    };
    let mut headers = picked(sent, is_harmless);
    if let Some(location) = sent.get(LOCATION) {
        headers.insert(PLUGIN_LOCATION, location.clone());
    }
    for (name, value) in [
        (CACHE_CONTROL, "no-store"),
        (CONTENT_SECURITY_POLICY, "sandbox; default-src 'none'"),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    *response.headers_mut() = headers;
    response
}

fn picked(headers: &HeaderMap, keep: impl Fn(&HeaderName) -> bool) -> HeaderMap {
    let kept = headers.iter().filter(|(name, _)| keep(name));
    let mut picked = HeaderMap::new();
    for (name, value) in kept {
        picked.append(name.clone(), value.clone());
    }
    picked
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::header::{AUTHORIZATION, COOKIE, SET_COOKIE};

    #[test]
    fn only_paths_below_call_are_calls() {
        assert_eq!(public_path("/call/v1/x"), Some("/v1/x"));
        assert_eq!(public_path("/call/"), Some("/"));
        for path in ["/call", "/caller/x", "/", "/x/call/y"] {
            assert!(!owns(path), "{path}");
        }
    }

    #[test]
    fn plugin_gets_neither_token_nor_cookies() {
        let request = Request::post("http://admin:1/call/v1/chat?a=b%2Fc")
            .header(AUTHORIZATION, "Bearer secret")
            .header(COOKIE, "a=b")
            .header("x-api-key", "secret")
            .header(CONTENT_TYPE, "application/json")
            .header(HOST, "admin:1")
            .body(());
        let request = forwarded(request.expect("a request"), "127.0.0.1:8080").expect("good");
        assert_eq!(*request.uri(), "/v1/chat?a=b%2Fc");
        assert_eq!(request.headers()[HOST], "127.0.0.1:8080");
        assert_eq!(request.headers()[CONTENT_TYPE], "application/json");
        assert_eq!(request.headers().len(), 2, "{request:?}");
    }

    #[test]
    fn response_can_do_nothing_in_a_browser() {
        let response = Response::builder()
            .status(307)
            .header(LOCATION, "/deployments/x")
            .header(SET_COOKIE, "a=b")
            .header("clear-site-data", "\"*\"")
            .header("refresh", "0;url=/")
            .header("x-accel-redirect", "/secret")
            .header("x-corral-location", "/deployments/y")
            .header("content-security-policy", "default-src *")
            .header(CONTENT_TYPE, "text/html")
            .header("x-request-id", "1")
            .body(());
        let response = contained(response.expect("a response"));
        let headers = response.headers();
        assert_eq!(headers[PLUGIN_LOCATION], "/deployments/x");
        assert_eq!(headers[CONTENT_TYPE], "text/html");
        assert_eq!(headers["x-request-id"], "1");
        assert_eq!(
            headers[CONTENT_SECURITY_POLICY],
            "sandbox; default-src 'none'"
        );
        assert_eq!(headers[X_CONTENT_TYPE_OPTIONS], "nosniff");
        assert_eq!(headers.len(), 6, "{headers:?}");
    }
}
