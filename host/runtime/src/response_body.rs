//! The body of a response, from a plugin or from the host.

use crate::call_error::CallError;
use crate::call_outcome::{CallCanceler, CallHandle};
use bytes::Bytes;
use http::HeaderMap;
use http::header::CONTENT_LENGTH;
use http_body::{Frame, SizeHint};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use tokio::sync::mpsc;
use wasmtime_wasi_http::WasiBody;

/// Result of polling a body: a frame, the end, or an error.
pub type PolledFrame<E = CallError> = Poll<Option<Result<Frame<Bytes>, E>>>;

/// The body of a response.
///
/// A plugin's body passes the plugin's frames through; a slow reader slows the plugin down. It ends
/// with an error if the plugin fails, so that the client can tell a complete response from a broken one.
/// Dropping it before its end stops the plugin.
#[derive(Debug, Default)]
pub struct Body(Kind);

#[derive(Default)]
enum Kind {
    #[default]
    Empty,
    Full(Bytes),
    Plugin(Box<PluginBody>),
    Channel(mpsc::Receiver<Bytes>),
}

impl std::fmt::Debug for Kind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Kind::Empty => "Empty",
            Kind::Full(_) => "Full",
            Kind::Plugin(_) => "Plugin",
            Kind::Channel(_) => "Channel",
        })
    }
}

struct PluginBody {
    /// Declared first, so that it is dropped first: the call stops before the plugin sees its stream close.
    call: CallHandle,
    body: WasiBody,
    /// Rest of the length that the plugin announced. A reader of that length drops the body after the
    /// last byte, before the plugin's stream ends.
    announced: Option<u64>,
    /// Bytes until the limit.
    room: u64,
    limit: u64,
    ended: bool,
}

impl Body {
    /// An empty body.
    pub fn empty() -> Self {
        Self::default()
    }

    /// A body that streams `chunks` and ends when their sender is dropped. Dropping the body closes the
    /// channel.
    pub fn from_channel(chunks: mpsc::Receiver<Bytes>) -> Self {
        Self(Kind::Channel(chunks))
    }

    /// What can cancel the call that writes it; `None` if there is no call.
    pub fn canceler(&self) -> Option<CallCanceler> {
        match &self.0 {
            Kind::Plugin(plugin) => Some(plugin.call.canceler()),
            Kind::Empty | Kind::Full(_) | Kind::Channel(_) => None,
        }
    }

    /// A plugin's body of at most `limit` bytes, `announced` bytes long if the plugin sent a length.
    pub(crate) fn from_plugin(
        body: WasiBody,
        call: CallHandle,
        announced: Option<u64>,
        limit: u64,
    ) -> Self {
        Self(Kind::Plugin(Box::new(PluginBody {
            body,
            call,
            announced,
            room: limit,
            limit,
            ended: false,
        })))
    }
}

impl<B: Into<Bytes>> From<B> for Body {
    fn from(bytes: B) -> Self {
        let bytes = bytes.into();
        if bytes.is_empty() {
            Self(Kind::Empty)
        } else {
            Self(Kind::Full(bytes))
        }
    }
}

impl http_body::Body for Body {
    type Data = Bytes;
    type Error = CallError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> PolledFrame {
        match &mut self.0 {
            Kind::Empty => Poll::Ready(None),
            Kind::Full(bytes) => {
                let bytes = std::mem::take(bytes);
                self.0 = Kind::Empty;
                Poll::Ready(Some(Ok(Frame::data(bytes))))
            }
            Kind::Plugin(plugin) => plugin.poll_frame(cx),
            Kind::Channel(chunks) => {
                let chunk = chunks.poll_recv(cx);
                chunk.map(|chunk| chunk.map(|chunk| Ok(Frame::data(chunk))))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.0 {
            Kind::Empty => true,
            Kind::Full(_) | Kind::Channel(_) => false,
            Kind::Plugin(plugin) => plugin.is_end(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.0 {
            Kind::Empty => SizeHint::with_exact(0),
            Kind::Full(bytes) => SizeHint::with_exact(bytes.len() as u64),
            Kind::Plugin(plugin) => plugin.body.size_hint(),
            Kind::Channel(_) => SizeHint::default(),
        }
    }
}

impl PluginBody {
    fn is_end(&self) -> bool {
        use http_body::Body;
        let nothing_left = self.announced == Some(0) || self.body.is_end_stream();
        self.ended || (nothing_left && self.call.error().is_none())
    }

    fn poll_frame(&mut self, cx: &mut Context<'_>) -> PolledFrame {
        use http_body::Body;
        if self.ended {
            return Poll::Ready(None);
        }
        let frame = ready!(Pin::new(&mut self.body).poll_frame(cx));
        // Dropping a store closes the body like a regular end. The call records its error before it drops
        // the store, so the error is visible here.
        let frame = match frame {
            Some(Ok(frame)) => {
                let bytes = frame.data_ref().map_or(0, |data| data.len() as u64);
                if let Some(announced) = &mut self.announced {
                    *announced = announced.saturating_sub(bytes);
                }
                match self.room.checked_sub(bytes) {
                    Some(room) => {
                        self.room = room;
                        self.call.frame_sent(bytes);
                        Some(Ok(frame))
                    }
                    None => Some(Err(self
                        .call
                        .fail(CallError::ResponseTooLarge { limit: self.limit }))),
                }
            }
            Some(Err(error)) => Some(Err(self.call.error().unwrap_or_else(|| {
                CallError::ReturnedError {
                    message: error.to_string(),
                }
            }))),
            None => self.call.error().map(Err),
        };
        self.ended = !matches!(frame, Some(Ok(_)));
        Poll::Ready(frame)
    }
}

/// The length of a body that headers announce.
pub(crate) fn content_length(headers: &HeaderMap) -> Option<u64> {
    headers.get(CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
}

impl Drop for PluginBody {
    fn drop(&mut self) {
        // The plugin may have work left after its last frame, such as a log line.
        if self.is_end() {
            self.call.detach();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http_body_util::BodyExt;

    #[tokio::test]
    async fn host_bodies_return_their_content() {
        assert!(http_body::Body::is_end_stream(&Body::empty()));
        assert!(http_body::Body::is_end_stream(&Body::from("")));
        let body = Body::from("hello");
        assert_eq!(http_body::Body::size_hint(&body).exact(), Some(5));
        assert_eq!(body.collect().await.unwrap().to_bytes(), "hello");
    }

    #[tokio::test]
    async fn channel_body_streams_until_sender_drops() {
        let (sender, chunks) = mpsc::channel(2);
        let sent = async move {
            for chunk in ["a", "bc", "d"] {
                sender.send(Bytes::from(chunk)).await.unwrap();
            }
        };
        let (read, ()) = tokio::join!(Body::from_channel(chunks).collect(), sent);
        assert_eq!(read.unwrap().to_bytes(), "abcd");
        let (sender, chunks) = mpsc::channel::<Bytes>(1);
        drop(Body::from_channel(chunks));
        sender.closed().await;
    }
}
