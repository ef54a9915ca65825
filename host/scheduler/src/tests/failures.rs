//! Failed steps: the request at fault is found, and no other fails for it.

use super::*;

/// Request 1 is bad, and a device fault hits request 2 right after each of its failures. Request 1 fails, and request 2
/// makes progress. If request 2 is bad as well, it fails soon after.
#[test]
fn fault_after_bad_request_counts_half() {
    let given_up = |second_is_bad: bool| {
        let mut scheduler = Scheduler::new(CONFIG);
        for key in 1..=3 {
            enqueue(&mut scheduler, key, 1, 30);
        }
        let mut ended = Vec::new();
        for moment in 0..20 {
            // Beyond the longest pause.
            let now = moment * Duration::from_millis(250);
            let step = scheduler.plan(now);
            let has = |key: u64| step.rows.iter().any(|row| row.request == RequestId(key));
            let others = !second_is_bad && !ended.is_empty();
            if has(1) || (has(2) && !others) {
                let found = scheduler.step_done(StepResult::Failed { now });
                ended.extend(found.map(|key| (moment, key.0)));
            } else {
                report_computed(&mut scheduler, &step, &[]);
            }
        }
        ended
    };
    // The first step has all three requests. Each time the two fail alone, the third succeeds, and a step of two fails.
    // Without the first, the second fails alone at once, which counts half, and then twice more.
    assert_eq!(given_up(false), [(9, 1)]);
    assert_eq!(given_up(true), [(9, 1), (16, 2)]);
}

/// A scheduler in which this many requests decode.
fn decoding(count: u16) -> Scheduler {
    let mut scheduler = Scheduler::new(SchedulerConfig {
        seq_ids: count,
        cells: 128 * 64,
        max_step_tokens: 64,
        max_queue: 64,
        max_tenant_queue: 64,
        ..CONFIG
    });
    for key in 0..u64::from(count) {
        enqueue(&mut scheduler, key, 1, 120);
    }
    let step = scheduler.plan(Time::ZERO);
    report_computed(&mut scheduler, &step, &[]);
    scheduler
}

/// How many steps, and how many of them failed, until a bad request among `count` decoding ones is failed.
fn steps_until_bad_request_fails(count: u16) -> (u32, u32) {
    let mut scheduler = decoding(count);
    let bad = RequestId(u64::from(count) / 3);
    let (mut steps, mut failed) = (0, 0);
    loop {
        // Beyond the longest pause.
        let now = (steps + 1) * Duration::from_millis(250);
        let step = scheduler.plan(now);
        steps += 1;
        if step.rows.iter().all(|row| row.request != bad) {
            report_computed(&mut scheduler, &step, &[]);
            continue;
        }
        failed += 1;
        if scheduler.step_done(StepResult::Failed { now }) == Some(bad) {
            return (steps, failed);
        }
    }
}

#[test]
fn failed_steps_grow_with_logarithm_of_rows() {
    let found = [8, 16, 32, 64].map(steps_until_bad_request_fails);
    assert_eq!(found, [(20, 13), (27, 17), (32, 20), (39, 24)]);
}

/// Steps of more than 16 tokens fail. Every other step succeeds, with 16 tokens, and no request fails.
#[test]
fn device_that_fails_above_a_size_keeps_half() {
    let mut scheduler = decoding(64);
    let mut computed = 0;
    for moment in 0..100 {
        let now = moment * Duration::from_millis(250);
        let step = scheduler.plan(now);
        if step.rows.len() <= 16 {
            computed += step.rows.len();
            report_computed(&mut scheduler, &step, &[]);
        } else {
            assert_eq!(scheduler.step_done(StepResult::Failed { now }), None);
        }
    }
    assert_eq!(computed, 16 * 49);
}
