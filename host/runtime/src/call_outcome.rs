//! How a call ended, and the handles with which its response and others stop it.

use crate::call_error::CallError;
use crate::counters::{CallEnd, DeploymentCounters, ProcessCounters};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock};
use tokio::sync::Notify;
use tokio::task::AbortHandle;

/// How a call ended. Its task and its response share this; the last owner counts the call.
#[derive(Debug)]
pub(crate) struct CallOutcome {
    error: OnceLock<CallError>,
    pub(crate) completed: AtomicBool,
    /// Notified when the whole response was read.
    pub(crate) response_read: Notify,
    pub(crate) process: Arc<ProcessCounters>,
    pub(crate) deployment: Arc<DeploymentCounters>,
}

impl CallOutcome {
    pub(crate) fn new(process: Arc<ProcessCounters>, deployment: Arc<DeploymentCounters>) -> Self {
        Self {
            error: OnceLock::new(),
            completed: AtomicBool::new(false),
            response_read: Notify::new(),
            process,
            deployment,
        }
    }

    /// Records why the call failed and returns the recorded error. The first error stays. Its limit is
    /// counted before anybody can see the error.
    pub(crate) fn fail(&self, error: CallError) -> CallError {
        let first = || {
            if let Some(limit) = error.limit() {
                self.deployment.limit_hit(limit);
            }
            error
        };
        self.error.get_or_init(first).clone()
    }

    /// The recorded error.
    pub(crate) fn error(&self) -> Option<CallError> {
        self.error.get().cloned()
    }
}

impl Drop for CallOutcome {
    fn drop(&mut self) {
        self.process.call_ended(match self.error.get() {
            Some(CallError::Canceled) => CallEnd::Canceled,
            Some(error) => CallEnd::Failed(error.code_index()),
            None if *self.completed.get_mut() => CallEnd::Completed,
            None => CallEnd::Canceled,
        });
    }
}

/// The response's handle of a running call. Dropping it stops the call.
#[derive(Debug)]
pub(crate) struct CallHandle {
    task: AbortHandle,
    outcome: Arc<CallOutcome>,
    stop_on_drop: bool,
}

impl CallHandle {
    pub(crate) fn new(task: AbortHandle, outcome: Arc<CallOutcome>) -> Self {
        Self {
            task,
            outcome,
            stop_on_drop: true,
        }
    }

    /// The recorded error.
    pub(crate) fn error(&self) -> Option<CallError> {
        self.outcome.error()
    }

    /// Stops the call and returns its error: `error`, or one recorded before.
    pub(crate) fn fail(&self, error: CallError) -> CallError {
        self.task.abort();
        self.outcome.fail(error)
    }

    /// What can cancel the call.
    pub(crate) fn canceler(&self) -> CallCanceler {
        CallCanceler {
            task: self.task.clone(),
            outcome: Arc::clone(&self.outcome),
        }
    }

    /// Counts a frame of the response body.
    pub(crate) fn frame_sent(&self, bytes: u64) {
        self.outcome.deployment.frame_sent(bytes);
    }

    /// Lets the call run on, within its limits, after this is dropped.
    pub(crate) fn detach(&mut self) {
        self.stop_on_drop = false;
        self.outcome.response_read.notify_one();
    }
}

impl Drop for CallHandle {
    fn drop(&mut self) {
        if self.stop_on_drop {
            self.task.abort();
        }
    }
}

/// Cancels a call from elsewhere.
#[derive(Debug)]
pub struct CallCanceler {
    task: AbortHandle,
    outcome: Arc<CallOutcome>,
}

impl CallCanceler {
    /// Stops the call, unless it ended. Its response ends with [`CallError::Canceled`].
    pub fn cancel(&self) {
        // Recorded first: the response must not look complete.
        self.outcome.fail(CallError::Canceled);
        self.task.abort();
    }
}
