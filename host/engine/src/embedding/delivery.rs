//! How the vectors reach who asked: a place for one answer, and a future that takes it.

use super::pooling::Pooling;
use crate::Error;
use futures_channel::oneshot;
use std::pin::Pin;
use std::task::{Context, Poll};
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

/// The embedder's end. Dropped without an answer, it tells the reader that the embedder died.
#[derive(Debug)]
pub struct Sender(oneshot::Sender<Result<Vectors, Error>>);

impl Sender {
    /// Gives the answer.
    pub fn finish(self, answer: Result<Vectors, Error>) {
        // Fails only if nobody waits for it any more.
        let _ = self.0.send(answer);
    }

    /// Whether nobody waits for the answer any more.
    pub fn is_abandoned(&self) -> bool {
        self.0.is_canceled()
    }
}

/// Vectors in the making: a future. Dropping it cancels the request at the next step.
#[derive(Debug)]
#[must_use = "dropping it cancels the request"]
pub struct Embedding(oneshot::Receiver<Result<Vectors, Error>>);

/// A place for an answer, and both its ends.
pub fn slot() -> (Sender, Embedding) {
    let (sender, receiver) = oneshot::channel();
    (Sender(sender), Embedding(receiver))
}

impl Future for Embedding {
    type Output = Result<Vectors, Error>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.0).poll(context).map(|answer| {
            answer.unwrap_or_else(|oneshot::Canceled| {
                let died = "the embedding thread ended before the answer was there";
                Err(Error::Failed(died.into()))
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::task::Waker;

    fn poll(embedding: &mut Embedding) -> Poll<Result<Vectors, Error>> {
        Pin::new(embedding).poll(&mut Context::from_waker(Waker::noop()))
    }

    #[test]
    fn an_answer_arrives() {
        let (sender, mut embedding) = slot();
        assert!(poll(&mut embedding).is_pending());
        sender.finish(Err(Error::Deadline));
        assert_eq!(poll(&mut embedding), Poll::Ready(Err(Error::Deadline)));
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
