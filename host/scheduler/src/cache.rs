//! What stays of sequences that ended: prefixes for those that begin alike, and idle sequences that
//! somebody means to go on with.
//!
//! Both are *entries*: tokens, and where their state is. An entry in the cells holds a sequence id;
//! one that was spilled holds none. Whether it is an idle sequence says its claim: as long as that
//! is held the entry is put aside under pressure and not dropped. Sequences that run stand in the
//! same [`Tree`] under what they came with, so that others can share with them too.
//!
//! There may be very many entries, most of which were put aside. What is done at each step looks at
//! those in the cells alone, of which there are no more than ids: they stand in order of their last
//! use, those that nobody claims apart from the others. A claim that was let go never comes back, so
//! an entry changes sides once, when it is looked who let go ([`Cache::settle`]).

use super::cells::Layout;
use super::tree::Tree;
use super::words::{EntryId, PrefixScope, RequestId, Retention, SeqId, WeakRetention, length};
use crate::Token;
use std::collections::BTreeMap;

/// Candidates that are looked at for one request: so many in the cells, and as many that were put aside.
const CANDIDATES: usize = 32;
/// They are taken from so many that share the most.
const LOOKED: usize = 256;

/// Who has a text that begins like another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Holder {
    Entry(EntryId),
    Running(RequestId),
}

/// Where an entry's state is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// In the cells of this id.
    Cells(SeqId),
    /// Put aside, from cells that lay like that.
    Spilled(Layout),
}

/// Something that stayed.
#[derive(Clone, Debug)]
pub struct Entry {
    /// With whom it may be shared.
    pub scope: PrefixScope,
    /// What was computed, all of it.
    pub tokens: Vec<Token>,
    /// Where its state is.
    pub place: Place,
    claim: WeakRetention,
    /// When it was of use; rises.
    used: u64,
    /// Put aside though nobody claims it.
    prefix: bool,
}

impl Entry {
    /// Number of its tokens.
    pub fn length(&self) -> u32 {
        length(&self.tokens)
    }

    /// Whether somebody means to go on with it.
    pub fn is_claimed(&self) -> bool {
        self.claim.is_held()
    }

    /// Whether somebody else means to go on with it than who has `own`.
    pub(super) fn is_claimed_beside(&self, own: Option<&Retention>) -> bool {
        self.claim.is_held_beside(own)
    }

    /// Whether it was put aside though nobody claims it: others may begin like it.
    pub(super) fn is_prefix(&self) -> bool {
        self.prefix
    }

    /// The id whose cells it has.
    pub fn seq(&self) -> Option<SeqId> {
        match self.place {
            Place::Cells(seq) => Some(seq),
            Place::Spilled(_) => None,
        }
    }
}

/// All of them.
#[derive(Clone, Debug, Default)]
pub struct Cache {
    entries: BTreeMap<EntryId, Entry>,
    /// Those in the cells that nobody claims, by when they were of use, which is never the same. Each with what
    /// a cell had cost in all when it last had a use or an owner: see [`Cache::charge`].
    loose: BTreeMap<u64, (EntryId, f64)>,
    /// The others in the cells: somebody claimed them when that was last looked at. Each with its claim, which is
    /// looked at in every step.
    claimed: BTreeMap<u64, (EntryId, WeakRetention)>,
    tree: Tree<Holder>,
    last: u64,
    clock: u64,
    /// Seconds by which a used cell has made steps longer, over all of them.
    charged: f64,
    /// Entries that were looked at, for tests.
    #[cfg(test)]
    visits: std::cell::Cell<u64>,
}

impl Cache {
    /// Each with its name.
    pub fn entries(&self) -> impl Iterator<Item = (EntryId, &Entry)> {
        self.entries.iter().map(|(id, entry)| (*id, entry))
    }

    /// One of them.
    pub fn get(&self, id: EntryId) -> Option<&Entry> {
        self.entries.get(&id)
    }

    /// Keeps something.
    pub(super) fn keep(
        &mut self,
        scope: PrefixScope,
        tokens: Vec<Token>,
        place: Place,
        claim: WeakRetention,
    ) -> EntryId {
        self.last += 1;
        self.clock += 1;
        let id = EntryId(self.last);
        self.tree.insert(scope, &tokens, Holder::Entry(id));
        let used = self.clock;
        if let Place::Cells(_) = place {
            self.stands(used, id, claim.is_held().then(|| claim.clone()));
        }
        let entry = Entry {
            scope,
            tokens,
            place,
            claim,
            used,
            prefix: false,
        };
        self.entries.insert(id, entry);
        id
    }

    /// It lies in the cells and is of use at this time: among those that somebody claims, if somebody does.
    fn stands(&mut self, used: u64, id: EntryId, claim: Option<WeakRetention>) {
        match claim {
            Some(claim) => {
                self.claimed.insert(used, (id, claim));
            }
            None => {
                self.loose.insert(used, (id, self.charged));
            }
        }
    }

    /// Keeps it no longer.
    pub(super) fn remove(&mut self, id: EntryId) -> Option<Entry> {
        let entry = self.entries.remove(&id)?;
        self.leaves_cells(entry.used);
        let there = self
            .tree
            .remove(entry.scope, &entry.tokens, Holder::Entry(id));
        debug_assert!(there, "{id:?} is in the tree");
        Some(entry)
    }

    /// It was put aside, from cells that lay like that.
    pub(super) fn spilled(&mut self, id: EntryId, layout: Layout) {
        if let Some(entry) = self.entries.get_mut(&id) {
            entry.place = Place::Spilled(layout);
            let used = entry.used;
            self.leaves_cells(used);
        }
    }

    /// The same of one that nobody claims.
    pub(super) fn spilled_as_prefix(&mut self, id: EntryId, layout: Layout) {
        self.spilled(id, layout);
        if let Some(entry) = self.entries.get_mut(&id) {
            entry.prefix = true;
        }
    }

    /// Each used cell made a step longer by so many seconds.
    pub(super) fn charge(&mut self, seconds: f64) {
        self.charged += seconds;
    }

    /// Those in the cells that nobody claims, as of the last [`Cache::settle`], with the seconds that each of
    /// their cells has cost since they were of use: the longest ago first.
    pub(super) fn charges(&self) -> impl Iterator<Item = (EntryId, f64)> {
        self.loose.values().map(|(id, since)| {
            self.visited();
            (*id, self.charged - since)
        })
    }

    /// Who was of use then is in the cells no longer, if it was. Its claim, if it had one.
    fn leaves_cells(&mut self, used: u64) -> Option<WeakRetention> {
        let loose = self.loose.remove(&used).is_some();
        let claimed = (!loose).then(|| self.claimed.remove(&used)).flatten();
        claimed.map(|(_, claim)| claim)
    }

    /// It lies under this id now.
    pub(super) fn moved(&mut self, id: EntryId, seq: SeqId) {
        if let Some(entry) = self.entries.get_mut(&id) {
            entry.place = Place::Cells(seq);
        }
    }

    /// It was of use.
    pub(super) fn touch(&mut self, id: EntryId) {
        self.clock += 1;
        let now = self.clock;
        let Some(entry) = self.entries.get_mut(&id) else {
            return;
        };
        let before = std::mem::replace(&mut entry.used, now);
        if entry.seq().is_some() {
            let claim = self.leaves_cells(before);
            self.stands(now, id, claim);
        }
    }

    /// Takes note of claims to entries in the cells that were let go.
    pub(super) fn settle(&mut self) {
        let mut let_go = Vec::new();
        for (used, (id, claim)) in &self.claimed {
            self.visited();
            if !claim.is_held() {
                let_go.push((*used, *id));
            }
        }
        for (used, id) in let_go {
            self.claimed.remove(&used);
            // What it cost until now was for its owner.
            self.stands(used, id, None);
        }
    }

    /// One of them, of many that are looked at.
    fn looked(&self, id: EntryId) -> Option<&Entry> {
        self.visited();
        self.get(id)
    }

    /// Counts an entry that is looked at, for tests.
    fn visited(&self) {
        #[cfg(test)]
        self.visits.set(self.visits.get() + 1);
    }

    /// A sequence begins to run.
    pub(super) fn begin(&mut self, scope: PrefixScope, tokens: &[Token], key: RequestId) {
        self.tree.insert(scope, tokens, Holder::Running(key));
    }

    /// A sequence that began with these tokens runs no longer.
    pub(super) fn end(&mut self, scope: PrefixScope, tokens: &[Token], key: RequestId) {
        let there = self.tree.remove(scope, tokens, Holder::Running(key));
        debug_assert!(there, "{key:?} is in the tree");
    }

    /// Who begins like this, with the number of tokens that are the same: first those whose state is in the cells,
    /// then those whose state was put aside; of either those first that share the most.
    pub(super) fn nearest(&self, scope: PrefixScope, tokens: &[Token]) -> Vec<(Holder, u32)> {
        let found = self.tree.nearest(scope, tokens, LOOKED).into_iter();
        let found =
            found.map(|(holder, shared)| (holder, u32::try_from(shared).unwrap_or(u32::MAX)));
        let (mut nearest, mut aside): (Vec<_>, Vec<_>) =
            found.partition(|(holder, _)| match holder {
                Holder::Entry(id) => self.get(*id).is_some_and(|entry| entry.seq().is_some()),
                Holder::Running(_) => true,
            });
        nearest.truncate(CANDIDATES);
        aside.truncate(CANDIDATES);
        nearest.append(&mut aside);
        nearest
    }

    /// The entry in the cells that was of no use for longest, of those that `suits`: of those that
    /// somebody claims, or of those that nobody does, as of the last [`Cache::settle`].
    pub(super) fn oldest(
        &self,
        claimed: bool,
        suits: impl Fn(EntryId, SeqId) -> bool,
    ) -> Option<EntryId> {
        let suits = |id: &EntryId| {
            let seq = self.looked(*id).and_then(Entry::seq);
            seq.is_some_and(|seq| suits(*id, seq))
        };
        match claimed {
            true => self.claimed.values().map(|(id, _)| *id).find(suits),
            false => self.loose.values().map(|(id, _)| *id).find(suits),
        }
    }

    /// Those in the cells, with their ids.
    pub(super) fn in_cells(&self) -> impl Iterator<Item = (EntryId, SeqId)> {
        let loose = self.loose.values().map(|(id, _)| *id);
        let both = loose.chain(self.claimed.values().map(|(id, _)| *id));
        both.filter_map(move |id| Some((id, self.get(id)?.seq()?)))
    }

    /// The entry that has the cells of this id.
    pub(super) fn with_cells_of(&self, seq: SeqId) -> Option<EntryId> {
        let found = self.in_cells().find(|(_, other)| *other == seq);
        found.map(|(id, _)| id)
    }

    /// Up to so many entries from this one on, in the order in which they were kept.
    pub(super) fn some_from(
        &self,
        first: EntryId,
        most: usize,
    ) -> impl Iterator<Item = (EntryId, &Entry)> {
        let entries = self.entries.range(first..).take(most);
        entries.map(move |(id, entry)| {
            self.visited();
            (*id, entry)
        })
    }

    /// Entries that nobody claims and that are no more than a beginning of `tokens`.
    pub(super) fn covered_by(&self, scope: PrefixScope, tokens: &[Token]) -> Vec<EntryId> {
        let beginnings = self.tree.beginnings(scope, tokens).into_iter();
        let unclaimed = |holder| match holder {
            Holder::Entry(id) => self
                .get(id)
                .is_some_and(|entry| !entry.is_claimed())
                .then_some(id),
            Holder::Running(_) => None,
        };
        beginnings.filter_map(unclaimed).collect()
    }

    /// Whether an entry in the cells begins with all of `tokens`, and where there are no `parts` has
    /// no others.
    pub(super) fn covers(&self, scope: PrefixScope, tokens: &[Token], parts: bool) -> bool {
        let suits =
            |entry: &Entry| entry.seq().is_some() && (parts || entry.tokens.len() == tokens.len());
        let resident = |holder| match holder {
            Holder::Entry(id) => self.get(id).is_some_and(suits),
            Holder::Running(_) => false,
        };
        self.tree.continues(scope, tokens, resident)
    }

    /// Whether an entry that was put aside, and stays, begins with all of `tokens`.
    pub(super) fn covers_aside(&self, scope: PrefixScope, tokens: &[Token]) -> bool {
        let stays = |entry: &Entry| entry.seq().is_none() && (entry.prefix || entry.is_claimed());
        let aside = |holder| match holder {
            Holder::Entry(id) => self.get(id).is_some_and(stays),
            Holder::Running(_) => false,
        };
        self.tree.continues(scope, tokens, aside)
    }

    /// Entries that were looked at so far, where many could have been.
    #[cfg(test)]
    pub(super) fn visits(&self) -> u64 {
        self.visits.get()
    }

    /// Each entry in the cells stands in the order once and on its side, and nothing else does.
    pub(super) fn check(&self) {
        let in_cells = self.entries.iter().filter(|(_, e)| e.seq().is_some());
        let mut expected: Vec<_> = in_cells.map(|(id, entry)| (entry.used, *id)).collect();
        let loose = self.loose.iter().map(|(used, (id, _))| (*used, *id));
        let claimed = self.claimed.iter().map(|(used, (id, _))| (*used, *id));
        let mut ordered: Vec<_> = loose.chain(claimed).collect();
        expected.sort_unstable();
        ordered.sort_unstable();
        assert_eq!(ordered, expected, "the order of those in the cells");
        for (id, claim) in self.claimed.values() {
            assert!(
                claim.is(&self.entries[id].claim),
                "{id:?} has its own claim"
            );
        }
        for (id, _) in self.loose.values() {
            assert!(!self.entries[id].is_claimed(), "{id:?} is claimed");
        }
    }
}
