//! The handle to a loaded model and its engine thread.
//!
//! *Invariant*: no function waits for a step. A command goes through a bounded channel; if it is full, the caller gets
//! [`Error::Overloaded`]. Tokenizing and compiling grammars happen on the caller's thread. [`startup`] loads the model, and
//! the worker computes.

mod embed;
mod loaded_draft;
mod loaded_model;
mod startup;

use crate::benchmark_context::BenchmarkContext;
use crate::embedding::Embedder;
use crate::engine_waker::EngineWaker;
use crate::generation::mailbox;
use crate::machine_memory::MemoryPressure;
use crate::media::{Image, ImageEncoder, ImageKey, ImageStore};
use crate::metric_sample::Metric;
use crate::metrics::{EngineMetrics, add, get, grammar_metrics};
use crate::next_token;
use crate::open_request_limits::{OpenRequestLimits, RequestLoad, RequestPermit};
use crate::reader_wake_queue::{WakeQueue, WakeTask};
use crate::snapshot::{Snapshots, digest_of_parts};
use crate::split_files::split_files;
use crate::status::{DroppedPrefixes, EngineStatus, EntryStatus, RequestCounts};
use crate::worker::{Command, DropPrefixes, NewRequest, Prompt, RequestWork, Vocabulary};
use crate::{
    Caller, Constraint, Error, GenerateOptions, Generation, LoadError, ModelInfo, Reply, Token,
};
use corral_constraint::{Grammar, GrammarCompiler};
use corral_llama::{ContextSettings, ImagePart, KvType, Model};
use corral_sampling::DryBreakers;
use corral_scheduler::{AdapterId, EntryId, Retention, Tenant, WeakRetention};
use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::mpsc::{SyncSender, TrySendError};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Number of cached DRY breaker lists.
const CACHED_BREAKERS: usize = 16;

/// A handle to a loaded model. Cheap to clone; the engine thread ends with the last handle.
#[derive(Clone)]
pub struct Engine(Arc<Inner>);

struct Inner {
    vocabulary: Arc<EngineVocabulary>,
    grammars: GrammarCompiler,
    /// Recently built DRY breakers and the strings they were built from.
    breakers: Mutex<VecDeque<(Vec<String>, Arc<DryBreakers>)>>,
    info: ModelInfo,
    path: PathBuf,
    /// SHA-256 of the model file, computed when first needed.
    digest: OnceLock<[u8; 32]>,
    adapters: Vec<AdapterFile>,
    images: Option<ImageEncoder>,
    projector: Option<PathBuf>,
    /// SHA-256 of the projector file, computed when first needed.
    projector_digest: OnceLock<[u8; 32]>,
    snapshots: Option<Arc<Snapshots>>,
    commands: Arc<SyncSender<Command>>,
    open_requests: OpenRequestLimits,
    metrics: Arc<EngineMetrics>,
    waker: EngineWaker,
    wake_queue: Arc<WakeQueue>,
    /// Settings of the context.
    settings: ContextSettings,
    /// KV cells of the context.
    cells: u32,
    /// Most running requests.
    max_running: u16,
    /// Bytes of weights and context in the machine's memory.
    memory: u64,
    /// The last [`MemoryPressure`] that was sent to the engine thread.
    memory_pressure: AtomicU8,
    /// Bytes of weights and context on devices with their own memory, by device name.
    device_memory: Vec<(String, u64)>,
    thread: Mutex<Option<JoinHandle<()>>>,
    embedder: Embedder,
}

/// The file of a LoRA adapter.
struct AdapterFile {
    path: PathBuf,
    /// SHA-256 of the file, computed when first needed.
    digest: OnceLock<[u8; 32]>,
}

/// The model's vocabulary as the engine thread reads it.
struct EngineVocabulary {
    model: Arc<Model>,
    end_of_generation: Vec<Token>,
}

impl Vocabulary for EngineVocabulary {
    fn piece(&self, token: Token) -> &[u8] {
        self.model.piece(token, false)
    }

    fn ends_generation(&self, token: Token) -> bool {
        self.end_of_generation.binary_search(&token).is_ok()
    }
}

impl Engine {
    /// Facts about the model.
    pub fn info(&self) -> &ModelInfo {
        &self.0.info
    }

    /// Bytes of the weights and the context in the machine's memory, as llama.cpp allocated them. Swapped-out
    /// sequences come on top.
    pub fn memory(&self) -> u64 {
        self.0.memory
    }

    /// Bytes of the weights and the context on devices with their own memory, by device name.
    pub fn device_memory(&self) -> &[(String, u64)] {
        &self.0.device_memory
    }

    /// Type of the KV cells.
    pub(crate) fn kv(&self) -> KvType {
        self.0.settings.kv_type
    }

    /// Whether both handles belong to one engine.
    pub(crate) fn is_same_engine(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Whether other handles exist.
    pub(crate) fn is_shared(&self) -> bool {
        Arc::strong_count(&self.0) > 1
    }

    /// Tokenizes a text. With `special`, control tokens written in the text become control tokens.
    pub fn tokenize(&self, text: &str, special: bool) -> Result<Vec<Token>, Error> {
        self.model()
            .tokenize(text, special)
            .ok_or_else(|| Error::Invalid("the text is too long to tokenize; shorten it".into()))
    }

    /// The bytes of tokens. Control tokens are written out with `special` and empty without.
    pub fn detokenize(&self, tokens: &[Token], special: bool) -> Result<Vec<u8>, Error> {
        self.check_tokens(tokens)?;
        let pieces = tokens
            .iter()
            .map(|&token| self.model().piece(token, special));
        Ok(pieces.flatten().copied().collect())
    }

    /// Compiles a tenant's grammar for [`GenerateOptions::constraint`], or returns it from the cache. Blocks for a
    /// bounded time; the first call for a model reads the whole vocabulary.
    ///
    /// [`Error::Invalid`] describes a mistake in the grammar; [`Error::Overloaded`] if too many are being compiled.
    pub fn compile(&self, tenant: Tenant, grammar: &Grammar) -> Result<Constraint, Error> {
        Ok(self.0.grammars.compile(tenant.0, grammar)?)
    }

    /// A recently compiled grammar, if it is in the cache. Does not block.
    pub fn compiled_grammar(&self, grammar: &Grammar) -> Option<Constraint> {
        self.0.grammars.cached(grammar)
    }

    /// Builds the sequence breakers of [`Sampler::Dry`](crate::Sampler::Dry) from strings. Scans the whole
    /// vocabulary unless the result is cached.
    pub fn dry_breakers(&self, texts: &[String]) -> Result<Arc<DryBreakers>, Error> {
        let cache = &self.0.breakers;
        let lock = || cache.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, found)) = lock().iter().find(|(of, _)| of == texts) {
            return Ok(found.clone());
        }
        let model = self.model();
        let pieces = (0..self.0.info.vocabulary).map(|token| model.piece(token, true));
        let breakers = DryBreakers::from_text(texts, pieces, |text| model.tokenize(text, false))?;
        let breakers = Arc::new(breakers);
        let mut cache = lock();
        cache.truncate(CACHED_BREAKERS - 1);
        cache.push_front((texts.to_vec(), breakers.clone()));
        Ok(breakers)
    }

    /// Starts a generation after `prompt`. Returns at once; read the result from the [`Generation`].
    ///
    /// [`Error::Invalid`] if an argument is out of range or the adapter is unknown, [`Error::ContextFull`] if the
    /// prompt leaves no room for a token, [`Error::Overloaded`] if too many requests wait. `max_tokens` is reduced
    /// to what fits the context.
    pub fn generate(
        &self,
        prompt: Vec<Token>,
        options: GenerateOptions,
        caller: Caller,
    ) -> Result<Generation, Error> {
        self.check_tokens(&prompt)?;
        let prompt = Prompt::from(prompt);
        self.generate_retained(prompt, options, caller, WeakRetention::default(), None)
    }

    /// [`Engine::generate`] whose state is retained while `retention` is held, and which continues the state that
    /// `continued` retains.
    ///
    /// The prompt's tokens belong to the vocabulary or to its images.
    pub(crate) fn generate_retained(
        &self,
        prompt: Prompt,
        options: GenerateOptions,
        caller: Caller,
        retention: WeakRetention,
        continued: Option<Retention>,
    ) -> Result<Generation, Error> {
        let (request, generation) =
            self.generate_request(prompt, options, caller, retention, continued)?;
        self.send(Command::Add(Box::new(request)))?;
        Ok(generation)
    }

    /// Starts a generation after each prompt, such that their first steps coincide where they fit. Fails as a whole.
    pub fn generate_batch(
        &self,
        prompts: Vec<Vec<Token>>,
        options: &GenerateOptions,
        caller: Caller,
    ) -> Result<Vec<Generation>, Error> {
        let request = |prompt: Vec<Token>| {
            self.check_tokens(&prompt)?;
            self.generate_request(
                Prompt::from(prompt),
                options.clone(),
                caller,
                WeakRetention::default(),
                None,
            )
        };
        let all: Result<Vec<(NewRequest, Generation)>, Error> =
            prompts.into_iter().map(request).collect();
        let (requests, generations) = all?.into_iter().unzip();
        self.send(Command::AddAll(requests))?;
        Ok(generations)
    }

    /// Checks the arguments of a generation and builds its request.
    fn generate_request(
        &self,
        prompt: Prompt,
        mut options: GenerateOptions,
        caller: Caller,
        retention: WeakRetention,
        continued: Option<Retention>,
    ) -> Result<(NewRequest, Generation), Error> {
        let context = self.0.info.context;
        self.check_generates()?;
        options.check(self.0.info.vocabulary as usize)?;
        if let Some(constraint) = &options.constraint {
            self.check_constraint(constraint)?;
        }
        let adapter = self.find_adapter(options.adapter.as_deref())?;
        prompt.check()?;
        let length = u32::try_from(prompt.tokens.len()).unwrap_or(u32::MAX);
        let quota = caller.cell_share.map(|share| share.of(self.0.cells).cells);
        let limit = quota.map_or(context, |quota| context.min(quota));
        if length >= limit {
            return Err(Error::ContextFull {
                needed: length.saturating_add(1),
                limit,
            });
        }
        options.max_tokens = options.max_tokens.min(limit - length);
        let permit = self.permit(caller.tenant)?;
        let (sender, generation) = mailbox(self.0.metrics.clone(), self.0.waker.clone());
        let request = NewRequest {
            prompt,
            caller,
            adapter,
            retention,
            continued,
            arrived: Instant::now(),
            permit,
            work: RequestWork::Generate { options, sender },
        };
        Ok((request, generation))
    }

    /// A task that wakes the readers of generations, to spawn on the threads that run them: the engine's thread then wakes
    /// one task after a step. `None` while there is one.
    pub fn wake_task(&self) -> Option<WakeTask> {
        self.0.wake_queue.task()
    }

    /// A second context with the engine's weights, sizes and number of compute threads, as the baseline of
    /// benchmarks. Takes the memory of the cells again; its compute threads belong to the calling thread.
    pub fn benchmark_context(&self) -> Result<BenchmarkContext, LoadError> {
        BenchmarkContext::new(self.0.vocabulary.model.clone(), self.0.settings)
    }

    /// A permit for a request to run or wait. [`Error::Overloaded`] if there is none.
    pub(crate) fn permit(&self, tenant: Tenant) -> Result<RequestPermit, Error> {
        let request = RequestLoad::of_requests(1);
        self.0
            .open_requests
            .acquire(tenant, request)
            .map_err(|used| {
                add(&self.0.metrics.refused, 1);
                Error::Overloaded {
                    reason: format!("{} requests already run or wait", used.requests),
                    retry_after: Duration::from_secs(get(&self.0.metrics.retry_after).max(1)),
                }
            })
    }

    /// [`Error::Invalid`] if a constraint was compiled for another model.
    pub fn check_constraint(&self, constraint: &Constraint) -> Result<(), Error> {
        if self.0.grammars.owns(constraint) {
            return Ok(());
        }
        let other = "the constraint was compiled for another model; compile it for this one";
        Err(Error::Invalid(other.into()))
    }

    /// [`Error::Unsupported`] if the model is an encoder.
    pub(crate) fn check_generates(&self) -> Result<(), Error> {
        if self.0.info.can_generate {
            return Ok(());
        }
        let encoder = "this model is an encoder and generates no text; use it for embeddings";
        Err(Error::Unsupported(encoder.into()))
    }

    /// The current metrics.
    pub fn metrics(&self) -> Vec<Metric> {
        let mut list = self.0.metrics.samples();
        list.extend(grammar_metrics(&self.0.grammars.counters()));
        list
    }

    /// How many requests run and wait, from the metrics: takes no lock and does not ask the engine thread.
    pub fn request_counts(&self) -> RequestCounts {
        let metrics = &self.0.metrics;
        RequestCounts {
            running: get(&metrics.running),
            waiting: get(&metrics.waiting),
            max_running: self.0.max_running,
        }
    }

    /// KV cells of the model.
    pub fn cells(&self) -> u32 {
        self.0.cells
    }

    /// Calls `receive` on the engine thread, between two steps, with the engine's status. `receive` must not block.
    /// [`Error::Overloaded`] if the command queue is full.
    pub fn status(&self, receive: impl FnOnce(EngineStatus) + Send + 'static) -> Result<(), Error> {
        self.send(Command::Status(Box::new(receive)))
    }

    /// Drops all prefix cache entries that are not retained.
    pub fn clear_prefix_cache(&self) -> Result<(), Error> {
        self.send(Command::ClearPrefixCache)
    }

    /// Drops the prefix cache entries that `select` names, of all in the order of the prefix tree, as
    /// [`Engine::clear_prefix_cache`] does, and calls `reply`. Both run on the engine thread, and must not block.
    pub fn drop_prefixes(
        &self,
        select: impl FnOnce(&[EntryStatus]) -> Vec<EntryId> + Send + 'static,
        reply: impl FnOnce(DroppedPrefixes) + Send + 'static,
    ) -> Result<(), Error> {
        self.send(Command::DropPrefixes(Box::new(DropPrefixes {
            select: Box::new(select),
            reply: Box::new(reply),
        })))
    }

    /// Tells the engine how short memory is. From [`MemoryPressure::DropPrefixes`] on it drops offloaded prefixes and
    /// offloads no others; from [`MemoryPressure::SwapOut`] on it moves swapped-out states to disk, as far as the disk
    /// has room and its writes succeed. The engine is woken only if the pressure differs from that of the last call.
    pub fn set_memory_pressure(&self, pressure: MemoryPressure) -> Result<(), Error> {
        if self.0.memory_pressure.load(Ordering::Relaxed) == pressure as u8 {
            return Ok(());
        }
        self.send(Command::SetMemoryPressure(pressure))?;
        let last = &self.0.memory_pressure;
        last.store(pressure as u8, Ordering::Relaxed);
        Ok(())
    }

    /// Sends a command to the engine thread.
    pub(crate) fn send(&self, command: Command) -> Result<(), Error> {
        self.0
            .commands
            .try_send(command)
            .map_err(|error| match error {
                TrySendError::Full(_) => Error::Overloaded {
                    reason: "the engine's command queue is full".into(),
                    retry_after: Duration::from_secs(1),
                },
                TrySendError::Disconnected(_) => thread_ended(),
            })
    }

    /// Whether the engine has a store of named snapshots.
    pub fn has_snapshots(&self) -> bool {
        self.0.snapshots.is_some()
    }

    /// The store of named snapshots.
    pub(crate) fn snapshots(&self) -> Option<&Arc<Snapshots>> {
        self.0.snapshots.as_ref()
    }

    /// Digest of the model's files, see [`digest_of_parts`]. The first call reads all of them.
    pub(crate) fn digest(&self) -> Result<[u8; 32], Error> {
        file_digest("model", &split_files(&self.0.path), &self.0.digest)
    }

    /// SHA-256 of an adapter's file, `None` for the base model. The first call reads the whole file.
    pub(crate) fn adapter_digest(&self, adapter: AdapterId) -> Result<Option<[u8; 32]>, Error> {
        let index = usize::from(adapter.0).checked_sub(1);
        let adapter = index.and_then(|index| self.0.adapters.get(index));
        adapter
            .map(|adapter| {
                file_digest(
                    "adapter",
                    std::slice::from_ref(&adapter.path),
                    &adapter.digest,
                )
            })
            .transpose()
    }

    /// SHA-256 of the projector file, if there is one. The first call reads the whole file.
    pub(crate) fn projector_digest(&self) -> Result<Option<[u8; 32]>, Error> {
        let path = self.0.projector.as_ref().map(std::slice::from_ref);
        path.map(|path| file_digest("projector", path, &self.0.projector_digest))
            .transpose()
    }

    /// Encodes the picture in a file, PNG, JPEG, GIF (its first frame) or WebP, or the audio of a WAV file, for
    /// [`Sequence::append_image`]. Dropping the reply cancels it. The same file is encoded once while it stays in the cache.
    /// Hashes the file, which blocks for up to 0.1 s.
    ///
    /// [`Error::Unsupported`] for a model without a projector for it, [`Error::Invalid`] for a file that is empty or larger than
    /// [`MAX_IMAGE_BYTES`](crate::MAX_IMAGE_BYTES), [`Error::Overloaded`] if too many files wait. The reply fails with
    /// [`Error::Invalid`] if the file is neither a picture nor audio.
    ///
    /// [`Sequence::append_image`]: crate::Sequence::append_image
    pub fn encode_image(&self, file: Vec<u8>, caller: Caller) -> Result<Reply<Arc<Image>>, Error> {
        self.images()?.encode(file, caller)
    }

    fn images(&self) -> Result<&ImageEncoder, Error> {
        self.0.images.as_ref().ok_or_else(|| {
            let name = &self.0.info.name;
            Error::Unsupported(format!(
                "the model {name} accepts neither images nor audio; use a model whose projector file the operator gives \
                 with --mmproj"
            ))
        })
    }

    /// Adds the embeddings of an image of a tenant that was encoded before.
    pub(crate) fn add_image(
        &self,
        key: ImageKey,
        tenant: Tenant,
        parts: Vec<ImagePart>,
    ) -> Result<Arc<Image>, Error> {
        let store: &ImageStore = self.images()?.store();
        if let Some(image) = store.find(&key) {
            return Ok(image);
        }
        store.insert(key, tenant, parts, || self.clear_prefix_cache())
    }

    /// The ids of all adapters.
    pub(crate) fn adapters(&self) -> impl Iterator<Item = AdapterId> {
        (1..=AdapterId::MAX)
            .take(self.0.adapters.len())
            .map(AdapterId)
    }

    /// The adapter of this name; the base model without a name. [`Error::Invalid`] if there is none.
    pub(crate) fn find_adapter(&self, name: Option<&str>) -> Result<AdapterId, Error> {
        let Some(name) = name else {
            return Ok(AdapterId::NONE);
        };
        let names = &self.0.info.adapters;
        let found = self.adapters().zip(names).find(|(_, known)| *known == name);
        found.map(|(adapter, _)| adapter).ok_or_else(|| {
            let model = &self.0.info.name;
            let known = match names.is_empty() {
                true => "it has none".to_owned(),
                false => format!("it has {}", names.join(", ")),
            };
            Error::Invalid(format!(
                "the model {model} has no adapter {name:?}; {known}"
            ))
        })
    }

    /// Computes embeddings.
    fn embedder(&self) -> &Embedder {
        &self.0.embedder
    }

    /// Whether the engine thread runs.
    pub fn is_alive(&self) -> bool {
        let thread = self.0.thread.lock().unwrap_or_else(PoisonError::into_inner);
        thread.as_ref().is_some_and(|thread| !thread.is_finished())
    }

    /// Cancels all requests and waits until the engine's threads have ended and the context is freed. Call it before
    /// the process exits, so that no computation is interrupted.
    pub fn shutdown(&self) {
        self.0.embedder.shutdown();
        if let Some(images) = &self.0.images {
            images.shutdown();
        }
        let mut thread = self.0.thread.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(thread) = thread.take() {
            // Fails only if the thread has already ended.
            let _ = self.0.commands.send(Command::Shutdown);
            if thread.join().is_err() {
                tracing::error!(model = %self.0.info.name, "the engine thread panicked");
            }
        }
    }

    pub(crate) fn check_tokens(&self, tokens: &[Token]) -> Result<(), Error> {
        next_token::check_tokens(tokens, self.0.info.vocabulary)
    }

    fn model(&self) -> &Model {
        &self.0.vocabulary.model
    }
}

/// The engine thread no longer receives commands.
pub(crate) fn thread_ended() -> Error {
    Error::Failed("the engine thread has ended; restart the server, its log says why".into())
}

/// [`digest_of_parts`] of a file's parts, computed once.
fn file_digest(
    kind: &str,
    parts: &[PathBuf],
    digest: &OnceLock<[u8; 32]>,
) -> Result<[u8; 32], Error> {
    if let Some(digest) = digest.get() {
        return Ok(*digest);
    }
    let computed = digest_of_parts(parts, &AtomicBool::new(false));
    let computed = computed.map_err(|(path, error)| {
        let path = path.display();
        Error::Failed(format!(
            "cannot read the {kind} file {path}: {error}; put the file back"
        ))
    })?;
    Ok(*digest.get_or_init(|| computed))
}

#[cfg(test)]
impl Engine {
    /// Returns a function that says whether the engine is freed.
    pub(crate) fn watch(&self) -> impl Fn() -> bool + use<> {
        let inner = Arc::downgrade(&self.0);
        move || inner.strong_count() == 0
    }
}
