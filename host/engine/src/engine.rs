//! A loaded model with its engine thread, as everyone else sees it.

mod load;
mod place;

use crate::chooser::Desk;
use crate::delivery::mailbox;
use crate::embedding::Embedder;
use crate::look;
use crate::metrics::{Counters, Metric, add, get, grammar_metrics};
use crate::places::{Place, Places};
use crate::store::snapshot::Snapshots;
use crate::view::View;
use crate::worker::{Command, Submission, Vocabulary, Wants};
use crate::{Caller, Constraint, Error, Generation, LoadError, ModelInfo, Options, Raw, Token};
use corral_constraint::{Grammar, GrammarCompiler};
use corral_llama::{ContextSettings, KvType, Model};
use corral_sampling::DryBreakers;
use corral_scheduler::{AdapterId, Retention, Tenant, WeakRetention};
use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{SyncSender, TrySendError};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Lists of DRY's breakers that are kept.
const BREAKERS: usize = 16;

/// A handle to a loaded model. Cheap to clone; the engine thread ends with the last of them.
#[derive(Clone)]
pub struct Engine(Arc<Inner>);

struct Inner {
    model: Arc<ModelWords>,
    grammars: GrammarCompiler,
    /// Built lately, with the texts they are of.
    breakers: Mutex<VecDeque<(Vec<String>, Arc<DryBreakers>)>>,
    info: ModelInfo,
    path: PathBuf,
    /// SHA-256 of the model file, once it was needed.
    digest: OnceLock<[u8; 32]>,
    adapters: Vec<Adapter>,
    snapshots: Option<Arc<Snapshots>>,
    commands: Arc<SyncSender<Command>>,
    places: Places,
    counters: Arc<Counters>,
    desk: Arc<Desk>,
    /// What the context was made with.
    settings: ContextSettings,
    /// Cells that all sequences share.
    cells: u32,
    /// Bytes of weights and context in the machine's memory.
    memory: u64,
    /// Bytes of them on devices with a memory of their own, by the devices' names.
    device_memory: Vec<(String, u64)>,
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
    /// What the model is.
    pub fn info(&self) -> &ModelInfo {
        &self.0.info
    }

    /// Bytes of the weights and the context in the machine's memory, as llama.cpp gave them out. States that
    /// are put aside come on top.
    pub fn memory(&self) -> u64 {
        self.0.memory
    }

    /// Bytes of the weights and the context on devices with a memory of their own, by the devices' names.
    pub fn device_memory(&self) -> &[(String, u64)] {
        &self.0.device_memory
    }

    /// How the cells are stored.
    pub(crate) fn kv(&self) -> KvType {
        self.0.settings.kv_type
    }

    /// Whether both are handles to the same.
    pub(crate) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
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
        Ok(self.0.grammars.compile(grammar)?)
    }

    /// A grammar that was compiled lately, at once.
    pub fn compiled(&self, grammar: &Grammar) -> Option<Constraint> {
        self.0.grammars.cached(grammar)
    }

    /// Where the repetitions of [`Sampler::Dry`](crate::Sampler::Dry) end, from texts. Goes through all of the
    /// vocabulary, unless it did for the same texts not long ago.
    pub fn breakers(&self, texts: &[String]) -> Result<Arc<DryBreakers>, Error> {
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
        let breakers = DryBreakers::from_text(texts, pieces, |text| model.tokenize(text, false))?;
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
        self.generate_claimed(prompt, options, caller, WeakRetention::default(), None)
    }

    /// [`Engine::generate`] for someone who means to go on with the sequence as long as the claim is
    /// held, and goes on with what another claim is on.
    pub fn generate_claimed(
        &self,
        prompt: Vec<Token>,
        options: Options,
        caller: Caller,
        claim: WeakRetention,
        goes_on: Option<Retention>,
    ) -> Result<Generation, Error> {
        let (submission, generation) = self.submission(prompt, options, caller, claim, goes_on)?;
        self.order(Command::Submit(Box::new(submission)))?;
        Ok(generation)
    }

    /// [`Engine::generate`] after each of several prompts, which no step comes between: where there is room
    /// they begin in the same one. If one of them is refused, all are.
    pub fn generate_together(
        &self,
        prompts: Vec<Vec<Token>>,
        options: &Options,
        caller: Caller,
    ) -> Result<Vec<Generation>, Error> {
        let one = |prompt| {
            self.submission(
                prompt,
                options.clone(),
                caller,
                WeakRetention::default(),
                None,
            )
        };
        let all: Result<Vec<(Submission, Generation)>, Error> =
            prompts.into_iter().map(one).collect();
        let (submissions, generations) = all?.into_iter().unzip();
        self.order(Command::SubmitAll(submissions))?;
        Ok(generations)
    }

    /// Checks what is asked, and makes of it what the thread takes.
    fn submission(
        &self,
        prompt: Vec<Token>,
        mut options: Options,
        caller: Caller,
        claim: WeakRetention,
        goes_on: Option<Retention>,
    ) -> Result<(Submission, Generation), Error> {
        let context = self.0.info.context;
        self.check_generates()?;
        options.check(self.0.info.vocabulary as usize)?;
        if let Some(constraint) = &options.constraint {
            self.check_made(constraint)?;
        }
        let adapter = self.adapter(options.adapter.as_deref())?;
        self.check_tokens(&prompt)?;
        let length = u32::try_from(prompt.len()).unwrap_or(u32::MAX);
        if length == 0 {
            let empty = "the sequence is empty; append at least one token before generating";
            return Err(Error::Invalid(empty.into()));
        }
        let share = caller.share.map(|share| share.of(self.0.cells).cells);
        let context = share.map_or(context, |share| context.min(share));
        if length >= context {
            return Err(Error::ContextFull {
                needed: length.saturating_add(1),
                limit: context,
            });
        }
        options.max_tokens = options.max_tokens.min(context - length);
        let place = self.place(caller.tenant)?;
        let (delivery, generation) = mailbox(self.0.counters.clone(), self.0.desk.clone());
        let submission = Submission {
            prompt,
            caller,
            adapter,
            claim,
            goes_on,
            submitted: Instant::now(),
            place,
            wants: Wants::Tokens { options, delivery },
        };
        Ok((submission, generation))
    }

    /// Another context of the same weights, sizes and number of compute threads, without an engine over it: to
    /// measure beside. It takes as much memory for its cells again; its compute threads are the children of
    /// the calling thread.
    pub fn raw(&self) -> Result<Raw, LoadError> {
        Raw::new(self.0.model.model.clone(), self.0.settings)
    }

    /// A place for a sequence, among those that run or wait.
    pub(crate) fn place(&self, tenant: Tenant) -> Result<Place, Error> {
        self.0.places.take(tenant).map_err(|many| {
            add(&self.0.counters.refused, 1);
            Error::Refused {
                reason: format!("{many} sequences run or wait already"),
                retry_after: Duration::from_secs(get(&self.0.counters.retry_after).max(1)),
            }
        })
    }

    /// [`Error::Invalid`] if a constraint was compiled for another model.
    pub fn check_made(&self, constraint: &Constraint) -> Result<(), Error> {
        if self.0.grammars.owns(constraint) {
            return Ok(());
        }
        let other = "the constraint was compiled for another model; compile it for this one";
        Err(Error::Invalid(other.into()))
    }

    /// [`Error::Unsupported`] if the model has no next token.
    pub(crate) fn check_generates(&self) -> Result<(), Error> {
        if self.0.info.can_generate {
            return Ok(());
        }
        let encoder = "this model is an encoder and generates no text; use it for embeddings";
        Err(Error::Unsupported(encoder.into()))
    }

    /// The counters as they are now.
    pub fn metrics(&self) -> Vec<Metric> {
        let mut list = self.0.counters.list();
        list.extend(grammar_metrics(&self.0.grammars.counters()));
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

    /// Whether named snapshots are kept.
    pub fn keeps_snapshots(&self) -> bool {
        self.0.snapshots.is_some()
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
        (1..=AdapterId::MAX)
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
        look::check_tokens(tokens, self.0.info.vocabulary)
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

#[cfg(test)]
impl Engine {
    /// Tells whether all of it is freed.
    pub(crate) fn watch(&self) -> impl Fn() -> bool + use<> {
        let inner = Arc::downgrade(&self.0);
        move || inner.strong_count() == 0
    }
}
