//! What goes on in one connection: its requests, and how HTTP/2 runs them.
//!
//! HTTP/2 has stalls of its own, which the socket does not show: a client may let one stream's window
//! run empty and go on with the others. hyper then waits for room and polls neither the body nor its
//! deadline. So every stream's task is watched: has the body given bytes that hyper found no room for,
//! the stream is reset when that lasts too long.

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::{Instant, Sleep, sleep};

/// Requests of a connection that were given up before they had an answer, beyond those that had one:
/// more, and the connection is closed. Opening streams only to reset them is how servers are flooded.
const ABANDONED: usize = 100;

/// The requests of one connection.
#[derive(Debug)]
pub(super) struct Activity {
    running: AtomicUsize,
    answered: AtomicUsize,
    abandoned: AtomicUsize,
    idle_since: Mutex<Instant>,
    /// Too many requests were given up.
    pub(super) flooded: Notify,
}

impl Activity {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Activity {
            running: AtomicUsize::new(0),
            answered: AtomicUsize::new(0),
            abandoned: AtomicUsize::new(0),
            idle_since: Mutex::new(Instant::now()),
            flooded: Notify::new(),
        })
    }

    /// A request begins; it ends with what is returned.
    pub(super) fn begin(self: &Arc<Self>) -> Running {
        self.running.fetch_add(1, Ordering::AcqRel);
        Running {
            activity: self.clone(),
            answered: false,
        }
    }

    /// Whether a request runs.
    pub(super) fn is_busy(&self) -> bool {
        self.running.load(Ordering::Acquire) > 0
    }

    /// Returns when no request has run for `limit`, counted from `from` at the earliest.
    pub(super) async fn idle_for(&self, limit: Duration, from: Instant) {
        loop {
            let idle_since = match self.is_busy() {
                true => Instant::now(),
                false => from.max(*self.lock()),
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

/// A request, from its head to the end of its answer.
#[derive(Debug)]
pub(super) struct Running {
    activity: Arc<Activity>,
    answered: bool,
}

impl Running {
    /// The answer's head is known.
    pub(super) fn answered(&mut self) {
        self.answered = true;
        self.activity.answered.fetch_add(1, Ordering::Relaxed);
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let activity = &self.activity;
        *activity.lock() = Instant::now();
        activity.running.fetch_sub(1, Ordering::AcqRel);
        if !self.answered {
            let abandoned = activity.abandoned.fetch_add(1, Ordering::Relaxed) + 1;
            if abandoned > ABANDONED + activity.answered.load(Ordering::Relaxed) {
                activity.flooded.notify_one();
            }
        }
    }
}

/// Whether hyper holds bytes of a stream for which the client has made no room.
#[derive(Debug, Default)]
pub(super) struct Outbox {
    full: AtomicBool,
}

impl Outbox {
    /// The body has given bytes; they are gone when it is asked for more.
    pub(super) fn set_full(&self, full: bool) {
        self.full.store(full, Ordering::Relaxed);
    }
}

tokio::task_local! {
    static OUTBOX: Arc<Outbox>;
}

/// That of the stream whose task this is; nothing outside of HTTP/2.
pub(super) fn outbox() -> Option<Arc<Outbox>> {
    OUTBOX.try_with(Arc::clone).ok()
}

/// Runs the streams of HTTP/2 connections, each as a task that is watched.
#[derive(Clone, Debug)]
pub(super) struct Streams<S> {
    pub(super) stall_time: Duration,
    /// Told of each stream that stalled.
    pub(super) stalled: S,
}

impl<S, F> hyper::rt::Executor<F> for Streams<S>
where
    S: Fn() + Clone + Send + 'static,
    F: Future<Output = ()> + Send + 'static,
{
    fn execute(&self, stream: F) {
        let outbox = Arc::<Outbox>::default();
        let watched = Watched {
            stream: Box::pin(OUTBOX.scope(outbox.clone(), stream)),
            outbox,
            limit: self.stall_time,
            timer: None,
            is_waiting: false,
        };
        let stalled = self.stalled.clone();
        tokio::spawn(async move {
            if watched.await.is_err() {
                stalled();
            }
        });
    }
}

/// The client made no room for too long.
struct Stalled;

/// A stream's task. When it ends by itself hyper's half is dropped, which resets the stream.
struct Watched<F> {
    stream: Pin<Box<F>>,
    outbox: Arc<Outbox>,
    limit: Duration,
    timer: Option<Pin<Box<Sleep>>>,
    is_waiting: bool,
}

impl<F: Future<Output = ()>> Future for Watched<F> {
    type Output = Result<(), Stalled>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        if self.stream.as_mut().poll(cx).is_ready() {
            return Poll::Ready(Ok(()));
        }
        if !self.outbox.full.load(Ordering::Relaxed) {
            self.is_waiting = false;
            return Poll::Pending;
        }
        let (limit, is_waiting) = (self.limit, self.is_waiting);
        self.is_waiting = true;
        let timer = self.timer.get_or_insert_with(|| Box::pin(sleep(limit)));
        if !is_waiting {
            timer.as_mut().reset(Instant::now() + limit);
        }
        timer.as_mut().poll(cx).map(|()| Err(Stalled))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::poll_fn;
    use std::task::Waker;

    fn watched<F: Future<Output = ()>>(
        limit: Duration,
        make: impl FnOnce(Arc<Outbox>) -> F,
    ) -> Watched<impl Future<Output = ()>> {
        let outbox = Arc::<Outbox>::default();
        Watched {
            stream: Box::pin(OUTBOX.scope(outbox.clone(), make(outbox.clone()))),
            outbox,
            limit,
            timer: None,
            is_waiting: false,
        }
    }

    #[tokio::test]
    async fn a_stream_without_room_is_ended() {
        let (began, limit) = (Instant::now(), Duration::from_millis(100));
        let stream = watched(limit, |_| async move {
            sleep(2 * limit).await;
            outbox().expect("in its task").set_full(true);
            std::future::pending().await
        });
        assert!(stream.await.is_err());
        assert!(began.elapsed() >= 3 * limit);
        assert!(outbox().is_none(), "nowhere else");
    }

    #[tokio::test]
    async fn a_stream_that_gets_on_slowly_is_left_alone() {
        // Longer than any test: that each wait has its own limit shows in when it would be over.
        let limit = Duration::from_secs(3600);
        let mut stream = watched(limit, |_| std::future::pending());
        let mut poll = |full: bool| {
            stream.outbox.set_full(full);
            let mut cx = Context::from_waker(Waker::noop());
            assert!(Pin::new(&mut stream).poll(&mut cx).is_pending());
            stream.timer.as_ref().map(|timer| timer.deadline())
        };
        assert_eq!(poll(false), None, "nothing waits");
        let first = poll(true);
        assert!(first.is_some());
        sleep(Duration::from_millis(1)).await;
        assert_eq!(poll(true), first, "it is the same wait");
        // Asked for more, hyper waits for the body.
        poll(false);
        assert!(poll(true) > first, "it is another one");
    }

    #[tokio::test]
    async fn idle_is_counted_from_the_last_request() {
        let (began, limit) = (Instant::now(), Duration::from_millis(100));
        let activity = Activity::new();
        let request = activity.begin();
        let idle = {
            let activity = activity.clone();
            tokio::spawn(async move { activity.idle_for(limit, began).await })
        };
        sleep(3 * limit).await;
        drop(request);
        idle.await.expect("no panic");
        assert!(began.elapsed() >= 4 * limit);
    }

    #[tokio::test]
    async fn who_opens_only_to_reset_is_noticed() {
        let activity = Activity::new();
        let flooded = activity.flooded.notified();
        tokio::pin!(flooded);
        let mut is_flooded = async || {
            let mut flooded = flooded.as_mut();
            poll_fn(|cx| Poll::Ready(flooded.as_mut().poll(cx).is_ready())).await
        };
        activity.begin().answered();
        for _ in 0..=ABANDONED {
            drop(activity.begin());
        }
        assert!(!is_flooded().await, "one had an answer");
        drop(activity.begin());
        assert!(is_flooded().await);
        assert!(!activity.is_busy());
    }
}
