//! The body of a request, to another server or to another deployment: counted and bounded.

use crate::counters::{DeploymentCounters, OutboundRefusal};
use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll, ready};
use wasmtime_wasi_http::{Error, WasiBody};

/// Largest body of a request, and of a response.
pub(crate) const BODY_BYTES: u64 = 32 << 20;

/// How far a request's body is sent.
#[derive(Debug, Default)]
pub(crate) struct BodyProgress {
    frames: AtomicU64,
    is_too_large: AtomicBool,
}

impl BodyProgress {
    pub(super) fn frames(&self) -> u64 {
        self.frames.load(Ordering::Relaxed)
    }

    /// Whether the body was ended because it is too large.
    pub(crate) fn is_too_large(&self) -> bool {
        self.is_too_large.load(Ordering::Acquire)
    }
}

/// A request's body: counted, and ended if it has more than `limit` bytes.
pub(crate) struct RequestBody {
    body: WasiBody,
    limit: u64,
    left: u64,
    progress: Arc<BodyProgress>,
    counters: Arc<DeploymentCounters>,
}

impl RequestBody {
    pub(crate) fn new(
        body: WasiBody,
        limit: u64,
        counters: &Arc<DeploymentCounters>,
    ) -> (Self, Arc<BodyProgress>) {
        let progress = Arc::<BodyProgress>::default();
        let body = Self {
            body,
            limit,
            left: limit,
            progress: Arc::clone(&progress),
            counters: Arc::clone(counters),
        };
        (body, progress)
    }
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Error>>> {
        let Some(frame) = ready!(Pin::new(&mut self.body).poll_frame(cx)).transpose()? else {
            return Poll::Ready(None);
        };
        let Some(bytes) = take(&mut self.left, &frame) else {
            self.counters.outbound_refused(OutboundRefusal::Body);
            self.progress.is_too_large.store(true, Ordering::Release);
            return Poll::Ready(Some(Err(Error::HttpRequestBodySize(Some(self.limit)))));
        };
        self.counters.outbound_sent_bytes.add(bytes);
        self.progress.frames.fetch_add(1, Ordering::Relaxed);
        Poll::Ready(Some(Ok(frame)))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// Takes the bytes of a frame from those that are left. `None` if they are too many.
pub(super) fn take(left: &mut u64, frame: &Frame<Bytes>) -> Option<u64> {
    let bytes = frame.data_ref().map_or(0, |data| data.len() as u64);
    let rest = left.checked_sub(bytes);
    *left = rest.unwrap_or(0);
    rest.map(|_| bytes)
}
