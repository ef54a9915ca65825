//! Reads the header of a GGUF file: metadata and tensors.

use super::{GgufContext, GgufError, Value};
use crate::log;
use llama_cpp_sys_2 as sys;
use std::ffi::{CStr, CString, c_char};
use std::path::Path;
use std::ptr::NonNull;

/// The metadata whose keys start with `prefix`, in the file's order.
pub fn metadata(path: &Path, prefix: &str) -> Result<Vec<(String, Value)>, GgufError> {
    metadata_where(path, |key| key.starts_with(prefix))
}

/// The metadata whose keys are `wanted`, in the file's order.
pub fn metadata_where(
    path: &Path,
    wanted: impl Fn(&str) -> bool,
) -> Result<Vec<(String, Value)>, GgufError> {
    let context = open(path)?;
    // SAFETY: the context is alive.
    let count = unsafe { sys::gguf_get_n_kv(context.0.as_ptr()) };
    let mut found = Vec::new();
    for id in 0..count {
        // SAFETY: `id` is below the number of keys; the key lives as long as the context.
        let key = unsafe { text(sys::gguf_get_key(context.0.as_ptr(), id)) };
        if wanted(&key) {
            let value = read_value(&context, id).ok_or_else(|| GgufError::Read {
                path: path.to_owned(),
                cause: format!("the value of {key} has an unknown type"),
            })?;
            found.push((key, value));
        }
    }
    Ok(found)
}

/// A tensor of a file.
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
}

/// The tensors of a file, in its order.
pub fn tensors(path: &Path) -> Result<Vec<TensorInfo>, GgufError> {
    const PLAIN: [sys::ggml_type; 4] = [
        sys::GGML_TYPE_F32,
        sys::GGML_TYPE_F16,
        sys::GGML_TYPE_BF16,
        sys::GGML_TYPE_Q8_0,
    ];
    let context = open(path)?;
    let gguf = context.0.as_ptr();
    // SAFETY: the context is alive.
    let count = unsafe { sys::gguf_get_n_tensors(gguf) };
    let info = |id| {
        // SAFETY: `id` is below the number of tensors; name and dimensions, always four, live as long as the context,
        // and names of types for ever. llama.cpp has refused files with unknown types.
        unsafe {
            TensorInfo {
                name: text(sys::gguf_get_tensor_name(gguf, id)),
                dimensions: *sys::gguf_get_tensor_ne(gguf, id).cast::<[i64; 4]>(),
                type_name: text(sys::ggml_type_name(sys::gguf_get_tensor_type(gguf, id))),
                is_plain: PLAIN.contains(&sys::gguf_get_tensor_type(gguf, id)),
                bytes: sys::gguf_get_tensor_size(gguf, id) as u64,
            }
        }
    };
    Ok((0..count).map(info).collect())
}

/// Offset of the end of the last tensor: a complete file has at least this many bytes.
pub(crate) fn data_end(path: &Path) -> Result<u64, GgufError> {
    let context = open(path)?;
    let gguf = context.0.as_ptr();
    // SAFETY: the context is alive.
    let (data, count) = unsafe {
        (
            sys::gguf_get_data_offset(gguf),
            sys::gguf_get_n_tensors(gguf),
        )
    };
    let end = |id| {
        // SAFETY: the context is alive and `id` below the number of tensors.
        unsafe { sys::gguf_get_tensor_offset(gguf, id) + sys::gguf_get_tensor_size(gguf, id) }
    };
    Ok((data + (0..count).map(end).max().unwrap_or(0)) as u64)
}

/// Reads the header of a file.
fn open(path: &Path) -> Result<GgufContext, GgufError> {
    log::forward();
    let unreadable = |cause: String| GgufError::Read {
        path: path.to_owned(),
        cause,
    };
    let file = path
        .to_str()
        .and_then(|text| CString::new(text).ok())
        .ok_or_else(|| unreadable("its path is not valid UTF-8".into()))?;
    log::take_first_error();
    let params = sys::gguf_init_params {
        no_alloc: true,
        ctx: std::ptr::null_mut(),
    };
    // SAFETY: `file` is NUL-terminated and outlives the call; without a `ctx` llama.cpp makes no tensor.
    let context = unsafe { sys::gguf_init_from_file(file.as_ptr(), params) };
    let context = NonNull::new(context).map(GgufContext);
    context.ok_or_else(|| {
        unreadable(log::take_first_error().unwrap_or_else(|| "llama.cpp refused it".into()))
    })
}

/// The value of key number `id`, which must be below the number of keys. `None` for types that [`Value`] lacks.
fn read_value(context: &GgufContext, id: i64) -> Option<Value> {
    let gguf = context.0.as_ptr();
    // SAFETY: the context is alive and the caller's `id` within it; each getter matches the type that llama.cpp reports
    // for the value.
    unsafe {
        Some(match sys::gguf_get_kv_type(gguf, id) {
            sys::GGUF_TYPE_UINT32 => Value::U32(sys::gguf_get_val_u32(gguf, id)),
            sys::GGUF_TYPE_INT32 => Value::I32(sys::gguf_get_val_i32(gguf, id)),
            sys::GGUF_TYPE_UINT64 => Value::U64(sys::gguf_get_val_u64(gguf, id)),
            sys::GGUF_TYPE_INT64 => Value::I64(sys::gguf_get_val_i64(gguf, id)),
            sys::GGUF_TYPE_FLOAT32 => Value::F32(sys::gguf_get_val_f32(gguf, id)),
            sys::GGUF_TYPE_FLOAT64 => Value::F64(sys::gguf_get_val_f64(gguf, id)),
            sys::GGUF_TYPE_BOOL => Value::Bool(sys::gguf_get_val_bool(gguf, id)),
            sys::GGUF_TYPE_STRING => Value::Text(text(sys::gguf_get_val_str(gguf, id))),
            sys::GGUF_TYPE_ARRAY => match sys::gguf_get_arr_type(gguf, id) {
                sys::GGUF_TYPE_UINT32 => Value::U32s(numbers(context, id)),
                sys::GGUF_TYPE_INT32 => Value::I32s(numbers(context, id)),
                sys::GGUF_TYPE_FLOAT32 => Value::F32s(numbers(context, id)),
                sys::GGUF_TYPE_BOOL => {
                    let bytes: Vec<u8> = numbers(context, id);
                    Value::Bools(bytes.into_iter().map(|byte| byte != 0).collect())
                }
                sys::GGUF_TYPE_STRING => Value::Texts(
                    (0..sys::gguf_get_arr_n(gguf, id))
                        .map(|index| text(sys::gguf_get_arr_str(gguf, id, index)))
                        .collect(),
                ),
                _ => return None,
            },
            _ => return None,
        })
    }
}

/// The elements of an array.
///
/// # Safety
/// `id` is an array of the context whose elements are plain numbers of type `T`.
unsafe fn numbers<T: Copy>(context: &GgufContext, id: i64) -> Vec<T> {
    // SAFETY: the caller's.
    let (data, count) = unsafe {
        (
            sys::gguf_get_arr_data(context.0.as_ptr(), id).cast::<T>(),
            sys::gguf_get_arr_n(context.0.as_ptr(), id),
        )
    };
    (0..count)
        // SAFETY: the array holds `count` elements of `T`, perhaps unaligned.
        .map(|index| unsafe { data.add(index).read_unaligned() })
        .collect()
}

/// A string of llama.cpp; bytes that are not UTF-8 are replaced.
///
/// # Safety
/// `string` is NUL-terminated and alive.
unsafe fn text(string: *const c_char) -> String {
    // SAFETY: the caller's.
    unsafe { CStr::from_ptr(string) }
        .to_string_lossy()
        .into_owned()
}
