//! Sequence ids, of two kinds where the backend has two.
//!
//! For the first [`SchedulerConfig::top_ids`](super::SchedulerConfig::top_ids) ids the backend gives only the highest logits
//! of a row, which is less to copy; for the others all of them. Which it is for an id is settled for ever. So
//! a request says what it needs ([`LogitsKind`]): who needs all logits never runs on an id of the first kind, and
//! for whom the highest are enough runs on one if it can be had.
//!
//! **An id is always there for who may run.** No more sequences run than there are ids of the second kind. If
//! one less or fewer run, there is one of these ids that no sequence that runs has: it is free, or an entry
//! lies under it, which can be put aside. So what is admitted gets an id whatever it needs; with the second
//! kind everything else is as if there were no other, and an id of the first kind is only ever given in
//! addition. The same holds for a sequence that runs under an id of the first kind and finds that it
//! needs all logits after all: it has another id at once ([`Scheduler::look_again`]), and only one
//! token of it is computed again. From then on it needs them all for its life, so that happens to it once.
//!
//! Entries don't care under which id they lie. Where one kind runs out and the other did not, an entry
//! changes over: so all ids are of use to keep something under, whatever is asked for.

use super::Scheduler;
use super::words::{EntryId, LogitsKind, MemoryOp, RequestId, SeqId};

impl Scheduler {
    /// An id gets back what nobody holds any more.
    pub(super) fn release(&mut self, seq: SeqId) {
        self.cells.unpin(seq);
        if self.cells.held_by(seq) > 0 {
            self.cells.clear(seq);
        }
        self.memory.push(MemoryOp::Clear(seq));
        let place = self.free.partition_point(|other| *other > seq);
        self.free.insert(place, seq);
    }

    /// Whether who needs this may run under an id.
    pub(super) fn may_have(&self, seq: SeqId, rows: LogitsKind) -> bool {
        rows == LogitsKind::TopK || self.limits.logits_of(seq) == LogitsKind::All
    }

    /// Of which kind an id is to be, where that can be had.
    fn preferred(&self, rows: LogitsKind) -> LogitsKind {
        match self.limits.top_k_seq_ids {
            0 => LogitsKind::All,
            _ => rows,
        }
    }

    /// An id for a newcomer, but not that of `spared`.
    pub(super) fn lend_id(&mut self, rows: LogitsKind, spared: Option<EntryId>) -> Option<SeqId> {
        let kind = self.preferred(rows);
        let found = self.lend_of(kind, spared, true);
        match kind {
            LogitsKind::All => found,
            LogitsKind::TopK => found.or_else(|| self.lend_of(LogitsKind::All, spared, true)),
        }
    }

    /// Another id than the one under which an entry lies, if that is not of the kind that is preferred by
    /// who is to take the entry over. For one that it must not have, others are put aside.
    pub(super) fn better_id(
        &mut self,
        seq: SeqId,
        rows: LogitsKind,
        entry: EntryId,
    ) -> Option<SeqId> {
        let kind = self.preferred(rows);
        if self.limits.logits_of(seq) == kind {
            return None;
        }
        let must = !self.may_have(seq, rows);
        self.lend_of(kind, Some(entry), must)
    }

    /// An id of this kind. If none is free, an entry changes over to the other kind; and where none of that is
    /// free either, and others are to `give_way`, the entry that was of no use for longest is put aside.
    fn lend_of(
        &mut self,
        kind: LogitsKind,
        spared: Option<EntryId>,
        give_way: bool,
    ) -> Option<SeqId> {
        if let Some(seq) = self.take_free(kind) {
            return Some(seq);
        }
        self.cache.settle();
        let limits = self.limits;
        let changes = self.oldest(spared, |seq| limits.logits_of(seq) == kind)?;
        if self.free.is_empty() {
            if !give_way {
                return None;
            }
            let goes = self.oldest(spared, |_| true)?;
            self.put_aside(goes);
            if goes == changes {
                return self.take_free(kind);
            }
        }
        let to = self.take_free(match kind {
            LogitsKind::TopK => LogitsKind::All,
            LogitsKind::All => LogitsKind::TopK,
        })?;
        self.change_over(changes, to);
        self.take_free(kind)
    }

    /// The entry that was of no use for longest under an id that suits, one that nobody claims if there is
    /// any, as of the last [`Cache::settle`](super::cache::Cache::settle).
    fn oldest(&self, spared: Option<EntryId>, suits: impl Fn(SeqId) -> bool) -> Option<EntryId> {
        let may = |id: EntryId, seq: SeqId| Some(id) != spared && suits(seq);
        let unclaimed = self.cache.oldest(false, may);
        unclaimed.or_else(|| self.cache.oldest(true, may))
    }

    /// The lowest free id of a kind.
    fn take_free(&mut self, kind: LogitsKind) -> Option<SeqId> {
        let limits = self.limits;
        // The highest come first, and those of the first kind are the lowest.
        let others = |seq: &SeqId| limits.logits_of(*seq) == LogitsKind::All;
        let whole = self.free.partition_point(others);
        match kind {
            LogitsKind::TopK if self.free.len() > whole => self.free.pop(),
            LogitsKind::TopK => None,
            LogitsKind::All => Some(self.free.remove(whole.checked_sub(1)?)),
        }
    }

    /// An entry in the cells lies under another id, which holds nothing, from now on.
    fn change_over(&mut self, id: EntryId, to: SeqId) {
        let there = self.cache.get(id);
        let there = there.and_then(|entry| Some((entry.seq()?, entry.length())));
        let Some((from, length)) = there else {
            debug_assert!(false, "{id:?} is in the cells");
            self.release(to);
            return;
        };
        self.share(from, to, length);
        self.cache.moved(id, to);
        self.release(from);
    }

    /// The highest logits after their last tokens did not tell enough of these. From now on they see all
    /// of them, and the last token is computed again; where there is no going back, all are.
    pub(super) fn look_again(&mut self, unsettled: &[RequestId]) {
        let parts = self.limits.reuses_parts();
        for &key in unsettled {
            let Some(running) = self.find(key) else {
                continue;
            };
            running.request.logits = LogitsKind::All;
            running.stops();
            let (seq, computed) = (running.seq, running.computed);
            let stays = if parts { computed.saturating_sub(1) } else { 0 };
            let other = match self.may_have(seq, LogitsKind::All) {
                true => None,
                false => self.lend_id(LogitsKind::All, None),
            };
            let now = match other {
                Some(other) => {
                    self.cells.pin(other);
                    if stays > 0 {
                        self.share(seq, other, stays);
                    }
                    self.release(seq);
                    other
                }
                None => {
                    debug_assert!(self.may_have(seq, LogitsKind::All), "there is always an id");
                    self.truncate(seq, stays);
                    seq
                }
            };
            if let Some(running) = self.find(key) {
                running.seq = now;
                running.starts_at(stays);
            }
            self.counters.top_k_retries += 1;
        }
    }
}
