//! The trace of one HTTP request or job: what happened in it, and when.
//!
//! The request, its call and its generations share a [`RequestTrace`]. The last of them to drop it hands what was
//! recorded to the queue of the exporter, which makes the spans, so that no request does. Nothing is recorded of a trace
//! that is not sampled.

use super::Telemetry;
use super::context::{TRACE_PARENT, TRACE_STATE, TraceContext};
use crate::clock::now;
use crate::connection_info::ConnectionInfo;
use corral_engine::{GenerationRecord, GenerationSink};
use corral_runtime::{CallError, CallTrace, EmbeddingRecord, OutboundRequest, TraceHeaders};
use http::header::{HOST, USER_AGENT};
use http::{HeaderMap, Request, Version};
use std::fmt;
use std::mem::take;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Most generations, embeddings and outgoing requests, each, in one trace. Further ones are counted as dropped.
const MAX_RECORDS: usize = 128;
/// Longest part of a header in a span.
const MAX_HEADER_CHARS: usize = 256;

/// Identifies a span.
pub(super) type SpanBytes = [u8; 8];

/// A random id.
pub(super) fn new_span_id() -> SpanBytes {
    // Zero is invalid.
    rand::random::<u64>().max(1).to_be_bytes()
}

/// What the span at the top of a trace describes.
#[derive(Debug)]
pub(super) enum Root {
    Http(HttpRecord),
    Job(JobAttempt),
}

/// One HTTP request, once its response has ended.
#[derive(Debug, Default)]
pub(crate) struct HttpRecord {
    pub(crate) method: String,
    pub(crate) path: String,
    pub(crate) request_id: String,
    pub(crate) status: Option<u16>,
    pub(crate) route: Option<String>,
    pub(crate) response_bytes: u64,
    pub(crate) is_complete: bool,
    pub(crate) caller: TraceCaller,
}

/// Connection and headers of the client.
#[derive(Debug, Default)]
pub(super) struct ClientRecord {
    pub(super) is_tls: bool,
    /// `HOST` or `HOST:PORT`, as the client names the server.
    pub(super) host: Option<String>,
    pub(super) version: &'static str,
    pub(super) user_agent: Option<String>,
}

impl ClientRecord {
    fn of<B>(request: &Request<B>) -> Self {
        let header = |name| {
            let value = request.headers().get(name)?.to_str().ok()?;
            Some(value.chars().take(MAX_HEADER_CHARS).collect())
        };
        let authority = request.uri().authority();
        let connection = request.extensions().get::<ConnectionInfo>();
        ClientRecord {
            is_tls: connection.is_some_and(|connection| connection.is_tls),
            host: authority
                .map(|host| host.as_str().chars().take(MAX_HEADER_CHARS).collect())
                .or_else(|| header(HOST)),
            version: match request.version() {
                Version::HTTP_2 => "2",
                Version::HTTP_10 => "1.0",
                _ => "1.1",
            },
            user_agent: header(USER_AGENT),
        }
    }
}

/// One attempt of a job.
#[derive(Debug)]
pub(crate) struct JobAttempt {
    pub(crate) id: String,
    pub(crate) trigger: &'static str,
    pub(crate) attempt: u64,
    pub(crate) caller: TraceCaller,
}

/// Deployment, revision, tenant and key of the request.
#[derive(Debug, Default)]
pub(crate) struct TraceCaller {
    pub(crate) deployment: Option<Arc<str>>,
    pub(crate) revision: Option<u64>,
    pub(crate) tenant: Option<Arc<str>>,
    pub(crate) key: Option<Arc<str>>,
}

/// The records of a trace, ready for export.
#[derive(Debug)]
pub(super) struct FinishedTrace {
    pub(super) context: TraceContext,
    /// The span of the request.
    pub(super) span: SpanBytes,
    /// The span of the call.
    pub(super) call_span: SpanBytes,
    /// The start, on the monotonic clock and since 1970.
    pub(super) began: Instant,
    pub(super) began_at: Duration,
    pub(super) records: Records,
}

#[derive(Debug, Default)]
pub(super) struct Records {
    pub(super) root: Option<Root>,
    pub(super) client: ClientRecord,
    pub(super) ended: Option<Instant>,
    /// Begin and end of the wait in the call queue.
    pub(super) queue: Option<(Instant, Instant)>,
    /// The end of the call, and the code of its error.
    pub(super) call: Option<(Instant, Option<&'static str>)>,
    pub(super) generations: Vec<GenerationRecord>,
    pub(super) embeddings: Vec<EmbeddingRecord>,
    pub(super) outbound: Vec<OutboundRequest>,
    /// Records above [`MAX_RECORDS`].
    pub(super) dropped: u64,
}

/// Collects the records of a request's trace.
pub(crate) struct RequestTrace {
    telemetry: Arc<Telemetry>,
    /// The trace's id, in hexadecimal digits.
    id: String,
    context: TraceContext,
    span: SpanBytes,
    call_span: SpanBytes,
    began: Instant,
    began_at: Duration,
    records: Mutex<Records>,
}

impl fmt::Debug for RequestTrace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("RequestTrace").field(&self.id).finish()
    }
}

impl RequestTrace {
    /// The trace of a request.
    pub(super) fn of_request<B>(telemetry: &Arc<Telemetry>, request: &Request<B>) -> Arc<Self> {
        let context = TraceContext::of(request.headers(), &telemetry.sampler);
        let is_sampled = context.is_sampled;
        let trace = Self::new(telemetry, context);
        if is_sampled {
            trace.lock().client = ClientRecord::of(request);
        }
        trace
    }

    /// A trace of a job's attempt.
    pub(super) fn of_job(telemetry: &Arc<Telemetry>, job: JobAttempt) -> Arc<Self> {
        let trace = Self::new(telemetry, TraceContext::new(&telemetry.sampler));
        trace.lock().root = Some(Root::Job(job));
        trace
    }

    fn new(telemetry: &Arc<Telemetry>, context: TraceContext) -> Arc<Self> {
        Arc::new(RequestTrace {
            telemetry: Arc::clone(telemetry),
            id: context.trace_id.to_string(),
            context,
            span: new_span_id(),
            call_span: new_span_id(),
            began: Instant::now(),
            began_at: now(),
            records: Mutex::default(),
        })
    }

    /// The response of an HTTP request has ended.
    pub(crate) fn request_ended(&self, record: impl FnOnce() -> HttpRecord) {
        if !self.context.is_sampled {
            return;
        }
        let record = record();
        let mut records = self.lock();
        records.root = Some(Root::Http(record));
        records.ended = Some(Instant::now());
    }

    /// Puts the context of the call into the headers of a plugin's request.
    pub(crate) fn set_headers(&self, headers: &mut HeaderMap) {
        headers.insert(TRACE_PARENT, self.context.header(self.call_span));
        match self.context.state_header() {
            Some(state) => drop(headers.insert(TRACE_STATE, state)),
            None => drop(headers.remove(TRACE_STATE)),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Records> {
        // No code under this lock panics midway.
        self.records.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl GenerationSink for RequestTrace {
    fn generation_ended(&self, record: GenerationRecord) {
        let mut records = self.lock();
        match records.generations.len() < MAX_RECORDS {
            true => records.generations.push(record),
            false => records.dropped += 1,
        }
    }
}

impl CallTrace for RequestTrace {
    fn id(&self) -> &str {
        &self.id
    }

    fn is_sampled(&self) -> bool {
        self.context.is_sampled
    }

    fn queued(&self, since: Instant) {
        self.lock().queue = Some((since, Instant::now()));
    }

    fn call_ended(&self, error: Option<&CallError>) {
        self.lock().call = Some((Instant::now(), error.map(CallError::code)));
    }

    fn embedded(&self, embedding: EmbeddingRecord) {
        let mut records = self.lock();
        match records.embeddings.len() < MAX_RECORDS {
            true => records.embeddings.push(embedding),
            false => records.dropped += 1,
        }
    }

    fn outbound_headers(&self) -> TraceHeaders {
        let span = new_span_id();
        TraceHeaders {
            span,
            parent: self.context.header(span),
            state: self.context.state_header(),
        }
    }

    fn outbound_ended(&self, request: OutboundRequest) {
        let mut records = self.lock();
        match records.outbound.len() < MAX_RECORDS {
            true => records.outbound.push(request),
            false => records.dropped += 1,
        }
    }
}

impl Drop for RequestTrace {
    fn drop(&mut self) {
        let records = take(
            self.records
                .get_mut()
                .unwrap_or_else(PoisonError::into_inner),
        );
        // Without a root it is a probe, or not sampled.
        if records.root.is_none() || !self.context.is_sampled {
            return;
        }
        self.telemetry.add_trace(FinishedTrace {
            context: self.context.clone(),
            span: self.span,
            call_span: self.call_span,
            began: self.began,
            began_at: self.began_at,
            records,
        });
    }
}
