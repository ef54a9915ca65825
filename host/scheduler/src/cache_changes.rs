//! Changes of what the cache holds, for an index of prefixes outside the engine.
//!
//! Running requests and prefix cache entries are *holders*: each holds the first tokens of its text, in whole blocks. A
//! [`CacheChange`] tells how the tokens of one holder changed. Applied in order, the changes give what requests of each
//! scope find cached: in the cells, in memory, or on disk.
//!
//! Running requests are compared with what was reported of them; of the entries only those that the prefix cache lists as
//! changed, since there may be very many. Nothing is recorded before
//! [`Scheduler::follow_cache`](crate::Scheduler::follow_cache).

use crate::Token;
use crate::prefix_cache::{EntryLocation, PrefixCache, PrefixHolder};
use crate::request::{PrefixScope, RequestId};
use crate::running::RunningRequests;
use std::collections::BTreeMap;

/// From now on, a holder holds the first `kept` tokens that it held before and then `tokens`, all of them in `location`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CacheChange {
    /// The holder. It is gone if it holds no tokens.
    pub holder: PrefixHolder,
    /// The requests that can reuse the tokens; never changes.
    pub scope: PrefixScope,
    /// Where the state of the tokens is. `kept` is 0 if it was elsewhere before.
    pub location: EntryLocation,
    /// A multiple of the block size.
    pub kept: u32,
    /// Whole blocks.
    pub tokens: Vec<Token>,
}

/// What was reported of each holder.
#[derive(Clone, Debug)]
pub(crate) struct CacheReport {
    block: usize,
    reported: BTreeMap<PrefixHolder, Reported>,
}

#[derive(Clone, Copy, Debug)]
struct Reported {
    scope: PrefixScope,
    location: EntryLocation,
    length: usize,
}

/// The running request with the lowest id; entries sort before it.
const FIRST_RUNNING: PrefixHolder = PrefixHolder::Running(RequestId(0));

impl CacheReport {
    /// Reports nothing yet; from now on, `entries` lists its changes.
    pub fn new(block: u32, entries: &mut PrefixCache) -> Self {
        entries.record_changes();
        Self {
            block: block as usize,
            reported: BTreeMap::new(),
        }
    }

    /// Begins anew: the next changes are those of an empty cache.
    pub fn clear(&mut self, entries: &mut PrefixCache) {
        self.reported.clear();
        entries.record_changes();
    }

    /// The changes since the last call. What moved from one holder to another, such as from a request to the entry that it
    /// leaves, is added before it is removed.
    pub fn changes(
        &mut self,
        entries: &mut PrefixCache,
        requests: &RunningRequests,
    ) -> Vec<CacheChange> {
        let mut changes = Vec::new();
        for id in entries.take_changed() {
            let holder = PrefixHolder::Entry(id);
            changes.extend(match entries.get(id) {
                Some(entry) => self.update(holder, entry.scope, entry.location(), &entry.tokens),
                None => self.remove(holder),
            });
        }
        for running in requests.iter() {
            let holder = PrefixHolder::Running(running.id());
            let tokens = running.tokens();
            let computed = &tokens[..tokens.len().min(running.computed as usize)];
            let scope = running.request.scope;
            changes.extend(self.update(holder, scope, EntryLocation::Cells, computed));
        }
        let reported = || self.reported.range(FIRST_RUNNING..);
        if reported().count() > requests.len() {
            let is_gone = |holder: &PrefixHolder| match holder {
                PrefixHolder::Running(id) => requests.get(*id).is_none(),
                PrefixHolder::Entry(_) => false,
            };
            let gone = reported().map(|(holder, _)| *holder).filter(is_gone);
            for holder in Vec::from_iter(gone) {
                changes.extend(self.remove(holder));
            }
        }
        changes.sort_by_key(|change| change.tokens.is_empty());
        changes
    }

    /// Reports what a holder holds now.
    fn update(
        &mut self,
        holder: PrefixHolder,
        scope: PrefixScope,
        location: EntryLocation,
        tokens: &[Token],
    ) -> Option<CacheChange> {
        let length = tokens.len() - tokens.len() % self.block;
        let now = Reported {
            scope,
            location,
            length,
        };
        let before = self.reported.insert(holder, now);
        let kept = match before {
            Some(before) if before.location == location => before.length.min(length),
            _ => 0,
        };
        let is_same = before.map_or(length == 0, |before| {
            before.length == length && (before.location == location || length == 0)
        });
        (!is_same).then(|| CacheChange {
            holder,
            scope,
            location,
            kept: u32::try_from(kept).unwrap_or(u32::MAX),
            tokens: tokens[kept..length].to_vec(),
        })
    }

    /// Reports that a holder is gone.
    fn remove(&mut self, holder: PrefixHolder) -> Option<CacheChange> {
        let before = self.reported.remove(&holder)?;
        (before.length > 0).then(|| CacheChange {
            holder,
            scope: before.scope,
            location: before.location,
            kept: 0,
            tokens: Vec::new(),
        })
    }
}
