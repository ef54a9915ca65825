//! llama.cpp's own quantiser: from a file of F16 weights to one that takes fewer bits.

use super::gguf::{self, GgufError};
use super::log::{self, Watch};
use super::registry;
use llama_cpp_sys_2 as sys;
use std::ffi::CString;
use std::path::Path;

/// Bytes of rows that are in memory at once; by default llama.cpp takes up to 8 GiB.
const BUFFER: usize = 256 << 20;

/// What a file's weights are made to, named as in llama.cpp's tools. Norms stay F32.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "named as everywhere else")]
pub enum Quant {
    F16,
    Q8_0,
    Q6K,
    Q5Km,
    Q4Km,
    Q4_0,
}

impl Quant {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::F16 => "f16",
            Self::Q8_0 => "q8_0",
            Self::Q6K => "q6_k",
            Self::Q5Km => "q5_k_m",
            Self::Q4Km => "q4_k_m",
            Self::Q4_0 => "q4_0",
        }
    }

    /// Bits that a weight takes at most, on average over a model. Where llama.cpp falls back to
    /// other types, since rows don't fill blocks, it may be more.
    pub(crate) fn bits(self) -> u64 {
        match self {
            Self::F16 => 16,
            Self::Q8_0 => 9,
            Self::Q6K => 7,
            // The embedding takes 6.6.
            Self::Q5Km | Self::Q4Km | Self::Q4_0 => 6,
        }
    }

    fn ftype(self) -> sys::llama_ftype {
        match self {
            Self::F16 => sys::LLAMA_FTYPE_MOSTLY_F16,
            Self::Q8_0 => sys::LLAMA_FTYPE_MOSTLY_Q8_0,
            Self::Q6K => sys::LLAMA_FTYPE_MOSTLY_Q6_K,
            Self::Q5Km => sys::LLAMA_FTYPE_MOSTLY_Q5_K_M,
            Self::Q4Km => sys::LLAMA_FTYPE_MOSTLY_Q4_K_M,
            Self::Q4_0 => sys::LLAMA_FTYPE_MOSTLY_Q4_0,
        }
    }
}

/// Makes the file `to` of the weights in `from`, on as many threads as there are cores, and tells
/// `watch` how far it is. Blocks until it is done. After an error something may lie at `to`.
pub(crate) fn quantise(
    from: &Path,
    to: &Path,
    quant: Quant,
    watch: Watch,
) -> Result<(), GgufError> {
    let failed = |cause: String| GgufError::Quantise {
        path: to.to_owned(),
        cause,
    };
    registry::start().map_err(|error| failed(error.to_string()))?;
    let named = |path: &Path| {
        path.to_str()
            .and_then(|text| CString::new(text).ok())
            .ok_or_else(|| failed("its path is not valid UTF-8, which llama.cpp needs".into()))
    };
    let (source, target) = (named(from)?, named(to)?);
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    // SAFETY: no arguments, a plain struct out.
    let mut params = unsafe { sys::llama_model_quantize_default_params() };
    params.nthread = i32::try_from(cores).unwrap_or(1);
    params.ftype = quant.ftype();
    params.max_buf_size = BUFFER;
    log::take_last_error();
    let watching = log::watch(watch);
    // SAFETY: both paths are NUL-terminated and, as `params`, outlive the call; all pointers of
    // `params` are null.
    let code = unsafe { sys::llama_model_quantize(source.as_ptr(), target.as_ptr(), &params) };
    drop(watching);
    if code != 0 {
        let cause = log::take_last_error();
        return Err(failed(
            cause.unwrap_or_else(|| "llama.cpp gave no reason".into()),
        ));
    }
    // llama.cpp doesn't notice each write that fails.
    let length = to.metadata().map_or(0, |about| about.len());
    match gguf::size(to) {
        Ok(size) if size <= length => Ok(()),
        _ => Err(failed(format!(
            "{length} bytes were written, and that is not all; is there room left?"
        ))),
    }
}
