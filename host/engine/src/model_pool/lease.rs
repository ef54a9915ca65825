//! Waiting for a model, and leases on it.

use super::policy::{WaitResult, WaiterId};
use super::{OpenError, PoolShared};
use crate::engine::Engine;
use crate::{Error, LoadError};
use std::ops::Deref;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Instant;

/// A model in use: the pool does not unload it before the last clone is dropped. Hold it while anything of
/// its engine is in use, generations too, since unloading cancels requests.
#[derive(Clone)]
pub struct ModelLease {
    // Fields drop in this order: a lease that ends holds nothing of the engine.
    engine: Engine,
    _release: Arc<ReleaseOnDrop>,
}

struct ReleaseOnDrop {
    shared: Arc<PoolShared>,
    model: usize,
}

impl ModelLease {
    /// A lease that the policy has counted.
    pub(super) fn new(engine: Engine, shared: Arc<PoolShared>, model: usize) -> Self {
        Self {
            engine,
            _release: Arc::new(ReleaseOnDrop { shared, model }),
        }
    }

    /// The engine; see [`ModelLease`] for how long it may be used.
    pub fn engine(&self) -> &Engine {
        &self.engine
    }
}

impl Deref for ModelLease {
    type Target = Engine;

    fn deref(&self) -> &Engine {
        &self.engine
    }
}

impl Drop for ReleaseOnDrop {
    fn drop(&mut self) {
        self.shared.release(self.model);
    }
}

/// A waiter, shared by the manager and its [`OpenModel`].
#[derive(Debug, Default)]
pub(super) struct Waiting {
    pub(super) answer: Option<WaitResult>,
    pub(super) waker: Option<Waker>,
}

/// A future of a [`ModelLease`]. Dropping it cancels the wait; a load that has started continues.
#[must_use = "a model opens only if the future is awaited"]
pub struct OpenModel(OpenStage);

enum OpenStage {
    /// Ready; `None` after it was returned.
    Done(Option<Result<ModelLease, OpenError>>),
    Waits {
        shared: Arc<PoolShared>,
        model: usize,
        id: WaiterId,
        /// When the wait started, if it ends with `QueueTimeout` and not with `DeadlineExceeded`.
        overdue_since: Option<Instant>,
    },
}

impl OpenModel {
    pub(super) fn refused(error: OpenError) -> Self {
        Self(OpenStage::Done(Some(Err(error))))
    }

    pub(super) fn ready(lease: ModelLease) -> Self {
        Self(OpenStage::Done(Some(Ok(lease))))
    }

    pub(super) fn waiting(
        shared: Arc<PoolShared>,
        model: usize,
        id: WaiterId,
        overdue_since: Option<Instant>,
    ) -> Self {
        Self(OpenStage::Waits {
            shared,
            model,
            id,
            overdue_since,
        })
    }
}

impl Future for OpenModel {
    type Output = Result<ModelLease, OpenError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let result = match &mut self.0 {
            // `None` means that it is polled again after it was ready.
            OpenStage::Done(result) => result
                .take()
                .unwrap_or(Err(OpenError::Unavailable(Error::ShuttingDown))),
            OpenStage::Waits {
                shared,
                model,
                id,
                overdue_since,
            } => {
                let mut pool = shared.lock();
                let Some(waiting) = pool.waiting.get_mut(id) else {
                    return Poll::Pending;
                };
                let Some(answer) = waiting.answer else {
                    waiting.waker = Some(context.waker().clone());
                    return Poll::Pending;
                };
                pool.waiting.remove(id);
                let name = &shared.names[*model];
                let unavailable = |error| Err(OpenError::Unavailable(error));
                match answer {
                    WaitResult::Ready => pool
                        .lease(shared, *model)
                        .ok_or(OpenError::Unavailable(Error::ShuttingDown)),
                    WaitResult::Failed => Err(pool.not_loaded(name, *model)),
                    WaitResult::TooLarge { bytes, budget } => Err(OpenError::NotLoaded {
                        name: name.clone(),
                        cause: Arc::new(LoadError::TooLarge {
                            name: name.clone(),
                            bytes,
                            budget,
                        }),
                    }),
                    WaitResult::Late => unavailable(match overdue_since {
                        None => Error::DeadlineExceeded,
                        Some(since) => shared.overdue(&pool, *model, *since),
                    }),
                    WaitResult::Closed => unavailable(Error::ShuttingDown),
                }
            }
        };
        self.0 = OpenStage::Done(None);
        Poll::Ready(result)
    }
}

impl Drop for OpenModel {
    fn drop(&mut self) {
        let OpenStage::Waits {
            shared, model, id, ..
        } = &self.0
        else {
            return;
        };
        let mut pool = shared.lock();
        pool.policy.cancel(shared.now(), *id);
        let waiting = pool.waiting.remove(id);
        drop(pool);
        // The policy has counted a lease that was never returned.
        if waiting.is_some_and(|waiting| waiting.answer == Some(WaitResult::Ready)) {
            shared.release(*model);
        }
    }
}
