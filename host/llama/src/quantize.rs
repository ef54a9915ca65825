//! llama.cpp's quantizer: converts a file of F16 weights to one of fewer bits.

use crate::gguf::{self, GgufError};
use crate::{backends, log};
use llama_cpp_sys_2 as sys;
use std::ffi::CString;
use std::path::Path;

/// Bytes of rows in memory at once; llama.cpp's default is 8 GiB.
const BUFFER_BYTES: usize = 256 << 20;

/// The type of a quantized file, named as in llama.cpp's tools. Norms stay F32.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "llama.cpp's names")]
pub enum Quant {
    F16,
    Q4Km,
}

impl Quant {
    /// Its name in llama.cpp's tools.
    pub fn name(self) -> &'static str {
        match self {
            Self::F16 => "f16",
            Self::Q4Km => "q4_k_m",
        }
    }

    fn ftype(self) -> sys::llama_ftype {
        match self {
            Self::F16 => sys::LLAMA_FTYPE_MOSTLY_F16,
            Self::Q4Km => sys::LLAMA_FTYPE_MOSTLY_Q4_K_M,
        }
    }
}

/// Quantizes the weights of `from` into the file `to`, on as many threads as there are cores. Blocks
/// until it is done. After an error a part of `to` may be left.
pub fn quantize(from: &Path, to: &Path, quant: Quant) -> Result<(), GgufError> {
    let failed = |cause: String| GgufError::Quantize {
        path: to.to_owned(),
        cause,
    };
    backends::start().map_err(|error| failed(error.to_string()))?;
    let c_path = |path: &Path| {
        path.to_str()
            .and_then(|text| CString::new(text).ok())
            .ok_or_else(|| failed("its path is not valid UTF-8, which llama.cpp needs".into()))
    };
    let (source, target) = (c_path(from)?, c_path(to)?);
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    // SAFETY: no arguments, a plain struct out.
    let mut params = unsafe { sys::llama_model_quantize_default_params() };
    params.nthread = i32::try_from(cores).unwrap_or(1);
    params.ftype = quant.ftype();
    params.max_buf_size = BUFFER_BYTES;
    log::take_first_error();
    // SAFETY: both paths are NUL-terminated and, like `params`, outlive the call; all pointers of `params` are null.
    let code = unsafe { sys::llama_model_quantize(source.as_ptr(), target.as_ptr(), &params) };
    if code != 0 {
        let cause = log::take_first_error();
        return Err(failed(
            cause.unwrap_or_else(|| "llama.cpp gave no reason".into()),
        ));
    }
    // llama.cpp ignores some failed writes.
    let length = to.metadata().map_or(0, |metadata| metadata.len());
    match gguf::data_end(to) {
        Ok(end) if end <= length => Ok(()),
        _ => Err(failed(format!(
            "only {length} bytes were written; check that the disk has room"
        ))),
    }
}
