//! What can go wrong, in words for the person who can do something about it.

use std::path::PathBuf;
use std::time::Duration;

/// Why a request was not done, or ended before its time.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// An argument is wrong; says which one and what was expected.
    #[error("{0}")]
    Invalid(String),
    /// More positions are needed than a sequence may have.
    #[error("{needed} positions are needed, but a sequence may have {limit}")]
    ContextFull {
        /// Positions that the request needs.
        needed: u32,
        /// Positions that a sequence may have.
        limit: u32,
    },
    /// A queue is full; trying again after `retry_after` can succeed.
    #[error("{reason}; try again in {} s", retry_after.as_secs_f32().ceil())]
    Refused {
        /// What is full.
        reason: String,
        /// A guess of when there is room again.
        retry_after: Duration,
    },
    /// It was not its turn within the time that its caller would wait; trying again after `retry_after`
    /// can succeed.
    #[error("{reason}; try again in {} s", retry_after.as_secs_f32().ceil())]
    Overdue {
        /// What it waited for, and how long.
        reason: String,
        /// A guess of when there is room.
        retry_after: Duration,
    },
    /// The deadline passed before it was done.
    #[error("its deadline passed before it was done")]
    Deadline,
    /// The request was cancelled by the operator: the engine is shutting down.
    #[error("the request was cancelled, since the engine is shutting down")]
    Cancelled,
    /// The model can't do that.
    #[error("{0}")]
    Unsupported(String),
    /// There is no model or snapshot of the name.
    #[error("{0}")]
    NotFound(String),
    /// There is no room for a snapshot, and none comes by waiting.
    #[error("{0}")]
    SnapshotsFull(String),
    /// A snapshot could not be written or read.
    #[error("{0}")]
    Snapshot(String),
    /// The model or device failed; this sequence is lost, others are not.
    #[error("{0}")]
    Failed(String),
}

/// Why a model could not be loaded. Each text says what to do.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The file can't be opened or read.
    #[error("cannot read the model file {path}: {cause}; give the path of a GGUF file", path = path.display())]
    Unreadable {
        /// The file as it was named.
        path: PathBuf,
        /// What the operating system said.
        cause: std::io::Error,
    },
    /// The file does not begin as a GGUF file does.
    #[error("{path} is not a GGUF model: it does not begin with the letters GGUF; convert the model to GGUF or give another file", path = path.display())]
    NotGguf {
        /// The file as it was named.
        path: PathBuf,
    },
    /// llama.cpp refused the file.
    #[error("{path} cannot be loaded: {cause}; the file may be cut short or damaged: fetch or copy it again", path = path.display())]
    Damaged {
        /// The file as it was named.
        path: PathBuf,
        /// The last error that llama.cpp logged.
        cause: String,
    },
    /// The model is of a kind that Corral can't generate with.
    #[error("{path} cannot generate text: {cause}", path = path.display())]
    Unsuitable {
        /// The file as it was named.
        path: PathBuf,
        /// What it lacks.
        cause: String,
    },
    /// An adapter can't be used with the model.
    #[error("the adapter {name} cannot be loaded from {path}: {cause}", path = path.display())]
    Adapter {
        /// The name it was to have.
        name: String,
        /// The file as it was named.
        path: PathBuf,
        /// What is wrong and what to do.
        cause: String,
    },
    /// The configuration makes no sense for this model.
    #[error("{0}")]
    Config(String),
    /// The context could not be made, most often for want of memory.
    #[error(
        "no context of {cells} cells can be made: {cause}; lower the number of cells or free memory"
    )]
    Context {
        /// Cells that were asked for.
        cells: u32,
        /// The last error that llama.cpp logged.
        cause: String,
    },
    /// It takes more memory than all models together may have.
    #[error(
        "the model {name} takes some {} MiB, but all models together may have {} MiB; allow more, or give it fewer cells",
        bytes.div_ceil(1 << 20), budget >> 20
    )]
    TooLarge {
        /// The name under which it is served.
        name: String,
        /// Bytes that it is expected to take.
        bytes: u64,
        /// Bytes that all models together may have.
        budget: u64,
    },
    /// The load was given up on demand.
    #[error("the load was given up, since the engine is shutting down")]
    Cancelled,
}

impl LoadError {
    /// The same in words for people who have no business knowing in which folder the file is.
    pub fn without_folder(&self) -> String {
        let (Self::Unreadable { path, .. }
        | Self::NotGguf { path }
        | Self::Damaged { path, .. }
        | Self::Unsuitable { path, .. }) = self
        else {
            return self.to_string();
        };
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        self.to_string().replace(&path.display().to_string(), &name)
    }
}
