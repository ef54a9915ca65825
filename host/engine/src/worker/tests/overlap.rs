//! Prefill that overlaps sampling.

use super::support::*;
use crate::Generation;
use crate::metrics::get;
use corral_simulator::Fault;
use std::collections::BTreeMap;
use std::time::Duration;

fn engine(step_time: Duration, faults: BTreeMap<u64, Fault>) -> TestEngine {
    TestConfig {
        step_time,
        overlap: true,
        faults,
        ..TestConfig::default()
    }
    .start()
}

/// A request with a prompt of one token, and one with a prompt of forty.
fn short_and_long(engine: &TestEngine) -> [Generation; 2] {
    engine.generate_all([(vec![1], limit(12)), ((100..140).collect(), limit(3))])
}

fn check_tokens([short, long]: [Generation; 2]) {
    read_tokens(short, 2..14);
    read_tokens(long, 140..143);
}

#[test]
fn prefill_starts_before_rows_are_sampled() {
    let engine = engine(Duration::ZERO, BTreeMap::new());
    check_tokens(short_and_long(&engine));
    let calls = engine.calls.clone();
    let metrics = engine.end();
    let calls = calls.lock().unwrap();
    let expected = [
        // The short prompt, and as much of the long one as fits the step.
        Call::Decode(16, vec![0]),
        Call::DecodeOverlapped(4),
        Call::Output(0),
        // The next token of the short request, and the remaining budget.
        Call::Decode(12, vec![0]),
        Call::DecodeOverlapped(4),
        Call::Output(0),
        // The end of the long prompt.
        Call::Decode(7, vec![0, 6]),
        Call::Output(0),
        Call::Output(6),
    ];
    assert_eq!(calls[..expected.len()], expected);
    assert_eq!(get(&metrics.overlapped_steps), 2);
    assert_eq!(get(&metrics.overlapped_tokens), 8);
    assert_eq!(get(&metrics.computed_tokens), 1 + 11 + 40 + 2);
    assert_eq!(get(&metrics.skipped_rows), 0);
}

#[test]
fn failed_overlapped_step_is_retried_without_harm() {
    for code in [1, 2, -2, -3] {
        // The first step succeeds; the overlapped one after it fails.
        let engine = engine(Duration::ZERO, BTreeMap::from([(1, Fault::Code(code))]));
        check_tokens(short_and_long(&engine));
        let calls = engine.calls.clone();
        let metrics = engine.end();
        let expected = [
            Call::Decode(16, vec![0]),
            Call::DecodeOverlapped(4),
            Call::Output(0),
        ];
        assert_eq!(calls.lock().unwrap()[..3], expected);
        assert_eq!(get(&metrics.failed_steps), 1, "{code}");
        assert_eq!(get(&metrics.failed), 0);
        assert_eq!(get(&metrics.computed_tokens), 1 + 11 + 40 + 2);
    }
}

#[test]
fn request_canceled_during_overlap_leaves_nothing() {
    let engine = engine(Duration::from_millis(20), BTreeMap::new());
    let prompt = (100..200).collect();
    let [short, long] = engine.generate_all([(vec![1], limit(20)), (prompt, limit(100))]);
    wait_until(|| get(&engine.metrics.overlapped_steps) > 0);
    drop(long);
    read_tokens(short, 2..22);
    assert_eq!(get(&engine.end().canceled), 1);
}
