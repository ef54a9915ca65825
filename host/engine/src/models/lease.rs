//! Waiting for a model, and holding on to it.

use super::residency::{Answer, Ticket};
use super::{OpenError, Shared};
use crate::engine::Engine;
use crate::{Error, LoadError};
use std::ops::Deref;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Instant;

/// A model in use: it is not unloaded before the last clone is dropped. To be held as long as anything
/// of its engine is used, generations too, since what runs when it is unloaded is cancelled.
#[derive(Clone)]
pub struct Lease {
    // Field order is drop order: who gives a lease back holds nothing of the engine any more.
    engine: Engine,
    _hold: Arc<Hold>,
}

struct Hold {
    shared: Arc<Shared>,
    model: usize,
}

impl Lease {
    /// For a lease that was counted.
    pub(super) fn new(engine: Engine, shared: Arc<Shared>, model: usize) -> Self {
        Self {
            engine,
            _hold: Arc::new(Hold { shared, model }),
        }
    }

    /// The engine; see [`Lease`] for how long it may be used.
    pub fn engine(&self) -> &Engine {
        &self.engine
    }
}

impl Deref for Lease {
    type Target = Engine;

    fn deref(&self) -> &Engine {
        &self.engine
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.shared.release(self.model);
    }
}

/// One who waits, between the keeper and its [`Opening`].
#[derive(Debug, Default)]
pub(super) struct Waiting {
    pub(super) answer: Option<Answer>,
    pub(super) waker: Option<Waker>,
}

/// A model that is being opened. Dropping it gives up; a load that it has begun goes on.
#[must_use = "nothing is opened unless somebody waits for it"]
pub struct Opening(Step);

enum Step {
    /// Known already; none once it was told.
    Told(Option<Result<Lease, OpenError>>),
    Waits {
        shared: Arc<Shared>,
        model: usize,
        ticket: Ticket,
        /// When it began to wait, if it is to be refused at its end and not late.
        refuse: Option<Instant>,
    },
}

impl Opening {
    pub(super) fn refused(error: OpenError) -> Self {
        Self(Step::Told(Some(Err(error))))
    }

    pub(super) fn ready(lease: Lease) -> Self {
        Self(Step::Told(Some(Ok(lease))))
    }

    pub(super) fn waiting(
        shared: Arc<Shared>,
        model: usize,
        ticket: Ticket,
        refuse: Option<Instant>,
    ) -> Self {
        Self(Step::Waits {
            shared,
            model,
            ticket,
            refuse,
        })
    }
}

impl Future for Opening {
    type Output = Result<Lease, OpenError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let told = match &mut self.0 {
            // Asked again after it was told, which nobody should.
            Step::Told(told) => told
                .take()
                .unwrap_or(Err(OpenError::NotNow(Error::Cancelled))),
            Step::Waits {
                shared,
                model,
                ticket,
                refuse,
            } => {
                let mut inner = shared.lock();
                let Some(waiting) = inner.waiting.get_mut(ticket) else {
                    return Poll::Pending;
                };
                let Some(answer) = waiting.answer else {
                    waiting.waker = Some(context.waker().clone());
                    return Poll::Pending;
                };
                inner.waiting.remove(ticket);
                let name = &shared.names[*model];
                let not_now = |error| Err(OpenError::NotNow(error));
                match answer {
                    Answer::Ready => inner
                        .lease(shared, *model)
                        .ok_or(OpenError::NotNow(Error::Cancelled)),
                    Answer::Failed => Err(inner.not_loaded(name, *model)),
                    Answer::TooLarge { bytes, budget } => Err(OpenError::NotLoaded {
                        name: name.clone(),
                        cause: Arc::new(LoadError::TooLarge {
                            name: name.clone(),
                            bytes,
                            budget,
                        }),
                    }),
                    Answer::Late => not_now(match refuse {
                        None => Error::Deadline,
                        Some(since) => shared.overdue(&inner, *model, *since),
                    }),
                    Answer::Closed => not_now(Error::Cancelled),
                }
            }
        };
        self.0 = Step::Told(None);
        Poll::Ready(told)
    }
}

impl Drop for Opening {
    fn drop(&mut self) {
        let Step::Waits {
            shared,
            model,
            ticket,
            ..
        } = &self.0
        else {
            return;
        };
        let mut inner = shared.lock();
        inner.residency.give_up(shared.now(), *ticket);
        let waiting = inner.waiting.remove(ticket);
        drop(inner);
        // It was answered, and nobody has heard it.
        if waiting.is_some_and(|waiting| waiting.answer == Some(Answer::Ready)) {
            shared.release(*model);
        }
    }
}
