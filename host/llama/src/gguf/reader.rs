//! Reads the header of a GGUF file: metadata and the list of tensors.
//!
//! The file may be hostile, and the server reads its header before a child process checks the file. So the reader compares
//! each count and length with the bytes that are left before it allocates, keeps only the values that the caller wants,
//! and refuses headers of more than [`MAX_HEADER`] bytes. llama.cpp reads the header again when it loads the file, and checks
//! more.

use super::{GgufError, Value};
use crate::ggml::text;
use llama_cpp_sys_2 as sys;
use std::fs::File;
use std::io::{BufReader, Read, Seek, SeekFrom};
use std::path::Path;

/// Most bytes of a header. A vocabulary of 260,000 tokens, with merges, takes about 15 MiB. One-letter strings take ten
/// times their bytes in memory.
const MAX_HEADER: u64 = 64 << 20;
/// The versions of the format that llama.cpp accepts. They do not differ in what this reader reads.
const VERSIONS: [u32; 2] = [2, 3];
/// Alignment of the weights if the metadata names none.
const DEFAULT_ALIGNMENT: u32 = 32;
/// The key of the alignment.
const ALIGNMENT: &str = "general.alignment";

/// The metadata whose keys start with `prefix`, in the file's order.
pub fn metadata(path: &Path, prefix: &str) -> Result<Vec<(String, Value)>, GgufError> {
    metadata_where(path, |key| key.starts_with(prefix))
}

/// The metadata whose keys are `wanted`, in the file's order.
pub fn metadata_where(
    path: &Path,
    wanted: impl Fn(&str) -> bool,
) -> Result<Vec<(String, Value)>, GgufError> {
    read_header(path, |header| header.metadata(wanted))
}

/// A tensor of a file.
#[derive(Debug)]
pub struct TensorInfo {
    /// Its name.
    pub name: String,
    /// Its dimensions in ggml's order, filled up with 1.
    pub dimensions: [i64; 4],
    /// llama.cpp's name of its type, such as `q4_K`.
    pub type_name: String,
    /// Whether its type is F32, F16, BF16 or Q8_0, which llama.cpp multiplies in any shape.
    pub is_plain: bool,
    /// Bytes of its weights.
    pub bytes: u64,
    /// Offset of its weights from the start of all weights.
    pub offset: u64,
}

/// The tensors of a file, in its order.
pub fn tensors(path: &Path) -> Result<Vec<TensorInfo>, GgufError> {
    read_header(path, |header| {
        header.metadata(|_| false)?;
        header.tensors()
    })
}

/// The weights of a tensor of F32 or F16.
pub fn weights(path: &Path, name: &str) -> Result<Vec<f32>, GgufError> {
    let found = read_header(path, |header| {
        let (start, tensors) = header.data()?;
        let mut tensors = tensors.into_iter();
        Ok(tensors
            .find(|tensor| tensor.name == name)
            .map(|tensor| (start, tensor)))
    })?;
    let read = || {
        let Some((start, tensor)) = found else {
            return Err(format!("it has no tensor {name:?}"));
        };
        let mut bytes = vec![0; usize::try_from(tensor.bytes).unwrap_or(0)];
        File::open(path)
            .and_then(|mut file| {
                file.seek(SeekFrom::Start(start.saturating_add(tensor.offset)))?;
                file.read_exact(&mut bytes)
            })
            .map_err(|error| error.to_string())?;
        match tensor.type_name.as_str() {
            "f32" => Ok(numbers(&bytes, f32::from_le_bytes)),
            // SAFETY: converts a number, and reads nothing else.
            "f16" => Ok(numbers(&bytes, |two| unsafe {
                sys::ggml_fp16_to_fp32(u16::from_le_bytes(two))
            })),
            other => Err(format!("the type {other} of {name:?} can't be read")),
        }
    };
    read().map_err(|cause| GgufError::Read {
        path: path.to_owned(),
        cause,
    })
}

fn numbers<const N: usize>(bytes: &[u8], number: impl Fn([u8; N]) -> f32) -> Vec<f32> {
    bytes
        .as_chunks()
        .0
        .iter()
        .map(|bytes| number(*bytes))
        .collect()
}

/// Offset of the end of the last tensor: a complete file has at least this many bytes.
pub(crate) fn data_end(path: &Path) -> Result<u64, GgufError> {
    read_header(path, Header::data_end)
}

fn read_header<T>(
    path: &Path,
    read: impl FnOnce(&mut Header<BufReader<File>>) -> Result<T, HeaderError>,
) -> Result<T, GgufError> {
    let open = || {
        let file = File::open(path)?;
        let length = file.metadata()?.len();
        Ok((BufReader::new(file), length))
    };
    open()
        .map_err(|error: std::io::Error| HeaderError::Invalid(error.to_string()))
        .and_then(|(file, length)| read(&mut Header::begin(file, length)?))
        .map_err(|error| match error {
            HeaderError::Invalid(cause) => GgufError::Read {
                path: path.to_owned(),
                cause,
            },
            HeaderError::TooLarge => GgufError::HeaderTooLarge {
                path: path.to_owned(),
                limit: MAX_HEADER,
            },
        })
}

/// Why a header was not read.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum HeaderError {
    /// It is damaged, or the file can't be read.
    Invalid(String),
    /// It may be sound, but has more than [`MAX_HEADER`] bytes.
    TooLarge,
}

impl From<String> for HeaderError {
    fn from(cause: String) -> Self {
        Self::Invalid(cause)
    }
}

impl From<std::io::Error> for HeaderError {
    fn from(error: std::io::Error) -> Self {
        Self::Invalid(error.to_string())
    }
}

/// A header that is read from its beginning to its end: first [`Header::metadata`], then [`Header::tensors`].
pub(super) struct Header<R> {
    file: R,
    /// Bytes read.
    offset: u64,
    /// Bytes of the file.
    length: u64,
    keys: u64,
    tensors: u64,
}

impl<R: Read + Seek> Header<R> {
    /// Reads the version and the counts. `length` is the size of the file.
    pub(super) fn begin(file: R, length: u64) -> Result<Self, HeaderError> {
        let mut header = Header {
            file,
            offset: 0,
            length,
            keys: 0,
            tensors: 0,
        };
        if &header.array()? != b"GGUF" {
            return Err("it does not begin with the letters GGUF".to_owned().into());
        }
        let version = header.u32()?;
        if !VERSIONS.contains(&version) {
            let [older, newer] = VERSIONS;
            let cause = format!(
                "its version is {version}; expected {older} or {newer}, in little-endian order"
            );
            return Err(cause.into());
        }
        header.tensors = header.u64()?;
        header.keys = header.u64()?;
        Ok(header)
    }

    /// The metadata whose keys are `wanted`.
    pub(super) fn metadata(
        &mut self,
        wanted: impl Fn(&str) -> bool,
    ) -> Result<Vec<(String, Value)>, HeaderError> {
        let mut found = Vec::new();
        for _ in 0..self.keys {
            let key = self.text()?;
            let kind = self.u32()?;
            if wanted(&key) {
                let value = self.value(kind)?;
                let value =
                    value.ok_or_else(|| format!("the value of {key:?} has an unknown type"))?;
                found.push((key, value));
            } else {
                self.skip_value(kind)?;
            }
        }
        Ok(found)
    }

    /// The list of tensors.
    pub(super) fn tensors(&mut self) -> Result<Vec<TensorInfo>, HeaderError> {
        let mut found = Vec::new();
        for _ in 0..self.tensors {
            found.push(self.tensor()?);
        }
        Ok(found)
    }

    /// Reads the whole header and returns the end of the last tensor.
    pub(super) fn data_end(&mut self) -> Result<u64, HeaderError> {
        let (data, tensors) = self.data()?;
        let ends = tensors
            .iter()
            .map(|tensor| tensor.offset.saturating_add(tensor.bytes));
        Ok(data.saturating_add(ends.max().unwrap_or(0)))
    }

    /// Reads the whole header and returns the start of the weights, and the tensors.
    fn data(&mut self) -> Result<(u64, Vec<TensorInfo>), HeaderError> {
        let alignment = match self.metadata(|key| key == ALIGNMENT)?.pop() {
            None => DEFAULT_ALIGNMENT,
            Some((_, Value::U32(alignment))) if alignment.is_power_of_two() => alignment,
            Some(_) => return Err("its alignment is no power of two".to_owned().into()),
        };
        let tensors = self.tensors()?;
        Ok((self.offset.next_multiple_of(alignment.into()), tensors))
    }

    fn tensor(&mut self) -> Result<TensorInfo, HeaderError> {
        const PLAIN: [sys::ggml_type; 4] = [
            sys::GGML_TYPE_F32,
            sys::GGML_TYPE_F16,
            sys::GGML_TYPE_BF16,
            sys::GGML_TYPE_Q8_0,
        ];
        let name = self.text()?;
        let count = self.u32()?;
        let mut dimensions = [1; 4];
        let used = usize::try_from(count).ok();
        let used = used.and_then(|count| dimensions.get_mut(..count));
        for dimension in
            used.ok_or_else(|| format!("the tensor {name:?} has {count} dimensions"))?
        {
            *dimension = i64::from_le_bytes(self.array()?);
        }
        let kind = self.u32()?;
        let bytes = tensor_bytes(kind, dimensions);
        let bytes = bytes.ok_or_else(|| {
            format!(
                "the tensor {name:?} cannot have the type {kind} and the dimensions {dimensions:?}"
            )
        })?;
        Ok(TensorInfo {
            name,
            dimensions,
            // SAFETY: a type with a size, as `tensor_bytes` found, is in ggml's table and has a name, which is never freed.
            type_name: unsafe { text(sys::ggml_type_name(kind)) },
            is_plain: PLAIN.contains(&kind),
            bytes,
            offset: self.u64()?,
        })
    }

    /// A value. `None` for types that [`Value`] lacks.
    fn value(&mut self, kind: sys::gguf_type) -> Result<Option<Value>, HeaderError> {
        Ok(Some(match kind {
            sys::GGUF_TYPE_UINT32 => Value::U32(self.u32()?),
            sys::GGUF_TYPE_INT32 => Value::I32(i32::from_le_bytes(self.array()?)),
            sys::GGUF_TYPE_UINT64 => Value::U64(self.u64()?),
            sys::GGUF_TYPE_INT64 => Value::I64(i64::from_le_bytes(self.array()?)),
            sys::GGUF_TYPE_FLOAT32 => Value::F32(f32::from_le_bytes(self.array()?)),
            sys::GGUF_TYPE_FLOAT64 => Value::F64(f64::from_le_bytes(self.array()?)),
            sys::GGUF_TYPE_BOOL => Value::Bool(self.array::<1>()? != [0]),
            sys::GGUF_TYPE_STRING => Value::Text(self.text()?),
            sys::GGUF_TYPE_ARRAY => {
                let (kind, count) = (self.u32()?, self.u64()?);
                match kind {
                    sys::GGUF_TYPE_UINT32 => Value::U32s(self.numbers(count, u32::from_le_bytes)?),
                    sys::GGUF_TYPE_INT32 => Value::I32s(self.numbers(count, i32::from_le_bytes)?),
                    sys::GGUF_TYPE_FLOAT32 => Value::F32s(self.numbers(count, f32::from_le_bytes)?),
                    sys::GGUF_TYPE_BOOL => {
                        Value::Bools(self.numbers(count, |byte: [u8; 1]| byte != [0])?)
                    }
                    sys::GGUF_TYPE_STRING => {
                        let mut texts = Vec::new();
                        for _ in 0..count {
                            texts.push(self.text()?);
                        }
                        Value::Texts(texts)
                    }
                    _ => return Ok(None),
                }
            }
            _ => return Ok(None),
        }))
    }

    fn skip_value(&mut self, kind: sys::gguf_type) -> Result<(), HeaderError> {
        let (kind, count) = match kind {
            sys::GGUF_TYPE_ARRAY => (self.u32()?, self.u64()?),
            kind => (kind, 1),
        };
        if kind == sys::GGUF_TYPE_STRING {
            for _ in 0..count {
                let length = self.u64()?;
                self.skip(length)?;
            }
            return Ok(());
        }
        let size = number_bytes(kind);
        let size = size.ok_or_else(|| format!("it has a value of the unknown type {kind}"))?;
        self.skip(count.saturating_mul(size))
    }

    /// Counts bytes that are read next.
    fn advance(&mut self, bytes: u64) -> Result<(), HeaderError> {
        let end = self.offset.saturating_add(bytes);
        if end > self.length {
            let left = self.length - self.offset;
            let cause = format!(
                "its header needs {bytes} bytes at offset {}, where {left} are left",
                self.offset
            );
            return Err(cause.into());
        }
        if end > MAX_HEADER {
            return Err(HeaderError::TooLarge);
        }
        self.offset = end;
        Ok(())
    }

    fn skip(&mut self, bytes: u64) -> Result<(), HeaderError> {
        self.advance(bytes)?;
        // At most `MAX_HEADER`.
        let bytes = i64::try_from(bytes).unwrap_or(i64::MAX);
        Ok(self.file.seek_relative(bytes)?)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], HeaderError> {
        self.advance(N as u64)?;
        let mut bytes = [0; N];
        self.file.read_exact(&mut bytes)?;
        Ok(bytes)
    }

    fn u32(&mut self) -> Result<u32, HeaderError> {
        self.array().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Result<u64, HeaderError> {
        self.array().map(u64::from_le_bytes)
    }

    fn bytes(&mut self, count: u64) -> Result<Vec<u8>, HeaderError> {
        self.advance(count)?;
        // At most `MAX_HEADER`.
        let count = usize::try_from(count).map_err(|error| error.to_string())?;
        let mut bytes = vec![0; count];
        self.file.read_exact(&mut bytes)?;
        Ok(bytes)
    }

    fn numbers<const N: usize, T>(
        &mut self,
        count: u64,
        from: fn([u8; N]) -> T,
    ) -> Result<Vec<T>, HeaderError> {
        let bytes = self.bytes(count.saturating_mul(N as u64))?;
        let (numbers, _) = bytes.as_chunks();
        Ok(numbers.iter().copied().map(from).collect())
    }

    /// A string up to its first zero byte, as llama.cpp reads it; bytes that are not UTF-8 are replaced.
    fn text(&mut self) -> Result<String, HeaderError> {
        let length = self.u64()?;
        let bytes = self.bytes(length)?;
        let text = bytes.split(|byte| *byte == 0).next().unwrap_or_default();
        Ok(String::from_utf8_lossy(text).into_owned())
    }
}

/// Bytes of a number or truth value; `None` for other types.
fn number_bytes(kind: sys::gguf_type) -> Option<u64> {
    match kind {
        sys::GGUF_TYPE_UINT8 | sys::GGUF_TYPE_INT8 | sys::GGUF_TYPE_BOOL => Some(1),
        sys::GGUF_TYPE_UINT16 | sys::GGUF_TYPE_INT16 => Some(2),
        sys::GGUF_TYPE_UINT32 | sys::GGUF_TYPE_INT32 | sys::GGUF_TYPE_FLOAT32 => Some(4),
        sys::GGUF_TYPE_UINT64 | sys::GGUF_TYPE_INT64 | sys::GGUF_TYPE_FLOAT64 => Some(8),
        _ => None,
    }
}

/// Bytes of a tensor's weights. `None` if ggml lacks the type, rows do not fill its blocks, or the number is too large.
fn tensor_bytes(kind: sys::ggml_type, dimensions: [i64; 4]) -> Option<u64> {
    if kind >= sys::GGML_TYPE_COUNT {
        return None;
    }
    // SAFETY: both look up constants of a type that is within ggml's table.
    let (block, size) = unsafe { (sys::ggml_blck_size(kind), sys::ggml_type_size(kind)) };
    let [row, rows @ ..] = dimensions.map(|dimension| u64::try_from(dimension).ok());
    let (row, block) = (row?, u64::try_from(block).ok()?);
    if block == 0 || !row.is_multiple_of(block) {
        return None;
    }
    let row = (row / block).checked_mul(size as u64)?;
    rows.into_iter()
        .try_fold(row, |bytes, count| bytes.checked_mul(count?))
}
