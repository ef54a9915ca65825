//! The request's body on its way to the plugin: not longer than the plugin's limit.
//!
//! A client may also stop in the midst of its body: when nothing of one that is waited for has come for
//! a while, it is given up.
//!
//! A plugin whose request is cut off answers whatever it makes of that. So a body that ends badly
//! leaves a mark, and the server can say in the plugin's place whose fault it was.
//!
//! Who is answered before the whole request was read still has bytes on the way. A server that closes
//! the connection then destroys its own answer: the client is told of a broken pipe. So what nobody
//! reads is thrown away here, up to a bound, while the answer goes out.

use bytes::Bytes;
use corral_runtime::PolledFrame;
use http_body::{Body, SizeHint};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::time::{Instant, Sleep, sleep};

/// Bytes that are read only to be thrown away. Who sends more sees a broken connection.
const LINGER: u64 = 16 << 20;

/// How a body has come so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum State {
    /// Nothing is wrong yet.
    Good,
    /// It went beyond its limit.
    TooLarge,
    /// The client did not send it to its end, or not as HTTP wants it.
    Broken,
    /// The client sent nothing for too long.
    Stalled,
}

/// Tells how a body came, after the body itself has been given away.
#[derive(Clone, Debug)]
pub(crate) struct Mark(Arc<AtomicU8>);

impl Mark {
    fn set(&self, state: State) {
        self.0.store(state as u8, Ordering::Release);
    }

    pub(crate) fn state(&self) -> State {
        match self.0.load(Ordering::Acquire) {
            mark if mark == State::TooLarge as u8 => State::TooLarge,
            mark if mark == State::Broken as u8 => State::Broken,
            mark if mark == State::Stalled as u8 => State::Stalled,
            _ => State::Good,
        }
    }
}

/// Why the body ended early.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Cut {
    #[error("the request's body is larger than {0} bytes")]
    TooLarge(u64),
    #[error("the request's body was not sent to its end: {0}")]
    Client(#[source] Box<dyn std::error::Error + Send + Sync>),
    #[error("nothing came of the request's body for {} s", .0.as_secs_f32())]
    Stalled(Duration),
}

/// A body of at most `limit` bytes. What is left of it when it is dropped is thrown away.
pub(crate) struct Capped<B>
where
    B: Body<Data = Bytes> + Send + Unpin + 'static,
{
    /// There until it is dropped.
    inner: Option<B>,
    limit: u64,
    seen: u64,
    mark: Mark,
    /// Called when it goes beyond its limit.
    too_large: Option<Box<dyn FnOnce() + Send>>,
    /// How long to throw away; not at all when nothing is left, or nothing should be asked for.
    linger: Option<Duration>,
    /// How long to wait for more of it.
    patience: Duration,
    /// Runs while somebody waits. Made by the first who does: most bodies are there at once.
    waiting: Option<Pin<Box<Sleep>>>,
    is_waiting: bool,
}

impl<B> Capped<B>
where
    B: Body<Data = Bytes> + Send + Unpin + 'static,
{
    /// A body that has no limit yet. It is given up when nothing comes for `patience`.
    pub(crate) fn new(inner: B, linger: Option<Duration>, patience: Duration) -> (Self, Mark) {
        let mark = Mark(Arc::new(AtomicU8::new(State::Good as u8)));
        let body = Capped {
            inner: Some(inner),
            limit: u64::MAX,
            seen: 0,
            mark: mark.clone(),
            too_large: None,
            linger,
            patience,
            waiting: None,
            is_waiting: false,
        };
        (body, mark)
    }

    /// Sets the limit, in bytes.
    pub(crate) fn limit(&mut self, limit: u64) -> &mut Self {
        self.limit = limit;
        self
    }

    /// Has `note` called, once, when it goes beyond its limit.
    pub(crate) fn when_too_large(&mut self, note: impl FnOnce() + Send + 'static) {
        self.too_large = Some(Box::new(note));
    }

    /// Polls the body within, and notes when it can't be read any further.
    fn poll_inner(&mut self, cx: &mut Context<'_>) -> PolledFrame<B::Error> {
        let Some(inner) = &mut self.inner else {
            return Poll::Ready(None);
        };
        let polled = Pin::new(inner).poll_frame(cx);
        if let Poll::Ready(None | Some(Err(_))) = polled {
            self.linger = None;
        }
        polled
    }

    /// Ready when nothing has come for too long. Only asked while nothing comes.
    fn poll_patience(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let patience = self.patience;
        let timer = self
            .waiting
            .get_or_insert_with(|| Box::pin(sleep(patience)));
        if !self.is_waiting {
            timer.as_mut().reset(Instant::now() + patience);
            self.is_waiting = true;
        }
        timer.as_mut().poll(cx)
    }
}

impl<B> Drop for Capped<B>
where
    B: Body<Data = Bytes> + Send + Unpin + 'static,
{
    fn drop(&mut self) {
        if let (Some(inner), Some(time)) = (self.inner.take(), self.linger)
            && !inner.is_end_stream()
        {
            discard(inner, time);
        }
    }
}

impl<B> Body for Capped<B>
where
    B: Body<Data = Bytes> + Send + Unpin + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    type Data = Bytes;
    type Error = Cut;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> PolledFrame<Cut> {
        loop {
            let polled = self.poll_inner(cx);
            if polled.is_pending() {
                ready!(self.poll_patience(cx));
                self.mark.set(State::Stalled);
                // Nothing is on the way that would destroy the answer.
                self.linger = None;
                return Poll::Ready(Some(Err(Cut::Stalled(self.patience))));
            }
            self.is_waiting = false;
            let frame = match ready!(polled) {
                Some(Ok(frame)) => frame,
                Some(Err(error)) if self.seen <= self.limit => {
                    self.mark.set(State::Broken);
                    return Poll::Ready(Some(Err(Cut::Client(error.into()))));
                }
                None if self.seen <= self.limit => return Poll::Ready(None),
                Some(Err(_)) | None => return Poll::Ready(Some(Err(Cut::TooLarge(self.limit)))),
            };
            let bytes = frame.data_ref().map_or(0, |data| data.len() as u64);
            self.seen = self.seen.saturating_add(bytes);
            if self.seen <= self.limit {
                return Poll::Ready(Some(Ok(frame)));
            }
            self.mark.set(State::TooLarge);
            if let Some(note) = self.too_large.take() {
                note();
            }
            if self.seen - self.limit > LINGER {
                self.linger = None;
                return Poll::Ready(Some(Err(Cut::TooLarge(self.limit))));
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.inner.as_ref().is_none_or(Body::is_end_stream) && self.seen <= self.limit
    }

    fn size_hint(&self) -> SizeHint {
        self.inner
            .as_ref()
            .map_or_else(SizeHint::default, Body::size_hint)
    }
}

/// Throws away what the client still sends, up to [`LINGER`] bytes and for at most `time`, on a task
/// of its own: a rare thing, so a task is cheap enough. Outside of tokio it does nothing.
fn discard<B>(body: B, time: Duration)
where
    B: Body<Data = Bytes> + Send + Unpin + 'static,
{
    if let Ok(tokio) = tokio::runtime::Handle::try_current() {
        // Out of time is as good as read.
        tokio.spawn(async move { drop(tokio::time::timeout(time, read_away(body)).await) });
    }
}

async fn read_away<B>(mut body: B)
where
    B: Body<Data = Bytes> + Unpin,
{
    let mut left = LINGER;
    while let Some(Ok(frame)) = std::future::poll_fn(|cx| Pin::new(&mut body).poll_frame(cx)).await
    {
        let bytes = frame.data_ref().map_or(0, |data| data.len() as u64);
        match left.checked_sub(bytes) {
            Some(rest) => left = rest,
            None => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http_body::Frame;
    use http_body_util::{BodyExt, Full};

    fn capped<B>(inner: B, linger: Option<Duration>) -> (Capped<B>, Mark)
    where
        B: Body<Data = Bytes> + Send + Unpin + 'static,
    {
        let (mut body, mark) = Capped::new(inner, linger, Duration::from_secs(30));
        body.limit(8);
        (body, mark)
    }

    /// A body of whatever is made next.
    struct Made<F>(F);

    impl<F, E> Body for Made<F>
    where
        F: FnMut() -> Option<Result<Bytes, E>> + Unpin,
    {
        type Data = Bytes;
        type Error = E;

        fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> PolledFrame<E> {
            Poll::Ready((self.0)().map(|made| made.map(Frame::data)))
        }
    }

    #[tokio::test]
    async fn a_body_at_its_limit_passes() {
        let (body, mark) = capped(Full::new(Bytes::from_static(b"12345678")), None);
        let read = body.collect().await.expect("8 of 8 bytes").to_bytes();
        assert_eq!(&read[..], b"12345678");
        assert_eq!(mark.state(), State::Good);
    }

    #[tokio::test]
    async fn a_byte_more_is_an_error_and_leaves_a_mark() {
        let (mut body, mark) = capped(Full::new(Bytes::from_static(b"123456789")), None);
        let noted = Arc::new(AtomicU8::new(0));
        let note = Arc::clone(&noted);
        body.when_too_large(move || {
            note.fetch_add(1, Ordering::Relaxed);
        });
        let error = body.collect().await.expect_err("9 of 8 bytes");
        assert_eq!(
            error.to_string(),
            "the request's body is larger than 8 bytes"
        );
        assert_eq!(mark.state(), State::TooLarge);
        assert_eq!(noted.load(Ordering::Relaxed), 1);
    }

    #[tokio::test]
    async fn an_endless_body_is_not_read_for_ever() {
        let endless = || {
            let mut asked = 0;
            Made(move || {
                asked += 1;
                assert!(asked < 1000, "still being read");
                Some(Ok::<_, std::convert::Infallible>(Bytes::from_static(
                    &[0; 1 << 20],
                )))
            })
        };
        let (body, mark) = capped(endless(), None);
        assert!(body.collect().await.is_err());
        assert_eq!(mark.state(), State::TooLarge);
        read_away(endless()).await;
    }

    #[tokio::test]
    async fn a_body_that_breaks_off_leaves_another_mark() {
        let broken = Made(|| Some(Err(std::io::Error::from(std::io::ErrorKind::UnexpectedEof))));
        let (body, mark) = capped(broken, None);
        assert!(body.collect().await.is_err());
        assert_eq!(mark.state(), State::Broken);
    }

    /// A body that comes through a channel.
    struct Sent(tokio::sync::mpsc::Receiver<Bytes>);

    impl Body for Sent {
        type Data = Bytes;
        type Error = std::convert::Infallible;

        fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> PolledFrame<Self::Error> {
            let received = ready!(self.0.poll_recv(cx));
            Poll::Ready(received.map(|data| Ok(Frame::data(data))))
        }
    }

    #[tokio::test]
    async fn a_client_that_stops_is_given_up_and_a_slow_one_is_not() {
        const PATIENCE: Duration = Duration::from_secs(1);
        for (pauses, stops) in [(8, false), (1, true)] {
            let (sender, body) = tokio::sync::mpsc::channel(1);
            let (mut body, mark) = Capped::new(Sent(body), None, PATIENCE);
            body.limit(100);
            let began = Instant::now();
            let reader = tokio::spawn(body.collect());
            for _ in 0..pauses {
                // Each within the patience, all of them together beyond it.
                sleep(PATIENCE / 6).await;
                sender.send(Bytes::from_static(b"x")).await.expect("read");
            }
            let held = stops.then_some(sender);
            let read = reader.await.expect("no panic");
            assert!(began.elapsed() > PATIENCE);
            assert_eq!(read.is_err(), stops);
            let expected = if stops { State::Stalled } else { State::Good };
            assert_eq!(mark.state(), expected);
            drop(held);
        }
    }

    #[tokio::test]
    async fn what_is_left_is_thrown_away_unless_it_should_not_be_asked_for() {
        for (linger, read) in [(Some(Duration::from_secs(5)), 5), (None, 1)] {
            let (sender, mut receiver) = tokio::sync::mpsc::unbounded_channel();
            let mut asked = 0;
            let pieces = Made(move || {
                asked += 1;
                let _ = sender.send(asked);
                (asked < 5).then(|| Ok::<_, std::convert::Infallible>(Bytes::from_static(b"x")))
            });
            let (mut body, _) = capped(pieces, linger);
            body.frame().await.expect("a piece").expect("no error");
            drop(body);
            let mut last = 0;
            while let Some(piece) = receiver.recv().await {
                last = piece;
            }
            assert_eq!(last, read);
        }
    }
}
