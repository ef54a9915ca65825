//! A context that outputs a vector for each token, or a reranker's scores.
//!
//! With pooling off, llama.cpp returns the last norm of every token, also for encoders, which have no memory
//! (`llama_decode` then encodes). llama.cpp requires every token to be an output. If the model has an output matrix,
//! llama.cpp also computes and keeps the logits of the whole vocabulary for each token, so keep steps short.

use crate::batch::TokenInput;
use crate::raw_context::RawContext;
use crate::{ContextSettings, DecodeError, LlamaError, Model, SeqId};
use llama_cpp_sys_2 as sys;
use std::sync::Arc;

/// What a model file says about embeddings.
#[derive(Clone, Copy, Debug)]
pub struct EmbeddingTraits {
    /// The number of the pooling that the model was trained for, as in `enum llama_pooling_type`.
    pub pooling_type: Option<u32>,
    /// Whether tokens see only earlier ones. Applies to models with a memory: those without see everything.
    pub causal: bool,
    /// Length of a vector.
    pub width: u32,
    /// Number of scores of a reranker.
    pub scores: u32,
}

impl Model {
    /// What the file says about embeddings.
    pub fn embedding_traits(&self) -> EmbeddingTraits {
        let architecture = self.metadata("general.architecture").unwrap_or_default();
        let value = |key: &str| self.metadata(&format!("{architecture}.{key}"));
        // SAFETY: the model is alive.
        let (width, scores) = unsafe {
            (
                sys::llama_model_n_embd_out(self.as_ptr()),
                sys::llama_model_n_cls_out(self.as_ptr()),
            )
        };
        EmbeddingTraits {
            pooling_type: value("pooling_type").and_then(|text| text.parse().ok()),
            causal: value("attention.causal").is_none_or(|causal| causal != "false"),
            width: u32::try_from(width).unwrap_or(0),
            scores,
        }
    }
}

/// Parameters of an embedding context.
#[derive(Clone, Copy, Debug)]
pub struct EmbeddingSettings {
    /// Its sizes. `threads` applies while no other context computes.
    pub context: ContextSettings,
    /// Whether it outputs scores instead of vectors.
    pub ranks: bool,
    /// Less exact, because llama.cpp rounds keys, values and queries to 16 bits. Without it, attention needs one
    /// number for each token of a step, cell and head.
    pub flash_attention: bool,
}

/// A context for embeddings. Belongs to one thread.
pub struct EmbeddingContext {
    raw: RawContext,
    ranks: bool,
    /// Length of a vector, and number of scores of a sequence.
    width: usize,
    scores: usize,
    /// Threads of the next step.
    threads: u32,
}

impl EmbeddingContext {
    /// Creates a context for `model`.
    pub fn new(model: Arc<Model>, settings: EmbeddingSettings) -> Result<Self, LlamaError> {
        let traits = model.embedding_traits();
        let sizes = settings.context;
        let raw = RawContext::new(model, sizes, |params| {
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
        let step_tokens = raw.step_tokens();
        if step_tokens < sizes.step_tokens {
            return Err(LlamaError::Context {
                cells: sizes.cells,
                cause: format!("a step has at most {step_tokens} tokens"),
            });
        }
        tracing::debug!(cells = sizes.cells, "embedding context made");
        Ok(Self {
            threads: raw.threads(),
            raw,
            ranks: settings.ranks,
            width: traits.width as usize,
            scores: traits.scores as usize,
        })
    }

    /// Computes a step, with half of the threads if the processor is `busy` with other work.
    pub fn decode(
        &mut self,
        step: impl IntoIterator<Item = TokenInput>,
        busy: bool,
    ) -> Result<(), DecodeError> {
        let all = self.raw.threads();
        let threads = if busy { (all / 2).max(1) } else { all };
        if threads != self.threads {
            let count = i32::try_from(threads).unwrap_or(1);
            // SAFETY: the context is alive; no more threads than the pool has.
            unsafe { sys::llama_set_n_threads(self.raw.as_ptr(), count, count) };
            self.threads = threads;
        }
        self.raw.decode(step)
    }

    /// The vector of input number `index` of the last step.
    pub fn vector(&self, index: usize) -> Option<&[f32]> {
        let index = i32::try_from(index).ok()?;
        // SAFETY: the context is alive; the call returns null for an index without output, and else `width` numbers,
        // until the next step.
        unsafe {
            let row = sys::llama_get_embeddings_ith(self.raw.as_ptr(), index);
            self.raw.numbers(row, self.width)
        }
    }

    /// The scores of a sequence after the last step, if the context ranks.
    pub fn scores(&self, seq: SeqId) -> Option<&[f32]> {
        if !self.ranks || !self.raw.has(seq) {
            return None;
        }
        // SAFETY: the context is alive; the call returns null for a sequence that was not in the last step, and else,
        // for a context that ranks, `n_cls_out` numbers, until the next step.
        unsafe {
            let row = sys::llama_get_embeddings_seq(self.raw.as_ptr(), seq);
            self.raw.numbers(row, self.scores)
        }
    }

    /// Removes all positions of a sequence.
    pub fn clear(&mut self, seq: SeqId) {
        self.raw.clear(seq);
    }
}
