//! Requests whose tokens an external sampler picks.

use super::*;

/// A request that waits for its sampler after its first row.
fn waiting_request() -> Scheduler {
    let mut scheduler = Scheduler::new(CONFIG);
    enqueue(&mut scheduler, 1, 4, 2);
    scheduler.plan(Time::ZERO);
    let result = StepResult::Decoded {
        gained: &[],
        finished: &[],
        awaits_sampler: &[RequestId(1)],
        needs_all_logits: &[],
        took: Duration::from_millis(1),
    };
    assert_eq!(scheduler.step_done(result), None);
    scheduler
}

#[test]
fn request_has_no_row_until_its_sampler_answers() {
    let mut scheduler = waiting_request();
    let now = Duration::from_secs(1);
    assert_eq!(scheduler.plan(now).rows, []);
    scheduler.external_sample_arrived(now, RequestId(1), &[7, 8], false);
    let step = scheduler.plan(now);
    let spans = step.rows.iter().map(|row| (row.from, row.to, row.output));
    assert!(spans.eq([(4, 6, true)]), "{step:?}");
}

#[test]
fn last_answer_ends_the_request() {
    let mut scheduler = waiting_request();
    let now = Duration::from_secs(1);
    scheduler.external_sample_arrived(now, RequestId(1), &[7], true);
    assert_eq!(scheduler.running_count(), 0);
    // An answer after the end changes nothing.
    scheduler.external_sample_arrived(now, RequestId(1), &[7], false);
    assert_eq!(scheduler.plan(now).rows, []);
}
