//! A running generation: the mailbox through which tokens leave the engine thread.
//!
//! The engine thread appends tokens and text through a [`Sender`]; the reader takes everything that is ready
//! from its [`Generation`]. A slow reader delays nobody: it gets fewer and larger chunks. A mailbox never holds
//! more than the generation's token limit, and no lock is held longer than an append takes. The engine thread
//! wakes readers in batches ([`WakeBatch`](crate::reader_wake_batch::WakeBatch)).

use crate::engine_waker::EngineWaker;
use crate::metrics::{EngineMetrics, add_time};
use crate::{Error, Token};
use corral_sampling::TokenLogprobs;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

/// Tokens and text that became ready since the last read.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Chunk {
    /// Generated tokens, including an end-of-generation token.
    pub tokens: Vec<Token>,
    /// One entry per token, if the options request log probabilities.
    pub logprobs: Vec<TokenLogprobs>,
    /// The tokens' text: whole characters, without an ending that could begin a stop string.
    pub text: String,
}

/// Why a generation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FinishReason {
    /// The model produced an end-of-generation token, or the constraint is complete.
    End,
    /// A stop string appeared.
    Stop,
    /// The token limit or the context length was reached.
    Length,
}

/// Summary of a generation that ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// Why it ended.
    pub finish: FinishReason,
    /// Tokens of the prompt.
    pub prompt_tokens: u32,
    /// Prompt tokens that came from the prefix cache.
    pub cached_tokens: u32,
    /// Tokens generated, including an end-of-generation token.
    pub generated_tokens: u32,
    /// From `generate` to the scheduler's admission.
    pub queue_time: Duration,
    /// From admission to the first token.
    pub prefill_time: Duration,
    /// From the first token to the last.
    pub decode_time: Duration,
}

#[derive(Debug, Default)]
struct MailboxState {
    chunk: Chunk,
    outcome: Option<Result<Outcome, Error>>,
    waker: Option<Waker>,
    /// The reader waits for the end and not for single tokens.
    until_end: bool,
    /// When the oldest unread token arrived.
    unread_since: Option<Instant>,
}

impl MailboxState {
    fn set_waker(&mut self, context: &Context<'_>) {
        match &mut self.waker {
            Some(waker) => waker.clone_from(context.waker()),
            none => *none = Some(context.waker().clone()),
        }
    }
}

#[derive(Debug)]
struct Mailbox {
    state: Mutex<MailboxState>,
    metrics: Arc<EngineMetrics>,
    /// The reader dropped its [`Generation`].
    abandoned: AtomicBool,
    /// Wakes the engine thread when the reader goes away.
    engine: EngineWaker,
}

impl Mailbox {
    fn lock(&self) -> MutexGuard<'_, MailboxState> {
        // No code under this lock panics midway.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn count_taken(&self, tokens: usize) {
        let unread = &self.metrics.unread_tokens;
        unread.fetch_sub(tokens as u64, Ordering::Relaxed);
    }
}

impl Drop for Mailbox {
    fn drop(&mut self) {
        self.count_taken(self.lock().chunk.tokens.len());
    }
}

/// The engine thread's end of a mailbox. Dropping it without [`Sender::finish`] fails the generation.
#[derive(Debug)]
pub struct Sender(Arc<Mailbox>);

impl Sender {
    /// Appends a token and the text that it completes. The caller wakes the returned reader.
    #[must_use]
    pub fn push(&self, token: Token, logprobs: Option<TokenLogprobs>, text: &str) -> Option<Waker> {
        let mut state = self.0.lock();
        state.chunk.tokens.push(token);
        self.0.metrics.unread_tokens.fetch_add(1, Ordering::Relaxed);
        state.chunk.logprobs.extend(logprobs);
        state.chunk.text.push_str(text);
        if state.until_end {
            return None;
        }
        state.unread_since.get_or_insert_with(Instant::now);
        state.waker.take()
    }

    /// Appends the held-back text and ends the generation. The caller wakes the returned reader.
    #[must_use]
    pub fn finish(self, text: &str, outcome: Result<Outcome, Error>) -> Option<Waker> {
        let mut state = self.0.lock();
        state.chunk.text.push_str(text);
        state.outcome = Some(outcome);
        state.waker.take()
    }

    /// Whether the reader dropped its [`Generation`].
    pub fn is_abandoned(&self) -> bool {
        self.0.abandoned.load(Ordering::Relaxed)
    }
}

impl Drop for Sender {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        if state.outcome.is_none() {
            let error = "the engine thread ended before the generation did; restart the server";
            state.outcome = Some(Err(Error::Failed(error.into())));
            if let Some(waker) = state.waker.take() {
                drop(state);
                waker.wake();
            }
        }
    }
}

/// The reader's end of a running generation. Dropping it cancels the generation at the next step.
#[derive(Debug)]
pub struct Generation {
    mailbox: Arc<Mailbox>,
    outcome: Option<Result<Outcome, Error>>,
}

/// Creates a mailbox and returns both ends.
pub fn mailbox(metrics: Arc<EngineMetrics>, engine: EngineWaker) -> (Sender, Generation) {
    let mailbox = Arc::new(Mailbox {
        state: Mutex::default(),
        metrics,
        abandoned: AtomicBool::new(false),
        engine,
    });
    let generation = Generation {
        mailbox: mailbox.clone(),
        outcome: None,
    };
    (Sender(mailbox), generation)
}

impl Generation {
    /// Returns everything that became ready since the last call, or `None` at the end of the generation.
    pub fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<Chunk>> {
        if self.outcome.is_some() {
            return Poll::Ready(None);
        }
        let mut state = self.mailbox.lock();
        if let Some(since) = state.unread_since.take() {
            add_time(&self.mailbox.metrics.delivery_nanos, since.elapsed());
        }
        if !state.chunk.tokens.is_empty() || !state.chunk.text.is_empty() {
            let chunk = std::mem::take(&mut state.chunk);
            self.mailbox.count_taken(chunk.tokens.len());
            return Poll::Ready(Some(chunk));
        }
        if let Some(outcome) = state.outcome.take() {
            self.outcome = Some(outcome);
            return Poll::Ready(None);
        }
        state.until_end = false;
        state.set_waker(context);
        Poll::Pending
    }

    /// Like [`Generation::poll_next`], but pending until the generation has ended: then returns the rest at once.
    pub fn poll_rest(&mut self, context: &mut Context<'_>) -> Poll<Option<Chunk>> {
        if self.outcome.is_none() {
            let mut state = self.mailbox.lock();
            if state.outcome.is_none() {
                state.until_end = true;
                state.unread_since = None;
                state.set_waker(context);
                return Poll::Pending;
            }
        }
        self.poll_next(context)
    }

    /// Number of tokens that are ready and unread.
    pub fn unread(&self) -> usize {
        self.mailbox.lock().chunk.tokens.len()
    }

    /// [`Generation::poll_next`] as a future. Cancel-safe.
    pub async fn next(&mut self) -> Option<Chunk> {
        std::future::poll_fn(|context| self.poll_next(context)).await
    }

    /// The outcome, once all chunks have been read; `None` before.
    pub fn outcome(&self) -> Option<Result<Outcome, Error>> {
        self.outcome.clone()
    }
}

impl Drop for Generation {
    fn drop(&mut self) {
        self.mailbox.abandoned.store(true, Ordering::Relaxed);
        if self.outcome.is_none() {
            self.mailbox.engine.wake();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicUsize;

    fn mailbox() -> (Sender, Generation) {
        super::mailbox(Arc::default(), EngineWaker::default())
    }

    fn poll(generation: &mut Generation) -> Poll<Option<Chunk>> {
        generation.poll_next(&mut Context::from_waker(Waker::noop()))
    }

    fn poll_rest(generation: &mut Generation) -> Poll<Option<Chunk>> {
        generation.poll_rest(&mut Context::from_waker(Waker::noop()))
    }

    fn chunk(tokens: &[Token], text: &str) -> Poll<Option<Chunk>> {
        Poll::Ready(Some(Chunk {
            tokens: tokens.to_vec(),
            logprobs: Vec::new(),
            text: text.into(),
        }))
    }

    #[test]
    fn slow_reader_gets_one_ordered_chunk() {
        let (sender, mut generation) = mailbox();
        assert!(poll(&mut generation).is_pending());
        assert!(sender.push(1, None, "a").is_some());
        assert!(
            sender.push(2, None, "b").is_none(),
            "the reader is woken once"
        );
        assert_eq!(poll(&mut generation), chunk(&[1, 2], "ab"));
        assert!(poll(&mut generation).is_pending());
    }

    #[test]
    fn unread_tokens_are_counted() {
        let metrics = Arc::<EngineMetrics>::default();
        let unread = || metrics.unread_tokens.load(Ordering::Relaxed);
        let (sender, mut generation) = super::mailbox(metrics.clone(), EngineWaker::default());
        let _ = (sender.push(1, None, "a"), sender.push(2, None, "b"));
        assert_eq!(unread(), 2);
        assert!(poll(&mut generation).is_ready());
        assert_eq!(unread(), 0);
        let _ = sender.push(3, None, "c");
        drop((sender, generation));
        assert_eq!(unread(), 0);
    }

    #[test]
    fn poll_rest_wakes_at_the_end_only() {
        let (sender, mut generation) = mailbox();
        assert!(poll_rest(&mut generation).is_pending());
        assert!(sender.push(1, None, "a").is_none());
        assert!(poll_rest(&mut generation).is_pending());
        // The reader may return to single chunks.
        assert!(matches!(poll(&mut generation), Poll::Ready(Some(_))));
        assert!(poll(&mut generation).is_pending());
        assert!(sender.push(2, None, "b").is_some());
        assert!(poll_rest(&mut generation).is_pending());
        assert!(sender.push(3, None, "c").is_none());
        assert_eq!(generation.unread(), 2);
        let finished = sender.finish("d", Err(Error::DeadlineExceeded));
        assert!(finished.is_some());
        assert_eq!(poll_rest(&mut generation), chunk(&[2, 3], "bcd"));
        assert_eq!(poll_rest(&mut generation), Poll::Ready(None));
        assert_eq!(generation.outcome(), Some(Err(Error::DeadlineExceeded)));
    }

    #[test]
    fn dropped_sender_fails_the_generation() {
        let (sender, mut generation) = mailbox();
        drop(sender);
        assert_eq!(poll(&mut generation), Poll::Ready(None));
        assert!(matches!(generation.outcome(), Some(Err(Error::Failed(_)))));
    }

    #[test]
    fn sender_sees_dropped_reader() {
        let (sender, generation) = mailbox();
        assert!(!sender.is_abandoned());
        drop(generation);
        assert!(sender.is_abandoned());
    }

    #[test]
    fn engine_wakes_for_unfinished_dropped_reader_only() {
        let wakes = Arc::new(AtomicUsize::new(0));
        let counter = Arc::clone(&wakes);
        let engine = EngineWaker::new(move || {
            counter.fetch_add(1, Ordering::Relaxed);
        });
        drop(super::mailbox(Arc::default(), engine.clone()).1);
        assert_eq!(wakes.load(Ordering::Relaxed), 1);
        let (sender, mut generation) = super::mailbox(Arc::default(), engine);
        drop(sender);
        assert_eq!(poll(&mut generation), Poll::Ready(None));
        drop(generation);
        assert_eq!(wakes.load(Ordering::Relaxed), 1);
    }
}
