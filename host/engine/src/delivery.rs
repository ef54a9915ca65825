//! How tokens leave the engine thread: a mailbox per sequence.
//!
//! The engine adds what it generated and says who is to be woken for it ([`Bell`](crate::bell::Bell)); the reader takes all that is there. So a
//! slow reader holds up nobody and gets fewer, larger chunks, a mailbox holds at most what the
//! generation's limit of tokens allows, and no lock is held for longer than it takes to append.

use crate::chooser::Desk;
use crate::generation::{Chunk, Outcome};
use crate::metrics::{Counters, add_time};
use crate::{Error, Token};
use corral_sampling::TokenLogprobs;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Instant;

#[derive(Debug, Default)]
struct State {
    chunk: Chunk,
    done: Option<Result<Outcome, Error>>,
    waker: Option<Waker>,
    /// The reader waits for the end alone.
    whole: bool,
    /// Since when there is something that nobody has read.
    unread: Option<Instant>,
}

impl State {
    /// The reader waits.
    fn waits(&mut self, context: &Context<'_>) {
        match &mut self.waker {
            Some(waker) => waker.clone_from(context.waker()),
            none => *none = Some(context.waker().clone()),
        }
    }
}

#[derive(Debug)]
struct Mailbox {
    state: Mutex<State>,
    counters: Arc<Counters>,
    /// Nobody will read any more.
    gone: AtomicBool,
    /// By which the engine's thread is told so, which may be waiting for what is chosen.
    desk: Arc<Desk>,
}

impl Mailbox {
    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing under this lock panics half-way.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The engine's end of a mailbox. Dropping it without [`Sender::finish`] tells the reader that the
/// engine died.
#[derive(Debug)]
pub struct Sender(Arc<Mailbox>);

impl Sender {
    /// Adds a token, how likely it was if that was asked, and the text that became ready with it. Who waits
    /// for it is to be woken by the caller.
    #[must_use]
    pub fn push(&self, token: Token, logprobs: Option<TokenLogprobs>, text: &str) -> Option<Waker> {
        let mut state = self.0.lock();
        state.chunk.tokens.push(token);
        state.chunk.logprobs.extend(logprobs);
        state.chunk.text.push_str(text);
        if state.whole {
            return None;
        }
        state.unread.get_or_insert_with(Instant::now);
        state.waker.take()
    }

    /// Adds the text that was held back, and ends the generation. Who waits for it is to be woken by the
    /// caller.
    #[must_use]
    pub fn finish(self, text: &str, result: Result<Outcome, Error>) -> Option<Waker> {
        let mut state = self.0.lock();
        state.chunk.text.push_str(text);
        state.done = Some(result);
        state.waker.take()
    }

    /// Whether the reader went away.
    pub fn is_abandoned(&self) -> bool {
        self.0.gone.load(Ordering::Relaxed)
    }
}

impl Drop for Sender {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        if state.done.is_none() {
            let died = "the engine thread ended before the generation did";
            state.done = Some(Err(Error::Failed(died.into())));
            if let Some(waker) = state.waker.take() {
                drop(state);
                waker.wake();
            }
        }
    }
}

/// A running generation: the reader's end. Dropping it cancels the generation at the next step.
#[derive(Debug)]
pub struct Generation {
    mailbox: Arc<Mailbox>,
    outcome: Option<Result<Outcome, Error>>,
}

/// A mailbox and both its ends. How long things lie in it is added to `counters`.
pub fn mailbox(counters: Arc<Counters>, desk: Arc<Desk>) -> (Sender, Generation) {
    let mailbox = Arc::new(Mailbox {
        state: Mutex::default(),
        counters,
        gone: AtomicBool::new(false),
        desk,
    });
    let generation = Generation {
        mailbox: mailbox.clone(),
        outcome: None,
    };
    (Sender(mailbox), generation)
}

impl Generation {
    /// Everything that became ready since the last call; `None` when the generation has ended.
    pub fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<Chunk>> {
        if self.outcome.is_some() {
            return Poll::Ready(None);
        }
        let mut state = self.mailbox.lock();
        if let Some(since) = state.unread.take() {
            add_time(&self.mailbox.counters.delivery_nanos, since.elapsed());
        }
        if !state.chunk.tokens.is_empty() || !state.chunk.text.is_empty() {
            return Poll::Ready(Some(std::mem::take(&mut state.chunk)));
        }
        if let Some(done) = state.done.take() {
            self.outcome = Some(done);
            return Poll::Ready(None);
        }
        state.whole = false;
        state.waits(context);
        Poll::Pending
    }

    /// The same, but only when the generation has ended: all that is left of it at once. The reader is not woken before.
    pub fn poll_rest(&mut self, context: &mut Context<'_>) -> Poll<Option<Chunk>> {
        if self.outcome.is_none() {
            let mut state = self.mailbox.lock();
            if state.done.is_none() {
                state.whole = true;
                state.unread = None;
                state.waits(context);
                return Poll::Pending;
            }
        }
        self.poll_next(context)
    }

    /// Tokens that became ready and were not read.
    pub fn unread(&self) -> usize {
        self.mailbox.lock().chunk.tokens.len()
    }

    /// [`Generation::poll_next`] as a future. Nothing is lost if it is dropped while it waits.
    pub async fn next(&mut self) -> Option<Chunk> {
        std::future::poll_fn(|context| self.poll_next(context)).await
    }

    /// How it ended; `None` until the chunks have been read to their end.
    pub fn outcome(&self) -> Option<Result<Outcome, Error>> {
        self.outcome.clone()
    }
}

impl Drop for Generation {
    fn drop(&mut self) {
        self.mailbox.gone.store(true, Ordering::Relaxed);
        if self.outcome.is_none() {
            self.mailbox.desk.wake();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicUsize;

    fn mailbox() -> (Sender, Generation) {
        super::mailbox(Arc::default(), Desk::new(Box::new(|| {})))
    }

    fn poll(generation: &mut Generation) -> Poll<Option<Chunk>> {
        generation.poll_next(&mut Context::from_waker(Waker::noop()))
    }

    #[test]
    fn a_slow_reader_gets_everything_at_once_and_in_order() {
        let (sender, mut generation) = mailbox();
        assert!(poll(&mut generation).is_pending());
        assert!(sender.push(1, None, "a").is_some());
        assert!(sender.push(2, None, "b").is_none(), "nobody is woken twice");
        let chunk = Chunk {
            tokens: vec![1, 2],
            logprobs: Vec::new(),
            text: "ab".into(),
        };
        assert_eq!(poll(&mut generation), Poll::Ready(Some(chunk)));
        assert!(poll(&mut generation).is_pending());
    }

    #[test]
    fn who_wants_all_of_it_is_woken_at_the_end_alone() {
        let (sender, mut generation) = mailbox();
        let rest = |generation: &mut Generation| {
            generation.poll_rest(&mut Context::from_waker(Waker::noop()))
        };
        assert!(rest(&mut generation).is_pending());
        assert!(sender.push(1, None, "a").is_none());
        assert!(rest(&mut generation).is_pending());
        // It may change its mind.
        assert!(matches!(poll(&mut generation), Poll::Ready(Some(_))));
        assert!(poll(&mut generation).is_pending());
        assert!(sender.push(2, None, "b").is_some());
        assert!(rest(&mut generation).is_pending());
        assert!(sender.push(3, None, "c").is_none());
        assert_eq!(generation.unread(), 2);
        assert!(sender.finish("d", Err(Error::Deadline)).is_some());
        let chunk = Chunk {
            tokens: vec![2, 3],
            logprobs: Vec::new(),
            text: "bcd".into(),
        };
        assert_eq!(rest(&mut generation), Poll::Ready(Some(chunk)));
        assert_eq!(rest(&mut generation), Poll::Ready(None));
        assert_eq!(generation.outcome(), Some(Err(Error::Deadline)));
    }

    #[test]
    fn a_dead_engine_is_an_error_not_an_endless_wait() {
        let (sender, mut generation) = mailbox();
        drop(sender);
        assert_eq!(poll(&mut generation), Poll::Ready(None));
        assert!(matches!(generation.outcome(), Some(Err(Error::Failed(_)))));
    }

    #[test]
    fn the_engine_sees_that_nobody_reads() {
        let (sender, generation) = mailbox();
        assert!(!sender.is_abandoned());
        drop(generation);
        assert!(sender.is_abandoned());
    }

    #[test]
    fn the_engine_is_woken_by_who_goes_away_and_not_by_who_read_to_the_end() {
        let woken = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&woken);
        let desk = Desk::new(Box::new(move || {
            counted.fetch_add(1, Ordering::Relaxed);
        }));
        drop(super::mailbox(Arc::default(), Arc::clone(&desk)).1);
        assert_eq!(woken.load(Ordering::Relaxed), 1);
        let (sender, mut generation) = super::mailbox(Arc::default(), desk);
        drop(sender);
        assert_eq!(poll(&mut generation), Poll::Ready(None));
        drop(generation);
        assert_eq!(woken.load(Ordering::Relaxed), 1);
    }
}
