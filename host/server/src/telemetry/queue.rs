//! A bounded queue of spans or log records that wait for export. What does not fit is dropped and counted; nothing ever
//! waits for room.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::Notify;

/// Items with their numbers of spans or records.
#[derive(Debug)]
pub(super) struct ExportQueue<T> {
    state: Mutex<QueueState<T>>,
    /// Notified when there is a first item, and when there are enough for a batch.
    filled: Notify,
    max_count: usize,
    max_batch: usize,
    max_bytes: usize,
    max_batch_bytes: usize,
}

#[derive(Debug)]
struct QueueState<T> {
    items: VecDeque<Entry<T>>,
    count: usize,
    bytes: usize,
}

#[derive(Debug)]
struct Entry<T> {
    item: T,
    count: usize,
    bytes: usize,
}

impl<T> ExportQueue<T> {
    /// Holds items of at most `max_count` and `max_bytes`, and gives them in batches of at most `max_batch` and
    /// `max_batch_bytes`.
    pub(super) fn new(
        max_count: usize,
        max_batch: usize,
        max_bytes: usize,
        max_batch_bytes: usize,
    ) -> Self {
        ExportQueue {
            state: Mutex::new(QueueState {
                items: VecDeque::new(),
                count: 0,
                bytes: 0,
            }),
            filled: Notify::new(),
            max_count,
            max_batch,
            max_bytes,
            max_batch_bytes,
        }
    }

    /// Adds an item that counts as `count`. Returns false if there is no room.
    pub(super) fn push(&self, item: T, count: usize, bytes: usize) -> bool {
        let mut state = self.lock();
        let is_batch = self.is_batch(&state);
        let (before, after) = (state.count, state.count + count);
        if after > self.max_count || state.bytes + bytes > self.max_bytes {
            return false;
        }
        state.items.push_back(Entry { item, count, bytes });
        state.count = after;
        state.bytes += bytes;
        let becomes_batch = !is_batch && self.is_batch(&state);
        drop(state);
        if before == 0 || becomes_batch {
            self.filled.notify_one();
        }
        true
    }

    /// Waits until there are items for a batch, or there is an item and `delay` has passed.
    pub(super) async fn wait(&self, delay: Duration) {
        while self.lock().count == 0 {
            self.filled.notified().await;
        }
        let timer = tokio::time::sleep(delay);
        tokio::pin!(timer);
        while !self.is_batch(&self.lock()) {
            tokio::select! {
                () = &mut timer => return,
                () = self.filled.notified() => {}
            }
        }
    }

    fn is_batch(&self, state: &QueueState<T>) -> bool {
        state.count >= self.max_batch || state.bytes >= self.max_batch_bytes
    }

    /// Takes the items of one batch; at least one item, if there is one.
    pub(super) fn take(&self) -> Vec<T> {
        let mut state = self.lock();
        let (mut batch, mut count, mut bytes) = (Vec::new(), 0, 0);
        while let Some(entry) = state.items.front() {
            count += entry.count;
            bytes += entry.bytes;
            let is_over = count > self.max_batch || bytes > self.max_batch_bytes;
            if is_over && !batch.is_empty() {
                break;
            }
            let Some(entry) = state.items.pop_front() else {
                break;
            };
            state.count -= entry.count;
            state.bytes -= entry.bytes;
            batch.push(entry.item);
        }
        batch
    }

    fn lock(&self) -> MutexGuard<'_, QueueState<T>> {
        // No code under this lock panics midway.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn count_and_bytes_are_bounded() {
        let queue = ExportQueue::new(4, 3, 100, 1000);
        assert!(queue.push('a', 2, 10));
        assert!(queue.push('b', 1, 10));
        assert!(!queue.push('c', 2, 10), "too many");
        assert!(!queue.push('c', 1, 81), "too large");
        assert!(queue.push('d', 1, 80));
        assert_eq!(queue.take(), ['a', 'b']);
        assert_eq!(queue.take(), ['d']);
        assert!(queue.take().is_empty());
        assert!(queue.push('e', 4, 100), "everything is free again");
        assert_eq!(queue.take(), ['e'], "more than a batch, and alone");
    }

    #[test]
    fn batches_are_bounded_in_bytes() {
        let queue = ExportQueue::new(100, 100, 100, 30);
        for (item, bytes) in [('a', 10), ('b', 20), ('c', 1), ('d', 50)] {
            assert!(queue.push(item, 1, bytes));
        }
        assert_eq!(queue.take(), ['a', 'b']);
        assert_eq!(queue.take(), ['c']);
        assert_eq!(queue.take(), ['d'], "more than a batch, and alone");
    }

    #[tokio::test]
    async fn full_batch_ends_the_wait() {
        let queue = ExportQueue::new(10, 3, 100, 50);
        let hour = Duration::from_secs(3600);
        let pushing = async {
            for n in 0..3 {
                tokio::task::yield_now().await;
                assert!(queue.push(n, 1, 1));
            }
        };
        tokio::join!(queue.wait(hour), pushing);
        assert_eq!(queue.take(), [0, 1, 2]);
        assert!(queue.push(3, 1, 1));
        queue.wait(Duration::from_millis(1)).await;
        assert_eq!(queue.take(), [3]);
        // Bytes make a batch, too.
        let pushing = async {
            for n in 4..6 {
                tokio::task::yield_now().await;
                assert!(queue.push(n, 1, 25));
            }
        };
        tokio::join!(queue.wait(hour), pushing);
        assert_eq!(queue.take(), [4, 5]);
    }
}
