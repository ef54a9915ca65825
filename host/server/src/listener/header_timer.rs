//! The timer of an HTTP/1 connection's waits for request headers.
//!
//! hyper starts a timer for each request and drops it with the header. All threads share tokio's timers, and a new one may
//! wake the thread that waits for the earliest. Here, one timer serves all waits of a connection: for a later deadline it
//! moves only when it fires.

use hyper::rt::{Sleep, Timer};
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};
use tokio::time::{Instant as TokioInstant, Sleep as TokioSleep, sleep};

type SharedTimer = Arc<Mutex<Pin<Box<TokioSleep>>>>;

/// The timer of one connection, which has one wait at a time.
pub(super) struct HeaderTimer(SharedTimer);

impl HeaderTimer {
    /// A timer whose first wait takes at most `limit`.
    pub(super) fn new(limit: Duration) -> Self {
        HeaderTimer(Arc::new(Mutex::new(Box::pin(sleep(limit)))))
    }
}

impl Timer for HeaderTimer {
    fn sleep(&self, duration: Duration) -> Pin<Box<dyn Sleep>> {
        self.sleep_until(self.now() + duration)
    }

    fn sleep_until(&self, deadline: Instant) -> Pin<Box<dyn Sleep>> {
        Box::pin(HeaderWait {
            timer: Arc::clone(&self.0),
            deadline: deadline.into(),
        })
    }

    fn now(&self) -> Instant {
        TokioInstant::now().into()
    }
}

/// One wait for a header.
struct HeaderWait {
    timer: SharedTimer,
    deadline: TokioInstant,
}

impl Future for HeaderWait {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let mut timer = self.timer.lock().unwrap_or_else(PoisonError::into_inner);
        if self.deadline < timer.deadline() {
            timer.as_mut().reset(self.deadline);
        }
        while timer.as_mut().poll(cx).is_ready() {
            if self.deadline <= TokioInstant::now() {
                return Poll::Ready(());
            }
            timer.as_mut().reset(self.deadline);
        }
        Poll::Pending
    }
}

impl Sleep for HeaderWait {}

#[cfg(test)]
mod tests {
    use super::*;
    use std::task::Waker;

    fn poll(wait: &mut Pin<Box<dyn Sleep>>) -> Poll<()> {
        wait.as_mut().poll(&mut Context::from_waker(Waker::noop()))
    }

    #[tokio::test]
    async fn later_waits_leave_timer_in_place() {
        // Longer than any test: only the deadlines show it.
        let limit = Duration::from_secs(3600);
        let timer = HeaderTimer::new(limit);
        let registered = || timer.0.lock().expect("no panic").deadline();
        let first = registered();
        for _ in 0..3 {
            tokio::time::sleep(Duration::from_millis(1)).await;
            assert!(poll(&mut timer.sleep(limit)).is_pending());
            assert_eq!(registered(), first);
        }
        assert!(poll(&mut timer.sleep(limit / 2)).is_pending());
        assert!(registered() < first, "an earlier deadline moves it");
    }

    #[tokio::test]
    async fn each_wait_has_its_own_deadline() {
        const LIMIT: Duration = Duration::from_millis(50);
        let timer = HeaderTimer::new(LIMIT);
        assert!(poll(&mut timer.sleep(LIMIT)).is_pending());
        tokio::time::sleep(LIMIT / 2).await;
        let began = Instant::now();
        timer.sleep(LIMIT).await;
        assert!(began.elapsed() >= LIMIT);
        // It has fired meanwhile.
        tokio::time::sleep(LIMIT * 2).await;
        let began = Instant::now();
        timer.sleep(LIMIT).await;
        assert!(began.elapsed() >= LIMIT);
    }
}
