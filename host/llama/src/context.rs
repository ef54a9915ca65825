//! A context that generates: unified KV cells and flash attention.

use crate::batch::TokenInput;
use crate::device_top_k;
use crate::log;
use crate::raw_context::RawContext;
use crate::step_output::{LogitsCopied, Output};
use crate::{
    ContextSettings, DecodeError, DeviceTopK, ImageTable, LlamaError, Model, SaveError, SeqId,
};
use llama_cpp_sys_2 as sys;
use overlap::RetainedOutputs;
use std::sync::Arc;
use std::time::Duration;

mod overlap;

/// A context that generates. Belongs to one thread; it may be moved there after it was made.
pub struct LlamaContext {
    raw: RawContext,
    /// Index of the adapter in use.
    adapter: Option<usize>,
    device_top_k: Option<DeviceTopK>,
    copied: LogitsCopied,
    /// Inputs of the last step with outputs, in rising order.
    outputs: Vec<usize>,
    /// Their outputs, while an overlapped step is computed.
    retained: RetainedOutputs,
}

impl LlamaContext {
    /// Creates a context for `model`. If the device can't select the highest logits, the context has
    /// [no device top-k](ContextSettings::without_device_top_k), and sizes of buffers that were logged before this
    /// call may be lost.
    pub fn new(model: Arc<Model>, mut settings: ContextSettings) -> Result<Self, LlamaError> {
        let mut raw = RawContext::new(model.clone(), settings, |_| ())?;
        if raw.has_idle_samplers() {
            tracing::warn!("the device can't select the highest logits; all logits are copied");
            settings = settings.without_device_top_k();
            drop(raw);
            // The dropped context's buffers are free again.
            log::take_buffer_sizes();
            raw = RawContext::new(model, settings, |_| ())?;
        }
        tracing::debug!(
            threads = raw.threads(),
            cells = settings.cells,
            "context made"
        );
        Ok(Self {
            raw,
            adapter: None,
            device_top_k: settings.device_top_k,
            copied: LogitsCopied::default(),
            outputs: Vec::new(),
            retained: RetainedOutputs::new(),
        })
    }

    /// The sequence ids whose outputs are the highest logits only.
    pub fn device_top_k(&self) -> Option<DeviceTopK> {
        self.device_top_k
    }

    /// Computes tokens of the images in this table, too.
    pub fn use_images(&mut self, images: ImageTable) {
        self.raw.use_images(images);
    }

    /// Number of cells: llama.cpp rounds up the number that was requested.
    pub fn cells(&self) -> u32 {
        // SAFETY: the context is alive.
        unsafe { sys::llama_n_ctx(self.raw.as_ptr()) }
    }

    /// Most tokens in a step: fewer than requested if there are fewer cells.
    pub fn step_tokens(&self) -> u32 {
        self.raw.step_tokens()
    }

    /// Compute threads.
    pub fn threads(&self) -> u32 {
        self.raw.threads()
    }

    /// Prepares [`LlamaContext::use_threads`]: starts threads for half of the number, a quarter, and so on to one. Returns
    /// false if results would depend on the number of threads, because ggml computes attention, or if threads do not start.
    pub fn prepare_fewer_threads(&mut self) -> bool {
        #[cfg(own_attention)]
        let keeps_results =
            crate::attention::takes_single_tokens(self.raw.model().key_heads(), self.raw.threads());
        #[cfg(not(own_attention))]
        let keeps_results = false;
        keeps_results && self.raw.start_reduced_pools()
    }

    /// Computes the following steps with at most this many of the threads, as far as they were prepared. Results are the
    /// same, except in operations that ggml divides by the number of threads: its own attention, over 512 and more cells
    /// for one token.
    pub fn use_threads(&mut self, threads: u32) {
        self.raw.use_threads(threads);
    }

    /// How long each compute thread in use, the calling one last, has waited for a core so far. `None` where the system
    /// doesn't tell.
    pub fn queue_delays(&self) -> Option<Vec<Duration>> {
        self.raw.queue_delays()
    }

    /// Number of tokens in the vocabulary.
    pub fn vocabulary_size(&self) -> usize {
        self.raw.vocabulary()
    }

    /// Whether the model remembers earlier tokens. Encoders like BERT do not, and generate nothing.
    pub fn has_memory(&self) -> bool {
        !self.raw.memory().is_null()
    }

    /// Whether sequences can be truncated and share a part: [`Model::can_truncate`]. If not, [`LlamaContext::share`]
    /// takes whole sequences only and [`LlamaContext::truncate`] only a length of 0.
    pub fn can_truncate(&self) -> bool {
        self.raw.model().can_truncate()
    }

    /// Computes with the loaded adapter of this index, or with none, from the next step on.
    ///
    /// A change makes the next decode build a new graph scheduler and plan the three largest graphs
    /// (`llama_context::sched_reserve`), at about the same cost whatever the step.
    pub fn set_adapter(&mut self, adapter: Option<usize>) -> Result<(), DecodeError> {
        if adapter == self.adapter {
            return Ok(());
        }
        let loaded = &self.raw.model().adapters;
        let mut pointer = match adapter {
            Some(index) => Some(loaded.get(index).ok_or(DecodeError::Failed(-1))?.as_ptr()),
            None => None,
        };
        let pointers = pointer.as_mut_slice();
        let mut scale = 1.0;
        // SAFETY: the context is alive; llama.cpp reads one adapter and scale, or none, as the length says; the
        // adapter is of this context's model and lives as long.
        let code = unsafe {
            sys::llama_set_adapters_lora(
                self.raw.as_ptr(),
                pointers.as_mut_ptr(),
                pointers.len(),
                &raw mut scale,
            )
        };
        if code != 0 {
            return Err(DecodeError::Failed(code));
        }
        self.adapter = adapter;
        Ok(())
    }

    /// Computes a step, or starts it on a device: [`LlamaContext::synchronize`] and reading an output wait for it.
    pub fn decode(
        &mut self,
        step: impl IntoIterator<Item = TokenInput>,
    ) -> Result<(), DecodeError> {
        self.retained.clear();
        self.outputs.clear();
        self.raw.decode(step)?;
        self.outputs
            .extend(self.raw.outputs().map(|(index, _)| index));
        let ids = self.raw.outputs().map(|(_, seq)| seq);
        self.copied = device_top_k::copied(self.device_top_k, ids, self.raw.vocabulary());
        Ok(())
    }

    /// Waits for the last computation.
    pub fn synchronize(&mut self) {
        self.raw.synchronize();
    }

    /// The output after input number `index` of the last step with outputs. `None` if that input has none.
    pub fn output(&self, index: usize) -> Option<Output<'_>> {
        if self.has_retained_outputs() {
            return self.retained_output(index);
        }
        let index = i32::try_from(index).ok()?;
        let context = self.raw.as_ptr();
        // SAFETY: the context is alive, and its outputs stay until the next step, which needs `&mut self`. Without
        // candidates, `llama_get_logits_ith` returns null for an index without output, and else one f32 for each token
        // of the vocabulary.
        unsafe {
            if self.device_top_k.is_some()
                && let Some(candidates) = device_top_k::candidates(context, index)
            {
                return device_top_k::output(context, index, candidates);
            }
            let row = sys::llama_get_logits_ith(context, index);
            let logits = self.raw.numbers(row, self.raw.vocabulary());
            logits.map(Output::Logits)
        }
    }

    /// All logits after input number `index` of the last step with outputs. `None` if that input has no output or
    /// only its highest logits were copied.
    pub fn logits(&self, index: usize) -> Option<&[f32]> {
        match self.output(index)? {
            Output::Logits(logits) => Some(logits),
            Output::TopK { .. } => None,
        }
    }

    /// Bytes of logits that the last step copied; 0 for an overlapped one.
    pub fn copied(&self) -> LogitsCopied {
        self.copied
    }

    /// Removes all positions of a sequence; cells that it shares stay.
    pub fn clear(&mut self, seq: SeqId) {
        self.raw.clear(seq);
    }

    /// Gives the empty sequence `to` the first `length` positions of `from`, without copying or taking cells.
    pub fn share(&mut self, from: SeqId, to: SeqId, length: u32) {
        let is_part = length != self.length(from);
        debug_assert!(from != to && self.length(to) == 0, "{to} is in use");
        debug_assert!(length <= self.length(from), "{from} is shorter");
        debug_assert!(!is_part || self.can_truncate(), "{from} can't share a part");
        // llama.cpp would share the whole, or the part that a window left.
        let is_possible = !is_part || self.can_truncate();
        if !is_possible || !self.raw.has(from) || !self.raw.has(to) {
            return;
        }
        let end = i32::try_from(length).unwrap_or(i32::MAX);
        // SAFETY: the context is alive and both ids within its bounds; the cache is one stream (`kv_unified`), without
        // which llama.cpp would end the process on a part.
        unsafe { sys::llama_memory_seq_cp(self.raw.memory(), from, to, 0, end) };
    }

    /// Removes the positions of a sequence from `length` on; cells that it shares stay.
    pub fn truncate(&mut self, seq: SeqId, length: u32) {
        let is_part = (1..self.length(seq)).contains(&length);
        debug_assert!(!is_part || self.can_truncate(), "{seq} can't be truncated");
        // llama.cpp would refuse, or keep the part that a window left.
        let is_possible = !is_part || self.can_truncate();
        let Ok(start) = i32::try_from(length) else {
            return;
        };
        if is_possible && self.raw.has(seq) {
            // SAFETY: the context is alive and the id within its bounds.
            unsafe { sys::llama_memory_seq_rm(self.raw.memory(), seq, start, -1) };
        }
    }

    /// A copy of the state of a sequence, at most `limit` bytes, for [`LlamaContext::load`] of the same model and
    /// settings. The sequence stays.
    pub fn save(&mut self, seq: SeqId, limit: usize) -> Result<Vec<u8>, SaveError> {
        if !self.raw.has(seq) {
            return Err(SaveError::Failed);
        }
        let context = self.raw.as_ptr();
        // SAFETY: the context is alive and the id within its bounds.
        let bytes = unsafe { sys::llama_state_seq_get_size(context, seq) };
        if bytes == 0 {
            return Err(SaveError::Failed);
        }
        if bytes > limit {
            return Err(SaveError::TooLarge { bytes, limit });
        }
        let mut state: Vec<u8> = Vec::new();
        if state.try_reserve_exact(bytes).is_err() {
            return Err(SaveError::NoMemory { bytes });
        }
        // SAFETY: the context is alive, the id within its bounds, and the buffer has room for `bytes`; llama.cpp
        // returns 0 rather than write more.
        let written =
            unsafe { sys::llama_state_seq_get_data(context, state.as_mut_ptr(), bytes, seq) };
        if written != bytes {
            return Err(SaveError::Failed);
        }
        // SAFETY: the capacity is at least `bytes`, and llama.cpp has written each of them: it counts the bytes it
        // writes, goes through the buffer without gaps, and copies all tensors before it returns.
        unsafe { state.set_len(bytes) };
        Ok(state)
    }

    /// Gives an empty sequence the positions of a saved one. Each takes a free cell, also if it was shared. Returns
    /// false if there is no room or the state does not fit; the sequence is then empty.
    ///
    /// Pass only bytes that [`LlamaContext::save`] returned, checked by a checksum if they left the process. llama.cpp
    /// (`llama_kv_cache::state_read_sinfo`) treats damage in three ways:
    ///
    /// - It returns false for a wrong mark at the front, bytes that end early or go on, another number of streams or
    ///   layers, other types or sizes of rows, another layout of the values, a cell of several sequences or of none,
    ///   and more cells than are free.
    /// - It does not notice other positions and other numbers in the tensors. So it accepts a state of another model of
    ///   the same shape; positions may have gaps or repeat; and one below 0 breaks llama.cpp's bookkeeping for the life
    ///   of the context: the cell is used and empty at once, never freed, and given to the next sequence too.
    /// - It ends the process on more than one cell for the sequence in the state of a recurrent or hybrid model (an
    ///   assertion in `llama_memory_recurrent::state_read_meta`).
    #[must_use]
    pub fn load(&mut self, seq: SeqId, state: &[u8]) -> bool {
        debug_assert_eq!(self.length(seq), 0, "{seq} is in use");
        if !self.raw.has(seq) {
            return false;
        }
        let context = self.raw.as_ptr();
        // SAFETY: the context is alive, the id within its bounds, and llama.cpp reads no more than the slice. The
        // caller vouches for the bytes.
        let read =
            unsafe { sys::llama_state_seq_set_data(context, state.as_ptr(), state.len(), seq) };
        let loaded = read != 0 && read == state.len();
        if !loaded {
            // llama.cpp clears the sequence itself, except the first of the two caches of a sliding-window model when
            // the second fails, and a state with bytes after its end.
            self.clear(seq);
        }
        loaded
    }

    /// Number of positions of a sequence.
    pub fn length(&self, seq: SeqId) -> u32 {
        if !self.raw.has(seq) {
            return 0;
        }
        // SAFETY: the context is alive and the id within its bounds.
        let last = unsafe { sys::llama_memory_seq_pos_max(self.raw.memory(), seq) };
        u32::try_from(last + 1).unwrap_or(0)
    }
}

/// Access for tests.
impl LlamaContext {
    /// Position and sequences of each used cell in cell order, of a model with one position per token: read from the saved
    /// state, as `llama_context::state_write_data` and `llama_kv_cache::state_write_meta` write it.
    ///
    /// # Panics
    ///
    /// If the layout of the state is another one.
    pub fn used_cells(&mut self) -> Vec<(u32, Vec<SeqId>)> {
        let state = self.save_all();
        let (architecture, rest) = state.split_at(4);
        let architecture = u32::from_ne_bytes(architecture.try_into().expect("four bytes"));
        let mut numbers = rest[architecture as usize..].as_chunks::<4>().0.iter();
        let mut number = || u32::from_ne_bytes(*numbers.next().expect("the state is longer"));
        assert_eq!(number(), 1, "a unified cache is one stream");
        let count = number();
        let mut cell = || {
            let (position, holders) = (number(), number());
            (
                position,
                (0..holders).map(|_| number().cast_signed()).collect(),
            )
        };
        let cells = (0..count).map(|_| cell()).collect();
        // The next field is known, so a changed layout fails here.
        assert!(count == 0 || number() == 0, "values are not transposed");
        cells
    }

    /// The state of all sequences.
    fn save_all(&mut self) -> Vec<u8> {
        let context = self.raw.as_ptr();
        // SAFETY: the context is alive.
        let size = unsafe { sys::llama_state_get_size(context) };
        let mut state = vec![0; size];
        // SAFETY: the context is alive, and llama.cpp writes no more than the buffer holds.
        let written = unsafe { sys::llama_state_get_data(context, state.as_mut_ptr(), size) };
        state.truncate(written);
        state
    }

    /// Makes every decode fail with code 2 after its first operation, or none.
    pub fn abort_decodes(&mut self, abort: bool) {
        unsafe extern "C" fn always(_data: *mut std::ffi::c_void) -> bool {
            true
        }
        let callback: sys::ggml_abort_callback = if abort { Some(always) } else { None };
        // SAFETY: the context is alive; the callback needs no data and stays valid for the life of the process.
        unsafe {
            sys::llama_set_abort_callback(self.raw.as_ptr(), callback, std::ptr::null_mut());
        }
    }
}

#[cfg(test)]
mod tests;
