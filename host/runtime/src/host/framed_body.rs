//! `frame` and `collect`: generations whose chunks the guest does not read one by one.
//!
//! `frame` returns a byte stream of the kind in which `wasi:http` carries host bodies. If the guest responds
//! with it, `wasi:http` recovers the body, and the connection polls the engine's mailbox directly: a chunk
//! wakes neither the guest nor its store. The call continues until such a body ends. If the call ends first,
//! the body ends with it, and the call's outcome holds the reason.

use super::bindings::corral::inference::inference::Chunk;
use super::bindings::corral::inference::inference_async::Framing;
use super::generation::GenerationChunks;
use super::{HostResult, invalid};
use crate::state::State;
use crate::use_count::UseGuard;
use bytes::Bytes;
use http_body::Frame;
use http_body_util::BodyExt;
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};
use tokio::sync::mpsc;
use tokio_util::sync::PollSender;
use wasmtime::component::{
    Access, Accessor, FutureReader, HasSelf, Source, StreamConsumer, StreamReader, StreamResult,
};
use wasmtime::{AsContextMut, StoreContextMut};
use wasmtime_wasi_http::p3::Response;
use wasmtime_wasi_http::p3::bindings::http::types::{ErrorCode, HostResponseWithStore};
use wasmtime_wasi_http::{WasiHttp, WasiHttpView};

/// Most bytes of a framing, which the host holds and repeats for each chunk.
const MAX_FRAMING_BYTES: usize = 64 << 10;
/// Framed bodies that an instance may have.
const MAX_FRAMED_BODIES: usize = 256;
/// Most bytes of the guest's stream `rest` that are read at once.
const MAX_REST_BYTES: usize = 64 << 10;

/// The text of a generation as bytes, followed by the guest's stream `rest`.
struct FramedBody {
    /// None once the generation has ended.
    chunks: Option<GenerationChunks>,
    framing: Framing,
    rest: mpsc::Receiver<Bytes>,
    /// Ready once the call has ended. None once the body has ended.
    call_end: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
    /// The guest is done, so `rest` gets no more bytes.
    guest_done: Arc<AtomicBool>,
    _counted: UseGuard,
}

const FOREIGN_STREAM: &str = "chunks is not a stream that generate returned";

/// Waits for the end of a generation and returns the rest of it.
pub(super) async fn collect(
    store: &Accessor<State, HasSelf<State>>,
    chunks: StreamReader<Chunk>,
) -> HostResult<Chunk> {
    match store.with(|mut access| generation_chunks(chunks, &mut access))? {
        Some(chunks) => Ok(chunks.rest().await),
        None => invalid(FOREIGN_STREAM),
    }
}

/// The generation behind a stream of chunks. None if the guest made the stream.
fn generation_chunks(
    chunks: StreamReader<Chunk>,
    store: &mut Access<'_, State, HasSelf<State>>,
) -> wasmtime::Result<Option<GenerationChunks>> {
    match chunks.try_into::<GenerationChunks>(&mut *store) {
        Ok(chunks) => Ok(Some(chunks)),
        Err(mut foreign) => foreign.close(store).map(|()| None),
    }
}

/// Returns the generation's text as a byte stream.
pub(super) fn frame(
    mut store: Access<'_, State, HasSelf<State>>,
    chunks: StreamReader<Chunk>,
    framing: Framing,
    mut rest: StreamReader<u8>,
) -> HostResult<StreamReader<u8>> {
    let Some(chunks) = generation_chunks(chunks, &mut store)? else {
        rest.close(&mut store)?;
        return invalid(FOREIGN_STREAM);
    };
    let bytes = framing.first.len() + framing.before.len() + framing.after.len();
    if bytes > MAX_FRAMING_BYTES {
        rest.close(&mut store)?;
        return invalid(format!(
            "the framing has {bytes} bytes; it may have {MAX_FRAMING_BYTES}"
        ));
    }
    if store.get().handles.framed_bodies.get() >= MAX_FRAMED_BODIES {
        rest.close(&mut store)?;
        return invalid(format!(
            "the plugin holds the maximum of {MAX_FRAMED_BODIES} streams that frame returned; drop some"
        ));
    }
    let counted = store.get().handles.framed_bodies.guard();
    let (sender, receiver) = mpsc::channel(1);
    rest.pipe(&mut store, RestConsumer(PollSender::new(sender)))?;
    let mut call = store.get().bodies.subscribe();
    let guest_done = Arc::new(AtomicBool::new(false));
    let done = Arc::clone(&guest_done);
    let body = FramedBody {
        chunks: Some(chunks),
        framing,
        rest: receiver,
        call_end: Some(Box::pin(async move {
            while call.changed().await.is_ok() {
                done.store(true, Ordering::Relaxed);
            }
        })),
        guest_done,
        _counted: counted,
    };
    Ok(body_stream(store, body)?)
}

/// The stream of a host body. Only `wasi:http` makes streams that it can turn back into their body, and only
/// for the body of a response or request, so this wraps the body in a response and takes it out again.
fn body_stream(
    mut store: Access<'_, State, HasSelf<State>>,
    body: FramedBody,
) -> wasmtime::Result<StreamReader<u8>> {
    let body = body.map_err(|never: Infallible| -> wasmtime_wasi_http::Error { match never {} });
    let http = store.get().http();
    let (response, _) = Response::from_http(http.hooks, http::Response::new(body));
    let response = http.table.push(response)?;
    let success = async { wasmtime::error::Ok(Ok::<(), ErrorCode>(())) };
    let result = FutureReader::new(&mut store, success)?;
    let access = Access::<State, WasiHttp>::new(store.as_context_mut(), State::http);
    let (stream, mut trailers) = WasiHttp::consume_body(access, response, result)?;
    trailers.close(&mut store)?;
    Ok(stream)
}

impl FramedBody {
    /// Polls for the next bytes. None at the end.
    fn poll_bytes(&mut self, cx: &mut Context<'_>) -> Poll<Option<Bytes>> {
        let mut bytes = std::mem::take(&mut self.framing.first);
        while bytes.is_empty() {
            let Some(chunks) = &self.chunks else {
                let rest = self.rest.poll_recv(cx);
                // A guest that is done may not have closed its end.
                let nothing = rest.is_pending() && self.rest.is_empty();
                let ended = nothing && self.guest_done.load(Ordering::Relaxed);
                return if ended { Poll::Ready(None) } else { rest };
            };
            match ready!(chunks.poll_next(cx)) {
                Some(chunk) => self.write_frame(&mut bytes, &chunk.text),
                None => self.chunks = None,
            }
        }
        Poll::Ready(Some(bytes.into()))
    }

    fn write_frame(&self, bytes: &mut Vec<u8>, text: &str) {
        if text.is_empty() {
            return;
        }
        let Framing {
            before,
            after,
            json,
            ..
        } = &self.framing;
        // The length of most frames: one allocation, which the connection then holds.
        let quotes = if *json { 2 } else { 0 };
        bytes.reserve_exact(before.len() + text.len() + quotes + after.len());
        bytes.extend_from_slice(before);
        if *json {
            // Writing a string to memory cannot fail.
            let _ = serde_json::to_writer(&mut *bytes, text);
        } else {
            bytes.extend_from_slice(text.as_bytes());
        }
        bytes.extend_from_slice(after);
    }
}

impl http_body::Body for FramedBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let Some(call_end) = &mut self.call_end else {
            return Poll::Ready(None);
        };
        if call_end.as_mut().poll(cx).is_ready() {
            self.call_end = None;
            self.chunks = None;
            return Poll::Ready(None);
        }
        let bytes = ready!(self.poll_bytes(cx));
        if bytes.is_none() {
            // Drops the receiver: the call no longer waits for this body.
            self.call_end = None;
        }
        Poll::Ready(bytes.map(|bytes| Ok(Frame::data(bytes))))
    }
}

/// Reads the guest's stream `rest`.
struct RestConsumer(PollSender<Bytes>);

impl StreamConsumer<State> for RestConsumer {
    type Item = u8;

    fn poll_consume(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        store: StoreContextMut<State>,
        source: Source<u8>,
        finish: bool,
    ) -> Poll<wasmtime::Result<StreamResult>> {
        let dropped = Poll::Ready(Ok(StreamResult::Dropped));
        match self.0.poll_reserve(cx) {
            Poll::Pending if finish => return Poll::Ready(Ok(StreamResult::Cancelled)),
            Poll::Pending => return Poll::Pending,
            Poll::Ready(Err(_)) => return dropped,
            Poll::Ready(Ok(())) => {}
        }
        let mut source = source.as_direct(store);
        let bytes = source.remaining();
        let bytes = Bytes::copy_from_slice(&bytes[..bytes.len().min(MAX_REST_BYTES)]);
        let count = bytes.len();
        if self.0.send_item(bytes).is_err() {
            return dropped;
        }
        source.mark_read(count);
        Poll::Ready(Ok(StreamResult::Completed))
    }
}
