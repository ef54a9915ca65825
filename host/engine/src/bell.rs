//! Who is to be woken, several at a time.
//!
//! A step brings tokens for many readers. Woken one by one, each may find its thread just asleep again;
//! woken together they run one after the other in threads that are awake.

use crate::look::Distribution;
use crate::reply;
use std::task::Waker;
use std::time::{Duration, Instant};

/// How long the first one waits for the others. A large vocabulary takes 0.1 ms a row.
const PATIENCE: Duration = Duration::from_micros(250);

/// Readers for whom there is something, and who do not know it yet. Rung when it is dropped.
#[derive(Debug, Default)]
pub struct Bell {
    wakers: Vec<Waker>,
    answers: Vec<(reply::Sender<Distribution>, Distribution)>,
    since: Option<Instant>,
}

impl Bell {
    /// Wakes this one, if there is one, when it rings.
    pub fn add(&mut self, waker: Option<Waker>) {
        if let Some(waker) = waker {
            self.wakers.push(waker);
            self.since.get_or_insert_with(Instant::now);
        }
    }

    /// Gives this answer when it rings.
    pub fn answer(&mut self, reply: reply::Sender<Distribution>, answer: Distribution) {
        self.answers.push((reply, answer));
        self.since.get_or_insert_with(Instant::now);
    }

    /// Rings if the first one has waited long enough.
    pub fn ring_if_due(&mut self) {
        if self.since.is_some_and(|since| since.elapsed() >= PATIENCE) {
            self.ring();
        }
    }

    /// Wakes and answers them all.
    pub fn ring(&mut self) {
        self.since = None;
        for waker in self.wakers.drain(..) {
            waker.wake();
        }
        for (reply, answer) in self.answers.drain(..) {
            reply.finish(Ok(answer));
        }
    }
}

impl Drop for Bell {
    fn drop(&mut self) {
        self.ring();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Wake;

    #[derive(Default)]
    struct Count(AtomicUsize);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn all_are_woken_once_when_it_rings_and_nobody_is_forgotten() {
        let (woken, mut bell) = (Arc::new(Count::default()), Bell::default());
        let count = || woken.0.load(Ordering::Relaxed);
        let waker = || Some(Waker::from(Arc::clone(&woken)));
        bell.add(waker());
        bell.add(None);
        bell.add(waker());
        assert_eq!(count(), 0);
        bell.ring();
        bell.ring();
        assert_eq!(count(), 2);
        bell.add(waker());
        std::thread::sleep(PATIENCE);
        bell.ring_if_due();
        assert_eq!(count(), 3);
        bell.add(waker());
        drop(bell);
        assert_eq!(count(), 4);
    }
}
