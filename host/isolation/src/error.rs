//! Why a job has no output.

use std::io;
use std::path::PathBuf;
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
    /// The child was killed by something else, such as the kernel when memory is short.
    #[error(
        "the system killed its process, probably because memory is short; free memory and try again"
    )]
    KilledBySystem,
    /// The child crashed.
    #[error("its process crashed with {how}")]
    Crashed {
        /// The signal or exit code, and the last line of its standard error.
        how: String,
    },
    /// All permits were taken for too long.
    #[error("too many jobs are running; try again")]
    Busy,
    /// The caller canceled the job.
    #[error("it was canceled")]
    Canceled,
    /// The child could not be started.
    #[error("a child process cannot be started: {0}; raise the limit of processes")]
    Start(io::Error),
    /// The pipes to the child failed, or waiting for it did.
    #[error("the connection to a child process failed: {0}; try again")]
    Connection(#[from] io::Error),
    /// The job names a path that is not absolute. The child would look for it elsewhere. A bug of the caller.
    #[error("the path {} of its job is not absolute; report this bug", .0.display())]
    RelativePath(PathBuf),
}

impl ChildError {
    /// Whether the input is at fault, so that another try would end in the same way.
    pub fn is_final(&self) -> bool {
        match self {
            Self::Failed(_) | Self::Memory { .. } | Self::Time { .. } | Self::Crashed { .. } => {
                true
            }
            Self::KilledBySystem
            | Self::Busy
            | Self::Canceled
            | Self::Start(_)
            | Self::Connection(_)
            | Self::RelativePath(_) => false,
        }
    }
}
