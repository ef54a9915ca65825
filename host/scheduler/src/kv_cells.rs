//! A mirror of llama.cpp's KV cell allocator: which cell holds which position.
//!
//! llama.cpp reports neither how many cells are used nor how far attention reads. This module computes
//! both from the operations alone: decode, share, truncate, clear and restore. It mirrors one unified
//! stream without sliding window or shift, and steps that run as one micro-batch. (A model with a sliding
//! window has a second cache with its own rules; the mirror is of the other, larger one.)
//!
//! The rule: **a position takes the lowest free cell.** `llama_kv_cache::find_slot` searches from a *head*,
//! takes every free cell on its way, and leaves the head behind the last one (`apply_ubatch`). Freeing a
//! cell below the head moves the head down to it (`seq_rm`). So no cell below the head is ever free, and the
//! head never exceeds the number of used cells. Two more rules of the search therefore never apply here:
//! wrapping around at the end, and starting over when much is free below the head.
//!
//! Sequences that [share](KvCells::share) a prefix hold the same cells. A cell is free once its last holder
//! releases it. A [restored](KvCells::restore) sequence takes one free cell for each position, in the order
//! of the cells that it was saved from ([`PositionOrder`]).
//!
//! Beyond llama.cpp's own state, a sequence can be [pinned](KvCells::pin): it runs, and its cells can't be
//! evicted.
//!
//! Invariants, tested with random operations against a plain copy of llama.cpp's loops: a cell is free, or
//! in the list of each of its holders at the same position; `used` is the number of set bits, `top` is one
//! past the highest, and no cell below `head` is free. A step costs time by the cells it takes or frees,
//! plus at worst one look at each word of the bitmap (4096 words for 262,144 cells).

use crate::step::SeqId;
use std::ops::Range;

/// llama.cpp's `llama_kv_cache::get_n_kv` pads to this, so that graphs are reused.
const PADDING: u32 = 256;
/// Cells in a word of the bitmap.
const WORD: u32 = u64::BITS;

/// The cells and their holders.
#[derive(Clone, Debug)]
pub struct KvCells {
    size: u32,
    /// A bit for each cell, set if the cell is used.
    map: Vec<u64>,
    used: u32,
    /// One past the highest used cell.
    top: u32,
    /// No cell below it is free.
    head: u32,
    /// By cell.
    holders: Vec<Holders>,
    /// Cells that pinned sequences hold.
    pinned: u32,
    /// By sequence id.
    held: Vec<SequenceCells>,
}

/// The holders of a cell: their number, and the exclusive or of their ids. If there is one, that is its id.
#[derive(Clone, Copy, Debug, Default)]
struct Holders {
    count: u16,
    ids_xor: u16,
    /// How many holders are pinned.
    pinned: u16,
}

impl Holders {
    /// The holder, if there is exactly one.
    fn only(self) -> Option<SeqId> {
        (self.count == 1).then_some(SeqId(self.ids_xor))
    }
}

/// The cells of a sequence.
#[derive(Clone, Debug, Default)]
struct SequenceCells {
    /// In the order of its positions, from position 0.
    cells: Vec<u32>,
    /// How many have no other holder.
    exclusive: u32,
    pinned: bool,
}

/// The order of a sequence's positions in its cells, from the lowest cell to the highest, as
/// [`KvCells::restore`] needs it.
///
/// Stored as runs of consecutive positions. A sequence that never took a hole below its other cells is
/// one run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PositionOrder(Vec<Range<u32>>);

impl PositionOrder {
    /// The order of these runs. `None` unless each position from 0 on is in exactly one of them.
    pub fn new(runs: Vec<Range<u32>>) -> Option<Self> {
        let mut sorted: Vec<_> = runs.iter().collect();
        sorted.sort_unstable_by_key(|run| run.start);
        let mut next = 0;
        for run in sorted {
            if run.start != next || run.end <= run.start {
                return None;
            }
            next = run.end;
        }
        Some(Self(runs))
    }

    /// The runs, from the lowest cells to the highest.
    pub fn runs(&self) -> &[Range<u32>] {
        &self.0
    }

    /// Number of positions.
    pub fn length(&self) -> u32 {
        self.0.iter().map(|run| run.end - run.start).sum()
    }
}

impl KvCells {
    /// `size` free cells: as many as the context has, which llama.cpp rounds up.
    pub fn new(size: u32) -> Self {
        Self {
            size,
            map: vec![0; size.div_ceil(WORD) as usize],
            used: 0,
            top: 0,
            head: 0,
            holders: vec![Holders::default(); size as usize],
            pinned: 0,
            held: Vec::new(),
        }
    }

    /// Places the new positions of each row in this order, as one decode does. False, and nothing
    /// changed, if too few cells are free, where a decode returns 1.
    pub fn place(&mut self, rows: impl Iterator<Item = (SeqId, u32)> + Clone) -> bool {
        let sum = |sum: u32, (_, count)| sum.saturating_add(count);
        let wanted = rows.clone().fold(0, sum);
        if wanted > self.free() {
            return false;
        }
        for (seq, count) in rows {
            self.held_mut(seq);
            for _ in 0..count {
                let cell = self.take_lowest(seq);
                self.held_mut(seq).cells.push(cell);
            }
        }
        true
    }

    /// Removes what [`KvCells::place`] just placed, for a decode that failed. `llama_context::decode`
    /// removes what its batch added (codes 2, -2, -3), or had added nothing (1, -1, and -2 if there was no
    /// memory for the outputs). In each case the next position takes the lowest free cell.
    pub fn undo(&mut self, rows: impl Iterator<Item = (SeqId, u32)>) {
        for (seq, count) in rows {
            let kept = self.held_by(seq).checked_sub(count);
            debug_assert!(kept.is_some(), "{seq:?} has fewer than {count} positions");
            self.truncate(seq, kept.unwrap_or(0));
        }
    }

    /// Lets `to`, which holds nothing, hold the cells of the first `length` positions of `from` too, as
    /// `llama_kv_cache::seq_cp` does in one stream. Takes no cell.
    pub fn share(&mut self, from: SeqId, to: SeqId, length: u32) {
        debug_assert!(from != to, "{from:?} shared with itself");
        debug_assert_eq!(self.held_by(to), 0, "{to:?} is not empty");
        debug_assert!(length <= self.held_by(from), "{from:?} is too short");
        if from == to {
            return;
        }
        let held = &self.held_mut(from).cells;
        let shared = held[..held.len().min(length as usize)].to_vec();
        let pinned = self.held_mut(to).pinned;
        for &cell in &shared {
            let holders = &mut self.holders[cell as usize];
            let before = holders.only();
            holders.count += 1;
            holders.ids_xor ^= to.0;
            if pinned {
                holders.pinned += 1;
                self.pinned += u32::from(holders.pinned == 1);
            }
            if let Some(seq) = before {
                self.held_mut(seq).exclusive -= 1;
            }
        }
        self.held_mut(to).cells = shared;
    }

    /// Releases the positions of a sequence from `length` on, as `llama_kv_cache::seq_rm` does.
    pub fn truncate(&mut self, seq: SeqId, length: u32) {
        let Some(held) = self.held.get_mut(usize::from(seq.0)) else {
            return;
        };
        if (length as usize) < held.cells.len() {
            let released = held.cells.split_off(length as usize);
            self.release(seq, &released);
        }
    }

    /// Releases all positions of a sequence.
    pub fn clear(&mut self, seq: SeqId) {
        if let Some(held) = self.held.get_mut(usize::from(seq.0)) {
            let released = std::mem::take(&mut held.cells);
            self.release(seq, &released);
        }
    }

    /// Marks the cells of an id, now and in the future, as in use by a running request.
    pub fn pin(&mut self, seq: SeqId) {
        if std::mem::replace(&mut self.held_mut(seq).pinned, true) {
            return;
        }
        for &cell in &self.held[usize::from(seq.0)].cells {
            let holders = &mut self.holders[cell as usize];
            holders.pinned += 1;
            self.pinned += u32::from(holders.pinned == 1);
        }
    }

    /// Reverts [`KvCells::pin`].
    pub fn unpin(&mut self, seq: SeqId) {
        if !std::mem::replace(&mut self.held_mut(seq).pinned, false) {
            return;
        }
        for &cell in &self.held[usize::from(seq.0)].cells {
            let holders = &mut self.holders[cell as usize];
            holders.pinned -= 1;
            self.pinned -= u32::from(holders.pinned == 0);
        }
    }

    /// Number of cells that pinned sequences hold.
    pub fn pinned(&self) -> u32 {
        self.pinned
    }

    /// How many of the first `length` cells of a sequence no pinned sequence holds.
    pub fn unpinned(&self, seq: SeqId, length: u32) -> u32 {
        let held = self.held.get(usize::from(seq.0));
        let cells = held.map_or(&[][..], |held| &held.cells).iter();
        let unpinned = cells
            .take(length as usize)
            .filter(|cell| self.holders[**cell as usize].pinned == 0);
        u32::try_from(unpinned.count()).unwrap_or(u32::MAX)
    }

    /// The order of a sequence's positions. It changes whenever the sequence takes or releases cells.
    pub fn order(&self, seq: SeqId) -> PositionOrder {
        let mut runs: Vec<Range<u32>> = Vec::new();
        let mut push = |position: u32| match runs.last_mut() {
            Some(run) if run.end == position => run.end += 1,
            _ => runs.push(position..position + 1),
        };
        let held = self.held.get(usize::from(seq.0));
        let cells = held.map_or(&[][..], |held| &held.cells);
        if cells.is_sorted() {
            (0..).zip(cells).for_each(|(position, _)| push(position));
        } else {
            let mut sorted: Vec<(u32, u32)> = cells.iter().copied().zip(0..).collect();
            sorted.sort_unstable();
            sorted.iter().for_each(|&(_, position)| push(position));
        }
        PositionOrder(runs)
    }

    /// Places a sequence that was saved in this order and holds nothing now, as
    /// `llama_kv_cache::state_read_meta` does when it loads a state. False, and nothing changed, if too
    /// few cells are free.
    ///
    /// A state lists the cells of its sequence from the lowest to the highest. Each takes the lowest free
    /// cell, also where it was shared before. So positions that were out of order stay out of order.
    #[must_use]
    pub fn restore(&mut self, seq: SeqId, order: &PositionOrder) -> bool {
        debug_assert_eq!(self.held_by(seq), 0, "{seq:?} is not empty");
        let length = order.length();
        if length > self.free() {
            return false;
        }
        let mut cells = vec![0; length as usize];
        self.held_mut(seq);
        for position in order.0.iter().flat_map(Clone::clone) {
            cells[position as usize] = self.take_lowest(seq);
        }
        self.held_mut(seq).cells = cells;
        true
    }

    /// Number of used cells.
    pub fn used(&self) -> u32 {
        self.used
    }

    /// Number of free cells.
    pub fn free(&self) -> u32 {
        self.size - self.used
    }

    /// Number of cells that attention runs over: all up to the highest used one, padded
    /// (`llama_kv_cache::get_n_kv`). After [`KvCells::place`] it is the number for that step.
    pub fn n_kv(&self) -> u32 {
        self.padded(self.top)
    }

    /// [`KvCells::n_kv`] without a sequence. Visits each cell down to the highest that stays used.
    pub fn n_kv_without(&self, seq: SeqId) -> u32 {
        let below_top = &self.holders[..self.top as usize];
        let stays = |holders: &Holders| holders.count > 0 && holders.only() != Some(seq);
        let top = below_top.iter().rposition(stays).map_or(0, |last| last + 1);
        self.padded(u32::try_from(top).unwrap_or(self.top))
    }

    /// [`KvCells::n_kv`] after saving, clearing and restoring a sequence, which then takes the lowest free
    /// cells, also in place of those it shares now.
    pub fn n_kv_moved(&self, seq: SeqId) -> u32 {
        let others = self.used - self.freed_by_clearing(seq);
        let all = others.saturating_add(self.held_by(seq));
        self.padded(all).max(self.n_kv_without(seq))
    }

    /// The single holder of the highest used cell, which decides how far attention runs. `None` if no cell
    /// is used or that cell has several holders.
    pub fn highest(&self) -> Option<SeqId> {
        self.holders[self.top.checked_sub(1)? as usize].only()
    }

    /// Number of cells that a sequence holds, alone or with others: its length.
    pub fn held_by(&self, seq: SeqId) -> u32 {
        let held = self.held.get(usize::from(seq.0));
        u32::try_from(held.map_or(0, |held| held.cells.len())).unwrap_or(u32::MAX)
    }

    /// Number of cells that clearing a sequence would free.
    pub fn freed_by_clearing(&self, seq: SeqId) -> u32 {
        let held = self.held.get(usize::from(seq.0));
        held.map_or(0, |held| held.exclusive)
    }

    /// Position and holders of each used cell, in cell order. Takes time and memory for every cell: for
    /// checks.
    pub fn occupied(&self) -> impl Iterator<Item = (u32, Vec<SeqId>)> {
        let mut by_cell = vec![(0, Vec::new()); self.size as usize];
        for (seq, held) in (0..).map(SeqId).zip(&self.held) {
            for (position, &cell) in (0..).zip(&held.cells) {
                let entry = &mut by_cell[cell as usize];
                entry.0 = position;
                entry.1.push(seq);
            }
        }
        by_cell.into_iter().filter(|(_, seqs)| !seqs.is_empty())
    }

    fn padded(&self, top: u32) -> u32 {
        top.next_multiple_of(PADDING).max(PADDING).min(self.size)
    }

    /// The cells of a sequence, added if the id is new.
    fn held_mut(&mut self, seq: SeqId) -> &mut SequenceCells {
        let index = usize::from(seq.0);
        if self.held.len() <= index {
            self.held.resize_with(index + 1, SequenceCells::default);
        }
        &mut self.held[index]
    }

    /// Takes the lowest free cell for a sequence. One must be free.
    fn take_lowest(&mut self, seq: SeqId) -> u32 {
        let mut word = self.head / WORD;
        while self.map[word as usize] == u64::MAX {
            word += 1;
        }
        let used = &mut self.map[word as usize];
        let cell = word * WORD + used.trailing_ones();
        *used |= *used + 1;
        self.used += 1;
        self.head = cell + 1;
        self.top = self.top.max(self.head);
        let held = self.held_mut(seq);
        held.exclusive += 1;
        let pinned = u16::from(held.pinned);
        self.pinned += u32::from(pinned);
        self.holders[cell as usize] = Holders {
            count: 1,
            ids_xor: seq.0,
            pinned,
        };
        cell
    }

    /// Removes a holder from cells. Cells without another holder become free.
    fn release(&mut self, seq: SeqId, cells: &[u32]) {
        let pinned = self.held_mut(seq).pinned;
        for &cell in cells {
            let holders = &mut self.holders[cell as usize];
            debug_assert!(holders.count > 0, "cell {cell} is free already");
            holders.count -= 1;
            holders.ids_xor ^= seq.0;
            if pinned {
                holders.pinned -= 1;
                self.pinned -= u32::from(holders.pinned == 0);
            }
            match (holders.count, holders.only()) {
                (0, _) => {
                    self.map[(cell / WORD) as usize] &= !(1 << (cell % WORD));
                    self.used -= 1;
                    self.head = self.head.min(cell);
                    self.held_mut(seq).exclusive -= 1;
                }
                (_, Some(other)) => self.held_mut(other).exclusive += 1,
                _ => {}
            }
        }
        while let Some(last) = self.top.checked_sub(1) {
            let start = last - last % WORD;
            let used = self.map[(last / WORD) as usize];
            if used != 0 {
                self.top = start + WORD - used.leading_zeros();
                break;
            }
            self.top = start;
        }
    }
}

#[cfg(test)]
mod tests;
