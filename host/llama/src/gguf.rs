//! GGUF files: reads their headers, and writes files with llama.cpp's functions.

mod reader;
#[cfg(test)]
mod tests;
mod writer;

pub(crate) use reader::data_end;
pub use reader::{TensorInfo, metadata, metadata_where, tensors, weights};
pub use writer::{Tensor, TensorType, Writer};

use llama_cpp_sys_2 as sys;
use std::fs::File;
use std::io::{ErrorKind, Read as _};
use std::path::{Path, PathBuf};
use std::ptr::NonNull;

/// Why a file was not read or written.
#[derive(Debug, thiserror::Error)]
pub enum GgufError {
    /// The file can't be read as GGUF.
    #[error("cannot read {path} as GGUF: {cause}; give the path of a GGUF model", path = path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        cause: String,
    },
    /// The header has more bytes than this crate reads.
    #[error(
        "the metadata and the list of tensors of {path} take more than {} MiB, the most that Corral reads; \
         give a model with a smaller vocabulary or less metadata",
        limit >> 20, path = path.display()
    )]
    HeaderTooLarge {
        /// The file.
        path: PathBuf,
        /// Most bytes of a header.
        limit: u64,
    },
    /// The file can't be written.
    #[error("cannot write {path}: {cause}", path = path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// The error of the operating system.
        cause: std::io::Error,
    },
    /// llama.cpp can't quantize the weights.
    #[error("cannot quantize to {path}: {cause}", path = path.display())]
    Quantize {
        /// The output file.
        path: PathBuf,
        /// The error that llama.cpp logged.
        cause: String,
    },
    /// GGUF can't express the input.
    #[error("{0}")]
    Invalid(String),
}

/// A metadata value.
#[derive(Clone, Debug, PartialEq)]
#[expect(missing_docs, reason = "each variant is named after its type")]
pub enum Value {
    U32(u32),
    I32(i32),
    U64(u64),
    I64(i64),
    F32(f32),
    F64(f64),
    Bool(bool),
    Text(String),
    U32s(Vec<u32>),
    I32s(Vec<i32>),
    F32s(Vec<f32>),
    Bools(Vec<bool>),
    Texts(Vec<String>),
}

macro_rules! value_from {
    ($($variant:ident($type:ty)),*) => {
        $(impl From<$type> for Value {
            fn from(value: $type) -> Self {
                Self::$variant(value)
            }
        })*
    };
}

value_from!(
    U32(u32),
    I32(i32),
    U64(u64),
    I64(i64),
    F32(f32),
    F64(f64),
    Bool(bool),
    Text(String),
    U32s(Vec<u32>),
    I32s(Vec<i32>),
    F32s(Vec<f32>),
    Bools(Vec<bool>),
    Texts(Vec<String>)
);

impl From<&str> for Value {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

/// Whether a file begins with the GGUF magic.
pub fn has_magic(path: &Path) -> std::io::Result<bool> {
    let mut magic = [0; 4];
    match File::open(path)?.read_exact(&mut magic) {
        Ok(()) => Ok(&magic == b"GGUF"),
        Err(error) if error.kind() == ErrorKind::UnexpectedEof => Ok(false),
        Err(error) => Err(error),
    }
}

/// Frees a GGUF context when dropped.
struct GgufContext(NonNull<sys::gguf_context>);

impl Drop for GgufContext {
    fn drop(&mut self) {
        // SAFETY: made by one of the `gguf_init_` functions and freed once.
        unsafe { sys::gguf_free(self.0.as_ptr()) };
    }
}
