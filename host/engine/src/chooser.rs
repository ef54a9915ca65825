//! Tokens that somebody else chooses: the engine shows what may come next, and is told what does.
//!
//! A chooser works elsewhere, on a thread or task of its own, since it may be slow, fail or never come
//! back: the engine's thread hands over a distribution and goes on. Its sequence keeps its cells and its
//! id meanwhile, and has no row in a step until the answer is there.

use crate::{Error, Token};
use corral_sampling::Statistics;
use corral_scheduler::RequestId;
use std::fmt::Debug;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// What a chooser is to be shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// So many of the likeliest tokens, from 1 to [`MAX_CANDIDATES`](crate::MAX_CANDIDATES).
    pub candidates: u32,
    /// With what only the whole row tells.
    pub statistics: bool,
    /// So many of the prompt's last tokens.
    pub history: u32,
}

/// Where the choosers of generations come from.
pub trait Choosers: Debug + Send + Sync {
    /// What each of them is to be shown.
    fn wanted(&self) -> Wanted;

    /// One for a new text; the seed is for its random numbers. Called by the engine's thread when the
    /// sequence is admitted; one that has to give way keeps it. Must not block; what goes wrong is
    /// the answer to the first question.
    fn start(&self, seed: u64) -> Box<dyn Chooser>;
}

/// Chooses the tokens of one text. Dropped when that ends, whatever it was asked last.
pub trait Chooser: Send {
    /// Takes the question along, to answer it later. Called by the engine's thread: must not block. It
    /// is asked one thing at a time.
    fn choose(&mut self, shown: Shown, choice: Choice);
}

/// What may come next.
#[derive(Clone, Debug, PartialEq)]
pub struct Shown {
    /// The likeliest tokens with their logits, falling; of equal ones the lower token first. Only those
    /// that the constraint allows, if there is one. At least one, and all are finite.
    pub candidates: Vec<(Token, f32)>,
    /// Of the whole row, if they were wanted.
    pub statistics: Option<Statistics>,
    /// The tokens that were added since the last question; at the first one the prompt's last tokens, as
    /// many as were wanted.
    pub since: Vec<Token>,
    /// Number of tokens that it comes after.
    pub position: u32,
}

/// A question that has to be answered. Dropped without an answer it ends the generation as failed.
pub struct Choice {
    desk: Arc<Desk>,
    /// Taken by whoever answers.
    key: Option<RequestId>,
}

impl Choice {
    /// Answers it: with one of the tokens that were shown, or the reason why there is none, which ends
    /// the generation. From any thread; never blocks for long.
    pub fn make(mut self, answer: Result<Token, Error>) {
        self.answer(answer);
    }

    fn answer(&mut self, answer: Result<Token, Error>) {
        if let Some(key) = self.key.take() {
            self.desk.put(key, answer);
        }
    }
}

impl Drop for Choice {
    fn drop(&mut self) {
        let ended = "what chooses the tokens ended before it had chosen the next one";
        self.answer(Err(Error::Failed(ended.into())));
    }
}

impl Debug for Choice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Choice").field("key", &self.key).finish()
    }
}

/// Where answers lie until the engine's thread takes them: at most one for each sequence that runs.
pub struct Desk {
    answers: Mutex<Vec<(RequestId, Result<Token, Error>)>>,
    wake: Box<dyn Fn() + Send + Sync>,
}

impl Debug for Desk {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Desk").finish_non_exhaustive()
    }
}

impl Desk {
    /// One with nothing on it; `wake` is called after something was put there.
    pub fn new(wake: Box<dyn Fn() + Send + Sync>) -> Arc<Self> {
        Arc::new(Self {
            answers: Mutex::default(),
            wake,
        })
    }

    /// A question for a sequence.
    pub fn question(self: &Arc<Self>, key: RequestId) -> Choice {
        Choice {
            desk: Arc::clone(self),
            key: Some(key),
        }
    }

    /// Takes all answers.
    pub fn take(&self) -> Vec<(RequestId, Result<Token, Error>)> {
        std::mem::take(&mut *self.lock())
    }

    /// Makes the engine's thread look.
    pub fn wake(&self) {
        (self.wake)();
    }

    fn put(&self, key: RequestId, answer: Result<Token, Error>) {
        self.lock().push((key, answer));
        self.wake();
    }

    fn lock(&self) -> MutexGuard<'_, Vec<(RequestId, Result<Token, Error>)>> {
        // Nothing under this lock panics half-way.
        self.answers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
