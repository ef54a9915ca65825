//! A request's position in its grammar.

use crate::grammar_memory::GrammarBytes;
use crate::llguidance_message::{first_line, is_exceeded};
use crate::vocabulary::VocabularyIndex;
use crate::watchdog::{CallTimer, Watchdog};
use crate::{Error, Token, limits};
use llguidance::TokenParser;
use llguidance::api::StopReason;
use llguidance::toktrie::SimpleVob;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError};

/// A compiled grammar. Clones share it.
#[derive(Clone)]
pub struct Constraint(Arc<CompiledGrammar>);

struct CompiledGrammar {
    /// A parser before the first token, which matchers copy and nothing advances.
    parser: Mutex<TokenParser>,
    index: Arc<VocabularyIndex>,
    watchdog: Arc<Watchdog>,
    memory: GrammarBytes,
    ignored: Vec<String>,
}

impl std::fmt::Debug for Constraint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Constraint").finish_non_exhaustive()
    }
}

impl Constraint {
    pub(crate) fn new(
        parser: TokenParser,
        index: Arc<VocabularyIndex>,
        watchdog: Arc<Watchdog>,
        memory: GrammarBytes,
        ignored: Vec<String>,
    ) -> Self {
        Self(Arc::new(CompiledGrammar {
            parser: Mutex::new(parser),
            index,
            watchdog,
            memory,
            ignored,
        }))
    }

    /// The keywords of JSON schemas that it does not enforce: JSON pointers, in a Lark grammar after the
    /// name of the rule. At most [`limits::MAX_IGNORED`], and then one entry that counts the others.
    pub fn ignored(&self) -> &[String] {
        &self.0.ignored
    }

    /// Whether this watchdog, of which each model has one, times its matchers.
    pub(crate) fn has_watchdog(&self, watchdog: &Arc<Watchdog>) -> bool {
        Arc::ptr_eq(&self.0.watchdog, watchdog)
    }

    /// A matcher of a tenant, before the first token. Copies the parser, which takes tens of microseconds for a
    /// usual grammar. If the tenant's grammars take too much memory, each call of the matcher fails.
    pub fn start(&self, tenant: u32) -> Matcher {
        // A panic during a copy changes nothing of the original.
        let parser = self.0.parser.lock().unwrap_or_else(PoisonError::into_inner);
        let mut inner = parser.deep_clone();
        drop(parser);
        let timer = self.0.watchdog.timer(inner.enable_cancellation());
        let mut matcher = Matcher {
            inner: Ok(inner),
            timer,
            watchdog: Arc::clone(&self.0.watchdog),
            memory: self.0.memory.another(tenant),
            index: Arc::clone(&self.0.index),
            forced: VecDeque::new(),
            forced_known: false,
            allowed: None,
            mask: None,
            ended: false,
        };
        // A grammar of the empty text is complete before the first token.
        matcher.consume(&[]).ok();
        matcher
    }
}

/// A request's position in its grammar. Shares no mutable state with other matchers.
///
/// For each token: sample one and call [`Self::allows`]; if it returns false, sample again among
/// [`Self::mask`]; call [`Self::advance`]; then append [`Self::forced`] without sampling. After a call
/// fails, every later call fails with the same error.
///
/// Where the grammar leaves only one text, only the tokens that the tokenizer makes of it are allowed,
/// so `allows`, `mask` and `forced` agree.
pub struct Matcher {
    /// The parser, or the error of the first call that failed.
    inner: Result<TokenParser, Error>,
    /// Cancels calls that take too long.
    timer: CallTimer,
    watchdog: Arc<Watchdog>,
    /// Bytes of the lexer.
    memory: GrammarBytes,
    index: Arc<VocabularyIndex>,
    /// The next tokens, if there is no choice; valid if `forced_known`.
    forced: VecDeque<Token>,
    forced_known: bool,
    /// A token that is known to be allowed here.
    allowed: Option<Token>,
    /// The tokens allowed here, if computed.
    mask: Option<SimpleVob>,
    /// Whether an end token was consumed.
    ended: bool,
}

impl Matcher {
    /// Whether a token may come next. End tokens may exactly where the text may end.
    pub fn allows(&mut self, token: Token) -> Result<bool, Error> {
        if self.is_end(token) {
            return self.may_end();
        }
        if self.allowed == Some(token) {
            return Ok(true);
        }
        if self.ended || token as usize >= self.index.vocabulary.size() {
            return Ok(false);
        }
        self.find_forced()?;
        let allowed = match self.forced.front() {
            Some(&forced) => token == forced,
            None => {
                let valid = self.limited_call(|inner| Ok(inner.validate_tokens_raw(&[token])?))?;
                valid == 1
            }
        };
        if allowed {
            self.allowed = Some(token);
        }
        Ok(allowed)
    }

    /// A copy at the same position. If a call of one takes too long, the next call of the other fails
    /// too.
    pub fn fork(&self) -> Result<Self, Error> {
        let inner = self.inner.as_ref().map_err(Error::clone)?;
        let memory = self.memory.duplicate()?;
        let mut inner = inner.deep_clone();
        Ok(Self {
            timer: self.watchdog.timer(inner.enable_cancellation()),
            watchdog: Arc::clone(&self.watchdog),
            memory,
            inner: Ok(inner),
            index: Arc::clone(&self.index),
            forced: self.forced.clone(),
            forced_known: self.forced_known,
            allowed: self.allowed,
            mask: self.mask.clone(),
            ended: self.ended,
        })
    }

    /// Whether an end token was consumed: only end tokens can follow.
    pub fn has_ended(&self) -> bool {
        self.ended
    }

    /// The tokens that may come next: one bit per token of the vocabulary, token 0 in the lowest bit of
    /// the first word. At least one is set; of a complete text, the end tokens.
    pub fn mask(&mut self) -> Result<&[u32], Error> {
        if self.mask.is_none() {
            let mask = self.compute_mask()?;
            self.mask = Some(mask);
        }
        let words = self.index.vocabulary.size().div_ceil(32);
        Ok(self
            .mask
            .as_ref()
            .map_or(&[], |mask| &mask.as_slice()[..words]))
    }

    fn compute_mask(&mut self) -> Result<SimpleVob, Error> {
        let may_end = self.may_end()?;
        let index = Arc::clone(&self.index);
        let trie = index.factory.tok_env().tok_trie();
        if self.ended || self.must_end() {
            return Ok(trie.eos_token_set());
        }
        self.find_forced()?;
        if let Some(&token) = self.forced.front() {
            return Ok(trie.singleton_token_set(token));
        }
        let mut mask = self.limited_call(|inner| Ok(inner.compute_mask()?))?;
        for &token in &*self.index.end_tokens {
            mask.set(token as usize, may_end);
        }
        if mask.is_zero() {
            return Err(self.fail("no token of the model's vocabulary fits here"));
        }
        Ok(mask)
    }

    /// Consumes a token. Fails with [`Error::Invalid`] and changes nothing if it is not allowed here.
    pub fn advance(&mut self, token: Token) -> Result<(), Error> {
        if !self.allows(token)? || self.ended {
            return Err(Error::Invalid(format!(
                "the grammar does not allow token {token} here"
            )));
        }
        if self.is_end(token) {
            self.ended = true;
            self.mask = None;
            return Ok(());
        }
        self.consume(&[token])
    }

    /// Consumes and returns the tokens that must come next, at most `max` of them, as the model's
    /// tokenizer writes them; none if there is a choice. End tokens are not among them: see
    /// [`Self::must_end`].
    pub fn forced(&mut self, max: usize) -> Result<Vec<Token>, Error> {
        let mut taken = Vec::new();
        while taken.len() < max && !self.ended && !self.must_end() {
            self.find_forced()?;
            if self.forced.is_empty() {
                break;
            }
            let count = self.forced.len().min(max - taken.len());
            let tokens: Vec<Token> = self.forced.iter().take(count).copied().collect();
            self.consume(&tokens)?;
            taken.extend(tokens);
        }
        Ok(taken)
    }

    /// Whether the text may end here.
    pub fn may_end(&mut self) -> Result<bool, Error> {
        self.check()?;
        if self.ended || self.must_end() {
            return Ok(true);
        }
        self.limited_call(|inner| Ok(inner.is_accepting()))
    }

    /// Whether the text is complete: only an end token can follow.
    pub fn must_end(&self) -> bool {
        let inner = self.inner.as_ref();
        inner.is_ok_and(|inner| inner.stop_reason() == StopReason::NoExtension)
    }

    fn is_end(&self, token: Token) -> bool {
        self.index.end_tokens.contains(&token)
    }

    fn check(&self) -> Result<(), Error> {
        self.inner.as_ref().map(|_| ()).map_err(Error::clone)
    }

    /// Calls `llguidance` within the limits on time and memory.
    fn limited_call<T>(
        &mut self,
        call: impl FnOnce(&mut TokenParser) -> Result<T, Box<dyn std::error::Error + Send + Sync>>,
    ) -> Result<T, Error> {
        let inner = self.inner.as_mut().map_err(|error| error.clone())?;
        self.timer.start();
        // After a panic the parser is not used again, so its state does not matter.
        let limit = work_limit::Limit {
            hashes: limits::MAX_CALL_HASHES,
            deadline: None,
        };
        let limited = || {
            let value = call(inner).map_err(|error| error.to_string())?;
            match inner.parser.get_error() {
                Some(error) => Err(error.message()),
                None => Ok((value, inner.parser.lexer_stats().num_bytes)),
            }
        };
        let result = catch_unwind(AssertUnwindSafe(|| work_limit::with_limit(limit, limited)));
        self.timer.stop();
        match result {
            Ok(Ok((_, bytes))) if bytes > limits::MAX_MATCHER_BYTES => {
                Err(self.fail(&format!("it takes {} MiB of memory", bytes >> 20)))
            }
            Ok(Ok((value, bytes))) => match self.memory.set(bytes) {
                Ok(()) => Ok(value),
                Err(error) => Err(self.poison(error)),
            },
            Ok(Err(message)) => Err(self.fail(&message)),
            Err(payload) if is_exceeded(&*payload) => Err(self.fail(work_limit::EXCEEDED)),
            Err(_) => Err(self.poison(Error::Failed(
                "the grammar cannot continue: llguidance panicked".into(),
            ))),
        }
    }

    /// Computes the forced tokens, if they are not known.
    fn find_forced(&mut self) -> Result<(), Error> {
        self.check()?;
        if !self.forced_known && !self.must_end() {
            let forced = self.limited_call(|inner| Ok(inner.compute_ff_tokens()))?;
            self.forced = forced.into();
        }
        self.forced_known = true;
        Ok(())
    }

    /// Consumes allowed tokens.
    fn consume(&mut self, tokens: &[Token]) -> Result<(), Error> {
        self.check()?;
        self.mask = None;
        self.allowed = None;
        // The rest of forced tokens stays forced.
        if self.forced.len() >= tokens.len() && tokens.iter().eq(self.forced.range(..tokens.len()))
        {
            self.forced.drain(..tokens.len());
        } else {
            self.forced.clear();
        }
        self.forced_known = !self.forced.is_empty();
        let stop_reason = self.limited_call(|inner| {
            for &token in tokens {
                inner.consume_token(token)?;
            }
            inner.check_stop()?;
            Ok(inner.stop_reason())
        })?;
        match stop_reason {
            StopReason::NotStopped | StopReason::NoExtension => Ok(()),
            reason => Err(self.fail(&reason.to_string())),
        }
    }

    /// Fails this and all later calls, with a message of `llguidance`.
    fn fail(&mut self, message: &str) -> Error {
        let message = first_line(message);
        let inner = self.inner.as_ref().ok();
        let handle = inner.and_then(TokenParser::cancellation_handle);
        let canceled = handle.is_some_and(|handle| handle.is_cancelled());
        let what = if canceled || message.ends_with(work_limit::EXCEEDED) {
            "the grammar cannot continue: one token takes too much work; make it simpler or less \
             ambiguous"
                .into()
        } else if message == StopReason::NoExtensionBias.to_string() {
            "the grammar has a dead end: no token fits here; check that every rule can end".into()
        } else {
            format!("the grammar cannot continue: {message}; make it simpler")
        };
        self.poison(Error::Invalid(what))
    }

    /// Makes this and all later calls fail, and frees the parser: a guest may hold the matcher for long.
    fn poison(&mut self, error: Error) -> Error {
        self.forced.clear();
        self.mask = None;
        self.allowed = None;
        self.inner = Err(error.clone());
        // It does not grow.
        self.memory.set(0).ok();
        error
    }
}

impl std::fmt::Debug for Matcher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Matcher")
            .field("ended", &self.ended)
            .field("error", &self.inner.as_ref().err())
            .finish_non_exhaustive()
    }
}
