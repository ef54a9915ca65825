//! What can go wrong, in words for the person who can do something about it.

use corral_llama::LlamaError;
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

impl From<corral_sampling::Error> for Error {
    fn from(error: corral_sampling::Error) -> Self {
        Self::Invalid(error.to_string())
    }
}

impl From<corral_constraint::Error> for Error {
    fn from(error: corral_constraint::Error) -> Self {
        use corral_constraint::Error as Constraint;
        match error {
            Constraint::Invalid(what) => Self::Invalid(what),
            Constraint::Busy {
                reason,
                retry_after,
            } => Self::Refused {
                reason,
                retry_after,
            },
            Constraint::Unsupported(what) => Self::Unsupported(what),
            Constraint::Failed(what) => Self::Failed(what),
        }
    }
}

/// Why a model could not be loaded. Each text says what to do.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// llama.cpp can't load the model, an adapter or a backend, or make the context.
    #[error(transparent)]
    Llama(#[from] LlamaError),
    /// The configuration makes no sense for this model.
    #[error("{0}")]
    Config(String),
    /// The GPU layers do not fit on their devices.
    #[error(
        "{layers} of {all} layers of {path} do not fit on {devices}: with their cells they need about {} MiB, and {} \
         MiB are free ({cause}); set fewer GPU layers or auto, set fewer cells, or store the cells as q8_0",
        needed.div_ceil(1 << 20), free >> 20, path = path.display()
    )]
    DeviceMemory {
        /// The model file.
        path: PathBuf,
        /// Requested GPU layers.
        layers: u32,
        /// Layers of the model; the output counts as one.
        all: u32,
        /// Names of the devices.
        devices: String,
        /// Bytes that the layers need.
        needed: u64,
        /// Free bytes of the devices.
        free: u64,
        /// The first error that llama.cpp logged.
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
}

impl LoadError {
    /// The same in words for people who have no business knowing in which folder the file is.
    pub fn without_folder(&self) -> String {
        let path = match self {
            Self::Llama(error) => error.model_path(),
            Self::DeviceMemory { path, .. } => Some(path.as_path()),
            _ => None,
        };
        let Some(path) = path else {
            return self.to_string();
        };
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        self.to_string().replace(&path.display().to_string(), &name)
    }
}
