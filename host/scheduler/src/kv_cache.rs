//! The KV cache: cells, sequence ids and prefix cache entries, and the operations that the backend must do.
//!
//! Each change of the mirror ([`KvCells`]) queues the [`MemoryOp`] that makes the backend's cells the same.
//! The backend does them in order before the rows of a step.
//!
//! **A sequence id is always available for a request that may run.** At most as many requests run as there are
//! ids of the kind [`LogitsKind::All`]. While fewer run, one of these ids is free or belongs to an entry,
//! which can be evicted. Ids of the kind [`LogitsKind::TopK`] only add to these. An entry may have an id of
//! either kind: when one kind runs out, an entry moves to a free id of the other.
//!
//! Under pressure, unretained entries are evicted first, least recently used first, then retained sequences are
//! swapped out in the same order. An unretained entry is [offloaded or dropped](crate::eviction). Running requests are
//! never touched here; [preemption](crate::preemption) does that.

use crate::Token;
use crate::config::SchedulerConfig;
use crate::kv_cells::KvCells;
use crate::prefix_cache::{Entry, EntryState, PrefixCache, PrefixHolder};
use crate::request::{LogitsKind, PrefixScope};
use crate::retention::WeakRetention;
use crate::sequence_ids::SequenceIds;
use crate::step::{EntryId, MemoryOp, Row, SeqId, cells_of};
use crate::swap_costs::SwapCosts;

/// A shorter sequence that is not retained is dropped: computing it again is as fast.
const MIN_KEPT_TOKENS: usize = 16;

/// Changes of the cache since the start: see [`SchedulerCounters`](crate::SchedulerCounters).
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct CacheCounters {
    pub dropped: u64,
    pub swapped_out: u64,
    pub offloaded: u64,
    pub swapped_in: u64,
    pub lost: u64,
    pub compacted: u64,
}

/// The cells, sequence ids and entries, and the queued operations of the backend.
#[derive(Clone, Debug)]
pub(crate) struct KvCache {
    pub(crate) config: SchedulerConfig,
    pub(crate) cells: KvCells,
    ids: SequenceIds,
    pub(crate) entries: PrefixCache,
    pub(crate) swap_costs: SwapCosts,
    pub(crate) counters: CacheCounters,
    ops: Vec<MemoryOp>,
}

/// The sequence of a request that ended.
pub(crate) struct EndedSequence {
    pub scope: PrefixScope,
    pub tokens: Vec<Token>,
    pub seq: SeqId,
    pub retention: WeakRetention,
    /// Hits of the entry that it replaces, with its own.
    pub hits: u64,
}

impl KvCache {
    /// An empty cache.
    pub fn new(config: SchedulerConfig) -> Self {
        Self {
            config,
            cells: KvCells::new(config.cells),
            ids: SequenceIds::new(&config),
            entries: PrefixCache::default(),
            swap_costs: SwapCosts::default(),
            counters: CacheCounters::default(),
            ops: Vec::new(),
        }
    }

    /// Takes the queued operations.
    pub fn take_ops(&mut self) -> Vec<MemoryOp> {
        std::mem::take(&mut self.ops)
    }

    /// Whether operations are queued.
    pub fn has_ops(&self) -> bool {
        !self.ops.is_empty()
    }

    /// Queues an operation that the mirror already reflects.
    pub(crate) fn push_op(&mut self, op: MemoryOp) {
        self.ops.push(op);
    }

    /// Ids in use.
    pub fn ids_used(&self) -> usize {
        self.ids.used()
    }

    /// Takes cells for the rows of a step. They must be free.
    pub fn place(&mut self, rows: &[Row]) {
        let placed = self.cells.place(cells_of(rows));
        debug_assert!(placed, "too few free cells for the rows");
    }

    /// Frees the cells of the rows of a failed step.
    pub fn undo(&mut self, rows: &[Row]) {
        self.cells.undo(cells_of(rows));
    }

    /// Shares a prefix of a sequence with an empty id.
    pub fn share(&mut self, from: SeqId, to: SeqId, length: u32) {
        self.cells.share(from, to, length);
        self.ops.push(MemoryOp::Share { from, to, length });
    }

    /// Shortens a sequence to `length`.
    pub fn truncate(&mut self, seq: SeqId, length: u32) {
        if self.cells.held_by(seq) > length {
            self.cells.truncate(seq, length);
            self.ops.push(MemoryOp::Truncate { seq, length });
        }
    }

    /// Frees all cells of an id, which stays in use.
    pub fn clear(&mut self, seq: SeqId) {
        self.cells.clear(seq);
        self.ops.push(MemoryOp::Clear(seq));
    }

    /// Frees an id and its cells.
    pub fn release(&mut self, seq: SeqId) {
        self.cells.unpin(seq);
        if self.cells.held_by(seq) > 0 {
            self.cells.clear(seq);
        }
        self.ops.push(MemoryOp::Clear(seq));
        self.ids.release(seq);
    }

    /// Cells that can become free without a preemption.
    pub fn evictable_cells(&self) -> u32 {
        self.config.cells.saturating_sub(self.cells.pinned())
    }

    /// Whether a request that needs these logits may run with an id.
    pub fn may_use(&self, seq: SeqId, logits: LogitsKind) -> bool {
        logits == LogitsKind::TopK || self.config.logits_of(seq) == LogitsKind::All
    }

    /// An id for a request, by evicting entries other than `spared` if none is free.
    pub fn take_id(&mut self, logits: LogitsKind, spared: Option<EntryId>) -> Option<SeqId> {
        let kind = self.ids.preferred(logits);
        let id = self.take_id_of(kind, spared, true);
        match kind {
            LogitsKind::All => id,
            LogitsKind::TopK => id.or_else(|| self.take_id_of(LogitsKind::All, spared, true)),
        }
    }

    /// An id that suits these logits better than `seq`, the id of `entry`. Evicts entries only if a request with
    /// these logits must not use `seq`.
    pub fn take_preferred_id(
        &mut self,
        seq: SeqId,
        logits: LogitsKind,
        entry: EntryId,
    ) -> Option<SeqId> {
        let kind = self.ids.preferred(logits);
        if self.config.logits_of(seq) == kind {
            return None;
        }
        let must_move = !self.may_use(seq, logits);
        self.take_id_of(kind, Some(entry), must_move)
    }

    /// An id of this kind. If none is free, an entry moves to an id of the other kind. If none of those is free
    /// either, the least recently used entry is evicted, if `evict`.
    fn take_id_of(
        &mut self,
        kind: LogitsKind,
        spared: Option<EntryId>,
        evict: bool,
    ) -> Option<SeqId> {
        if let Some(seq) = self.ids.take(kind) {
            return Some(seq);
        }
        self.entries.update_retained();
        let config = self.config;
        let moves = self.least_recent(spared, |seq| config.logits_of(seq) == kind)?;
        if self.ids.is_exhausted() {
            if !evict {
                return None;
            }
            let evicted = self.least_recent(spared, |_| true)?;
            self.evict(evicted);
            if evicted == moves {
                return self.ids.take(kind);
            }
        }
        let to = self.ids.take(match kind {
            LogitsKind::TopK => LogitsKind::All,
            LogitsKind::All => LogitsKind::TopK,
        })?;
        self.move_entry(moves, to);
        self.ids.take(kind)
    }

    /// The least recently used entry with an id that `matches`, unretained ones first.
    fn least_recent(
        &self,
        spared: Option<EntryId>,
        matches: impl Fn(SeqId) -> bool,
    ) -> Option<EntryId> {
        let may = |id: EntryId, seq: SeqId| Some(id) != spared && matches(seq);
        let unretained = self.entries.least_recent(false, may);
        unretained.or_else(|| self.entries.least_recent(true, may))
    }

    /// Moves a resident entry to another id, which is empty.
    fn move_entry(&mut self, id: EntryId, to: SeqId) {
        let entry = self.entries.get(id);
        let entry = entry.and_then(|entry| Some((entry.seq()?, entry.length())));
        let Some((from, length)) = entry else {
            debug_assert!(false, "{id:?} is not resident");
            self.release(to);
            return;
        };
        self.share(from, to, length);
        self.entries.set_seq(id, to);
        self.release(from);
    }

    /// Frees cells until `cells` are free, by evicting entries. False if that is not possible.
    pub fn make_room(&mut self, cells: u32) -> bool {
        if self.cells.free() < cells {
            self.entries.update_retained();
        }
        while self.cells.free() < cells {
            let frees = |_: EntryId, seq: SeqId| self.cells.freed_by_clearing(seq) > 0;
            let any = |_: EntryId, _: SeqId| true;
            // Several entries may hold the same cells; then none of them frees any by itself.
            let oldest = self
                .entries
                .least_recent(false, frees)
                .or_else(|| self.entries.least_recent(true, frees))
                .or_else(|| self.entries.least_recent(false, any))
                .or_else(|| self.entries.least_recent(true, any));
            let Some(id) = oldest else {
                return false;
            };
            self.evict(id);
        }
        true
    }

    /// Frees cells until `cells` are free, as far as evicting unretained entries does it.
    pub fn evict_unretained(&mut self, cells: u32) {
        if self.cells.free() < cells {
            self.entries.update_retained();
        }
        while self.cells.free() < cells {
            let frees = |_: EntryId, seq: SeqId| self.cells.freed_by_clearing(seq) > 0;
            let Some(id) = self.entries.least_recent(false, frees) else {
                break;
            };
            self.evict(id);
        }
    }

    /// Removes a resident entry from the cells: swaps it out if it is retained, else offloads or drops it.
    pub fn evict(&mut self, id: EntryId) {
        let Some(entry) = self.entries.get(id) else {
            return;
        };
        let Some(seq) = entry.seq() else {
            return;
        };
        if entry.is_retained() && self.config.swap {
            self.swap_out(id, seq);
            self.release(seq);
        } else {
            self.offload_or_drop(id, seq);
        }
    }

    /// Swaps out an entry. Its id stays in use, by the caller.
    pub fn swap_out(&mut self, id: EntryId, seq: SeqId) {
        let order = self.cells.order(seq);
        self.entries.set_swapped_out(id, order, false);
        self.ops.push(MemoryOp::SwapOut { entry: id, seq });
        self.counters.swapped_out += 1;
    }

    /// Offloads an entry that is not retained.
    pub fn offload(&mut self, id: EntryId, seq: SeqId) {
        let order = self.cells.order(seq);
        self.entries.set_swapped_out(id, order, true);
        self.ops.push(MemoryOp::SwapOut { entry: id, seq });
        self.counters.offloaded += 1;
        self.swap_costs.observe_offload();
        self.release(seq);
    }

    /// Turns the sequence of a request that ended into an entry if it may be reused; else frees its id. Drops
    /// entries that it makes redundant, unless they are `awaited` or on disk.
    pub fn keep_or_release(&mut self, ended: EndedSequence, awaited: impl Fn(EntryId) -> bool) {
        let EndedSequence {
            scope,
            tokens,
            seq,
            retention,
            mut hits,
        } = ended;
        let retained = retention.is_held();
        let useful = (retained && !tokens.is_empty()) || tokens.len() >= MIN_KEPT_TOKENS;
        let parts = self.config.can_reuse_part();
        let redundant = !retained && self.entries.has_resident(scope, &tokens, parts);
        if !self.config.prefix_cache || !useful || redundant {
            self.release(seq);
            return;
        }
        if parts {
            for id in self.entries.prefixes_of(scope, &tokens) {
                let is_durable = self.entries.get(id).is_some_and(Entry::is_durable);
                if !is_durable && !awaited(id) {
                    hits += self.entries.get(id).map_or(0, |entry| entry.hits);
                    self.drop_entry(id);
                }
            }
        }
        self.cells.unpin(seq);
        let state = EntryState::Resident(seq);
        let id = self.entries.insert(scope, tokens, state, retention);
        self.entries.add_hits(id, hits);
    }

    /// Drops an entry, wherever its state is. No running request may wait for it.
    pub fn drop_entry(&mut self, id: EntryId) {
        match self.entries.remove(id).map(|entry| entry.state) {
            Some(EntryState::Resident(seq)) => self.release(seq),
            Some(EntryState::SwappedOut(_)) => self.ops.push(MemoryOp::Discard(id)),
            None => {}
        }
    }

    /// Drops a swapped-out entry and counts it: an offloaded prefix as dropped, a sequence as lost. False if there is no
    /// such entry.
    pub fn drop_swapped_out(&mut self, id: EntryId) -> bool {
        let Some(entry) = self.entries.get(id).filter(|entry| entry.seq().is_none()) else {
            return false;
        };
        match entry.is_offloaded() {
            true => self.counters.dropped += 1,
            false => self.counters.lost += 1,
        }
        self.drop_entry(id);
        true
    }

    /// An id that holds exactly the longest cached prefix of `tokens`, and the length of the prefix.
    pub fn borrow_prefix(&mut self, scope: PrefixScope, tokens: &[Token]) -> Option<(SeqId, u32)> {
        let is_whole = |shared: u32, entry: &Entry| shared == entry.length();
        let parts = self.config.can_reuse_part();
        let nearest = self.entries.nearest(scope, tokens).into_iter();
        let (id, from, shared, whole) = nearest
            .filter_map(|(holder, shared)| match holder {
                PrefixHolder::Entry(id) => Some((id, shared, self.entries.get(id)?)),
                PrefixHolder::Running(_) => None,
            })
            .filter(|(_, shared, entry)| parts || is_whole(*shared, entry))
            .find_map(|(id, shared, entry)| {
                Some((id, entry.seq()?, shared, is_whole(shared, entry)))
            })?;
        if whole {
            return Some((from, shared));
        }
        let seq = self.take_id(LogitsKind::TopK, Some(id))?;
        self.share(from, seq, shared);
        Some((seq, shared))
    }

    /// Ends [`KvCache::borrow_prefix`].
    pub fn return_prefix(&mut self, seq: SeqId) {
        if self.entries.entry_of(seq).is_none() {
            self.release(seq);
        }
    }
}
