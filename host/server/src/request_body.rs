//! The body of a request on its way to the plugin: limited in size and in how long the client may pause.
//!
//! A plugin may answer anything when its body is cut off. [`BodyStatus`] outlives the body and tells the
//! server whether to replace that answer with a problem.
//!
//! If a server closes a connection while the client still sends, the client sees a broken pipe instead of
//! the answer. A body that is dropped early therefore discards its rest in the background, within bounds.

use bytes::Bytes;
use corral_runtime::PolledFrame;
use http::HeaderMap;
use http::header::CONTENT_LENGTH;
use http_body::{Body, SizeHint};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::time::{Instant, Sleep, sleep};

/// Most bytes to discard. A client that sends more sees a broken connection.
const MAX_DISCARDED: u64 = 16 << 20;

/// A timer that fires this late shows that the process was stopped. Bytes that arrived during the stop may be unread, so
/// the client's time begins anew, once.
const LATE_TIMER: Duration = Duration::from_secs(1);

/// How the body has arrived so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum BodyState {
    /// No error so far.
    Good,
    /// The body exceeds its limit.
    TooLarge,
    /// The client closed the connection early or violated HTTP.
    Broken,
    /// The client paused for too long.
    Stalled,
}

/// Reports the [`BodyState`] after the body itself has been passed on.
#[derive(Clone, Debug)]
pub(crate) struct BodyStatus(Arc<AtomicU8>);

impl BodyStatus {
    fn set(&self, state: BodyState) {
        self.0.store(state as u8, Ordering::Release);
    }

    pub(crate) fn state(&self) -> BodyState {
        match self.0.load(Ordering::Acquire) {
            state if state == BodyState::TooLarge as u8 => BodyState::TooLarge,
            state if state == BodyState::Broken as u8 => BodyState::Broken,
            state if state == BodyState::Stalled as u8 => BodyState::Stalled,
            _ => BodyState::Good,
        }
    }
}

/// Why the body ended early.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BodyError {
    #[error("the request's body is larger than {0} bytes")]
    TooLarge(u64),
    #[error("the request's body is incomplete: {0}")]
    Client(#[source] Box<dyn std::error::Error + Send + Sync>),
    #[error("the client sent nothing of the request's body for {} s", .0.as_secs_f32())]
    Stalled(Duration),
}

/// A body of at most `limit` bytes. Dropping it discards its rest in the background.
pub(crate) struct RequestBody<B>
where
    B: Body<Data = Bytes> + Send + Unpin + 'static,
{
    /// `None` only while dropping.
    inner: Option<B>,
    limit: u64,
    received: u64,
    status: BodyStatus,
    /// Called once if the body exceeds its limit.
    on_too_large: Option<Box<dyn FnOnce() + Send>>,
    /// How long to discard the rest. `None` if nothing is left, or must not be asked for.
    discard_time: Option<Duration>,
    idle_timeout: Duration,
    /// Runs while a reader waits. Created by the first wait: most bodies arrive at once.
    timer: Option<Pin<Box<Sleep>>>,
    is_waiting: bool,
    /// The timer of this wait has fired late.
    was_late: bool,
}

impl<B> RequestBody<B>
where
    B: Body<Data = Bytes> + Send + Unpin + 'static,
{
    /// A body without a limit. It fails if the client sends nothing for `idle_timeout` while a reader
    /// waits.
    pub(crate) fn new(
        inner: B,
        discard_time: Option<Duration>,
        idle_timeout: Duration,
    ) -> (Self, BodyStatus) {
        let status = BodyStatus(Arc::new(AtomicU8::new(BodyState::Good as u8)));
        let body = RequestBody {
            inner: Some(inner),
            limit: u64::MAX,
            received: 0,
            status: status.clone(),
            on_too_large: None,
            discard_time,
            idle_timeout,
            timer: None,
            is_waiting: false,
            was_late: false,
        };
        (body, status)
    }

    /// Limits the body to `limit` bytes. Calls `on_too_large` once if it exceeds that.
    pub(crate) fn set_limit(&mut self, limit: u64, on_too_large: impl FnOnce() + Send + 'static) {
        self.limit = limit;
        self.on_too_large = Some(Box::new(on_too_large));
    }

    /// Marks the body as too large if its `Content-Length`, which hyper has validated, exceeds the limit. Returns
    /// whether it does.
    pub(crate) fn refuse_announced_length(&mut self, headers: &HeaderMap) -> bool {
        let length = headers.get(CONTENT_LENGTH);
        let length = length.and_then(|length| length.to_str().ok()?.parse().ok());
        let too_large = length.is_some_and(|length: u64| length > self.limit);
        if too_large {
            self.mark_too_large();
        }
        too_large
    }

    fn mark_too_large(&mut self) {
        self.status.set(BodyState::TooLarge);
        if let Some(on_too_large) = self.on_too_large.take() {
            on_too_large();
        }
    }

    /// Polls the inner body, and notes when nothing is left to discard.
    fn poll_inner(&mut self, cx: &mut Context<'_>) -> PolledFrame<B::Error> {
        let Some(inner) = &mut self.inner else {
            return Poll::Ready(None);
        };
        let polled = Pin::new(inner).poll_frame(cx);
        if let Poll::Ready(None | Some(Err(_))) = polled {
            self.discard_time = None;
        }
        polled
    }

    /// Ready after the idle timeout. Polled only while the inner body is pending.
    fn poll_idle_timeout(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let timeout = self.idle_timeout;
        let timer = self.timer.get_or_insert_with(|| Box::pin(sleep(timeout)));
        if !self.is_waiting {
            timer.as_mut().reset(Instant::now() + timeout);
            self.is_waiting = true;
            self.was_late = false;
        }
        loop {
            ready!(timer.as_mut().poll(cx));
            if self.was_late || timer.deadline().elapsed() < LATE_TIMER {
                return Poll::Ready(());
            }
            self.was_late = true;
            timer.as_mut().reset(Instant::now() + timeout);
        }
    }
}

impl<B> Drop for RequestBody<B>
where
    B: Body<Data = Bytes> + Send + Unpin + 'static,
{
    fn drop(&mut self) {
        if let (Some(inner), Some(time)) = (self.inner.take(), self.discard_time)
            && !inner.is_end_stream()
        {
            spawn_discard(inner, time);
        }
    }
}

impl<B> Body for RequestBody<B>
where
    B: Body<Data = Bytes> + Send + Unpin + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> PolledFrame<BodyError> {
        loop {
            let polled = self.poll_inner(cx);
            if polled.is_pending() {
                // Some clients send the rest only after an answer.
                if self.received > self.limit {
                    return Poll::Ready(Some(Err(BodyError::TooLarge(self.limit))));
                }
                ready!(self.poll_idle_timeout(cx));
                self.status.set(BodyState::Stalled);
                // The client sends nothing that could break the connection.
                self.discard_time = None;
                return Poll::Ready(Some(Err(BodyError::Stalled(self.idle_timeout))));
            }
            self.is_waiting = false;
            let frame = match ready!(polled) {
                Some(Ok(frame)) => frame,
                Some(Err(error)) if self.received <= self.limit => {
                    self.status.set(BodyState::Broken);
                    return Poll::Ready(Some(Err(BodyError::Client(error.into()))));
                }
                None if self.received <= self.limit => return Poll::Ready(None),
                Some(Err(_)) | None => {
                    return Poll::Ready(Some(Err(BodyError::TooLarge(self.limit))));
                }
            };
            let bytes = frame.data_ref().map_or(0, |data| data.len() as u64);
            self.received = self.received.saturating_add(bytes);
            if self.received <= self.limit {
                return Poll::Ready(Some(Ok(frame)));
            }
            self.mark_too_large();
            if self.received - self.limit > MAX_DISCARDED {
                self.discard_time = None;
                return Poll::Ready(Some(Err(BodyError::TooLarge(self.limit))));
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.inner.as_ref().is_none_or(Body::is_end_stream) && self.received <= self.limit
    }

    fn size_hint(&self) -> SizeHint {
        self.inner
            .as_ref()
            .map_or_else(SizeHint::default, Body::size_hint)
    }
}

/// Discards what the client still sends, up to [`MAX_DISCARDED`] bytes and for at most `time`, in a task
/// of its own. Does nothing outside a tokio runtime.
fn spawn_discard<B>(body: B, time: Duration)
where
    B: Body<Data = Bytes> + Send + Unpin + 'static,
{
    if let Ok(tokio) = tokio::runtime::Handle::try_current() {
        tokio.spawn(async move { drop(tokio::time::timeout(time, discard(body)).await) });
    }
}

async fn discard<B>(mut body: B)
where
    B: Body<Data = Bytes> + Unpin,
{
    let mut left = MAX_DISCARDED;
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
    use std::task::Waker;

    fn limited<B>(inner: B, discard_time: Option<Duration>) -> (RequestBody<B>, BodyStatus)
    where
        B: Body<Data = Bytes> + Send + Unpin + 'static,
    {
        let (mut body, status) = RequestBody::new(inner, discard_time, Duration::from_secs(30));
        body.set_limit(8, || ());
        (body, status)
    }

    /// A body of the frames that a function returns.
    struct Generated<F>(F);

    impl<F, E> Body for Generated<F>
    where
        F: FnMut() -> Option<Result<Bytes, E>> + Unpin,
    {
        type Data = Bytes;
        type Error = E;

        fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> PolledFrame<E> {
            Poll::Ready((self.0)().map(|frame| frame.map(Frame::data)))
        }
    }

    #[tokio::test]
    async fn body_at_its_limit_passes() {
        let (body, status) = limited(Full::new(Bytes::from_static(b"12345678")), None);
        let read = body.collect().await.expect("8 of 8 bytes").to_bytes();
        assert_eq!(&read[..], b"12345678");
        assert_eq!(status.state(), BodyState::Good);
    }

    #[tokio::test]
    async fn body_beyond_its_limit_fails() {
        let (mut body, status) = limited(Full::new(Bytes::from_static(b"123456789")), None);
        let called = Arc::new(AtomicU8::new(0));
        let counter = Arc::clone(&called);
        body.set_limit(8, move || {
            counter.fetch_add(1, Ordering::Relaxed);
        });
        let error = body.collect().await.expect_err("9 of 8 bytes");
        assert_eq!(
            error.to_string(),
            "the request's body is larger than 8 bytes"
        );
        assert_eq!(status.state(), BodyState::TooLarge);
        assert_eq!(called.load(Ordering::Relaxed), 1);
    }

    #[tokio::test]
    async fn endless_body_is_not_read_forever() {
        let endless = || {
            let mut asked = 0;
            Generated(move || {
                asked += 1;
                assert!(asked < 1000, "still being read");
                Some(Ok::<_, std::convert::Infallible>(Bytes::from_static(
                    &[0; 1 << 20],
                )))
            })
        };
        let (body, status) = limited(endless(), None);
        assert!(body.collect().await.is_err());
        assert_eq!(status.state(), BodyState::TooLarge);
        discard(endless()).await;
    }

    #[tokio::test]
    async fn incomplete_body_is_broken() {
        let broken =
            Generated(|| Some(Err(std::io::Error::from(std::io::ErrorKind::UnexpectedEof))));
        let (body, status) = limited(broken, None);
        assert!(body.collect().await.is_err());
        assert_eq!(status.state(), BodyState::Broken);
    }

    /// A body of what a channel delivers.
    struct Received(tokio::sync::mpsc::Receiver<Bytes>);

    impl Body for Received {
        type Data = Bytes;
        type Error = std::convert::Infallible;

        fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> PolledFrame<Self::Error> {
            let received = ready!(self.0.poll_recv(cx));
            Poll::Ready(received.map(|data| Ok(Frame::data(data))))
        }
    }

    #[tokio::test]
    async fn body_beyond_its_limit_need_not_end() {
        let (sender, body) = tokio::sync::mpsc::channel(2);
        let (body, status) = limited(Received(body), None);
        for data in [&b"12345678"[..], b"9"] {
            sender.send(Bytes::from(data)).await.expect("room");
        }
        let error = body.collect().await.expect_err("9 of 8 bytes");
        assert!(matches!(error, BodyError::TooLarge(8)), "{error}");
        assert_eq!(status.state(), BodyState::TooLarge);
        drop(sender);
    }

    #[tokio::test]
    async fn stalled_body_fails() {
        const IDLE_TIMEOUT: Duration = Duration::from_millis(100);
        let (sender, body) = tokio::sync::mpsc::channel(1);
        let (body, status) = RequestBody::new(Received(body), None, IDLE_TIMEOUT);
        sender.send(Bytes::from_static(b"x")).await.expect("room");
        let began = Instant::now();
        assert!(body.collect().await.is_err());
        assert!(began.elapsed() >= IDLE_TIMEOUT);
        assert_eq!(status.state(), BodyState::Stalled);
        drop(sender);
    }

    #[tokio::test]
    async fn each_pause_has_its_own_timeout() {
        // Longer than any test: only the deadlines show it.
        let idle_timeout = Duration::from_secs(3600);
        let (sender, body) = tokio::sync::mpsc::channel(1);
        let (mut body, status) = RequestBody::new(Received(body), None, idle_timeout);
        let mut last: Option<Instant> = None;
        for _ in 0..3 {
            let mut deadline = || {
                let mut cx = Context::from_waker(Waker::noop());
                assert!(Pin::new(&mut body).poll_frame(&mut cx).is_pending());
                body.timer.as_ref().map(|timer| timer.deadline())
            };
            let first = deadline();
            assert!(first > last, "a new pause");
            sleep(Duration::from_millis(1)).await;
            assert_eq!(deadline(), first, "the same pause");
            last = first;
            sender.send(Bytes::from_static(b"x")).await.expect("room");
            body.frame().await.expect("a piece").expect("no error");
        }
        assert_eq!(status.state(), BodyState::Good);
    }

    #[tokio::test]
    async fn stopped_process_does_not_count_as_stall() {
        const IDLE_TIMEOUT: Duration = Duration::from_secs(1);
        let (sender, body) = tokio::sync::mpsc::channel(1);
        let (body, status) = RequestBody::new(Received(body), None, IDLE_TIMEOUT);
        let reader = tokio::spawn(body.collect());
        tokio::task::yield_now().await;
        // The only thread of this test: no timer fires meanwhile.
        std::thread::sleep(IDLE_TIMEOUT + LATE_TIMER);
        // The timer fires before the data is there.
        sleep(Duration::from_millis(1)).await;
        sender.send(Bytes::from_static(b"x")).await.expect("read");
        drop(sender);
        assert!(reader.await.expect("no panic").is_ok());
        assert_eq!(status.state(), BodyState::Good);
    }

    #[tokio::test]
    async fn rest_is_discarded_unless_discarding_is_off() {
        for (discard_time, read) in [(Some(Duration::from_secs(5)), 5), (None, 1)] {
            let (sender, mut receiver) = tokio::sync::mpsc::unbounded_channel();
            let mut asked = 0;
            let pieces = Generated(move || {
                asked += 1;
                let _ = sender.send(asked);
                (asked < 5).then(|| Ok::<_, std::convert::Infallible>(Bytes::from_static(b"x")))
            });
            let (mut body, _) = limited(pieces, discard_time);
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
