//! Where llama.cpp puts each position in its key-value cells: a mirror of its allocator.
//!
//! llama.cpp's interface tells neither how many cells are used nor how far attention has to read,
//! so this keeps the same books, from what was decoded and cleared alone. It mirrors one unified
//! stream without sliding window, shift or sequence copies, and steps that run as one micro-batch.
//!
//! The whole rule is: **a position takes the lowest free cell.** llama.cpp's
//! `llama_kv_cache::find_slot` says it in more words. It searches from a *head*, takes every free
//! cell it meets, and leaves the head behind the last one (`apply_ubatch`); freeing a cell below the
//! head moves the head down to it (`seq_rm`). So no cell below the head is ever free, the head is
//! never above the number of used cells, and two more rules of its search can't come to pass here:
//! that it wraps around at the end, and that it starts over when much is free below the head.
//!
//! Invariants, tested with random workloads against a plain copy of llama.cpp's loops: a cell is
//! free or in the list of exactly one sequence; `used` is the number of set bits, `top` is one past
//! the highest, and no cell below `head` is free. A step costs time by the cells it takes or frees,
//! plus at worst one look at each word of the map (4096 words for 262,144 cells).

use super::SeqId;

/// llama.cpp's `llama_kv_cache::get_n_kv` pads to this, so that graphs can be used again.
const PADDING: u32 = 256;
/// Cells in a word of the map.
const WORD: u32 = u64::BITS;

/// The cells and who holds them.
#[derive(Clone, Debug)]
pub struct Cells {
    size: u32,
    /// A bit for each cell, set if it is used.
    map: Vec<u64>,
    used: u32,
    /// One past the highest used cell.
    top: u32,
    /// No cell below it is free.
    head: u32,
    /// The cells of each sequence in the order of its positions, from position 0; by id.
    held: Vec<Vec<u32>>,
}

impl Cells {
    /// `size` free cells: as many as the context has, which llama.cpp rounds up from what it was
    /// asked for.
    pub fn new(size: u32) -> Self {
        Self {
            size,
            map: vec![0; size.div_ceil(WORD) as usize],
            used: 0,
            top: 0,
            head: 0,
            held: Vec::new(),
        }
    }

    /// Places new positions, as many as each row says and in this order, as one decode does. False,
    /// and nothing changed, if there is no room, where a decode returns 1.
    pub fn place(&mut self, rows: impl Iterator<Item = (SeqId, u32)> + Clone) -> bool {
        let sum = |sum: u32, (_, count)| sum.saturating_add(count);
        let wanted = rows.clone().fold(0, sum);
        if wanted > self.size - self.used {
            return false;
        }
        for (seq, count) in rows {
            let index = usize::from(seq.0);
            if self.held.len() <= index {
                self.held.resize_with(index + 1, Vec::new);
            }
            for _ in 0..count {
                let cell = self.take_lowest();
                self.held[index].push(cell);
            }
        }
        true
    }

    /// Takes back what [`Cells::place`] just placed, for a decode that failed, whatever its code:
    /// llama.cpp's `llama_context::decode` removes what its batch added (2, -2, -3) or had added
    /// nothing yet (1, -1, and -2 if there was no memory for the outputs). Its head may differ
    /// between these, but in each the next position goes to the lowest free cell.
    pub fn undo(&mut self, rows: impl Iterator<Item = (SeqId, u32)>) {
        for (seq, count) in rows {
            let Some(held) = self.held.get_mut(usize::from(seq.0)) else {
                debug_assert_eq!(count, 0, "{seq:?} has nothing to take back");
                continue;
            };
            let kept = held.len().checked_sub(count as usize);
            debug_assert!(kept.is_some(), "{seq:?} has fewer than {count} positions");
            let freed = held.split_off(kept.unwrap_or(0));
            self.free(&freed);
        }
    }

    /// Frees all cells of a sequence, as llama.cpp's `llama_kv_cache::seq_rm` over all positions.
    pub fn clear(&mut self, seq: SeqId) {
        if let Some(held) = self.held.get_mut(usize::from(seq.0)) {
            let freed = std::mem::take(held);
            self.free(&freed);
        }
    }

    /// Number of used cells.
    pub fn used(&self) -> u32 {
        self.used
    }

    /// Number of cells that attention runs over, used or not: all up to the highest used one, padded
    /// (llama.cpp's `llama_kv_cache::get_n_kv`). After [`Cells::place`] it is what that step reads.
    pub fn n_kv(&self) -> u32 {
        self.top
            .next_multiple_of(PADDING)
            .max(PADDING)
            .min(self.size)
    }

    /// Number of cells that a sequence holds, which is its length.
    pub fn held_by(&self, seq: SeqId) -> u32 {
        let held = self.held.get(usize::from(seq.0)).map_or(0, Vec::len);
        u32::try_from(held).unwrap_or(u32::MAX)
    }

    /// Sequence and position of each used cell, in cell order. Sorts them: for checks, not for every
    /// step.
    pub fn occupied(&self) -> impl Iterator<Item = (SeqId, u32)> {
        let mut cells = Vec::with_capacity(self.used as usize);
        for (seq, held) in (0..).map(SeqId).zip(&self.held) {
            cells.extend(
                (0..)
                    .zip(held)
                    .map(|(position, &cell)| (cell, seq, position)),
            );
        }
        cells.sort_unstable();
        cells.into_iter().map(|(_, seq, position)| (seq, position))
    }

    /// Takes the lowest free cell. There must be one.
    fn take_lowest(&mut self) -> u32 {
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
        cell
    }

    /// Frees used cells.
    fn free(&mut self, cells: &[u32]) {
        for &cell in cells {
            let bit = 1 << (cell % WORD);
            let word = &mut self.map[(cell / WORD) as usize];
            debug_assert!(*word & bit != 0, "cell {cell} is free already");
            *word &= !bit;
            self.used -= 1;
            self.head = self.head.min(cell);
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
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn place(cells: &mut Cells, rows: &[(u16, u32)]) -> bool {
        cells.place(rows.iter().map(|&(seq, count)| (SeqId(seq), count)))
    }

    fn undo(cells: &mut Cells, rows: &[(u16, u32)]) {
        cells.undo(rows.iter().map(|&(seq, count)| (SeqId(seq), count)));
    }

    fn held(cells: &Cells, seq: u16) -> &[u32] {
        &cells.held[usize::from(seq)]
    }

    #[test]
    fn rows_are_placed_in_order_from_the_first_cell() {
        let mut cells = Cells::new(256);
        assert!(place(&mut cells, &[(3, 2), (0, 1)]));
        assert!(place(&mut cells, &[(0, 1), (3, 1)]));
        let occupied: Vec<_> = cells.occupied().map(|(seq, at)| (seq.0, at)).collect();
        assert_eq!(occupied, [(3, 0), (3, 1), (0, 0), (0, 1), (3, 2)]);
        assert_eq!((cells.used(), cells.held_by(SeqId(3))), (5, 3));
        assert_eq!(cells.held_by(SeqId(9)), 0);
    }

    #[test]
    fn the_lowest_free_cells_are_taken_holes_first() {
        let mut cells = Cells::new(256);
        place(&mut cells, &[(0, 4), (1, 4), (2, 4), (3, 200)]);
        cells.clear(SeqId(2));
        cells.clear(SeqId(0));
        place(&mut cells, &[(4, 6)]);
        assert_eq!(held(&cells, 4), [0, 1, 2, 3, 8, 9]);
        place(&mut cells, &[(0, 3)]);
        assert_eq!(held(&cells, 0), [10, 11, 212]);
        // Clearing what holds nothing changes nothing.
        cells.clear(SeqId(2));
        cells.clear(SeqId(99));
        assert_eq!((cells.used(), cells.head), (213, 213));
    }

    #[test]
    fn a_step_without_room_changes_nothing() {
        let mut cells = Cells::new(256);
        place(&mut cells, &[(0, 200)]);
        let before: Vec<_> = cells.occupied().collect();
        assert!(!place(&mut cells, &[(1, 56), (2, 1)]));
        assert!(!place(&mut cells, &[(1, u32::MAX), (2, u32::MAX)]));
        assert!(cells.occupied().eq(before));
        assert_eq!((cells.used(), cells.held_by(SeqId(1))), (200, 0));
        assert!(place(&mut cells, &[(1, 55), (2, 1)]), "room to the last");
        assert!(!place(&mut cells, &[(0, 1)]));
        assert!(place(&mut cells, &[]), "nothing needs no room");
        assert_eq!((cells.used(), cells.n_kv()), (256, 256));
    }

    #[test]
    fn a_failed_step_is_taken_back_whole() {
        let mut cells = Cells::new(512);
        place(&mut cells, &[(0, 250), (1, 3)]);
        let before: Vec<_> = cells.occupied().collect();
        let rows = [(0, 2), (3, 10), (0, 1)];
        place(&mut cells, &rows);
        assert_eq!((cells.used(), cells.n_kv()), (266, 512));
        undo(&mut cells, &rows);
        assert!(cells.occupied().eq(before));
        assert_eq!((cells.used(), cells.n_kv()), (253, 256));
        place(&mut cells, &[(3, 1)]);
        assert_eq!(held(&cells, 3), [253]);
    }

    #[test]
    fn one_survivor_placed_high_keeps_attention_long() {
        let mut cells = Cells::new(1024);
        assert_eq!(cells.n_kv(), 256);
        place(&mut cells, &[(0, 256)]);
        assert_eq!(cells.n_kv(), 256);
        place(&mut cells, &[(1, 500), (2, 1)]);
        assert_eq!(cells.n_kv(), 768);
        cells.clear(SeqId(0));
        cells.clear(SeqId(1));
        assert_eq!((cells.used(), cells.n_kv()), (1, 768));
        cells.clear(SeqId(2));
        assert_eq!((cells.used(), cells.n_kv()), (0, 256));
    }

    #[test]
    fn attention_never_runs_over_more_than_there_is() {
        let mut cells = Cells::new(100);
        assert_eq!(cells.n_kv(), 100);
        assert!(place(&mut cells, &[(0, 100)]));
        assert_eq!(cells.n_kv(), 100);
        let mut none = Cells::new(0);
        assert!(!place(&mut none, &[(0, 1)]));
        assert_eq!((none.used(), none.n_kv()), (0, 0));
    }

    /// llama.cpp's loops over every cell, with all rules of its search.
    struct Plain {
        cells: Vec<Option<(u16, u32)>>,
        head: usize,
    }

    impl Plain {
        fn used(&self) -> usize {
            self.cells.iter().flatten().count()
        }

        fn length(&self, seq: u16) -> u32 {
            let of_seq = self.cells.iter().flatten().filter(|cell| cell.0 == seq);
            of_seq.map(|cell| cell.1 + 1).max().unwrap_or(0)
        }

        /// `llama_kv_cache::find_slot`.
        fn find_slot(&self, tokens: usize) -> Option<Vec<usize>> {
            let mut head = self.head;
            if head > self.used() + 2 * tokens {
                head = 0;
            }
            if tokens > self.cells.len() {
                return None;
            }
            let mut found = Vec::new();
            let mut tested = 0;
            loop {
                if head + 1 > self.cells.len() {
                    tested += self.cells.len() - head;
                    head = 0;
                    continue;
                }
                let cell = head;
                head += 1;
                tested += 1;
                if self.cells[cell].is_none() {
                    found.push(cell);
                }
                if found.len() == tokens {
                    return Some(found);
                }
                if tested >= self.cells.len() {
                    return None;
                }
            }
        }

        /// `llama_kv_cache::apply_ubatch`.
        fn place(&mut self, rows: &[(u16, u32)]) -> bool {
            let mut tokens = Vec::new();
            for &(seq, count) in rows {
                let earlier = tokens.iter().filter(|token: &&(u16, u32)| token.0 == seq);
                let from = self.length(seq) + earlier.count() as u32;
                tokens.extend((from..from + count).map(|position| (seq, position)));
            }
            let Some(found) = self.find_slot(tokens.len()) else {
                return false;
            };
            for (&cell, &token) in found.iter().zip(&tokens) {
                self.cells[cell] = Some(token);
            }
            self.head = found.last().unwrap() + 1;
            true
        }

        /// `llama_kv_cache::seq_rm` from a position on.
        fn seq_rm(&mut self, seq: u16, from: u32) {
            let mut new_head = self.cells.len();
            for (index, cell) in self.cells.iter_mut().enumerate() {
                if cell.is_some_and(|(of, position)| of == seq && position >= from) {
                    *cell = None;
                    new_head = new_head.min(index);
                }
            }
            if new_head < self.cells.len() && new_head < self.head {
                self.head = new_head;
            }
        }

        /// The end of `llama_context::decode` when the computation failed.
        fn undo(&mut self, rows: &[(u16, u32)]) {
            for seq in 0..IDS {
                let of_seq = rows.iter().filter(|row| row.0 == seq);
                let count: u32 = of_seq.map(|row| row.1).sum();
                if count > 0 {
                    self.seq_rm(seq, self.length(seq) - count);
                }
            }
        }
    }

    const IDS: u16 = 6;

    #[derive(Clone, Debug)]
    enum Event {
        Step(Vec<(u16, u32)>),
        /// The computation failed: llama.cpp placed and removed.
        FailedStep(Vec<(u16, u32)>),
        /// The batch was refused: llama.cpp placed nothing.
        RefusedStep(Vec<(u16, u32)>),
        Clear(u16),
    }

    fn events() -> impl Strategy<Value = Vec<Event>> {
        let count = prop_oneof![3 => Just(1u32), 1 => 1..70u32];
        let rows = proptest::collection::vec((0..IDS, count), 1..6);
        let event = prop_oneof![
            12 => rows.clone().prop_map(Event::Step),
            1 => rows.clone().prop_map(Event::FailedStep),
            1 => rows.prop_map(Event::RefusedStep),
            4 => (0..IDS).prop_map(Event::Clear),
        ];
        proptest::collection::vec(event, 1..100)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2_000))]

        /// Whatever is placed, freed and taken back, each position is in llama.cpp's cell.
        #[test]
        fn every_position_is_where_llama_cpp_puts_it(size in 0..300u32, events in events()) {
            let mut cells = Cells::new(size);
            let mut plain = Plain { cells: vec![None; size as usize], head: 0 };
            for event in events {
                match event {
                    Event::Step(rows) => {
                        prop_assert_eq!(place(&mut cells, &rows), plain.place(&rows));
                    }
                    Event::FailedStep(rows) => {
                        let placed = place(&mut cells, &rows);
                        prop_assert_eq!(placed, plain.place(&rows));
                        if placed {
                            undo(&mut cells, &rows);
                            plain.undo(&rows);
                        }
                    }
                    Event::RefusedStep(rows) => {
                        if place(&mut cells, &rows) {
                            undo(&mut cells, &rows);
                        }
                    }
                    Event::Clear(seq) => {
                        cells.clear(SeqId(seq));
                        plain.seq_rm(seq, 0);
                    }
                }
                let mut mirrored = vec![None; size as usize];
                for (seq, held) in (0..).zip(&cells.held) {
                    for (position, &cell) in (0..).zip(held) {
                        prop_assert_eq!(mirrored[cell as usize], None, "held twice");
                        mirrored[cell as usize] = Some((seq, position));
                    }
                }
                prop_assert_eq!(&mirrored, &plain.cells);
                let listed = cells.occupied().map(|(seq, position)| (seq.0, position));
                prop_assert!(listed.eq(mirrored.iter().flatten().copied()));
                for (cell, holder) in (0..).zip(&mirrored) {
                    let set = cells.map[(cell / WORD) as usize] >> (cell % WORD) & 1 == 1;
                    prop_assert_eq!(set, holder.is_some());
                }
                prop_assert_eq!(cells.used as usize, plain.used());
                let top = mirrored.iter().rposition(Option::is_some).map_or(0, |last| last + 1);
                prop_assert_eq!(cells.top as usize, top);
                // Why the lowest free cell is the whole rule.
                for head in [cells.head as usize, plain.head] {
                    prop_assert!(mirrored[..head].iter().all(Option::is_some));
                }
                for seq in 0..IDS {
                    prop_assert_eq!(cells.held_by(SeqId(seq)), plain.length(seq));
                }
            }
        }
    }
}
