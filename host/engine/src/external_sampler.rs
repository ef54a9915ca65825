//! External samplers: sampling plugins that pick tokens in place of the sampler chain.
//!
//! A plugin may be slow, fail or never answer, so it runs on a task of its own and the engine thread never waits
//! for it. The engine sends a [`SamplingRequest`] per token; the answer returns through a [`SamplingReply`] into
//! the [`SamplerMailbox`]. Meanwhile the sequence keeps its cells and its sequence id and has no row in a step.

use crate::engine_waker::EngineWaker;
use crate::{Error, Token};
use corral_sampling::Statistics;
use corral_scheduler::RequestId;
use std::fmt::Debug;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// What each [`SamplingRequest`] contains.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SamplingRequestOptions {
    /// Number of likeliest tokens, from 1 to [`MAX_CANDIDATES`](crate::MAX_CANDIDATES).
    pub candidates: u32,
    /// Include statistics of the whole row.
    pub statistics: bool,
    /// Number of trailing prompt tokens in the first request.
    pub history: u32,
}

/// Starts an external sampler for each generation.
pub trait ExternalSamplerFactory: Debug + Send + Sync {
    /// What the samplers need in each request.
    fn request_options(&self) -> SamplingRequestOptions;

    /// Starts a sampler; `seed` is for its random numbers. The engine thread calls this when it admits the
    /// generation, so it must not block. A preempted generation keeps its sampler. An error of the start is the
    /// answer to the first request.
    fn start(&self, seed: u64) -> Box<dyn ExternalSampler>;
}

/// Samples the tokens of one generation. Dropped at the generation's end, with or without an open request.
pub trait ExternalSampler: Send {
    /// Accepts a request to answer later through `reply`. The engine thread calls this, so it must not block.
    /// At most one request is open at a time.
    fn sample(&mut self, request: SamplingRequest, reply: SamplingReply);
}

/// The distribution of the next token, for an external sampler.
#[derive(Clone, Debug, PartialEq)]
pub struct SamplingRequest {
    /// The likeliest tokens and their logits, falling; equal logits in order of token. With a constraint, only
    /// tokens that it allows. At least one; all logits are finite.
    pub candidates: Vec<(Token, f32)>,
    /// Statistics of the whole row, if the options ask for them.
    pub statistics: Option<Statistics>,
    /// Tokens added since the last request; in the first request the end of the prompt.
    pub new_tokens: Vec<Token>,
    /// Number of tokens before the next one.
    pub position: u32,
}

/// Answers one [`SamplingRequest`]. Dropping it unanswered fails the generation.
#[derive(Debug)]
pub struct SamplingReply {
    mailbox: Arc<SamplerMailbox>,
    /// `None` once answered.
    request: Option<RequestId>,
}

impl SamplingReply {
    /// Answers with one of the request's candidates, or with the error that ends the generation. Callable from
    /// any thread; does not wait for the engine.
    pub fn send(mut self, answer: Result<Token, Error>) {
        self.put(answer);
    }

    fn put(&mut self, answer: Result<Token, Error>) {
        if let Some(request) = self.request.take() {
            self.mailbox.put(request, answer);
        }
    }
}

impl Drop for SamplingReply {
    fn drop(&mut self) {
        let error = "the sampling plugin ended before it sampled the next token";
        self.put(Err(Error::Failed(error.into())));
    }
}

/// Answers of external samplers that the engine thread has not read yet: at most one per running request.
#[derive(Debug)]
pub struct SamplerMailbox {
    answers: Mutex<Vec<(RequestId, Result<Token, Error>)>>,
    engine: EngineWaker,
}

impl SamplerMailbox {
    /// An empty mailbox that wakes `engine` after each answer.
    pub fn new(engine: EngineWaker) -> Arc<Self> {
        Arc::new(Self {
            answers: Mutex::default(),
            engine,
        })
    }

    /// A reply handle for the request with this id.
    pub fn reply_for(self: &Arc<Self>, request: RequestId) -> SamplingReply {
        SamplingReply {
            mailbox: Arc::clone(self),
            request: Some(request),
        }
    }

    /// Removes and returns all answers.
    pub fn take(&self) -> Vec<(RequestId, Result<Token, Error>)> {
        std::mem::take(&mut *self.lock())
    }

    fn put(&self, request: RequestId, answer: Result<Token, Error>) {
        self.lock().push((request, answer));
        self.engine.wake();
    }

    fn lock(&self) -> MutexGuard<'_, Vec<(RequestId, Result<Token, Error>)>> {
        // No code under this lock panics midway.
        self.answers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
