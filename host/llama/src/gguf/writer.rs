//! Writes a GGUF file.
//!
//! llama.cpp lays out the file. [`Writer`] quantizes and writes the weights a few rows at a time, so a large model needs
//! no more memory than a small one. It rejects input on which llama.cpp would end the process, such as a repeated name or
//! a row that does not fill its blocks.

use super::{GgufContext, GgufError, Value};
use llama_cpp_sys_2 as sys;
use std::ffi::{CStr, CString, c_char};
use std::fs::File;
use std::io::{BufWriter, Write as _};
use std::path::Path;
use std::ptr::NonNull;

/// Alignment of each tensor's data in bytes: the format's default.
pub(super) const ALIGNMENT: usize = 32;
/// The key that would change the alignment; never set.
const ALIGNMENT_KEY: &str = "general.alignment";
/// Bytes of a tensor's name, with the closing zero (GGML_MAX_NAME).
const NAME_BYTES: usize = 64;
/// Weights that are filled, quantized and written at once.
const CHUNK: usize = 1 << 20;

/// The type in which a [`Writer`] stores the weights of a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "ggml's names")]
pub enum TensorType {
    F32,
    F16,
    Q4K,
}

impl TensorType {
    fn ggml(self) -> sys::ggml_type {
        match self {
            Self::F32 => sys::GGML_TYPE_F32,
            Self::F16 => sys::GGML_TYPE_F16,
            Self::Q4K => sys::GGML_TYPE_Q4_K,
        }
    }

    /// Weights of a block; the length of a row is a multiple.
    fn block(self) -> u64 {
        // SAFETY: looks up a constant of a type that ggml has.
        u64::try_from(unsafe { sys::ggml_blck_size(self.ggml()) }).unwrap_or(1)
    }
}

/// A tensor of a [`Writer`].
#[derive(Clone, Debug)]
pub struct Tensor {
    /// Its name.
    pub name: String,
    /// Type of its weights.
    pub tensor_type: TensorType,
    /// Weights of a row: the first dimension.
    pub row: usize,
    /// Number of rows: the product of all other dimensions.
    pub rows: usize,
}

/// Collects metadata and tensors, then writes them as a file.
pub struct Writer {
    context: GgufContext,
    tensors: Vec<Tensor>,
}

impl Writer {
    /// An empty file. Fails if there is no memory for it.
    pub fn new() -> Result<Self, GgufError> {
        // SAFETY: no arguments; `GgufContext` frees the result.
        let context = NonNull::new(unsafe { sys::gguf_init_empty() }).ok_or_else(|| {
            GgufError::Invalid("there is no memory for the header of the file".into())
        })?;
        Ok(Self {
            context: GgufContext(context),
            tensors: Vec::new(),
        })
    }

    /// Sets a key to a value. Fails if either holds a zero byte, and for the key that would change the layout of the
    /// file.
    pub fn set(&mut self, key: &str, value: impl Into<Value>) -> Result<(), GgufError> {
        if key == ALIGNMENT_KEY {
            return Err(GgufError::Invalid(format!(
                "{ALIGNMENT_KEY} can't be set: the writer uses the default of {ALIGNMENT}"
            )));
        }
        let name = c_string(key)?;
        let (gguf, key) = (self.context.0.as_ptr(), name.as_ptr());
        // SAFETY: the context is alive; key, strings and arrays outlive the call that copies them, and arrays have the
        // type and length that are passed with them.
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
    /// An element of `kind` has the size of a `T`.
    unsafe fn set_array<T: Copy>(&mut self, key: &CStr, kind: sys::gguf_type, values: &[T]) {
        // SAFETY: the context is alive; llama.cpp reads as many elements as there are, each of the size of a `T`, as
        // the caller guarantees.
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

    /// Adds a tensor; [`Writer::write`] requests its weights. `dimensions` are in ggml's order: the first is the length
    /// of a row. Fails if the name is taken or too long, or rows don't fill their blocks.
    pub fn tensor(
        &mut self,
        name: &str,
        tensor_type: TensorType,
        dimensions: &[u64],
    ) -> Result<(), GgufError> {
        let invalid =
            |problem: String| Err(GgufError::Invalid(format!("tensor {name}: {problem}")));
        if name.len() >= NAME_BYTES {
            return invalid(format!("its name must have less than {NAME_BYTES} bytes"));
        }
        if self.tensors.iter().any(|tensor| tensor.name == name) {
            return invalid("the name is taken".into());
        }
        let (Some(&row), 1..=4) = (dimensions.first(), dimensions.len()) else {
            return invalid("expected one to four dimensions".into());
        };
        let block = tensor_type.block();
        if row % block != 0 {
            return invalid(format!("rows of {row} don't fill blocks of {block}"));
        }
        // Eight bytes each, twice the largest weight, so that no size that llama.cpp computes overflows.
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
        // SAFETY: the ggml context has room for one tensor without data; the dimensions were checked above and are as
        // many as passed; llama.cpp copies the tensor before the context is freed.
        unsafe {
            let ggml = sys::ggml_init(sys::ggml_init_params {
                mem_size: sys::ggml_tensor_overhead(),
                mem_buffer: std::ptr::null_mut(),
                no_alloc: true,
            });
            if ggml.is_null() {
                return invalid("there is no memory for its header".into());
            }
            let dimensions = std::ffi::c_int::try_from(sizes.len()).unwrap_or(1);
            let tensor = sys::ggml_new_tensor(ggml, tensor_type.ggml(), dimensions, sizes.as_ptr());
            sys::ggml_set_name(tensor, c_name.as_ptr());
            sys::gguf_add_tensor(self.context.0.as_ptr(), tensor);
            sys::ggml_free(ggml);
        }
        self.tensors.push(Tensor {
            name: name.to_owned(),
            tensor_type,
            row,
            rows,
        });
        Ok(())
    }

    /// Writes the file. `fill` gets the index of a tensor, the tensor and a buffer for some of its rows: it is called
    /// for the tensors in order, until all their rows are filled. The file has the suffix `.part` until it is complete.
    pub fn write(
        self,
        path: &Path,
        mut fill: impl FnMut(usize, &Tensor, &mut [f32]),
    ) -> Result<(), GgufError> {
        let part = path.with_added_extension("part");
        let written = self
            .write_part(&part, &mut fill)
            .and_then(|()| std::fs::rename(&part, path));
        written.map_err(|cause| {
            // The first error is the one to report.
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
        let mut header = vec![0_u8; size];
        // SAFETY: the context is alive and unchanged since it returned the size of the buffer.
        unsafe { sys::gguf_get_meta_data(self.context.0.as_ptr(), header.as_mut_ptr().cast()) };
        file.write_all(&header)?;
        for (index, tensor) in self.tensors.iter().enumerate() {
            let most = (CHUNK / tensor.row).clamp(1, tensor.rows);
            let mut weights = vec![0.0; most * tensor.row];
            let mut bytes = Vec::new();
            let mut written = 0;
            let mut start = 0;
            while start < tensor.rows {
                let rows = most.min(tensor.rows - start);
                let weights = &mut weights[..rows * tensor.row];
                fill(index, tensor, weights);
                quantize_rows(tensor, weights, &mut bytes);
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

/// Converts whole rows of `weights` to the tensor's type.
fn quantize_rows(tensor: &Tensor, weights: &[f32], bytes: &mut Vec<u8>) {
    // No type has more than four bytes a weight.
    bytes.resize(weights.len() * 4, 0);
    let rows = weights.len() / tensor.row;
    // SAFETY: ggml reads `rows` whole rows from `weights` and writes no more than `bytes` holds; none of the types needs
    // an importance matrix, and rows fill their blocks (`Writer::tensor`).
    let size = unsafe {
        sys::ggml_quantize_chunk(
            tensor.tensor_type.ggml(),
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
            "{text:?} contains a zero byte, which llama.cpp can't write"
        ))
    })
}
