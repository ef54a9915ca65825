//! Embeddings: vectors that say what texts are about, in a context of their own.
//!
//! Why of their own: llama.cpp computes vectors only where every token is an output, which the
//! generating context must not pay for. It is made when the first request comes, in a thread that
//! is started then, and freed after [`EmbeddingConfig::idle`] without one.
//!
//! - `mod.rs`: what callers see; arguments are checked and counted before anything waits.
//! - `places.rs` bounds what waits, `turns.rs` says whose input is next, `packing.rs` which tokens
//!   make a step, `pooling.rs` turns vectors of tokens into the answer, `delivery.rs` hands it over.
//! - `thread.rs` runs them over `backend.rs`, which `backend/llama.rs` implements.
//!
//! Beside generation: the thread and its compute threads have a low priority, and while sequences
//! run it uses half of them, so that on few cores a token takes a fraction longer and not a
//! multiple. Steps are short ([`STEP_TOKENS`]); who goes away is noticed between them.
//!
//! Bounds: [`MAX_EMBED_INPUTS`] inputs, [`MAX_EMBED_TOKENS`] tokens and [`MAX_EMBED_NUMBERS`]
//! numbers a call; four times these tokens and numbers, and [`EmbeddingConfig::queue`] requests, in
//! all, of which a tenant may have a quarter.

mod backend;
mod delivery;
mod packing;
mod places;
mod pooling;
mod thread;
mod turns;

pub use backend::Embeds;
pub use delivery::{Embedding, Vectors};
pub use pooling::Pooling;

use crate::metrics::{Counters, add, get};
use crate::{Caller, Engine, Error, LoadError, Token};
use corral_llama::{
    ContextSettings, EmbeddingContext, EmbeddingSettings, EmbeddingTraits, KvType, Model,
};
use packing::Sizes;
use places::{Load, Places, TENANT_SHARE};
use std::sync::mpsc::{SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use thread::{Command, Request, Thread};

/// Most inputs of a call.
pub const MAX_EMBED_INPUTS: usize = 2048;
/// Most tokens of all inputs of a call.
pub const MAX_EMBED_TOKENS: u64 = 131_072;
/// Most numbers in the answer to a call: 64 MiB.
pub const MAX_EMBED_NUMBERS: u64 = 1 << 24;

/// Most tokens of a step of a causal model. Reads about as fast as longer steps do on a CPU, and
/// each token costs llama.cpp a row of logits (0.6 MB with 152k tokens in the vocabulary, twice).
const STEP_TOKENS: u32 = 128;
/// Inputs that are read whole share a step up to so many tokens.
const TOGETHER: u32 = 512;
/// Inputs computed at once.
const SEQ_IDS: u16 = 32;
/// Longest input, unless the caller says otherwise or the model's context is shorter: each token
/// needs a cell, at some 100 KiB.
const LONGEST: u32 = 2048;
/// Bytes of logits that a model which reads inputs whole may cost, unless the caller asks for longer
/// inputs.
const LOGITS_BYTES: u32 = 1 << 30;
/// Requests that may wait or be computed, unless the caller says otherwise.
const QUEUE: usize = 1024;
/// Without a request for so long the context is freed, unless the caller says otherwise.
const IDLE: Duration = Duration::from_secs(60);
/// Of the thread and its compute threads: on a core that it shares with a thread of niceness 0 it
/// gets a quarter of the time. On Linux alone; elsewhere niceness is the whole process's.
#[cfg(target_os = "linux")]
const NICENESS: i32 = 5;

/// How embeddings are computed.
#[derive(Clone, Debug)]
pub struct EmbeddingConfig {
    /// Longest input in tokens; by default the model's context, at most 2,048.
    pub longest: Option<u32>,
    /// Requests that may wait or be computed before more are refused; one tenant may have a quarter
    /// of them.
    pub queue: usize,
    /// How long the context stays when nothing is asked; making it again takes some milliseconds.
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

/// What to compute.
#[derive(Clone, Copy, Debug, Default)]
pub struct EmbedOptions {
    /// How the vectors of tokens become one; by default as the model's file says. Where it says
    /// nothing: the last token's if attention is causal, since only the last has seen all of the
    /// input, the mean otherwise.
    pub pooling: Option<Pooling>,
    /// Whether vectors get the length 1; by default they do if they are pooled. Scores have no
    /// length.
    pub normalize: Option<bool>,
}

/// What may be known of a model's embeddings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EmbeddingInfo {
    /// Numbers in a vector; of a reranker the number of scores.
    pub width: u32,
    /// Longest input in tokens.
    pub longest: u32,
    /// How vectors are pooled when the caller does not say. [`Pooling::Rank`] for a reranker, which
    /// can nothing else.
    pub pooling: Pooling,
}

impl Engine {
    /// What may be known of the model's embeddings.
    pub fn embedding_info(&self) -> EmbeddingInfo {
        self.embedder().info
    }

    /// Computes a vector for each input, on behalf of `caller`. Returns at once; the answer comes
    /// through the [`Embedding`], a future, and dropping that cancels the request.
    ///
    /// [`Error::Invalid`] if there are no inputs, too many, too many tokens or numbers in the
    /// answer, an empty input, or a token that is not in the vocabulary; [`Error::ContextFull`] if an
    /// input is longer than [`EmbeddingInfo::longest`]; [`Error::Unsupported`] if the model can't
    /// pool so; [`Error::Refused`] if too much waits. Later, through the future:
    /// [`Error::Deadline`], [`Error::Overdue`] after the caller's queue time, [`Error::Cancelled`]
    /// at a shutdown, [`Error::Failed`].
    pub fn embed(
        &self,
        inputs: Vec<Vec<Token>>,
        options: EmbedOptions,
        caller: Caller,
    ) -> Result<Embedding, Error> {
        inputs
            .iter()
            .try_for_each(|input| self.check_tokens(input))?;
        self.embedder().embed(inputs, options, caller)
    }
}

/// The embedding thread, as the engine sees it.
pub struct Embedder {
    model: Arc<Model>,
    settings: EmbeddingSettings,
    sizes: Sizes,
    info: EmbeddingInfo,
    idle: Duration,
    /// Requests that the channel holds.
    queue: usize,
    places: Places,
    counters: Arc<Counters>,
    state: Mutex<State>,
}

enum State {
    /// Nobody asked yet.
    Unused,
    Runs(SyncSender<Command>, JoinHandle<()>),
    Ended,
}

impl Embedder {
    /// Starts nothing yet. `memory` says whether the model remembers what it read, `context` how
    /// long a sequence may be.
    pub fn new(
        model: &Arc<Model>,
        memory: bool,
        context: u32,
        threads: u32,
        config: &EmbeddingConfig,
        counters: &Arc<Counters>,
    ) -> Result<Self, LoadError> {
        let traits = model.embedding_traits();
        let whole = !memory || !traits.causal;
        let vocabulary = u32::try_from(model.vocabulary_size()).unwrap_or(u32::MAX);
        let trained = model.trained_context().max(1);
        let longest = match config.longest {
            Some(wanted) if (1..=trained).contains(&wanted) => wanted,
            Some(wanted) => {
                return Err(LoadError::Config(format!(
                    "embeddings of {wanted} tokens were asked for; the model was trained on \
                     {trained} positions: give a number from 1 to {trained}"
                )));
            }
            None if whole => context
                .min(LONGEST)
                .min(LOGITS_BYTES / 4 / vocabulary)
                .max(1),
            None => context.min(LONGEST),
        };
        let sizes = Sizes {
            whole,
            step_tokens: if whole {
                longest.max(TOGETHER)
            } else {
                STEP_TOKENS
            },
            together: TOGETHER,
            seq_ids: SEQ_IDS,
            longest,
        };
        let pooling = default_pooling(&traits, whole);
        let ranks = pooling == Pooling::Rank;
        let info = EmbeddingInfo {
            width: if ranks { traits.scores } else { traits.width },
            longest,
            pooling,
        };
        let limit = Load {
            requests: config.queue as u64,
            tokens: TENANT_SHARE * MAX_EMBED_TOKENS,
            numbers: TENANT_SHARE * MAX_EMBED_NUMBERS,
        };
        Ok(Self {
            model: model.clone(),
            settings: EmbeddingSettings {
                context: ContextSettings {
                    cells: sizes.cells(),
                    step_tokens: sizes.step_tokens,
                    seq_ids: SEQ_IDS,
                    threads,
                    // Without flash attention there are no other cells.
                    kv_type: KvType::F16,
                    device_top_k: None,
                },
                ranks,
                flash_attention: whole && longest > LONGEST,
            },
            sizes,
            info,
            idle: config.idle,
            queue: config.queue,
            places: Places::new(limit),
            counters: counters.clone(),
            state: Mutex::new(State::Unused),
        })
    }

    fn embed(
        &self,
        inputs: Vec<Vec<Token>>,
        options: EmbedOptions,
        caller: Caller,
    ) -> Result<Embedding, Error> {
        let (pooling, normalize) = self.pooling(options)?;
        let load = self.load(&inputs, pooling)?;
        let place = self.places.take(caller.tenant, load);
        let place = place.map_err(|taken| self.refusal(taken))?;
        let (sender, embedding) = crate::reply::reply();
        let request = Request {
            inputs,
            pooling,
            normalize,
            caller,
            sender,
            submitted: Instant::now(),
            place,
        };
        self.send(Command::Embed(Box::new(request)))?;
        Ok(embedding)
    }

    /// What the caller's options come to.
    fn pooling(&self, options: EmbedOptions) -> Result<(Pooling, bool), Error> {
        let unsupported = |what: &str| Err(Error::Unsupported(what.into()));
        let pooling = options.pooling.unwrap_or(self.info.pooling);
        match (self.info.pooling, pooling) {
            (Pooling::Rank, Pooling::Rank) if options.normalize == Some(true) => {
                let scores = "scores of a reranker can't be normalised; ask for them as they are";
                Err(Error::Invalid(scores.into()))
            }
            (Pooling::Rank, Pooling::Rank) => Ok((pooling, false)),
            (Pooling::Rank, _) => unsupported(
                "this model is a reranker, which gives scores and no vectors; \
                 pool by rank or use an embedding model",
            ),
            (_, Pooling::Rank) => unsupported(
                "this model is no reranker: its file says nothing of pooling by rank; \
                 use another pooling or another model",
            ),
            _ => Ok((pooling, options.normalize.unwrap_or(pooling.is_pooled()))),
        }
    }

    /// Checks the inputs, all but their tokens, and counts what they need.
    fn load(&self, inputs: &[Vec<Token>], pooling: Pooling) -> Result<Load, Error> {
        let invalid = |text: String| Err(Error::Invalid(text));
        if !(1..=MAX_EMBED_INPUTS).contains(&inputs.len()) {
            return invalid(format!(
                "{} inputs were given; give 1 to {MAX_EMBED_INPUTS}",
                inputs.len()
            ));
        }
        let (mut tokens, mut numbers) = (0, 0);
        for (number, input) in inputs.iter().enumerate() {
            let length = u32::try_from(input.len()).unwrap_or(u32::MAX);
            if length == 0 {
                return invalid(format!(
                    "input {number} is empty; give at least one token for each input"
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
                "the inputs have {tokens} tokens together; give at most {MAX_EMBED_TOKENS} at once"
            ));
        }
        if numbers > MAX_EMBED_NUMBERS {
            return invalid(format!(
                "the answer would have {numbers} numbers; ask for at most {MAX_EMBED_NUMBERS} at \
                 once, by fewer or shorter inputs or another pooling"
            ));
        }
        Ok(Load {
            requests: 1,
            tokens,
            numbers,
        })
    }

    /// Says when to come back: when what is there is computed, as fast as it went so far.
    fn refusal(&self, taken: Load) -> Error {
        add(&self.counters.embed_refused, 1);
        let spent = Duration::from_nanos(get(&self.counters.embed_step_nanos));
        let computed = get(&self.counters.embed_computed).max(1);
        #[expect(clippy::cast_precision_loss, reason = "a guess")]
        let seconds = spent.as_secs_f64() * taken.tokens as f64 / computed as f64;
        Error::Refused {
            reason: format!(
                "{} requests for embeddings with {} tokens wait or are computed already",
                taken.requests, taken.tokens
            ),
            retry_after: Duration::from_secs_f64(seconds.clamp(1.0, 60.0)),
        }
    }

    fn send(&self, command: Command) -> Result<(), Error> {
        let mut state = self.lock();
        if matches!(*state, State::Unused) {
            let (commands, thread) = self.start()?;
            *state = State::Runs(commands, thread);
        }
        let State::Runs(commands, _) = &*state else {
            return Err(Error::Cancelled);
        };
        match commands.try_send(command) {
            Ok(()) => Ok(()),
            Err(TrySendError::Full(_)) => {
                add(&self.counters.embed_refused, 1);
                Err(Error::Refused {
                    reason: "too many requests for embeddings came at once".into(),
                    retry_after: Duration::from_secs(1),
                })
            }
            Err(TrySendError::Disconnected(_)) => {
                // It panicked: the next request starts it anew.
                *state = State::Unused;
                Err(Error::Failed("the embedding thread has ended".into()))
            }
        }
    }

    fn start(&self) -> Result<(SyncSender<Command>, JoinHandle<()>), Error> {
        // One more than requests have places, for the word to end.
        let (commands, inbox) = sync_channel(self.queue + 1);
        let (model, settings) = (self.model.clone(), self.settings);
        let make = Box::new(move || {
            EmbeddingContext::new(model.clone(), settings)
                .map_err(|error| Error::Failed(format!("no embeddings can be computed: {error}")))
        });
        let width = self.info.width as usize;
        let counters = self.counters.clone();
        let thread = Thread::new(make, self.sizes, width, self.idle, inbox, counters);
        let started = std::thread::Builder::new()
            .name("embedder".into())
            .spawn(move || {
                give_way();
                thread.run();
            });
        let thread = started.map_err(|error| {
            Error::Failed(format!(
                "the embedding thread could not be started: {error}; free memory or allow more threads"
            ))
        })?;
        Ok((commands, thread))
    }

    /// Cancels what waits or is computed, and waits until the thread has ended and its context is
    /// freed. Later requests are cancelled.
    pub fn shutdown(&self) {
        let state = std::mem::replace(&mut *self.lock(), State::Ended);
        if let State::Runs(commands, thread) = state {
            // Fails only if the thread has ended already.
            let _ = commands.send(Command::Shutdown);
            if thread.join().is_err() {
                tracing::error!("the embedding thread had panicked");
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing under this lock panics half-way.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn default_pooling(traits: &EmbeddingTraits, whole: bool) -> Pooling {
    let otherwise = if whole { Pooling::Mean } else { Pooling::Last };
    let trained = traits.pooling_type.and_then(Pooling::from_gguf);
    trained.unwrap_or(otherwise)
}

/// Lets those go first who generate: this thread, and the compute threads that it will start.
fn give_way() {
    #[cfg(target_os = "linux")]
    if let Err(error) = rustix::process::setpriority_process(None, NICENESS) {
        tracing::debug!(%error, "the embedding thread runs at the priority of all others");
    }
}

#[cfg(test)]
mod tests;
