//! Why a job has no output.

use std::io;
use std::time::Duration;

/// Why a job has no output. The text is a clause for the end of a sentence.
#[derive(Debug, thiserror::Error)]
pub enum ChildError {
    /// The job itself failed. The text is the handler's.
    #[error("{0}")]
    Failed(String),
    /// The child needed more memory than its limit.
    #[error("it needs more than {} MiB of memory", .limit >> 20)]
    Memory {
        /// Bytes allowed.
        limit: u64,
    },
    /// The child took too long.
    #[error("it takes more than {} s", .limit.as_secs())]
    Time {
        /// Wall time allowed.
        limit: Duration,
    },
    /// The child crashed.
    #[error("it ends the process with {how}")]
    Crashed {
        /// The signal or exit code, and the last line of its standard error.
        how: String,
    },
    /// All slots were taken for too long.
    #[error("too many jobs are running; try again")]
    Busy,
    /// The child could not be started or its pipes failed.
    #[error("a child process cannot be started: {0}; raise the limit of processes")]
    Start(#[from] io::Error),
}

impl ChildError {
    /// Whether the input is at fault, so that another try would end in the same way.
    pub fn is_verdict(&self) -> bool {
        !matches!(self, Self::Busy | Self::Start(_))
    }
}
