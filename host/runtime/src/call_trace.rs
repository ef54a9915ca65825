//! What a call reports to the trace that it belongs to.
//!
//! The server implements [`CallTrace`] and makes spans of what it gets; this crate knows neither spans nor their format. A
//! call has a trace only while telemetry is on. One that is not [sampled](CallTrace::is_sampled) passes its headers on
//! and records nothing.

use crate::call_error::CallError;
use corral_engine::GenerationSink;
use http::HeaderValue;
use std::fmt::Debug;
use std::time::Instant;

/// Receives what happens in a call. No method waits.
pub trait CallTrace: GenerationSink + Debug + Send + Sync {
    /// The id of the trace, in hexadecimal digits, for log lines.
    fn id(&self) -> &str;

    /// Whether anything but the headers is wanted.
    fn is_sampled(&self) -> bool;

    /// The call waited in the queue from `since` until now, when it began, or failed with an error.
    fn queued(&self, since: Instant);

    /// The call ended now; it began when the queue ended.
    fn call_ended(&self, error: Option<&CallError>);

    /// Texts were embedded, or failed to be.
    fn embedded(&self, embedding: EmbeddingRecord);

    /// The headers of an outgoing request.
    fn outbound_headers(&self) -> TraceHeaders;

    /// An outgoing request has a response's head, or has failed.
    fn outbound_ended(&self, request: OutboundRequest);
}

/// One call of `embed`.
#[derive(Clone, Debug)]
pub struct EmbeddingRecord {
    /// Name of the model.
    pub model: String,
    /// Tokens of all texts.
    pub tokens: u64,
    /// When it began.
    pub began: Instant,
    /// When its result was there.
    pub ended: Instant,
    /// The kind of the error, if it failed.
    pub error: Option<&'static str>,
}

/// Headers of W3C's Trace Context, and the id of the span that they name as the parent.
#[derive(Clone, Debug)]
pub struct TraceHeaders {
    /// The id of the span that the outgoing request becomes.
    pub span: [u8; 8],
    /// `traceparent`.
    pub parent: HeaderValue,
    /// `tracestate`, if there is one.
    pub state: Option<HeaderValue>,
}

/// An outgoing request of a call.
#[derive(Clone, Debug)]
pub struct OutboundRequest {
    /// The id of its span.
    pub span: [u8; 8],
    /// When the plugin sent it.
    pub began: Instant,
    /// When the head of its response came, or it failed.
    pub ended: Instant,
    /// Its method.
    pub method: http::Method,
    /// The scheme, host and port of its URL. Not the path, which may hold secrets.
    pub origin: String,
    /// The status of the response; the kind of the error if there is none.
    pub result: Result<u16, String>,
}
