//! Against llama.cpp's own cells, after random operations: `host/engine/tests/kv_cells.rs`.

use super::*;

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
