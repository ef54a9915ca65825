//! A llama.cpp context that gives a vector for each token, or a reranker's scores.
//!
//! With pooling off llama.cpp hands out what the last norm gives for every token, and so it does
//! for models that read whole inputs without remembering them (`llama_decode` then encodes).
//! llama.cpp wants every token to be an output, and where there is an output matrix it computes and
//! keeps the logits too, for each token the whole vocabulary: that is why steps are short.

use super::batch::Batch;
use super::context::Context;
use super::log;
use super::model::Model;
use super::threads::ThreadPool;
use crate::backend::{DecodeError, Input};
use crate::embedding::{Embeds, Pooling};
use crate::error::LoadError;
use crate::scheduler::SeqId;
use llama_cpp_sys_2 as sys;
use std::ffi::{CString, c_char};
use std::ptr::NonNull;
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

/// Sizes of an embedding context.
#[derive(Clone, Copy, Debug)]
pub struct EmbeddingSettings {
    /// KV cells shared by all inputs; models without a memory have none.
    pub cells: u32,
    /// Most tokens in a step.
    pub step_tokens: u32,
    /// Number of sequence ids.
    pub seq_ids: u16,
    /// Compute threads when nobody else computes.
    pub threads: u32,
    /// Whether it gives scores in place of vectors.
    pub ranks: bool,
    /// Less exact, since llama.cpp then rounds keys, values and queries to 16 bits, but without it
    /// attention takes `step_tokens` numbers for each cell and head.
    pub flash_attention: bool,
}

/// A context for embeddings. Belongs to one thread.
pub struct EmbeddingContext {
    // Field order is drop order: the context goes before the pool and the model it uses.
    context: Context,
    batch: Batch,
    settings: EmbeddingSettings,
    vocabulary: usize,
    /// Numbers in a vector, and scores of a sequence.
    width: usize,
    scores: usize,
    /// Threads that the next step would use.
    threads: u32,
    _pool: ThreadPool,
    _model: Arc<Model>,
}

impl EmbeddingContext {
    /// Makes a context for `model`.
    pub fn new(model: Arc<Model>, settings: EmbeddingSettings) -> Result<Self, LoadError> {
        let failed = |cause: Option<String>| LoadError::Context {
            cells: settings.cells,
            cause: cause.unwrap_or_else(|| "llama.cpp gave no reason".into()),
        };
        let traits = model.embedding_traits();
        let threads = i32::try_from(settings.threads).unwrap_or(1).max(1);
        // SAFETY: no arguments, a plain struct out.
        let mut params = unsafe { sys::llama_context_default_params() };
        params.n_ctx = settings.cells;
        // Equal: models that see all of an input must have it in one piece.
        params.n_batch = settings.step_tokens;
        params.n_ubatch = settings.step_tokens;
        params.n_seq_max = u32::from(settings.seq_ids);
        params.n_threads = threads;
        params.n_threads_batch = threads;
        params.flash_attn_type = if settings.flash_attention {
            sys::LLAMA_FLASH_ATTN_TYPE_ENABLED
        } else {
            sys::LLAMA_FLASH_ATTN_TYPE_DISABLED
        };
        params.kv_unified = true;
        params.no_perf = true;
        params.embeddings = true;
        params.pooling_type = if settings.ranks {
            sys::LLAMA_POOLING_TYPE_RANK
        } else {
            sys::LLAMA_POOLING_TYPE_NONE
        };
        log::take_last_error();
        let pool = ThreadPool::new(settings.threads)
            .ok_or_else(|| failed(Some("compute threads could not be started".into())))?;
        // SAFETY: the model is alive and outlives the context (`_model`); `params` holds no
        // pointers but null ones.
        let context = unsafe { sys::llama_init_from_model(model.as_ptr(), params) };
        let context = Context(NonNull::new(context).ok_or_else(|| failed(log::take_last_error()))?);
        // SAFETY: both live as long as this value, the context being dropped first.
        unsafe {
            sys::llama_attach_threadpool(context.0.as_ptr(), pool.as_ptr(), pool.as_ptr());
        }
        // SAFETY: the context is alive.
        let step_tokens = unsafe { sys::llama_n_batch(context.0.as_ptr()) };
        if step_tokens < settings.step_tokens {
            let fewer = format!("steps have {step_tokens} tokens at most");
            return Err(failed(Some(fewer)));
        }
        tracing::debug!(cells = settings.cells, "embedding context made");
        Ok(Self {
            context,
            batch: Batch::new(settings.step_tokens as usize),
            settings,
            vocabulary: model.vocabulary_size(),
            width: traits.width as usize,
            scores: traits.scores as usize,
            threads: settings.threads,
            _pool: pool,
            _model: model,
        })
    }
}

impl Embeds for EmbeddingContext {
    fn compute(&mut self, step: &[Input], busy: bool) -> Result<(), DecodeError> {
        // llama.cpp ends the process on ids it has not: check before the call.
        let known = |input: &Input| {
            input.seq.0 < self.settings.seq_ids && (input.token as usize) < self.vocabulary
        };
        if !step.iter().all(known) {
            return Err(DecodeError::Failed(-1));
        }
        let Some(batch) = self.batch.fill(step) else {
            return Err(DecodeError::Failed(-1));
        };
        let threads = if busy {
            (self.settings.threads / 2).max(1)
        } else {
            self.settings.threads
        };
        let context = self.context.0.as_ptr();
        if threads != self.threads {
            let count = i32::try_from(threads).unwrap_or(1);
            // SAFETY: the context is alive; no more threads than the pool has.
            unsafe { sys::llama_set_n_threads(context, count, count) };
            self.threads = threads;
        }
        // SAFETY: the batch's arrays hold `n_tokens` valid entries each and are not touched during
        // the call; ids and tokens are within bounds (above) and no more tokens than n_batch.
        match unsafe { sys::llama_decode(context, batch) } {
            0 => Ok(()),
            1 => Err(DecodeError::NoRoom),
            code => Err(DecodeError::Failed(code)),
        }
    }

    fn vector(&self, index: usize) -> Option<&[f32]> {
        let index = i32::try_from(index).ok()?;
        // SAFETY: the context is alive; the call answers null for an index without output.
        let row = unsafe { sys::llama_get_embeddings_ith(self.context.0.as_ptr(), index) };
        // SAFETY: a row that is not null holds one f32 for each place of a vector, and stays until
        // the next step, which needs `&mut self`.
        (!row.is_null()).then(|| unsafe { std::slice::from_raw_parts(row, self.width) })
    }

    fn scores(&self, seq: SeqId) -> Option<&[f32]> {
        if !self.settings.ranks {
            return None;
        }
        let seq = i32::from(seq.0);
        // SAFETY: the context is alive; the call answers null for a sequence that was not in the
        // last step.
        let row = unsafe { sys::llama_get_embeddings_seq(self.context.0.as_ptr(), seq) };
        // SAFETY: of a context that ranks, a row that is not null holds `n_cls_out` numbers, and
        // stays until the next step, which needs `&mut self`.
        (!row.is_null()).then(|| unsafe { std::slice::from_raw_parts(row, self.scores) })
    }

    fn clear(&mut self, seq: SeqId) {
        if seq.0 < self.settings.seq_ids {
            // SAFETY: the context is alive and the id within its bounds; removing a whole sequence
            // works for every kind of memory, and for none.
            unsafe {
                let memory = sys::llama_get_memory(self.context.0.as_ptr());
                sys::llama_memory_seq_rm(memory, i32::from(seq.0), -1, -1);
            }
        }
    }
}
