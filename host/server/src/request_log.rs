//! One access log line and the counters for each request.
//!
//! A [`RequestLog`] travels inside the response body, so it observes the end of the answer, or that the
//! client disconnected before it.

use crate::deployments::DeploymentContext;
use crate::http_counters::{CounterGuard, HttpCounters};
use crate::memory_guard::MemoryPermit;
use crate::request_id::{HttpRequestId, REQUEST_ID};
use crate::routes::Route;
use crate::running_requests::ListedRequest;
use crate::telemetry::{HttpRecord, RequestTrace, TraceCaller};
use bytes::Bytes;
use corral_engine::TokenUsage;
use corral_runtime::{Body, CallError, CallTrace, PolledFrame};
use http::header::CONTENT_LENGTH;
use http::{Method, Response};
use http_body::{Body as _, SizeHint};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;
use tokio::sync::OwnedSemaphorePermit;

/// Longest part of a path in the log.
const MAX_PATH_CHARS: usize = 256;

/// What routing learns about a request.
#[derive(Default)]
pub(crate) struct RequestDetails {
    /// The deployment that owns the route.
    pub(crate) deployment: Option<RoutedDeployment>,
    /// Number of the revision that was picked, if it has one.
    pub(crate) revision: Option<u64>,
    /// Whether it is a probe. Probes have no log line: they are frequent and all alike.
    pub(crate) is_probe: bool,
    /// Names of the API key and its tenant.
    pub(crate) key: Option<[Arc<str>; 2]>,
    /// Tokens of its generations.
    pub(crate) usage: Arc<TokenUsage>,
    /// Held until the answer ends. A request that is not in flight has none.
    pub(crate) memory_permit: Option<MemoryPermit>,
    /// Lists the request while a deployment answers it.
    pub(crate) listed: Option<ListedRequest>,
    /// Its trace, if traces are sent.
    pub(crate) trace: Option<Arc<RequestTrace>>,
    /// One of the calls through the admin listener.
    pub(crate) console_permit: Option<OwnedSemaphorePermit>,
}

/// The deployment that answers a request. It holds no plugin, so that a slow client keeps none loaded.
pub(crate) struct RoutedDeployment {
    pub(crate) name: Arc<str>,
    /// The route that the path matches.
    pub(crate) route: Option<Route>,
    pub(crate) context: Arc<DeploymentContext>,
}

/// A request in progress. Dropping it writes the access log line.
pub(crate) struct RequestLog {
    /// Dropped first, with its permit of memory.
    pub(crate) details: RequestDetails,
    in_flight: CounterGuard,
    id: Arc<str>,
    method: Method,
    path: String,
    started: Instant,
    /// None until the head of the answer is known.
    status: Option<u16>,
    bytes: u64,
    /// The answer's `Content-Length`: hyper drops the body after that many bytes.
    content_length: Option<u64>,
    complete: bool,
}

impl RequestLog {
    pub(crate) fn begin(
        counters: &Arc<HttpCounters>,
        id: Arc<str>,
        method: &Method,
        path: &str,
    ) -> Self {
        RequestLog {
            in_flight: counters.count_request(),
            id,
            method: method.clone(),
            path: path.chars().take(MAX_PATH_CHARS).collect(),
            details: RequestDetails::default(),
            started: Instant::now(),
            status: None,
            bytes: 0,
            content_length: None,
            complete: false,
        }
    }

    /// Records the answer's head and attaches this log to its body.
    pub(crate) fn answer(mut self, response: Response<Body>) -> Response<LoggedBody> {
        let status = response.status();
        self.in_flight.counters().count_response(status);
        if let Some(deployment) = &self.details.deployment {
            deployment.context.http.count_response(status);
        }
        if let Some(listed) = &self.details.listed {
            listed.answered(response.body().canceler());
        }
        self.status = Some(status.as_u16());
        self.content_length = response
            .headers()
            .get(CONTENT_LENGTH)
            .and_then(|length| length.to_str().ok()?.parse().ok());
        // hyper does not poll a body that is known to be empty, nor that of a HEAD request.
        self.complete = response.body().is_end_stream()
            || self.content_length == Some(0)
            || self.method == Method::HEAD;
        let id = HttpRequestId::header(&self.id);
        let mut response = response.map(|body| LoggedBody {
            body,
            log: Some(self),
        });
        response.headers_mut().insert(REQUEST_ID, id);
        response
    }
}

impl RequestLog {
    /// What the request's span says.
    fn trace_record(&self) -> HttpRecord {
        let details = &self.details;
        let deployment = details.deployment.as_ref();
        let route = deployment.and_then(|deployment| deployment.route.as_ref());
        let key = details.key.as_ref();
        HttpRecord {
            method: self.method.as_str().to_owned(),
            path: self.path.clone(),
            request_id: self.id.to_string(),
            status: self.status,
            route: route.map(Route::to_string),
            response_bytes: self.bytes,
            is_complete: self.complete,
            caller: TraceCaller {
                deployment: deployment.map(|deployment| Arc::clone(&deployment.name)),
                revision: details.revision,
                tenant: key.map(|[_, tenant]| Arc::clone(tenant)),
                key: key.map(|[key, _]| Arc::clone(key)),
            },
        }
    }
}

impl Drop for RequestLog {
    fn drop(&mut self) {
        if !self.complete {
            self.in_flight.counters().count_aborted();
        }
        let time = self.started.elapsed();
        let details = &self.details;
        let deployment = details.deployment.as_ref();
        if let Some(deployment) = deployment {
            deployment.context.http.request_ended(time);
        }
        if details.is_probe {
            return;
        }
        tracing::info!(
            target: "corral::access",
            method = %self.method,
            path = self.path,
            status = self.status,
            duration_ms = time.as_micros() as f64 / 1e3,
            route = deployment
                .and_then(|deployment| deployment.route.as_ref())
                .map(Route::as_str),
            deployment = deployment.map(|deployment| &*deployment.name),
            revision = details.revision,
            key = details.key.as_ref().map(|[key, _]| &**key),
            tenant = details.key.as_ref().map(|[_, tenant]| &**tenant),
            prompt_tokens = details.usage.prompt(),
            cached_tokens = details.usage.cached(),
            generated_tokens = details.usage.generated(),
            response_bytes = self.bytes,
            complete = self.complete,
            request_id = %self.id,
            trace_id = details.trace.as_deref().map(CallTrace::id),
            "request"
        );
        if let Some(trace) = &details.trace {
            trace.request_ended(|| self.trace_record());
        }
    }
}

/// A response body that records in the [`RequestLog`] how the answer ended.
pub(crate) struct LoggedBody {
    body: Body,
    /// `None` on the admin listener, which logs nothing.
    log: Option<RequestLog>,
}

impl From<Body> for LoggedBody {
    fn from(body: Body) -> Self {
        LoggedBody { body, log: None }
    }
}

impl http_body::Body for LoggedBody {
    type Data = Bytes;
    type Error = CallError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> PolledFrame {
        let polled = Pin::new(&mut self.body).poll_frame(cx);
        let ends_here = self.body.is_end_stream();
        if let Some(log) = &mut self.log {
            match &polled {
                Poll::Ready(Some(Ok(frame))) => {
                    log.bytes += frame.data_ref().map_or(0, |data| data.len() as u64);
                    log.complete =
                        ends_here || log.content_length.is_some_and(|length| log.bytes >= length);
                }
                Poll::Ready(Some(Err(error))) => {
                    tracing::warn!(request_id = %log.id, path = log.path, %error, "answer cut off");
                }
                Poll::Ready(None) => log.complete = true,
                Poll::Pending => {}
            }
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request_id::RequestIdGenerator;

    #[test]
    fn request_dropped_early_counts_as_aborted() {
        let counters = Arc::new(HttpCounters::default());
        let ids = RequestIdGenerator::default();
        let begin = || RequestLog::begin(&counters, ids.next().text(), &Method::GET, "/x");
        let aborted = || {
            let mut families = crate::prometheus::MetricFamilies::default();
            counters.write(&mut families);
            families
                .text()
                .contains("\ncorral_http_requests_aborted_total 1\n")
        };
        drop(begin().answer(Response::new(Body::empty())));
        assert!(!aborted(), "an empty answer is complete");
        drop(begin().answer(Response::new(Body::from("not read"))));
        assert!(aborted());
    }
}
