//! Public requests: probes, and the routes of the deployments.

use crate::api_keys::KeyHolder;
use crate::connection_info::ConnectionInfo;
use crate::deployments::{ServingDeployment, Unavailable};
use crate::listener::StreamEnd;
use crate::probes;
use crate::problem::{Problem, explain_response};
use crate::public_metrics;
use crate::request_body::{BodyState, RequestBody};
use crate::request_id::{HttpRequestId, REQUEST_ID};
use crate::request_log::{LoggedBody, RequestDetails, RequestLog};
use crate::response_policy::ResponsePolicy;
use crate::running_requests::{AdmittedRequest, RequestSource};
use crate::state::ServerState;
use crate::triggers::attempt::HOST_HEADERS;
use crate::triggers::{job_routes, messages};
use corral_runtime::{Body, CallError, CallLimit, CallOptions, LastLine};
use http::header::{CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, EXPECT, HOST, ORIGIN};
use http::uri::{Authority, Parts, Scheme};
use http::{HeaderMap, HeaderName, Method, Request, Response, StatusCode, Uri};
use hyper::body::Incoming;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, oneshot};

/// `Retry-After` of a deployment that an operator has to repair or resume.
const UNAVAILABLE_RETRY: Duration = Duration::from_secs(5);
/// `Retry-After` of a deployment that is being compiled, which takes seconds while developing.
const COMPILING_RETRY: Duration = Duration::from_secs(1);

/// The header in which a plugin names fields of the request that it ignored.
pub(crate) const IGNORED_FIELDS: HeaderName = HeaderName::from_static("x-corral-ignored");

/// Answers one request; errors become problems.
pub(crate) async fn answer(
    state: Arc<ServerState>,
    request: Request<Incoming>,
) -> Response<LoggedBody> {
    answer_from(state, request, RequestSource::Public, None).await
}

/// The same for a request from `source`. `permit` is held until the end of the response.
pub(crate) async fn answer_from(
    state: Arc<ServerState>,
    request: Request<Incoming>,
    source: RequestSource,
    permit: Option<OwnedSemaphorePermit>,
) -> Response<LoggedBody> {
    let id = state.request_ids.next();
    let id_text = id.text();
    let mut log = RequestLog::begin(
        &state.counters,
        Arc::clone(&id_text),
        request.method(),
        request.uri().path(),
    );
    log.details.console_permit = permit;
    let telemetry = state.telemetry.as_ref();
    log.details.trace = telemetry.and_then(|telemetry| telemetry.trace_request(&request));
    let (cancel, mut canceled) = oneshot::channel();
    let origin = request.headers().get(ORIGIN).cloned();
    let is_head = request.method() == Method::HEAD;
    let mut response_policy = ResponsePolicy::default();
    let last_error_line = state.develop.then(Arc::<LastLine>::default);
    let answered = route(
        &state,
        Identity {
            id,
            id_text,
            source,
            cancel,
        },
        request,
        &mut log.details,
        &mut response_policy,
        last_error_line.clone(),
    );
    let answered = tokio::select! {
        // An answer that is there counts, so that a request is either answered or canceled.
        biased;
        answered = answered => answered,
        // The sender may be gone without a word: the request is not listed.
        Ok(()) = &mut canceled => Err(CallError::Canceled.into()),
    };
    // Before its sender, whose end would wake this task once more.
    drop(canceled);
    let mut response = match answered {
        Ok(response) => with_stream_end(response, &response_policy, last_error_line),
        Err(problem) => {
            // 503 is routine: a full queue, or a model that is being loaded.
            match problem.status() {
                StatusCode::SERVICE_UNAVAILABLE => {
                    tracing::debug!(request_id = %id, ?problem, "unavailable");
                }
                status if status.is_server_error() => {
                    tracing::warn!(request_id = %id, ?problem, "request failed");
                }
                _ => {}
            }
            if let Some(deployment) = &log.details.deployment {
                let deployment_state = &deployment.context.deployment;
                deployment_state.count_refused_request(problem.code());
            }
            problem.into_response_as(response_policy.format)
        }
    };
    let cors = &response_policy.cors;
    cors.apply(origin.as_ref(), response.headers_mut());
    if is_head {
        // hyper would send the body over HTTP/2. The headers stay those of `GET`.
        *response.body_mut() = Body::empty();
    }
    log.answer(response)
}

/// What a request is, beside its content.
struct Identity {
    id: HttpRequestId,
    /// The id as it is displayed.
    id_text: Arc<str>,
    source: RequestSource,
    /// Ends the wait for its answer.
    cancel: oneshot::Sender<()>,
}

/// Passes the request to the plugin that owns the route. Sets `details` and `response_policy` as they become known, also
/// for an error.
async fn route(
    state: &ServerState,
    identity: Identity,
    request: Request<Incoming>,
    details: &mut RequestDetails,
    response_policy: &mut ResponsePolicy,
    last_error_line: Option<Arc<LastLine>>,
) -> Result<Response<Body>, Problem> {
    let Identity {
        id,
        id_text,
        source,
        cancel,
    } = identity;
    let (mut head, body) = request.into_parts();
    // Every early return drops the body, which discards its rest.
    let discard_time = discard_time(state, &head.headers);
    let idle_timeout = state.limits.body_idle_timeout;
    let (mut body, body_status) = RequestBody::new(body, discard_time, idle_timeout);
    let path = head.uri.path();
    if let Some(answer) = probes::answer(state, &head.method, path) {
        details.is_probe = true;
        return answer;
    }
    if let Some(answer) = public_metrics::answer(state, &head.method, path) {
        details.is_probe = true;
        return answer;
    }
    let services = match state.services() {
        Ok(services) => services,
        Err(not_ready) => {
            *response_policy = state.starting.find(path);
            let cors = &response_policy.cors;
            let preflight = cors.preflight(&head.method, &head.headers);
            let preflight = preflight.map(|answer| answer.map(|()| Body::empty()));
            return preflight.ok_or(not_ready);
        }
    };
    if let Some(target) = job_routes::target(&services.deployments, path) {
        let request = (head, body, body_status);
        let deployments = &services.deployments;
        // Boxed, like the other rare answers, so that the future of each request stays small.
        return Box::pin(job_routes::answer(
            state,
            deployments,
            target,
            request,
            details,
            response_policy,
        ))
        .await;
    }
    if let Some(subject) = messages::target(&services.deployments, path) {
        let subject = subject.to_owned();
        let request = (head, body, body_status);
        let deployments = &services.deployments;
        let answer = messages::answer(state, deployments, &subject, request, details);
        return Box::pin(answer).await;
    }
    let Some(deployment) = services.deployments.find(path) else {
        let no_jobs = job_routes::no_jobs(&services.deployments, path);
        let unused = no_jobs.or_else(|| messages::no_subscriber(path));
        return Err(unused.unwrap_or_else(|| Problem::no_route(path)));
    };
    for name in HOST_HEADERS {
        // A plugin relies on them.
        head.headers.remove(name);
    }
    deployment.count_request();
    details.deployment = Some(deployment.routed(path));
    if let Some(policy) = deployment.first_policy() {
        *response_policy = ResponsePolicy::of(policy, path);
    }
    let (plugin, policy) = deployment
        .pick()
        .map_err(|reason| unavailable(&deployment, &reason, state.develop))?;
    *response_policy = ResponsePolicy::of(policy, path);
    details.revision = plugin.revision();
    if let Some(preflight) = policy.cors.preflight(&head.method, &head.headers) {
        return Ok(preflight.map(|()| Body::empty()));
    }
    let keys = state.api_keys.as_deref();
    let holder = match source {
        RequestSource::Console { has_token: true } => None,
        RequestSource::Public | RequestSource::Console { has_token: false } => {
            policy.authenticate(keys, &deployment.name, &mut head.headers)?
        }
    };
    let names = |holder: &KeyHolder| [holder.key_name.clone(), holder.tenant_name.clone()];
    details.key = holder.as_ref().map(names);
    details.listed = Some(state.running.list(AdmittedRequest {
        id,
        source,
        method: &head.method,
        path,
        deployment: &deployment.name,
        revision: details.revision,
        key: details.key.clone(),
        usage: &details.usage,
        cancel,
    }));
    let hints = state.trusted_proxies.hints(&head.headers, &head.extensions);
    let tenant = holder.as_ref().map(|holder| holder.tenant);
    if let Some(memory) = state.memory.get() {
        details.memory_permit = Some(memory.admit(tenant).await?);
    }
    let quota_permit = policy.acquire_quotas(holder.as_ref())?;
    let limit = plugin.limits().request_bytes as u64;
    let deployment_context = Arc::clone(&deployment.context);
    body.set_limit(limit, move || {
        deployment_context
            .deployment
            .count_limit_hit(CallLimit::RequestBytes);
    });
    if body.refuse_announced_length(&head.headers) {
        return Err(Problem::too_large(limit));
    }
    let is_tls = head
        .extensions
        .get::<ConnectionInfo>()
        .is_some_and(|connection| connection.is_tls);
    head.uri = absolute_uri(head.uri, &head.headers, is_tls)?;
    let id_header = HttpRequestId::header(&id_text);
    head.headers.insert(REQUEST_ID, id_header);
    if let Some(trace) = &details.trace {
        trace.set_headers(&mut head.headers);
    }
    let options = CallOptions {
        id: Some(id_text),
        tenant,
        key_name: holder.as_ref().map(|holder| Arc::clone(&holder.key_name)),
        tenant_name: holder.map(|holder| holder.tenant_name),
        quota_permit,
        usage: Some(Arc::clone(&details.usage)),
        last_error_line: last_error_line.clone(),
        fairness_tenant: hints.tenant,
        first_token: hints.first_token,
        trace: details.trace.clone().map(|trace| trace as _),
        ..CallOptions::default()
    };
    let answer = plugin
        .handle(Request::from_parts(head, body), options)
        .await;
    match (body_status.state(), answer) {
        (BodyState::TooLarge, _) => Err(Problem::too_large(limit)),
        (BodyState::Stalled, _) => Err(Problem::body_stalled(idle_timeout)),
        (BodyState::Broken, Err(_)) => Err(Problem::body_incomplete()),
        (_, answer) => {
            let last_line = last_error_line.as_deref();
            let mut response = answer.map_err(|error| Problem::of_call(error, last_line))?;
            if let Some(last_line) = last_line {
                let explained = explain_response(response, last_line);
                response = Box::pin(explained).await?;
            }
            policy.cors.remove_plugin_headers(response.headers_mut());
            if response.headers().contains_key(IGNORED_FIELDS) {
                deployment.context.deployment.count_ignored_fields();
            }
            Ok(response)
        }
    }
}

/// How long to discard the rest of the body after an early answer. `None` for `Expect: 100-continue`:
/// the client sends nothing yet, and reading would ask for the body.
fn discard_time(state: &ServerState, headers: &HeaderMap) -> Option<Duration> {
    (!headers.contains_key(EXPECT)).then_some(state.limits.discard_timeout)
}

/// The deployment exists, but it is still compiled, or an operator has to act first.
pub(crate) fn unavailable(
    deployment: &ServingDeployment,
    reason: &Unavailable,
    develop: bool,
) -> Problem {
    let name = &deployment.name;
    let (code, detail, retry) = match reason {
        Unavailable::Paused => (
            "paused",
            format!("'{name}' is paused; try again later"),
            UNAVAILABLE_RETRY,
        ),
        Unavailable::Compiling => (
            "compiling",
            format!("'{name}' is being compiled; try again in a moment"),
            COMPILING_RETRY,
        ),
        Unavailable::LoadFailed if develop => (
            "deployment-failed",
            format!("'{name}' could not be loaded: {}", deployment.load_errors()),
            UNAVAILABLE_RETRY,
        ),
        Unavailable::LoadFailed => (
            "deployment-failed",
            format!("'{name}' could not be loaded; 'corral show {name}' tells its operator why"),
            UNAVAILABLE_RETRY,
        ),
    };
    Problem::new(StatusCode::SERVICE_UNAVAILABLE, code, detail).retry_after(retry)
}

/// Attaches what ends a stream that fails, or that a shutdown ends.
fn with_stream_end(
    mut response: Response<Body>,
    policy: &ResponsePolicy,
    last_error_line: Option<Arc<LastLine>>,
) -> Response<Body> {
    let headers = response.headers();
    let content_type = headers.get(CONTENT_TYPE);
    let format = content_type.and_then(|value| policy.stream_format(value.as_bytes()));
    let can_append =
        !headers.contains_key(CONTENT_LENGTH) && !headers.contains_key(CONTENT_ENCODING);
    if let Some(format) = format
        && can_append
    {
        let end = StreamEnd {
            format,
            last_error_line,
        };
        response.extensions_mut().insert(end);
    }
    response
}

/// The request's target with scheme and authority, which WASI passes to a plugin apart from the path.
/// Path and query stay unchanged.
fn absolute_uri(target: Uri, headers: &HeaderMap, is_tls: bool) -> Result<Uri, Problem> {
    let mut parts: Parts = target.into_parts();
    // The scheme of the connection, whatever the client wrote.
    parts.scheme = Some(if is_tls { Scheme::HTTPS } else { Scheme::HTTP });
    if parts.authority.is_none() {
        let mut hosts = headers.get_all(HOST).iter();
        let host = match (hosts.next(), hosts.next()) {
            (Some(host), None) => host,
            (None, _) => {
                return Err(Problem::bad_request(
                    "the request has no Host header; send one",
                ));
            }
            (Some(_), Some(_)) => {
                return Err(Problem::bad_request(
                    "the request has two Host headers; send one",
                ));
            }
        };
        let host = host.to_str().ok();
        let authority = host.and_then(|host| host.parse::<Authority>().ok());
        parts.authority = Some(authority.ok_or_else(|| {
            Problem::bad_request("the Host header is not a host; send HOST or HOST:PORT")
        })?);
    }
    Uri::from_parts(parts).map_err(|_| {
        Problem::bad_request("the request's target is not a path; send one that begins with '/'")
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;

    fn with_host(host: &'static str) -> HeaderMap {
        HeaderMap::from_iter([(HOST, HeaderValue::from_static(host))])
    }

    #[test]
    fn target_gets_host_and_keeps_path() {
        let target = Uri::from_static("/a%20b/../c?d=e&f");
        let uri = absolute_uri(target, &with_host("example:8080"), false).expect("good");
        assert_eq!(uri, "http://example:8080/a%20b/../c?d=e&f");
        let target = Uri::from_static("http://other/x");
        let uri = absolute_uri(target, &with_host("example"), true).expect("good");
        assert_eq!(uri, "https://other/x", "an absolute target wins over Host");
    }

    #[test]
    fn only_plain_streams_get_an_end() {
        let with = |headers: &[(http::HeaderName, &'static str)]| {
            let mut response = Response::new(Body::empty());
            for (name, value) in headers {
                response
                    .headers_mut()
                    .insert(name, HeaderValue::from_static(value));
            }
            let response = with_stream_end(response, &ResponsePolicy::default(), None);
            response.extensions().get::<StreamEnd>().is_some()
        };
        assert!(with(&[(CONTENT_TYPE, "text/event-stream")]));
        assert!(!with(&[]));
        assert!(!with(&[(CONTENT_TYPE, "application/json")]));
        let events = (CONTENT_TYPE, "text/event-stream");
        assert!(!with(&[events.clone(), (CONTENT_ENCODING, "gzip")]));
        assert!(!with(&[events, (CONTENT_LENGTH, "5")]));
    }

    #[test]
    fn request_without_single_host_answers_400() {
        let target = Uri::from_static("/x");
        let mut two = with_host("a");
        two.append(HOST, HeaderValue::from_static("b"));
        for headers in [HeaderMap::new(), two, with_host("a b"), with_host("")] {
            let problem = absolute_uri(target.clone(), &headers, false).expect_err("bad");
            assert_eq!(problem.status(), 400, "{headers:?}");
        }
    }
}
