//! Wakes readers in batches.
//!
//! A step produces tokens for many readers. Readers woken one by one may each find their thread asleep again;
//! woken together they run one after another on threads that are awake. Several go through the [`WakeQueue`].

use crate::next_token::Distribution;
use crate::reader_wake_queue::WakeQueue;
use crate::reply;
use std::sync::Arc;
use std::task::Waker;
use std::time::{Duration, Instant};

/// Longest delay of the first reader of a batch. Sampling a row of a large vocabulary takes 0.1 ms.
const MAX_DELAY: Duration = Duration::from_micros(250);

/// Readers to wake and replies to send. Flushes when dropped, and ends the queue's task.
#[derive(Debug, Default)]
pub struct WakeBatch {
    wakers: Vec<Waker>,
    replies: Vec<(reply::ReplySender<Distribution>, Distribution)>,
    since: Option<Instant>,
    queue: Arc<WakeQueue>,
}

impl WakeBatch {
    /// A batch whose readers the task of `queue` wakes, while it has one.
    pub fn new(queue: Arc<WakeQueue>) -> Self {
        Self {
            wakers: Vec::new(),
            replies: Vec::new(),
            since: None,
            queue,
        }
    }

    /// Adds a reader, if there is one.
    pub fn add(&mut self, waker: Option<Waker>) {
        if let Some(waker) = waker {
            self.wakers.push(waker);
            self.since.get_or_insert_with(Instant::now);
        }
    }

    /// Adds the reply to a next-token request.
    pub fn reply(&mut self, sender: reply::ReplySender<Distribution>, reply: Distribution) {
        self.replies.push((sender, reply));
        self.since.get_or_insert_with(Instant::now);
    }

    /// Flushes if the first reader has waited for [`MAX_DELAY`].
    pub fn flush_if_due(&mut self) {
        if self.since.is_some_and(|since| since.elapsed() >= MAX_DELAY) {
            self.flush();
        }
    }

    /// Wakes all readers and sends all replies.
    pub fn flush(&mut self) {
        self.since = None;
        if self.wakers.len() > 1 {
            self.queue.wake(&mut self.wakers);
        }
        for waker in self.wakers.drain(..) {
            waker.wake();
        }
        for (sender, reply) in self.replies.drain(..) {
            sender.finish(Ok(reply));
        }
    }
}

impl Drop for WakeBatch {
    fn drop(&mut self) {
        self.flush();
        self.queue.close();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reader_wake_queue::tests::Count;
    use std::sync::Arc;

    #[test]
    fn each_reader_is_woken_exactly_once() {
        let (wakes, mut batch) = (Arc::new(Count::default()), WakeBatch::default());
        let count = || wakes.get();
        let waker = || Some(Waker::from(Arc::clone(&wakes)));
        batch.add(waker());
        batch.add(None);
        batch.add(waker());
        assert_eq!(count(), 0);
        batch.flush();
        batch.flush();
        assert_eq!(count(), 2);
        batch.add(waker());
        std::thread::sleep(MAX_DELAY);
        batch.flush_if_due();
        assert_eq!(count(), 3);
        batch.add(waker());
        drop(batch);
        assert_eq!(count(), 4, "dropping the batch flushes it");
    }
}
