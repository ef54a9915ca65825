//! The vision and audio encoders of a model: turn a picture or a recording into embeddings that the model computes in place of
//! tokens.
//!
//! It uses llama.cpp's `mtmd`, without its decoders of files: a picture arrives as pixels, a recording as samples. It refuses
//! models that need more for an image than consecutive positions: models with two-dimensional positions (M-RoPE), and models
//! in which the positions of an image attend to each other (attention that is not causal), because such an image cannot be
//! computed in parts.

use crate::{LlamaError, Model, Token, backends, gguf, log};
use llama_cpp_sys_2 as sys;
use std::ffi::CString;
use std::ops::RangeInclusive;
use std::path::Path;
use std::ptr::NonNull;
use std::sync::Arc;

/// Positions of an image that llama.cpp encodes at once, where a picture is cut into tiles.
const BATCH_TOKENS: i32 = 1024;

/// Sample rates that an encoder may ask for, in Hz. Known ones ask for 16,000 or 24,000.
const SAMPLE_RATES: RangeInclusive<u32> = 8_000..=48_000;

/// Samples of a recording: llama.cpp counts them and its padding in an `int`.
const MAX_SAMPLES: usize = 1 << 30;

/// A part of an image or a recording in a sequence.
#[derive(Clone, Debug, PartialEq)]
pub enum ImagePart {
    /// Tokens that mark it.
    Tokens(Vec<Token>),
    /// Embeddings, one after another.
    Embeddings(Vec<f32>),
}

/// A vision encoder, an audio encoder or both, and the projector to their model. Belongs to one thread; it may be moved there
/// after it was made.
pub struct MediaEncoder {
    // Dropped before the model.
    context: ContextPointer,
    length: usize,
    accepts_images: bool,
    sample_rate: Option<u32>,
    repeats_windows: bool,
    _model: Arc<Model>,
}

struct ContextPointer(NonNull<sys::mtmd_context>);

// SAFETY: any one thread at a time may use it; `MediaEncoder` is not Sync and encodes with `&mut self`.
unsafe impl Send for ContextPointer {}

impl Drop for ContextPointer {
    fn drop(&mut self) {
        // SAFETY: made by `mtmd_init_from_file` and freed once.
        unsafe { sys::mtmd_free(self.0.as_ptr()) };
    }
}

/// Frees a picture or a recording when dropped.
struct Bitmap(NonNull<sys::mtmd_bitmap>);

impl Bitmap {
    /// Takes what `mtmd_bitmap_init` or `mtmd_bitmap_init_from_audio` returned.
    fn own(bitmap: *mut sys::mtmd_bitmap) -> Result<Self, String> {
        let bitmap = NonNull::new(bitmap).ok_or("there is no memory for its contents")?;
        Ok(Self(bitmap))
    }
}

impl Drop for Bitmap {
    fn drop(&mut self) {
        // SAFETY: made by llama.cpp and freed once.
        unsafe { sys::mtmd_bitmap_free(self.0.as_ptr()) };
    }
}

/// Frees the parts of an image or a recording when dropped.
struct Chunks(NonNull<sys::mtmd_input_chunks>);

impl Drop for Chunks {
    fn drop(&mut self) {
        // SAFETY: made by `mtmd_input_chunks_init` and freed once.
        unsafe { sys::mtmd_input_chunks_free(self.0.as_ptr()) };
    }
}

impl MediaEncoder {
    /// Loads the projector file of a model (`mmproj`). It computes on the CPU.
    pub fn load(path: &Path, model: Arc<Model>, threads: u32) -> Result<Self, LlamaError> {
        let failed = |cause: String| LlamaError::Projector {
            path: path.to_owned(),
            cause,
        };
        match gguf::has_magic(path) {
            Ok(true) => {}
            Ok(false) => {
                return Err(failed(
                    "it is not GGUF: it does not begin with these letters; give the model's mmproj file".into(),
                ));
            }
            Err(cause) => {
                return Err(failed(format!(
                    "it cannot be read: {cause}; give the path of a GGUF file"
                )));
            }
        }
        let complete = gguf::data_end(path).map_err(|error| failed(error.to_string()))?;
        let length = std::fs::metadata(path).map_or(0, |metadata| metadata.len());
        if length < complete {
            return Err(failed(format!(
                "it has {length} of {complete} bytes; fetch or copy it again"
            )));
        }
        backends::start()?;
        let file = path.to_str().and_then(|text| CString::new(text).ok());
        let file = file.ok_or_else(|| {
            failed("its path is not valid UTF-8, which llama.cpp needs; rename it".into())
        })?;
        // SAFETY: no arguments, a plain struct out.
        let mut params = unsafe { sys::mtmd_context_params_default() };
        params.use_gpu = false;
        params.print_timings = false;
        params.n_threads = i32::try_from(threads).unwrap_or(1).max(1);
        params.batch_max_tokens = BATCH_TOKENS;
        log::take_first_error();
        // SAFETY: `file` is NUL-terminated and outlives the call; the model is alive and outlives the context (`_model`); the
        // marker in `params` is a constant of llama.cpp, and its other pointers are null.
        let context = unsafe { sys::mtmd_init_from_file(file.as_ptr(), model.as_ptr(), params) };
        let context = NonNull::new(context).ok_or_else(|| {
            let cause = log::take_first_error().unwrap_or_else(|| "llama.cpp refused it".into());
            failed(format!(
                "{cause}; give the mmproj file that belongs to the model"
            ))
        })?;
        let context = ContextPointer(context);
        // SAFETY: the model is alive.
        let length = unsafe { sys::llama_model_n_embd_inp(model.as_ptr()) };
        // SAFETY: the context is alive; a null chunk asks about images.
        let (accepts_images, accepts_audio, sample_rate, is_mrope, non_causal) = unsafe {
            let context = context.0.as_ptr();
            (
                sys::mtmd_support_vision(context),
                sys::mtmd_support_audio(context),
                sys::mtmd_get_audio_sample_rate(context),
                sys::mtmd_decode_use_mrope(context),
                sys::mtmd_decode_use_non_causal(context, std::ptr::null()),
            )
        };
        if !accepts_images && !accepts_audio {
            return Err(failed(
                "it has no encoder of images or audio; give the mmproj file of a vision or audio model".into(),
            ));
        }
        if is_mrope || non_causal {
            let what = match is_mrope {
                true => "the model has two-dimensional positions (M-RoPE, as Qwen-VL)",
                false => "positions of an image see each other (as in Gemma 3)",
            };
            return Err(failed(format!(
                "{what}, which is not supported; use a model such as LLaVA, SmolVLM, InternVL, Pixtral, Ultravox or Voxtral"
            )));
        }
        let rate = u32::try_from(sample_rate).ok();
        let rate = rate.filter(|rate| SAMPLE_RATES.contains(rate));
        if accepts_audio && rate.is_none() {
            return Err(failed(format!(
                "its audio encoder needs {sample_rate} samples per second; expected {} to {}",
                SAMPLE_RATES.start(),
                SAMPLE_RATES.end()
            )));
        }
        Ok(Self {
            context,
            length: usize::try_from(length).unwrap_or(0).max(1),
            accepts_images,
            sample_rate: rate.filter(|_| accepts_audio),
            repeats_windows: false,
            _model: model,
        })
    }

    /// Encodes one of the windows of a recording that have as many positions, and repeats its embeddings for the others. For a
    /// check, which asks only whether llama.cpp computes them.
    pub fn repeat_windows(&mut self) {
        self.repeats_windows = true;
    }

    /// Encodes a picture of `width` by `height` pixels, three bytes each. Asks before each part of it whether it is canceled.
    ///
    /// # Errors
    /// A text if the picture has another number of bytes, there is no vision encoder, it is canceled, or llama.cpp fails.
    pub fn encode_picture(
        &mut self,
        (width, height): (u32, u32),
        pixels: &[u8],
        is_canceled: &dyn Fn() -> bool,
    ) -> Result<Vec<ImagePart>, String> {
        let bytes = u64::from(width) * u64::from(height) * 3;
        if pixels.is_empty() || bytes != pixels.len() as u64 {
            return Err(format!(
                "a picture of {width} by {height} pixels has {bytes} bytes, not {}",
                pixels.len()
            ));
        }
        // SAFETY: llama.cpp copies as many bytes as were checked above.
        let bitmap = unsafe { sys::mtmd_bitmap_init(width, height, pixels.as_ptr()) };
        self.encode(&Bitmap::own(bitmap)?, is_canceled)
    }

    /// Encodes a recording of one channel at the [sample rate](Self::sample_rate), with samples from -1 to 1. Asks before each
    /// window of it whether it is canceled.
    ///
    /// # Errors
    /// A text if it has no samples or too many, there is no audio encoder, it is canceled, or llama.cpp fails.
    pub fn encode_audio(
        &mut self,
        samples: &[f32],
        is_canceled: &dyn Fn() -> bool,
    ) -> Result<Vec<ImagePart>, String> {
        if !(1..=MAX_SAMPLES).contains(&samples.len()) {
            return Err(format!(
                "a recording has 1 to {MAX_SAMPLES} samples, not {}",
                samples.len()
            ));
        }
        // SAFETY: llama.cpp copies as many samples as it is told.
        let bitmap = unsafe { sys::mtmd_bitmap_init_from_audio(samples.len(), samples.as_ptr()) };
        self.encode(&Bitmap::own(bitmap)?, is_canceled)
    }

    fn encode(
        &mut self,
        bitmap: &Bitmap,
        is_canceled: &dyn Fn() -> bool,
    ) -> Result<Vec<ImagePart>, String> {
        // SAFETY: no arguments.
        let chunks = unsafe { sys::mtmd_input_chunks_init() };
        let chunks = Chunks(NonNull::new(chunks).ok_or("there is no memory for its parts")?);
        let part = sys::mtmd_input_part {
            text: std::ptr::null(),
            bitmap: bitmap.0.as_ptr(),
        };
        let parts = [&raw const part];
        log::take_first_error();
        // SAFETY: context, chunks and bitmap are alive; llama.cpp reads one part, and throws nothing.
        let code = unsafe {
            sys::mtmd_tokenize_from_parts(
                self.context.0.as_ptr(),
                chunks.0.as_ptr(),
                parts.as_ptr(),
                parts.len(),
                false,
            )
        };
        check(code)?;
        // SAFETY: the chunks are alive.
        let count = unsafe { sys::mtmd_input_chunks_size(chunks.0.as_ptr()) };
        let mut parts = Vec::with_capacity(count);
        for index in 0..count {
            // SAFETY: the chunks are alive and the index below their number; the chunk lives as long.
            let chunk = unsafe { sys::mtmd_input_chunks_get(chunks.0.as_ptr(), index) };
            let chunk = NonNull::new(chunk.cast_mut()).ok_or("a part is missing")?;
            // SAFETY: the chunk is alive.
            let kind = unsafe { sys::mtmd_input_chunk_get_type(chunk.as_ptr()) };
            let repeated = (self.repeats_windows && kind == sys::MTMD_INPUT_CHUNK_TYPE_AUDIO)
                .then(|| self.repeated(chunk, &parts))
                .flatten();
            parts.push(match (kind, repeated) {
                (sys::MTMD_INPUT_CHUNK_TYPE_TEXT, _) => Self::marking_tokens(chunk)?,
                (_, Some(part)) => part,
                _ if is_canceled() => return Err("it was canceled".into()),
                _ => self.embeddings(chunk)?,
            });
        }
        Ok(parts)
    }

    /// The embeddings of an earlier window with as many positions.
    fn repeated(
        &self,
        chunk: NonNull<sys::mtmd_input_chunk>,
        parts: &[ImagePart],
    ) -> Option<ImagePart> {
        // SAFETY: the chunk is alive.
        let tokens = unsafe { sys::mtmd_input_chunk_get_n_tokens(chunk.as_ptr()) };
        let is_same = |part: &&ImagePart| match part {
            ImagePart::Tokens(_) => false,
            ImagePart::Embeddings(numbers) => numbers.len() == tokens * self.length,
        };
        parts.iter().find(is_same).cloned()
    }

    fn marking_tokens(chunk: NonNull<sys::mtmd_input_chunk>) -> Result<ImagePart, String> {
        let mut count = 0;
        // SAFETY: the chunk is alive, and llama.cpp writes the number of tokens.
        let tokens =
            unsafe { sys::mtmd_input_chunk_get_tokens_text(chunk.as_ptr(), &raw mut count) };
        let mut list = Vec::with_capacity(count);
        for index in 0..count {
            // SAFETY: a pointer that is not null points to `count` tokens, which live as long as the chunk.
            let token = (!tokens.is_null()).then(|| unsafe { *tokens.add(index) });
            let token = token.and_then(|token| Token::try_from(token).ok());
            list.push(token.ok_or("the model lacks a token that marks images or audio")?);
        }
        Ok(ImagePart::Tokens(list))
    }

    fn embeddings(&mut self, chunk: NonNull<sys::mtmd_input_chunk>) -> Result<ImagePart, String> {
        let context = self.context.0.as_ptr();
        // SAFETY: context and chunk are alive, and this call has the context alone (`&mut self`); llama.cpp throws nothing.
        let (tokens, code) = unsafe {
            (
                sys::mtmd_input_chunk_get_n_tokens(chunk.as_ptr()),
                sys::mtmd_encode_chunk(context, chunk.as_ptr()),
            )
        };
        check(code)?;
        // SAFETY: the context is alive. As mtmd.h says, the result has an embedding of the model's input length for each token,
        // and stays until the next chunk is encoded, which needs `&mut self`.
        let numbers = unsafe {
            let output = sys::mtmd_get_output_embd(context);
            (!output.is_null())
                .then(|| std::slice::from_raw_parts(output, tokens * self.length).to_vec())
        };
        let numbers = numbers.filter(|numbers| !numbers.is_empty());
        Ok(ImagePart::Embeddings(
            numbers.ok_or("llama.cpp returned no embeddings")?,
        ))
    }

    /// Numbers in an embedding.
    pub fn length(&self) -> usize {
        self.length
    }

    /// Whether it encodes pictures.
    pub fn accepts_images(&self) -> bool {
        self.accepts_images
    }

    /// Samples per second of recordings, if it encodes them.
    pub fn sample_rate(&self) -> Option<u32> {
        self.sample_rate
    }
}

fn check(code: i32) -> Result<(), String> {
    match code {
        0 => Ok(()),
        code => Err(log::take_first_error()
            .unwrap_or_else(|| format!("llama.cpp failed with the code {code}"))),
    }
}
