//! Failures of requests alone, counted independently of the scheduler.

use corral_scheduler::{RequestId, Row};
use std::collections::{BTreeMap, BTreeSet};

/// How often each request failed alone since its last progress, in halves: two for the first one since a successful
/// step, one for those after it. Excused failures count too, so the counts are never below the scheduler's.
#[derive(Debug, Default)]
pub(super) struct StrikeCount {
    /// The furthest position of each request, and its halves.
    requests: BTreeMap<RequestId, (u32, u32)>,
    /// Requests that failed alone since the last successful step.
    alone: BTreeSet<RequestId>,
}

impl StrikeCount {
    /// Records a step. A failed row was alone if it has one token, or if requests `restart` after a failure.
    pub fn stepped(&mut self, rows: &[Row], failed: bool, restart: bool) {
        if !failed {
            self.alone.clear();
            for row in rows {
                let (reached, halves) = self.requests.entry(row.request).or_default();
                if row.known_end() > *reached {
                    (*reached, *halves) = (row.known_end(), 0);
                }
            }
            return;
        }
        if let [row] = rows
            && (restart || row.tokens() == 1)
        {
            let first = self.alone.is_empty();
            if self.alone.insert(row.request) {
                self.requests.entry(row.request).or_default().1 += if first { 2 } else { 1 };
            }
        }
    }

    /// The halves of a request that ends.
    pub fn remove(&mut self, request: RequestId) -> u32 {
        self.requests.remove(&request).unwrap_or_default().1
    }
}
