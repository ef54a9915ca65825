//! A running generation as a guest sees it: a stream of chunks, and a future with the outcome.
//!
//! The stream's producer polls the engine's mailbox directly; no task and no channel stands between the
//! engine and the guest, or the client (`framed_body.rs`). The sequence, the stream and the future share a
//! [`GenerationHandle`]. Dropping the stream cancels the generation; dropping the sequence does not. A guest
//! without `await` (`inference_sync.rs`) has neither stream nor future, and reads the chunks one by one.

use super::bindings::corral::inference::inference::{Chunk, Finish, Outcome, TokenLogprobs};
use super::counted_sequence::{SharedSequence, lock};
use super::wit;
use crate::counters::DeploymentCounters;
use crate::held_resources::RunningGeneration;
use crate::quota::TokenReservation;
use crate::state::State;
use corral_engine::{Error, Generation, GenerationTrace};
use std::any::{Any, TypeId};
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;
use wasmtime::StoreContextMut;
use wasmtime::component::{Destination, FutureProducer, StreamProducer, StreamResult};

/// One generation.
#[derive(Clone)]
pub(super) struct GenerationHandle(Arc<Mutex<Inner>>);

struct Inner {
    /// None once it has ended.
    generation: Option<Generation>,
    /// Gets the tokens of each chunk. None once the generation has ended, so that a handle does not keep
    /// the sequence alive.
    sequence: Option<SharedSequence>,
    counters: Arc<DeploymentCounters>,
    /// Whether the outcome has times.
    has_clocks: bool,
    /// Tokens that it may use, if a quota applies.
    reservation: Option<TokenReservation>,
    /// Its record, if it is traced.
    trace: Option<Arc<GenerationTrace>>,
    /// A chunk that the guest asked about but has not read.
    unread: Option<Chunk>,
    outcome: Option<Result<Outcome, wit::Error>>,
    outcome_waker: Option<Waker>,
}

impl GenerationHandle {
    pub(super) fn new(
        generation: Generation,
        sequence: SharedSequence,
        counters: Arc<DeploymentCounters>,
        has_clocks: bool,
        reservation: Option<TokenReservation>,
        trace: Option<Arc<GenerationTrace>>,
    ) -> Self {
        Self(Arc::new(Mutex::new(Inner {
            generation: Some(generation),
            sequence: Some(sequence),
            counters,
            has_clocks,
            reservation,
            trace,
            unread: None,
            outcome: None,
            outcome_waker: None,
        })))
    }

    pub(super) fn chunks(&self) -> GenerationChunks {
        GenerationChunks(self.clone())
    }

    pub(super) fn outcome(&self) -> GenerationOutcome {
        GenerationOutcome(self.clone())
    }
}

impl RunningGeneration for GenerationHandle {
    fn is_running(&self) -> bool {
        lock(&self.0).generation.is_some()
    }

    fn cancel(&self) {
        let mut inner = lock(&self.0);
        if inner.generation.is_some() {
            inner.end(Err(wit::Error::Cancelled));
        }
    }
}

impl Inner {
    fn end(&mut self, outcome: Result<Outcome, wit::Error>) {
        // Tokens that nobody reads count as used.
        if let (Some(generation), Some(reservation)) = (&self.generation, &mut self.reservation) {
            reservation.mark_used(generation.unread() as u64);
        }
        self.generation = None;
        if let Some(trace) = self.trace.take() {
            trace.delivered();
        }
        self.sequence = None;
        // Returns unused tokens to the quota.
        self.reservation = None;
        self.outcome = Some(outcome);
        if let Some(waker) = self.outcome_waker.take() {
            waker.wake();
        }
    }

    /// Polls for the next chunk; with `whole`, for the rest of the generation in one chunk. None at the end.
    fn poll_chunk(&mut self, cx: &mut Context<'_>, whole: bool) -> Poll<Option<Chunk>> {
        self.counters.generation_polls.increment();
        if let Some(chunk) = self.unread.take() {
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
                self.counters.generation_chunks.increment();
                if let Some(sequence) = &self.sequence {
                    lock(sequence).append_generated(&chunk.tokens);
                }
                if let Some(reservation) = &mut self.reservation {
                    reservation.mark_used(chunk.tokens.len() as u64);
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
                let outcome = self.counters.count_queue_timeout(outcome);
                let has_clocks = self.has_clocks;
                let outcome = outcome.map(|outcome| match has_clocks {
                    true => outcome.into(),
                    false => Outcome {
                        queue_time: 0,
                        prefill_time: 0,
                        decode_time: 0,
                        ..outcome.into()
                    },
                });
                self.end(outcome.map_err(Into::into));
                Poll::Ready(None)
            }
        }
    }
}

/// The chunks of a generation, and the producer of its stream. Dropping it cancels the generation.
pub(super) struct GenerationChunks(GenerationHandle);

impl GenerationChunks {
    /// Polls for the next chunk. None at the end.
    pub(super) fn poll_next(&self, cx: &mut Context<'_>) -> Poll<Option<Chunk>> {
        lock(&self.0.0).poll_chunk(cx, false)
    }

    /// Waits for the next chunk. None at the end.
    pub(super) async fn next(&self) -> Option<Chunk> {
        poll_fn(|cx| self.poll_next(cx)).await
    }

    /// Waits for the end and returns all unread chunks as one.
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

    /// Waits for the end, discards unread chunks, and returns the outcome.
    pub(super) async fn outcome(&self) -> Result<Outcome, wit::Error> {
        self.rest().await;
        let outcome = lock(&self.0.0).outcome.clone();
        outcome.unwrap_or(Err(wit::Error::Cancelled))
    }
}

impl StreamProducer<State> for GenerationChunks {
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
            // A read of zero items asks whether there are any.
            Poll::Ready(Some(chunk)) if destination.remaining(&mut store) == Some(0) => {
                inner.unread = Some(chunk);
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

impl Drop for GenerationChunks {
    fn drop(&mut self) {
        self.0.cancel();
    }
}

/// The producer of the outcome's future.
pub(super) struct GenerationOutcome(GenerationHandle);

impl FutureProducer<State> for GenerationOutcome {
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
                inner.outcome_waker = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    }
}

impl From<corral_engine::TokenLogprobs> for TokenLogprobs {
    fn from(logprobs: corral_engine::TokenLogprobs) -> Self {
        Self {
            logprob: logprobs.logprob,
            top: logprobs.top,
        }
    }
}

impl From<corral_engine::Outcome> for Outcome {
    fn from(outcome: corral_engine::Outcome) -> Self {
        let nanos = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        Self {
            finish: match outcome.finish {
                corral_engine::FinishReason::End => Finish::End,
                corral_engine::FinishReason::Stop => Finish::Stop,
                corral_engine::FinishReason::Length => Finish::Length,
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
