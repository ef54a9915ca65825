//! A client that decides itself what its connections are: HTTP/1.1 or HTTP/2, encrypted or not, one or
//! many requests on each.

use crate::http::Answer;
use crate::tls::Trust;
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

/// Which HTTP a connection speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    /// HTTP/1.1
    Http1,
    /// HTTP/2; without TLS the client knows that the server speaks it.
    Http2,
}

/// A connection.
#[derive(Clone)]
pub struct Client {
    sender: Sender,
    authority: String,
}

#[derive(Clone)]
enum Sender {
    /// One request at a time.
    Http1(std::sync::Arc<tokio::sync::Mutex<http1::SendRequest<Outgoing>>>),
    Http2(http2::SendRequest<Outgoing>),
}

type Outgoing = UnsyncBoxBody<Bytes, Infallible>;

/// The rest of a request's body; it ends when this is dropped.
pub struct Rest(mpsc::UnboundedSender<Bytes>);

struct Coming(mpsc::UnboundedReceiver<Bytes>);

impl Body for Coming {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let received = self.0.poll_recv(cx);
        received.map(|piece| piece.map(|piece| Ok(Frame::data(piece))))
    }
}

/// An answer that is still coming.
pub struct Reply(Response<Incoming>);

type Failed = Box<dyn std::error::Error + Send + Sync>;

/// Runs a test's own future. Panics if it takes too long.
pub fn block_on<F: Future>(future: F) -> F::Output {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .expect("a runtime")
        .block_on(async { tokio::time::timeout(crate::PATIENCE, future).await })
        .expect("it ends")
}

impl Client {
    /// Connects to `address`, `HOST:PORT`.
    pub async fn connect(
        address: &str,
        version: Version,
        trust: Option<&Trust>,
    ) -> Result<Self, Failed> {
        let stream = TcpStream::connect(address).await?;
        let sender = match trust {
            None => Self::handshake(stream, version).await?,
            Some(trust) => {
                let wanted: &[u8] = match version {
                    Version::Http1 => b"http/1.1",
                    Version::Http2 => b"h2",
                };
                let stream = trust.connect(stream, &[wanted]).await?;
                assert_eq!(stream.get_ref().1.alpn_protocol(), Some(wanted));
                Self::handshake(stream, version).await?
            }
        };
        Ok(Client {
            sender,
            authority: address.to_owned(),
        })
    }

    async fn handshake<S>(stream: S, version: Version) -> Result<Sender, Failed>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let stream = TokioIo::new(stream);
        Ok(match version {
            Version::Http1 => {
                let (sender, connection) = http1::handshake(stream).await?;
                tokio::spawn(connection);
                Sender::Http1(std::sync::Arc::new(sender.into()))
            }
            Version::Http2 => {
                let (sender, connection) = http2::Builder::new(TokioExecutor::new())
                    // Small, so that who does not read is noticed soon.
                    .initial_stream_window_size(65_535)
                    .handshake(stream)
                    .await?;
                tokio::spawn(connection);
                Sender::Http2(sender)
            }
        })
    }

    /// Sends a request with these headers, `POST` if there is a body, and waits for the head of its
    /// answer.
    pub async fn send(
        &self,
        path: &str,
        headers: &[(&str, &str)],
        body: &str,
    ) -> Result<Reply, hyper::Error> {
        let method = if body.is_empty() { "GET" } else { "POST" };
        let body = Full::from(body.to_owned()).boxed_unsync();
        self.send_body(method, path, headers, body).await
    }

    /// Sends a `POST` whose body goes on until [`Rest`] is dropped, and waits for the head of its answer.
    pub async fn begin(&self, path: &str) -> Result<(Reply, Rest), hyper::Error> {
        let (sender, body) = mpsc::unbounded_channel();
        let body = Coming(body).boxed_unsync();
        let reply = self.send_body("POST", path, &[], body).await?;
        Ok((reply, Rest(sender)))
    }

    async fn send_body(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: Outgoing,
    ) -> Result<Reply, hyper::Error> {
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
        Ok(Reply(match &self.sender {
            Sender::Http1(sender) => {
                let mut sender = sender.lock().await;
                sender.ready().await?;
                sender.send_request(request).await?
            }
            Sender::Http2(sender) => sender.clone().send_request(request).await?,
        }))
    }

    /// The same, and reads the answer to its end.
    pub async fn ask(
        &self,
        path: &str,
        headers: &[(&str, &str)],
        body: &str,
    ) -> Result<Answer, hyper::Error> {
        self.send(path, headers, body).await?.whole().await
    }
}

impl Rest {
    /// Sends a piece. Whether the server still reads it does not matter here.
    pub fn send(&self, piece: &str) {
        let _ = self.0.send(Bytes::from(piece.to_owned()));
    }
}

impl Reply {
    /// HTTP status.
    pub fn status(&self) -> u16 {
        self.0.status().as_u16()
    }

    /// The next piece of its body; nothing at its end.
    pub async fn piece(&mut self) -> Option<Result<Bytes, hyper::Error>> {
        let frame = self.0.body_mut().frame().await?;
        Some(frame.map(|frame| frame.into_data().unwrap_or_default()))
    }

    /// All that is left of it. An error if it is cut off.
    pub async fn whole(self) -> Result<Answer, hyper::Error> {
        let (head, body) = self.0.into_parts();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let headers = head.headers.iter();
        Ok(Answer {
            status: head.status.as_u16(),
            headers: headers
                .map(|(name, value)| (name.as_str().to_owned(), text(value.as_bytes())))
                .collect(),
            body: text(&body.collect().await?.to_bytes()),
        })
    }
}
