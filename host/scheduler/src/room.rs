//! Ids and cells under pressure: what is given up for whom.
//!
//! In this order: prefixes that nobody claims are dropped, the least recently used first (those that cost more than
//! they are worth went before, see [`rent`](super::rent)); idle sequences are put aside, in the same order; and where
//! those that run need the room themselves, the least important of them gives way: of the lowest priority the one that
//! came last. It goes back into the queue with what it has generated, and its state is put aside, or computed again,
//! whichever is expected to take less time. So nothing that was admitted is ever lost for another's
//! sake, and the most important sequence always gets on.

use super::cache::{Entry, Holder, Place};
use super::cells::Layout;
use super::cost::StepShape;
use super::running::{Running, Wait};
use super::words::{
    EntryId, LogitsKind, MemoryOp, PrefixScope, RequestId, Retention, SeqId, WeakRetention,
};
use super::{STATE_SECONDS, Scheduler, Time};
use crate::Token;

/// A sequence of fewer tokens is not kept, unless it is claimed: it is as quickly computed.
const LEAST_KEPT: usize = 16;

impl Scheduler {
    pub(super) fn share(&mut self, from: SeqId, to: SeqId, length: u32) {
        self.cells.share(from, to, length);
        self.memory.push(MemoryOp::Share { from, to, length });
    }

    pub(super) fn truncate(&mut self, seq: SeqId, length: u32) {
        if self.cells.held_by(seq) > length {
            self.cells.truncate(seq, length);
            self.memory.push(MemoryOp::Truncate { seq, length });
        }
    }

    /// Takes an entry out of the cells: spilled if it is claimed, else dropped.
    pub(super) fn put_aside(&mut self, id: EntryId) {
        let Some(entry) = self.cache.get(id) else {
            return;
        };
        let Some(seq) = entry.seq() else {
            return;
        };
        if entry.is_claimed() && self.limits.swap {
            self.spill_copy(id, seq);
        } else {
            self.cache.remove(id);
            self.counters.evicted += 1;
        }
        self.release(seq);
    }

    /// Puts a copy of an entry's state aside; its id is for others from then on.
    pub(super) fn spill_copy(&mut self, id: EntryId, seq: SeqId) {
        let layout = self.cells.layout(seq);
        self.cache.spilled(id, layout);
        self.memory.push(MemoryOp::SwapOut { entry: id, seq });
        self.counters.swapped_out += 1;
    }

    /// Takes a prefix that nobody claims out of the cells, and puts it aside.
    pub(super) fn spill_prefix(&mut self, id: EntryId, seq: SeqId) {
        let layout = self.cells.layout(seq);
        self.cache.spilled_as_prefix(id, layout);
        self.memory.push(MemoryOp::SwapOut { entry: id, seq });
        self.counters.offloaded += 1;
        self.release(seq);
    }

    /// Sees to it that so many cells are free, as far as it can be done with what does not run.
    pub(super) fn make_room(&mut self, cells: u32) -> bool {
        if self.cells.free() < cells {
            self.cache.settle();
        }
        while self.cells.free() < cells {
            let gives = |_: EntryId, seq: SeqId| self.cells.freed_by_clearing(seq) > 0;
            let any = |_: EntryId, _: SeqId| true;
            let oldest = self.cache.oldest(false, gives);
            // Several may hold the same cells, and none of them gives any by itself.
            let oldest = oldest
                .or_else(|| self.cache.oldest(true, gives))
                .or_else(|| self.cache.oldest(false, any))
                .or_else(|| self.cache.oldest(true, any));
            let Some(id) = oldest else {
                return false;
            };
            self.put_aside(id);
        }
        true
    }

    /// The least important of those that run gives way to the others, if there is one that holds
    /// cells and another one stays.
    pub(super) fn preempt_least(&mut self) -> bool {
        self.running.len() > 1 && self.preempt_among(|running| running.computed > 0)
    }

    /// The least important of some that run gives way. False if there are none.
    pub(super) fn preempt_among(&mut self, among: impl Fn(&Running) -> bool) -> bool {
        let all = self.running.iter().enumerate();
        let least = all
            .filter(|(_, running)| among(running))
            .min_by_key(|(_, running)| running.importance());
        let Some((index, _)) = least else {
            return false;
        };
        let running = self.running.remove(index);
        self.preempt(running);
        // At once: if it comes back it may follow those that followed it.
        self.join();
        true
    }

    fn preempt(&mut self, mut running: Running) {
        self.unlist(&running);
        running.stops();
        let swap = self.limits.swap && self.is_swap_quicker(running.computed);
        let Running {
            mut request,
            seq,
            computed,
            ..
        } = running;
        request.progress.preempted += 1;
        if swap && computed > 0 && self.limits.prefix_cache {
            let claim = Retention::default();
            let tokens = request.tokens[..computed as usize].to_vec();
            let place = Place::Cells(seq);
            let entry = self
                .cache
                .keep(request.scope, tokens, place, claim.downgrade());
            self.spill_copy(entry, seq);
            request.continues = Some(claim);
        }
        self.release(seq);
        self.counters.preempted += 1;
        // It had its turn in time.
        if let Some(time) = request.queue_until.take() {
            self.timers.remove(&(time, request.id));
        }
        let tenant = request.tenant;
        self.queue.push(request);
        self.queue.ended(tenant);
    }

    /// Seconds to take the state of so many tokens out of the cells, or to bring it back.
    pub(super) fn moving(&self, tokens: u32) -> f64 {
        self.state_seconds * f64::from(tokens)
    }

    /// Whether so many tokens are sooner put aside and brought back than computed again.
    fn is_swap_quicker(&self, tokens: u32) -> bool {
        let chunk = tokens.min(self.limits.max_step_tokens);
        let shape = StepShape {
            rows: 0,
            prefill: chunk,
            n_kv: self.cells.n_kv(),
            ..StepShape::default()
        };
        let steps = f64::from(tokens) / f64::from(chunk.max(1));
        let compute = self.cost.predict(shape) * steps;
        !self.cost.is_fitted() || 2.0 * self.moving(tokens) < compute
    }

    /// Moving the state of so many tokens out of the cells or into them took so long.
    pub fn observe_swap(&mut self, tokens: u32, seconds: f64) {
        if tokens > 0 && seconds.is_finite() {
            let newest = seconds / f64::from(tokens);
            // Of a few tokens it is mostly what any move takes.
            let weight = 0.2 * (f64::from(tokens) / 64.0).min(1.0);
            self.state_seconds += weight * (newest - self.state_seconds);
        }
    }

    /// A prefix was dropped, perhaps since it takes long to move. Where none is moved any more, nobody sees when that
    /// gets better; so it is forgotten, little by little.
    pub(super) fn forget_state_seconds(&mut self) {
        self.state_seconds += 0.02 * (STATE_SECONDS - self.state_seconds);
    }

    /// A sequence that runs no longer is no longer shared from.
    pub(super) fn unlist(&mut self, running: &Running) {
        let begun = &running.tokens()[..running.begun as usize];
        self.cache.end(running.request.scope, begun, running.key());
    }

    /// A sequence ended; what it leaves behind is kept if it may be of use.
    pub(super) fn keep(&mut self, running: Running) {
        self.unlist(&running);
        let Running {
            request,
            seq,
            computed,
            ..
        } = running;
        let (scope, claim) = (request.scope, request.retention);
        let mut tokens = request.tokens;
        tokens.truncate(computed as usize);
        let claimed = claim.is_held();
        let wanted = (claimed && !tokens.is_empty()) || tokens.len() >= LEAST_KEPT;
        let parts = self.limits.reuses_parts();
        let useless = !claimed && self.cache.covers(scope, &tokens, parts);
        if !self.limits.prefix_cache || !wanted || useless {
            self.release(seq);
            return;
        }
        if self.limits.reuses_parts() {
            for id in self.cache.covered_by(scope, &tokens) {
                if !self.is_fetched(id) {
                    self.drop_entry(id);
                }
            }
        }
        self.cells.unpin(seq);
        self.cache.keep(scope, tokens, Place::Cells(seq), claim);
    }

    /// An entry is of no use any more.
    pub(super) fn drop_entry(&mut self, id: EntryId) {
        let Some(entry) = self.cache.remove(id) else {
            return;
        };
        match entry.place {
            Place::Cells(seq) => self.release(seq),
            Place::Spilled(_) => self.memory.push(MemoryOp::Discard(id)),
        }
        for running in &mut self.running {
            if matches!(running.wait, Wait::Fetches { entry, .. } if entry == id) {
                running.starts_at(0);
            }
        }
    }

    /// What was put aside under this name is gone: it is computed again where it is needed.
    pub fn entry_lost(&mut self, id: EntryId) {
        if self
            .cache
            .get(id)
            .is_some_and(|entry| entry.seq().is_none())
        {
            match self.is_offloaded_prefix(id) {
                true => self.counters.evicted += 1,
                false => self.counters.lost += 1,
            }
            self.drop_entry(id);
        }
    }

    /// Whether what was put aside under this name is a prefix that nobody claims.
    pub fn is_offloaded_prefix(&self, id: EntryId) -> bool {
        self.cache.get(id).is_some_and(Entry::is_prefix)
    }

    /// Whether a sequence waits for what was put aside under this name.
    pub fn waits_for_swap_in(&self, key: RequestId, id: EntryId) -> bool {
        let running = self.running.iter().find(|running| running.key() == key);
        running.is_some_and(
            |running| matches!(running.wait, Wait::Fetches { entry, .. } if entry == id),
        )
    }

    /// Whether any sequence does.
    fn is_fetched(&self, id: EntryId) -> bool {
        let fetches = |wait| matches!(wait, Wait::Fetches { entry, .. } if entry == id);
        self.running.iter().any(|running| fetches(running.wait))
    }

    /// Whether anything is known under this name.
    pub fn has_entry(&self, id: EntryId) -> bool {
        self.cache.get(id).is_some()
    }

    /// An id that holds the longest beginning of a text that stayed, and nothing else, and how long
    /// that is. [`Scheduler::take_memory`] is to be done before it is looked at, and
    /// [`Scheduler::unborrow`] said afterwards.
    pub fn borrow_prefix(&mut self, scope: PrefixScope, tokens: &[Token]) -> Option<(SeqId, u32)> {
        let whole = |shared: u32, entry: &Entry| shared == entry.length();
        let found = self.cache.nearest(scope, tokens).into_iter();
        let (id, from, shared) = found
            .filter_map(|(holder, shared)| match holder {
                Holder::Entry(id) => Some((id, shared, self.cache.get(id)?)),
                Holder::Running(_) => None,
            })
            .filter(|(_, shared, entry)| self.limits.reuses_parts() || whole(*shared, entry))
            .find_map(|(id, shared, entry)| Some((id, entry.seq()?, shared)))?;
        if self.cache.get(id).is_some_and(|entry| whole(shared, entry)) {
            return Some((from, shared));
        }
        let seq = self.lend_id(LogitsKind::TopK, Some(id))?;
        self.share(from, seq, shared);
        Some((seq, shared))
    }

    /// What was borrowed is not needed any more.
    pub fn return_prefix(&mut self, seq: SeqId) {
        if self.cache.with_cells_of(seq).is_none() {
            self.release(seq);
        }
    }

    /// A state from outside is at hand as if it had been put aside.
    pub fn import_entry(
        &mut self,
        scope: PrefixScope,
        tokens: Vec<Token>,
        layout: Layout,
        claim: WeakRetention,
    ) -> EntryId {
        self.cache
            .keep(scope, tokens, Place::Spilled(layout), claim)
    }

    /// What a sequence waits for is at hand: the id to bring it back into, which holds nothing.
    /// `None` if it is not wanted any more or there is no room for it. [`Scheduler::take_memory`]
    /// is to be done first, and [`Scheduler::restored`] said afterwards.
    pub fn begin_swap_in(&mut self, key: RequestId, id: EntryId) -> Option<SeqId> {
        let running = self.find(key)?;
        let (seq, wait) = (running.seq, running.wait);
        let Wait::Fetches { entry, length } = wait else {
            return None;
        };
        if entry != id {
            return None;
        }
        let room = self.cache.get(id).map(|entry| entry.length());
        // Nothing is taken out for what finds no room anyhow, or of which a part is wanted.
        let part = self.is_offloaded_prefix(id) && Some(length) < room;
        let most = match part {
            true => self.cells.free(),
            false => self.most_free(),
        };
        let room = room.filter(|room| *room <= most);
        if room.is_some_and(|room| self.make_room(room)) {
            return Some(seq);
        }
        self.find(key)?.starts_at(0);
        None
    }

    /// Cells that can be free: all but those of sequences that run.
    pub(super) fn most_free(&self) -> u32 {
        self.limits.cells.saturating_sub(self.cells.pinned())
    }

    /// Whether what a sequence waited for is back in its cells. True if the copy is still needed.
    pub fn finish_swap_in(&mut self, key: RequestId, id: EntryId, success: bool) -> bool {
        let Some(entry) = self.cache.get(id) else {
            return false;
        };
        let Place::Spilled(layout) = entry.place.clone() else {
            return false;
        };
        let prefix = entry.is_prefix();
        let wait = self.find(key).map(|running| running.wait);
        let Some(Wait::Fetches { entry, length }) = wait else {
            return self.is_needed(id);
        };
        if entry != id {
            return self.is_needed(id);
        }
        if !success {
            self.entry_lost(id);
            return false;
        }
        let Some(running) = self.find(key) else {
            return false;
        };
        let seq = running.seq;
        running.starts_at(length);
        // Of a prefix the rest may be somebody's beginning, too.
        let part = prefix && length < layout.length();
        running.fetched = prefix && !part;
        self.counters.swapped_in += 1;
        let mirrored = self.cells.restore(seq, &layout);
        debug_assert!(mirrored, "the backend had room for it");
        self.truncate(seq, length);
        self.cache.touch(id);
        self.refer(id, key, length);
        let needed = part || self.is_needed(id);
        if !needed {
            self.cache.remove(id);
        }
        needed
    }

    /// Whether what was put aside may still be of use.
    fn is_needed(&self, id: EntryId) -> bool {
        self.cache.get(id).is_some_and(Entry::is_claimed) || self.is_fetched(id)
    }

    /// So much of an entry is in the cells of a sequence that runs: others that waited for no more
    /// share it.
    fn refer(&mut self, id: EntryId, leader: RequestId, there: u32) {
        for running in &mut self.running {
            match running.wait {
                Wait::Fetches { entry, length } if entry == id && length <= there => {
                    running.wait = Wait::Follows { leader, length };
                }
                _ => {}
            }
        }
    }

    /// Keeps nothing any longer that nobody claims.
    pub fn clear_prefix_cache(&mut self) {
        self.sweep_all();
    }

    /// Drops all that nobody claims, unless somebody waits for it.
    fn sweep_all(&mut self) {
        let unclaimed = self
            .cache
            .entries()
            .filter(|(_, entry)| !entry.is_claimed());
        let dropped = unclaimed.filter(|(id, _)| !self.is_fetched(*id));
        let dropped: Vec<_> = dropped.map(|(id, _)| id).collect();
        for id in dropped {
            self.drop_entry(id);
        }
    }

    /// Drops what was put aside for somebody who claims it no longer, unless one waits for it. Looks at some entries
    /// each time, so that no step pays for all that is kept, and goes round once a second at most.
    pub(super) fn sweep_now_and_then(&mut self, now: Time) {
        let due = now.saturating_sub(self.swept) >= SWEEP;
        let Some(first) = self.sweeping.or(due.then_some(EntryId(0))) else {
            return;
        };
        if self.sweeping.is_none() {
            self.swept = now;
        }
        let (mut next, mut dropped) = (None, Vec::new());
        for (place, (id, entry)) in self.cache.some_from(first, SWEPT).enumerate() {
            if place + 1 == SWEPT {
                next = Some(EntryId(id.0 + 1));
            }
            let aside = entry.seq().is_none() && !entry.is_claimed();
            if aside && !entry.is_prefix() && !self.is_fetched(id) {
                dropped.push(id);
            }
        }
        self.sweeping = next;
        for id in dropped {
            self.drop_entry(id);
        }
    }
}

/// How often is looked whether claims were let go, and at how many entries in one step.
const SWEEP: Time = Time::from_secs(1);
pub(super) const SWEPT: usize = 128;
