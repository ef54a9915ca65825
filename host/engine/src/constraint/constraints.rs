//! A model's grammars: compiled off the caller's thread, and kept.

use super::cache::{Cache, Key};
use super::compile::{Compiled, compile};
use super::dictionary::{Dictionary, Lexicon};
use super::matcher::Constraint;
use super::watch::Watcher;
use super::{Grammar, limits};
use crate::Error;
use crate::metrics::{Kind, Metric};
use sha2::{Digest, Sha256};
use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// How long a caller that finds every place taken is asked to wait.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// What a model's constraints did so far and hold now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Grammars that were found compiled.
    pub hits: u64,
    /// Grammars that were compiled.
    pub compiled: u64,
    /// Grammars that could not be compiled, or not in time.
    pub failed: u64,
    /// Grammars that are kept.
    pub cached: usize,
    /// Memory that they take, as estimated.
    pub cached_bytes: usize,
}

impl Counts {
    /// The counts as metrics.
    #[allow(clippy::cast_precision_loss)]
    pub(crate) fn metrics(&self) -> [Metric; 5] {
        let metric = |name, help, kind, value: u64| Metric {
            name,
            help,
            kind,
            labels: Vec::new(),
            value: value as f64,
        };
        [
            metric(
                "corral_engine_grammar_cache_hits_total",
                "Grammars that were found compiled.",
                Kind::Counter,
                self.hits,
            ),
            metric(
                "corral_engine_grammar_compilations_total",
                "Grammars that were compiled.",
                Kind::Counter,
                self.compiled,
            ),
            metric(
                "corral_engine_grammar_compilation_failures_total",
                "Grammars that could not be compiled, or not in time.",
                Kind::Counter,
                self.failed,
            ),
            metric(
                "corral_engine_grammar_cache_entries",
                "Compiled grammars that are kept.",
                Kind::Gauge,
                self.cached as u64,
            ),
            metric(
                "corral_engine_grammar_cache_bytes",
                "Memory that kept grammars take, as estimated.",
                Kind::Gauge,
                self.cached_bytes as u64,
            ),
        ]
    }
}

/// The grammars of one loaded model. Made at once: the trie of the vocabulary is built when the first
/// grammar comes. Belongs off the engine's thread; what it hands out belongs there.
pub struct Constraints {
    dictionary: Arc<dyn Dictionary>,
    lexicon: OnceLock<Result<Arc<Lexicon>, Error>>,
    shared: Arc<Shared>,
    watcher: Arc<Watcher>,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    /// Something was compiled, or a place is free.
    changed: Condvar,
}

struct State {
    cache: Cache<Constraint>,
    /// What is being compiled, each with the answer once there is one and as long as somebody waits.
    running: HashMap<Key, Arc<OnceLock<Result<Constraint, Error>>>>,
    counts: Counts,
}

impl Default for State {
    fn default() -> Self {
        Self {
            cache: Cache::new(limits::MAX_CACHED, limits::MAX_CACHED_BYTES),
            running: HashMap::new(),
            counts: Counts::default(),
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        // Every change of the state is whole before anything can panic.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Constraints {
    /// Constraints over a vocabulary. Does nothing yet.
    pub fn new(dictionary: Arc<dyn Dictionary>) -> Self {
        Self {
            dictionary,
            lexicon: OnceLock::new(),
            shared: Arc::default(),
            watcher: Arc::default(),
        }
    }

    /// Builds the trie of the vocabulary unless it is there, so that the first grammar needn't wait
    /// for it. [`Error::Unsupported`] if the vocabulary is of a kind that grammars can't use.
    pub fn prepare(&self) -> Result<(), Error> {
        self.lexicon().map(|_| ())
    }

    fn lexicon(&self) -> Result<Arc<Lexicon>, Error> {
        self.lexicon
            .get_or_init(|| Lexicon::new(Arc::clone(&self.dictionary)).map(Arc::new))
            .clone()
    }

    /// Whether a constraint was compiled here, for this model.
    pub fn made(&self, constraint: &Constraint) -> bool {
        constraint.is_watched_by(&self.watcher)
    }

    /// A grammar that was compiled before and is still there. Never waits.
    pub fn cached(&self, grammar: &Grammar) -> Option<Constraint> {
        let (_, text, most) = grammar.parts();
        if text.len() > most {
            return None;
        }
        let mut state = self.shared.lock();
        let found = state.cache.get(&key(grammar));
        state.counts.hits += u64::from(found.is_some());
        found
    }

    /// Compiles a grammar, or finds it compiled. Waits for at most [`limits::COMPILE_TIME`], and the
    /// first time for the trie of the vocabulary too: call it where waiting is allowed.
    ///
    /// [`Error::Invalid`] says what is wrong with the grammar, and where; [`Error::Refused`] says that
    /// too many others are being compiled.
    pub fn compile(&self, grammar: &Grammar) -> Result<Constraint, Error> {
        let (kind, text, most) = grammar.parts();
        if text.len() > most {
            return Err(Error::Invalid(format!(
                "the {kind} has {} bytes; at most {most} are taken",
                text.len()
            )));
        }
        if let Some(found) = self.cached(grammar) {
            return Ok(found);
        }
        let lexicon = self.lexicon()?;
        let key = key(grammar);
        let until = Instant::now() + limits::COMPILE_TIME;
        let answer = self.begin(key, grammar, lexicon, until)?;
        let mut state = self.shared.lock();
        loop {
            if let Some(answer) = answer.get() {
                return answer.clone();
            }
            state = self.wait(state, until).ok_or_else(|| {
                Error::Invalid(format!(
                    "the {kind} took more than {} s to compile; make it smaller",
                    limits::COMPILE_TIME.as_secs()
                ))
            })?;
        }
    }

    /// How the cache does.
    pub fn counts(&self) -> Counts {
        let state = self.shared.lock();
        Counts {
            cached: state.cache.len(),
            cached_bytes: state.cache.bytes(),
            ..state.counts
        }
    }

    /// Starts a compilation as soon as a place is free, or joins one of the same grammar.
    fn begin(
        &self,
        key: Key,
        grammar: &Grammar,
        lexicon: Arc<Lexicon>,
        until: Instant,
    ) -> Result<Arc<OnceLock<Result<Constraint, Error>>>, Error> {
        let mut state = self.shared.lock();
        loop {
            // Another caller may have got there first.
            if let Some(found) = state.cache.get(&key) {
                state.counts.hits += 1;
                return Ok(Arc::new(Ok(found).into()));
            }
            if let Some(running) = state.running.get(&key) {
                return Ok(Arc::clone(running));
            }
            if state.running.len() < limits::COMPILERS {
                break;
            }
            state = self.wait(state, until).ok_or_else(|| Error::Refused {
                reason: format!("{} other grammars are being compiled", limits::COMPILERS),
                retry_after: RETRY_AFTER,
            })?;
        }
        let answer: Arc<OnceLock<_>> = Arc::default();
        state.running.insert(key, Arc::clone(&answer));
        drop(state);

        let shared = Arc::clone(&self.shared);
        let told = Arc::clone(&answer);
        let watcher = Arc::clone(&self.watcher);
        let grammar = grammar.clone();
        let spawned = std::thread::Builder::new()
            .name("corral-grammar".into())
            .stack_size(limits::COMPILE_STACK)
            .spawn(move || {
                let compiled =
                    catch_unwind(AssertUnwindSafe(|| compile(&grammar, &lexicon, &watcher)))
                        .unwrap_or_else(|_| {
                            Err(Error::Failed("compiling the grammar failed".to_string()))
                        });
                finish(&shared, key, &told, compiled);
            });
        if let Err(cause) = spawned {
            let error = Error::Failed(format!("no thread can be started to compile: {cause}"));
            finish(&self.shared, key, &answer, Err(error));
        }
        Ok(answer)
    }

    /// Waits for a change; nothing once the time is over.
    fn wait<'a>(
        &self,
        state: MutexGuard<'a, State>,
        until: Instant,
    ) -> Option<MutexGuard<'a, State>> {
        let left = until.checked_duration_since(Instant::now())?;
        let waited = self.shared.changed.wait_timeout(state, left);
        Some(waited.unwrap_or_else(PoisonError::into_inner).0)
    }
}

/// Notes the end of a compilation and tells those who wait.
fn finish(
    shared: &Shared,
    key: Key,
    answer: &OnceLock<Result<Constraint, Error>>,
    compiled: Result<Compiled, Error>,
) {
    let mut state = shared.lock();
    state.running.remove(&key);
    let result = match compiled {
        Ok(compiled) => {
            state.counts.compiled += 1;
            let kept = compiled.constraint.clone();
            state.cache.insert(key, kept, compiled.bytes);
            Ok(compiled.constraint)
        }
        Err(error) => {
            state.counts.failed += 1;
            Err(error)
        }
    };
    // Nobody else sets it: there is one compilation for an answer.
    answer.set(result).ok();
    drop(state);
    shared.changed.notify_all();
}

fn key(grammar: &Grammar) -> Key {
    let (kind, text, _) = grammar.parts();
    let mut digest = Sha256::new();
    digest.update(kind);
    digest.update([0]);
    digest.update(text);
    digest.finalize().into()
}
