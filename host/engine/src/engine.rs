//! A loaded model with its engine thread, as everyone else sees it.

use crate::constraint::{Constraints, Grammar};
use crate::delivery::mailbox;
use crate::embedding::{Embedder, EmbeddingConfig};
use crate::generation::{MAX_DRAFTS, MAX_STOP_BYTES, MAX_STOPS};
use crate::llama::{ContextSettings, LlamaContext, Model, take_buffers};
use crate::metrics::{Counters, Metric, add, get};
use crate::progress::Progress;
use crate::sampling::{self, Breakers, MAX_TOP_LOGPROBS};
use crate::scheduler::prefill::Prefill;
use crate::scheduler::{AdapterId, Claim, Limits, Reuse, Tenant, Watch};
use crate::store::snapshot::Snapshots;
use crate::store::spill::{Budgets, Spill};
use crate::view::View;
use crate::worker::{Aside, Command, Submission, Vocabulary, Worker};
use crate::{Caller, Constraint, Error, Generation, LoadError, Options, Token};
use std::collections::{HashMap, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Sequence ids of a context. Each costs an output buffer and a share of scans over all ids; more
/// rows than this in a step gain nothing on a CPU.
const SEQ_IDS: u16 = 64;
/// Most tokens in a step (n_batch and n_ubatch).
pub(crate) const STEP_TOKENS: u32 = 512;
/// Positions of a sequence, unless the caller or the model says otherwise.
const DEFAULT_CONTEXT: u32 = 8192;
/// Cells, unless the caller says otherwise or one sequence needs more.
const DEFAULT_CELLS: u32 = 16_384;
/// Sequences that may wait, unless the caller says otherwise.
const DEFAULT_QUEUE: usize = 1024;
/// Commands that are no sequences: to look, to clear, to save, to shut down.
const OTHERS: usize = 64;
/// Bytes of memory for the states of idle and preempted sequences, unless the caller says otherwise.
const DEFAULT_SPILL: u64 = 1 << 30;
/// Lists of DRY's breakers that are kept.
const BREAKERS: usize = 16;
/// Part of the queue that one tenant may fill, so that no one else is refused for its sake.
const TENANT_SHARE: usize = 4;

/// What to load, and how large to make it.
#[derive(Clone, Debug)]
pub struct Config {
    /// The name under which it is served.
    pub name: String,
    /// A GGUF file.
    pub path: PathBuf,
    /// Positions a sequence may have; by default what the model was trained on, at most 8,192.
    pub context: Option<u32>,
    /// KV cells that all sequences share; by default 16,384, or one context if that is more.
    pub cells: Option<u32>,
    /// Compute threads; by default one for each core.
    pub threads: Option<u32>,
    /// Sequences that may wait before more are refused; one tenant may have a quarter of them.
    pub queue: usize,
    /// Sequences that may run at once, from 1 to 64.
    pub sequences: u16,
    /// How prompts are read while others generate.
    pub prefill: Prefill,
    /// Whether what was computed is kept for those that begin alike or go on.
    pub prefix_cache: bool,
    /// Bytes of memory for the states of sequences that had to leave the cells; by default 1 GiB. With
    /// 0 they are computed again.
    pub spill_ram: u64,
    /// A folder and how many bytes of files in it, for states that find no room in memory.
    pub spill_disk: Option<(PathBuf, u64)>,
    /// Where named snapshots of sequences are kept.
    pub snapshots: Option<Arc<Snapshots>>,
    /// LoRA adapters, GGUF files, by the names under which they are asked for; at most 16.
    pub adapters: Vec<(String, PathBuf)>,
    /// How embeddings are computed.
    pub embedding: EmbeddingConfig,
}

impl Config {
    /// A model with sizes of the engine's choice.
    pub fn new(name: impl Into<String>, path: impl Into<PathBuf>) -> Self {
        Self {
            name: name.into(),
            path: path.into(),
            context: None,
            cells: None,
            threads: None,
            queue: DEFAULT_QUEUE,
            sequences: SEQ_IDS,
            prefill: Prefill::default(),
            prefix_cache: true,
            spill_ram: DEFAULT_SPILL,
            spill_disk: None,
            snapshots: None,
            adapters: Vec::new(),
            embedding: EmbeddingConfig::default(),
        }
    }

    /// KV cells of a model that was trained on so many positions.
    pub(crate) fn cells_for(&self, trained: u32) -> u32 {
        let context = self.context.unwrap_or(trained.min(DEFAULT_CONTEXT));
        self.cells.unwrap_or(DEFAULT_CELLS.max(context))
    }
}

/// What may be known of a loaded model.
#[derive(Clone, Debug)]
pub struct ModelInfo {
    /// The name under which it is served.
    pub name: String,
    /// Number of tokens in the vocabulary.
    pub vocabulary: u32,
    /// Positions a sequence may have, prompt and generated tokens together.
    pub context: u32,
    /// Length of an embedding vector.
    pub embedding_length: u32,
    /// The token that begins a text, where the model wants one.
    pub begin: Option<Token>,
    /// Tokens that end a generation, in rising order.
    pub end_of_generation: Vec<Token>,
    /// The Jinja chat template of the file.
    pub chat_template: Option<String>,
    /// Whether sequences can be truncated, and a part of one be shared with others: not where the
    /// model's memory is recurrent or a sliding window.
    pub can_truncate: bool,
    /// Names of the adapters that were loaded with it, in the order in which they were given.
    pub adapters: Vec<String>,
    /// Whether it generates text: not where it is an encoder, which is good for embeddings alone.
    pub can_generate: bool,
}

/// A handle to a loaded model. Cheap to clone; the engine thread ends with the last of them.
#[derive(Clone)]
pub struct Engine(Arc<Inner>);

struct Inner {
    model: Arc<ModelWords>,
    constraints: Constraints,
    /// Built lately, with the texts they are of.
    breakers: Mutex<VecDeque<(Vec<String>, Arc<Breakers>)>>,
    info: ModelInfo,
    path: PathBuf,
    /// SHA-256 of the model file, once it was needed.
    digest: OnceLock<[u8; 32]>,
    adapters: Vec<Adapter>,
    snapshots: Option<Arc<Snapshots>>,
    commands: Arc<SyncSender<Command>>,
    places: Places,
    counters: Arc<Counters>,
    /// Bytes of weights and context.
    memory: u64,
    thread: Mutex<Option<JoinHandle<()>>>,
    embedder: Embedder,
}

/// An adapter's file.
struct Adapter {
    path: PathBuf,
    /// Its SHA-256, once it was needed.
    digest: OnceLock<[u8; 32]>,
}

/// The model's vocabulary as the engine thread reads it.
struct ModelWords {
    model: Arc<Model>,
    end_of_generation: Vec<Token>,
}

impl Vocabulary for ModelWords {
    fn piece(&self, token: Token) -> &[u8] {
        self.model.piece(token, false)
    }

    fn ends_generation(&self, token: Token) -> bool {
        self.end_of_generation.binary_search(&token).is_ok()
    }
}

impl Engine {
    /// Loads a model and starts its thread. Blocks until it is ready.
    pub fn load(config: Config) -> Result<Self, LoadError> {
        Self::load_watched(config, &Progress::default())
    }

    /// [`Engine::load`] which says how far it is, and stops when it is told to:
    /// [`LoadError::Cancelled`].
    pub fn load_watched(config: Config, progress: &Progress) -> Result<Self, LoadError> {
        take_buffers();
        let mut model = Model::load(&config.path, progress)?;
        load_adapters(&mut model, &config.adapters)?;
        let model = Arc::new(model);
        let context = sequence_length(&config, &model)?;
        let cells = config.cells.unwrap_or(DEFAULT_CELLS.max(context));
        if cells < context {
            return Err(LoadError::Config(format!(
                "{cells} cells can't hold one sequence of {context} positions; \
                 give at least as many cells as the context is long"
            )));
        }
        if !(1..=SEQ_IDS).contains(&config.sequences) {
            return Err(LoadError::Config(format!(
                "{} sequences at once were asked for; give a number from 1 to {SEQ_IDS}",
                config.sequences
            )));
        }
        let threads = config.threads.unwrap_or_else(|| {
            std::thread::available_parallelism().map_or(1, |n| u32::try_from(n.get()).unwrap_or(1))
        });
        let settings = ContextSettings {
            cells,
            step_tokens: STEP_TOKENS,
            seq_ids: config.sequences,
            threads,
        };
        let backend = LlamaContext::new(model.clone(), settings)?;
        let buffers = take_buffers();
        let limits = Limits {
            seq_ids: config.sequences,
            cells: backend.cells(),
            step_tokens: backend.step_tokens(),
            queue: config.queue,
            tenant_queue: config.queue.div_ceil(TENANT_SHARE),
            prefill: config.prefill,
            reuse: match (config.prefix_cache, model.can_truncate()) {
                (false, _) => Reuse::Off,
                (true, false) => Reuse::Whole,
                (true, true) => Reuse::Any,
            },
            spill: config.spill_ram > 0,
            drafts: if model.can_truncate() {
                MAX_DRAFTS.into()
            } else {
                0
            },
        };
        let info = ModelInfo {
            name: config.name,
            vocabulary: u32::try_from(model.vocabulary_size()).unwrap_or(u32::MAX),
            context,
            embedding_length: model.embedding_length(),
            begin: model.begin(),
            end_of_generation: model.end_of_generation(),
            chat_template: model.chat_template(),
            can_truncate: model.can_truncate(),
            adapters: config.adapters.iter().map(|a| a.0.clone()).collect(),
            can_generate: backend.has_memory(),
        };
        let adapter = |(_, path)| Adapter {
            path,
            digest: OnceLock::new(),
        };
        let counters = Arc::new(Counters::default());
        let memory = backend.has_memory();
        let embedder = Embedder::new(
            &model,
            memory,
            context,
            threads,
            &config.embedding,
            &counters,
        )?;
        let words = Arc::new(ModelWords {
            model,
            end_of_generation: info.end_of_generation.clone(),
        });
        let running = usize::from(config.sequences);
        let places = Places::new(config.queue + running, limits.tenant_queue + running);
        // So a sequence that has a place always finds room, beside some who look or clear.
        let (commands, inbox) = sync_channel(places.limit + OTHERS);
        let commands = Arc::new(commands);
        let aside = aside(
            config.spill_ram,
            config.spill_disk,
            Arc::downgrade(&commands),
        )?;
        let vocabulary = words.clone();
        let worker = Worker::new(backend, limits, vocabulary, inbox, counters.clone(), aside);
        let thread = std::thread::Builder::new()
            .name(format!("engine {}", info.name))
            .spawn(move || worker.run())
            .map_err(|error| {
                LoadError::Config(format!("the engine thread could not be started: {error}"))
            })?;
        Ok(Self(Arc::new(Inner {
            constraints: Constraints::new(words.model.clone()),
            breakers: Mutex::default(),
            model: words,
            info,
            path: config.path,
            digest: OnceLock::new(),
            adapters: config.adapters.into_iter().map(adapter).collect(),
            snapshots: config.snapshots,
            commands,
            places,
            counters,
            memory: buffers,
            thread: Mutex::new(Some(thread)),
            embedder,
        })))
    }

    /// What the model is.
    pub fn info(&self) -> &ModelInfo {
        &self.0.info
    }

    /// Bytes of the weights and the context, as llama.cpp gave them out. States that are put aside come
    /// on top.
    pub fn memory(&self) -> u64 {
        self.0.memory
    }

    /// Whether there are other handles to it.
    pub(crate) fn is_shared(&self) -> bool {
        Arc::strong_count(&self.0) > 1
    }

    /// Text to tokens. With `special`, control tokens written in the text are read as such.
    pub fn tokenize(&self, text: &str, special: bool) -> Result<Vec<Token>, Error> {
        self.0
            .model
            .model
            .tokenize(text, special)
            .ok_or_else(|| Error::Invalid("the text is too long to be tokenised".into()))
    }

    /// Tokens to bytes; control tokens are written out with `special` and give nothing without.
    pub fn detokenize(&self, tokens: &[Token], special: bool) -> Result<Vec<u8>, Error> {
        self.check_tokens(tokens)?;
        Ok(tokens
            .iter()
            .flat_map(|&token| self.0.model.model.piece(token, special))
            .copied()
            .collect())
    }

    /// Compiles a grammar, or finds it compiled, for [`Options::constraint`]. Blocks for as long as that
    /// takes, which is bounded; the first time for a model it reads all of the vocabulary.
    ///
    /// [`Error::Invalid`] says what is wrong with the grammar and where, [`Error::Refused`] that too
    /// many others are being compiled.
    pub fn compile(&self, grammar: &Grammar) -> Result<Constraint, Error> {
        self.0.constraints.compile(grammar)
    }

    /// A grammar that was compiled lately, at once.
    pub fn compiled(&self, grammar: &Grammar) -> Option<Constraint> {
        self.0.constraints.cached(grammar)
    }

    /// Where the repetitions of [`Sampler::Dry`](crate::Sampler::Dry) end, from texts. Goes through all of the
    /// vocabulary, unless it did for the same texts not long ago.
    pub fn breakers(&self, texts: &[String]) -> Result<Arc<Breakers>, Error> {
        let lock = || {
            self.0
                .breakers
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
        };
        if let Some((_, found)) = lock().iter().find(|(of, _)| of == texts) {
            return Ok(found.clone());
        }
        let model = &self.0.model.model;
        let pieces = (0..self.0.info.vocabulary).map(|token| model.piece(token, true));
        let breakers = Breakers::from_text(texts, pieces, |text| model.tokenize(text, false))?;
        let breakers = Arc::new(breakers);
        let mut kept = lock();
        kept.truncate(BREAKERS - 1);
        kept.push_front((texts.to_vec(), breakers.clone()));
        Ok(breakers)
    }

    /// Generates after `prompt`, on behalf of `caller`. Returns at once: what comes is read from the [`Generation`].
    ///
    /// [`Error::Invalid`] if an argument is out of range or names no adapter, [`Error::ContextFull`] if
    /// the prompt leaves no room for a token, [`Error::Refused`] if too many sequences wait.
    /// `max_tokens` is cut down to what the context leaves.
    pub fn generate(
        &self,
        prompt: Vec<Token>,
        options: Options,
        caller: Caller,
    ) -> Result<Generation, Error> {
        self.generate_claimed(prompt, options, caller, Watch::default(), None)
    }

    /// [`Engine::generate`] for someone who means to go on with the sequence as long as the claim is
    /// held, and goes on with what another claim is on.
    pub fn generate_claimed(
        &self,
        prompt: Vec<Token>,
        mut options: Options,
        caller: Caller,
        claim: Watch,
        goes_on: Option<Claim>,
    ) -> Result<Generation, Error> {
        let context = self.0.info.context;
        if !self.0.info.can_generate {
            let encoder = "this model is an encoder and generates no text; use it for embeddings";
            return Err(Error::Unsupported(encoder.into()));
        }
        check_options(&options, self.0.info.vocabulary as usize)?;
        if let Some(constraint) = &options.constraint
            && !self.0.constraints.made(constraint)
        {
            let other = "the constraint was compiled for another model; compile it for this one";
            return Err(Error::Invalid(other.into()));
        }
        let adapter = self.adapter(options.adapter.as_deref())?;
        self.check_tokens(&prompt)?;
        let length = u32::try_from(prompt.len()).unwrap_or(u32::MAX);
        if length == 0 {
            let empty = "the sequence is empty; append at least one token before generating";
            return Err(Error::Invalid(empty.into()));
        }
        if length >= context {
            return Err(Error::ContextFull {
                needed: length.saturating_add(1),
                limit: context,
            });
        }
        options.max_tokens = options.max_tokens.min(context - length);
        let refused = |many: usize| {
            add(&self.0.counters.refused, 1);
            Error::Refused {
                reason: format!("{many} sequences run or wait already"),
                retry_after: Duration::from_secs(get(&self.0.counters.retry_after).max(1)),
            }
        };
        let place = self.0.places.take(caller.tenant).map_err(refused)?;
        let (delivery, generation) = mailbox(self.0.counters.clone());
        let submission = Submission {
            prompt,
            options,
            caller,
            adapter,
            claim,
            goes_on,
            delivery,
            submitted: Instant::now(),
            place,
        };
        let command = Command::Generate(Box::new(submission));
        match self.0.commands.try_send(command) {
            Ok(()) => Ok(generation),
            Err(TrySendError::Full(_)) => Err(Error::Refused {
                reason: "the engine has too much to look at".into(),
                retry_after: Duration::from_secs(1),
            }),
            Err(TrySendError::Disconnected(_)) => {
                Err(Error::Failed("the engine thread has ended".into()))
            }
        }
    }

    /// The counters as they are now.
    pub fn metrics(&self) -> Vec<Metric> {
        let mut list = self.0.counters.list();
        list.extend(self.0.constraints.counts().metrics());
        list
    }

    /// Has `tell` called, on the engine's thread and between two steps, with what goes on. It must
    /// not block. [`Error::Refused`] if too much is asked at once.
    pub fn view(&self, tell: impl FnOnce(View) + Send + 'static) -> Result<(), Error> {
        self.order(Command::View(Box::new(tell)))
    }

    /// Drops what was kept and nobody means to go on with.
    pub fn clear_cache(&self) -> Result<(), Error> {
        self.order(Command::ClearCache)
    }

    pub(crate) fn order(&self, command: Command) -> Result<(), Error> {
        self.0
            .commands
            .try_send(command)
            .map_err(|error| match error {
                TrySendError::Full(_) => Error::Refused {
                    reason: "the engine has too much to look at".into(),
                    retry_after: Duration::from_secs(1),
                },
                TrySendError::Disconnected(_) => {
                    Error::Failed("the engine thread has ended".into())
                }
            })
    }

    /// Where named snapshots are kept.
    pub(crate) fn snapshots(&self) -> Option<&Arc<Snapshots>> {
        self.0.snapshots.as_ref()
    }

    /// SHA-256 of the model file. Reads all of it the first time.
    pub(crate) fn digest(&self) -> Result<[u8; 32], Error> {
        digest("model", &self.0.path, &self.0.digest)
    }

    /// SHA-256 of an adapter's file, `None` for the model alone. Reads all of it the first time.
    pub(crate) fn adapter_digest(&self, adapter: AdapterId) -> Result<Option<[u8; 32]>, Error> {
        let index = usize::from(adapter.0).checked_sub(1);
        let adapter = index.and_then(|index| self.0.adapters.get(index));
        adapter
            .map(|adapter| digest("adapter", &adapter.path, &adapter.digest))
            .transpose()
    }

    /// Every adapter's number.
    pub(crate) fn adapters(&self) -> impl Iterator<Item = AdapterId> {
        (1..=AdapterId::MOST)
            .take(self.0.adapters.len())
            .map(AdapterId)
    }

    /// The adapter of this name; without a name, the model alone. [`Error::Invalid`] if there is none.
    pub(crate) fn adapter(&self, name: Option<&str>) -> Result<AdapterId, Error> {
        let Some(name) = name else {
            return Ok(AdapterId::NONE);
        };
        let names = &self.0.info.adapters;
        let found = self.adapters().zip(names).find(|(_, known)| *known == name);
        found.map(|(adapter, _)| adapter).ok_or_else(|| {
            let model = &self.0.info.name;
            let there_is = if names.is_empty() {
                "none was loaded".to_owned()
            } else {
                format!("there is {}", names.join(", "))
            };
            Error::Invalid(format!(
                "there is no adapter {name:?} of the model {model}; {there_is}"
            ))
        })
    }

    /// What computes embeddings.
    pub(crate) fn embedder(&self) -> &Embedder {
        &self.0.embedder
    }

    /// Whether the engine thread runs.
    pub fn alive(&self) -> bool {
        let thread = self.0.thread.lock().unwrap_or_else(PoisonError::into_inner);
        thread.as_ref().is_some_and(|thread| !thread.is_finished())
    }

    /// Cancels what runs and waits until the engine's threads have ended and the model's memory of
    /// sequences is freed. To be called before the process exits, so that no computation is cut.
    pub fn shutdown(&self) {
        self.0.embedder.shutdown();
        let mut thread = self.0.thread.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(thread) = thread.take() {
            // Fails only if the thread has ended already.
            let _ = self.0.commands.send(Command::Shutdown);
            if thread.join().is_err() {
                tracing::error!(model = %self.0.info.name, "the engine thread had panicked");
            }
        }
    }

    pub(crate) fn check_tokens(&self, tokens: &[Token]) -> Result<(), Error> {
        let vocabulary = self.0.info.vocabulary;
        match tokens.iter().find(|&&token| token >= vocabulary) {
            None => Ok(()),
            Some(token) => Err(Error::Invalid(format!(
                "token {token} is not in the vocabulary, which has the tokens 0 to {}",
                vocabulary - 1
            ))),
        }
    }
}

/// SHA-256 of a file, which is read once.
fn digest(what: &str, path: &Path, digest: &OnceLock<[u8; 32]>) -> Result<[u8; 32], Error> {
    if let Some(digest) = digest.get() {
        return Ok(*digest);
    }
    let read = crate::store::snapshot::digest_of(path).map_err(|error| {
        let path = path.display();
        Error::Failed(format!(
            "the {what} file {path} can't be read any more: {error}"
        ))
    })?;
    Ok(*digest.get_or_init(|| read))
}

fn load_adapters(model: &mut Model, adapters: &[(String, PathBuf)]) -> Result<(), LoadError> {
    let most = usize::from(AdapterId::MOST);
    if adapters.len() > most {
        return Err(LoadError::Config(format!(
            "{} adapters were given; a model may have at most {most}",
            adapters.len()
        )));
    }
    for (index, (name, path)) in adapters.iter().enumerate() {
        let refused = |cause: &str| LoadError::Adapter {
            name: name.clone(),
            path: path.clone(),
            cause: cause.to_owned(),
        };
        if name.is_empty() {
            return Err(refused("its name is empty; give it one"));
        }
        if adapters[..index].iter().any(|(other, _)| other == name) {
            return Err(refused(
                "another one has this name; give one of them another",
            ));
        }
        model.load_adapter(name, path)?;
    }
    Ok(())
}

/// Where the states of sequences go that have to leave the cells.
fn aside(
    ram: u64,
    disk: Option<(PathBuf, u64)>,
    commands: Weak<SyncSender<Command>>,
) -> Result<Aside, LoadError> {
    if ram == 0 {
        return Ok(Aside::default());
    }
    let folder = disk.as_ref().map(|(folder, _)| folder.clone());
    // Weak, so that the engine's thread ends with the last of its handles. If the channel is full
    // the thread looks anyway.
    let wake = move || {
        if let Some(commands) = commands.upgrade() {
            let _ = commands.try_send(Command::Look);
        }
    };
    let spill = Spill::new(Budgets { ram, disk }, Box::new(wake)).map_err(|error| {
        let folder = folder.unwrap_or_default();
        LoadError::Config(format!(
            "sequences can't be put aside in {}: {error}; give a folder that can be written",
            folder.display()
        ))
    })?;
    Ok(Aside::new(
        spill,
        usize::try_from(ram).unwrap_or(usize::MAX),
    ))
}

fn sequence_length(config: &Config, model: &Model) -> Result<u32, LoadError> {
    let trained = model.trained_context().max(1);
    match config.context {
        None => Ok(trained.min(DEFAULT_CONTEXT)),
        Some(wanted) if (2..=trained).contains(&wanted) => Ok(wanted),
        Some(wanted) => Err(LoadError::Config(format!(
            "a context of {wanted} was asked for; {} was trained on {trained} positions: \
             give a number from 2 to {trained}",
            config.path.display()
        ))),
    }
}

fn check_options(options: &Options, vocabulary: usize) -> Result<(), Error> {
    let invalid = |text: String| Err(Error::Invalid(text));
    if options.max_tokens == 0 {
        return invalid("max-tokens is 0; it must be at least 1".into());
    }
    if options.stop.len() > MAX_STOPS {
        return invalid(format!(
            "{} stop strings were given; at most {MAX_STOPS} are allowed",
            options.stop.len()
        ));
    }
    let fits = |stop: &String| (1..=MAX_STOP_BYTES).contains(&stop.len());
    if let Some(stop) = options.stop.iter().find(|stop| !fits(stop)) {
        return invalid(format!(
            "a stop string has {} bytes; it must have 1 to {MAX_STOP_BYTES}",
            stop.len()
        ));
    }
    if options.speculate > MAX_DRAFTS {
        return invalid(format!(
            "{} tokens were to be guessed at once; at most {MAX_DRAFTS} can be",
            options.speculate
        ));
    }
    if options
        .logprobs
        .is_some_and(|top| usize::from(top) > MAX_TOP_LOGPROBS)
    {
        return invalid(format!(
            "the {} likeliest tokens were asked for; at most {MAX_TOP_LOGPROBS} can be",
            options.logprobs.unwrap_or_default()
        ));
    }
    sampling::check(&options.samplers, vocabulary)
}

/// Counts the sequences that run or wait, up to a limit, and up to one for each tenant.
struct Places {
    limit: usize,
    tenant_limit: usize,
    taken: Arc<Mutex<Taken>>,
}

#[derive(Debug, Default)]
struct Taken {
    all: usize,
    /// Only those that have any.
    tenants: HashMap<Tenant, usize>,
}

/// One sequence's place; given back when dropped.
#[derive(Debug)]
pub struct Place {
    tenant: Tenant,
    taken: Arc<Mutex<Taken>>,
}

impl Places {
    fn new(limit: usize, tenant_limit: usize) -> Self {
        Self {
            limit,
            tenant_limit,
            taken: Arc::default(),
        }
    }

    /// A place, or how many there are that are all taken.
    fn take(&self, tenant: Tenant) -> Result<Place, usize> {
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        if taken.all >= self.limit {
            return Err(self.limit);
        }
        let own = taken.tenants.entry(tenant).or_default();
        if *own >= self.tenant_limit {
            return Err(self.tenant_limit);
        }
        *own += 1;
        taken.all += 1;
        Ok(Place {
            tenant,
            taken: self.taken.clone(),
        })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        taken.all = taken.all.saturating_sub(1);
        if let Some(own) = taken.tenants.get_mut(&self.tenant) {
            *own -= 1;
            if *own == 0 {
                taken.tenants.remove(&self.tenant);
            }
        }
    }
}

#[cfg(test)]
impl Engine {
    /// Tells whether all of it is freed.
    pub(crate) fn watch(&self) -> impl Fn() -> bool + use<> {
        let inner = Arc::downgrade(&self.0);
        move || inner.strong_count() == 0
    }
}

#[cfg(test)]
impl Place {
    /// A place that nobody counts.
    pub fn uncounted() -> Self {
        Self {
            tenant: Tenant(0),
            taken: Arc::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_tenant_cannot_take_all_places() {
        let places = Places::new(5, 3);
        let held: Vec<_> = (0..3).map(|_| places.take(Tenant(1)).unwrap()).collect();
        assert_eq!(places.take(Tenant(1)).unwrap_err(), 3);
        let others = [places.take(Tenant(2)), places.take(Tenant(3))];
        assert!(others.iter().all(Result::is_ok));
        assert_eq!(places.take(Tenant(4)).unwrap_err(), 5);
        drop((held, others));
        assert!(places.taken.lock().unwrap().tenants.is_empty());
        assert!(places.take(Tenant(1)).is_ok());
    }
}
