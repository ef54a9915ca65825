//! A model's grammar compiler: compiles on threads of its own, and caches the results.

use crate::cache::{Key, LruCache};
use crate::grammar_memory::{GrammarBytes, GrammarMemory};
use crate::llguidance_message::is_exceeded;
use crate::llguidance_parser::{SizedConstraint, compile};
use crate::matcher::Constraint;
use crate::vocabulary::{Vocabulary, VocabularyIndex};
use crate::watchdog::Watchdog;
use crate::{Error, Grammar, limits};
use sha2::{Digest, Sha256};
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// `retry_after` of [`Error::Busy`].
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// A model's grammars: what was counted since the start, and what the cache holds now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GrammarCounters {
    /// Compilations that the cache saved.
    pub hits: u64,
    /// Grammars compiled.
    pub compiled: u64,
    /// Grammars that could not be compiled.
    pub failed: u64,
    /// Grammars in the cache.
    pub cached: u64,
    /// Estimated memory of the cached grammars.
    pub cached_bytes: u64,
    /// Estimated memory of all grammars and their matchers.
    pub held_bytes: u64,
}

/// Compiles the grammars of one model. Creating it does nothing; the first grammar builds the trie of
/// the vocabulary. For use off the engine's thread; the matchers are for the engine's thread.
pub struct GrammarCompiler {
    vocabulary: Arc<dyn Vocabulary>,
    index: OnceLock<Result<Arc<VocabularyIndex>, Error>>,
    shared: Arc<Shared>,
    watchdog: Arc<Watchdog>,
    memory: Arc<GrammarMemory>,
}

type Compilation = OnceLock<Result<Constraint, Error>>;

#[derive(Default)]
struct Shared {
    state: Mutex<CompilerState>,
    /// Signals the end of a compilation.
    changed: Condvar,
}

struct CompilerState {
    cache: LruCache<Constraint>,
    /// The compilations that run, each with its tenant and its result for the callers that wait.
    running: HashMap<Key, (u32, Arc<Compilation>)>,
    /// Callers that wait to start a compilation, by tenant.
    waiting: HashMap<u32, usize>,
    counters: GrammarCounters,
}

impl Default for CompilerState {
    fn default() -> Self {
        Self {
            cache: LruCache::new(limits::MAX_CACHED, limits::MAX_CACHED_BYTES),
            running: HashMap::new(),
            waiting: HashMap::new(),
            counters: GrammarCounters::default(),
        }
    }
}

impl CompilerState {
    /// Whether a tenant may start one more compilation. While others wait, each has at most one.
    fn may_start(&self, tenant: u32) -> bool {
        let others_wait = self.waiting.keys().any(|other| *other != tenant);
        let runs = self.running.values().any(|(other, _)| *other == tenant);
        self.running.len() < limits::MAX_COMPILATIONS && !(runs && others_wait)
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, CompilerState> {
        // No change of the state is half done when something can panic.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for a change; false after `deadline`.
    fn wait<'a>(
        &self,
        state: MutexGuard<'a, CompilerState>,
        deadline: Instant,
    ) -> (MutexGuard<'a, CompilerState>, bool) {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return (state, false);
        }
        let waited = self.changed.wait_timeout(state, left);
        (waited.unwrap_or_else(PoisonError::into_inner).0, true)
    }

    /// Waits for a change before `tenant` starts a compilation; false after `deadline`.
    fn wait_to_start<'a>(
        &self,
        mut state: MutexGuard<'a, CompilerState>,
        tenant: u32,
        deadline: Instant,
    ) -> (MutexGuard<'a, CompilerState>, bool) {
        *state.waiting.entry(tenant).or_default() += 1;
        let (mut state, in_time) = self.wait(state, deadline);
        if let Entry::Occupied(mut waiting) = state.waiting.entry(tenant) {
            *waiting.get_mut() -= 1;
            if *waiting.get() == 0 {
                waiting.remove();
            }
        }
        (state, in_time)
    }

    /// Stores the result of a compilation and wakes its callers.
    fn finish(&self, key: Key, compilation: &Compilation, result: Result<SizedConstraint, Error>) {
        let mut state = self.lock();
        state.running.remove(&key);
        match &result {
            Ok(compiled) => {
                state.counters.compiled += 1;
                let constraint = compiled.constraint.clone();
                state.cache.insert(key, constraint, compiled.bytes);
            }
            Err(_) => state.counters.failed += 1,
        }
        // Only this compilation sets it.
        compilation
            .set(result.map(|compiled| compiled.constraint))
            .ok();
        drop(state);
        self.changed.notify_all();
    }
}

impl GrammarCompiler {
    /// A compiler for a vocabulary.
    pub fn new(vocabulary: Arc<dyn Vocabulary>) -> Self {
        Self {
            vocabulary,
            index: OnceLock::new(),
            shared: Arc::default(),
            watchdog: Arc::default(),
            memory: Arc::default(),
        }
    }

    /// Builds the trie of the vocabulary if it does not exist, so that the first grammar does not wait
    /// for it. Fails with [`Error::Unsupported`] if grammars cannot use the vocabulary.
    pub fn prepare(&self) -> Result<(), Error> {
        self.index().map(|_| ())
    }

    fn index(&self) -> Result<Arc<VocabularyIndex>, Error> {
        self.index
            .get_or_init(|| VocabularyIndex::new(Arc::clone(&self.vocabulary)).map(Arc::new))
            .clone()
    }

    /// Whether this compiler, and not that of another model, compiled a constraint.
    pub fn owns(&self, constraint: &Constraint) -> bool {
        constraint.has_watchdog(&self.watchdog)
    }

    /// A grammar from the cache. Never waits.
    pub fn cached(&self, grammar: &Grammar) -> Option<Constraint> {
        let (_, text, max_bytes) = grammar.parts();
        if text.len() > max_bytes {
            return None;
        }
        let mut state = self.shared.lock();
        let found = state.cache.get(&key(grammar));
        state.counters.hits += u64::from(found.is_some());
        found
    }

    /// Compiles a grammar for a tenant, or returns it from the cache. Blocks for at most
    /// [`limits::MAX_COMPILE_TIME`], and the first time also while the trie of the vocabulary is built.
    ///
    /// Fails with [`Error::Invalid`] if the grammar is invalid, and with [`Error::Busy`] if too many
    /// others compile, or if the tenant's grammars take too much memory.
    pub fn compile(&self, tenant: u32, grammar: &Grammar) -> Result<Constraint, Error> {
        let (kind, text, max_bytes) = grammar.parts();
        if text.len() > max_bytes {
            return Err(Error::Invalid(format!(
                "the {kind} has {} bytes; it may have at most {max_bytes}",
                text.len()
            )));
        }
        if let Some(found) = self.cached(grammar) {
            return Ok(found);
        }
        self.memory.check(tenant)?;
        let index = self.index()?;
        let deadline = Instant::now() + limits::MAX_COMPILE_TIME;
        let compilation = self.start(tenant, grammar, index, deadline)?;
        let mut state = self.shared.lock();
        loop {
            if let Some(result) = compilation.get() {
                return result.clone();
            }
            let in_time;
            (state, in_time) = self.shared.wait(state, deadline);
            if !in_time {
                return Err(too_much_work(grammar));
            }
        }
    }

    /// The counters and the size of the cache.
    pub fn counters(&self) -> GrammarCounters {
        let state = self.shared.lock();
        GrammarCounters {
            cached: state.cache.len() as u64,
            cached_bytes: state.cache.bytes() as u64,
            held_bytes: self.memory.total() as u64,
            ..state.counters
        }
    }

    /// Starts a compilation once fewer than the maximum run, or joins one of the same grammar.
    fn start(
        &self,
        tenant: u32,
        grammar: &Grammar,
        index: Arc<VocabularyIndex>,
        deadline: Instant,
    ) -> Result<Arc<Compilation>, Error> {
        let key = key(grammar);
        let mut state = self.shared.lock();
        loop {
            // Another caller may have compiled it meanwhile.
            if let Some(found) = state.cache.get(&key) {
                state.counters.hits += 1;
                return Ok(Arc::new(Ok(found).into()));
            }
            if let Some((_, running)) = state.running.get(&key) {
                return Ok(Arc::clone(running));
            }
            if state.may_start(tenant) {
                break;
            }
            let in_time;
            (state, in_time) = self.shared.wait_to_start(state, tenant, deadline);
            if !in_time {
                return Err(Error::Busy {
                    reason: format!(
                        "{} other grammars are being compiled",
                        limits::MAX_COMPILATIONS
                    ),
                    retry_after: RETRY_AFTER,
                });
            }
        }
        let compilation: Arc<Compilation> = Arc::default();
        state
            .running
            .insert(key, (tenant, Arc::clone(&compilation)));
        drop(state);

        let shared = Arc::clone(&self.shared);
        let result = Arc::clone(&compilation);
        let watchdog = Arc::clone(&self.watchdog);
        let memory = Arc::clone(&self.memory);
        let grammar = grammar.clone();
        let spawned = std::thread::Builder::new()
            .name("corral-grammar".into())
            .stack_size(limits::COMPILE_STACK_BYTES)
            .spawn(move || {
                let limit = work_limit::Limit {
                    hashes: limits::MAX_COMPILE_HASHES,
                    deadline: Some(deadline),
                };
                let memory = || GrammarBytes::new(&memory, tenant);
                let compile = || compile(&grammar, &index, &watchdog, &memory);
                let compile = || work_limit::with_limit(limit, compile);
                let compiled = catch_unwind(AssertUnwindSafe(compile)).unwrap_or_else(|payload| {
                    Err(if is_exceeded(&*payload) {
                        too_much_work(&grammar)
                    } else {
                        Error::Failed("the grammar compiler panicked".into())
                    })
                });
                shared.finish(key, &result, compiled);
            });
        if let Err(cause) = spawned {
            let error = format!("cannot start a thread to compile the grammar: {cause}");
            self.shared
                .finish(key, &compilation, Err(Error::Failed(error)));
        }
        Ok(compilation)
    }
}

/// The error of a grammar that exceeds [`limits::MAX_COMPILE_HASHES`] or [`limits::MAX_COMPILE_TIME`].
fn too_much_work(grammar: &Grammar) -> Error {
    let (kind, ..) = grammar.parts();
    let why = limits::TOO_MUCH_WORK;
    Error::Invalid(format!("the {kind} takes too long: {why}"))
}

fn key(grammar: &Grammar) -> Key {
    let (kind, text, _) = grammar.parts();
    let mut digest = Sha256::new();
    digest.update(kind);
    digest.update([u8::from(matches!(grammar, Grammar::LenientJsonSchema(_)))]);
    digest.update(text);
    digest.finalize().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tenant_leaves_a_compilation_to_others_that_wait() {
        let mut state = CompilerState::default();
        let start = |state: &mut CompilerState, key: u8, tenant| {
            state.running.insert([key; 32], (tenant, Arc::default()));
        };
        start(&mut state, 1, 1);
        assert!(state.may_start(1), "nobody else waits");
        state.waiting.insert(2, 1);
        assert!(!state.may_start(1));
        assert!(state.may_start(2));
        start(&mut state, 2, 2);
        assert!(!state.may_start(3), "as many run as may");
    }
}
