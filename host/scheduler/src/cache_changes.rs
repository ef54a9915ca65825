//! Changes of what the cache holds, for an index of prefixes outside the engine.
//!
//! Running requests and prefix cache entries are *holders*: each holds the first tokens of its text, in whole blocks. A
//! [`CacheChange`] tells how the tokens of one holder changed. Applied in order, the changes give what requests of each
//! scope find cached: in the cells, in memory, or on disk.
//!
//! Running requests are compared with what was reported of them; of the entries only those that the prefix cache lists as
//! changed, since there may be very many. Nothing is recorded before [`Scheduler::follow_cache`].

use crate::Token;
use crate::prefix_cache::PrefixHolder;
use crate::request::{PrefixScope, RequestId};
use crate::scheduler::Scheduler;
use crate::status::EntryLocation;
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

impl Scheduler {
    /// From now on, records changes in blocks of this many tokens. False if requests reuse no parts of sequences: then
    /// blocks do not tell what a request finds, and nothing is recorded.
    pub fn follow_cache(&mut self, block: u32) -> bool {
        let follows = self.config.can_reuse_part() && block > 0;
        if follows {
            self.kv.entries.record_changes();
            self.cache_report = Some(CacheReport {
                block: block as usize,
                reported: BTreeMap::new(),
            });
        }
        follows
    }

    /// The changes since the last call. What moved from one holder to another, such as from a request to the entry that it
    /// leaves, is added before it is removed.
    pub fn cache_changes(&mut self) -> Vec<CacheChange> {
        let Some(report) = &mut self.cache_report else {
            return Vec::new();
        };
        let mut changes = Vec::new();
        for id in self.kv.entries.take_changed() {
            let holder = PrefixHolder::Entry(id);
            changes.extend(match self.kv.entries.get(id) {
                Some(entry) => report.update(holder, entry.scope, entry.location(), &entry.tokens),
                None => report.remove(holder),
            });
        }
        for running in self.running.iter() {
            let holder = PrefixHolder::Running(running.id());
            let tokens = running.tokens();
            let computed = &tokens[..tokens.len().min(running.computed as usize)];
            let scope = running.request.scope;
            changes.extend(report.update(holder, scope, EntryLocation::Cells, computed));
        }
        let reported = || report.reported.range(FIRST_RUNNING..);
        if reported().count() > self.running.len() {
            let is_gone = |holder: &PrefixHolder| match holder {
                PrefixHolder::Running(id) => self.running.get(*id).is_none(),
                PrefixHolder::Entry(_) => false,
            };
            let gone = reported().map(|(holder, _)| *holder).filter(is_gone);
            for holder in Vec::from_iter(gone) {
                changes.extend(report.remove(holder));
            }
        }
        changes.sort_by_key(|change| change.tokens.is_empty());
        changes
    }

    /// All that the cache holds now, as changes of an empty one.
    pub fn cache_contents(&mut self) -> Vec<CacheChange> {
        if let Some(report) = &mut self.cache_report {
            report.reported.clear();
            self.kv.entries.record_changes();
        }
        self.cache_changes()
    }
}
