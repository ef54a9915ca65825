//! One connection: TLS handshake, protocol detection, requests, and shutdown.

use super::byte_stream::{ByteStream, with_write_timeout};
use super::connection_streams::{ConnectionActivity, StreamExecutor};
use super::header_timer::HeaderTimer;
use super::http_version::{Rewind, detect_http2};
use super::response_body::ResponseBody;
use super::socket::{AcceptedStream, Peer};
use super::{FINAL_EVENT_TIME, ListenerConfig};
use crate::connection_info::ConnectionInfo;
use crate::http_counters::TerminationReason;
use crate::request_log::LoggedBody;
use crate::shutdown::{ListenerPhase, reached};
use crate::tls;
use http::header::CONNECTION;
use http::{HeaderValue, Request, Response, Version};
use hyper::body::Incoming;
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use std::convert::Infallible;
use std::error::Error;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};

/// How long an idle connection stays open at shutdown: a request may be on its way, and its client could not
/// know whether the server received it.
const IDLE_DRAIN_TIME: Duration = Duration::from_millis(300);
/// HTTP/2 flow-control windows: bytes of request bodies that a client may send ahead.
const STREAM_WINDOW: u32 = 64 << 10;
const CONNECTION_WINDOW: u32 = 256 << 10;
/// Bytes of a response that hyper may buffer per HTTP/2 stream.
const SEND_BUFFER_BYTES: usize = 64 << 10;
/// HTTP/2 streams that a client may reset before hyper accepts them; more end the connection.
const MAX_PENDING_RESETS: usize = 20;
/// Streams that the server may reset for protocol errors; more end the connection.
const MAX_ERROR_RESETS: usize = 100;
/// Interval of HTTP/2 pings to a silent client.
const PING_INTERVAL: Duration = Duration::from_secs(30);
/// Time limit for its answer.
const PING_TIMEOUT: Duration = Duration::from_secs(20);

pub(super) struct Connection<H> {
    pub(super) peer: Peer,
    pub(super) config: Arc<ListenerConfig>,
    pub(super) phase: watch::Receiver<ListenerPhase>,
    pub(super) answer: H,
}

/// A stream that is ready for requests.
struct ReadyStream {
    stream: Rewind<ByteStream>,
    is_http2: bool,
}

/// Why the server closes an HTTP/2 connection that could continue.
#[derive(Clone, Copy, PartialEq, Eq)]
enum CloseReason {
    /// The server drains.
    Drain,
    /// No request ran for too long.
    Idle,
}

/// Why a connection ended before its first request.
enum SetupError {
    Handshake(io::Error),
    Timeout,
    Io(io::Error),
}

impl<H, F> Connection<H>
where
    H: Fn(Request<Incoming>) -> F + Clone + Send + Sync + 'static,
    F: Future<Output = Response<LoggedBody>> + Send + 'static,
{
    /// Serves the connection to its end.
    pub(super) async fn serve(mut self, stream: AcceptedStream) {
        let config = self.config.clone();
        let ready = tokio::select! {
            ready = prepare(stream, &config) => ready,
            () = idle_drain(&mut self.phase) => return,
        };
        match ready {
            Ok(ReadyStream {
                stream,
                is_http2: true,
            }) => self.serve_http2(stream).await,
            Ok(ReadyStream { stream, .. }) => self.serve_http1(stream).await,
            Err(SetupError::Handshake(error)) => {
                tracing::debug!(peer = %self.peer, %error, "TLS handshake failed");
                self.count(TerminationReason::Handshake);
            }
            Err(SetupError::Timeout) => self.count(TerminationReason::HeaderTimeout),
            Err(SetupError::Io(error)) => {
                tracing::debug!(peer = %self.peer, %error, "connection ended");
            }
        }
    }

    async fn serve_http1(self, stream: Rewind<ByteStream>) {
        let limits = &self.config.limits;
        let activity = ConnectionActivity::new();
        let mut builder = http1::Builder::new();
        builder
            .timer(HeaderTimer::new(limits.header_timeout))
            .header_read_timeout(limits.header_timeout)
            .max_header_size(limits.max_header_bytes)
            .max_buf_size(limits.max_header_bytes.saturating_mul(2).max(8192));
        let connection =
            builder.serve_connection(TokioIo::new(stream), service_fn(self.service(&activity)));
        tokio::pin!(connection);
        let mut phase = self.phase.clone();
        let result = tokio::select! {
            result = connection.as_mut() => result,
            // Responses announce `Connection: close` from now on, see `service`.
            () = async {
                reached(&mut phase, ListenerPhase::Draining).await;
                activity.idle_for(IDLE_DRAIN_TIME, Instant::now()).await;
            } => {
                connection.as_mut().graceful_shutdown();
                tokio::select! {
                    result = connection => result,
                    () = end_of_grace(&mut phase) => Ok(()),
                }
            }
        };
        self.record(result);
    }

    async fn serve_http2(self, stream: Rewind<ByteStream>) {
        let limits = &self.config.limits;
        let activity = ConnectionActivity::new();
        let config = self.config.clone();
        let streams = StreamExecutor {
            write_timeout: limits.write_timeout,
            on_stalled: move || count(&config, TerminationReason::WriteTimeout),
        };
        let mut builder = http2::Builder::new(streams);
        builder
            .timer(TokioTimer::new())
            .max_concurrent_streams(limits.max_concurrent_streams)
            .max_header_list_size(u32::try_from(limits.max_header_bytes).unwrap_or(u32::MAX))
            .initial_stream_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .max_send_buf_size(SEND_BUFFER_BYTES)
            .max_pending_accept_reset_streams(MAX_PENDING_RESETS)
            .max_local_error_reset_streams(MAX_ERROR_RESETS)
            .keep_alive_interval(PING_INTERVAL)
            .keep_alive_timeout(PING_TIMEOUT);
        let connection =
            builder.serve_connection(TokioIo::new(stream), service_fn(self.service(&activity)));
        tokio::pin!(connection);
        let mut phase = self.phase.clone();
        let started = Instant::now();
        let drain_or_idle = async |phase: &mut watch::Receiver<ListenerPhase>| {
            tokio::select! {
                () = reached(phase, ListenerPhase::Draining) => CloseReason::Drain,
                () = activity.idle_for(limits.header_timeout, started) => CloseReason::Idle,
            }
        };
        let result = tokio::select! {
            result = connection.as_mut() => result,
            () = activity.too_many_resets.notified() => return self.count(TerminationReason::Resets),
            reason = drain_or_idle(&mut phase) => {
                // Sends GOAWAY: the client learns that later requests are not processed.
                connection.as_mut().graceful_shutdown();
                let close_timeout = async {
                    match reason {
                        // The client may never read the last bytes.
                        CloseReason::Idle => sleep(limits.write_timeout).await,
                        CloseReason::Drain => std::future::pending().await,
                    }
                };
                if reason == CloseReason::Idle {
                    self.count(TerminationReason::Idle);
                }
                tokio::select! {
                    result = connection => result,
                    () = activity.too_many_resets.notified() => return self.count(TerminationReason::Resets),
                    () = close_timeout => Ok(()),
                    () = end_of_grace(&mut phase) => Ok(()),
                }
            }
        };
        self.record(result);
    }

    /// The service that hyper calls for each request.
    fn service(&self, activity: &Arc<ConnectionActivity>) -> impl Service + use<H, F> {
        let (activity, answer) = (activity.clone(), self.answer.clone());
        let phase = self.phase.clone();
        let keep_alive = self.config.limits.event_keep_alive;
        let counters = self.config.counters.clone();
        let info = ConnectionInfo {
            is_tls: self.config.tls.is_some(),
            address: match self.peer {
                Peer::Address(address) => Some(address),
                Peer::Process => None,
            },
        };
        move |mut request: Request<Incoming>| {
            let running = activity.begin_request();
            let is_http1 = request.version() < Version::HTTP_2;
            request.extensions_mut().insert(info);
            let (answer, phase) = (answer(request), phase.clone());
            let counters = counters.clone();
            Box::pin(async move {
                let mut response = answer.await;
                if is_http1 && *phase.borrow() >= ListenerPhase::Draining {
                    let close = HeaderValue::from_static("close");
                    response.headers_mut().insert(CONNECTION, close);
                }
                Ok(ResponseBody::wrap(
                    response, running, &phase, keep_alive, counters,
                ))
            })
        }
    }

    /// Records how hyper ended the connection.
    fn record(&self, result: hyper::Result<()>) {
        let Err(error) = result else {
            return;
        };
        tracing::debug!(peer = %self.peer, %error, "connection ended");
        if error.is_timeout() {
            self.count(TerminationReason::HeaderTimeout);
        } else if is_write_timeout(&error) {
            self.count(TerminationReason::WriteTimeout);
        }
    }

    fn count(&self, reason: TerminationReason) {
        count(&self.config, reason);
    }
}

/// The function that hyper calls for each request.
trait Service:
    Fn(Request<Incoming>) -> Pin<Box<dyn Future<Output = ServiceResult> + Send>> + Send + 'static
{
}

impl<S> Service for S where
    S: Fn(Request<Incoming>) -> Pin<Box<dyn Future<Output = ServiceResult> + Send>>
        + Send
        + 'static
{
}

type ServiceResult = Result<Response<ResponseBody>, Infallible>;

/// Performs the TLS handshake, if configured, and detects the HTTP version.
async fn prepare(
    stream: AcceptedStream,
    config: &ListenerConfig,
) -> Result<ReadyStream, SetupError> {
    let limits = &config.limits;
    let transport = match stream {
        AcceptedStream::Tcp(stream) => {
            let stream = with_write_timeout(stream, limits.write_timeout);
            let Some(tls) = &config.tls else {
                return detect_version(stream, config).await;
            };
            let stream = timeout(limits.handshake_timeout, tls.acceptor().accept(stream))
                .await
                .unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
                .map_err(SetupError::Handshake)?;
            let is_http2 = stream.get_ref().1.alpn_protocol() == Some(tls::HTTP2);
            return Ok(ReadyStream {
                stream: Rewind::untouched(Box::pin(stream)),
                is_http2,
            });
        }
        // Local connections are not encrypted: they do not leave the machine.
        AcceptedStream::Unix(stream) => with_write_timeout(stream, limits.write_timeout),
        AcceptedStream::Memory(stream) => with_write_timeout(stream, limits.write_timeout),
    };
    detect_version(transport, config).await
}

/// Detects the HTTP version of an unencrypted connection.
async fn detect_version(
    transport: ByteStream,
    config: &ListenerConfig,
) -> Result<ReadyStream, SetupError> {
    let (is_http2, stream) = timeout(config.limits.header_timeout, detect_http2(transport))
        .await
        .map_err(|_| SetupError::Timeout)?
        .map_err(SetupError::Io)?;
    Ok(ReadyStream { stream, is_http2 })
}

/// Returns [`IDLE_DRAIN_TIME`] after the server began to drain.
async fn idle_drain(phase: &mut watch::Receiver<ListenerPhase>) {
    reached(phase, ListenerPhase::Draining).await;
    sleep(IDLE_DRAIN_TIME).await;
}

/// Returns when the grace period is over and event streams have had time for their final event.
async fn end_of_grace(phase: &mut watch::Receiver<ListenerPhase>) {
    reached(phase, ListenerPhase::Ending).await;
    sleep(FINAL_EVENT_TIME).await;
}

fn count(config: &ListenerConfig, reason: TerminationReason) {
    if let Some(counters) = &config.counters {
        counters.count_termination(reason);
    }
}

/// Whether a write timeout ended the connection.
fn is_write_timeout(error: &(dyn Error + 'static)) -> bool {
    let mut cause = Some(error);
    while let Some(error) = cause {
        if let Some(error) = error.downcast_ref::<io::Error>() {
            return error.kind() == io::ErrorKind::TimedOut;
        }
        cause = error.source();
    }
    false
}
