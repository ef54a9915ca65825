//! Swapping as the backend drives it: states move between two steps, may be lost, and come from outside.

use crate::Token;
use crate::cost_model::CostModel;
use crate::kv_cache::KvCache;
use crate::kv_cells::PositionOrder;
use crate::prefix_cache::{Entry, EntryState};
use crate::request::{PrefixScope, RequestId};
use crate::retention::WeakRetention;
use crate::running::Wait;
use crate::scheduler::Scheduler;
use crate::step::{EntryId, SeqId};

impl Scheduler {
    /// Records a move of the state of this many tokens out of the cells or into them.
    pub fn observe_swap(&mut self, tokens: u32, seconds: f64) {
        self.kv.swap_costs.observe(tokens, seconds);
    }

    /// The state of a swapped-out entry is gone. Requests that need it compute its tokens again.
    pub fn entry_lost(&mut self, id: EntryId) {
        if self.kv.drop_swapped_out(id) {
            self.running.stop_awaiting(id);
        }
    }

    /// This entry's state exceeds the store's limit for one state; prefixes of its length or more are no longer
    /// offloaded.
    pub fn offload_too_large(&mut self, id: EntryId) {
        if let Some(entry) = self.kv.entries.get(id) {
            let longest = &mut self.kv.swap_costs.longest_prefix;
            *longest = (*longest).min(entry.length().saturating_sub(1));
        }
    }

    /// Whether a swapped-out entry is a prefix that is not retained.
    pub fn is_offloaded_prefix(&self, id: EntryId) -> bool {
        self.kv.entries.get(id).is_some_and(Entry::is_offloaded)
    }

    /// Whether an entry exists.
    pub fn has_entry(&self, id: EntryId) -> bool {
        self.kv.entries.get(id).is_some()
    }

    /// Whether a request waits for an entry to be swapped in.
    pub fn waits_for_swap_in(&self, request: RequestId, id: EntryId) -> bool {
        let running = self.running.get(request);
        running.is_some_and(|one| matches!(one.wait, Wait::SwapIn { entry, .. } if entry == id))
    }

    /// The state that a request waits for is at hand. Returns the id to load it into, which is empty; `None` if the
    /// request no longer needs it or there is no room. Do [`Scheduler::take_memory_ops`] first, then call
    /// [`Scheduler::finish_swap_in`].
    pub fn begin_swap_in(&mut self, request: RequestId, id: EntryId) -> Option<SeqId> {
        let running = self.running.get(request)?;
        let Wait::SwapIn { entry, length } = running.wait else {
            return None;
        };
        if entry != id {
            return None;
        }
        let (seq, reserved) = (running.seq, running.reserved);
        let all = self.kv.entries.get(id).map(Entry::length);
        // Nothing is evicted for a state that can't fit anyway. If only a part of it is needed, no more is evicted than the
        // request would take without it.
        let part = self.is_offloaded_prefix(id) && Some(length) < all;
        let most = match part {
            true => self.kv.cells.free().max(reserved),
            false => u32::MAX,
        };
        let most = most.min(self.kv.evictable_cells());
        let fits = all.is_some_and(|all| all <= most && self.kv.make_room(all));
        if !fits {
            self.running.get_mut(request)?.start_at(0);
            return None;
        }
        Some(seq)
    }

    /// Records whether the state of an entry was loaded for a request. Returns whether the swapped-out copy is still
    /// needed.
    pub fn finish_swap_in(&mut self, request: RequestId, id: EntryId, success: bool) -> bool {
        let Some(entry) = self.kv.entries.get(id) else {
            return false;
        };
        let EntryState::SwappedOut(order) = entry.state.clone() else {
            return false;
        };
        let (offloaded, durable) = (entry.is_offloaded(), entry.is_durable());
        if !self.waits_for_swap_in(request, id) {
            return self.is_entry_needed(id);
        }
        if !success {
            self.entry_lost(id);
            return false;
        }
        let Some(running) = self.running.get_mut(request) else {
            return false;
        };
        let Wait::SwapIn { length, .. } = running.wait else {
            return false;
        };
        let seq = running.seq;
        running.start_at(length);
        // The rest of a prefix may be of use to others.
        let part = offloaded && length < order.length();
        running.holds_offloaded = offloaded && !part && !durable;
        self.kv.counters.swapped_in += 1;
        if offloaded && !durable {
            self.kv.swap_costs.observe_return();
        }
        let restored = self.kv.cells.restore(seq, &order);
        debug_assert!(restored, "the backend had room");
        self.kv.truncate(seq, length);
        self.kv.entries.touch(id);
        self.running.follow_instead(id, request, length);
        let needed = part || durable || self.is_entry_needed(id);
        if !needed {
            self.kv.entries.remove(id);
        }
        needed
    }

    /// Whether an entry is retained, or a request waits for it.
    fn is_entry_needed(&self, id: EntryId) -> bool {
        let retained = self.kv.entries.get(id).is_some_and(Entry::is_retained);
        retained || self.running.is_entry_awaited(id)
    }

    /// The backend failed to load the state of a sequence that was compacted: its cells are empty.
    pub fn compaction_failed(&mut self, seq: SeqId) {
        self.kv.cells.clear(seq);
        if let Some(running) = self.running.iter_mut().find(|running| running.seq == seq) {
            running.save_progress();
            running.start_at(0);
            return;
        }
        if let Some(id) = self.kv.entries.entry_of(seq) {
            self.kv.drop_entry(id);
        }
    }

    /// An id that holds exactly the longest cached prefix of a text, and its length. Do
    /// [`Scheduler::take_memory_ops`] before reading its state, and call [`Scheduler::return_prefix`] afterwards.
    pub fn borrow_prefix(&mut self, scope: PrefixScope, tokens: &[Token]) -> Option<(SeqId, u32)> {
        self.kv.borrow_prefix(scope, tokens)
    }

    /// Ends [`Scheduler::borrow_prefix`].
    pub fn return_prefix(&mut self, seq: SeqId) {
        self.kv.return_prefix(seq);
    }

    /// Adds an entry for a state from outside, as if it had been swapped out.
    pub fn import_entry(
        &mut self,
        scope: PrefixScope,
        tokens: Vec<Token>,
        order: PositionOrder,
        retention: WeakRetention,
    ) -> EntryId {
        let state = EntryState::SwappedOut(order);
        self.kv.entries.insert(scope, tokens, state, retention)
    }

    /// Adds an entry for a prefix whose state is on disk, and stays there when a request takes it.
    pub fn import_durable(
        &mut self,
        scope: PrefixScope,
        tokens: Vec<Token>,
        order: PositionOrder,
    ) -> EntryId {
        let id = self.import_entry(scope, tokens, order, WeakRetention::default());
        self.kv.entries.set_durable(id);
        id
    }

    /// Whether an entry is a prefix on disk.
    pub fn is_durable(&self, id: EntryId) -> bool {
        self.kv.entries.get(id).is_some_and(Entry::is_durable)
    }

    /// Whether a prefix on disk begins with these tokens, so that writing them is of no use. In a memory that can't
    /// truncate it must be these tokens exactly.
    pub fn has_durable(&self, scope: PrefixScope, tokens: &[Token]) -> bool {
        let longer = self.config.can_reuse_part();
        self.kv.entries.has_durable(scope, tokens, longer)
    }

    /// Drops the prefixes on disk that the one of this id makes redundant, unless a request waits for them.
    pub fn drop_redundant(&mut self, id: EntryId) {
        let Some(entry) = self.kv.entries.get(id).filter(|e| e.is_durable()) else {
            return;
        };
        if !self.config.can_truncate {
            return;
        }
        for other in self.kv.entries.prefixes_of(entry.scope, &entry.tokens) {
            if other != id && self.is_durable(other) && !self.running.is_entry_awaited(other) {
                self.kv.drop_entry(other);
            }
        }
    }

    /// Scope, tokens and order of positions of an entry.
    pub fn entry_text(&self, id: EntryId) -> Option<(PrefixScope, &[Token], PositionOrder)> {
        let entry = self.kv.entries.get(id)?;
        let order = match &entry.state {
            EntryState::SwappedOut(order) => order.clone(),
            EntryState::Resident(seq) => self.kv.cells.order(*seq),
        };
        Some((entry.scope, &entry.tokens, order))
    }

    /// The most recently used entry in the cells, retained or not, which has `least` tokens or more and is not on disk.
    /// Drops those used since. For shutdown: no request may run.
    pub fn next_to_save(&mut self, least: u32) -> Option<(EntryId, SeqId)> {
        loop {
            let (id, seq) = self.kv.entries.most_recent()?;
            let entry = self.kv.entries.get(id)?;
            if entry.length() >= least && !self.has_durable(entry.scope, &entry.tokens) {
                return Some((id, seq));
            }
            self.kv.drop_entry(id);
        }
    }

    /// Drops an entry that no request waits for.
    pub fn drop_entry(&mut self, id: EntryId) {
        self.kv.drop_entry(id);
    }

    /// Drops all entries that are not retained.
    pub fn clear_prefix_cache(&mut self) {
        for id in self.droppable_entries() {
            self.kv.drop_entry(id);
        }
    }

    /// Drops all offloaded prefixes, which leaves those in the cells and on disk.
    pub fn drop_offloaded_prefixes(&mut self) {
        for id in self.droppable_entries() {
            if self.is_offloaded_prefix(id) && !self.is_durable(id) {
                self.kv.drop_swapped_out(id);
            }
        }
    }

    /// Entries that are not retained and that no request waits for.
    fn droppable_entries(&self) -> Vec<EntryId> {
        let unretained = self.kv.entries.iter().filter(|(_, e)| !e.is_retained());
        let unneeded = unretained.filter(|(id, _)| !self.running.is_entry_awaited(*id));
        unneeded.map(|(id, _)| id).collect()
    }

    /// Offloads all resident prefixes that are not retained: for tests.
    pub fn offload_all_prefixes(&mut self) {
        self.kv.offload_all();
    }
}

impl KvCache {
    /// Whether swapping `tokens` out and back is faster than computing them again.
    pub fn swap_is_faster(&self, costs: &CostModel, tokens: u32) -> bool {
        if !costs.is_fitted() {
            return true;
        }
        let chunk = tokens.min(self.config.max_step_tokens);
        let steps = f64::from(tokens) / f64::from(chunk.max(1));
        let recompute = costs.prefill_step_seconds(chunk, self.cells.n_kv()) * steps;
        2.0 * self.swap_costs.seconds(tokens) < recompute
    }

    /// Whether swapping in an entry is faster than computing the `tokens` that it saves, and there is room for it.
    /// Always true for a retained sequence.
    pub fn swap_in_pays(&self, costs: &CostModel, id: EntryId, tokens: u32) -> bool {
        let Some(entry) = self.entries.get(id).filter(|entry| entry.is_offloaded()) else {
            return true;
        };
        let recompute = costs.prefill_seconds(tokens, self.cells.n_kv());
        let pays = !costs.is_fitted() || self.swap_costs.seconds(entry.length()) < recompute;
        pays && entry.length() <= self.evictable_cells()
    }
}
