//! The public listener: probes, and the plugins behind their routes.

use crate::access::{Exchange, Observed, REQUEST_ID, RequestId};
use crate::deployments::{ErrorFormat, NotServing, Served};
use crate::probes;
use crate::problem::Problem;
use crate::request_body::{Capped, State};
use crate::server::Shared;
use corral_runtime::{Body, Call};
use http::header::{CONTENT_LENGTH, EXPECT, HOST};
use http::uri::{Authority, Parts, Scheme};
use http::{HeaderMap, Request, Response, StatusCode, Uri};
use hyper::body::Incoming;
use std::sync::Arc;
use std::time::Duration;

/// Answers one request; errors become problems.
pub(crate) async fn answer(shared: Arc<Shared>, request: Request<Incoming>) -> Response<Observed> {
    let id = shared.request_ids.next();
    let exchange = Exchange::begin(&shared.traffic, id, request.method(), request.uri().path());
    let mut served = None;
    let response = match route(&shared, id, request, &mut served).await {
        Ok(response) => response,
        Err(problem) => {
            // A full queue or a model that is being loaded is no news for each request.
            match problem.status() {
                StatusCode::SERVICE_UNAVAILABLE => tracing::debug!(%id, ?problem, "not now"),
                status if status.is_server_error() => {
                    tracing::warn!(%id, ?problem, "request failed");
                }
                _ => {}
            }
            match served {
                Some((served, format)) => {
                    served.standing.refused(problem.code());
                    problem.into_response_as(format)
                }
                None => problem.into_response(),
            }
        }
    };
    exchange.answer(response)
}

/// Lets the plugin answer whose route it is. `served` gets the deployment, as soon as it is known, and
/// how its errors look.
async fn route(
    shared: &Shared,
    id: RequestId,
    request: Request<Incoming>,
    served: &mut Option<(Arc<Served>, ErrorFormat)>,
) -> Result<Response<Body>, Problem> {
    let (mut head, body) = request.into_parts();
    // Wherever this ends early, what is left of the body is thrown away.
    let (mut body, mark) = Capped::new(body, linger(shared, &head.headers));
    let path = head.uri.path();
    if let Some(answer) = probes::answer(shared, &head.method, path) {
        return answer;
    }
    let Some(house) = shared.house.get() else {
        return Err(probes::not_ready(&shared.missing()));
    };
    let Some(deployment) = house.deployments.find(path) else {
        return Err(Problem::no_route(path));
    };
    deployment.standing.request();
    *served = Some((Arc::clone(&deployment), deployment.error_format()));
    let (plugin, format) = deployment
        .pick()
        .map_err(|why| not_serving(&deployment.name, &why))?;
    *served = Some((Arc::clone(&deployment), format));
    let limit = plugin.limits().request_bytes as u64;
    if announced_length(&head.headers).is_some_and(|length| length > limit) {
        return Err(Problem::too_large(limit));
    }
    body.limit(limit);
    head.uri = absolute(head.uri, &head.headers)?;
    head.headers.insert(REQUEST_ID, id.header());
    head.extensions.insert(Call {
        id: Some(id.to_string()),
        ..Call::default()
    });
    let answered = plugin.handle(Request::from_parts(head, body)).await;
    match (mark.state(), answered) {
        (State::TooLarge, _) => Err(Problem::too_large(limit)),
        (State::Broken, Err(_)) => Err(bad_request(
            "the request's body was not sent to its end, or not as HTTP wants it; send it again",
        )),
        (_, answered) => Ok(answered?),
    }
}

/// How long to read on after an early answer. Not at all for who waits to be asked for the body:
/// nothing is on the way, and reading would ask for it.
fn linger(shared: &Shared, headers: &HeaderMap) -> Option<Duration> {
    (!headers.contains_key(EXPECT)).then_some(shared.limits.discard_time)
}

/// The deployment is there, but an operator has to do something first.
fn not_serving(name: &str, why: &NotServing) -> Problem {
    let (code, detail) = match why {
        NotServing::Paused => ("paused", format!("'{name}' is paused; try again later")),
        NotServing::Failed => (
            "deployment-failed",
            format!(
                "'{name}' could not be loaded; its operator sees why with 'corral show {name}'"
            ),
        ),
    };
    Problem::new(StatusCode::SERVICE_UNAVAILABLE, code, detail).retry_after(Duration::from_secs(5))
}

fn bad_request(detail: &str) -> Problem {
    Problem::new(StatusCode::BAD_REQUEST, "bad-request", detail)
}

/// The body's length as the client announced it; hyper has checked the header.
fn announced_length(headers: &HeaderMap) -> Option<u64> {
    headers.get(CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
}

/// The request's target with scheme and authority, which WASI gives a plugin apart from the path.
/// Path and query stay as they came.
fn absolute(target: Uri, headers: &HeaderMap) -> Result<Uri, Problem> {
    let mut parts: Parts = target.into_parts();
    parts.scheme = Some(Scheme::HTTP);
    if parts.authority.is_none() {
        let mut hosts = headers.get_all(HOST).iter();
        let host = match (hosts.next(), hosts.next()) {
            (Some(host), None) => host,
            (None, _) => return Err(bad_request("the request has no Host header; send one")),
            (Some(_), Some(_)) => {
                return Err(bad_request("the request has two Host headers; send one"));
            }
        };
        let authority = host
            .to_str()
            .ok()
            .and_then(|host| host.parse::<Authority>().ok())
            .ok_or_else(|| bad_request("the Host header is no host; send HOST or HOST:PORT"))?;
        parts.authority = Some(authority);
    }
    Uri::from_parts(parts)
        .map_err(|_| bad_request("the request's target is no path; send one that begins with '/'"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;

    fn with_host(host: &'static str) -> HeaderMap {
        HeaderMap::from_iter([(HOST, HeaderValue::from_static(host))])
    }

    #[test]
    fn the_target_gets_its_host_and_keeps_its_path() {
        let target = Uri::from_static("/a%20b/../c?d=e&f");
        let uri = absolute(target, &with_host("example:8080")).expect("good");
        assert_eq!(uri, "http://example:8080/a%20b/../c?d=e&f");
        let target = Uri::from_static("http://other/x");
        let uri = absolute(target, &with_host("example")).expect("good");
        assert_eq!(uri, "http://other/x", "an absolute target goes first");
    }

    #[test]
    fn a_request_without_one_host_is_bad_request() {
        let target = Uri::from_static("/x");
        let mut two = with_host("a");
        two.append(HOST, HeaderValue::from_static("b"));
        for headers in [HeaderMap::new(), two, with_host("a b"), with_host("")] {
            let problem = absolute(target.clone(), &headers).expect_err("bad");
            assert_eq!(problem.status(), 400, "{headers:?}");
        }
    }
}
