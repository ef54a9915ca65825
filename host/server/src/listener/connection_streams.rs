//! The requests of one connection, and the tasks of HTTP/2 streams.
//!
//! An HTTP/2 client can stop reading one stream and continue with others, which the socket's write timeout
//! does not notice: hyper then waits for window space and polls neither the body nor its deadline. Each
//! stream's task is therefore watched: it is reset once hyper has held bytes without space for too long.

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::{Instant, Sleep, sleep};

/// A connection is closed once its abandoned requests (reset before the response) outnumber the answered
/// ones by more than this. Opening streams only to reset them is a known attack.
const MAX_ABANDONED: usize = 100;

/// The requests of one connection.
#[derive(Debug)]
pub(super) struct ConnectionActivity {
    running: AtomicUsize,
    answered: AtomicUsize,
    abandoned: AtomicUsize,
    idle_since: Mutex<Instant>,
    /// Notified when the client has abandoned too many requests.
    pub(super) too_many_resets: Notify,
}

impl ConnectionActivity {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(ConnectionActivity {
            running: AtomicUsize::new(0),
            answered: AtomicUsize::new(0),
            abandoned: AtomicUsize::new(0),
            idle_since: Mutex::new(Instant::now()),
            too_many_resets: Notify::new(),
        })
    }

    /// Counts a request as running until the guard is dropped.
    pub(super) fn begin_request(self: &Arc<Self>) -> RequestGuard {
        self.running.fetch_add(1, Ordering::AcqRel);
        RequestGuard {
            activity: self.clone(),
            answered: false,
        }
    }

    /// Whether a request runs.
    pub(super) fn is_busy(&self) -> bool {
        self.running.load(Ordering::Acquire) > 0
    }

    /// Returns when no request has run for `limit`, counted from `start` at the earliest.
    pub(super) async fn idle_for(&self, limit: Duration, start: Instant) {
        loop {
            let idle_since = match self.is_busy() {
                true => Instant::now(),
                false => start.max(*self.lock()),
            };
            let until = idle_since + limit;
            if until <= Instant::now() {
                return;
            }
            tokio::time::sleep_until(until).await;
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Instant> {
        self.idle_since
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

/// A running request, from its header to the end of its response.
#[derive(Debug)]
pub(super) struct RequestGuard {
    activity: Arc<ConnectionActivity>,
    answered: bool,
}

impl RequestGuard {
    /// Records that the response's header is complete.
    pub(super) fn answered(&mut self) {
        self.answered = true;
        self.activity.answered.fetch_add(1, Ordering::Relaxed);
    }
}

impl Drop for RequestGuard {
    fn drop(&mut self) {
        let activity = &self.activity;
        *activity.lock() = Instant::now();
        activity.running.fetch_sub(1, Ordering::AcqRel);
        if !self.answered {
            let abandoned = activity.abandoned.fetch_add(1, Ordering::Relaxed) + 1;
            if abandoned > MAX_ABANDONED + activity.answered.load(Ordering::Relaxed) {
                activity.too_many_resets.notify_one();
            }
        }
    }
}

/// Whether hyper holds bytes of a stream without window space for them.
#[derive(Debug, Default)]
pub(super) struct SendBuffer {
    full: AtomicBool,
}

impl SendBuffer {
    /// Set when the body yields bytes, cleared when hyper polls it again.
    pub(super) fn set_full(&self, full: bool) {
        self.full.store(full, Ordering::Relaxed);
    }
}

tokio::task_local! {
    static SEND_BUFFER: Arc<SendBuffer>;
}

/// The send buffer of the current stream's task; `None` outside HTTP/2.
pub(super) fn current_send_buffer() -> Option<Arc<SendBuffer>> {
    SEND_BUFFER.try_with(Arc::clone).ok()
}

/// Runs each stream of an HTTP/2 connection as a watched task.
#[derive(Clone, Debug)]
pub(super) struct StreamExecutor<S> {
    pub(super) write_timeout: Duration,
    /// Called for each stream that is reset.
    pub(super) on_stalled: S,
}

impl<S, F> hyper::rt::Executor<F> for StreamExecutor<S>
where
    S: Fn() + Clone + Send + 'static,
    F: Future<Output = ()> + Send + 'static,
{
    fn execute(&self, stream: F) {
        let buffer = Arc::<SendBuffer>::default();
        let watched = WatchedStream {
            stream: Box::pin(SEND_BUFFER.scope(buffer.clone(), stream)),
            buffer,
            limit: self.write_timeout,
            timer: None,
            is_waiting: false,
        };
        let on_stalled = self.on_stalled.clone();
        tokio::spawn(async move {
            if watched.await.is_err() {
                on_stalled();
            }
        });
    }
}

/// The client has not read for too long.
struct StreamStalled;

/// A stream's task. If it ends first, hyper's part is dropped, which resets the stream.
struct WatchedStream<F> {
    stream: Pin<Box<F>>,
    buffer: Arc<SendBuffer>,
    limit: Duration,
    timer: Option<Pin<Box<Sleep>>>,
    is_waiting: bool,
}

impl<F: Future<Output = ()>> Future for WatchedStream<F> {
    type Output = Result<(), StreamStalled>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        if self.stream.as_mut().poll(cx).is_ready() {
            return Poll::Ready(Ok(()));
        }
        if !self.buffer.full.load(Ordering::Relaxed) {
            self.is_waiting = false;
            return Poll::Pending;
        }
        let (limit, is_waiting) = (self.limit, self.is_waiting);
        self.is_waiting = true;
        let timer = self.timer.get_or_insert_with(|| Box::pin(sleep(limit)));
        if !is_waiting {
            timer.as_mut().reset(Instant::now() + limit);
        }
        timer.as_mut().poll(cx).map(|()| Err(StreamStalled))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::task::Waker;

    fn watched<F: Future<Output = ()>>(
        limit: Duration,
        make: impl FnOnce(Arc<SendBuffer>) -> F,
    ) -> WatchedStream<impl Future<Output = ()>> {
        let buffer = Arc::<SendBuffer>::default();
        WatchedStream {
            stream: Box::pin(SEND_BUFFER.scope(buffer.clone(), make(buffer.clone()))),
            buffer,
            limit,
            timer: None,
            is_waiting: false,
        }
    }

    #[tokio::test]
    async fn stalled_stream_is_reset() {
        let (began, limit) = (Instant::now(), Duration::from_millis(100));
        let stream = watched(limit, |_| async move {
            sleep(2 * limit).await;
            current_send_buffer().expect("in its task").set_full(true);
            std::future::pending().await
        });
        assert!(stream.await.is_err());
        assert!(began.elapsed() >= 3 * limit);
        assert!(current_send_buffer().is_none(), "outside its task");
    }

    #[tokio::test]
    async fn slow_stream_is_not_reset() {
        // Longer than any test: the deadlines show that each wait has its own limit.
        let limit = Duration::from_secs(3600);
        let mut stream = watched(limit, |_| std::future::pending());
        let mut poll = |full: bool| {
            stream.buffer.set_full(full);
            let mut cx = Context::from_waker(Waker::noop());
            assert!(Pin::new(&mut stream).poll(&mut cx).is_pending());
            stream.timer.as_ref().map(|timer| timer.deadline())
        };
        assert_eq!(poll(false), None, "nothing waits");
        let first = poll(true);
        assert!(first.is_some());
        sleep(Duration::from_millis(1)).await;
        assert_eq!(poll(true), first, "the same wait");
        // hyper polls the body again and waits for it.
        poll(false);
        assert!(poll(true) > first, "a new wait");
    }

    #[tokio::test]
    async fn idle_time_counts_from_last_request() {
        let (began, limit) = (Instant::now(), Duration::from_millis(100));
        let activity = ConnectionActivity::new();
        let request = activity.begin_request();
        let idle = {
            let activity = activity.clone();
            tokio::spawn(async move { activity.idle_for(limit, began).await })
        };
        sleep(3 * limit).await;
        drop(request);
        idle.await.expect("no panic");
        assert!(began.elapsed() >= 4 * limit);
    }

    #[test]
    fn resetting_every_stream_is_detected() {
        let activity = ConnectionActivity::new();
        let detected = activity.too_many_resets.notified();
        tokio::pin!(detected);
        let mut is_detected = || {
            let mut cx = Context::from_waker(Waker::noop());
            detected.as_mut().poll(&mut cx).is_ready()
        };
        activity.begin_request().answered();
        for _ in 0..=MAX_ABANDONED {
            drop(activity.begin_request());
        }
        assert!(!is_detected(), "one was answered");
        drop(activity.begin_request());
        assert!(is_detected());
        assert!(!activity.is_busy());
    }
}
