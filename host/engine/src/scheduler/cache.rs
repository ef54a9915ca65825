//! What stays of sequences that ended: prefixes for those that begin alike, and idle sequences that
//! somebody means to go on with.
//!
//! Both are *entries*: tokens, and where their state is. An entry in the cells holds a sequence id;
//! one that was spilled holds none. Whether it is an idle sequence says its claim: as long as that
//! is held the entry is put aside under pressure and not dropped. Sequences that run stand in the
//! same [`Tree`] under what they came with, so that others can share with them too.

use super::cells::Layout;
use super::tree::Tree;
use super::words::{Claim, EntryId, Key, Scope, SeqId, Watch, length};
use crate::Token;
use std::collections::BTreeMap;

/// Candidates that are looked at for one request.
const CANDIDATES: usize = 32;

/// Who has a text that begins like another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Holder {
    Entry(EntryId),
    Running(Key),
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
    pub scope: Scope,
    /// What was computed, all of it.
    pub tokens: Vec<Token>,
    /// Where its state is.
    pub place: Place,
    claim: Watch,
    /// When it was of use; rises.
    used: u64,
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
    pub(super) fn is_claimed_beside(&self, own: Option<&Claim>) -> bool {
        self.claim.is_held_beside(own)
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
    tree: Tree<Holder>,
    last: u64,
    clock: u64,
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
        scope: Scope,
        tokens: Vec<Token>,
        place: Place,
        claim: Watch,
    ) -> EntryId {
        self.last += 1;
        self.clock += 1;
        let id = EntryId(self.last);
        self.tree.insert(scope, &tokens, Holder::Entry(id));
        let used = self.clock;
        let entry = Entry {
            scope,
            tokens,
            place,
            claim,
            used,
        };
        self.entries.insert(id, entry);
        id
    }

    /// Keeps it no longer.
    pub(super) fn remove(&mut self, id: EntryId) -> Option<Entry> {
        let entry = self.entries.remove(&id)?;
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
        }
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
        if let Some(entry) = self.entries.get_mut(&id) {
            entry.used = self.clock;
        }
    }

    /// A sequence begins to run.
    pub(super) fn begin(&mut self, scope: Scope, tokens: &[Token], key: Key) {
        self.tree.insert(scope, tokens, Holder::Running(key));
    }

    /// A sequence that began with these tokens runs no longer.
    pub(super) fn end(&mut self, scope: Scope, tokens: &[Token], key: Key) {
        let there = self.tree.remove(scope, tokens, Holder::Running(key));
        debug_assert!(there, "{key:?} is in the tree");
    }

    /// Who begins like this, with the number of tokens that are the same; the most first.
    pub(super) fn nearest(&self, scope: Scope, tokens: &[Token]) -> Vec<(Holder, u32)> {
        let found = self.tree.nearest(scope, tokens, CANDIDATES).into_iter();
        found
            .map(|(holder, shared)| (holder, u32::try_from(shared).unwrap_or(u32::MAX)))
            .collect()
    }

    /// The entry in the cells that was of no use for longest, of those that `suits`.
    pub(super) fn oldest(&self, suits: impl Fn(EntryId, &Entry, SeqId) -> bool) -> Option<EntryId> {
        let in_cells = self.entries.iter().filter(|&(id, entry)| {
            let suits = |seq| suits(*id, entry, seq);
            entry.seq().is_some_and(suits)
        });
        in_cells
            .min_by_key(|(_, entry)| entry.used)
            .map(|(id, _)| *id)
    }

    /// Entries that nobody claims and that are no more than a beginning of `tokens`.
    pub(super) fn covered_by(&self, scope: Scope, tokens: &[Token]) -> Vec<EntryId> {
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
    pub(super) fn covers(&self, scope: Scope, tokens: &[Token], parts: bool) -> bool {
        let suits =
            |entry: &Entry| entry.seq().is_some() && (parts || entry.tokens.len() == tokens.len());
        let resident = |holder| match holder {
            Holder::Entry(id) => self.get(id).is_some_and(suits),
            Holder::Running(_) => false,
        };
        self.tree.continues(scope, tokens, resident)
    }
}
