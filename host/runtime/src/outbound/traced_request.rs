//! An outgoing request of a traced call: the headers that it gets, and what the trace is told.

use super::exchange::Exchanged;
use super::grant::Target;
use super::{CallOutbound, Failure};
use crate::call_trace::{CallTrace, OutboundRequest};
use http::{HeaderName, Method, Request};
use std::sync::Arc;
use std::time::Instant;
use wasmtime_wasi_http::{Error, WasiBody};

const TRACE_PARENT: HeaderName = HeaderName::from_static("traceparent");
const TRACE_STATE: HeaderName = HeaderName::from_static("tracestate");

/// The name of an error's variant, without its values.
fn kind(error: &Error) -> String {
    let text = format!("{error:?}");
    let name = text.split(|c: char| !c.is_alphanumeric()).next();
    name.unwrap_or_default().to_owned()
}

/// A request on its way whose trace is sampled.
pub(super) struct TracedRequest {
    trace: Arc<dyn CallTrace>,
    span: [u8; 8],
    began: Instant,
    method: Method,
    origin: String,
}

impl TracedRequest {
    /// Gives a request the headers of its call's trace, which replace the plugin's own. `None` if there is nothing to
    /// report.
    pub(super) fn begin(
        call: &CallOutbound,
        target: &Target,
        request: &mut Request<WasiBody>,
    ) -> Option<Self> {
        let trace = call.trace.as_ref()?;
        let trace_headers = trace.outbound_headers();
        let headers = request.headers_mut();
        headers.insert(TRACE_PARENT, trace_headers.parent);
        match trace_headers.state {
            Some(state) => drop(headers.insert(TRACE_STATE, state)),
            None => drop(headers.remove(TRACE_STATE)),
        }
        trace.is_sampled().then(|| Self {
            trace: Arc::clone(trace),
            span: trace_headers.span,
            began: Instant::now(),
            method: request.method().clone(),
            origin: target.url().to_string(),
        })
    }

    /// Reports how it went.
    pub(super) fn end(self, sent: &Result<Exchanged, Failure>) {
        self.trace.outbound_ended(OutboundRequest {
            span: self.span,
            began: self.began,
            ended: Instant::now(),
            method: self.method,
            origin: self.origin,
            result: match sent {
                Ok((response, _)) => Ok(response.status().as_u16()),
                Err(failure) => Err(kind(&failure.error)),
            },
        });
    }
}
