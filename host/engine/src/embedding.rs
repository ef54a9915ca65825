//! Embeddings: vectors of texts, computed in a context of their own.
//!
//! llama.cpp computes vectors only if every token is an output, which the generating context must not
//! pay for. The first request starts the thread and its context; the context is freed after
//! [`EmbeddingConfig::idle`] without requests.
//!
//! - This module checks arguments and acquires a permit of the [`open_request_limits`](crate::open_request_limits) before a request is queued.
//! - [`fair_queue`] orders requests, [`batch`] forms steps, [`pooling`] turns vectors of tokens into
//!   results, and [`worker`] runs them on an [`EmbeddingBackend`].
//!
//! Generation comes first: the thread and its compute threads have a low priority, and half of them
//! are used while requests generate. Steps are short ([`STEP_TOKENS`]), and abandoned requests end
//! between them.
//!
//! Limits: [`MAX_EMBED_INPUTS`] inputs, [`MAX_EMBED_TOKENS`] tokens and [`MAX_EMBED_NUMBERS`] numbers
//! per call; four times these tokens and numbers, and [`EmbeddingConfig::queue`] requests, in all. A
//! tenant may use a quarter of these.

mod backend;
mod batch;
mod fair_queue;
mod pooling;
mod vectors;
mod worker;

pub use backend::EmbeddingBackend;
pub(crate) use fair_queue::{FairQueue, FairQueueId};
pub use pooling::Pooling;
pub use vectors::{Embedding, Vectors};

use crate::metrics::{EngineMetrics, add, get};
use crate::open_request_limits::{OpenRequestLimits, RequestLoad};
use crate::{Caller, Error, LoadError, Token};
use batch::BatchLimits;
use corral_llama::{
    ContextSettings, EmbeddingContext, EmbeddingSettings, EmbeddingTraits, KvType, Model,
};
use std::sync::mpsc::{SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use worker::{EmbeddingCommand, EmbeddingRequest, EmbeddingWorker};

/// Inputs of a request.
pub const MAX_EMBED_INPUTS: usize = 2048;
/// Tokens of all inputs of a request.
pub const MAX_EMBED_TOKENS: u64 = 131_072;
/// Numbers (`f32`) in the result of a request: 64 MiB.
pub const MAX_EMBED_NUMBERS: u64 = 1 << 24;

/// Tokens of a step of a causal model. On a CPU longer steps are hardly faster, and each token costs
/// llama.cpp two rows of logits (0.6 MB each for a vocabulary of 152k tokens).
const STEP_TOKENS: u32 = 128;
/// Tokens up to which several whole inputs share a step.
const SHARED_TOKENS: u32 = 512;
/// Inputs computed at once.
const SEQ_IDS: u16 = 32;
/// Default tokens of the longest input, if the model's context is not shorter: each token needs a cell,
/// of some 100 KiB.
const MAX_INPUT: u32 = 2048;
/// Bytes of logits that limit the default length of whole inputs.
const MAX_LOGIT_BYTES: u32 = 1 << 30;
/// A tenant may use one part in this many of each limit.
const TENANT_DIVISOR: u64 = 4;
/// Default limit of open requests.
const QUEUE: usize = 1024;
/// Default time without requests after which the context is freed.
const IDLE: Duration = Duration::from_secs(60);
/// Added niceness of the thread and its compute threads: beside a serving thread on the same core they
/// get a quarter of the time. Only on Linux; elsewhere niceness belongs to the process.
#[cfg(target_os = "linux")]
const NICENESS: i32 = 5;

/// Settings of embeddings.
#[derive(Clone, Debug)]
pub struct EmbeddingConfig {
    /// Longest input in tokens; by default the model's context, at most 2,048.
    pub longest: Option<u32>,
    /// Open requests before more are refused; one tenant may have a quarter of them.
    pub queue: usize,
    /// How long the context stays without requests; creating it takes some milliseconds.
    pub idle: Duration,
}

impl Default for EmbeddingConfig {
    fn default() -> Self {
        Self {
            longest: None,
            queue: QUEUE,
            idle: IDLE,
        }
    }
}

/// Options of a request for embeddings.
#[derive(Clone, Copy, Debug, Default)]
pub struct EmbedOptions {
    /// How to pool the vectors of tokens; by default as the model's file says. Without that, the last
    /// token of causal models, which alone depends on the whole input, and the mean of others.
    pub pooling: Option<Pooling>,
    /// Whether to normalize vectors to length 1; by default pooled vectors are. Not for scores.
    pub normalize: Option<bool>,
}

/// Properties of a model's embeddings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EmbeddingInfo {
    /// Numbers in a vector; for a reranker the number of scores.
    pub width: u32,
    /// Tokens of the longest input.
    pub longest: u32,
    /// The default pooling; [`Pooling::Rank`] for a reranker, which supports no other.
    pub pooling: Pooling,
}

/// A handle to the embedding thread.
pub struct Embedder {
    model: Arc<Model>,
    settings: EmbeddingSettings,
    limits: BatchLimits,
    pub(crate) info: EmbeddingInfo,
    idle: Duration,
    /// Capacity of the channel.
    queue: usize,
    open_requests: OpenRequestLimits,
    metrics: Arc<EngineMetrics>,
    state: Mutex<EmbedderState>,
}

enum EmbedderState {
    /// No request has come.
    Unused,
    Runs(SyncSender<EmbeddingCommand>, JoinHandle<()>),
    Ended,
}

impl Embedder {
    /// Creates the handle; the first request starts the thread. `memory`: the model has a KV cache or a
    /// recurrent state. `context`: tokens of the longest sequence.
    pub fn new(
        model: &Arc<Model>,
        memory: bool,
        context: u32,
        threads: u32,
        config: &EmbeddingConfig,
        metrics: &Arc<EngineMetrics>,
    ) -> Result<Self, LoadError> {
        let traits = model.embedding_traits();
        let whole = !memory || !traits.causal;
        let vocabulary = u32::try_from(model.vocabulary_size()).unwrap_or(u32::MAX);
        let trained = model.trained_context().max(1);
        let longest = match config.longest {
            Some(wanted) if (1..=trained).contains(&wanted) => wanted,
            Some(wanted) => {
                return Err(LoadError::Config(format!(
                    "inputs of {wanted} tokens were configured for embeddings; the model was trained on \
                     {trained} positions: give a number from 1 to {trained}"
                )));
            }
            None if whole => context
                .min(MAX_INPUT)
                .min(MAX_LOGIT_BYTES / 4 / vocabulary)
                .max(1),
            None => context.min(MAX_INPUT),
        };
        let limits = BatchLimits {
            whole,
            step_tokens: if whole {
                longest.max(SHARED_TOKENS)
            } else {
                STEP_TOKENS
            },
            shared_tokens: SHARED_TOKENS,
            seq_ids: SEQ_IDS,
            max_input: longest,
        };
        let pooling = default_pooling(&traits, whole);
        let ranks = pooling == Pooling::Rank;
        let info = EmbeddingInfo {
            width: if ranks { traits.scores } else { traits.width },
            longest,
            pooling,
        };
        let limit = RequestLoad {
            requests: config.queue as u64,
            input_size: TENANT_DIVISOR * MAX_EMBED_TOKENS,
            numbers: TENANT_DIVISOR * MAX_EMBED_NUMBERS,
        };
        Ok(Self {
            model: model.clone(),
            settings: EmbeddingSettings {
                context: ContextSettings {
                    cells: limits.cells(),
                    step_tokens: limits.step_tokens,
                    seq_ids: SEQ_IDS,
                    threads,
                    // Other cell types need flash attention.
                    kv_type: KvType::F16,
                    device_top_k: None,
                },
                ranks,
                flash_attention: whole && longest > MAX_INPUT,
            },
            limits,
            info,
            idle: config.idle,
            queue: config.queue,
            open_requests: OpenRequestLimits::new(limit, limit.divided_by(TENANT_DIVISOR)),
            metrics: metrics.clone(),
            state: Mutex::new(EmbedderState::Unused),
        })
    }

    pub(crate) fn embed(
        &self,
        inputs: Vec<Vec<Token>>,
        options: EmbedOptions,
        caller: Caller,
    ) -> Result<Embedding, Error> {
        let (pooling, normalize) = self.pooling(options)?;
        let load = self.request_load(&inputs, pooling)?;
        let permit = self.open_requests.acquire(caller.tenant, load);
        let permit = permit.map_err(|used| self.refusal(used))?;
        let (sender, embedding) = crate::reply::reply();
        let request = EmbeddingRequest {
            inputs,
            pooling,
            normalize,
            caller,
            sender,
            arrived: Instant::now(),
            permit,
        };
        self.send(EmbeddingCommand::Embed(Box::new(request)))?;
        Ok(embedding)
    }

    /// The pooling and normalization of a request.
    fn pooling(&self, options: EmbedOptions) -> Result<(Pooling, bool), Error> {
        let unsupported = |what: &str| Err(Error::Unsupported(what.into()));
        let pooling = options.pooling.unwrap_or(self.info.pooling);
        match (self.info.pooling, pooling) {
            (Pooling::Rank, Pooling::Rank) if options.normalize == Some(true) => {
                let scores =
                    "scores of a reranker cannot be normalized; request them without `normalize`";
                Err(Error::Invalid(scores.into()))
            }
            (Pooling::Rank, Pooling::Rank) => Ok((pooling, false)),
            (Pooling::Rank, _) => unsupported(
                "this model is a reranker and has no vectors; use the pooling rank or an embedding model",
            ),
            (_, Pooling::Rank) => {
                unsupported("this model is not a reranker; use another pooling or a reranker")
            }
            _ => Ok((pooling, options.normalize.unwrap_or(pooling.is_pooled()))),
        }
    }

    /// Checks the inputs except their tokens, and returns their load.
    fn request_load(&self, inputs: &[Vec<Token>], pooling: Pooling) -> Result<RequestLoad, Error> {
        let invalid = |text: String| Err(Error::Invalid(text));
        if !(1..=MAX_EMBED_INPUTS).contains(&inputs.len()) {
            return invalid(format!(
                "the request has {} inputs; it must have 1 to {MAX_EMBED_INPUTS}",
                inputs.len()
            ));
        }
        let (mut tokens, mut numbers) = (0, 0);
        for (number, input) in inputs.iter().enumerate() {
            let length = u32::try_from(input.len()).unwrap_or(u32::MAX);
            if length == 0 {
                return invalid(format!(
                    "input {number} is empty; it must have at least one token"
                ));
            }
            if length > self.info.longest {
                return Err(Error::ContextFull {
                    needed: length,
                    limit: self.info.longest,
                });
            }
            tokens += u64::from(length);
            numbers += pooling.numbers(input.len(), self.info.width as usize) as u64;
        }
        if tokens > MAX_EMBED_TOKENS {
            return invalid(format!(
                "the inputs have {tokens} tokens together; a request may have at most {MAX_EMBED_TOKENS}"
            ));
        }
        if numbers > MAX_EMBED_NUMBERS {
            return invalid(format!(
                "the result would have {numbers} numbers; it may have at most {MAX_EMBED_NUMBERS}: \
                 send fewer or shorter inputs or use another pooling"
            ));
        }
        Ok(RequestLoad {
            requests: 1,
            input_size: tokens,
            numbers,
        })
    }

    /// The error if too many requests are open. Its `retry_after` is the time to compute all open requests at the speed
    /// so far.
    fn refusal(&self, used: RequestLoad) -> Error {
        add(&self.metrics.embed_refused, 1);
        let spent = Duration::from_nanos(get(&self.metrics.embed_step_nanos));
        let computed = get(&self.metrics.embed_computed).max(1);
        #[expect(clippy::cast_precision_loss, reason = "an estimate")]
        let seconds = spent.as_secs_f64() * used.input_size as f64 / computed as f64;
        Error::Overloaded {
            reason: format!(
                "{} requests for embeddings with {} tokens are already open",
                used.requests, used.input_size
            ),
            retry_after: Duration::from_secs_f64(seconds.clamp(1.0, 60.0)),
        }
    }

    fn send(&self, command: EmbeddingCommand) -> Result<(), Error> {
        let mut state = self.lock();
        if matches!(*state, EmbedderState::Unused) {
            let (commands, thread) = self.start()?;
            *state = EmbedderState::Runs(commands, thread);
        }
        let EmbedderState::Runs(commands, _) = &*state else {
            return Err(Error::ShuttingDown);
        };
        match commands.try_send(command) {
            Ok(()) => Ok(()),
            Err(TrySendError::Full(_)) => {
                add(&self.metrics.embed_refused, 1);
                Err(Error::Overloaded {
                    reason: "the command queue of embeddings is full".into(),
                    retry_after: Duration::from_secs(1),
                })
            }
            Err(TrySendError::Disconnected(_)) => {
                // The thread panicked. The next request starts another.
                *state = EmbedderState::Unused;
                Err(Error::Failed("the embedding thread has ended".into()))
            }
        }
    }

    fn start(&self) -> Result<(SyncSender<EmbeddingCommand>, JoinHandle<()>), Error> {
        // One more than the open requests, for the shutdown.
        let (commands, receiver) = sync_channel(self.queue + 1);
        let (model, settings) = (self.model.clone(), self.settings);
        let make = Box::new(move || {
            EmbeddingContext::new(model.clone(), settings)
                .map_err(|error| Error::Failed(format!("no embeddings can be computed: {error}")))
        });
        let width = self.info.width as usize;
        let metrics = self.metrics.clone();
        let worker = EmbeddingWorker::new(make, self.limits, width, self.idle, receiver, metrics);
        let started = std::thread::Builder::new()
            .name("embedder".into())
            .spawn(move || {
                lower_priority();
                worker.run();
            });
        let thread = started.map_err(|error| {
            Error::Failed(format!(
                "the embedding thread could not be started: {error}; free memory or allow more threads"
            ))
        })?;
        Ok((commands, thread))
    }

    /// Cancels all requests, and waits until the thread has ended and its context is freed. Later
    /// requests are canceled.
    pub fn shutdown(&self) {
        let state = std::mem::replace(&mut *self.lock(), EmbedderState::Ended);
        if let EmbedderState::Runs(commands, thread) = state {
            // Fails only if the thread has ended already.
            let _ = commands.send(EmbeddingCommand::Shutdown);
            if thread.join().is_err() {
                tracing::error!("the embedding thread panicked");
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, EmbedderState> {
        // No code under this lock panics midway.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn default_pooling(traits: &EmbeddingTraits, whole: bool) -> Pooling {
    let otherwise = if whole { Pooling::Mean } else { Pooling::Last };
    let trained = traits.pooling_type.and_then(Pooling::from_gguf);
    trained.unwrap_or(otherwise)
}

/// Lowers the priority of this thread and of the compute threads it will start.
pub(crate) fn lower_priority() {
    #[cfg(target_os = "linux")]
    if let Err(error) = rustix::process::nice(NICENESS) {
        tracing::debug!(%error, "a thread runs at normal priority");
    }
}

#[cfg(test)]
mod tests;
