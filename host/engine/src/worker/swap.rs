//! Applies the scheduler's memory operations between two steps: moves states within the cells, and between the cells and the
//! stores in RAM and on disk.
//!
//! *Invariant*: the scheduler learns of every state that could not be stored or loaded, and the tokens are computed again; no
//! request fails because of it. This module does not choose what to move, and does not wait for the disk: a state that is
//! not ready is asked for again before the next step.

use super::Worker;
use super::prefix_files::PrefixFiles;
use crate::Token;
use crate::backend::{Backend, SaveError};
use crate::generation_trace::GenerationTrace;
use crate::machine_memory::MemoryPressure;
use crate::metrics::{EngineMetrics, set};
use crate::swap_store::{FetchResult, SwapStore};
use corral_scheduler::{
    EntryId, MemoryOp, PositionOrder, PrefixScope, RequestId, SeqId, WeakRetention,
};
use std::time::Instant;

/// Largest state to compact, in bytes: compaction holds a copy of it. The scheduler picks no longer sequence
/// ([`SchedulerConfig::max_compaction_tokens`](corral_scheduler::SchedulerConfig::max_compaction_tokens)).
pub const MAX_COMPACTION_BYTES: usize = 1 << 28;

/// The stores of swapped-out states, and the requests that wait for one.
#[derive(Default)]
pub struct Swap {
    /// Retained sequences; `None` disables swapping them out.
    sequences: Option<LimitedStore>,
    /// Offloaded prefixes, which are not retained. A store of their own keeps them from displacing sequences.
    prefixes: Option<LimitedStore>,
    /// Prefixes that survive the process.
    pub(super) files: Option<PrefixFiles>,
    requested: Vec<(EntryId, RequestId)>,
    memory_pressure: MemoryPressure,
}

/// A store with a size limit per state.
struct LimitedStore {
    store: SwapStore,
    max_state_bytes: usize,
}

impl LimitedStore {
    fn new(store: SwapStore, max_state_bytes: u64) -> Self {
        Self {
            store,
            max_state_bytes: usize::try_from(max_state_bytes).unwrap_or(usize::MAX),
        }
    }
}

impl Swap {
    /// Swaps sequences out to this store.
    #[must_use]
    pub fn with_sequences(mut self, store: SwapStore, max_state_bytes: u64) -> Self {
        self.sequences = Some(LimitedStore::new(store, max_state_bytes));
        self
    }

    /// Offloads prefixes to this store.
    #[must_use]
    pub fn with_prefixes(mut self, store: SwapStore, max_state_bytes: u64) -> Self {
        self.prefixes = Some(LimitedStore::new(store, max_state_bytes));
        self
    }

    /// Keeps prefixes in these files, too.
    #[must_use]
    pub fn with_files(mut self, files: Option<PrefixFiles>) -> Self {
        self.files = files;
        self
    }

    /// The store of prefixes or of sequences.
    fn store(&mut self, is_prefix: bool) -> Option<&mut LimitedStore> {
        match is_prefix {
            true => self.prefixes.as_mut(),
            false => self.sequences.as_mut(),
        }
    }

    fn stores(&mut self) -> impl Iterator<Item = &mut SwapStore> {
        let both = self.sequences.iter_mut().chain(&mut self.prefixes);
        let files = self.files.iter_mut().map(PrefixFiles::store);
        both.map(|limited| &mut limited.store).chain(files)
    }

    /// The stores of sequences and of prefixes.
    pub fn both(&self) -> [Option<&SwapStore>; 2] {
        [&self.sequences, &self.prefixes].map(|one| one.as_ref().map(|limited| &limited.store))
    }

    /// Number of requested swap-ins.
    pub fn requested(&self) -> usize {
        self.requested.len()
    }

    /// Sets the metrics of the stores.
    pub fn report(&self, metrics: &EngineMetrics) {
        if let Some(LimitedStore { store, .. }) = &self.prefixes {
            set(&metrics.prefix_offload_bytes, store.ram_bytes());
        }
        if let Some(LimitedStore { store, .. }) = &self.sequences {
            set(&metrics.swap_ram_bytes, store.ram_bytes());
            set(&metrics.swap_disk_bytes, store.disk_bytes());
            let counts = store.counts();
            set(&metrics.swap_disk_written_bytes, counts.written_bytes);
            set(&metrics.swap_disk_read_bytes, counts.read_bytes);
        }
        if let Some(files) = &self.files {
            files.report(metrics);
        }
    }
}

/// Requests a copy of a sequence's state.
pub struct ExportState {
    pub scope: PrefixScope,
    pub tokens: Vec<Token>,
    /// Most bytes of the state.
    pub limit: usize,
    /// Receives `None` if there is no state, or if it exceeds the limit.
    pub reply: Box<dyn FnOnce(Option<ExportedState>) + Send>,
}

/// A copy of the state of a sequence's first tokens.
pub struct ExportedState {
    /// Number of tokens; at least one.
    pub length: u32,
    /// The order of the tokens in the state.
    pub order: PositionOrder,
    pub bytes: Vec<u8>,
}

/// A saved state. The backend trusts its bytes.
pub struct ImportState {
    pub scope: PrefixScope,
    /// Exactly the tokens of the state.
    pub tokens: Vec<Token>,
    pub order: PositionOrder,
    pub state: Vec<u8>,
    pub retention: WeakRetention,
}

impl<B: Backend> Worker<B> {
    /// Applies the scheduler's queued memory operations until none is left.
    pub(super) fn run_memory_ops(&mut self) {
        loop {
            let ops = self.scheduler.take_memory_ops();
            if ops.is_empty() {
                return;
            }
            self.apply_memory_ops(&ops);
        }
    }

    pub(super) fn apply_memory_ops(&mut self, ops: &[MemoryOp]) {
        for op in ops {
            match *op {
                MemoryOp::Clear(seq) => self.backend.clear(seq),
                MemoryOp::Share { from, to, length } => self.backend.share(from, to, length),
                MemoryOp::Truncate { seq, length } => self.backend.truncate(seq, length),
                MemoryOp::SwapOut { entry, seq } => {
                    if let Err(error) = self.swap_out(entry, seq) {
                        tracing::debug!(
                            error,
                            "a swap-out failed; later requests recompute the state"
                        );
                        self.scheduler.entry_lost(entry);
                    }
                }
                MemoryOp::SwapIn { entry, request } => {
                    if let Some(trace) = self.trace_of(request) {
                        trace.swap_in_began();
                    }
                    self.swap.requested.push((entry, request));
                }
                MemoryOp::Compact(seq) => {
                    let state = self.backend.save(seq, MAX_COMPACTION_BYTES);
                    self.backend.clear(seq);
                    let loaded = state.is_ok_and(|state| self.backend.load(seq, &state));
                    if !loaded {
                        tracing::debug!("a compaction failed; the sequence is recomputed");
                        self.scheduler.compaction_failed(seq);
                    }
                }
                MemoryOp::Discard(entry) => {
                    // The scheduler no longer knows which store holds the entry.
                    for store in self.swap.stores() {
                        store.remove(entry.0);
                    }
                }
            }
        }
    }

    /// Copies the state of a sequence id to a store, or returns the reason of the failure.
    fn swap_out(&mut self, entry: EntryId, seq: SeqId) -> Result<(), String> {
        if !self.scheduler.has_entry(entry) {
            return Err("the scheduler has dropped the entry".into());
        }
        let is_prefix = self.scheduler.is_offloaded_prefix(entry);
        if is_prefix && self.swap.memory_pressure >= MemoryPressure::DropPrefixes {
            return Err("the machine is short of memory".into());
        }
        let limited = self.swap.store(is_prefix).ok_or("there is no swap store")?;
        let before = Instant::now();
        let state = self.backend.save(seq, limited.max_state_bytes);
        if is_prefix && matches!(state, Err(SaveError::TooLarge { .. })) {
            self.scheduler.offload_too_large(entry);
        }
        let state = state.map_err(|error| error.to_string())?;
        let seconds = before.elapsed().as_secs_f64();
        let length = self.backend.length(seq);
        self.scheduler.observe_swap(length, seconds);
        if is_prefix {
            self.write_prefix(entry, &state);
        }
        let limited = self.swap.store(is_prefix).ok_or("there is no swap store")?;
        let stored = limited.store.put(entry.0, state);
        stored.map_err(|error| error.to_string())
    }

    /// Loads the requested states that are ready.
    pub(super) fn swap_in(&mut self) {
        self.poll_prefix_files();
        for store in self.swap.stores() {
            store.poll();
            for id in store.take_lost() {
                self.scheduler.entry_lost(EntryId(id));
            }
        }
        let mut unneeded = Vec::new();
        for (entry, request) in std::mem::take(&mut self.swap.requested) {
            let is_durable = self.scheduler.is_durable(entry);
            let is_prefix = self.scheduler.is_offloaded_prefix(entry);
            let store = match is_durable {
                true => self.swap.files.as_mut().map(PrefixFiles::store),
                false => self.swap.store(is_prefix).map(|limited| &mut limited.store),
            };
            let fetched = store.map_or(FetchResult::Missing, |store| store.fetch(entry.0));
            match fetched {
                FetchResult::Pending if self.scheduler.waits_for_swap_in(request, entry) => {
                    self.swap.requested.push((entry, request));
                }
                FetchResult::Pending => unneeded.push(entry),
                FetchResult::Missing => self.scheduler.entry_lost(entry),
                FetchResult::Ready(file) if is_durable => self.load_file(entry, request, &file),
                FetchResult::Ready(state) => {
                    if self.load_state(entry, request, &state) {
                        self.store_state(entry, state);
                    }
                }
            }
        }
        for entry in unneeded {
            // Another request may still wait for the same entry.
            if self.swap.requested.iter().all(|(other, _)| *other != entry) {
                for store in self.swap.stores() {
                    store.cancel_fetch(entry.0);
                }
            }
        }
        self.run_memory_ops();
    }

    /// Loads the state of an entry for a request. Returns whether the copy outside of the cells is still needed.
    pub(super) fn load_state(&mut self, entry: EntryId, request: RequestId, state: &[u8]) -> bool {
        match self.scheduler.begin_swap_in(request, entry) {
            None => self.scheduler.has_entry(entry),
            Some(seq) => {
                // The time of an overlapped step must not count as time of the moves.
                self.backend.wait();
                self.run_memory_ops();
                let before = Instant::now();
                let success = self.backend.load(seq, state);
                let seconds = before.elapsed().as_secs_f64();
                let length = self.backend.length(seq);
                self.scheduler.observe_swap(length, seconds);
                if let Some(trace) = self.trace_of(request) {
                    trace.swap_in_ended();
                }
                self.scheduler.finish_swap_in(request, entry, success)
            }
        }
    }

    fn trace_of(&self, request: RequestId) -> Option<&GenerationTrace> {
        self.requests.get(&request)?.trace()
    }

    fn store_state(&mut self, entry: EntryId, state: Vec<u8>) {
        let limited = self.swap.store(self.scheduler.is_offloaded_prefix(entry));
        let stored = limited.is_some_and(|limited| limited.store.put(entry.0, state).is_ok());
        if !stored {
            self.scheduler.entry_lost(entry);
        }
    }

    /// See [`Engine::set_memory_pressure`](crate::Engine::set_memory_pressure).
    pub(super) fn set_memory_pressure(&mut self, pressure: MemoryPressure) {
        self.swap.memory_pressure = pressure;
        if pressure >= MemoryPressure::DropPrefixes {
            self.scheduler.drop_offloaded_prefixes();
            self.run_memory_ops();
        }
        if let Some(LimitedStore { store, .. }) = &mut self.swap.sequences {
            store.move_to_disk(pressure >= MemoryPressure::SwapOut);
        }
    }

    /// Copies the state of the longest cached prefix of the tokens.
    pub(super) fn export_state(&mut self, export: ExportState) {
        let prefix = self.scheduler.borrow_prefix(export.scope, &export.tokens);
        // As in `load_state`: a prefix may move to free an id.
        self.backend.wait();
        self.run_memory_ops();
        let state = prefix.and_then(|(seq, length)| {
            Some(ExportedState {
                length,
                bytes: self.backend.save(seq, export.limit).ok()?,
                order: self.scheduler.cells().order(seq),
            })
        });
        if let Some((seq, _)) = prefix {
            self.scheduler.return_prefix(seq);
            self.run_memory_ops();
        }
        (export.reply)(state);
    }

    /// Adds a saved state as if it had been swapped out.
    pub(super) fn import_state(&mut self, import: ImportState) {
        if self.swap.sequences.is_none() {
            return;
        }
        let ImportState {
            scope,
            tokens,
            order,
            state,
            retention,
        } = import;
        let entry = self.scheduler.import_entry(scope, tokens, order, retention);
        self.store_state(entry, state);
    }
}
