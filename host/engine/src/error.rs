//! Errors of requests and of model loads.
//!
//! Each text says what happened, what was expected and what to do.

use corral_llama::LlamaError;
use std::path::{Path, PathBuf};
use std::time::Duration;
use strum::IntoStaticStr;

/// Why a request failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
pub enum Error {
    /// An argument is invalid. The text names it and what was expected.
    #[error("{0}")]
    Invalid(String),
    /// The request needs more positions than a sequence may have.
    #[error("the request needs {needed} positions, but a sequence may have {limit}; shorten it")]
    ContextFull {
        /// Positions that the request needs.
        needed: u32,
        /// Positions that a sequence may have.
        limit: u32,
    },
    /// A queue is full. A retry after `retry_after` can succeed.
    #[error("{reason}; try again in {} s", retry_after.as_secs_f32().ceil())]
    Overloaded {
        /// What is full.
        reason: String,
        /// Estimated time until there is room.
        retry_after: Duration,
    },
    /// The request waited longer than its caller allows. A retry after `retry_after` can succeed.
    #[error("{reason}; try again in {} s", retry_after.as_secs_f32().ceil())]
    QueueTimeout {
        /// What the request waited for, and how long.
        reason: String,
        /// Estimated time until there is room.
        retry_after: Duration,
    },
    /// The deadline passed before the request finished.
    #[error("the deadline passed before the request finished")]
    DeadlineExceeded,
    /// The engine is shutting down.
    #[error("the request was canceled because the engine is shutting down")]
    ShuttingDown,
    /// The caller dropped the receiver of the result.
    #[error("the request was canceled because nothing reads its result")]
    Canceled,
    /// The model does not support the operation.
    #[error("{0}")]
    Unsupported(String),
    /// There is no model or snapshot of the name.
    #[error("{0}")]
    NotFound(String),
    /// There is no room for a snapshot; waiting does not help.
    #[error("{0}")]
    SnapshotsFull(String),
    /// A snapshot could not be written or read.
    #[error("{0}")]
    Snapshot(String),
    /// The model or the device failed. Other requests are not affected.
    #[error("{0}")]
    Failed(String),
}

impl Error {
    /// A stable name of its kind, without what the text says about the request.
    pub fn kind(&self) -> &'static str {
        self.into()
    }
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
            } => Self::Overloaded {
                reason,
                retry_after,
            },
            Constraint::Unsupported(what) => Self::Unsupported(what),
            Constraint::Failed(what) => Self::Failed(what),
        }
    }
}

/// Why a model could not be loaded.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// llama.cpp cannot load the model, an adapter or a backend, or create the context.
    #[error(transparent)]
    Llama(#[from] LlamaError),
    /// The configuration does not fit the model.
    #[error("{0}")]
    Config(String),
    /// The check of the model file refuses it.
    #[error("{text}")]
    Refused {
        /// The files that the text may name.
        paths: Vec<PathBuf>,
        /// What is wrong.
        text: String,
    },
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
    /// The model exceeds the memory budget of all models.
    #[error(
        "the model {name} needs about {} MiB, but all models together may use {} MiB; raise the budget or give the model fewer cells",
        bytes.div_ceil(1 << 20), budget >> 20
    )]
    TooLarge {
        /// The model's name.
        name: String,
        /// Estimate of the bytes it needs.
        bytes: u64,
        /// Bytes that all models together may use.
        budget: u64,
    },
}

impl LoadError {
    /// The text without the directories of files, for readers outside of the machine.
    pub fn redacted(&self) -> String {
        let paths: Vec<&Path> = match self {
            Self::Llama(error) => Vec::from_iter(error.path()),
            Self::DeviceMemory { path, .. } => vec![path.as_path()],
            Self::Refused { paths, .. } => paths.iter().map(PathBuf::as_path).collect(),
            _ => Vec::new(),
        };
        paths.into_iter().fold(self.to_string(), |text, path| {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            text.replace(&path.display().to_string(), &name)
        })
    }
}
