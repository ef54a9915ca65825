//! A llama.cpp context with unified KV and flash attention, as a [`Backend`].

use super::ahead::Kept;
use super::chains::DeviceTop;
use super::handle::{ContextSettings, Handle};
use super::log;
use super::model::Model;
use crate::Token;
use crate::backend::{Backend, Copied, DecodeError, Input, SaveError};
use crate::error::LoadError;
use corral_sampling::{Logits, TopLogits};
use corral_scheduler::{AdapterId, SeqId};
use llama_cpp_sys_2 as sys;
use std::ptr::NonNull;
use std::sync::Arc;

/// A context. Belongs to one thread; it may be moved there after it was made.
pub struct LlamaContext {
    handle: Handle,
    adapter: AdapterId,
    device_top: Option<DeviceTop>,
    copied: Copied,
    /// Inputs of the last step with outputs, in rising order.
    outputs: Vec<usize>,
    /// What it left for them, while a step that went ahead may be computed.
    kept: Vec<(usize, Kept)>,
}

impl LlamaContext {
    /// Makes a context for `model`. Where the device can't select the highest logits it is one
    /// [without](ContextSettings::without_top) ids for them. What was logged of buffers before may be forgotten.
    pub fn new(model: Arc<Model>, mut settings: ContextSettings) -> Result<Self, LoadError> {
        let mut handle = Handle::new(model.clone(), settings, |_| ())?;
        if handle.has_idle_chains() {
            tracing::warn!("the device can't select the likeliest tokens; all logits are copied");
            settings = settings.without_top();
            drop(handle);
            // What it had is free again.
            log::take_buffers();
            handle = Handle::new(model, settings, |_| ())?;
        }
        tracing::debug!(
            threads = handle.threads(),
            cells = settings.cells,
            "context made"
        );
        Ok(Self {
            handle,
            adapter: AdapterId::NONE,
            device_top: settings.device_top,
            copied: Copied::default(),
            outputs: Vec::new(),
            kept: Vec::new(),
        })
    }

    /// What is kept of the last step with outputs. `None` if nothing went ahead since.
    fn kept(&self, index: usize) -> Option<Option<Logits<'_>>> {
        if self.kept.is_empty() {
            return None;
        }
        let place = self.kept.binary_search_by_key(&index, |(index, _)| *index);
        let kept = place.ok().map(|place| &self.kept[place].1);
        // SAFETY: the context is alive. Since these were taken it computed steps without outputs only
        // (`decode_ahead`), after one with few enough (`can_go_ahead`); the next one with outputs needs `&mut self`
        // and empties the list.
        Some(kept.map(|kept| unsafe { kept.get() }))
    }

    /// The ids for which only the highest logits are copied.
    pub fn device_top(&self) -> Option<DeviceTop> {
        self.device_top
    }

    /// How many candidates llama.cpp has for an output; 0 where it has a row.
    fn candidates(&self, index: i32) -> u32 {
        match self.device_top {
            // SAFETY: the context is alive; the answer is 0 for an index without output.
            Some(_) => unsafe {
                sys::llama_get_sampled_candidates_count_ith(self.handle.as_ptr(), index)
            },
            None => 0,
        }
    }

    /// What a step copies: see [`super::chains`].
    fn bytes_of(&self, step: &[Input]) -> Copied {
        let (k, ids) = self.device_top.map_or((0, 0), |top| (top.k, top.ids));
        let outputs = || step.iter().filter(|input| input.output);
        let all = outputs().count() as u64;
        let top = outputs().filter(|input| input.seq.0 < ids).count() as u64;
        let row = 4 * self.handle.vocabulary() as u64;
        Copied {
            // A logit and a token.
            top: top * u64::from(k) * 8,
            whole: if top < all { all * row } else { 0 },
        }
    }

    /// Cells that the context has: llama.cpp rounds up what it was asked for.
    pub fn cells(&self) -> u32 {
        // SAFETY: the context is alive.
        unsafe { sys::llama_n_ctx(self.handle.as_ptr()) }
    }

    /// Most tokens in a step: fewer than was asked for where there are fewer cells. llama.cpp ends
    /// the process on a larger one.
    pub fn step_tokens(&self) -> u32 {
        self.handle.step_tokens()
    }

    /// Whether the model remembers what it read: encoders like BERT do not, and generate nothing.
    pub fn has_memory(&self) -> bool {
        !self.handle.memory().is_null()
    }

    /// Whether a part of a sequence can be shared, and a sequence be truncated. Where this is false,
    /// [`Backend::share`] takes whole sequences only and [`Backend::truncate`] only a length of 0.
    /// [`Model::can_truncate`] says why.
    pub fn can_truncate(&self) -> bool {
        self.handle.model().can_truncate()
    }
}

impl Backend for LlamaContext {
    /// The next decode makes a new scheduler of graphs and plans the three largest ones it may have to
    /// compute (`llama_context::sched_reserve`): that is the cost of a change, about the same whatever
    /// the step.
    fn adapt(&mut self, adapter: AdapterId) -> Result<(), DecodeError> {
        if adapter == self.adapter {
            return Ok(());
        }
        let found = self
            .handle
            .model()
            .adapter(adapter)
            .ok_or(DecodeError::Failed(-1))?;
        let mut pointers = found.map(NonNull::as_ptr);
        let pointers = pointers.as_mut_slice();
        let mut scale = 1.0;
        // SAFETY: the context is alive; as many adapters and scales are read as is said, one or none;
        // the adapter is of this context's model and lives as long.
        let code = unsafe {
            sys::llama_set_adapters_lora(
                self.handle.as_ptr(),
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

    fn decode(&mut self, step: &[Input]) -> Result<(), DecodeError> {
        self.kept.clear();
        self.outputs.clear();
        self.handle.decode(step)?;
        self.copied = self.bytes_of(step);
        let outputs = step.iter().enumerate().filter(|(_, input)| input.output);
        self.outputs.extend(outputs.map(|(index, _)| index));
        Ok(())
    }

    fn wait(&mut self) {
        self.handle.synchronize();
    }

    /// See [`super::ahead`].
    fn can_go_ahead(&self) -> bool {
        (1..=usize::from(self.handle.seq_ids())).contains(&self.outputs.len())
    }

    fn decode_ahead(&mut self, step: &[Input]) -> Result<(), DecodeError> {
        if !self.can_go_ahead() || step.iter().any(|input| input.output) {
            return Err(DecodeError::Failed(-1));
        }
        if self.kept.is_empty() {
            let mut kept = std::mem::take(&mut self.kept);
            let outputs = self.outputs.iter();
            kept.extend(outputs.filter_map(|&index| Some((index, Kept::of(self.output(index)?)))));
            self.kept = kept;
        }
        self.handle.decode(step)?;
        self.copied = Copied::default();
        Ok(())
    }

    fn logits(&self, index: usize) -> Option<&[f32]> {
        if let Some(kept) = self.kept(index) {
            return match kept {
                Some(Logits::Full(logits)) => Some(logits),
                _ => None,
            };
        }
        let index = i32::try_from(index).ok()?;
        if self.candidates(index) > 0 {
            // What llama.cpp would answer has as many numbers as there are candidates.
            return None;
        }
        // SAFETY: the context is alive; the call answers null for an index without output, and
        // else one f32 for each token of the vocabulary, until the next step.
        unsafe {
            let row = sys::llama_get_logits_ith(self.handle.as_ptr(), index);
            self.handle.numbers(row, self.handle.vocabulary())
        }
    }

    fn output(&self, index: usize) -> Option<Logits<'_>> {
        if let Some(kept) = self.kept(index) {
            return kept;
        }
        let place = i32::try_from(index).ok()?;
        let count = self.candidates(place);
        if count == 0 {
            return self.logits(index).map(Logits::Full);
        }
        let context = self.handle.as_ptr();
        // SAFETY: the context is alive; both point to `count` numbers that stay until the next step, which
        // needs `&mut self`. Tokens are indices of the row, so none is negative.
        unsafe {
            let tokens = sys::llama_get_sampled_candidates_ith(context, place);
            let logits = sys::llama_get_sampled_logits_ith(context, place);
            let as_many = sys::llama_get_sampled_logits_count_ith(context, place) == count;
            if !as_many || tokens.is_null() {
                return None;
            }
            let count = count as usize;
            Some(Logits::TopK(TopLogits {
                tokens: std::slice::from_raw_parts(tokens.cast::<Token>(), count),
                logits: self.handle.numbers(logits, count)?,
                vocabulary: self.handle.vocabulary(),
            }))
        }
    }

    fn top_k(&self) -> Option<u32> {
        self.device_top.map(|top| top.k)
    }

    fn copied(&self) -> Copied {
        self.copied
    }

    fn clear(&mut self, seq: SeqId) {
        self.handle.clear(seq);
    }

    fn share(&mut self, from: SeqId, to: SeqId, length: u32) {
        let part = length != self.length(from);
        debug_assert!(from != to && self.length(to) == 0, "{to:?} is in use");
        debug_assert!(length <= self.length(from), "{from:?} is shorter");
        debug_assert!(!part || self.can_truncate(), "{from:?} can't be parted");
        let (Some(from), Some(to)) = (self.handle.known(from), self.handle.known(to)) else {
            return;
        };
        if part && !self.can_truncate() {
            // llama.cpp would share the whole, or what the window left of the part.
            return;
        }
        let end = i32::try_from(length).unwrap_or(i32::MAX);
        // SAFETY: the context is alive and both ids within its bounds; the cache is one stream
        // (`kv_unified`), without which llama.cpp would end the process on a part.
        unsafe { sys::llama_memory_seq_cp(self.handle.memory(), from, to, 0, end) };
    }

    fn truncate(&mut self, seq: SeqId, length: u32) {
        let part = (1..self.length(seq)).contains(&length);
        debug_assert!(!part || self.can_truncate(), "{seq:?} can't be parted");
        if part && !self.can_truncate() {
            // llama.cpp would refuse, or keep what the window left of the part.
            return;
        }
        let (Some(seq), Ok(start)) = (self.handle.known(seq), i32::try_from(length)) else {
            return;
        };
        // SAFETY: the context is alive and the id within its bounds.
        unsafe { sys::llama_memory_seq_rm(self.handle.memory(), seq, start, -1) };
    }

    fn save(&mut self, seq: SeqId, limit: usize) -> Result<Vec<u8>, SaveError> {
        let id = self.handle.known(seq).ok_or(SaveError::Failed)?;
        let context = self.handle.as_ptr();
        // SAFETY: the context is alive and the id within its bounds.
        let bytes = unsafe { sys::llama_state_seq_get_size(context, id) };
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
        // SAFETY: the context is alive, the id within its bounds, and the buffer has room for
        // `bytes`; llama.cpp answers 0 rather than write more.
        let written =
            unsafe { sys::llama_state_seq_get_data(context, state.as_mut_ptr(), bytes, id) };
        if written != bytes {
            return Err(SaveError::Failed);
        }
        // SAFETY: the capacity is at least `bytes`, and llama.cpp has written each of them: it
        // counts what it writes, goes through the buffer without gaps, and copies all tensors
        // before it returns.
        unsafe { state.set_len(bytes) };
        Ok(state)
    }

    /// What llama.cpp notices of damage, and what not (`llama_kv_cache::state_read_sinfo`):
    ///
    /// - False: a wrong mark at the front, bytes that end early or go on, another number of
    ///   streams or layers, other types or sizes of rows, another form of the values, a cell that
    ///   claims not to belong to exactly one sequence, more cells than are free.
    /// - Unnoticed: other positions and other numbers in the tensors. So another model of the same
    ///   shape is taken; positions may have gaps or come twice; and one below 0 breaks llama.cpp's
    ///   books for the life of the context: its cell is used and empty at once, never freed, and
    ///   given to the next sequence too.
    /// - The end of the process: in the state of a recurrent or hybrid model, more than one cell for
    ///   the sequence (an assertion in `llama_memory_recurrent::state_read_meta`).
    fn load(&mut self, seq: SeqId, state: &[u8]) -> bool {
        debug_assert_eq!(self.length(seq), 0, "{seq:?} is in use");
        let Some(id) = self.handle.known(seq) else {
            return false;
        };
        let context = self.handle.as_ptr();
        // SAFETY: the context is alive, the id within its bounds, and no more is read than there
        // is. The bytes are a saved state, which the caller answers for.
        let read =
            unsafe { sys::llama_state_seq_set_data(context, state.as_ptr(), state.len(), id) };
        let loaded = read != 0 && read == state.len();
        if !loaded {
            // llama.cpp clears what it has begun itself, but not the first of the two caches of a
            // sliding-window model when the second fails, nor a state with more bytes behind it.
            self.clear(seq);
        }
        loaded
    }

    fn length(&self, seq: SeqId) -> u32 {
        let Some(seq) = self.handle.known(seq) else {
            return 0;
        };
        // SAFETY: the context is alive and the id within its bounds.
        let last = unsafe { sys::llama_memory_seq_pos_max(self.handle.memory(), seq) };
        u32::try_from(last + 1).unwrap_or(0)
    }
}

/// What only tests ask of llama.cpp.
#[cfg(test)]
impl LlamaContext {
    /// The whole state as llama.cpp saves it. It lists the used cells, which nothing else tells.
    fn state(&mut self) -> Vec<u8> {
        let context = self.handle.as_ptr();
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
            sys::llama_set_abort_callback(self.handle.as_ptr(), callback, std::ptr::null_mut());
        }
    }
}

#[cfg(test)]
mod tests;
