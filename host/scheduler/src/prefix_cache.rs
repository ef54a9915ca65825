//! The entries of the prefix cache: sequences that stay after their request, for reuse.
//!
//! An entry is a list of tokens and the location of their state: in the cells of a sequence id (*resident*), or swapped
//! out. An entry whose [`WeakRetention`] is held is *retained*: under pressure it is swapped out, not dropped. Running
//! requests are in the same [`PrefixTree`], so that others share with them too.
//!
//! There may be very many entries, most of them swapped out. The work of a step visits resident entries
//! alone, of which there are at most as many as ids. They are ordered by their last use, retained and unretained
//! ones apart. A released retention never comes back, so an entry changes sides once, in
//! [`PrefixCache::update_retained`].

use crate::kv_cells::PositionOrder;
use crate::prefix_tree::PrefixTree;
use crate::request::{PrefixScope, RequestId, length};
use crate::retention::{Retention, WeakRetention};
use crate::step::{EntryId, SeqId};
use crate::{Time, Token};
use std::cmp::Reverse;
use std::collections::BTreeMap;

/// Candidates for one request: at most this many resident ones, and as many that are swapped out.
const CANDIDATES: usize = 32;
/// Holders of the longest shared prefixes, among which the candidates are.
const MAX_NEAREST_HOLDERS: usize = 256;
/// Time between two sweeps, and entries that a sweep visits in one step.
const SWEEP_INTERVAL: Time = Time::from_secs(1);
pub(crate) const SWEEP_ENTRIES: usize = 128;

/// Whose tokens a path of the tree is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum PrefixHolder {
    /// A prefix cache entry.
    Entry(EntryId),
    /// A running request.
    Running(RequestId),
}

/// Where the state of a prefix cache entry is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum EntryLocation {
    /// In the KV cells.
    Cells,
    /// In the machine's memory, or moved on by its store.
    Memory,
    /// On disk.
    Disk,
}

impl EntryLocation {
    /// Its name in status reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Cells => "cells",
            Self::Memory => "memory",
            Self::Disk => "disk",
        }
    }
}

/// Where an entry's state is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum EntryState {
    Resident(SeqId),
    /// Swapped out or offloaded; its positions were in the cells in this order.
    SwappedOut(PositionOrder),
}

/// One entry.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub scope: PrefixScope,
    /// All tokens of the state.
    pub tokens: Vec<Token>,
    pub state: EntryState,
    /// Requests that reused it, or an entry that it replaced.
    pub hits: u64,
    retention: WeakRetention,
    /// The clock at its last use.
    last_used: u64,
    offloaded: bool,
    durable: bool,
}

impl Entry {
    /// Number of its tokens.
    pub fn length(&self) -> u32 {
        length(&self.tokens)
    }

    /// Whether it is retained: its owner may return.
    pub fn is_retained(&self) -> bool {
        self.retention.is_held()
    }

    /// Whether an owner other than that of `own` retains it.
    pub fn is_retained_by_others(&self, own: Option<&Retention>) -> bool {
        self.retention.is_held_by_others(own)
    }

    /// Whether it was swapped out while not retained, for requests with the same prefix.
    pub fn is_offloaded(&self) -> bool {
        self.offloaded
    }

    /// Whether its state stays where it is when a request takes it: it is on disk.
    pub fn is_durable(&self) -> bool {
        self.durable
    }

    /// Where its state is, as far as the scheduler knows.
    pub fn location(&self) -> EntryLocation {
        match self.state {
            EntryState::Resident(_) => EntryLocation::Cells,
            EntryState::SwappedOut(_) if self.durable => EntryLocation::Disk,
            EntryState::SwappedOut(_) => EntryLocation::Memory,
        }
    }

    /// Its id, if it is resident.
    pub fn seq(&self) -> Option<SeqId> {
        match self.state {
            EntryState::Resident(seq) => Some(seq),
            EntryState::SwappedOut(_) => None,
        }
    }
}

/// All entries.
#[derive(Clone, Debug, Default)]
pub(crate) struct PrefixCache {
    entries: BTreeMap<EntryId, Entry>,
    /// Resident entries that are not retained, by their last use. Each with the value of `cell_seconds` when it was last
    /// used or released.
    unretained: BTreeMap<u64, (EntryId, f64)>,
    /// The other resident entries, as of the last [`PrefixCache::update_retained`].
    retained: BTreeMap<u64, (EntryId, WeakRetention)>,
    tree: PrefixTree<PrefixHolder>,
    last_id: u64,
    clock: u64,
    /// Seconds that one used cell has added to all steps so far.
    cell_seconds: f64,
    /// Whether there was ever an entry on disk.
    has_disk: bool,
    swept_at: Time,
    /// Where the sweep in progress continues.
    sweep_next: Option<EntryId>,
    /// Entries that came, went or moved since [`PrefixCache::take_changed`], if they are recorded.
    changed: Option<Vec<EntryId>>,
    /// Entries that were visited, for tests.
    #[cfg(test)]
    visits: std::cell::Cell<u64>,
}

impl PrefixCache {
    /// All entries.
    pub fn iter(&self) -> impl Iterator<Item = (EntryId, &Entry)> {
        self.entries.iter().map(|(id, entry)| (*id, entry))
    }

    /// From now on, records which entries change; at first all.
    pub fn record_changes(&mut self) {
        self.changed = Some(self.entries.keys().copied().collect());
    }

    /// Takes the recorded entries. Some may be gone, some are listed twice.
    pub fn take_changed(&mut self) -> Vec<EntryId> {
        self.changed
            .as_mut()
            .map(std::mem::take)
            .unwrap_or_default()
    }

    fn record_change(&mut self, id: EntryId) {
        if let Some(changed) = &mut self.changed {
            changed.push(id);
        }
    }

    /// All entries in the order of the prefix tree, each with the number of tokens that it shares with the one before it.
    pub fn in_order(&self) -> impl Iterator<Item = (EntryId, &Entry, u32)> {
        let mut shared = usize::MAX;
        let holders = self.tree.in_order().into_iter();
        holders.filter_map(move |(holder, with_previous)| {
            // Running requests between two entries are not listed.
            shared = shared.min(with_previous);
            let PrefixHolder::Entry(id) = holder else {
                return None;
            };
            let entry = self.get(id)?;
            let tokens = u32::try_from(std::mem::replace(&mut shared, usize::MAX));
            Some((id, entry, tokens.unwrap_or(u32::MAX)))
        })
    }

    /// One entry.
    pub fn get(&self, id: EntryId) -> Option<&Entry> {
        self.entries.get(&id)
    }

    /// Adds an entry.
    pub fn insert(
        &mut self,
        scope: PrefixScope,
        tokens: Vec<Token>,
        state: EntryState,
        retention: WeakRetention,
    ) -> EntryId {
        self.last_id += 1;
        self.clock += 1;
        let id = EntryId(self.last_id);
        self.tree.insert(scope, &tokens, PrefixHolder::Entry(id));
        let last_used = self.clock;
        if let EntryState::Resident(_) = state {
            self.add_to_lru(
                last_used,
                id,
                retention.is_held().then(|| retention.clone()),
            );
        }
        let entry = Entry {
            scope,
            tokens,
            state,
            hits: 0,
            retention,
            last_used,
            offloaded: false,
            durable: false,
        };
        self.entries.insert(id, entry);
        self.record_change(id);
        id
    }

    /// Adds a resident entry to the order of its side.
    fn add_to_lru(&mut self, last_used: u64, id: EntryId, owner: Option<WeakRetention>) {
        match owner {
            Some(retention) => {
                self.retained.insert(last_used, (id, retention));
            }
            None => {
                self.unretained.insert(last_used, (id, self.cell_seconds));
            }
        }
    }

    /// Removes an entry from the order of its side. Returns its retention if it was on the retained side.
    fn remove_from_lru(&mut self, last_used: u64) -> Option<WeakRetention> {
        let unretained = self.unretained.remove(&last_used).is_some();
        let retained = (!unretained)
            .then(|| self.retained.remove(&last_used))
            .flatten();
        retained.map(|(_, retention)| retention)
    }

    /// Removes an entry.
    pub fn remove(&mut self, id: EntryId) -> Option<Entry> {
        let entry = self.entries.remove(&id)?;
        self.remove_from_lru(entry.last_used);
        let removed = self
            .tree
            .remove(entry.scope, &entry.tokens, PrefixHolder::Entry(id));
        debug_assert!(removed, "{id:?} is not in the tree");
        self.record_change(id);
        Some(entry)
    }

    /// Records that an entry was swapped out; as an `offloaded` prefix if it is not retained.
    pub fn set_swapped_out(&mut self, id: EntryId, order: PositionOrder, offloaded: bool) {
        if let Some(entry) = self.entries.get_mut(&id) {
            entry.state = EntryState::SwappedOut(order);
            entry.offloaded = offloaded;
            let last_used = entry.last_used;
            self.remove_from_lru(last_used);
            self.record_change(id);
        }
    }

    /// Records that a swapped-out entry is an offloaded prefix on disk.
    pub fn set_durable(&mut self, id: EntryId) {
        if let Some(entry) = self.entries.get_mut(&id) {
            (entry.offloaded, entry.durable) = (true, true);
            self.has_disk = true;
            self.record_change(id);
        }
    }

    /// Records that a resident entry has another id.
    pub fn set_seq(&mut self, id: EntryId, seq: SeqId) {
        if let Some(entry) = self.entries.get_mut(&id) {
            entry.state = EntryState::Resident(seq);
        }
    }

    /// Adds to the hits of an entry.
    pub fn add_hits(&mut self, id: EntryId, hits: u64) {
        if let Some(entry) = self.entries.get_mut(&id) {
            entry.hits += hits;
        }
    }

    /// Records a use of an entry.
    pub fn touch(&mut self, id: EntryId) {
        self.clock += 1;
        let now = self.clock;
        let Some(entry) = self.entries.get_mut(&id) else {
            return;
        };
        entry.hits += 1;
        let before = std::mem::replace(&mut entry.last_used, now);
        if entry.seq().is_some() {
            let owner = self.remove_from_lru(before);
            self.add_to_lru(now, id, owner);
        }
    }

    /// Moves resident entries whose owner released them to the unretained side.
    pub fn update_retained(&mut self) {
        let mut released = Vec::new();
        for (last_used, (id, retention)) in &self.retained {
            self.count_visit();
            if !retention.is_held() {
                released.push((*last_used, *id));
            }
        }
        for (last_used, id) in released {
            self.retained.remove(&last_used);
            // What it cost until now, it cost for its owner.
            self.add_to_lru(last_used, id, None);
        }
    }

    /// Charges each used cell for a step that it made longer by this many seconds.
    pub fn charge_cells(&mut self, seconds: f64) {
        self.cell_seconds += seconds;
    }

    /// Resident entries that are not retained, least recently used first, with the seconds charged to each of their
    /// cells since their last use.
    pub fn charged_costs(&self) -> impl Iterator<Item = (EntryId, f64)> {
        self.unretained.values().map(|(id, since)| {
            self.count_visit();
            (*id, self.cell_seconds - since)
        })
    }

    /// The least recently used resident entry that `matches`, of the retained or the unretained side.
    pub fn least_recent(
        &self,
        retained: bool,
        matches: impl Fn(EntryId, SeqId) -> bool,
    ) -> Option<EntryId> {
        let matches = |id: &EntryId| {
            self.count_visit();
            let seq = self.get(*id).and_then(Entry::seq);
            seq.is_some_and(|seq| matches(*id, seq))
        };
        match retained {
            true => self.retained.values().map(|(id, _)| *id).find(matches),
            false => self.unretained.values().map(|(id, _)| *id).find(matches),
        }
    }

    /// The most recently used resident entry.
    pub fn most_recent(&self) -> Option<(EntryId, SeqId)> {
        let unretained = self.unretained.last_key_value();
        let unretained = unretained.map(|(used, (id, _))| (*used, *id));
        let retained = self.retained.last_key_value();
        let retained = retained.map(|(used, (id, _))| (*used, *id));
        let (_, id) = unretained.max(retained)?;
        Some((id, self.get(id)?.seq()?))
    }

    /// Resident entries and their ids.
    pub fn resident(&self) -> impl Iterator<Item = (EntryId, SeqId)> {
        let unretained = self.unretained.values().map(|(id, _)| *id);
        let both = unretained.chain(self.retained.values().map(|(id, _)| *id));
        both.filter_map(move |id| Some((id, self.get(id)?.seq()?)))
    }

    /// The entry that has a sequence id.
    pub fn entry_of(&self, seq: SeqId) -> Option<EntryId> {
        let found = self.resident().find(|(_, other)| *other == seq);
        found.map(|(id, _)| id)
    }

    /// Lists a request that starts to run, so that others share its prefix.
    pub fn add_running(&mut self, scope: PrefixScope, tokens: &[Token], request: RequestId) {
        self.tree
            .insert(scope, tokens, PrefixHolder::Running(request));
    }

    /// Removes a request that was listed with these tokens.
    pub fn remove_running(&mut self, scope: PrefixScope, tokens: &[Token], request: RequestId) {
        let removed = self
            .tree
            .remove(scope, tokens, PrefixHolder::Running(request));
        debug_assert!(removed, "{request:?} is not in the tree");
    }

    /// The holders that share a prefix with `tokens`, and its length: first those in the cells, then those that
    /// are swapped out; of either the longest prefix first, and of the same length those on disk last.
    pub fn nearest(&self, scope: PrefixScope, tokens: &[Token]) -> Vec<(PrefixHolder, u32)> {
        let found = self
            .tree
            .nearest(scope, tokens, MAX_NEAREST_HOLDERS)
            .into_iter();
        let found =
            found.map(|(holder, shared)| (holder, u32::try_from(shared).unwrap_or(u32::MAX)));
        let (mut nearest, mut swapped): (Vec<_>, Vec<_>) =
            found.partition(|(holder, _)| match holder {
                PrefixHolder::Entry(id) => self.get(*id).is_some_and(|entry| entry.seq().is_some()),
                PrefixHolder::Running(_) => true,
            });
        let is_durable = |holder: &PrefixHolder| match holder {
            PrefixHolder::Entry(id) => self.get(*id).is_some_and(Entry::is_durable),
            PrefixHolder::Running(_) => false,
        };
        nearest.truncate(CANDIDATES);
        swapped.truncate(CANDIDATES);
        if self.has_disk {
            swapped.sort_by_key(|(holder, shared)| (Reverse(*shared), is_durable(holder)));
        }
        nearest.append(&mut swapped);
        nearest
    }

    /// Entries that are not retained whose whole text is a prefix of `tokens`.
    pub fn prefixes_of(&self, scope: PrefixScope, tokens: &[Token]) -> Vec<EntryId> {
        let unretained = |holder| match holder {
            PrefixHolder::Entry(id) => self
                .get(id)
                .is_some_and(|entry| !entry.is_retained())
                .then_some(id),
            PrefixHolder::Running(_) => None,
        };
        let holders = self.tree.prefixes_of(scope, tokens).into_iter();
        holders.filter_map(unretained).collect()
    }

    /// Whether a resident entry starts with `tokens`; of the same length unless `longer` ones count too.
    pub fn has_resident(&self, scope: PrefixScope, tokens: &[Token], longer: bool) -> bool {
        self.has_extension(scope, tokens, |entry| {
            entry.seq().is_some() && (longer || entry.tokens.len() == tokens.len())
        })
    }

    /// Whether an entry that is swapped out, not to disk alone, and stays, starts with `tokens`.
    pub fn has_swapped_out(&self, scope: PrefixScope, tokens: &[Token]) -> bool {
        self.has_extension(scope, tokens, |entry| {
            let is_offloaded = entry.offloaded && !entry.durable;
            entry.seq().is_none() && (is_offloaded || entry.is_retained())
        })
    }

    /// Whether an entry on disk starts with `tokens`; of the same length unless `longer` ones count too.
    pub fn has_durable(&self, scope: PrefixScope, tokens: &[Token], longer: bool) -> bool {
        self.has_extension(scope, tokens, |entry| {
            entry.durable && (longer || entry.tokens.len() == tokens.len())
        })
    }

    fn has_extension(
        &self,
        scope: PrefixScope,
        tokens: &[Token],
        matches: impl Fn(&Entry) -> bool,
    ) -> bool {
        self.tree
            .has_extension(scope, tokens, |holder| match holder {
                PrefixHolder::Entry(id) => self.get(id).is_some_and(&matches),
                PrefixHolder::Running(_) => false,
            })
    }

    /// Swapped-out sequences whose owner released them. Visits a few entries in each call, so that no step
    /// pays for all of them, and starts a round once a second at most.
    pub fn sweep(&mut self, now: Time) -> Vec<EntryId> {
        let due = now.saturating_sub(self.swept_at) >= SWEEP_INTERVAL;
        let Some(first) = self.sweep_next.or(due.then_some(EntryId(0))) else {
            return Vec::new();
        };
        if self.sweep_next.is_none() {
            self.swept_at = now;
        }
        let (mut next, mut released) = (None, Vec::new());
        for (index, (&id, entry)) in self.entries.range(first..).take(SWEEP_ENTRIES).enumerate() {
            self.count_visit();
            if index + 1 == SWEEP_ENTRIES {
                next = Some(EntryId(id.0 + 1));
            }
            if entry.seq().is_none() && !entry.is_retained() && !entry.offloaded {
                released.push(id);
            }
        }
        self.sweep_next = next;
        released
    }

    fn count_visit(&self) {
        #[cfg(test)]
        self.visits.set(self.visits.get() + 1);
    }

    /// Entries that were visited so far.
    #[cfg(test)]
    pub fn visits(&self) -> u64 {
        self.visits.get()
    }

    /// Asserts that the orders hold exactly the resident entries, each on its side.
    pub fn check_consistency(&self) {
        let resident = self.entries.iter().filter(|(_, e)| e.seq().is_some());
        let mut expected: Vec<_> = resident.map(|(id, entry)| (entry.last_used, *id)).collect();
        let unretained = self.unretained.iter().map(|(used, (id, _))| (*used, *id));
        let retained = self.retained.iter().map(|(used, (id, _))| (*used, *id));
        let mut ordered: Vec<_> = unretained.chain(retained).collect();
        expected.sort_unstable();
        ordered.sort_unstable();
        assert_eq!(ordered, expected, "order of resident entries");
        for (id, retention) in self.retained.values() {
            assert!(
                retention.is_same(&self.entries[id].retention),
                "{id:?} is ordered with another retention"
            );
        }
        for (id, _) in self.unretained.values() {
            assert!(!self.entries[id].is_retained(), "{id:?} is retained");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SCOPE: PrefixScope = PrefixScope(1);

    fn resident(cache: &mut PrefixCache, tokens: &[Token], seq: u16) -> EntryId {
        let state = EntryState::Resident(SeqId(seq));
        cache.insert(SCOPE, tokens.to_vec(), state, WeakRetention::default())
    }

    #[test]
    fn resident_holders_come_before_swapped_out_ones() {
        let mut cache = PrefixCache::default();
        let swapped = resident(&mut cache, &[1, 2, 3, 4], 0);
        cache.set_swapped_out(swapped, PositionOrder::default(), true);
        let short = resident(&mut cache, &[1, 2], 1);
        cache.add_running(SCOPE, &[1, 2, 3], RequestId(9));
        let nearest = cache.nearest(SCOPE, &[1, 2, 3, 4, 5]);
        let expected = [
            (PrefixHolder::Running(RequestId(9)), 3),
            (PrefixHolder::Entry(short), 2),
            (PrefixHolder::Entry(swapped), 4),
        ];
        assert_eq!(nearest, expected);
        assert!(cache.has_swapped_out(SCOPE, &[1, 2, 3]));
        assert!(!cache.has_resident(SCOPE, &[1, 2, 3], true));
        assert_eq!(cache.prefixes_of(SCOPE, &[1, 2, 3]), [short]);
        cache.check_consistency();
    }

    #[test]
    fn costs_are_charged_from_the_last_use() {
        let mut cache = PrefixCache::default();
        let first = resident(&mut cache, &[1], 0);
        cache.charge_cells(2.0);
        let second = resident(&mut cache, &[2], 1);
        cache.charge_cells(1.0);
        let costs: Vec<_> = cache.charged_costs().collect();
        assert_eq!(costs, [(first, 3.0), (second, 1.0)]);
        cache.touch(first);
        let costs: Vec<_> = cache.charged_costs().collect();
        assert_eq!(costs, [(second, 1.0), (first, 0.0)]);
    }
}
