//! Prefixes that leave the cells, and come back.

use super::*;

/// Tokens that follow each other, and what comes after them.
fn passes(bench: &Bench, from: Token, to: Token) {
    let (chunk, outcome) = read(bench.submit((from..to).collect(), limit(2)));
    assert_eq!(chunk.tokens, [to, to + 1]);
    assert!(outcome.is_ok());
}

fn move_all(bench: &Bench) {
    bench.commands.send(Command::MovePrefixes).unwrap();
}

#[test]
fn prefixes_have_memory_of_their_own_and_come_back_from_there() {
    let bench = Bench::start();
    passes(&bench, 0, 60);
    move_all(&bench);
    // It begins like the first, and goes on.
    passes(&bench, 0, 70);
    move_all(&bench);
    // There is room for one of them.
    passes(&bench, 300, 400);
    move_all(&bench);
    passes(&bench, 0, 70);
    // There is none for this one, nor ever will be.
    passes(&bench, 700, 880);
    move_all(&bench);
    // What was lost is noticed by then.
    passes(&bench, 900, 904);
    let counters = bench.end();
    assert_eq!(value(&counters.prefix_offloads), 5);
    assert_eq!(value(&counters.swap_ins), 1);
    assert_eq!(value(&counters.cached_tokens), 61);
    // The second for the third, that one for the second come again, and the last.
    assert_eq!(value(&counters.evictions), 3);
    assert_eq!(
        (
            value(&counters.swap_outs),
            value(&counters.swap_in_failures)
        ),
        (0, 0)
    );
    assert_eq!(value(&counters.swap_ram_bytes), 0);
    assert_eq!(value(&counters.prefix_offload_bytes), 4 * 71 + 8);
    assert_eq!(value(&counters.cells_leaked), 0);
}
