//! One sequence's walk through a grammar.

use super::dictionary::Lexicon;
use super::watch::{Watched, Watcher};
use super::{limits, place};
use crate::{Error, Token};
use llguidance::TokenParser;
use llguidance::api::StopReason;
use llguidance::toktrie::SimpleVob;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError};

/// A compiled grammar. Cloning it is cheap and shares what was compiled.
#[derive(Clone)]
pub struct Constraint(Arc<Compiled>);

struct Compiled {
    /// Before the first token, and never moved on: what a matcher finds out stays its own.
    fresh: Mutex<TokenParser>,
    lexicon: Arc<Lexicon>,
    watcher: Arc<Watcher>,
}

impl std::fmt::Debug for Constraint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Constraint").finish_non_exhaustive()
    }
}

impl Constraint {
    pub(super) fn new(fresh: TokenParser, lexicon: Arc<Lexicon>, watcher: Arc<Watcher>) -> Self {
        Self(Arc::new(Compiled {
            fresh: Mutex::new(fresh),
            lexicon,
            watcher,
        }))
    }

    /// Whether this one watches its matchers: each model has one of its own.
    pub(super) fn is_watched_by(&self, watcher: &Arc<Watcher>) -> bool {
        Arc::ptr_eq(&self.0.watcher, watcher)
    }

    /// A matcher before the first token. Copies what was found out while compiling, which takes tens
    /// of microseconds for a common grammar.
    pub fn start(&self) -> Matcher {
        // A panic while it was copied has changed nothing of it.
        let fresh = self.0.fresh.lock().unwrap_or_else(PoisonError::into_inner);
        let mut inner = fresh.deep_clone();
        drop(fresh);
        let watched = self.0.watcher.watch(inner.enable_cancellation());
        let mut matcher = Matcher {
            inner,
            watched,
            watcher: Arc::clone(&self.0.watcher),
            lexicon: Arc::clone(&self.0.lexicon),
            forced: VecDeque::new(),
            looked: false,
            checked: None,
            mask: None,
            ended: false,
            failed: None,
        };
        // A grammar of the empty text is complete before the first token.
        matcher.consume(&[]).ok();
        matcher
    }
}

/// Where one sequence is in its grammar. Can be sent to another thread; shares nothing that changes.
///
/// The order of calls for a token: sample one, ask [`Self::allows`]; if it does not, sample among
/// [`Self::mask`]; [`Self::advance`] by what was sampled; then append [`Self::forced`] without
/// sampling. Once a call failed, every later one fails with the same error.
///
/// What is allowed where the grammar leaves one text only is its usual tokens and no others, so
/// `allows`, `mask` and `forced` always agree.
pub struct Matcher {
    inner: TokenParser,
    /// Ends a call that takes too long.
    watched: Watched,
    watcher: Arc<Watcher>,
    lexicon: Arc<Lexicon>,
    /// The next tokens, if there is no choice about them. Valid if `looked`.
    forced: VecDeque<Token>,
    looked: bool,
    /// The token that was last found to be allowed here.
    checked: Option<Token>,
    /// What is allowed here, if that was asked.
    mask: Option<SimpleVob>,
    /// An end token was accepted.
    ended: bool,
    failed: Option<Error>,
}

impl Matcher {
    /// Whether a token may come next. The tokens that end a generation may exactly when the text may
    /// end here.
    pub fn allows(&mut self, token: Token) -> Result<bool, Error> {
        if self.is_end(token) {
            return self.may_end();
        }
        if self.checked == Some(token) {
            return Ok(true);
        }
        if self.ended || token as usize >= self.lexicon.dictionary.size() {
            return Ok(false);
        }
        self.look()?;
        let allowed = match self.forced.front() {
            Some(&forced) => token == forced,
            None => {
                let valid = self.step(|inner| Ok(inner.validate_tokens_raw(&[token])?))?;
                valid == 1
            }
        };
        if allowed {
            self.checked = Some(token);
        }
        Ok(allowed)
    }

    /// Another one at the same place. Copies what was found out so far. When one of them is ended since a
    /// call takes too long, so is the other at its next call.
    pub fn fork(&self) -> Result<Self, Error> {
        // After a panic in it, it could not be copied.
        self.check()?;
        let mut inner = self.inner.deep_clone();
        Ok(Self {
            watched: self.watcher.watch(inner.enable_cancellation()),
            watcher: Arc::clone(&self.watcher),
            inner,
            lexicon: Arc::clone(&self.lexicon),
            forced: self.forced.clone(),
            looked: self.looked,
            checked: self.checked,
            mask: self.mask.clone(),
            ended: self.ended,
            failed: self.failed.clone(),
        })
    }

    /// Whether an end token was taken: nothing follows it but another.
    pub fn has_ended(&self) -> bool {
        self.ended
    }

    /// The tokens that may come next: one bit for each token of the vocabulary, the first in the
    /// lowest bit of the first word. At least one is set; with the text complete, the end tokens.
    pub fn mask(&mut self) -> Result<&[u32], Error> {
        if self.mask.is_none() {
            let mask = self.compute_mask()?;
            self.mask = Some(mask);
        }
        let words = self.lexicon.dictionary.size().div_ceil(32);
        Ok(self
            .mask
            .as_ref()
            .map_or(&[], |mask| &mask.as_slice()[..words]))
    }

    fn compute_mask(&mut self) -> Result<SimpleVob, Error> {
        let may_end = self.may_end()?;
        let trie = self.lexicon.factory.tok_env().tok_trie();
        if self.ended || self.must_end() {
            return Ok(trie.eos_token_set());
        }
        self.look()?;
        if let Some(&token) = self.forced.front() {
            let trie = self.lexicon.factory.tok_env().tok_trie();
            return Ok(trie.singleton_token_set(token));
        }
        let mut mask = self.step(|inner| Ok(inner.compute_mask()?))?;
        for &token in &*self.lexicon.end {
            mask.set(token as usize, may_end);
        }
        if mask.is_zero() {
            return Err(self.fail("no token of the model's vocabulary fits here"));
        }
        Ok(mask)
    }

    /// Goes on by a token. [`Error::Invalid`] if it is not allowed here; nothing has changed then.
    pub fn advance(&mut self, token: Token) -> Result<(), Error> {
        if !self.allows(token)? || self.ended {
            return Err(Error::Invalid(format!(
                "token {token} does not fit the grammar here"
            )));
        }
        if self.is_end(token) {
            self.ended = true;
            self.mask = None;
            return Ok(());
        }
        self.consume(&[token])
    }

    /// The tokens that must come next, at most `room` of them, in the way that the model's tokenizer
    /// writes them; none where there is a choice. The matcher has advanced by them when this returns.
    /// Tokens that end a generation are not among them: see [`Self::must_end`].
    pub fn forced(&mut self, room: usize) -> Result<Vec<Token>, Error> {
        let mut taken = Vec::new();
        while taken.len() < room && !self.ended && !self.must_end() {
            self.look()?;
            if self.forced.is_empty() {
                break;
            }
            let count = self.forced.len().min(room - taken.len());
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
        self.step(|inner| Ok(inner.is_accepting()))
    }

    /// Whether the text is complete: nothing but an end token can follow.
    pub fn must_end(&self) -> bool {
        self.failed.is_none() && self.inner.stop_reason() == StopReason::NoExtension
    }

    fn is_end(&self, token: Token) -> bool {
        self.lexicon.end.contains(&token)
    }

    fn check(&self) -> Result<(), Error> {
        self.failed.clone().map_or(Ok(()), Err)
    }

    /// Asks something of `llguidance`, for no longer than a step may take and for no more memory than
    /// a matcher may have.
    fn step<T>(
        &mut self,
        ask: impl FnOnce(&mut TokenParser) -> Result<T, Box<dyn std::error::Error + Send + Sync>>,
    ) -> Result<T, Error> {
        self.check()?;
        self.watched.begin();
        let inner = &mut self.inner;
        // After a panic nothing is asked of it any more, so whatever state it is in stays unseen.
        let answer = catch_unwind(AssertUnwindSafe(|| {
            let answer = ask(inner).map_err(|error| error.to_string())?;
            match inner.parser.get_error() {
                Some(error) => Err(error.message()),
                None => Ok((answer, inner.parser.lexer_stats().num_bytes)),
            }
        }));
        self.watched.end();
        match answer {
            Ok(Ok((_, bytes))) if bytes > limits::MATCHER_BYTES => {
                Err(self.fail(&format!("it takes {} MiB of memory", bytes >> 20)))
            }
            Ok(Ok((answer, _))) => Ok(answer),
            Ok(Err(message)) => Err(self.fail(&message)),
            Err(_) => Err(self.end(Error::Failed(
                "the grammar can't be followed: llguidance panicked".into(),
            ))),
        }
    }

    /// Finds out what is forced here.
    fn look(&mut self) -> Result<(), Error> {
        self.check()?;
        if !self.looked && !self.must_end() {
            let forced = self.step(|inner| Ok(inner.compute_ff_tokens()))?;
            self.forced = forced.into();
        }
        self.looked = true;
        Ok(())
    }

    /// Goes on by tokens that are allowed.
    fn consume(&mut self, tokens: &[Token]) -> Result<(), Error> {
        self.check()?;
        self.mask = None;
        self.checked = None;
        // What was forced stays forced, however few of it are taken at a time.
        if tokens
            .iter()
            .zip(&self.forced)
            .filter(|(a, b)| a == b)
            .count()
            == tokens.len()
        {
            self.forced.drain(..tokens.len());
        } else {
            self.forced.clear();
        }
        self.looked = !self.forced.is_empty();
        self.step(|inner| {
            for &token in tokens {
                inner.consume_token(token)?;
            }
            Ok(inner.check_stop()?)
        })?;
        match self.inner.stop_reason() {
            StopReason::NotStopped | StopReason::NoExtension => Ok(()),
            reason => Err(self.fail(&reason.to_string())),
        }
    }

    /// Ends it with what `llguidance` said.
    fn fail(&mut self, message: &str) -> Error {
        let message = place::first_line(message);
        let handle = self.inner.cancellation_handle();
        let what = if handle.is_some_and(|handle| handle.is_cancelled()) {
            format!(
                "the grammar can't be followed any further: one token took more than {} ms; make it \
                 simpler or less ambiguous",
                limits::STEP_TIME.as_millis()
            )
        } else if message == StopReason::NoExtensionBias.to_string() {
            "the grammar leads nowhere: no token fits here; check that it has an end".into()
        } else {
            format!("the grammar can't be followed any further: {message}; make it simpler")
        };
        self.end(Error::Invalid(what))
    }

    fn end(&mut self, error: Error) -> Error {
        self.forced.clear();
        self.mask = None;
        self.checked = None;
        self.failed.get_or_insert(error).clone()
    }
}

impl std::fmt::Debug for Matcher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Matcher")
            .field("ended", &self.ended)
            .field("failed", &self.failed)
            .finish_non_exhaustive()
    }
}
