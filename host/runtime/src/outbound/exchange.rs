//! One request and its response, over a connection of their own (HTTP/1.1).

use super::client::{Connection, ConnectionPermit};
use super::grant::Target;
use super::request_body::{BODY_BYTES, RequestBody, take};
use super::{CallOutbound, Failure, OutboundAccess};
use crate::counters::{DeploymentCounters, OutboundRefusal};
use crate::http_bytes::header_bytes;
use crate::resource_limiter::InstanceMemory;
use crate::response_body::content_length;
use crate::use_count::UseGuard;
use bytes::Bytes;
use http::{HeaderMap, Request, Response, Uri};
use http_body::{Body, Frame, SizeHint};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::client::conn::http1;
use std::error::Error as _;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::time::{Instant, Sleep, sleep, timeout};
use wasmtime_wasi_http::io::TokioIo;
use wasmtime_wasi_http::{Error, RequestOptions, WasiBody};

/// Longest wait for a connection: for a permit, the resolution of the name, TCP and TLS together.
pub(super) const CONNECT_TIME: Duration = Duration::from_secs(10);
/// Longest wait for the head of a response, after the last part of the request's body. Language models think for long.
pub(super) const FIRST_BYTE_TIME: Duration = Duration::from_secs(300);
/// Longest wait for the next part of a response's body.
const BETWEEN_BYTES_TIME: Duration = Duration::from_secs(60);
/// Most bytes of a response's head, and headers in it.
const HEAD_BYTES: usize = 64 << 10;
const HEADERS: usize = 128;

pub(super) type Exchanged = (
    Response<WasiBody>,
    Box<dyn Future<Output = wasmtime_wasi_http::Result<()>> + Send>,
);

/// The time that a plugin asks for, at most `limit`.
pub(super) fn shorter(asked: Option<Duration>, limit: Duration) -> Duration {
    asked.map_or(limit, |asked| asked.min(limit))
}

/// Sends a request that has a grant. The returned future drives the connection while the response's body is read, and keeps
/// `open` until then.
pub(super) async fn exchange(
    call: &Arc<CallOutbound>,
    access: &OutboundAccess,
    target: &Target,
    request: Request<WasiBody>,
    options: Option<RequestOptions>,
    open: UseGuard,
) -> Result<Exchanged, Failure> {
    let options = options.unwrap_or_default();
    let counters = &call.counters;
    let client = &access.client;
    let connecting = client.connect(access, target, request.method(), &options, counters);
    let (connection, permit) = connecting.await?;
    let first_byte = shorter(options.first_byte_timeout, FIRST_BYTE_TIME);
    let (response, driver) =
        send(connection, (permit, open), request, counters, first_byte).await?;
    count_headers(response.headers(), &call.memory)?;
    let announced = content_length(response.headers());
    // A response to HEAD has a length and no body.
    if !response.body().is_end_stream() && announced.is_some_and(|length| length > BODY_BYTES) {
        let error = Error::HttpResponseBodySize(announced);
        return Err(Failure::refused(error, OutboundRefusal::Body));
    }
    let body = |incoming: Incoming| {
        let body = incoming.map_err(|error| failure(&error).error);
        ResponseBody::new(body, BODY_BYTES, &options, counters).boxed_unsync()
    };
    Ok((response.map(body), driver))
}

/// Sends the request and waits for the head of its response.
async fn send(
    connection: Box<dyn Connection>,
    open: (ConnectionPermit, UseGuard),
    mut request: Request<WasiBody>,
    counters: &Arc<DeploymentCounters>,
    first_byte: Duration,
) -> Result<
    (
        Response<Incoming>,
        Box<dyn Future<Output = wasmtime_wasi_http::Result<()>> + Send>,
    ),
    Failure,
> {
    // Only requests to proxies name their host there.
    let path = request.uri().path_and_query().cloned();
    *request.uri_mut() = path.map_or_else(|| Uri::from_static("/"), Uri::from);
    let (head, body) = request.into_parts();
    let (body, progress) = RequestBody::new(body, BODY_BYTES, counters);
    let request = Request::from_parts(head, body);
    let mut builder = http1::Builder::new();
    builder.max_buf_size(HEAD_BYTES).max_headers(HEADERS);
    let handshake = builder.handshake(TokioIo::new(connection)).await;
    let (mut sender, driver) = handshake.map_err(|error| failure(&error))?;
    let mut driver = Box::pin(driver);
    let mut is_driven = true;
    let response = {
        let mut sending = std::pin::pin!(sender.send_request(request));
        let mut head = std::pin::pin!(async {
            loop {
                tokio::select! {
                    biased;
                    response = &mut sending => return response,
                    ended = &mut driver, if is_driven => {
                        is_driven = false;
                        ended?;
                    }
                }
            }
        });
        loop {
            let before = progress.frames();
            match timeout(first_byte, &mut head).await {
                Ok(response) => break response,
                Err(_) if progress.frames() > before => {}
                Err(_) => {
                    let error = Error::HttpResponseTimeout;
                    return Err(Failure::refused(error, OutboundRefusal::Time));
                }
            }
        }
    };
    let response = response.map_err(|error| failure(&error))?;
    let driving = async move {
        let _open = open;
        match is_driven {
            true => driver.await.map_err(|error| failure(&error).error),
            false => Ok(()),
        }
    };
    Ok((response, Box::new(driving)))
}

/// What a plugin gets for an error of the connection. A request's body counted its own.
fn failure(error: &hyper::Error) -> Failure {
    if error.is_parse_too_large() {
        let size = u32::try_from(HEAD_BYTES).ok();
        let error = Error::HttpResponseHeaderSectionSize(size);
        return Failure::refused(error, OutboundRefusal::Headers);
    }
    let source = error.source();
    let io = source.and_then(|cause| cause.downcast_ref::<io::Error>());
    let is_cut = io.is_some_and(|cause| cause.kind() == io::ErrorKind::UnexpectedEof);
    let cause = source.and_then(|cause| cause.downcast_ref());
    Failure::from(match cause {
        Some(Error::HttpRequestBodySize(size)) => Error::HttpRequestBodySize(*size),
        Some(other) => Error::InternalError(Some(other.to_string())),
        None if is_cut || error.is_incomplete_message() => Error::HttpResponseIncomplete,
        None if error.is_parse() => Error::HttpProtocolError,
        None => Error::ConnectionTerminated,
    })
}

/// Counts the headers of a response as memory of the call.
pub(super) fn count_headers(headers: &HeaderMap, memory: &InstanceMemory) -> Result<(), Failure> {
    let headers = headers.iter();
    let bytes = headers
        .map(|(name, value)| header_bytes(name.as_str().len(), value.as_bytes()))
        .sum();
    match memory.try_add_in_host(bytes) {
        true => Ok(()),
        false => {
            let error = Error::HttpResponseHeaderSectionSize(u32::try_from(bytes).ok());
            Err(Failure::refused(error, OutboundRefusal::Headers))
        }
    }
}

/// A response's body: counted, and ended if it has more than `limit` bytes, or if its next part does not come in time.
pub(super) struct ResponseBody<B> {
    body: B,
    limit: u64,
    left: u64,
    time: Duration,
    timer: Pin<Box<Sleep>>,
    /// Whether the plugin waits for bytes, and the timer runs.
    is_waiting: bool,
    counters: Arc<DeploymentCounters>,
}

impl<B> ResponseBody<B> {
    pub(super) fn new(
        body: B,
        limit: u64,
        options: &RequestOptions,
        counters: &Arc<DeploymentCounters>,
    ) -> Self {
        let time = shorter(options.between_bytes_timeout, BETWEEN_BYTES_TIME);
        Self {
            body,
            limit,
            left: limit,
            time,
            timer: Box::pin(sleep(time)),
            is_waiting: false,
            counters: Arc::clone(counters),
        }
    }
}

impl<B: Body<Data = Bytes, Error = Error> + Unpin> Body for ResponseBody<B> {
    type Data = Bytes;
    type Error = Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Error>>> {
        let this = &mut *self;
        let frame = match Pin::new(&mut this.body).poll_frame(cx) {
            Poll::Ready(None) => return Poll::Ready(None),
            Poll::Ready(Some(Ok(frame))) => frame,
            Poll::Ready(Some(Err(error))) => {
                this.counters.outbound_failures.increment();
                return Poll::Ready(Some(Err(error)));
            }
            Poll::Pending => {
                if !this.is_waiting {
                    this.is_waiting = true;
                    this.timer.as_mut().reset(Instant::now() + this.time);
                }
                ready!(this.timer.as_mut().poll(cx));
                this.counters.outbound_refused(OutboundRefusal::Time);
                return Poll::Ready(Some(Err(Error::ConnectionReadTimeout)));
            }
        };
        this.is_waiting = false;
        let Some(bytes) = take(&mut this.left, &frame) else {
            this.counters.outbound_refused(OutboundRefusal::Body);
            return Poll::Ready(Some(Err(Error::HttpResponseBodySize(Some(this.limit)))));
        };
        this.counters.outbound_received_bytes.add(bytes);
        Poll::Ready(Some(Ok(frame)))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
