//! Drafts, and known tokens that were not sampled.

use super::*;

/// A request that has gained its first token.
fn decoding_request(scheduler: &mut Scheduler, key: u64, prompt: u32) {
    enqueue(scheduler, key, prompt, 50);
    let step = scheduler.plan(Time::ZERO);
    report_computed(scheduler, &step, &[]);
}

#[test]
fn rejected_drafts_are_truncated_first() {
    let mut scheduler = Scheduler::new(CONFIG);
    decoding_request(&mut scheduler, 1, 5);
    scheduler.add_lookup_drafts(RequestId(1), &[50, 51, 52]);
    let step = scheduler.plan(Time::ZERO);
    let row = step.rows[0];
    assert_eq!((row.from, row.known_end(), row.to), (5, 6, 8));
    assert_eq!((step.shape.drafts, step.shape.decode_rows), (2, 1));
    assert_eq!(scheduler.drafts_of(&row), [50, 51]);
    let outputs = (5..8).map(|position| row.is_output(position));
    assert_eq!(outputs.collect::<Vec<_>>(), [true; 3]);
    // The first draft is accepted.
    report_gained(&mut scheduler, &[(1, 50), (1, 9)], &[]);
    assert_eq!(scheduler.cells().used(), 7);
    let step = scheduler.plan(Time::ZERO);
    let truncate = MemoryOp::Truncate {
        seq: row.seq,
        length: 7,
    };
    assert_eq!(step.memory_ops, [truncate]);
    let row = step.rows[0];
    assert_eq!((row.from, row.to, row.drafts), (7, 8, 0));
    assert_eq!(&scheduler.tokens(RequestId(1))[5..], [7, 50, 9]);
}

#[test]
fn finished_request_keeps_known_tokens_only() {
    let mut scheduler = Scheduler::new(CONFIG);
    decoding_request(&mut scheduler, 1, 15);
    scheduler.add_lookup_drafts(RequestId(1), &[50, 51]);
    scheduler.plan(Time::ZERO);
    report_gained(&mut scheduler, &[(1, 50), (1, 51)], &[RequestId(1)]);
    let kept: Vec<_> = scheduler.entries().map(|entry| entry.tokens).collect();
    assert_eq!((kept, scheduler.cells().used()), (vec![17], 17));
}

#[test]
fn drafts_evict_unretained_entries_only() {
    let config = SchedulerConfig {
        cells: 48,
        ..CONFIG
    };
    for retained in [true, false] {
        let mut scheduler = Scheduler::new(config);
        let retention = Retention::default();
        let mut idle = request(1, 30, 1);
        idle.retention = retention.downgrade();
        scheduler.enqueue(Time::ZERO, idle).unwrap();
        for ended in [&[][..], &[RequestId(1)]] {
            let step = scheduler.plan(Time::ZERO);
            report_computed(&mut scheduler, &step, ended);
        }
        enqueue(&mut scheduler, 2, 16, 10);
        let step = scheduler.plan(Time::ZERO);
        report_computed(&mut scheduler, &step, &[]);
        // Two of 48 cells are free, and one is for the known token.
        scheduler.add_lookup_drafts(RequestId(2), &[50, 51]);
        let step = scheduler.plan(Time::ZERO);
        assert_eq!((step.shape.drafts, step.rows.len()), (1, 1));
        report_gained(&mut scheduler, &[(2, 9)], &[]);
        // Now none is free beside that one, but an unretained entry is dropped for drafts.
        let retention = retained.then_some(retention);
        scheduler.add_lookup_drafts(RequestId(2), &[50, 51]);
        let step = scheduler.plan(Time::ZERO);
        let entries = scheduler.entries().count();
        let expected = if retained { (0, 1) } else { (2, 0) };
        assert_eq!((step.shape.drafts, entries), expected);
        assert_eq!((step.rows.len(), retention.is_some()), (1, retained));
    }
}

#[test]
fn failed_step_repeats_without_drafts() {
    let mut scheduler = Scheduler::new(CONFIG);
    decoding_request(&mut scheduler, 1, 5);
    scheduler.add_lookup_drafts(RequestId(1), &[50, 51]);
    assert_eq!(scheduler.plan(Time::ZERO).shape.drafts, 2);
    scheduler.step_done(StepResult::Failed { now: Time::ZERO });
    assert_eq!(scheduler.cells().used(), 5);
    let step = scheduler.plan(Time::ZERO);
    assert_eq!((step.shape.drafts, step.rows[0].tokens()), (0, 1));
    assert_eq!(step.memory_ops, []);
}

#[test]
fn no_drafts_where_sequences_cannot_truncate() {
    let mut scheduler = Scheduler::new(SchedulerConfig {
        prefix_cache: true,
        can_truncate: false,
        max_drafts: 0,
        ..CONFIG
    });
    decoding_request(&mut scheduler, 1, 5);
    scheduler.add_lookup_drafts(RequestId(1), &[50, 51]);
    assert_eq!(scheduler.plan(Time::ZERO).shape.drafts, 0);
}

#[test]
fn few_known_tokens_join_the_decode_row() {
    let mut scheduler = Scheduler::new(CONFIG);
    enqueue(&mut scheduler, 1, 5, 90);
    let step = scheduler.plan(Time::ZERO);
    let tokens: Vec<_> = (0..9).map(|token| (1, token)).collect();
    report_gained(&mut scheduler, &tokens, &[]);
    assert_eq!(step.rows[0].to, 5);
    assert_eq!(scheduler.progress(RequestId(1)).unwrap().generated, 9);
    let step = scheduler.plan(Time::ZERO);
    let row = step.rows[0];
    assert_eq!((row.from, row.to, row.output), (5, 14, true));
    // It decodes: the other tokens count as prefill.
    assert_eq!((step.shape.decode_rows, step.shape.prefill), (1, 8));
    let tokens: Vec<_> = (0..10).map(|token| (1, token)).collect();
    report_gained(&mut scheduler, &tokens, &[]);
    assert_eq!(
        scheduler.requests().next().unwrap().state,
        RequestState::Prefill
    );
    let step = scheduler.plan(Time::ZERO);
    assert_eq!((step.shape.decode_rows, step.shape.prefill), (0, 10));
    report_gained(&mut scheduler, &[(1, 3)], &[]);
    assert_eq!(
        scheduler.requests().next().unwrap().state,
        RequestState::Decode
    );
}
