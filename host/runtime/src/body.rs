//! Bodies: a response's on its way out, and the bound on a request's on its way in.

use crate::call::Handle;
use crate::failure::Failure;
use bytes::Bytes;
use http_body::{Frame, SizeHint};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use tokio::sync::mpsc;
use wasmtime_wasi_http::{Error, WasiBody};

/// What polling a body gives: a frame, its end, or how it failed.
pub type Polled<E = Failure> = Poll<Option<Result<Frame<Bytes>, E>>>;

/// The body of a response, from a plugin or from the host itself.
///
/// A plugin's body is the plugin's stream: frames pass through as they are, and reading slowly holds
/// the plugin up. It ends with an error if the plugin fails on the way, so that the client can tell a
/// whole answer from a broken one. Dropping it before its end stops the plugin.
#[derive(Debug, Default)]
pub struct Body(Kind);

#[derive(Default)]
enum Kind {
    #[default]
    Empty,
    Full(Bytes),
    Plugin(Box<FromPlugin>),
    Pieces(mpsc::Receiver<Bytes>),
}

impl std::fmt::Debug for Kind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Kind::Empty => "Empty",
            Kind::Full(_) => "Full",
            Kind::Plugin(_) => "Plugin",
            Kind::Pieces(_) => "Pieces",
        })
    }
}

struct FromPlugin {
    /// Dropped first: who goes away stops the call before the plugin hears that nobody reads.
    call: Handle,
    body: WasiBody,
    /// What is left of the length that the plugin announced. Who reads by that length drops the
    /// body after its last byte, before the plugin's stream has ended.
    left: Option<u64>,
    /// Bytes that it may still have, of how many.
    room: (u64, u64),
    ended: bool,
}

impl Body {
    /// No body.
    pub fn empty() -> Self {
        Self::default()
    }

    /// A body of the host's own that comes bit by bit, and ends with its sender. Who no longer reads it
    /// closes the channel.
    pub fn pieces(pieces: mpsc::Receiver<Bytes>) -> Self {
        Self(Kind::Pieces(pieces))
    }

    /// A plugin's body, `length` bytes long if the plugin announced that, and at most `most`.
    pub(crate) fn from_plugin(
        body: WasiBody,
        call: Handle,
        length: Option<u64>,
        most: u64,
    ) -> Self {
        Self(Kind::Plugin(Box::new(FromPlugin {
            body,
            call,
            left: length,
            room: (most, most),
            ended: false,
        })))
    }
}

impl From<Bytes> for Body {
    fn from(bytes: Bytes) -> Self {
        if bytes.is_empty() {
            Self(Kind::Empty)
        } else {
            Self(Kind::Full(bytes))
        }
    }
}

impl From<Vec<u8>> for Body {
    fn from(bytes: Vec<u8>) -> Self {
        Bytes::from(bytes).into()
    }
}

impl From<String> for Body {
    fn from(text: String) -> Self {
        Bytes::from(text).into()
    }
}

impl From<&'static str> for Body {
    fn from(text: &'static str) -> Self {
        Bytes::from_static(text.as_bytes()).into()
    }
}

impl http_body::Body for Body {
    type Data = Bytes;
    type Error = Failure;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Polled {
        match &mut self.0 {
            Kind::Empty => Poll::Ready(None),
            Kind::Full(bytes) => {
                let bytes = std::mem::take(bytes);
                self.0 = Kind::Empty;
                Poll::Ready(Some(Ok(Frame::data(bytes))))
            }
            Kind::Plugin(plugin) => plugin.poll_frame(cx),
            Kind::Pieces(pieces) => {
                let piece = pieces.poll_recv(cx);
                piece.map(|piece| piece.map(|piece| Ok(Frame::data(piece))))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.0 {
            Kind::Empty => true,
            Kind::Full(_) | Kind::Pieces(_) => false,
            Kind::Plugin(plugin) => plugin.is_end(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.0 {
            Kind::Empty => SizeHint::with_exact(0),
            Kind::Full(bytes) => SizeHint::with_exact(bytes.len() as u64),
            Kind::Plugin(plugin) => plugin.body.size_hint(),
            Kind::Pieces(_) => SizeHint::default(),
        }
    }
}

impl FromPlugin {
    fn is_end(&self) -> bool {
        use http_body::Body;
        let nothing_left = self.left == Some(0) || self.body.is_end_stream();
        self.ended || (nothing_left && self.call.failure().is_none())
    }

    fn poll_frame(&mut self, cx: &mut Context<'_>) -> Polled {
        use http_body::Body;
        if self.ended {
            return Poll::Ready(None);
        }
        let frame = ready!(Pin::new(&mut self.body).poll_frame(cx));
        // A store that is dropped closes the body as a plugin does that has said everything. The
        // failure is noted before the store is dropped, so it can't be missed here.
        let frame = match frame {
            Some(Ok(frame)) => {
                let bytes = frame.data_ref().map_or(0, |data| data.len() as u64);
                if let Some(left) = &mut self.left {
                    *left = left.saturating_sub(bytes);
                }
                let (room, limit) = &mut self.room;
                match room.checked_sub(bytes) {
                    Some(left) => {
                        *room = left;
                        self.call.sent(bytes);
                        Some(Ok(frame))
                    }
                    None => {
                        let limit = *limit;
                        Some(Err(self.call.fail(Failure::ResponseTooLarge { limit })))
                    }
                }
            }
            Some(Err(error)) => Some(Err(self.call.failure().unwrap_or_else(|| {
                Failure::GaveUp {
                    message: error.to_string(),
                }
            }))),
            None => self.call.failure().map(Err),
        };
        self.ended = !matches!(frame, Some(Ok(_)));
        Poll::Ready(frame)
    }
}

impl Drop for FromPlugin {
    fn drop(&mut self) {
        // After the last frame the plugin may still have something to do, such as a line to log.
        if self.is_end() {
            self.call.let_finish();
        }
    }
}

/// A request's body as `wasi:http` takes it, cut off with an error after `limit` bytes.
pub(crate) fn inbound<B>(body: B, limit: usize) -> WasiBody
where
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let explain = move |error: Box<dyn std::error::Error + Send + Sync>| {
        if error.is::<LengthLimitError>() {
            return Error::HttpRequestBodySize(Some(limit as u64));
        }
        tracing::debug!(%error, "the request's body broke off");
        Error::ConnectionTerminated
    };
    Limited::new(body, limit).map_err(explain).boxed_unsync()
}

#[cfg(test)]
mod tests {
    use super::*;
    use http_body_util::Full;

    #[tokio::test]
    async fn the_hosts_own_bodies_are_what_they_were_made_of() {
        assert!(http_body::Body::is_end_stream(&Body::empty()));
        assert!(http_body::Body::is_end_stream(&Body::from("")));
        let body = Body::from("hello");
        assert_eq!(http_body::Body::size_hint(&body).exact(), Some(5));
        assert_eq!(body.collect().await.unwrap().to_bytes(), "hello");
    }

    #[tokio::test]
    async fn pieces_come_as_they_are_sent_and_end_with_their_sender() {
        let (sender, pieces) = mpsc::channel(2);
        let sent = async move {
            for piece in ["a", "bc", "d"] {
                sender.send(Bytes::from(piece)).await.expect("it is read");
            }
        };
        let (read, ()) = tokio::join!(Body::pieces(pieces).collect(), sent);
        assert_eq!(read.unwrap().to_bytes(), "abcd");
        let (sender, pieces) = mpsc::channel::<Bytes>(1);
        drop(Body::pieces(pieces));
        sender.closed().await;
    }

    #[tokio::test]
    async fn a_request_that_is_too_long_is_cut_off() {
        let body = |limit| inbound(Full::new(Bytes::from_static(b"hello")), limit);
        assert_eq!(body(5).collect().await.unwrap().to_bytes(), "hello");
        assert!(matches!(
            body(4).collect().await,
            Err(Error::HttpRequestBodySize(Some(4)))
        ));
    }
}
