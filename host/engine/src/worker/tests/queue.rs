//! Waiting requests: deadlines, queue times, and an idle engine.

use super::support::*;
use crate::metrics::get;
use crate::worker::Command;
use crate::{Caller, Error};
use std::sync::mpsc::sync_channel;
use std::time::{Duration, Instant};

#[test]
fn deadline_and_queue_time_end_requests() {
    let engine = TestEngine::slow(Duration::from_millis(60));
    let with_deadline = |deadline| Caller {
        deadline: Some(deadline),
        ..Caller::default()
    };
    let deadline = with_deadline(Instant::now() + Duration::from_secs(3));
    let running: Vec<_> = (0..4)
        .map(|_| engine.generate_for(deadline, vec![1], long()))
        .collect();
    let impatient = Caller {
        queue_time: Some(Duration::from_millis(50)),
        ..Caller::default()
    };
    let impatient = engine.generate_for(impatient, vec![1], limit(1));
    let patient = engine.generate(vec![1], limit(1));
    let (_, outcome) = read(impatient);
    assert!(
        matches!(outcome, Err(Error::QueueTimeout { .. })),
        "{outcome:?}"
    );
    for generation in running {
        let (chunk, outcome) = read(generation);
        assert_eq!(outcome, Err(Error::DeadlineExceeded));
        assert!(chunk.tokens.len() < 60);
    }
    read_tokens(patient, [2]);
    let late = engine.generate_for(with_deadline(Instant::now()), vec![1], limit(1));
    assert_eq!(read(late).1, Err(Error::DeadlineExceeded));
    assert_eq!(get(&engine.end().expired), 6);
}

#[test]
fn canceled_requests_do_not_fill_the_queue() {
    let engine = TestEngine::start();
    let (holding, held) = sync_channel::<()>(1);
    let (release, released) = sync_channel::<()>(1);
    engine.send(Command::Status(Box::new(move |_| {
        let _ = holding.send(());
        let _ = released.recv_timeout(Duration::from_secs(60));
    })));
    held.recv().unwrap();
    // All of these commands are received in one turn, without a step between them.
    let canceled: Vec<_> = (0..64)
        .map(|_| engine.generate(vec![1], limit(1)))
        .collect();
    drop(canceled);
    let next = engine.generate(vec![1], limit(1));
    drop(release);
    read_tokens(next, [2]);
    let metrics = engine.end();
    assert_eq!(get(&metrics.refused), 0);
    assert_eq!(get(&metrics.canceled), 64);
}

#[test]
fn idle_engine_does_not_wake_for_past_deadlines() {
    let engine = TestEngine::start();
    // On a busy machine the deadline may pass before the request finishes.
    let mut millis = 30;
    let deadline = loop {
        let deadline = Instant::now() + Duration::from_millis(millis);
        let caller = Caller {
            deadline: Some(deadline),
            ..Caller::default()
        };
        let generation = engine.generate_for(caller, vec![1], limit(2));
        if read(generation).1.is_ok() {
            break deadline;
        }
        millis *= 10;
        assert!(millis < 100_000, "no request finishes in time");
    };
    std::thread::sleep(Duration::from_millis(20));
    let before = get(&engine.metrics.wake_ups);
    let passed = deadline + Duration::from_millis(70);
    std::thread::sleep(passed.saturating_duration_since(Instant::now()));
    assert_eq!(get(&engine.metrics.wake_ups), before);
    engine.end();
}
