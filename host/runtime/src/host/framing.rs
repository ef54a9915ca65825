//! What a guest does not look at on its way: `frame`, which makes bytes of it, and `collect`, which waits for all of it.
//!
//! The stream of bytes that the guest gets is one of those in which `wasi:http` carries bodies of the host's own. When the
//! guest answers with it, `wasi:http` takes that body out again, and the connection polls the engine's mailbox itself:
//! no piece of text wakes the guest or its store. The call goes on until such a body has ended, and where the call ends
//! before, the body ends with it; why, stands in the call's verdict.

use super::bindings::corral::inference::inference::{Chunk, Framing};
use super::generation::Chunks;
use super::{Answer, invalid};
use crate::state::State;
use bytes::{BufMut, Bytes, BytesMut};
use http::Method;
use http_body::Frame;
use http_body_util::BodyExt;
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};
use tokio::sync::{mpsc, watch};
use tokio_util::sync::PollSender;
use wasmtime::component::{
    Access, Accessor, FutureReader, HasSelf, Source, StreamConsumer, StreamReader, StreamResult,
};
use wasmtime::{AsContextMut, StoreContextMut};
use wasmtime_wasi_http::p3::Request;
use wasmtime_wasi_http::p3::bindings::http::types::{ErrorCode, HostRequestWithStore};
use wasmtime_wasi_http::{FieldMap, WasiHttp, WasiHttpView};

/// Most bytes that a framing may have: they are held outside of the guest's memory, and written again and again.
const FRAMING: usize = 64 << 10;
/// Streams of bytes that one instance may have.
const FRAMINGS: usize = 256;
/// Most bytes of the rest that are taken at once.
const REST: usize = 64 << 10;

/// The bodies that an instance was given in this way, and the call that they are part of: each knows when the other
/// has ended. What is sent says whether the guest has nothing more to do.
#[derive(Debug, Default)]
pub(crate) struct Bodies(Option<watch::Sender<bool>>);

impl Bodies {
    /// What a body holds.
    fn call(&mut self) -> watch::Receiver<bool> {
        let call = self.0.get_or_insert_with(|| watch::Sender::new(false));
        call.subscribe()
    }

    /// The guest has nothing more to do: waits until no body is left.
    pub(crate) async fn ended(self) {
        if let Some(call) = self.0 {
            call.send_replace(true);
            call.closed().await;
        }
    }
}

/// The host's end of the stream.
struct Framed {
    /// None once the generation has ended.
    chunks: Option<Chunks>,
    framing: Framing,
    /// What the guest writes after it.
    rest: mpsc::Receiver<Bytes>,
    /// Ready once the call has ended; none once the body has.
    call: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
    /// The guest has nothing more to do, so nothing more comes of the rest.
    guest_done: Arc<AtomicBool>,
    _held: Arc<()>,
}

/// Why a stream is refused.
const OTHERS: &str = "chunks is no stream that sequence.generate gave";

/// Waits for the end of a generation: all that is left of it.
pub(super) async fn collect(
    store: &Accessor<State, HasSelf<State>>,
    chunks: StreamReader<Chunk>,
) -> Answer<Chunk> {
    match store.with(|mut access| own(chunks, &mut access))? {
        Some(chunks) => Ok(Ok(chunks.rest().await)),
        None => invalid(OTHERS),
    }
}

/// The host's end of a stream of chunks, if that is the host's.
fn own(
    chunks: StreamReader<Chunk>,
    store: &mut Access<'_, State, HasSelf<State>>,
) -> wasmtime::Result<Option<Chunks>> {
    match chunks.try_into::<Chunks>(&mut *store) {
        Ok(chunks) => Ok(Some(chunks)),
        Err(mut others) => others.close(store).map(|()| None),
    }
}

/// Makes such a stream of bytes.
pub(super) fn frame(
    mut store: Access<'_, State, HasSelf<State>>,
    chunks: StreamReader<Chunk>,
    framing: Framing,
    mut rest: StreamReader<u8>,
) -> Answer<StreamReader<u8>> {
    let Some(chunks) = own(chunks, &mut store)? else {
        rest.close(&mut store)?;
        return invalid(OTHERS);
    };
    let bytes = framing.first.len() + framing.before.len() + framing.after.len();
    if bytes > FRAMING {
        rest.close(&mut store)?;
        return invalid(format!("a framing of {bytes} bytes; it may have {FRAMING}"));
    }
    let held = Arc::clone(&store.get().handles.framings);
    if Arc::strong_count(&held) > FRAMINGS + 1 {
        rest.close(&mut store)?;
        return invalid(format!(
            "the plugin has {FRAMINGS} streams that frame gave, the most it may; drop some"
        ));
    }
    let (pieces, received) = mpsc::channel(1);
    rest.pipe(&mut store, Rest(PollSender::new(pieces)))?;
    let mut call = store.get().bodies.call();
    let guest_done = Arc::new(AtomicBool::new(false));
    let noted = Arc::clone(&guest_done);
    let framed = Framed {
        chunks: Some(chunks),
        framing,
        rest: received,
        call: Some(Box::pin(async move {
            while call.changed().await.is_ok() {
                noted.store(true, Ordering::Relaxed);
            }
        })),
        guest_done,
        _held: held,
    };
    stream(store, framed).map(Ok)
}

/// The stream of a body of the host's own: what a guest gets of a request that has it.
fn stream(
    mut store: Access<'_, State, HasSelf<State>>,
    framed: Framed,
) -> wasmtime::Result<StreamReader<u8>> {
    let body = framed.map_err(|never: Infallible| -> wasmtime_wasi_http::Error { match never {} });
    let nothing = FieldMap::default();
    let (request, _) = Request::new(Method::GET, None, None, None, nothing, None, body);
    let request = store.get().http().table.push(request)?;
    let good = async { wasmtime::error::Ok(Ok::<(), ErrorCode>(())) };
    let sent = FutureReader::new(&mut store, good)?;
    let access = Access::<State, WasiHttp>::new(store.as_context_mut(), State::http);
    let (stream, mut trailers) = WasiHttp::consume_body(access, request, sent)?;
    trailers.close(&mut store)?;
    Ok(stream)
}

impl Framed {
    /// What is ready next; none at the end.
    fn poll_bytes(&mut self, cx: &mut Context<'_>) -> Poll<Option<Bytes>> {
        let mut bytes = BytesMut::from(&*std::mem::take(&mut self.framing.first));
        while bytes.is_empty() {
            let Some(chunks) = &self.chunks else {
                let rest = self.rest.poll_recv(cx);
                // A guest may have forgotten its end of it.
                let nothing = rest.is_pending() && self.rest.is_empty();
                let over = nothing && self.guest_done.load(Ordering::Relaxed);
                return if over { Poll::Ready(None) } else { rest };
            };
            match ready!(chunks.poll_next(cx)) {
                Some(chunk) => self.put(&mut bytes, &chunk.text),
                None => self.chunks = None,
            }
        }
        Poll::Ready(Some(bytes.freeze()))
    }

    /// Writes a piece of text in its frame.
    fn put(&self, bytes: &mut BytesMut, text: &str) {
        if text.is_empty() {
            return;
        }
        bytes.extend_from_slice(&self.framing.before);
        if self.framing.json {
            // A string always has a JSON form, and memory takes all that is written.
            let _ = serde_json::to_writer(bytes.writer(), text);
        } else {
            bytes.extend_from_slice(text.as_bytes());
        }
        bytes.extend_from_slice(&self.framing.after);
    }
}

impl http_body::Body for Framed {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let Some(call) = &mut self.call else {
            return Poll::Ready(None);
        };
        if call.as_mut().poll(cx).is_ready() {
            self.call = None;
            self.chunks = None;
            return Poll::Ready(None);
        }
        let bytes = ready!(self.poll_bytes(cx));
        if bytes.is_none() {
            // The call need not wait for it any longer.
            self.call = None;
        }
        Poll::Ready(bytes.map(|bytes| Ok(Frame::data(bytes))))
    }
}

/// Takes in what the guest writes after the generation's bytes.
struct Rest(PollSender<Bytes>);

impl StreamConsumer<State> for Rest {
    type Item = u8;

    fn poll_consume(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        store: StoreContextMut<State>,
        source: Source<u8>,
        finish: bool,
    ) -> Poll<wasmtime::Result<StreamResult>> {
        let gone = Poll::Ready(Ok(StreamResult::Dropped));
        match self.0.poll_reserve(cx) {
            Poll::Pending if finish => return Poll::Ready(Ok(StreamResult::Cancelled)),
            Poll::Pending => return Poll::Pending,
            Poll::Ready(Err(_)) => return gone,
            Poll::Ready(Ok(())) => {}
        }
        let mut source = source.as_direct(store);
        let bytes = source.remaining();
        let bytes = Bytes::copy_from_slice(&bytes[..bytes.len().min(REST)]);
        let count = bytes.len();
        if self.0.send_item(bytes).is_err() {
            return gone;
        }
        source.mark_read(count);
        Poll::Ready(Ok(StreamResult::Completed))
    }
}
