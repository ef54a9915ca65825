//! A client that controls its connections: HTTP/1.1 or HTTP/2, with or without TLS, one or more requests
//! on each.

use crate::response::Response as WholeResponse;
use crate::tls::TrustedRoot;
use bytes::Bytes;
use http::{Request, Response};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full};
use hyper::body::{Body, Frame, Incoming};
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::mpsc;

/// The HTTP version of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HttpVersion {
    /// HTTP/1.1
    Http1,
    /// HTTP/2; without TLS by prior knowledge.
    Http2,
}

/// A client connection.
#[derive(Clone)]
pub struct Connection {
    sender: Sender,
    authority: String,
}

#[derive(Clone)]
enum Sender {
    /// One request at a time.
    Http1(std::sync::Arc<tokio::sync::Mutex<http1::SendRequest<RequestBody>>>),
    Http2(http2::SendRequest<RequestBody>),
}

type RequestBody = UnsyncBoxBody<Bytes, Infallible>;

/// Sends the rest of a request body. Dropping it ends the body.
pub struct BodySender(mpsc::UnboundedSender<Bytes>);

struct ChannelBody(mpsc::UnboundedReceiver<Bytes>);

impl Body for ChannelBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let received = self.0.poll_recv(cx);
        received.map(|chunk| chunk.map(|chunk| Ok(Frame::data(chunk))))
    }
}

/// A response whose body has not arrived yet.
pub struct PendingResponse(Response<Incoming>);

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// Runs a future on a runtime of its own. Panics after [`TIMEOUT`](crate::TIMEOUT).
pub fn block_on<F: Future>(future: F) -> F::Output {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .expect("a runtime")
        .block_on(async { tokio::time::timeout(crate::TIMEOUT, future).await })
        .expect("the future ends in time")
}

impl Connection {
    /// Connects to `address`, `HOST:PORT`.
    pub async fn connect(
        address: &str,
        version: HttpVersion,
        trust: Option<&TrustedRoot>,
    ) -> Result<Self, BoxError> {
        let stream = TcpStream::connect(address).await?;
        let sender = match trust {
            None => Self::handshake(stream, version).await?,
            Some(trust) => {
                let wanted: &[u8] = match version {
                    HttpVersion::Http1 => b"http/1.1",
                    HttpVersion::Http2 => b"h2",
                };
                let stream = trust.connect(stream, &[wanted]).await?;
                assert_eq!(stream.get_ref().1.alpn_protocol(), Some(wanted));
                Self::handshake(stream, version).await?
            }
        };
        Ok(Connection {
            sender,
            authority: address.to_owned(),
        })
    }

    async fn handshake<S>(stream: S, version: HttpVersion) -> Result<Sender, BoxError>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let stream = TokioIo::new(stream);
        Ok(match version {
            HttpVersion::Http1 => {
                let (sender, connection) = http1::handshake(stream).await?;
                tokio::spawn(connection);
                Sender::Http1(std::sync::Arc::new(sender.into()))
            }
            HttpVersion::Http2 => {
                let (sender, connection) = http2::Builder::new(TokioExecutor::new())
                    // Small, so that the server soon notices a client that does not read.
                    .initial_stream_window_size(65_535)
                    .handshake(stream)
                    .await?;
                tokio::spawn(connection);
                Sender::Http2(sender)
            }
        })
    }

    /// Whether the server has not closed the connection.
    pub async fn is_open(&self) -> bool {
        match &self.sender {
            Sender::Http1(sender) => !sender.lock().await.is_closed(),
            Sender::Http2(sender) => !sender.is_closed(),
        }
    }

    /// Sends a request with these headers, `POST` if it has a body, and waits for the response head.
    pub async fn send(
        &self,
        path: &str,
        headers: &[(&str, &str)],
        body: &str,
    ) -> Result<PendingResponse, hyper::Error> {
        let method = if body.is_empty() { "GET" } else { "POST" };
        let body = Full::from(body.to_owned()).boxed_unsync();
        self.send_body(method, path, headers, body).await
    }

    /// Sends a `POST` whose body goes on until [`BodySender`] is dropped, and waits for the
    /// response head.
    pub async fn begin(&self, path: &str) -> Result<(PendingResponse, BodySender), hyper::Error> {
        let (sender, body) = mpsc::unbounded_channel();
        let body = ChannelBody(body).boxed_unsync();
        let response = self.send_body("POST", path, &[], body).await?;
        Ok((response, BodySender(sender)))
    }

    async fn send_body(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: RequestBody,
    ) -> Result<PendingResponse, hyper::Error> {
        let authority = &self.authority;
        let mut request = Request::builder().method(method);
        request = match self.sender {
            Sender::Http1(_) => request.uri(path).header("host", authority),
            Sender::Http2(_) => request.uri(format!("http://{authority}{path}")),
        };
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(body).expect("a request");
        Ok(PendingResponse(match &self.sender {
            Sender::Http1(sender) => {
                let mut sender = sender.lock().await;
                sender.ready().await?;
                sender.send_request(request).await?
            }
            Sender::Http2(sender) => sender.clone().send_request(request).await?,
        }))
    }

    /// Sends a `HEAD` request, and reads the whole response.
    pub async fn head(&self, path: &str) -> Result<WholeResponse, hyper::Error> {
        let body = Full::from(String::new()).boxed_unsync();
        let response = self.send_body("HEAD", path, &[], body).await?;
        response.whole().await
    }

    /// [`send`](Self::send), and reads the whole response.
    pub async fn request(
        &self,
        path: &str,
        headers: &[(&str, &str)],
        body: &str,
    ) -> Result<WholeResponse, hyper::Error> {
        self.send(path, headers, body).await?.whole().await
    }
}

impl BodySender {
    /// Sends a chunk; ignores a server that no longer reads.
    pub fn send(&self, chunk: &str) {
        let _ = self.0.send(Bytes::from(chunk.to_owned()));
    }
}

impl PendingResponse {
    /// HTTP status.
    pub fn status(&self) -> u16 {
        self.0.status().as_u16()
    }

    /// The next chunk of the body; `None` at its end.
    pub async fn chunk(&mut self) -> Option<Result<Bytes, hyper::Error>> {
        let frame = self.0.body_mut().frame().await?;
        Some(frame.map(|frame| frame.into_data().unwrap_or_default()))
    }

    /// Reads the rest of the body. Fails if the connection is cut off.
    pub async fn whole(self) -> Result<WholeResponse, hyper::Error> {
        let (head, body) = self.0.into_parts();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let headers = head.headers.iter();
        Ok(WholeResponse {
            status: head.status.as_u16(),
            headers: headers
                .map(|(name, value)| (name.as_str().to_owned(), text(value.as_bytes())))
                .collect(),
            body: text(&body.collect().await?.to_bytes()),
        })
    }
}
