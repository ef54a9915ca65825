//! How the vectors reach who asked: a place for one answer, and a future that takes it.

use super::pooling::Pooling;
use crate::Error;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

/// The answer: vectors in the order of the inputs.
#[derive(Clone, Debug, PartialEq)]
pub struct Vectors {
    /// How they were pooled.
    pub pooling: Pooling,
    /// Numbers in a vector; of [`Pooling::Rank`] the number of scores.
    pub width: usize,
    /// For each input its vector; of [`Pooling::Tokens`] those of its tokens, one after another.
    pub inputs: Vec<Vec<f32>>,
    /// Tokens of all inputs.
    pub tokens: u64,
    /// From the call until the first input was taken up.
    pub queue_time: Duration,
    /// From then until the last vector was there.
    pub compute_time: Duration,
}

#[derive(Debug, Default)]
struct State {
    answer: Option<Result<Vectors, Error>>,
    waker: Option<Waker>,
}

#[derive(Debug, Default)]
struct Slot {
    state: Mutex<State>,
    /// Nobody waits for it any more.
    gone: AtomicBool,
}

impl Slot {
    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing under this lock panics half-way.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The embedder's end. Dropped without an answer, it tells the reader that the embedder died.
#[derive(Debug)]
pub struct Sender(Arc<Slot>);

impl Sender {
    /// Gives the answer.
    pub fn finish(self, answer: Result<Vectors, Error>) {
        self.put(answer);
    }

    /// Whether nobody waits for the answer any more.
    pub fn is_abandoned(&self) -> bool {
        self.0.gone.load(Ordering::Relaxed)
    }

    fn put(&self, answer: Result<Vectors, Error>) {
        let mut state = self.0.lock();
        state.answer.get_or_insert(answer);
        let waker = state.waker.take();
        drop(state);
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

impl Drop for Sender {
    fn drop(&mut self) {
        let died = "the embedding thread ended before the answer was there";
        self.put(Err(Error::Failed(died.into())));
    }
}

/// Vectors in the making: a future. Dropping it cancels the request at the next step.
#[derive(Debug)]
#[must_use = "dropping it cancels the request"]
pub struct Embedding {
    slot: Arc<Slot>,
    taken: bool,
}

/// A place for an answer, and both its ends.
pub fn slot() -> (Sender, Embedding) {
    let slot = Arc::new(Slot::default());
    let embedding = Embedding {
        slot: slot.clone(),
        taken: false,
    };
    (Sender(slot), embedding)
}

impl Future for Embedding {
    type Output = Result<Vectors, Error>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        if self.taken {
            let again = "the vectors were taken already; ask for them once";
            return Poll::Ready(Err(Error::Invalid(again.into())));
        }
        let mut state = self.slot.lock();
        if let Some(answer) = state.answer.take() {
            drop(state);
            self.taken = true;
            return Poll::Ready(answer);
        }
        match &mut state.waker {
            Some(waker) => waker.clone_from(context.waker()),
            none => *none = Some(context.waker().clone()),
        }
        Poll::Pending
    }
}

impl Drop for Embedding {
    fn drop(&mut self) {
        self.slot.gone.store(true, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn poll(embedding: &mut Embedding) -> Poll<Result<Vectors, Error>> {
        Pin::new(embedding).poll(&mut Context::from_waker(Waker::noop()))
    }

    #[test]
    fn an_answer_is_taken_once() {
        let (sender, mut embedding) = slot();
        assert!(poll(&mut embedding).is_pending());
        sender.finish(Err(Error::Deadline));
        assert_eq!(poll(&mut embedding), Poll::Ready(Err(Error::Deadline)));
        let again = poll(&mut embedding);
        assert!(matches!(again, Poll::Ready(Err(Error::Invalid(_)))));
    }

    #[test]
    fn a_dead_embedder_is_an_error_not_an_endless_wait() {
        let (sender, mut embedding) = slot();
        drop(sender);
        let answer = poll(&mut embedding);
        assert!(matches!(answer, Poll::Ready(Err(Error::Failed(_)))));
    }

    #[test]
    fn the_embedder_sees_that_nobody_waits() {
        let (sender, embedding) = slot();
        assert!(!sender.is_abandoned());
        drop(embedding);
        assert!(sender.is_abandoned());
    }
}
