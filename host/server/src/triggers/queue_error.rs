//! Errors of the queue of jobs.

use super::job::JobState;

/// Why the queue refuses something.
#[derive(Debug, thiserror::Error)]
pub(crate) enum QueueError {
    #[error("{limit} jobs of '{deployment}'{whose} wait or run already; try again later")]
    Full {
        deployment: String,
        limit: usize,
        whose: &'static str,
    },
    #[error(
        "unfinished jobs occupy all {limit} {what} that the server has for {scope}; try again later"
    )]
    NoRoom {
        what: &'static str,
        limit: u64,
        scope: String,
    },
    #[error("the idempotency key was used for another body; send the same body, or another key")]
    KeyReused,
    #[error("'{0}' has no job with this id, or no longer; 'GET /jobs/{0}' lists those there are")]
    Unknown(String),
    #[error("the job is {}, so this does not apply to it", .0.name())]
    WrongState(JobState),
    #[error("the store of jobs failed: {0}; the server's log says more")]
    Storage(String),
    #[error("too many operations on jobs wait already; try again later")]
    Busy,
    #[error(
        "the cluster's NATS ({servers}) does not answer for jobs: {cause}; try again later, with the same \
         'Idempotency-Key' if this is a new job, since it may be stored"
    )]
    Unreachable { servers: String, cause: String },
}
