//! A llama.cpp context with what it needs as long as it lives: model, compute threads, a batch.

use super::batch::Batch;
use super::chains::{Chains, DeviceTop};
use super::log;
use super::model::Model;
use super::threads::ThreadPool;
use crate::backend::{DecodeError, Input};
use crate::error::LoadError;
use crate::offload::KvType;
use corral_scheduler::SeqId;
use llama_cpp_sys_2 as sys;
use std::ptr::NonNull;
use std::sync::Arc;

/// Sizes of a context.
#[derive(Clone, Copy, Debug)]
pub struct ContextSettings {
    /// KV cells shared by all sequences; models without a memory have none.
    pub cells: u32,
    /// Most tokens in a step.
    pub step_tokens: u32,
    /// Number of sequence ids.
    pub seq_ids: u16,
    /// Compute threads.
    pub threads: u32,
    /// How the cells are stored; but for 16 bits, with flash attention alone.
    pub kv: KvType,
    /// The ids for which only the highest logits are copied.
    pub device_top: Option<DeviceTop>,
}

/// A context. Belongs to one thread; it may be moved there after it was made.
pub(super) struct Handle {
    // Field order is drop order: the context goes before the chains, the pool and the model it uses.
    context: Context,
    chains: Option<Chains>,
    batch: Batch,
    seq_ids: u16,
    vocabulary: usize,
    pool: ThreadPool,
    model: Arc<Model>,
}

/// Frees the context when dropped.
struct Context(NonNull<sys::llama_context>);

// SAFETY: a llama_context may be used from any one thread at a time; `Handle` is not Sync and all its
// methods that change anything take `&mut self`.
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

impl Handle {
    /// Makes a context for `model`, with one buffer of cells for all sequences. `set` adds to its
    /// parameters what is special of it, and no pointers.
    pub fn new(
        model: Arc<Model>,
        settings: ContextSettings,
        set: impl FnOnce(&mut sys::llama_context_params),
    ) -> Result<Self, LoadError> {
        let failed = |cause: Option<String>| LoadError::Context {
            cells: settings.cells,
            cause: cause.unwrap_or_else(|| "llama.cpp gave no reason".into()),
        };
        let threads = i32::try_from(settings.threads).unwrap_or(1).max(1);
        // SAFETY: no arguments, a plain struct out.
        let mut params = unsafe { sys::llama_context_default_params() };
        params.n_ctx = settings.cells;
        // Equal, so that a failed decode leaves nothing half done (but for recurrent and hybrid
        // models, which compute a step in parts all the same), and since models that see all of an
        // input must have it in one piece.
        params.n_batch = settings.step_tokens;
        params.n_ubatch = settings.step_tokens;
        params.n_seq_max = u32::from(settings.seq_ids);
        params.n_threads = threads;
        params.n_threads_batch = threads;
        params.flash_attn_type = sys::LLAMA_FLASH_ATTN_TYPE_ENABLED;
        params.kv_unified = true;
        params.no_perf = true;
        let kv = match settings.kv {
            KvType::F16 => sys::GGML_TYPE_F16,
            KvType::Q8_0 => sys::GGML_TYPE_Q8_0,
        };
        (params.type_k, params.type_v) = (kv, kv);
        // Cells lie with their layers. Without devices nothing is to be computed on any.
        let offloads = model.placement().layers > 0;
        (params.offload_kqv, params.op_offload) = (offloads, offloads);
        set(&mut params);
        let no_memory = || failed(Some("there is no memory for samplers".into()));
        let chains = settings.device_top.map(Chains::new);
        let mut chains = chains.map(|made| made.ok_or_else(no_memory)).transpose()?;
        if let Some(chains) = &mut chains {
            chains.tell(&mut params);
        }
        log::take_last_error();
        let pool = ThreadPool::new(settings.threads)
            .ok_or_else(|| failed(Some("compute threads could not be started".into())))?;
        // SAFETY: the model is alive and outlives the context (`model`); `params` holds no
        // pointers but null ones and those of `chains`, which outlive it too.
        let context = unsafe { sys::llama_init_from_model(model.as_ptr(), params) };
        let context = Context(NonNull::new(context).ok_or_else(|| failed(log::take_last_error()))?);
        // SAFETY: both live as long as this value, the context being dropped first.
        unsafe {
            sys::llama_attach_threadpool(context.0.as_ptr(), pool.as_ptr(), pool.as_ptr());
        }
        Ok(Self {
            context,
            chains,
            batch: Batch::new(settings.step_tokens as usize),
            seq_ids: settings.seq_ids,
            vocabulary: model.vocabulary_size(),
            pool,
            model,
        })
    }

    /// The raw context, alive as long as this value.
    pub fn as_ptr(&self) -> *mut sys::llama_context {
        self.context.0.as_ptr()
    }

    /// Its memory of sequences, alive as long as this value; null if it has none.
    pub fn memory(&self) -> sys::llama_memory_t {
        // SAFETY: the context is alive.
        unsafe { sys::llama_get_memory(self.as_ptr()) }
    }

    /// Whether it has chains that have no effect, but to take time.
    pub fn has_idle_chains(&self) -> bool {
        self.chains.as_ref().is_some_and(|chains| !chains.work())
    }

    /// The model.
    pub fn model(&self) -> &Arc<Model> {
        &self.model
    }

    /// Number of tokens in the vocabulary.
    pub fn vocabulary(&self) -> usize {
        self.vocabulary
    }

    /// Compute threads.
    pub fn threads(&self) -> u32 {
        self.pool.threads()
    }

    /// Most tokens in a step: fewer than was asked for where there are fewer cells. llama.cpp ends
    /// the process on a larger one.
    pub fn step_tokens(&self) -> u32 {
        // SAFETY: the context is alive.
        unsafe { sys::llama_n_batch(self.as_ptr()) }
    }

    /// Number of sequence ids.
    pub fn seq_ids(&self) -> u16 {
        self.seq_ids
    }

    /// Waits until what was begun is computed.
    pub fn synchronize(&mut self) {
        // SAFETY: the context is alive, and nobody else uses it (`&mut self`).
        unsafe { sys::llama_synchronize(self.as_ptr()) };
    }

    /// The id as llama.cpp wants it, if the context has it: llama.cpp ends the process on others.
    pub fn known(&self, seq: SeqId) -> Option<i32> {
        (seq.0 < self.seq_ids).then_some(i32::from(seq.0))
    }

    /// Computes a step.
    pub fn decode(&mut self, step: &[Input]) -> Result<(), DecodeError> {
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

    /// Forgets a sequence.
    pub fn clear(&mut self, seq: SeqId) {
        if let Some(seq) = self.known(seq) {
            // SAFETY: the context is alive and the id within its bounds; removing a whole sequence
            // works for every kind of memory, and for none.
            unsafe { sys::llama_memory_seq_rm(self.memory(), seq, -1, -1) };
        }
    }

    /// What the last step left at `row`, if it left anything.
    ///
    /// # Safety
    ///
    /// `row` is null, or points to `length` numbers of this context that stay until the next step,
    /// which needs `&mut self`.
    pub unsafe fn numbers(&self, row: *const f32, length: usize) -> Option<&[f32]> {
        // SAFETY: as the caller says.
        (!row.is_null()).then(|| unsafe { std::slice::from_raw_parts(row, length) })
    }
}
