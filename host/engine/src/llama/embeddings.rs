//! A llama.cpp context that gives a vector for each token, or a reranker's scores.
//!
//! With pooling off llama.cpp hands out what the last norm gives for every token, and so it does
//! for models that read whole inputs without remembering them (`llama_decode` then encodes).
//! llama.cpp wants every token to be an output, and where there is an output matrix it computes and
//! keeps the logits too, for each token the whole vocabulary: that is why steps are short.

use super::handle::{ContextSettings, Handle};
use super::model::Model;
use crate::backend::{DecodeError, Input};
use crate::embedding::{Embeds, Pooling};
use crate::error::LoadError;
use corral_scheduler::SeqId;
use llama_cpp_sys_2 as sys;
use std::ffi::{CString, c_char};
use std::sync::Arc;

/// What a model file says about embeddings.
#[derive(Clone, Copy, Debug)]
pub struct EmbeddingTraits {
    /// The pooling that the model was trained for.
    pub pooling: Option<Pooling>,
    /// Whether tokens see only those before them. Only for models with a memory: those without see
    /// everything.
    pub causal: bool,
    /// Numbers in a vector.
    pub width: u32,
    /// Number of scores, where the pooling is [`Pooling::Rank`].
    pub scores: u32,
}

impl Model {
    /// What the file says about embeddings.
    pub fn embedding_traits(&self) -> EmbeddingTraits {
        let architecture = self.metadata("general.architecture").unwrap_or_default();
        let of = |key: &str| self.metadata(&format!("{architecture}.{key}"));
        let number = of("pooling_type").and_then(|text| text.parse().ok());
        // SAFETY: the model is alive.
        let (width, scores) = unsafe {
            (
                sys::llama_model_n_embd_out(self.as_ptr()),
                sys::llama_model_n_cls_out(self.as_ptr()),
            )
        };
        EmbeddingTraits {
            pooling: number.and_then(Pooling::from_gguf),
            causal: of("attention.causal").is_none_or(|causal| causal != "false"),
            width: u32::try_from(width).unwrap_or(0),
            scores,
        }
    }

    /// A value of the file's metadata, as text; of at most 63 bytes.
    fn metadata(&self, key: &str) -> Option<String> {
        let key = CString::new(key).ok()?;
        let mut buffer = [0_u8; 64];
        // SAFETY: the model is alive, the key NUL-terminated, and no more written than the buffer
        // holds.
        let length = unsafe {
            sys::llama_model_meta_val_str(
                self.as_ptr(),
                key.as_ptr(),
                buffer.as_mut_ptr().cast::<c_char>(),
                buffer.len(),
            )
        };
        // The answer is the length of the whole text, also where it did not fit.
        let text = buffer.get(..usize::try_from(length).ok()?)?;
        (text.len() < buffer.len()).then(|| String::from_utf8_lossy(text).into_owned())
    }
}

/// How an embedding context is made.
#[derive(Clone, Copy, Debug)]
pub struct EmbeddingSettings {
    /// Its sizes, with the compute threads for when nobody else computes.
    pub context: ContextSettings,
    /// Whether it gives scores in place of vectors.
    pub ranks: bool,
    /// Less exact, since llama.cpp then rounds keys, values and queries to 16 bits, but without it
    /// attention takes a step's tokens in numbers for each cell and head.
    pub flash_attention: bool,
}

/// A context for embeddings. Belongs to one thread.
pub struct EmbeddingContext {
    handle: Handle,
    ranks: bool,
    /// Numbers in a vector, and scores of a sequence.
    width: usize,
    scores: usize,
    /// Threads that the next step would use.
    threads: u32,
}

impl EmbeddingContext {
    /// Makes a context for `model`.
    pub fn new(model: Arc<Model>, settings: EmbeddingSettings) -> Result<Self, LoadError> {
        let traits = model.embedding_traits();
        let sizes = settings.context;
        let handle = Handle::new(model, sizes, |params| {
            if !settings.flash_attention {
                params.flash_attn_type = sys::LLAMA_FLASH_ATTN_TYPE_DISABLED;
            }
            params.embeddings = true;
            params.pooling_type = if settings.ranks {
                sys::LLAMA_POOLING_TYPE_RANK
            } else {
                sys::LLAMA_POOLING_TYPE_NONE
            };
        })?;
        let step_tokens = handle.step_tokens();
        if step_tokens < sizes.step_tokens {
            return Err(LoadError::Context {
                cells: sizes.cells,
                cause: format!("steps have {step_tokens} tokens at most"),
            });
        }
        tracing::debug!(cells = sizes.cells, "embedding context made");
        Ok(Self {
            threads: handle.threads(),
            handle,
            ranks: settings.ranks,
            width: traits.width as usize,
            scores: traits.scores as usize,
        })
    }
}

impl Embeds for EmbeddingContext {
    fn compute(&mut self, step: &[Input], busy: bool) -> Result<(), DecodeError> {
        let all = self.handle.threads();
        let threads = if busy { (all / 2).max(1) } else { all };
        if threads != self.threads {
            let count = i32::try_from(threads).unwrap_or(1);
            // SAFETY: the context is alive; no more threads than the pool has.
            unsafe { sys::llama_set_n_threads(self.handle.as_ptr(), count, count) };
            self.threads = threads;
        }
        self.handle.decode(step)
    }

    fn vector(&self, index: usize) -> Option<&[f32]> {
        let index = i32::try_from(index).ok()?;
        // SAFETY: the context is alive; the call answers null for an index without output, and
        // else one f32 for each place of a vector, until the next step.
        unsafe {
            let row = sys::llama_get_embeddings_ith(self.handle.as_ptr(), index);
            self.handle.numbers(row, self.width)
        }
    }

    fn scores(&self, seq: SeqId) -> Option<&[f32]> {
        if !self.ranks {
            return None;
        }
        let seq = self.handle.known(seq)?;
        // SAFETY: the context is alive; the call answers null for a sequence that was not in the
        // last step, and else, of a context that ranks, `n_cls_out` numbers, until the next step.
        unsafe {
            let row = sys::llama_get_embeddings_seq(self.handle.as_ptr(), seq);
            self.handle.numbers(row, self.scores)
        }
    }

    fn clear(&mut self, seq: SeqId) {
        self.handle.clear(seq);
    }
}
