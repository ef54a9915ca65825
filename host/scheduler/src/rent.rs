//! What it costs to keep prefixes in the cells.
//!
//! Attention runs over all cells up to the highest used one, and a backend that passes over those of others
//! still looks at each: by so much a kept prefix makes each token that a step computes dearer, whoever's it is. That
//! is its *rent*. What a cell costs a step is a term of the [`cost`](super::cost) model, and nothing where a
//! backend does not care. (It is saved when the highest used cell is a lower one: those who come take the lowest
//! free cells, and who stays high is [moved down](super::placement) where that pays.)
//!
//! Nobody knows whether a prefix will be of use once more. So it stays until its rent since it was last of use comes
//! to what it would cost to be rid of it: to move it out of the cells and back, or to compute it again where that is
//! less, or where it lies in cells that others hold anyhow. Then it goes. As far as the model of costs holds,
//! that costs at most twice as much as to have known (the ski-rental problem's rule).
//!
//! Moving makes everyone wait for a moment. So it is done before a step that reads no prompts, unless none comes for
//! as long again, and for one prefix at a time.

use super::Scheduler;
use super::cache::Entry;
use super::cost::StepShape;
use super::words::{EntryId, SeqId};

/// Rent, in times of what it costs to be rid of a prefix, at which that is done before a step that reads prompts, too.
const PATIENCE: f64 = 2.0;
/// Attention never runs over fewer cells.
const FEWEST: u32 = 256;

/// What becomes of a prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Move,
    Drop,
    /// The same, since it takes too long to move it.
    DropDear,
}

impl Scheduler {
    /// A step is about to be computed: prefixes pay for the room they take, and one that has paid enough goes.
    pub(super) fn collect_rent(&mut self, shape: StepShape) {
        let tokens = shape.rows + shape.drafts + shape.prefill;
        let can = self.limits.reuses_parts() && self.cost.is_fitted();
        if !can || tokens == 0 || self.cells.n_kv() <= FEWEST {
            return;
        }
        self.cache.charge(self.cost.cell(tokens));
        self.cache.settle();
        let patience = match shape.prefill {
            0 => 1.0,
            _ => PATIENCE,
        };
        let Some((id, way)) = self.overdue(patience) else {
            return;
        };
        if way == Way::DropDear {
            self.forget_state_seconds();
        }
        match self.cache.get(id).and_then(Entry::seq) {
            Some(seq) if way == Way::Move => self.spill_prefix(id, seq),
            _ => self.put_aside(id),
        }
    }

    /// The first that has paid so many times what it costs to be rid of it.
    fn overdue(&self, patience: f64) -> Option<(EntryId, Way)> {
        // None goes for less, by cell.
        let least = self.cost.prompts(1, self.cells.n_kv());
        let least = patience * least.min(self.moving(1));
        let charges = self.cache.charges();
        let mut charges = charges.filter(|(_, each)| *each > 0.0 && *each >= least);
        charges.find_map(|(id, each)| {
            let seq = self.cache.get(id)?.seq()?;
            let rent = each * f64::from(self.cells.freed_by_clearing(seq));
            let (way, seconds) = self.way(id, seq)?;
            let due = rent > 0.0 && rent >= patience * seconds;
            due.then_some((id, way))
        })
    }

    /// How to be rid of an entry in the cells that nobody claims, and what that costs in seconds. What mostly lies in cells
    /// that others hold is not moved: its copy would be one more of all that it shares with them.
    fn way(&self, id: EntryId, seq: SeqId) -> Option<(Way, f64)> {
        let entry = self.cache.get(id)?;
        let (all, alone) = (entry.length(), self.cells.freed_by_clearing(seq));
        let anew = self.cost.prompts(alone, self.cells.n_kv());
        let once = self.moving(all);
        if self.cache.covers_aside(entry.scope, &entry.tokens) {
            return Some((Way::Drop, anew.min(once)));
        }
        let can = self.limits.offload_prefixes && 2 * alone > all && all <= self.longest_prefix;
        Some(match can {
            true if 2.0 * once < anew => (Way::Move, 2.0 * once),
            true => (Way::DropDear, anew),
            false => (Way::Drop, anew),
        })
    }

    /// There is no room for a prefix of that length outside of the cells.
    pub fn offload_too_large(&mut self, id: EntryId) {
        if let Some(entry) = self.cache.get(id) {
            self.longest_prefix = self.longest_prefix.min(entry.length().saturating_sub(1));
        }
    }

    /// Whether so many tokens of what was put aside are sooner brought back, with all the others of it, than computed,
    /// and there is room for it. What somebody claims was put aside since that was so for all of it.
    pub(super) fn fetching_pays(&self, id: EntryId, tokens: u32) -> bool {
        let Some(entry) = self.cache.get(id).filter(|entry| entry.is_prefix()) else {
            return true;
        };
        let anew = self.cost.prompts(tokens, self.cells.n_kv());
        let pays = !self.cost.is_fitted() || self.moving(entry.length()) < anew;
        pays && entry.length() <= self.most_free()
    }
}

impl Scheduler {
    /// Moves all prefixes that nobody claims out of the cells, whatever they have paid: for tests.
    pub fn offload_all_prefixes(&mut self) {
        self.cache.settle();
        let all: Vec<_> = self.cache.charges().map(|(id, _)| id).collect();
        for id in all {
            if let Some(seq) = self.cache.get(id).and_then(Entry::seq) {
                self.spill_prefix(id, seq);
            }
        }
    }
}
