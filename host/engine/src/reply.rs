//! How an answer reaches who asked: a place for one, and a future that takes it.

use crate::Error;
use futures_channel::oneshot;
use std::pin::Pin;
use std::task::{Context, Poll};

/// The end of who answers. Dropped without an answer, it tells the reader that the thread died.
#[derive(Debug)]
pub struct Sender<T>(oneshot::Sender<Result<T, Error>>);

impl<T> Sender<T> {
    /// Gives the answer.
    pub fn finish(self, answer: Result<T, Error>) {
        // Fails only if nobody waits for it any more.
        let _ = self.0.send(answer);
    }

    /// Whether nobody waits for the answer any more.
    pub fn is_abandoned(&self) -> bool {
        self.0.is_canceled()
    }
}

/// An answer in the making: a future. Dropping it cancels the request at the next step.
#[derive(Debug)]
#[must_use = "dropping it cancels the request"]
pub struct Reply<T>(oneshot::Receiver<Result<T, Error>>);

/// A place for an answer, and both its ends.
pub fn reply<T>() -> (Sender<T>, Reply<T>) {
    let (sender, receiver) = oneshot::channel();
    (Sender(sender), Reply(receiver))
}

impl<T> Future for Reply<T> {
    type Output = Result<T, Error>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.0).poll(context).map(|answer| {
            answer.unwrap_or_else(|oneshot::Canceled| {
                let died = "the engine's thread ended before the answer was there";
                Err(Error::Failed(died.into()))
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::task::Waker;

    fn poll(reply: &mut Reply<u32>) -> Poll<Result<u32, Error>> {
        Pin::new(reply).poll(&mut Context::from_waker(Waker::noop()))
    }

    #[test]
    fn an_answer_arrives() {
        let (sender, mut answer) = reply();
        assert!(poll(&mut answer).is_pending());
        sender.finish(Err(Error::Deadline));
        assert_eq!(poll(&mut answer), Poll::Ready(Err(Error::Deadline)));
    }

    #[test]
    fn a_dead_thread_is_an_error_not_an_endless_wait() {
        let (sender, mut answer) = reply();
        drop(sender);
        let answer = poll(&mut answer);
        assert!(matches!(answer, Poll::Ready(Err(Error::Failed(_)))));
    }

    #[test]
    fn the_thread_sees_that_nobody_waits() {
        let (sender, answer) = reply::<u32>();
        assert!(!sender.is_abandoned());
        drop(answer);
        assert!(sender.is_abandoned());
    }
}
