//! A llama.cpp context with everything it uses for its life: model, compute threads, batch, device samplers.
//! [`LlamaContext`](crate::LlamaContext) and [`EmbeddingContext`](crate::EmbeddingContext) build on it.

use crate::batch::{Batch, TokenInput};
use crate::context_settings::ContextSettings;
use crate::device_top_k::DeviceSamplers;
use crate::log;
use crate::run_queue_delay::queue_delay;
use crate::thread_pool::ThreadPool;
use crate::{DecodeError, ImageTable, LlamaError, Model, SeqId};
use llama_cpp_sys_2 as sys;
use std::ptr::NonNull;
use std::sync::Arc;
use std::time::Duration;

/// A raw context. Belongs to one thread; it may be moved there after it was made.
pub(crate) struct RawContext {
    // Field order is drop order: the context goes before the samplers, the pools and the model it uses.
    context: ContextPointer,
    samplers: Option<DeviceSamplers>,
    batch: Batch,
    seq_ids: u16,
    vocabulary: usize,
    /// All compute threads.
    pool: ThreadPool,
    /// Half as many threads, a quarter, and so on to one; none before [`RawContext::start_reduced_pools`].
    reduced_pools: Vec<ThreadPool>,
    /// Number of the pool in use: 0 for `pool`, or else from 1 in `reduced_pools`.
    pool_in_use: usize,
    model: Arc<Model>,
}

/// Frees the context when dropped.
struct ContextPointer(NonNull<sys::llama_context>);

// SAFETY: any one thread at a time may use a llama_context; `RawContext` is not Sync and all its methods that change
// anything take `&mut self`.
unsafe impl Send for ContextPointer {}

impl Drop for ContextPointer {
    fn drop(&mut self) {
        // SAFETY: made by `llama_init_from_model` and freed once.
        unsafe {
            sys::llama_detach_threadpool(self.0.as_ptr());
            sys::llama_free(self.0.as_ptr());
        }
    }
}

impl RawContext {
    /// Creates a context for `model`, with one buffer of cells for all sequences. `customize` changes parameters, but
    /// sets no pointers.
    pub fn new(
        model: Arc<Model>,
        settings: ContextSettings,
        customize: impl FnOnce(&mut sys::llama_context_params),
    ) -> Result<Self, LlamaError> {
        let failed = |cause: Option<String>| LlamaError::Context {
            cells: settings.cells,
            cause: cause.unwrap_or_else(|| "llama.cpp gave no reason".into()),
        };
        let threads = i32::try_from(settings.threads).unwrap_or(1).max(1);
        // SAFETY: no arguments, a plain struct out.
        let mut params = unsafe { sys::llama_context_default_params() };
        params.n_ctx = settings.cells;
        // `n_batch` equals `n_ubatch`, so that a failed decode leaves nothing half done (except in recurrent and hybrid models, which always
        // compute a step in parts), and because models that see all of an input need it in one piece.
        params.n_batch = settings.step_tokens;
        params.n_ubatch = settings.step_tokens;
        params.n_seq_max = u32::from(settings.seq_ids);
        params.n_threads = threads;
        params.n_threads_batch = threads;
        params.flash_attn_type = sys::LLAMA_FLASH_ATTN_TYPE_ENABLED;
        params.kv_unified = true;
        params.no_perf = true;
        params.type_k = settings.kv_type.ggml();
        params.type_v = params.type_k;
        // Cells lie with their layers. Without GPU layers, devices compute nothing.
        let uses_devices = model.placement().gpu_layers > 0;
        (params.offload_kqv, params.op_offload) = (uses_devices, uses_devices);
        customize(&mut params);
        let mut samplers = match settings.device_top_k {
            None => None,
            Some(top_k) => Some(
                DeviceSamplers::new(top_k)
                    .ok_or_else(|| failed(Some("there is no memory for samplers".into())))?,
            ),
        };
        if let Some(samplers) = &mut samplers {
            samplers.attach(&mut params);
        }
        log::take_first_error();
        let pool = ThreadPool::new(settings.threads)
            .ok_or_else(|| failed(Some("compute threads could not be started".into())))?;
        // SAFETY: the model is alive and outlives the context (`model`); `params` holds no pointers but null ones and
        // those of `samplers`, which outlive it too.
        let context = unsafe { sys::llama_init_from_model(model.as_ptr(), params) };
        let context = NonNull::new(context).ok_or_else(|| failed(log::take_first_error()))?;
        let context = ContextPointer(context);
        // SAFETY: both live as long as this value, which drops the context first.
        unsafe {
            sys::llama_attach_threadpool(context.0.as_ptr(), pool.as_ptr(), pool.as_ptr());
        }
        let vocabulary = model.vocabulary_size();
        Ok(Self {
            context,
            samplers,
            batch: Batch::new(settings.step_tokens as usize, settings.seq_ids, vocabulary),
            seq_ids: settings.seq_ids,
            vocabulary,
            pool,
            reduced_pools: Vec::new(),
            pool_in_use: 0,
            model,
        })
    }

    /// The pointer, valid as long as this value.
    pub fn as_ptr(&self) -> *mut sys::llama_context {
        self.context.0.as_ptr()
    }

    /// The memory of sequences, valid as long as this value; null if the model has none.
    pub fn memory(&self) -> sys::llama_memory_t {
        // SAFETY: the context is alive.
        unsafe { sys::llama_get_memory(self.as_ptr()) }
    }

    /// Whether device samplers have no effect, because the device lacks the operation.
    pub fn has_idle_samplers(&self) -> bool {
        let samplers = self.samplers.as_ref();
        samplers.is_some_and(|samplers| !samplers.run_on_device())
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

    /// Starts pools of half the threads, a quarter, and so on to one, for [`RawContext::use_threads`]. Returns false if one
    /// does not start.
    pub fn start_reduced_pools(&mut self) -> bool {
        if self.reduced_pools.is_empty() {
            let most = self.pool.threads();
            let half = |threads: &u32| (*threads > 1).then(|| threads.div_ceil(2));
            let halves = std::iter::successors(half(&most), half);
            let pools: Option<Vec<_>> =
                halves.map(|half| ThreadPool::reduced(half, most)).collect();
            match pools {
                Some(pools) => self.reduced_pools = pools,
                None => return false,
            }
        }
        true
    }

    /// Computes the following steps with the pool of the most threads that are not more than `threads`, or else with the
    /// smallest pool. Results stay the same.
    pub fn use_threads(&mut self, threads: u32) {
        let mut pools = std::iter::once(&self.pool).chain(&self.reduced_pools);
        let fitting = pools.position(|pool| pool.threads() <= threads);
        self.pool_in_use = fitting.unwrap_or(self.reduced_pools.len());
        let pool = self.current_pool();
        let count = i32::try_from(pool.threads()).unwrap_or(1);
        let pool = pool.as_ptr();
        // ggml pauses the pool of the last step when the next one uses another.
        // SAFETY: the context is alive, and all pools live as long as it.
        unsafe {
            sys::llama_attach_threadpool(self.as_ptr(), pool, pool);
            sys::llama_set_n_threads(self.as_ptr(), count, count);
        }
    }

    fn current_pool(&self) -> &ThreadPool {
        let reduced = self.pool_in_use.checked_sub(1);
        let reduced = reduced.and_then(|index| self.reduced_pools.get(index));
        reduced.unwrap_or(&self.pool)
    }

    /// How long each compute thread in use, the calling one last, has waited for a core so far. `None` where the system
    /// doesn't tell.
    pub fn queue_delays(&self) -> Option<Vec<Duration>> {
        let mut delays = self.current_pool().queue_delays()?;
        delays.push(queue_delay()?);
        Some(delays)
    }

    /// Most tokens in a step: fewer than requested if there are fewer cells. llama.cpp ends the process on a larger
    /// step.
    pub fn step_tokens(&self) -> u32 {
        // SAFETY: the context is alive.
        unsafe { sys::llama_n_batch(self.as_ptr()) }
    }

    /// Number of sequence ids.
    pub fn seq_ids(&self) -> u16 {
        self.seq_ids
    }

    /// Waits for the last computation.
    pub fn synchronize(&mut self) {
        // SAFETY: the context is alive, and this call has it alone (`&mut self`).
        unsafe { sys::llama_synchronize(self.as_ptr()) };
    }

    /// Whether the context has this sequence. llama.cpp ends the process on others.
    pub fn has(&self, seq: SeqId) -> bool {
        (0..SeqId::from(self.seq_ids)).contains(&seq)
    }

    /// Computes a step.
    pub fn decode(
        &mut self,
        step: impl IntoIterator<Item = TokenInput>,
    ) -> Result<(), DecodeError> {
        if !self.batch.fill(step) {
            return Err(DecodeError::Failed(-1));
        }
        // SAFETY: the context is alive, and this call has it alone (`&mut self`); the batch was made for it, with at most
        // n_batch tokens.
        unsafe { self.batch.decode(self.context.0) }
    }

    /// Computes images of this table, whose embeddings have the model's length.
    pub fn use_images(&mut self, images: ImageTable) {
        self.batch.use_images(images);
    }

    /// Index and sequence of each input with an output, of the last step that was decoded.
    pub fn outputs(&self) -> impl Iterator<Item = (usize, SeqId)> {
        self.batch.outputs()
    }

    /// Removes all positions of a sequence.
    pub fn clear(&mut self, seq: SeqId) {
        if self.has(seq) {
            // SAFETY: the context is alive and the id within its bounds; removing a whole sequence works for every
            // kind of memory, and for none.
            unsafe { sys::llama_memory_seq_rm(self.memory(), seq, -1, -1) };
        }
    }

    /// The numbers at `row`. `None` for null.
    ///
    /// # Safety
    ///
    /// `row` is null, or points to `length` numbers of this context that stay until the next step, which needs
    /// `&mut self`.
    pub unsafe fn numbers(&self, row: *const f32, length: usize) -> Option<&[f32]> {
        // SAFETY: the caller's.
        (!row.is_null()).then(|| unsafe { std::slice::from_raw_parts(row, length) })
    }
}
