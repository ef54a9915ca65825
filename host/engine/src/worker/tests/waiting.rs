//! Who waits, and for how long: deadlines, turns, and an engine that has nothing to do.

use super::*;

#[test]
fn a_deadline_ends_a_sequence_that_runs_and_patience_one_that_waits() {
    let bench = Bench::slow(Duration::from_millis(60));
    let soon = |millis| Some(Instant::now() + Duration::from_millis(millis));
    let hurried = Caller {
        deadline: soon(3000),
        ..Caller::default()
    };
    let running: Vec<_> = (0..4)
        .map(|_| bench.submit_for(hurried, vec![1], endless()))
        .collect();
    let impatient = Caller {
        queue_time: Some(Duration::from_millis(50)),
        ..Caller::default()
    };
    let waiting = bench.submit_for(impatient, vec![1], limit(1));
    let patient = bench.submit(vec![1], limit(1));
    let (_, outcome) = read(waiting);
    assert!(
        matches!(outcome, Err(Error::QueueTimeout { .. })),
        "{outcome:?}"
    );
    for generation in running {
        let (chunk, outcome) = read(generation);
        assert_eq!(outcome, Err(Error::DeadlineExceeded));
        assert!(chunk.tokens.len() < 60);
    }
    // What they held is free: whoever waited gets it.
    assert_eq!(read(patient).0.tokens, [2]);
    let late = Caller {
        deadline: Some(Instant::now()),
        ..Caller::default()
    };
    assert_eq!(
        read(bench.submit_for(late, vec![1], limit(1))).1,
        Err(Error::DeadlineExceeded)
    );
    let counters = bench.end();
    assert_eq!(value(&counters.expired), 6);
    assert_eq!(value(&counters.cells_leaked), 0);
}

#[test]
fn other_tenants_need_not_wait_for_the_whole_of_a_flood() {
    let bench = Bench::slow(Duration::from_millis(10));
    // Long, so that few end while this thread does something else.
    let flood: Vec<_> = (0..50).map(|_| bench.submit(vec![1], limit(40))).collect();
    let other = Caller {
        tenant: Tenant(1),
        ..Caller::default()
    };
    let (_, outcome) = read(bench.submit_for(other, vec![1], limit(8)));
    assert!(outcome.is_ok());
    let finished = value(&bench.counters.finished);
    assert!(finished <= 24, "{finished} of the flood went first");
    for generation in flood.into_iter().take(8) {
        assert!(read(generation).1.is_ok());
    }
    bench.end();
}

#[test]
fn an_idle_engine_does_not_wake_up_and_a_deadline_that_is_over_does_not_wake_it() {
    let bench = Bench::start();
    // On a busy machine it may be over before the answer is there.
    let mut millis = 30;
    let deadline = loop {
        let deadline = Instant::now() + Duration::from_millis(millis);
        let later = Caller {
            deadline: Some(deadline),
            ..Caller::default()
        };
        if read(bench.submit_for(later, vec![1], limit(2))).1.is_ok() {
            break deadline;
        }
        millis *= 10;
        assert!(millis < 100_000, "it is never answered in time");
    };
    std::thread::sleep(Duration::from_millis(20));
    let before = value(&bench.counters.wake_ups);
    let passed = deadline + Duration::from_millis(70);
    std::thread::sleep(passed.saturating_duration_since(Instant::now()));
    assert_eq!(value(&bench.counters.wake_ups), before);
    bench.end();
}
