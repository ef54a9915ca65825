//! Errors of this crate. Each text names the failure, the expectation and a remedy.

use crate::gguf::GgufError;
use std::path::{Path, PathBuf};

/// Why a model, an adapter, a backend or a context is not available.
#[derive(Debug, thiserror::Error)]
pub enum LlamaError {
    /// The file can't be opened or read.
    #[error("cannot read the model file {path}: {cause}; give the path of a GGUF file", path = path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The error of the operating system.
        cause: std::io::Error,
    },
    /// The file does not begin with the GGUF magic.
    #[error("{path} is not a GGUF model: it does not begin with the letters GGUF; convert the model to GGUF or give another file", path = path.display())]
    NotGguf {
        /// The file.
        path: PathBuf,
    },
    /// The header of the file is broken, or llama.cpp refused the file.
    #[error("{path} cannot be loaded: {cause}; the file may be truncated or damaged: fetch or copy it again", path = path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong with the header, or the first error that llama.cpp logged.
        cause: String,
    },
    /// The header of the file has more bytes than this crate reads.
    #[error(transparent)]
    HeaderTooLarge(GgufError),
    /// The model can't generate text.
    #[error("{path} cannot generate text: {cause}", path = path.display())]
    Unsuitable {
        /// The file.
        path: PathBuf,
        /// The missing property.
        cause: String,
    },
    /// The adapter does not fit the model.
    #[error("the adapter {name} cannot be loaded from {path}: {cause}", path = path.display())]
    Adapter {
        /// The name of the adapter.
        name: String,
        /// The file.
        path: PathBuf,
        /// The problem and its remedy.
        cause: String,
    },
    /// The projector cannot be loaded, or does not fit the model.
    #[error("the projector {path} cannot be used: {cause}", path = path.display())]
    Projector {
        /// The file.
        path: PathBuf,
        /// The problem and its remedy.
        cause: String,
    },
    /// A backend, a device, a path or an environment variable is wrong.
    #[error("{0}")]
    Setup(String),
    /// llama.cpp could not make the context, most often for lack of memory.
    #[error(
        "cannot make a context of {cells} cells: {cause}; lower the number of cells or free memory"
    )]
    Context {
        /// Cells that were requested.
        cells: u32,
        /// The first error that llama.cpp logged.
        cause: String,
    },
    /// [`LoadProgress::cancel`](crate::LoadProgress::cancel) ended the load.
    #[error("the load was canceled")]
    Canceled,
}

impl LlamaError {
    /// The error that llama.cpp logged, if it says that memory of the machine or of a device ran out.
    pub fn out_of_memory(&self) -> Option<&str> {
        let (Self::Damaged { cause, .. }
        | Self::Context { cause, .. }
        | Self::Adapter { cause, .. }
        | Self::Projector { cause, .. }) = self
        else {
            return None;
        };
        let lower = cause.to_lowercase();
        let is_memory = ["alloc", "out of memory", "outof"]
            .iter()
            .any(|word| lower.contains(word));
        is_memory.then_some(cause.as_str())
    }

    /// The file that the text names.
    pub fn path(&self) -> Option<&Path> {
        match self {
            Self::Unreadable { path, .. }
            | Self::NotGguf { path }
            | Self::Damaged { path, .. }
            | Self::Unsuitable { path, .. }
            | Self::Adapter { path, .. }
            | Self::Projector { path, .. }
            | Self::HeaderTooLarge(GgufError::HeaderTooLarge { path, .. }) => Some(path),
            _ => None,
        }
    }
}

/// Why a step was not decoded. The context is as before the call, with one exception: a recurrent or hybrid model may
/// have computed a part of the step, so clear its sequences.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// No cells are free for the tokens.
    #[error("there is no room in the key-value cache")]
    NoRoom,
    /// The computation was aborted or failed, with llama.cpp's code; -1 for an argument out of range.
    #[error("the model's computation failed (code {0})")]
    Failed(i32),
}

/// Why the state of a sequence was not saved. The sequence is as before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SaveError {
    /// The state exceeds the caller's limit.
    #[error("the state has {bytes} bytes, which exceeds the limit of {limit}")]
    TooLarge {
        /// Size of the state.
        bytes: usize,
        /// The caller's limit.
        limit: usize,
    },
    /// The process has no memory for a copy of the state.
    #[error("there is no memory for the {bytes} bytes of the state")]
    NoMemory {
        /// Size of the state.
        bytes: usize,
    },
    /// llama.cpp could not write the state.
    #[error("the backend could not write the state")]
    Failed,
}

#[cfg(test)]
mod tests {
    use super::LlamaError;

    #[test]
    fn out_of_memory_differs_from_other_failures() {
        let context = |cause: &str| LlamaError::Context {
            cells: 1,
            cause: cause.to_owned(),
        };
        for cause in [
            "alloc_tensor_range: failed to allocate CUDA0 buffer of size 12",
            "allocating 1.00 MiB on device 0: cudaMalloc failed: out of memory",
            "vk::Device::allocateMemory: ErrorOutOfDeviceMemory",
        ] {
            assert_eq!(context(cause).out_of_memory(), Some(cause));
        }
        let other = context("failed to initialize CUDA0 backend");
        assert_eq!(other.out_of_memory(), None);
        assert_eq!(LlamaError::Canceled.out_of_memory(), None);
    }
}
