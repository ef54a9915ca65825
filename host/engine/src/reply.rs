//! One-shot replies of the engine's threads.

use crate::Error;
use futures_channel::oneshot;
use std::pin::Pin;
use std::task::{Context, Poll};

/// The replying thread's end. Dropping it unanswered fails the request.
#[derive(Debug)]
pub struct ReplySender<T>(oneshot::Sender<Result<T, Error>>);

impl<T> ReplySender<T> {
    /// Sends the reply.
    pub fn finish(self, reply: Result<T, Error>) {
        // Fails only if the caller dropped its `Reply`.
        let _ = self.0.send(reply);
    }

    /// Whether the caller dropped its [`Reply`].
    pub fn is_abandoned(&self) -> bool {
        self.0.is_canceled()
    }
}

/// A future of a reply. Dropping it cancels the request at the next step.
#[derive(Debug)]
#[must_use = "dropping it cancels the request"]
pub struct Reply<T>(oneshot::Receiver<Result<T, Error>>);

/// Creates both ends of a reply.
pub fn reply<T>() -> (ReplySender<T>, Reply<T>) {
    let (sender, receiver) = oneshot::channel();
    (ReplySender(sender), Reply(receiver))
}

impl<T> Future for Reply<T> {
    type Output = Result<T, Error>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.0).poll(context).map(|reply| {
            reply.unwrap_or_else(|oneshot::Canceled| {
                let error = "the engine thread ended before it replied; restart the server";
                Err(Error::Failed(error.into()))
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
    fn reply_arrives() {
        let (sender, mut reply) = reply();
        assert!(poll(&mut reply).is_pending());
        sender.finish(Err(Error::DeadlineExceeded));
        assert_eq!(poll(&mut reply), Poll::Ready(Err(Error::DeadlineExceeded)));
    }

    #[test]
    fn dropped_sender_fails_the_request() {
        let (sender, mut reply) = reply();
        drop(sender);
        let reply = poll(&mut reply);
        assert!(matches!(reply, Poll::Ready(Err(Error::Failed(_)))));
    }

    #[test]
    fn sender_sees_dropped_reply() {
        let (sender, reply) = reply::<u32>();
        assert!(!sender.is_abandoned());
        drop(reply);
        assert!(sender.is_abandoned());
    }
}
