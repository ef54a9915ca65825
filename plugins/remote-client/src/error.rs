//! Errors of sessions.

use session_protocol::Error as CallError;
use std::time::Duration;

/// Why a call failed.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum Error {
    /// The host's function failed. The session goes on.
    #[error("{}", describe(.0))]
    Call(CallError),
    /// The host opens no session: its problem document.
    #[error("the host answers {status}: {detail}")]
    Refused {
        /// The status of the response.
        status: u16,
        /// The problem's code, stable for programs; empty if the answer is not one of Corral.
        code: String,
        /// What happened, for people.
        detail: String,
        /// When another attempt can succeed.
        retry_after: Option<Duration>,
    },
    /// There is no session: the host cannot be reached, or the session has ended. All that it held is lost.
    #[error("{0}")]
    Disconnected(String),
    /// The host did not reply in time. The session goes on.
    #[error("the host did not reply within {} s", .0.as_secs_f64())]
    TimedOut(Duration),
}

impl Error {
    pub(crate) fn invalid(detail: impl Into<String>) -> Self {
        Error::Call(CallError::Invalid {
            detail: detail.into(),
        })
    }
}

fn describe(error: &CallError) -> String {
    match error {
        CallError::Invalid { detail }
        | CallError::NotFound { detail }
        | CallError::NotGranted { detail }
        | CallError::Failed { detail } => detail.clone(),
        CallError::ContextFull { needed, limit } => {
            format!("the call needs {needed} positions; a sequence may have {limit}")
        }
        CallError::Refused {
            detail,
            retry_after_ms,
        } => format!("{detail}; retry after {retry_after_ms} ms"),
        CallError::Deadline => "the session's deadline passed".into(),
        CallError::Cancelled => "the generation was canceled".into(),
    }
}
