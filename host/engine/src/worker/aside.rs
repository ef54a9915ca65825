//! What the engine's thread does to the cells between two steps, and with what was put aside.

use super::Worker;
use crate::Token;
use crate::backend::{Backend, SaveError};
use crate::metrics::{EngineMetrics, set};
use crate::status::EngineStatus;
use crate::swap_store::{Fetched, SwapStore};
use corral_scheduler::{EntryId, Layout, MemoryOp, PrefixScope, RequestId, SeqId, WeakRetention};
use std::time::Instant;

/// Largest state that is moved within the cells, in bytes: there is a copy of it for that moment.
const RELOCATED: usize = 1 << 28;

/// States that were put aside, and who waits for one.
#[derive(Default)]
pub struct Swap {
    /// Those of sequences that somebody goes on with. None if none are put aside.
    spill: Option<Store>,
    /// Those of prefixes that nobody claims, apart, so that these never push out the others.
    prefixes: Option<Store>,
    wanted: Vec<(EntryId, RequestId)>,
}

/// Where states are.
struct Store {
    spill: SwapStore,
    /// The largest state that is taken, in bytes.
    most: usize,
}

impl Store {
    /// One that takes states of at most so many bytes.
    fn new(spill: SwapStore, most: u64) -> Self {
        let most = usize::try_from(most).unwrap_or(usize::MAX);
        Self { spill, most }
    }
}

impl Swap {
    /// Keeps states of sequences, each of at most so many bytes.
    #[must_use]
    pub fn with_sequences(mut self, spill: SwapStore, most: u64) -> Self {
        self.spill = Some(Store::new(spill, most));
        self
    }

    /// Keeps states of prefixes, each of at most so many bytes.
    #[must_use]
    pub fn with_prefixes(mut self, spill: SwapStore, most: u64) -> Self {
        self.prefixes = Some(Store::new(spill, most));
        self
    }

    /// Where a prefix goes, or a sequence.
    fn store(&mut self, prefix: bool) -> Option<&mut Store> {
        match prefix {
            true => self.prefixes.as_mut(),
            false => self.spill.as_mut(),
        }
    }

    fn stores(&mut self) -> impl Iterator<Item = &mut SwapStore> {
        let both = self.spill.iter_mut().chain(&mut self.prefixes);
        both.map(|store| &mut store.spill)
    }

    /// How many wait.
    pub fn wanted(&self) -> usize {
        self.wanted.len()
    }

    /// Tells how much is put aside.
    pub fn report(&self, counters: &EngineMetrics) {
        if let Some(prefixes) = &self.prefixes {
            set(&counters.prefix_offload_bytes, prefixes.spill.ram_bytes());
        }
        if let Some(Store { spill, .. }) = &self.spill {
            set(&counters.swap_ram_bytes, spill.ram_bytes());
            set(&counters.swap_disk_bytes, spill.disk_bytes());
            let counts = spill.counts();
            set(&counters.swap_disk_written_bytes, counts.spilled_bytes);
            set(&counters.swap_disk_read_bytes, counts.read_back_bytes);
        }
    }
}

/// Asks for a copy of the state of a text.
pub struct ExportState {
    pub scope: PrefixScope,
    pub tokens: Vec<Token>,
    /// Bytes of the state.
    pub limit: usize,
    pub reply: Box<dyn FnOnce(Option<ExportedState>) + Send>,
}

/// A copy of the state of a text's first tokens.
pub struct ExportedState {
    /// How many; at least one.
    pub length: u32,
    /// How they lie in the state.
    pub layout: Layout,
    /// The state.
    pub bytes: Vec<u8>,
}

/// A state that comes from outside, by hands that are trusted.
pub struct ImportState {
    pub scope: PrefixScope,
    /// All of them are in the state.
    pub tokens: Vec<Token>,
    pub layout: Layout,
    pub state: Vec<u8>,
    pub retention: WeakRetention,
}

impl<B: Backend> Worker<B> {
    /// Does what the scheduler wants done.
    pub(super) fn see_to_memory(&mut self) {
        loop {
            let memory = self.scheduler.take_memory_ops();
            if memory.is_empty() {
                return;
            }
            self.do_memory(&memory);
        }
    }

    pub(super) fn do_memory(&mut self, memory: &[MemoryOp]) {
        for operation in memory {
            match *operation {
                MemoryOp::Clear(seq) => self.backend.clear(seq),
                MemoryOp::Share { from, to, length } => self.backend.share(from, to, length),
                MemoryOp::Truncate { seq, length } => self.backend.truncate(seq, length),
                MemoryOp::SwapOut { entry, seq } => {
                    if let Err(error) = self.put_aside(entry, seq) {
                        tracing::debug!(
                            error,
                            "what can't be put aside is computed again when it is needed"
                        );
                        self.scheduler.entry_lost(entry);
                    }
                }
                MemoryOp::SwapIn {
                    entry,
                    request: key,
                } => self.aside.wanted.push((entry, key)),
                MemoryOp::Compact(seq) => {
                    let state = self.backend.save(seq, RELOCATED);
                    self.backend.clear(seq);
                    let moved = state.is_ok_and(|state| self.backend.load(seq, &state));
                    if !moved {
                        tracing::debug!("a sequence could not be moved and is computed again");
                        self.scheduler.compaction_failed(seq);
                    }
                }
                MemoryOp::Discard(entry) => {
                    // Nobody knows any more what it was.
                    for store in self.aside.stores() {
                        store.forget(entry.0);
                    }
                }
            }
        }
    }

    /// Puts a copy of an id's state aside, or says why it can't be.
    fn put_aside(&mut self, entry: EntryId, seq: SeqId) -> Result<(), String> {
        if !self.scheduler.has_entry(entry) {
            return Err("nobody knows of it any more".into());
        }
        let prefix = self.scheduler.is_offloaded_prefix(entry);
        let store = self.aside.store(prefix).ok_or("nothing is put aside")?;
        let before = Instant::now();
        let state = self.backend.save(seq, store.most);
        if prefix && matches!(state, Err(SaveError::TooLarge { .. })) {
            self.scheduler.offload_too_large(entry);
        }
        let state = state.map_err(|error| error.to_string())?;
        let took = before.elapsed().as_secs_f64();
        self.scheduler.observe_swap(self.backend.length(seq), took);
        let kept = store.spill.put(entry.0, state);
        kept.map_err(|error| error.to_string())
    }

    /// Brings back what was put aside and somebody waits for, as far as it is at hand.
    pub(super) fn bring_back(&mut self) {
        for store in self.aside.stores() {
            store.poll();
            for id in store.take_lost() {
                self.scheduler.entry_lost(EntryId(id));
            }
        }
        let mut left = Vec::new();
        for (entry, key) in std::mem::take(&mut self.aside.wanted) {
            let prefix = self.scheduler.is_offloaded_prefix(entry);
            let fetched = match self.aside.store(prefix) {
                Some(store) => store.spill.fetch(entry.0),
                None => Fetched::Gone,
            };
            match fetched {
                Fetched::Coming if self.scheduler.waits_for_swap_in(key, entry) => {
                    self.aside.wanted.push((entry, key));
                }
                Fetched::Coming => left.push(entry),
                Fetched::Gone => self.scheduler.entry_lost(entry),
                Fetched::Here(state) => self.load(entry, key, state),
            }
        }
        // Only what nobody else waits for: it would not be told when it is at hand.
        for entry in left {
            let wanted = self.aside.wanted.iter().any(|(other, _)| *other == entry);
            for store in self.aside.stores().filter(|_| !wanted) {
                store.release(entry.0);
            }
        }
        self.see_to_memory();
    }

    fn load(&mut self, entry: EntryId, key: RequestId, state: Vec<u8>) {
        let keep = match self.scheduler.begin_swap_in(key, entry) {
            None => self.scheduler.has_entry(entry),
            Some(seq) => {
                self.see_to_memory();
                let before = Instant::now();
                let success = self.backend.load(seq, &state);
                let took = before.elapsed().as_secs_f64();
                self.scheduler.observe_swap(self.backend.length(seq), took);
                self.scheduler.finish_swap_in(key, entry, success)
            }
        };
        if keep {
            self.put_back(entry, state);
        }
    }

    /// Keeps a state that was put aside, or comes from outside.
    fn put_back(&mut self, entry: EntryId, state: Vec<u8>) {
        let store = self.aside.store(self.scheduler.is_offloaded_prefix(entry));
        let kept = store.is_some_and(|store| store.spill.put(entry.0, state).is_ok());
        if !kept {
            self.scheduler.entry_lost(entry);
        }
    }

    /// What goes on.
    pub(super) fn view(&self) -> EngineStatus {
        let spill = self.aside.spill.as_ref().map(|store| &store.spill);
        let prefixes = self.aside.prefixes.as_ref();
        EngineStatus {
            cells: self.limits.cells,
            cells_pinned: self.scheduler.cells().pinned(),
            cells_used: self.scheduler.cells().used(),
            attention_cells: self.scheduler.cells().n_kv(),
            sequence_ids: self.limits.seq_ids,
            sequence_ids_used: self.scheduler.seq_ids_used(),
            waiting: self.scheduler.waiting_count(),
            swap_ram_bytes: spill.map_or(0, SwapStore::ram_bytes),
            swap_disk_bytes: spill.map_or(0, SwapStore::disk_bytes),
            prefix_offload_bytes: prefixes.map_or(0, |store| store.spill.ram_bytes()),
            requests: self.scheduler.requests().collect(),
            prefix_cache: self.scheduler.entries().collect(),
            counters: self.scheduler.counters(),
        }
    }

    /// Copies the state of the longest part of a text that there is.
    pub(super) fn save(&mut self, order: ExportState) {
        let found = self.scheduler.borrow_prefix(order.scope, &order.tokens);
        self.see_to_memory();
        let saved = found.and_then(|(seq, length)| {
            let state = self.backend.save(seq, order.limit).ok()?;
            let layout = self.scheduler.cells().layout(seq);
            Some(ExportedState {
                length,
                layout,
                bytes: state,
            })
        });
        if let Some((seq, _)) = found {
            self.scheduler.return_prefix(seq);
            self.see_to_memory();
        }
        (order.reply)(saved);
    }

    /// Takes in a state that was saved: from now on it is one that was put aside.
    pub(super) fn adopt(&mut self, adoption: ImportState) {
        if self.aside.spill.is_none() {
            return;
        }
        let ImportState {
            scope,
            tokens,
            layout,
            state,
            retention: claim,
        } = adoption;
        let entry = self.scheduler.import_entry(scope, tokens, layout, claim);
        self.put_back(entry, state);
    }
}
