//! What is computed while rows are sampled.

use super::*;

/// Two that come at once: one that says a dozen tokens after one, and one that says three after forty.
fn short_and_long(bench: &Bench) -> [Generation; 2] {
    let submission = |prompt, most| bench.submission(Caller::default(), prompt, limit(most));
    let (short, told) = submission(vec![1], 12);
    let (long, read) = submission((100..140).collect(), 3);
    let both = Command::AddAll(vec![short, long]);
    bench.commands.send(both).unwrap();
    [told, read]
}

fn check_answers([short, long]: [Generation; 2]) {
    let (chunk, outcome) = read(short);
    assert_eq!(chunk.tokens, (2..14).collect::<Vec<_>>());
    assert_eq!(outcome.unwrap().finish, FinishReason::Length);
    let (chunk, outcome) = read(long);
    assert_eq!(chunk.tokens, [140, 141, 142]);
    assert_eq!(outcome.unwrap().finish, FinishReason::Length);
}

#[test]
fn a_prompt_is_read_on_before_the_rows_of_a_step_are_sampled() {
    let bench = Bench::ahead(Duration::ZERO, BTreeMap::new());
    check_answers(short_and_long(&bench));
    let calls = bench.calls.clone();
    let counters = bench.end();
    let calls = calls.lock().unwrap();
    let expected = [
        // The whole of the short one, and as much of the long one as the step holds.
        Call::Decode(16, vec![0]),
        Call::Ahead(4),
        Call::Output(0),
        // The next token of the short one, and what is left of the budget.
        Call::Decode(12, vec![0]),
        Call::Ahead(4),
        Call::Output(0),
        // The end of the long one.
        Call::Decode(7, vec![0, 6]),
        Call::Output(0),
        Call::Output(6),
    ];
    assert_eq!(calls[..expected.len()], expected);
    let ahead = (
        value(&counters.overlapped_steps),
        value(&counters.overlapped_tokens),
    );
    assert_eq!(ahead, (2, 8));
    assert_eq!(value(&counters.computed_tokens), 1 + 11 + 40 + 2);
    assert_eq!(value(&counters.skipped_rows), 0);
    identity(&counters);
}

#[test]
fn what_fails_ahead_harms_no_row_and_is_read_again() {
    for code in [1, 2, -2, -3] {
        // The first step is computed, and what was begun after it is not.
        let bench = Bench::ahead(Duration::ZERO, BTreeMap::from([(1, Fault::Code(code))]));
        check_answers(short_and_long(&bench));
        let calls = bench.calls.clone();
        let counters = bench.end();
        let begun = [Call::Decode(16, vec![0]), Call::Ahead(4), Call::Output(0)];
        assert_eq!(calls.lock().unwrap()[..3], begun);
        assert_eq!(value(&counters.failed_steps), 1, "{code}");
        assert_eq!(value(&counters.failed), 0);
        assert_eq!(value(&counters.computed_tokens), 1 + 11 + 40 + 2);
        identity(&counters);
    }
}

#[test]
fn nothing_stays_of_one_that_goes_away_while_it_is_read_ahead() {
    let bench = Bench::ahead(Duration::from_millis(20), BTreeMap::new());
    let submission = |prompt, most| bench.submission(Caller::default(), prompt, limit(most));
    let (short, told) = submission(vec![1], 20);
    let (long, read_on) = submission((100..200).collect(), 100);
    bench
        .commands
        .send(Command::AddAll(vec![short, long]))
        .unwrap();
    while value(&bench.counters.overlapped_steps) == 0 {
        std::thread::sleep(Duration::from_millis(1));
    }
    drop(read_on);
    let (chunk, _) = read(told);
    assert_eq!(chunk.tokens, (2..22).collect::<Vec<_>>());
    let counters = bench.end();
    assert_eq!(value(&counters.cancelled), 1);
    identity(&counters);
}
