//! The public listener: probes, and the plugins behind their routes.

use crate::access::{Exchange, Observed, REQUEST_ID, RequestId};
use crate::deployments::{NotServing, Served};
use crate::listener::{Arrival, Farewell};
use crate::probes;
use crate::problem::{ErrorFormat, Problem};
use crate::request_body::{Capped, State};
use crate::server::Shared;
use corral_runtime::{Body, CallLimit, CallOptions};
use http::header::{CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, EXPECT, HOST};
use http::uri::{Authority, Parts, Scheme};
use http::{HeaderMap, Request, Response, StatusCode, Uri};
use hyper::body::Incoming;
use std::sync::Arc;
use std::time::Duration;

/// Answers one request; errors become problems.
pub(crate) async fn answer(shared: Arc<Shared>, request: Request<Incoming>) -> Response<Observed> {
    let id = shared.request_ids.next();
    let exchange = Exchange::begin(&shared.traffic, id, request.method(), request.uri().path());
    let mut known = Known::default();
    let response = match route(&shared, id, request, &mut known).await {
        Ok(response) => with_farewell(response, known.format),
        Err(problem) => {
            // A full queue or a model that is being loaded is no news for each request.
            match problem.status() {
                StatusCode::SERVICE_UNAVAILABLE => tracing::debug!(%id, ?problem, "not now"),
                status if status.is_server_error() => {
                    tracing::warn!(%id, ?problem, "request failed");
                }
                _ => {}
            }
            if let Some(served) = known.served {
                served
                    .standing
                    .deployment
                    .count_refused_request(problem.code());
            }
            problem.into_response_as(known.format)
        }
    };
    exchange.answer(response, known.key)
}

/// What became known of a request on its way, however far it got.
#[derive(Default)]
struct Known {
    /// How the errors of the deployment look.
    format: ErrorFormat,
    /// The name of the key that it came with.
    key: Option<Arc<str>>,
    /// The deployment whose route it took.
    served: Option<Arc<Served>>,
}

/// Lets the plugin answer whose route it is.
async fn route(
    shared: &Shared,
    id: RequestId,
    request: Request<Incoming>,
    known: &mut Known,
) -> Result<Response<Body>, Problem> {
    let (mut head, body) = request.into_parts();
    // Wherever this ends early, what is left of the body is thrown away.
    let limits = &shared.limits;
    let (mut body, mark) = Capped::new(body, linger(shared, &head.headers), limits.body_time);
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
    deployment.standing.deployment.count_request();
    known.format = deployment.error_format();
    known.served = Some(Arc::clone(&deployment));
    let (plugin, terms) = deployment
        .pick()
        .map_err(|why| not_serving(&deployment.name, &why))?;
    known.format = terms.errors;
    if let Some(keys) = &shared.keys {
        keys.refresh().await;
    }
    let keys = shared.keys.as_deref();
    let admitted = terms.admit(keys, &deployment.name, &mut head.headers)?;
    known.key = admitted.visitor.as_ref().map(|visitor| visitor.key.clone());
    let limit = plugin.limits().request_bytes as u64;
    if announced_length(&head.headers).is_some_and(|length| length > limit) {
        deployment
            .standing
            .deployment
            .count_limit_hit(CallLimit::RequestBytes);
        return Err(Problem::too_large(limit));
    }
    let standing = Arc::clone(&deployment.standing);
    body.limit(limit)
        .when_too_large(move || standing.deployment.count_limit_hit(CallLimit::RequestBytes));
    let secure = head
        .extensions
        .get::<Arrival>()
        .is_some_and(|arrival| arrival.secure);
    head.uri = absolute(head.uri, &head.headers, secure)?;
    head.headers.insert(REQUEST_ID, id.header());
    let options = CallOptions {
        id: Some(id.to_string()),
        tenant: admitted.visitor.as_ref().map(|visitor| visitor.tenant),
        quota_permit: admitted.quota_permit,
        ..CallOptions::default()
    };
    let request = Request::from_parts(head, body);
    let answered = plugin.handle(request, options).await;
    match (mark.state(), answered) {
        (State::TooLarge, _) => Err(Problem::too_large(limit)),
        (State::Stalled, _) => Err(Problem::new(
            StatusCode::REQUEST_TIMEOUT,
            "request-stalled",
            format!(
                "nothing came of the request's body for {} s; send it without such pauses",
                limits.body_time.as_secs_f32()
            ),
        )),
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

/// Gives a stream of events what to end with when the server has to end it.
fn with_farewell(mut response: Response<Body>, format: ErrorFormat) -> Response<Body> {
    let headers = response.headers();
    let is_events = headers.get(CONTENT_TYPE).is_some_and(|value| {
        let kind = value.as_bytes().split(|byte| *byte == b';').next();
        kind.is_some_and(|kind| kind.trim_ascii().eq_ignore_ascii_case(b"text/event-stream"))
    });
    let as_it_stands =
        !headers.contains_key(CONTENT_LENGTH) && !headers.contains_key(CONTENT_ENCODING);
    if is_events && as_it_stands {
        let problem = Problem::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "shutting-down",
            "the server is shutting down and ended this answer before its end; ask again",
        );
        response
            .extensions_mut()
            .insert(Farewell(problem.event(format)));
    }
    response
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
fn absolute(target: Uri, headers: &HeaderMap, secure: bool) -> Result<Uri, Problem> {
    let mut parts: Parts = target.into_parts();
    // As the connection is, whatever the client wrote.
    parts.scheme = Some(if secure { Scheme::HTTPS } else { Scheme::HTTP });
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
        let uri = absolute(target, &with_host("example:8080"), false).expect("good");
        assert_eq!(uri, "http://example:8080/a%20b/../c?d=e&f");
        let target = Uri::from_static("http://other/x");
        let uri = absolute(target, &with_host("example"), true).expect("good");
        assert_eq!(uri, "https://other/x", "an absolute target goes first");
    }

    #[test]
    fn only_plain_streams_of_events_have_a_farewell() {
        let with = |headers: &[(http::HeaderName, &'static str)]| {
            let mut response = Response::new(Body::empty());
            for (name, value) in headers {
                response
                    .headers_mut()
                    .insert(name, HeaderValue::from_static(value));
            }
            let response = with_farewell(response, ErrorFormat::Problem);
            response.extensions().get::<Farewell>().is_some()
        };
        assert!(with(&[(CONTENT_TYPE, "text/event-stream")]));
        assert!(with(&[(CONTENT_TYPE, "Text/Event-Stream ; charset=utf-8")]));
        assert!(!with(&[]));
        assert!(!with(&[(CONTENT_TYPE, "application/json")]));
        let events = (CONTENT_TYPE, "text/event-stream");
        assert!(!with(&[events.clone(), (CONTENT_ENCODING, "gzip")]));
        assert!(!with(&[events, (CONTENT_LENGTH, "5")]));
    }

    #[test]
    fn a_request_without_one_host_is_bad_request() {
        let target = Uri::from_static("/x");
        let mut two = with_host("a");
        two.append(HOST, HeaderValue::from_static("b"));
        for headers in [HeaderMap::new(), two, with_host("a b"), with_host("")] {
            let problem = absolute(target.clone(), &headers, false).expect_err("bad");
            assert_eq!(problem.status(), 400, "{headers:?}");
        }
    }
}
