use super::*;
use proptest::prelude::*;
use std::collections::BTreeSet;

fn place(cells: &mut KvCells, rows: &[(u16, u32)]) -> bool {
    cells.place(rows.iter().map(|&(seq, count)| (SeqId(seq), count)))
}

fn undo(cells: &mut KvCells, rows: &[(u16, u32)]) {
    cells.undo(rows.iter().map(|&(seq, count)| (SeqId(seq), count)));
}

fn held(cells: &KvCells, seq: u16) -> &[u32] {
    &cells.held[usize::from(seq)].cells
}

fn share(cells: &mut KvCells, from: u16, to: u16, length: u32) {
    cells.share(SeqId(from), SeqId(to), length);
}

#[test]
fn rows_take_cells_in_order() {
    let mut cells = KvCells::new(256);
    assert!(place(&mut cells, &[(3, 2), (0, 1)]));
    assert!(place(&mut cells, &[(0, 1), (3, 1)]));
    let occupied = [(0, 3), (1, 3), (0, 0), (1, 0), (2, 3)];
    let occupied = occupied.map(|(position, seq)| (position, vec![SeqId(seq)]));
    assert!(cells.occupied().eq(occupied));
    assert_eq!((cells.used(), cells.held_by(SeqId(3))), (5, 3));
    assert_eq!(cells.held_by(SeqId(9)), 0);
}

#[test]
fn lowest_free_cells_are_taken_first() {
    let mut cells = KvCells::new(256);
    place(&mut cells, &[(0, 4), (1, 4), (2, 4), (3, 200)]);
    cells.clear(SeqId(2));
    cells.clear(SeqId(0));
    place(&mut cells, &[(4, 6)]);
    assert_eq!(held(&cells, 4), [0, 1, 2, 3, 8, 9]);
    place(&mut cells, &[(0, 3)]);
    assert_eq!(held(&cells, 0), [10, 11, 212]);
    // Clearing an empty sequence changes nothing.
    cells.clear(SeqId(2));
    cells.clear(SeqId(99));
    assert_eq!((cells.used(), cells.head), (213, 213));
}

#[test]
fn step_without_room_changes_nothing() {
    let mut cells = KvCells::new(256);
    place(&mut cells, &[(0, 200)]);
    let before: Vec<_> = cells.occupied().collect();
    assert!(!place(&mut cells, &[(1, 56), (2, 1)]));
    assert!(!place(&mut cells, &[(1, u32::MAX), (2, u32::MAX)]));
    assert!(cells.occupied().eq(before));
    assert_eq!((cells.used(), cells.held_by(SeqId(1))), (200, 0));
    assert!(
        place(&mut cells, &[(1, 55), (2, 1)]),
        "room for the last cell"
    );
    assert!(!place(&mut cells, &[(0, 1)]));
    assert!(place(&mut cells, &[]), "no rows need no room");
    assert_eq!((cells.used(), cells.n_kv()), (256, 256));
}

#[test]
fn failed_step_is_undone() {
    let mut cells = KvCells::new(512);
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
fn one_high_cell_keeps_attention_long() {
    let mut cells = KvCells::new(1024);
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
fn attention_never_exceeds_the_cells() {
    let mut cells = KvCells::new(100);
    assert_eq!(cells.n_kv(), 100);
    assert!(place(&mut cells, &[(0, 100)]));
    assert_eq!(cells.n_kv(), 100);
    let mut none = KvCells::new(0);
    assert!(!place(&mut none, &[(0, 1)]));
    assert_eq!((none.used(), none.n_kv()), (0, 0));
}

#[test]
fn shared_cells_free_with_last_holder() {
    let mut cells = KvCells::new(256);
    place(&mut cells, &[(0, 6)]);
    share(&mut cells, 0, 1, 4);
    share(&mut cells, 1, 2, 3);
    assert_eq!((cells.used(), cells.free()), (6, 250));
    let lengths = [0, 1, 2].map(|seq| cells.held_by(SeqId(seq)));
    assert_eq!(lengths, [6, 4, 3]);
    let freed = |cells: &KvCells| [0, 1, 2].map(|seq| cells.freed_by_clearing(SeqId(seq)));
    assert_eq!(freed(&cells), [2, 0, 0]);
    let all = vec![SeqId(0), SeqId(1), SeqId(2)];
    assert_eq!(cells.occupied().next(), Some((0, all)));

    place(&mut cells, &[(1, 1)]);
    cells.clear(SeqId(0));
    assert_eq!((cells.used(), freed(&cells)), (5, [0, 2, 0]));
    // The new sequence takes the free cells, not the shared ones.
    place(&mut cells, &[(3, 2)]);
    assert_eq!(held(&cells, 3), [4, 5]);
    cells.clear(SeqId(1));
    assert_eq!((cells.used(), freed(&cells)), (5, [0, 0, 3]));
    cells.clear(SeqId(2));
    assert_eq!(cells.used(), 2);
}

#[test]
fn sharing_nothing_holds_nothing() {
    let mut cells = KvCells::new(256);
    share(&mut cells, 0, 1, 0);
    place(&mut cells, &[(0, 2)]);
    share(&mut cells, 0, 1, 0);
    assert_eq!((cells.held_by(SeqId(1)), cells.used()), (0, 2));
}

#[test]
fn truncating_frees_unshared_cells() {
    let mut cells = KvCells::new(256);
    place(&mut cells, &[(0, 6)]);
    share(&mut cells, 0, 1, 4);
    cells.truncate(SeqId(0), 9);
    cells.truncate(SeqId(0), 6);
    cells.truncate(SeqId(7), 0);
    assert_eq!(cells.held_by(SeqId(0)), 6);
    cells.truncate(SeqId(0), 2);
    assert_eq!((cells.used(), cells.held_by(SeqId(0))), (4, 2));
    assert_eq!(cells.freed_by_clearing(SeqId(1)), 2);
    // Each continues in a cell of its own.
    place(&mut cells, &[(0, 1), (1, 1)]);
    assert_eq!(held(&cells, 0), [0, 1, 4]);
    assert_eq!(held(&cells, 1), [0, 1, 2, 3, 5]);
    cells.truncate(SeqId(0), 0);
    assert_eq!((cells.used(), cells.held_by(SeqId(0))), (5, 0));
}

#[test]
fn restored_sequence_keeps_cell_order() {
    let mut cells = KvCells::new(256);
    place(&mut cells, &[(0, 3), (1, 2)]);
    cells.clear(SeqId(0));
    // Three holes, then the end.
    place(&mut cells, &[(1, 4)]);
    assert_eq!(held(&cells, 1), [3, 4, 0, 1, 2, 5]);
    let order = cells.order(SeqId(1));
    assert_eq!(order, PositionOrder(vec![2..5, 0..2, 5..6]));
    assert_eq!(order.length(), 6);
    cells.clear(SeqId(1));
    place(&mut cells, &[(2, 1), (3, 1)]);
    cells.clear(SeqId(2));
    assert!(cells.restore(SeqId(4), &order));
    assert_eq!(held(&cells, 4), [4, 5, 0, 2, 3, 6]);
    assert_eq!(cells.order(SeqId(4)), order, "a second save");
    cells.truncate(SeqId(4), 4);
    place(&mut cells, &[(3, 2)]);
    assert_eq!(held(&cells, 3), [1, 3, 6]);

    assert_eq!(cells.order(SeqId(99)), PositionOrder::default());
    assert!(cells.restore(SeqId(5), &PositionOrder::default()));
    assert_eq!(cells.held_by(SeqId(5)), 0);
}

#[test]
fn sequence_without_room_is_not_restored() {
    let mut cells = KvCells::new(10);
    place(&mut cells, &[(0, 6)]);
    let order = cells.order(SeqId(0));
    share(&mut cells, 0, 1, 6);
    let before: Vec<_> = cells.occupied().collect();
    assert!(!cells.restore(SeqId(2), &order), "shared or not");
    assert!(cells.occupied().eq(before));
    cells.clear(SeqId(0));
    assert!(!cells.restore(SeqId(2), &order));
    cells.clear(SeqId(1));
    assert!(cells.restore(SeqId(2), &order));
    assert_eq!((cells.used(), cells.free()), (6, 4));
}

#[test]
fn highest_single_holder_is_found() {
    let mut cells = KvCells::new(2048);
    assert_eq!((cells.highest(), cells.n_kv_without(SeqId(0))), (None, 256));
    place(&mut cells, &[(0, 100), (1, 600), (2, 1), (0, 1)]);
    cells.clear(SeqId(1));
    let answers = |cells: &KvCells| {
        let without = [0, 1, 2].map(|seq| cells.n_kv_without(SeqId(seq)));
        (cells.highest().map(|seq| seq.0), cells.n_kv(), without)
    };
    assert_eq!(answers(&cells), (Some(0), 768, [768, 768, 768]));
    cells.truncate(SeqId(0), 100);
    assert_eq!(answers(&cells), (Some(2), 768, [768, 768, 256]));
    share(&mut cells, 2, 1, 1);
    assert_eq!(answers(&cells), (None, 768, [768, 768, 768]));
    cells.clear(SeqId(2));
    assert_eq!(answers(&cells), (Some(1), 768, [768, 256, 768]));
}

/// A cell as llama.cpp keeps it; empty without holders.
#[derive(Clone, Debug, Default, PartialEq)]
struct Cell {
    position: u32,
    seqs: BTreeSet<u16>,
}

/// llama.cpp's loops over every cell, with all rules of its search.
struct Plain {
    cells: Vec<Cell>,
    head: usize,
}

impl Plain {
    fn new(size: u32) -> Self {
        Self {
            cells: vec![Cell::default(); size as usize],
            head: 0,
        }
    }

    fn used(&self) -> usize {
        let used = self.cells.iter().filter(|cell| !cell.seqs.is_empty());
        used.count()
    }

    /// One past the highest used cell.
    fn top(&self) -> usize {
        let last = self.cells.iter().rposition(|cell| !cell.seqs.is_empty());
        last.map_or(0, |last| last + 1)
    }

    fn length(&self, seq: u16) -> u32 {
        let of_seq = self.cells.iter().filter(|cell| cell.seqs.contains(&seq));
        of_seq.map(|cell| cell.position + 1).max().unwrap_or(0)
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
            if self.cells[cell].seqs.is_empty() {
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
    fn apply(&mut self, found: &[usize], tokens: &[(u16, u32)]) {
        for (&cell, &(seq, position)) in found.iter().zip(tokens) {
            let seqs = BTreeSet::from([seq]);
            self.cells[cell] = Cell { position, seqs };
        }
        self.head = found.last().unwrap() + 1;
    }

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
        self.apply(&found, &tokens);
        true
    }

    /// `llama_kv_cache::seq_rm` from a position on.
    fn seq_rm(&mut self, seq: u16, from: u32) {
        let mut new_head = self.cells.len();
        for (index, cell) in self.cells.iter_mut().enumerate() {
            if cell.position >= from && cell.seqs.remove(&seq) && cell.seqs.is_empty() {
                new_head = new_head.min(index);
            }
        }
        if new_head < self.cells.len() && new_head < self.head {
            self.head = new_head;
        }
    }

    /// `llama_kv_cache::seq_cp` up to a position.
    fn seq_cp(&mut self, from: u16, to: u16, end: u32) {
        for cell in &mut self.cells {
            if cell.position < end && cell.seqs.contains(&from) {
                cell.seqs.insert(to);
            }
        }
    }

    /// `llama_kv_cache::state_write_meta`: the positions in cell order.
    fn state_write(&self, seq: u16) -> Vec<u32> {
        let of_seq = self.cells.iter().filter(|cell| cell.seqs.contains(&seq));
        of_seq.map(|cell| cell.position).collect()
    }

    /// `llama_kv_cache::state_read`, and its clean-up if the data that follow are damaged.
    fn state_read(&mut self, seq: u16, state: &[u32], damaged: bool) -> bool {
        if state.is_empty() {
            return true;
        }
        if state.len() > self.cells.len() {
            return false;
        }
        self.seq_rm(seq, 0);
        let Some(found) = self.find_slot(state.len()) else {
            return false;
        };
        let tokens: Vec<_> = state.iter().map(|&position| (seq, position)).collect();
        self.apply(&found, &tokens);
        if damaged {
            self.seq_rm(seq, 0);
        }
        !damaged
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

/// Lengths are in 256ths of the sequence, rounded up.
#[derive(Clone, Debug)]
enum Event {
    Step(Vec<(u16, u32)>),
    /// The computation failed: llama.cpp placed and removed.
    FailedStep(Vec<(u16, u32)>),
    /// The batch was refused: llama.cpp placed nothing.
    RefusedStep(Vec<(u16, u32)>),
    Share {
        from: u16,
        to: u16,
        part: u32,
    },
    Truncate(u16, u32),
    Clear(u16),
    Save(u16),
    /// Loads one of the saved states.
    Load {
        state: usize,
        to: u16,
        damaged: bool,
    },
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let count = prop_oneof![3 => Just(1u32), 1 => 1..70u32];
    let rows = proptest::collection::vec((0..IDS, count), 1..6);
    let share = (0..IDS, 0..IDS, 0..=256u32);
    let load = (0..8usize, 0..IDS, proptest::bool::weighted(0.2));
    let event = prop_oneof![
        12 => rows.clone().prop_map(Event::Step),
        1 => rows.clone().prop_map(Event::FailedStep),
        1 => rows.prop_map(Event::RefusedStep),
        4 => share.prop_map(|(from, to, part)| Event::Share { from, to, part }),
        3 => (0..IDS, 0..=256u32).prop_map(|(seq, part)| Event::Truncate(seq, part)),
        4 => (0..IDS).prop_map(Event::Clear),
        2 => (0..IDS).prop_map(Event::Save),
        3 => load.prop_map(|(state, to, damaged)| Event::Load { state, to, damaged }),
    ];
    proptest::collection::vec(event, 1..100)
}

fn part_of(length: u32, part: u32) -> u32 {
    (length * part).div_ceil(256)
}

/// A mirror, llama.cpp's loops, and the saved states of both.
struct Pair {
    cells: KvCells,
    plain: Plain,
    saved: Vec<(PositionOrder, Vec<u32>)>,
}

impl Pair {
    fn apply(&mut self, event: Event) {
        let Self {
            cells,
            plain,
            saved,
        } = self;
        match event {
            Event::Step(rows) => assert_eq!(place(cells, &rows), plain.place(&rows)),
            Event::FailedStep(rows) => {
                let placed = place(cells, &rows);
                assert_eq!(placed, plain.place(&rows));
                if placed {
                    undo(cells, &rows);
                    plain.undo(&rows);
                }
            }
            Event::RefusedStep(rows) => {
                if place(cells, &rows) {
                    undo(cells, &rows);
                }
            }
            Event::Share { from, to, part } => {
                if plain.length(to) == 0 && from != to {
                    let length = part_of(plain.length(from), part);
                    share(cells, from, to, length);
                    plain.seq_cp(from, to, length);
                }
            }
            Event::Truncate(seq, part) => {
                let length = part_of(plain.length(seq), part);
                cells.truncate(SeqId(seq), length);
                plain.seq_rm(seq, length);
            }
            Event::Clear(seq) => {
                cells.clear(SeqId(seq));
                plain.seq_rm(seq, 0);
            }
            Event::Save(seq) => {
                let state = plain.state_write(seq);
                let order = cells.order(SeqId(seq));
                assert_eq!(order.length() as usize, state.len());
                saved.push((order, state));
            }
            Event::Load { state, to, damaged } => {
                if saved.is_empty() || plain.length(to) > 0 {
                    return;
                }
                let (order, state) = &saved[state % saved.len()];
                let damaged = damaged && !state.is_empty();
                let restored = cells.restore(SeqId(to), order);
                if damaged {
                    cells.clear(SeqId(to));
                }
                let loaded = plain.state_read(to, state, damaged);
                assert_eq!(restored && !damaged, loaded);
            }
        }
    }

    fn check(&self) {
        let Self { cells, plain, .. } = self;
        let mut mirrored = vec![Cell::default(); plain.cells.len()];
        for (seq, held) in (0..).zip(&cells.held) {
            for (position, &cell) in (0..).zip(&held.cells) {
                let cell = &mut mirrored[cell as usize];
                assert!(cell.seqs.is_empty() || cell.position == position);
                assert!(cell.seqs.insert(seq), "held twice");
                cell.position = position;
            }
        }
        let used = |cell: &&Cell| !cell.seqs.is_empty();
        for ((mirrored, plain), index) in mirrored.iter().zip(&plain.cells).zip(0..) {
            assert_eq!(mirrored.seqs, plain.seqs);
            if used(&plain) {
                assert_eq!(mirrored.position, plain.position);
            }
            let set = cells.map[(index / WORD) as usize] >> (index % WORD) & 1 == 1;
            assert_eq!(set, used(&plain));
            let holders = cells.holders[index as usize];
            assert_eq!(usize::from(holders.count), plain.seqs.len());
            let ids = plain.seqs.iter().fold(0, |ids, seq| ids ^ seq);
            assert_eq!(holders.ids_xor, ids);
        }
        let listed = cells.occupied().map(|(position, seqs)| Cell {
            position,
            seqs: seqs.iter().map(|seq| seq.0).collect(),
        });
        assert!(listed.eq(mirrored.iter().filter(used).cloned()));
        assert_eq!(cells.used as usize, plain.used());
        assert_eq!(cells.top as usize, plain.top());
        // This is why the lowest free cell is the whole rule.
        for head in [cells.head as usize, plain.head] {
            assert!(plain.cells[..head].iter().all(|cell| used(&cell)));
        }
        let highest = plain.cells[..plain.top()].last();
        let only = highest.filter(|cell| cell.seqs.len() == 1);
        let only = only.map(|cell| SeqId(*cell.seqs.first().unwrap()));
        assert_eq!(cells.highest(), only);
        for seq in 0..IDS {
            assert_eq!(cells.held_by(SeqId(seq)), plain.length(seq));
            let mut without = Plain {
                cells: plain.cells.clone(),
                head: plain.head,
            };
            without.seq_rm(seq, 0);
            let freed = plain.used() - without.used();
            assert_eq!(cells.freed_by_clearing(SeqId(seq)) as usize, freed);
            let n_kv = cells.padded(without.top() as u32);
            assert_eq!(cells.n_kv_without(SeqId(seq)), n_kv);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    /// After any operations each position is in llama.cpp's cell, with the same holders.
    #[test]
    fn mirror_matches_llama_cpp(size in 0..300u32, events in events()) {
        let cells = KvCells::new(size);
        let mut pair = Pair { cells, plain: Plain::new(size), saved: Vec::new() };
        for event in events {
            pair.apply(event);
            pair.check();
        }
    }
}
