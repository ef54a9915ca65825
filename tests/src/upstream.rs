//! An HTTP server that plugins call.

use crate::Identity;
use bytes::Bytes;
use http::{Request, Response};
use http_body_util::BodyExt;
use hyper::body::{Body, Frame, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use std::convert::Infallible;
use std::future::pending;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;

/// Bytes of a piece of a long body.
const PIECE: usize = 64 << 10;

/// A server on a free port of 127.0.0.1. The path of a request selects the response:
///
/// | path | response |
/// |---|---|
/// | `/text` | the method, the path, the header `x-sent` and the number of bytes of the request's body |
/// | `/trace` | the headers `traceparent` and `tracestate` of the request |
/// | `/redirect?URL` | a redirect to the URL |
/// | `/large?KIB` | a body of so many KiB, without a length before it |
/// | `/header?BYTES` | a header of so many bytes |
/// | `/stalled` | a head and one piece of a body, then nothing |
/// | `/cut` | a body that is shorter than its length says |
/// | others | none |
///
/// Its thread ends with the process.
pub struct Upstream {
    address: SocketAddr,
    scheme: &'static str,
    state: Arc<UpstreamState>,
}

#[derive(Default)]
struct UpstreamState {
    accepted: AtomicUsize,
    open: AtomicUsize,
    requests: Mutex<Vec<String>>,
}

/// Counts an open connection until it is dropped.
struct Open(Arc<UpstreamState>);

impl Drop for Open {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Upstream {
    /// Starts a server.
    pub fn start() -> Self {
        Self::listen(None)
    }

    /// Starts a server with TLS.
    pub fn start_tls(identity: &Identity) -> Self {
        Self::listen(Some(identity.acceptor(&[])))
    }

    fn listen(tls: Option<TlsAcceptor>) -> Self {
        let scheme = if tls.is_some() { "https" } else { "http" };
        let state = Arc::<UpstreamState>::default();
        let shared = Arc::clone(&state);
        let address = listen(move |stream| {
            shared.accepted.fetch_add(1, Ordering::Relaxed);
            shared.open.fetch_add(1, Ordering::Relaxed);
            serve(stream, tls.clone(), Open(Arc::clone(&shared)))
        });
        Upstream {
            address,
            scheme,
            state,
        }
    }

    /// `HOST:PORT`.
    pub fn authority(&self) -> String {
        self.address.to_string()
    }

    /// The port.
    pub fn port(&self) -> u16 {
        self.address.port()
    }

    /// The URL of a path.
    pub fn url(&self, path: &str) -> String {
        format!("{}://{}{path}", self.scheme, self.address)
    }

    /// Connections so far.
    pub fn accepted(&self) -> usize {
        self.state.accepted.load(Ordering::Relaxed)
    }

    /// Open connections.
    pub fn open(&self) -> usize {
        self.state.open.load(Ordering::Relaxed)
    }

    /// Methods and paths of all requests so far.
    pub fn requests(&self) -> Vec<String> {
        self.state.requests.lock().expect("no panic").clone()
    }
}

/// Serves the connections to a free port of 127.0.0.1 on a thread that ends with the process. Returns the address.
pub(crate) fn listen<F>(serve: impl Fn(TcpStream) -> F + Send + 'static) -> SocketAddr
where
    F: Future<Output = ()> + Send + 'static,
{
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("bound");
    listener.set_nonblocking(true).expect("a socket");
    std::thread::spawn(move || {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = runtime.enable_all().build().expect("a runtime");
        runtime.block_on(async {
            let listener = TcpListener::from_std(listener).expect("a socket");
            loop {
                let (stream, _) = listener.accept().await.expect("a connection");
                tokio::spawn(serve(stream));
            }
        });
    });
    address
}

async fn serve(stream: TcpStream, tls: Option<TlsAcceptor>, open: Open) {
    match tls {
        None => exchange(stream, &open.0).await,
        // A client that does not trust the certificate goes away.
        Some(tls) => {
            if let Ok(stream) = tls.accept(stream).await {
                exchange(stream, &open.0).await;
            }
        }
    }
}

async fn exchange(stream: impl AsyncRead + AsyncWrite + Unpin, state: &Arc<UpstreamState>) {
    let service = service_fn(|request| {
        let state = Arc::clone(state);
        async move { Ok::<_, Infallible>(answer(request, &state).await) }
    });
    let mut builder = hyper::server::conn::http1::Builder::new();
    builder.max_buf_size(1 << 20);
    // A client that goes away is no failure.
    let _ = builder
        .serve_connection(TokioIo::new(stream), service)
        .await;
}

async fn answer(request: Request<Incoming>, state: &UpstreamState) -> Response<Pieces> {
    let line = format!("{} {}", request.method(), request.uri());
    state.requests.lock().expect("no panic").push(line.clone());
    let path = request.uri().to_string();
    let (path, query) = path.split_once('?').unwrap_or((&path, ""));
    let number = || query.parse::<usize>().expect("a number");
    let response = Response::builder();
    let response = match path {
        "/text" => {
            let header = request.headers().get("x-sent").cloned();
            let header = header.map_or_else(String::new, |value| {
                value.to_str().expect("ASCII").to_owned()
            });
            let mut body = request.into_body();
            let mut bytes = 0;
            while let Some(frame) = body.frame().await {
                let frame = frame.ok();
                let data = frame.as_ref().and_then(|frame| frame.data_ref());
                bytes += data.map_or(0, Bytes::len);
            }
            let text = format!("{line} {header} {bytes}");
            response.body(Pieces::of(text.into_bytes()))
        }
        "/trace" => {
            let headers = ["traceparent", "tracestate"].map(|name| {
                let value = request.headers().get(name).cloned();
                value.map_or_else(String::new, |value| {
                    value.to_str().expect("ASCII").to_owned()
                })
            });
            response.body(Pieces::of(headers.join(" ").into_bytes()))
        }
        "/redirect" => response
            .status(302)
            .header("location", query)
            .body(Pieces::of(Vec::new())),
        "/large" => response.body(Pieces {
            left: number() << 10,
            ..Pieces::of(Vec::new())
        }),
        "/header" => response
            .header("x-large", "x".repeat(number()))
            .body(Pieces::of(Vec::new())),
        "/stalled" => response.body(Pieces {
            stalls: true,
            ..Pieces::of(b"one piece".to_vec())
        }),
        "/cut" => response
            .header("content-length", 100)
            .body(Pieces::of(b"cut".to_vec())),
        _ => pending().await,
    };
    response.expect("a valid response")
}

/// A body: first these bytes, then as many others.
struct Pieces {
    first: Vec<u8>,
    left: usize,
    /// It never ends.
    stalls: bool,
}

impl Pieces {
    fn of(first: Vec<u8>) -> Self {
        Pieces {
            first,
            left: 0,
            stalls: false,
        }
    }
}

impl Body for Pieces {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let piece = match std::mem::take(&mut self.first) {
            first if first.is_empty() => vec![b'y'; self.left.min(PIECE)],
            first => {
                return Poll::Ready(Some(Ok(Frame::data(first.into()))));
            }
        };
        self.left -= piece.len();
        match piece.is_empty() {
            true if self.stalls => Poll::Pending,
            true => Poll::Ready(None),
            false => Poll::Ready(Some(Ok(Frame::data(piece.into())))),
        }
    }
}
