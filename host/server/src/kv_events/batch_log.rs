//! The last batches, in order: what subscribers read, each at its own pace, and what a replay repeats.
//!
//! A subscriber has no buffer of its own. One that is slower than the batches come finds that the oldest are gone, and
//! sees a gap in the sequence numbers.

use bytes::Bytes;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::watch;

/// Most batches, and most bytes of batches.
const MAX_BATCHES: usize = 10_000;
const MAX_BYTES: usize = 16 << 20;

/// A batch of events of a model.
#[derive(Clone, Debug)]
pub(super) struct EventBatch {
    pub(super) sequence: u64,
    pub(super) model: Arc<str>,
    pub(super) payload: Bytes,
}

/// The batches of all models, numbered from 0.
#[derive(Debug, Default)]
pub(super) struct BatchLog {
    batches: Mutex<Batches>,
    /// The number of the next batch.
    next: watch::Sender<u64>,
    /// Batches that some subscriber missed.
    missed: AtomicU64,
}

#[derive(Debug, Default)]
struct Batches {
    kept: VecDeque<EventBatch>,
    bytes: usize,
}

impl BatchLog {
    /// Adds a batch. Forgets the oldest if there are too many.
    pub(super) fn push(&self, model: &Arc<str>, payload: Vec<u8>) {
        let sequence = *self.next.borrow();
        let batch = EventBatch {
            sequence,
            model: model.clone(),
            payload: payload.into(),
        };
        let mut batches = self.batches.lock().unwrap_or_else(PoisonError::into_inner);
        batches.bytes += batch.payload.len();
        batches.kept.push_back(batch);
        while batches.kept.len() > MAX_BATCHES
            || (batches.bytes > MAX_BYTES && batches.kept.len() > 1)
        {
            let oldest = batches.kept.pop_front();
            batches.bytes -= oldest.map_or(0, |batch| batch.payload.len());
        }
        drop(batches);
        self.next.send_replace(sequence + 1);
    }

    /// The first batch with this number or a later one.
    pub(super) fn first_from(&self, sequence: u64) -> Option<EventBatch> {
        let batches = self.batches.lock().unwrap_or_else(PoisonError::into_inner);
        let first = batches.kept.front()?.sequence;
        let index = usize::try_from(sequence.saturating_sub(first)).unwrap_or(usize::MAX);
        batches.kept.get(index).cloned()
    }

    /// The number of the next batch, and its changes.
    pub(super) fn follow(&self) -> watch::Receiver<u64> {
        self.next.subscribe()
    }

    /// Batches until now.
    pub(super) fn published(&self) -> u64 {
        *self.next.borrow()
    }

    /// Counts batches that a subscriber missed.
    pub(super) fn count_missed(&self, batches: u64) {
        self.missed.fetch_add(batches, Ordering::Relaxed);
    }

    /// Batches that some subscriber missed.
    pub(super) fn missed(&self) -> u64 {
        self.missed.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn oldest_batches_are_forgotten() {
        let log = BatchLog::default();
        assert!(log.first_from(0).is_none());
        let model = Arc::from("tiny");
        for _ in 0..MAX_BATCHES + 5 {
            log.push(&model, vec![0; 8]);
        }
        let sequence = |from| log.first_from(from).map(|batch| batch.sequence);
        assert_eq!(sequence(0), Some(5));
        let last = MAX_BATCHES as u64 + 4;
        assert_eq!((sequence(last), sequence(last + 1)), (Some(last), None));
        log.push(&model, vec![0; MAX_BYTES]);
        assert_eq!(sequence(0), Some(last + 1), "the bytes are bounded, too");
        assert_eq!(log.published(), last + 2);
    }
}
