//! GGUF files: reading the metadata of one, and writing one, over llama.cpp's own functions.
//!
//! llama.cpp lays the file out; the weights are quantised and written here, a few rows at a time,
//! so that a large model needs no more memory than a small one. What llama.cpp would end the
//! process on (a name that is there already, a row that does not fill its blocks) is refused
//! before it is asked.

use llama_cpp_sys_2 as sys;
use std::ffi::{CStr, CString, c_char};
use std::fs::File;
use std::io::{BufWriter, Write as _};
use std::path::{Path, PathBuf};
use std::ptr::NonNull;

mod metadata;

pub(crate) use metadata::{TensorInfo, size, tensors};
pub use metadata::{Value, metadata, metadata_where};

/// Bytes that the data of each tensor is aligned to: the format's default.
const ALIGNMENT: usize = 32;
/// The key that would change the alignment; never set.
const ALIGNMENT_KEY: &str = "general.alignment";
/// Bytes of a tensor's name, the closing zero included (GGML_MAX_NAME).
const NAME_BYTES: usize = 64;
/// Weights that are made, quantised and written at once.
const CHUNK: usize = 1 << 20;

/// Why a file was not read or written.
#[derive(Debug, thiserror::Error)]
pub enum GgufError {
    /// llama.cpp can't read the file as GGUF.
    #[error("cannot read {path} as GGUF: {cause}; give the path of a GGUF model", path = path.display())]
    Read {
        /// The file as it was named.
        path: PathBuf,
        /// What llama.cpp said.
        cause: String,
    },
    /// The file can't be written.
    #[error("cannot write {path}: {cause}", path = path.display())]
    Write {
        /// The file as it was named.
        path: PathBuf,
        /// What the operating system said.
        cause: std::io::Error,
    },
    /// There is too little room for the file.
    #[error(
        "cannot write {path}: with the weights it is made of it needs {needed} MB, and {free} MB \
         are free there; make room or name another folder",
        path = path.display(), needed = needed.div_ceil(1_000_000), free = free / 1_000_000
    )]
    Space {
        /// The file as it was named.
        path: PathBuf,
        /// Bytes that it needs at most, those of what lies beside it meanwhile included.
        needed: u64,
        /// Bytes that are free.
        free: u64,
    },
    /// llama.cpp can't quantise the weights.
    #[error("cannot quantise to {path}: {cause}", path = path.display())]
    Quantise {
        /// The file that was to be made.
        path: PathBuf,
        /// What llama.cpp said.
        cause: String,
    },
    /// What was to be written is not possible in GGUF; says what and why.
    #[error("{0}")]
    Invalid(String),
}

/// How the weights of a tensor are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "named as everywhere else")]
pub enum Weights {
    F32,
    F16,
    Q4K,
}

impl Weights {
    fn ggml(self) -> sys::ggml_type {
        match self {
            Self::F32 => sys::GGML_TYPE_F32,
            Self::F16 => sys::GGML_TYPE_F16,
            Self::Q4K => sys::GGML_TYPE_Q4_K,
        }
    }

    /// Weights in a block: the length of a row is a multiple of it.
    pub fn block(self) -> u64 {
        // SAFETY: looks up a constant of a type that ggml has.
        u64::try_from(unsafe { sys::ggml_blck_size(self.ggml()) }).unwrap_or(1)
    }
}

/// A tensor that a [`Writer`] is to write.
#[derive(Clone, Debug)]
pub struct Tensor {
    /// Its name, as llama.cpp looks for it.
    pub name: String,
    /// How its weights are stored.
    pub weights: Weights,
    /// Weights in a row: the first dimension, over which a product with it sums.
    pub row: usize,
    /// Number of rows: the product of all other dimensions.
    pub rows: usize,
}

impl Tensor {
    /// Bytes that it takes in a file, without what aligns the next.
    fn bytes(&self) -> u64 {
        let row = i64::try_from(self.row).unwrap_or(i64::MAX);
        // SAFETY: computes from constants of the type; rows fill their blocks (`Writer::tensor`).
        let row = unsafe { sys::ggml_row_size(self.weights.ggml(), row) };
        row as u64 * self.rows as u64
    }
}

/// Frees a GGUF context when dropped.
struct Context(NonNull<sys::gguf_context>);

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: made by one of the `gguf_init_` functions and freed once.
        unsafe { sys::gguf_free(self.0.as_ptr()) };
    }
}

/// Collects metadata and tensors, then writes them as a file.
pub struct Writer {
    context: Context,
    tensors: Vec<Tensor>,
}

impl Writer {
    /// A file with nothing in it. `None` if there is no memory for it.
    pub fn new() -> Option<Self> {
        // SAFETY: no arguments; the answer is ours to free.
        let context = NonNull::new(unsafe { sys::gguf_init_empty() })?;
        Some(Self {
            context: Context(context),
            tensors: Vec::new(),
        })
    }

    /// Sets a key to a value, in place of the one it had. Fails if either holds a zero byte, and
    /// for the one key that would change the layout of the file.
    pub fn set(&mut self, key: &str, value: impl Into<Value>) -> Result<(), GgufError> {
        if key == ALIGNMENT_KEY {
            return Err(GgufError::Invalid(format!(
                "{ALIGNMENT_KEY} can't be set: files are written with the default of {ALIGNMENT}"
            )));
        }
        let name = c_string(key)?;
        let (gguf, key) = (self.context.0.as_ptr(), name.as_ptr());
        // SAFETY: the context is alive; key, strings and arrays live until the call that copies
        // them is over, and arrays are of the type and length that is passed with them.
        unsafe {
            match value.into() {
                Value::U32(value) => sys::gguf_set_val_u32(gguf, key, value),
                Value::I32(value) => sys::gguf_set_val_i32(gguf, key, value),
                Value::U64(value) => sys::gguf_set_val_u64(gguf, key, value),
                Value::I64(value) => sys::gguf_set_val_i64(gguf, key, value),
                Value::F32(value) => sys::gguf_set_val_f32(gguf, key, value),
                Value::F64(value) => sys::gguf_set_val_f64(gguf, key, value),
                Value::Bool(value) => sys::gguf_set_val_bool(gguf, key, value),
                Value::Text(value) => {
                    sys::gguf_set_val_str(gguf, key, c_string(&value)?.as_ptr());
                }
                Value::U32s(values) => self.set_array(&name, sys::GGUF_TYPE_UINT32, &values),
                Value::I32s(values) => self.set_array(&name, sys::GGUF_TYPE_INT32, &values),
                Value::F32s(values) => self.set_array(&name, sys::GGUF_TYPE_FLOAT32, &values),
                Value::Bools(values) => {
                    let bytes: Vec<u8> = values.into_iter().map(u8::from).collect();
                    self.set_array(&name, sys::GGUF_TYPE_BOOL, &bytes);
                }
                Value::Texts(values) => {
                    let strings: Vec<CString> = values
                        .iter()
                        .map(|value| c_string(value))
                        .collect::<Result<_, _>>()?;
                    let mut pointers: Vec<*const c_char> =
                        strings.iter().map(|string| string.as_ptr()).collect();
                    sys::gguf_set_arr_str(gguf, key, pointers.as_mut_ptr(), pointers.len());
                }
            }
        }
        Ok(())
    }

    /// Sets a key to an array of numbers.
    ///
    /// # Safety
    /// An element of `kind` must be as large as a `T`.
    unsafe fn set_array<T: Copy>(&mut self, key: &CStr, kind: sys::gguf_type, values: &[T]) {
        // SAFETY: the context is alive; as many elements are read as there are, each of the size
        // of a `T`, which the caller vouches for.
        unsafe {
            sys::gguf_set_arr_data(
                self.context.0.as_ptr(),
                key.as_ptr(),
                kind,
                values.as_ptr().cast(),
                values.len(),
            );
        }
    }

    /// Adds a tensor, whose weights come when the file is written. `dimensions` are in ggml's
    /// order: the first is the length of a row. Fails if there is one of that name, the name is
    /// too long, or rows don't fill their blocks.
    pub fn tensor(
        &mut self,
        name: &str,
        weights: Weights,
        dimensions: &[u64],
    ) -> Result<(), GgufError> {
        let invalid = |what: String| Err(GgufError::Invalid(format!("tensor {name}: {what}")));
        if name.len() >= NAME_BYTES {
            return invalid(format!("a name has less than {NAME_BYTES} bytes"));
        }
        if self.tensors.iter().any(|tensor| tensor.name == name) {
            return invalid("there is one of this name already".into());
        }
        let (Some(&row), 1..=4) = (dimensions.first(), dimensions.len()) else {
            return invalid("a tensor has one to four dimensions".into());
        };
        if row % weights.block() != 0 {
            return invalid(format!(
                "rows of {row} don't fill blocks of {}",
                weights.block()
            ));
        }
        // Twice the largest weight, so that no size that llama.cpp computes overflows.
        let size = dimensions
            .iter()
            .try_fold(8_u64, |size, &dimension| size.checked_mul(dimension));
        let (1.., Ok(row), Ok(rows)) = (
            size.and_then(|size| i64::try_from(size).ok()).unwrap_or(0),
            usize::try_from(row),
            usize::try_from(dimensions[1..].iter().product::<u64>()),
        ) else {
            return invalid("its dimensions are zero or too large".into());
        };
        let sizes: Vec<i64> = dimensions
            .iter()
            .map(|&dimension| i64::try_from(dimension).unwrap_or(i64::MAX))
            .collect();
        let c_name = c_string(name)?;
        // SAFETY: a context of ggml's that has room for exactly one tensor without data; the
        // dimensions were checked above and are as many as is said; the tensor is copied before
        // the context is freed.
        unsafe {
            let ggml = sys::ggml_init(sys::ggml_init_params {
                mem_size: sys::ggml_tensor_overhead(),
                mem_buffer: std::ptr::null_mut(),
                no_alloc: true,
            });
            if ggml.is_null() {
                return invalid("there is no memory for its description".into());
            }
            let dimensions = std::ffi::c_int::try_from(sizes.len()).unwrap_or(1);
            let tensor = sys::ggml_new_tensor(ggml, weights.ggml(), dimensions, sizes.as_ptr());
            sys::ggml_set_name(tensor, c_name.as_ptr());
            sys::gguf_add_tensor(self.context.0.as_ptr(), tensor);
            sys::ggml_free(ggml);
        }
        self.tensors.push(Tensor {
            name: name.to_owned(),
            weights,
            row,
            rows,
        });
        Ok(())
    }

    /// Bytes that the tensors take, about: without the head of the file and what aligns them.
    pub fn bytes(&self) -> u64 {
        self.tensors.iter().map(Tensor::bytes).sum()
    }

    /// Number of weights in all tensors.
    pub fn weights(&self) -> u64 {
        let weights = |tensor: &Tensor| tensor.row as u64 * tensor.rows as u64;
        self.tensors.iter().map(weights).sum()
    }

    /// Writes the file. `fill` is asked for the weights of one tensor after another, in the order
    /// in which they were added and with its number in it, some whole rows at a time. The file
    /// appears when it is whole: until then it has `.part` at the end of its name.
    pub fn write(
        self,
        path: &Path,
        mut fill: impl FnMut(usize, &Tensor, &mut [f32]),
    ) -> Result<(), GgufError> {
        let part = beside(path, ".part");
        let written = self
            .write_part(&part, &mut fill)
            .and_then(|()| std::fs::rename(&part, path));
        written.map_err(|cause| {
            // It may not be there at all; the first error is the one to tell.
            let _ = std::fs::remove_file(&part);
            GgufError::Write {
                path: path.to_owned(),
                cause,
            }
        })
    }

    fn write_part(&self, part: &Path, fill: &mut Fill<'_>) -> std::io::Result<()> {
        let mut file = BufWriter::new(File::create(part)?);
        // SAFETY: the context is alive.
        let size = unsafe { sys::gguf_get_meta_size(self.context.0.as_ptr()) };
        let mut head = vec![0_u8; size];
        // SAFETY: the context is alive and unchanged since it gave the size, which the buffer has.
        unsafe { sys::gguf_get_meta_data(self.context.0.as_ptr(), head.as_mut_ptr().cast()) };
        file.write_all(&head)?;
        for (number, tensor) in self.tensors.iter().enumerate() {
            let most = (CHUNK / tensor.row).clamp(1, tensor.rows);
            let mut weights = vec![0.0; most * tensor.row];
            let mut bytes = Vec::new();
            let mut written = 0;
            let mut start = 0;
            while start < tensor.rows {
                let rows = most.min(tensor.rows - start);
                let weights = &mut weights[..rows * tensor.row];
                fill(number, tensor, weights);
                quantise(tensor, weights, &mut bytes);
                file.write_all(&bytes)?;
                written += bytes.len();
                start += rows;
            }
            file.write_all(&[0; ALIGNMENT][..written.next_multiple_of(ALIGNMENT) - written])?;
        }
        file.into_inner()?;
        Ok(())
    }
}

type Fill<'a> = dyn FnMut(usize, &Tensor, &mut [f32]) + 'a;

/// The path with more at its end, in the same folder.
pub(crate) fn beside(path: &Path, end: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(end);
    PathBuf::from(name)
}

/// Stores whole rows of `weights` as the tensor wants them.
fn quantise(tensor: &Tensor, weights: &[f32], bytes: &mut Vec<u8>) {
    // No type takes more than four bytes for a weight.
    bytes.resize(weights.len() * 4, 0);
    let rows = weights.len() / tensor.row;
    // SAFETY: `rows` whole rows are read from `weights` and no more written than `bytes` has; none
    // of the types needs an importance matrix, and rows fill their blocks (`Writer::tensor`).
    let size = unsafe {
        sys::ggml_quantize_chunk(
            tensor.weights.ggml(),
            weights.as_ptr(),
            bytes.as_mut_ptr().cast(),
            0,
            i64::try_from(rows).unwrap_or(0),
            i64::try_from(tensor.row).unwrap_or(0),
            std::ptr::null(),
        )
    };
    bytes.truncate(size);
}

fn c_string(text: &str) -> Result<CString, GgufError> {
    CString::new(text).map_err(|_| {
        GgufError::Invalid(format!(
            "{text:?} holds a zero byte, which llama.cpp can't write"
        ))
    })
}

#[cfg(test)]
mod tests;
