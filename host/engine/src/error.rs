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
    /// The layers that were to be offloaded find no room on their devices.
    #[error(
        "{layers} of {all} layers of {path} find no room on {devices}: with their cells they take some {} MiB \
         there, and {} MiB are free ({cause}); offload fewer, give fewer cells, store them as q8_0, or let it \
         be found out how many there is room for: auto",
        needed.div_ceil(1 << 20), free >> 20, path = path.display()
    )]
    DeviceMemory {
        /// The file as it was named.
        path: PathBuf,
        /// Layers that were to be offloaded.
        layers: u32,
        /// Layers that the model has, the output counted as one.
        all: u32,
        /// Names of the devices.
        devices: String,
        /// Bytes that it is expected to take there.
        needed: u64,
        /// Bytes that were free there.
        free: u64,
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
    /// What llama.cpp said, where it was that there is no memory, as far as its words tell: of the machine
    /// or a device, for weights, adapters or the context.
    pub(crate) fn no_memory(&self) -> Option<&str> {
        let (Self::Damaged { cause, .. }
        | Self::Context { cause, .. }
        | Self::Adapter { cause, .. }) = self
        else {
            return None;
        };
        let said = cause.to_lowercase();
        let about_memory = ["alloc", "out of memory", "outof"];
        let is = about_memory.iter().any(|word| said.contains(word));
        is.then_some(cause.as_str())
    }

    /// The same in words for people who have no business knowing in which folder the file is.
    pub fn without_folder(&self) -> String {
        let (Self::Unreadable { path, .. }
        | Self::NotGguf { path }
        | Self::Damaged { path, .. }
        | Self::DeviceMemory { path, .. }
        | Self::Unsuitable { path, .. }) = self
        else {
            return self.to_string();
        };
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        self.to_string().replace(&path.display().to_string(), &name)
    }
}

#[cfg(test)]
mod tests {
    use super::LoadError;

    #[test]
    fn want_of_memory_is_told_from_other_failures() {
        let context = |cause: &str| LoadError::Context {
            cells: 1,
            cause: cause.to_owned(),
        };
        for said in [
            "alloc_tensor_range: failed to allocate CUDA0 buffer of size 12",
            "allocating 1.00 MiB on device 0: cudaMalloc failed: out of memory",
            "vk::Device::allocateMemory: ErrorOutOfDeviceMemory",
        ] {
            assert_eq!(context(said).no_memory(), Some(said));
        }
        assert_eq!(
            context("failed to initialize CUDA0 backend").no_memory(),
            None
        );
        assert_eq!(LoadError::Cancelled.no_memory(), None);
    }
}
