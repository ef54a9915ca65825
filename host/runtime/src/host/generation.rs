//! A running generation, as the two things a guest sees of it: a stream of chunks and a future with
//! the outcome.
//!
//! The stream's producer polls the engine's mailbox itself, so no task and no channel stands between
//! the engine and the guest (nor the client, where the host puts the text into bytes: `framing.rs`). Three parties
//! share a [`Run`]: the sequence, the stream and the future.
//! When one of the first two goes away it takes the generation along, and that cancels it. A guest that
//! blocks (`blocking.rs`) has neither stream nor future, and reads the chunks one by one.

use super::bindings::corral::inference::inference::{Chunk, Finish, Outcome, TokenLogprobs};
use super::sequence::Shared;
use super::wit;
use crate::quota::Reservation;
use crate::state::State;
use crate::tally::Tally;
use corral_engine::{Error, Generation};
use std::any::{Any, TypeId};
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;
use wasmtime::StoreContextMut;
use wasmtime::component::{Destination, FutureProducer, StreamProducer, StreamResult};

/// Locks what the parties share. All live in one store, but for a stream on its way to a client, and nobody holds it for
/// long.
pub(super) fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// One generation.
#[derive(Clone)]
pub(super) struct Run(Arc<Mutex<Inner>>);

struct Inner {
    /// None once it ended.
    generation: Option<Generation>,
    /// The text that each chunk's tokens go to; none once it ended, so that what is held of a text ends
    /// with its sequence, whoever holds on to the run.
    text: Option<Shared>,
    tally: Arc<Tally>,
    /// The tokens that it may come to, if somebody counts them.
    reservation: Option<Reservation>,
    /// A chunk that the guest asked about but has not taken.
    ready: Option<Chunk>,
    outcome: Option<Result<Outcome, wit::Error>>,
    waiting: Option<Waker>,
}

impl Run {
    pub(super) fn new(
        generation: Generation,
        text: Shared,
        tally: Arc<Tally>,
        reservation: Option<Reservation>,
    ) -> Self {
        Self(Arc::new(Mutex::new(Inner {
            generation: Some(generation),
            text: Some(text),
            tally,
            reservation,
            ready: None,
            outcome: None,
            waiting: None,
        })))
    }

    /// Whether it goes on.
    pub(super) fn goes_on(&self) -> bool {
        lock(&self.0).generation.is_some()
    }

    /// Cancels it, unless it has ended.
    pub(super) fn cancel(&self) {
        let mut inner = lock(&self.0);
        if inner.generation.is_some() {
            inner.end(Err(wit::Error::Cancelled));
        }
    }

    /// What it generates.
    pub(super) fn chunks(&self) -> Chunks {
        Chunks(self.clone())
    }

    /// How it goes.
    pub(super) fn ending(&self) -> Ending {
        Ending(self.clone())
    }
}

impl Inner {
    fn end(&mut self, outcome: Result<Outcome, wit::Error>) {
        self.count_unread();
        self.generation = None;
        self.text = None;
        // What was not needed is given back.
        self.reservation = None;
        self.outcome = Some(outcome);
        if let Some(waiting) = self.waiting.take() {
            waiting.wake();
        }
    }

    /// Whoever reads no further has used what was generated all the same.
    fn count_unread(&mut self) {
        if let (Some(generation), Some(reservation)) = (&self.generation, &mut self.reservation) {
            reservation.used(generation.unread() as u64);
        }
    }

    /// The next chunk, or none at the end; only at the end there is one, if it is to be `whole`.
    fn poll_chunk(&mut self, cx: &mut Context<'_>, whole: bool) -> Poll<Option<Chunk>> {
        self.tally.looked();
        if let Some(chunk) = self.ready.take() {
            return Poll::Ready(Some(chunk));
        }
        let Some(generation) = &mut self.generation else {
            return Poll::Ready(None);
        };
        let polled = match whole {
            true => generation.poll_rest(cx),
            false => generation.poll_next(cx),
        };
        match ready!(polled) {
            Some(chunk) => {
                self.tally.read();
                if let Some(text) = &self.text {
                    lock(text).generated(&chunk.tokens);
                }
                if let Some(reservation) = &mut self.reservation {
                    reservation.used(chunk.tokens.len() as u64);
                }
                Poll::Ready(Some(Chunk {
                    tokens: chunk.tokens,
                    text: chunk.text,
                    logprobs: chunk.logprobs.into_iter().map(Into::into).collect(),
                }))
            }
            None => {
                let outcome = generation.outcome().unwrap_or_else(|| {
                    Err(Error::Failed("the engine ended without an outcome".into()))
                });
                let outcome = self.tally.ended(outcome);
                self.end(outcome.map(Into::into).map_err(Into::into));
                Poll::Ready(None)
            }
        }
    }
}

/// What it generates, and the producer of the stream. Dropping it cancels.
pub(super) struct Chunks(Run);

impl Chunks {
    /// The next one; none at the end.
    pub(super) fn poll_next(&self, cx: &mut Context<'_>) -> Poll<Option<Chunk>> {
        lock(&self.0.0).poll_chunk(cx, false)
    }

    /// Waits for the next one; none at the end.
    pub(super) async fn next(&self) -> Option<Chunk> {
        poll_fn(|cx| self.poll_next(cx)).await
    }

    /// Waits for the end: all that is left.
    pub(super) async fn rest(&self) -> Chunk {
        let mut all = Chunk {
            tokens: Vec::new(),
            text: String::new(),
            logprobs: Vec::new(),
        };
        let next = || poll_fn(|cx| lock(&self.0.0).poll_chunk(cx, true));
        while let Some(chunk) = next().await {
            all.tokens.extend(chunk.tokens);
            all.text += &chunk.text;
            all.logprobs.extend(chunk.logprobs);
        }
        all
    }

    /// Waits for the end, without the chunks until then, and says how it went.
    pub(super) async fn outcome(&self) -> Result<Outcome, wit::Error> {
        self.rest().await;
        let outcome = lock(&self.0.0).outcome.clone();
        outcome.unwrap_or(Err(wit::Error::Cancelled))
    }
}

impl StreamProducer<State> for Chunks {
    type Item = Chunk;
    type Buffer = Option<Chunk>;

    fn poll_produce<'a>(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        mut store: StoreContextMut<'a, State>,
        mut destination: Destination<'a, Chunk, Option<Chunk>>,
        finish: bool,
    ) -> Poll<wasmtime::Result<StreamResult>> {
        let mut inner = lock(&self.0.0);
        Poll::Ready(Ok(match inner.poll_chunk(cx, false) {
            Poll::Pending if finish => StreamResult::Cancelled,
            Poll::Pending => return Poll::Pending,
            Poll::Ready(None) => StreamResult::Dropped,
            // A read of no items only asks whether there are any.
            Poll::Ready(Some(chunk)) if destination.remaining(&mut store) == Some(0) => {
                inner.ready = Some(chunk);
                StreamResult::Completed
            }
            Poll::Ready(Some(chunk)) => {
                destination.set_buffer(Some(chunk));
                StreamResult::Completed
            }
        }))
    }

    fn try_into(me: Pin<Box<Self>>, wanted: TypeId) -> Result<Box<dyn Any>, Pin<Box<Self>>> {
        if wanted == TypeId::of::<Self>() {
            let me: Box<Self> = Pin::into_inner(me);
            Ok(me)
        } else {
            Err(me)
        }
    }
}

impl Drop for Chunks {
    fn drop(&mut self) {
        self.0.cancel();
    }
}

/// The producer of the future.
pub(super) struct Ending(Run);

impl FutureProducer<State> for Ending {
    type Item = Result<Outcome, wit::Error>;

    fn poll_produce(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        _: StoreContextMut<State>,
        finish: bool,
    ) -> Poll<wasmtime::Result<Option<Self::Item>>> {
        let mut inner = lock(&self.0.0);
        match inner.outcome.take() {
            Some(outcome) => Poll::Ready(Ok(Some(outcome))),
            None if finish => Poll::Ready(Ok(None)),
            None => {
                inner.waiting = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    }
}

impl From<corral_engine::TokenLogprobs> for TokenLogprobs {
    fn from(told: corral_engine::TokenLogprobs) -> Self {
        Self {
            logprob: told.logprob,
            top: told.top,
        }
    }
}

impl From<corral_engine::Outcome> for Outcome {
    fn from(outcome: corral_engine::Outcome) -> Self {
        let nanos = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        Self {
            finish: match outcome.finish {
                corral_engine::Finish::End => Finish::End,
                corral_engine::Finish::Stop => Finish::Stop,
                corral_engine::Finish::Length => Finish::Length,
            },
            prompt_tokens: outcome.prompt_tokens,
            cached_tokens: outcome.cached_tokens,
            generated_tokens: outcome.generated_tokens,
            queue_time: nanos(outcome.queue_time),
            prefill_time: nanos(outcome.prefill_time),
            decode_time: nanos(outcome.decode_time),
        }
    }
}
