//! One connection: handshake, which HTTP it speaks, its requests, and its end.

use super::outgoing::Outgoing;
use super::preface::{Rewound, sniff};
use super::socket::{Accepted, Peer};
use super::streams::{Activity, Streams};
use super::wire::Wire;
use super::{LAST_MOMENT, Setup};
use crate::access::Observed;
use crate::shutdown::{Phase, reached};
use crate::stall::StallLimit;
use crate::tls;
use crate::traffic::End;
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

/// How long a connection on which nothing goes on stays open when the server drains: its client may
/// be sending a request just now, and would not know whether it was heard.
const LAST_REQUEST: Duration = Duration::from_millis(300);
/// HTTP/2's windows: bytes of request bodies that a client may send before they are read, for each
/// stream and for the whole connection.
const WINDOWS: (u32, u32) = (64 << 10, 256 << 10);
/// Bytes of an answer that hyper may hold for a stream of HTTP/2.
const SEND_BYTES: usize = 64 << 10;
/// Streams of HTTP/2 that a client has reset and that hyper has not seen yet; more end the connection.
const RESETS: usize = 20;
/// Streams that may end by a client's breach of the protocol; more end the connection.
const BREACHES: usize = 100;
/// How often a silent HTTP/2 client is asked whether it is there, and how long it may take to answer.
const PING: (Duration, Duration) = (Duration::from_secs(30), Duration::from_secs(20));

/// Where a request came from: an extension of the request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Arrival {
    /// Whether it came through TLS.
    pub(crate) secure: bool,
}

pub(super) struct Connection<H> {
    pub(super) peer: Peer,
    pub(super) setup: Arc<Setup>,
    pub(super) phase: watch::Receiver<Phase>,
    pub(super) answer: H,
}

/// A stream that is ready for requests.
struct Ready {
    stream: Rewound<Wire>,
    is_http2: bool,
}

/// Why there will be none.
enum NotReady {
    Handshake(io::Error),
    Silent,
    Gone(io::Error),
}

impl<H, F> Connection<H>
where
    H: Fn(Request<Incoming>) -> F + Clone + Send + Sync + 'static,
    F: Future<Output = Response<Observed>> + Send + 'static,
{
    /// Serves it until it ends.
    pub(super) async fn serve(mut self, stream: Accepted) {
        let setup = self.setup.clone();
        let ready = tokio::select! {
            ready = prepare(stream, &setup) => ready,
            () = last_request(&mut self.phase) => return,
        };
        match ready {
            Ok(Ready {
                stream,
                is_http2: true,
            }) => self.serve_http2(stream).await,
            Ok(Ready { stream, .. }) => self.serve_http1(stream).await,
            Err(NotReady::Handshake(error)) => {
                tracing::debug!(peer = %self.peer, %error, "no TLS handshake");
                self.ended(End::Handshake);
            }
            Err(NotReady::Silent) => self.ended(End::HeadTime),
            Err(NotReady::Gone(error)) => {
                tracing::debug!(peer = %self.peer, %error, "connection ended");
            }
        }
    }

    async fn serve_http1(self, stream: Rewound<Wire>) {
        let limits = &self.setup.limits;
        let activity = Activity::new();
        let mut builder = http1::Builder::new();
        builder
            .timer(TokioTimer::new())
            .header_read_timeout(limits.head_time)
            .max_header_size(limits.head_bytes)
            .max_buf_size(limits.head_bytes.saturating_mul(2).max(8192));
        let connection =
            builder.serve_connection(TokioIo::new(stream), service_fn(self.service(&activity)));
        tokio::pin!(connection);
        let mut phase = self.phase.clone();
        let ended = tokio::select! {
            ended = connection.as_mut() => ended,
            // Answers say from now on that they are the last; see `service`.
            () = async {
                reached(&mut phase, Phase::Draining).await;
                activity.idle_for(LAST_REQUEST, Instant::now()).await;
            } => {
                connection.as_mut().graceful_shutdown();
                tokio::select! {
                    ended = connection => ended,
                    () = last_moment(&mut phase) => Ok(()),
                }
            }
        };
        self.told(ended);
    }

    async fn serve_http2(self, stream: Rewound<Wire>) {
        let limits = &self.setup.limits;
        let activity = Activity::new();
        let setup = self.setup.clone();
        let streams = Streams {
            stall_time: limits.stall_time,
            stalled: move || count(&setup, End::Stalled),
        };
        let mut builder = http2::Builder::new(streams);
        builder
            .timer(TokioTimer::new())
            .max_concurrent_streams(limits.streams)
            .max_header_list_size(u32::try_from(limits.head_bytes).unwrap_or(u32::MAX))
            .initial_stream_window_size(WINDOWS.0)
            .initial_connection_window_size(WINDOWS.1)
            .max_send_buf_size(SEND_BYTES)
            .max_pending_accept_reset_streams(RESETS)
            .max_local_error_reset_streams(BREACHES)
            .keep_alive_interval(PING.0)
            .keep_alive_timeout(PING.1);
        let connection =
            builder.serve_connection(TokioIo::new(stream), service_fn(self.service(&activity)));
        tokio::pin!(connection);
        let mut phase = self.phase.clone();
        let begun = Instant::now();
        let draining = async |phase: &mut watch::Receiver<Phase>| {
            tokio::select! {
                () = reached(phase, Phase::Draining) => None,
                () = activity.idle_for(limits.head_time, begun) => Some(End::Idle),
            }
        };
        let ended = tokio::select! {
            ended = connection.as_mut() => ended,
            () = activity.flooded.notified() => return self.ended(End::Resets),
            idle = draining(&mut phase) => {
                // The client is told that what it sends from now on is not heard (GOAWAY).
                connection.as_mut().graceful_shutdown();
                let left = async {
                    match idle {
                        // It may have bytes of ours that it does not read.
                        Some(_) => sleep(limits.stall_time).await,
                        None => std::future::pending().await,
                    }
                };
                if let Some(end) = idle {
                    count(&self.setup, end);
                }
                tokio::select! {
                    ended = connection => ended,
                    () = activity.flooded.notified() => return self.ended(End::Resets),
                    () = left => Ok(()),
                    () = last_moment(&mut phase) => Ok(()),
                }
            }
        };
        self.told(ended);
    }

    /// What hyper calls for each request.
    fn service(&self, activity: &Arc<Activity>) -> impl Service + use<H, F> {
        let (activity, answer) = (activity.clone(), self.answer.clone());
        let (phase, secure) = (self.phase.clone(), self.setup.tls.is_some());
        move |mut request: Request<Incoming>| {
            let running = activity.begin();
            let one_by_one = request.version() < Version::HTTP_2;
            request.extensions_mut().insert(Arrival { secure });
            let (answering, phase) = (answer(request), phase.clone());
            Box::pin(async move {
                let mut answer = answering.await;
                if one_by_one && *phase.borrow() >= Phase::Draining {
                    let last = HeaderValue::from_static("close");
                    answer.headers_mut().insert(CONNECTION, last);
                }
                Ok(Outgoing::of(answer, running, &phase))
            })
        }
    }

    /// Notes how hyper left it.
    fn told(&self, ended: hyper::Result<()>) {
        let Err(error) = ended else {
            return;
        };
        tracing::debug!(peer = %self.peer, %error, "connection ended");
        if error.is_timeout() {
            self.ended(End::HeadTime);
        } else if is_stall(&error) {
            self.ended(End::Stalled);
        }
    }

    fn ended(&self, end: End) {
        count(&self.setup, end);
    }
}

/// What hyper calls for each request.
trait Service:
    Fn(Request<Incoming>) -> Pin<Box<dyn Future<Output = Answered> + Send>> + Send + 'static
{
}

impl<S> Service for S where
    S: Fn(Request<Incoming>) -> Pin<Box<dyn Future<Output = Answered> + Send>> + Send + 'static
{
}

type Answered = Result<Response<Outgoing>, Infallible>;

/// Shakes hands where that is wanted, and finds out which HTTP is spoken.
async fn prepare(stream: Accepted, setup: &Setup) -> Result<Ready, NotReady> {
    let limits = &setup.limits;
    let wire = match (stream, &setup.tls) {
        (Accepted::Tcp(stream), Some(tls)) => {
            let stream = StallLimit::new(stream, limits.stall_time);
            let acceptor = tls.acceptor().await;
            let stream = timeout(limits.handshake_time, acceptor.accept(stream))
                .await
                .unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
                .map_err(NotReady::Handshake)?;
            let is_http2 = stream.get_ref().1.alpn_protocol() == Some(tls::HTTP2);
            return Ok(Ready {
                stream: Rewound::untouched(Wire::Tls(Box::new(stream))),
                is_http2,
            });
        }
        (Accepted::Tcp(stream), None) => Wire::Tcp(StallLimit::new(stream, limits.stall_time)),
        // It does not leave the machine.
        (Accepted::Unix(stream), _) => Wire::Unix(StallLimit::new(stream, limits.stall_time)),
        (Accepted::Memory(stream), _) => Wire::Memory(StallLimit::new(stream, limits.stall_time)),
    };
    let (is_http2, stream) = timeout(limits.head_time, sniff(wire))
        .await
        .map_err(|_| NotReady::Silent)?
        .map_err(NotReady::Gone)?;
    Ok(Ready { stream, is_http2 })
}

/// Returns when the server drains and a request that was under way would have come.
async fn last_request(phase: &mut watch::Receiver<Phase>) {
    reached(phase, Phase::Draining).await;
    sleep(LAST_REQUEST).await;
}

/// Returns when the time to end is over, and what could be ended whole has been.
async fn last_moment(phase: &mut watch::Receiver<Phase>) {
    reached(phase, Phase::Ending).await;
    sleep(LAST_MOMENT).await;
}

fn count(setup: &Setup, end: End) {
    if let Some(traffic) = &setup.traffic {
        traffic.ended(end);
    }
}

/// Whether the stall limit is what ended a connection.
fn is_stall(error: &(dyn Error + 'static)) -> bool {
    let mut cause = Some(error);
    while let Some(error) = cause {
        if let Some(error) = error.downcast_ref::<io::Error>() {
            return error.kind() == io::ErrorKind::TimedOut;
        }
        cause = error.source();
    }
    false
}
