//! A llama.cpp context with unified KV and flash attention, as a [`Backend`].

use super::batch::Batch;
use super::log;
use super::model::Model;
use super::threads::ThreadPool;
use crate::backend::{Backend, DecodeError, Input};
use crate::error::LoadError;
use crate::scheduler::SeqId;
use llama_cpp_sys_2 as sys;
use std::ptr::NonNull;
use std::sync::Arc;

/// Sizes of a context.
#[derive(Clone, Copy, Debug)]
pub struct ContextSettings {
    /// KV cells shared by all sequences.
    pub cells: u32,
    /// Most tokens in a step.
    pub step_tokens: u32,
    /// Number of sequence ids.
    pub seq_ids: u16,
    /// Compute threads.
    pub threads: u32,
}

/// A context. Belongs to one thread; it may be moved there after it was made.
pub struct LlamaContext {
    // Field order is drop order: the context goes before the pool and the model it uses.
    context: Context,
    batch: Batch,
    seq_ids: u16,
    vocabulary: usize,
    _pool: ThreadPool,
    _model: Arc<Model>,
}

/// Frees the context when dropped.
struct Context(NonNull<sys::llama_context>);

// SAFETY: a llama_context may be used from any one thread at a time; `LlamaContext` is not Sync and
// all its methods that change anything take `&mut self`.
unsafe impl Send for Context {}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: made by `llama_init_from_model` and freed once.
        unsafe {
            sys::llama_detach_threadpool(self.0.as_ptr());
            sys::llama_free(self.0.as_ptr());
        }
    }
}

impl LlamaContext {
    /// Makes a context for `model`.
    pub fn new(model: Arc<Model>, settings: ContextSettings) -> Result<Self, LoadError> {
        let failed = |cause: Option<String>| LoadError::Context {
            cells: settings.cells,
            cause: cause.unwrap_or_else(|| "llama.cpp gave no reason".into()),
        };
        let threads = i32::try_from(settings.threads).unwrap_or(1).max(1);
        // SAFETY: no arguments, a plain struct out.
        let mut params = unsafe { sys::llama_context_default_params() };
        params.n_ctx = settings.cells;
        // Equal, so that a failed decode leaves nothing half done.
        params.n_batch = settings.step_tokens;
        params.n_ubatch = settings.step_tokens;
        params.n_seq_max = u32::from(settings.seq_ids);
        params.n_threads = threads;
        params.n_threads_batch = threads;
        params.flash_attn_type = sys::LLAMA_FLASH_ATTN_TYPE_ENABLED;
        params.kv_unified = true;
        params.no_perf = true;
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
        tracing::debug!(
            threads = pool.threads(),
            cells = settings.cells,
            "context made"
        );
        Ok(Self {
            context,
            batch: Batch::new(settings.step_tokens as usize),
            seq_ids: settings.seq_ids,
            vocabulary: model.vocabulary_size(),
            _pool: pool,
            _model: model,
        })
    }

    /// Cells that the context has: llama.cpp rounds up what it was asked for.
    pub fn cells(&self) -> u32 {
        // SAFETY: the context is alive.
        unsafe { sys::llama_n_ctx(self.context.0.as_ptr()) }
    }

    /// Most tokens in a step: fewer than was asked for where there are fewer cells. llama.cpp ends
    /// the process on a larger one.
    pub fn step_tokens(&self) -> u32 {
        // SAFETY: the context is alive.
        unsafe { sys::llama_n_batch(self.context.0.as_ptr()) }
    }

    fn memory(&self) -> sys::llama_memory_t {
        // SAFETY: the context is alive; the memory it returns lives as long.
        unsafe { sys::llama_get_memory(self.context.0.as_ptr()) }
    }
}

impl Backend for LlamaContext {
    fn decode(&mut self, step: &[Input]) -> Result<(), DecodeError> {
        // llama.cpp ends the process on ids it has not: check before the call.
        let known =
            |input: &Input| input.seq.0 < self.seq_ids && (input.token as usize) < self.vocabulary;
        if !step.iter().all(known) {
            return Err(DecodeError::Failed(-1));
        }
        let Some(batch) = self.batch.fill(step) else {
            return Err(DecodeError::Failed(-1));
        };
        // SAFETY: the batch's arrays hold `n_tokens` valid entries each and are not touched during
        // the call; ids and tokens are within bounds (above) and no more tokens than n_batch.
        match unsafe { sys::llama_decode(self.context.0.as_ptr(), batch) } {
            0 => Ok(()),
            1 => Err(DecodeError::NoRoom),
            code => Err(DecodeError::Failed(code)),
        }
    }

    fn logits(&self, index: usize) -> Option<&[f32]> {
        let index = i32::try_from(index).ok()?;
        // SAFETY: the context is alive; the call answers null for an index without output.
        let row = unsafe { sys::llama_get_logits_ith(self.context.0.as_ptr(), index) };
        // SAFETY: a row that is not null holds one f32 for each token of the vocabulary, and stays
        // until the next decode, which needs `&mut self`.
        (!row.is_null()).then(|| unsafe { std::slice::from_raw_parts(row, self.vocabulary) })
    }

    fn clear(&mut self, seq: SeqId) {
        if seq.0 < self.seq_ids {
            // SAFETY: the context is alive and the id within its bounds; removing a whole sequence
            // works for every kind of memory.
            unsafe { sys::llama_memory_seq_rm(self.memory(), i32::from(seq.0), -1, -1) };
        }
    }

    fn length(&self, seq: SeqId) -> u32 {
        if seq.0 >= self.seq_ids {
            return 0;
        }
        // SAFETY: as above.
        let last = unsafe { sys::llama_memory_seq_pos_max(self.memory(), i32::from(seq.0)) };
        u32::try_from(last + 1).unwrap_or(0)
    }
}

/// What only tests ask of llama.cpp.
#[cfg(test)]
impl LlamaContext {
    /// The whole state as llama.cpp saves it. It lists the used cells, which nothing else tells.
    fn state(&mut self) -> Vec<u8> {
        let context = self.context.0.as_ptr();
        // SAFETY: the context is alive.
        let size = unsafe { sys::llama_state_get_size(context) };
        let mut state = vec![0; size];
        // SAFETY: the context is alive, and no more is written than the buffer holds.
        let written = unsafe { sys::llama_state_get_data(context, state.as_mut_ptr(), size) };
        assert_eq!(written, size, "llama.cpp could not save its state");
        state
    }

    /// Makes every decode fail with code 2 after its first operation, or none any more.
    fn abort_decodes(&mut self, abort: bool) {
        unsafe extern "C" fn always(_data: *mut std::ffi::c_void) -> bool {
            true
        }
        let callback: sys::ggml_abort_callback = if abort { Some(always) } else { None };
        // SAFETY: the context is alive; the callback needs no data and stays valid for the life of
        // the process.
        unsafe {
            sys::llama_set_abort_callback(self.context.0.as_ptr(), callback, std::ptr::null_mut());
        }
    }
}

#[cfg(test)]
mod tests;
