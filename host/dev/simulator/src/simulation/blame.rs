//! Who seems to be to blame for the steps that failed, as seen from outside.

use corral_scheduler::{RequestId, Row};
use std::collections::{BTreeMap, BTreeSet};

/// How often each sequence failed alone since it last got further than ever, in halves: two for one who was the first
/// since a step went well, one for who came after it. In each such time everyone counts once.
/// What the scheduler excuses counts as well, so these are never fewer than its own.
#[derive(Debug, Default)]
pub(super) struct Blame {
    /// How far each got, and its halves.
    of: BTreeMap<RequestId, (u32, u32)>,
    /// Who failed alone since a step went well.
    alone: BTreeSet<RequestId>,
}

impl Blame {
    /// A step was computed, or failed. A row that failed by itself failed alone if it has one token, or in a memory where
    /// all start `anew`.
    pub fn stepped(&mut self, rows: &[Row], failed: bool, anew: bool) {
        if !failed {
            self.alone.clear();
            for row in rows {
                let (reached, halves) = self.of.entry(row.request).or_default();
                if row.certain() > *reached {
                    (*reached, *halves) = (row.certain(), 0);
                }
            }
            return;
        }
        if let [row] = rows
            && (anew || row.tokens() == 1)
        {
            let first = self.alone.is_empty();
            if self.alone.insert(row.request) {
                self.of.entry(row.request).or_default().1 += if first { 2 } else { 1 };
            }
        }
    }

    /// The halves of one who ends.
    pub fn forget(&mut self, key: RequestId) -> u32 {
        self.of.remove(&key).unwrap_or_default().1
    }
}
