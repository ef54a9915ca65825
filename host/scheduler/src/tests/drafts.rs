//! Tokens that are guessed, and such as are certain without being sampled.

use super::*;

/// One that has read its prompt of so many tokens and got its first one.
fn generating(scheduler: &mut Scheduler, key: u64, prompt: u32) {
    enqueue(scheduler, key, prompt, 50);
    let step = scheduler.plan(Time::ZERO);
    computed(scheduler, &step, &[]);
}

/// The step was computed and gave these tokens.
fn gained(scheduler: &mut Scheduler, tokens: &[(u64, Token)], ended: &[RequestId]) {
    let sampled: Vec<_> = tokens
        .iter()
        .map(|&(key, token)| (RequestId(key), token))
        .collect();
    let result = StepResult::Decoded {
        sampled: &sampled,
        finished: ended,
        sampled_externally: &[],
        needs_all_logits: &[],
        took: Duration::from_millis(1),
    };
    assert_eq!(scheduler.applied(result), None);
}

#[test]
fn what_was_guessed_wrongly_is_undone_before_anything_else() {
    let mut scheduler = Scheduler::new(CONFIG);
    generating(&mut scheduler, 1, 5);
    scheduler.propose_draft(RequestId(1), &[50, 51, 52]);
    let step = scheduler.plan(Time::ZERO);
    let row = step.rows[0];
    assert_eq!((row.from, row.certain(), row.to), (5, 6, 8));
    assert_eq!((step.shape.drafts, step.shape.rows), (2, 1));
    assert_eq!(scheduler.draft(&row), [50, 51]);
    let outputs = (5..8).map(|position| row.is_output(position));
    assert_eq!(outputs.collect::<Vec<_>>(), [true; 3]);
    // The first one was right.
    gained(&mut scheduler, &[(1, 50), (1, 9)], &[]);
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
fn what_is_kept_of_one_that_ends_among_its_drafts_is_certain() {
    let mut scheduler = Scheduler::new(CONFIG);
    generating(&mut scheduler, 1, 15);
    scheduler.propose_draft(RequestId(1), &[50, 51]);
    scheduler.plan(Time::ZERO);
    gained(&mut scheduler, &[(1, 50), (1, 51)], &[RequestId(1)]);
    let kept: Vec<_> = scheduler.entries().map(|entry| entry.tokens).collect();
    assert_eq!((kept, scheduler.cells().used()), (vec![17], 17));
}

#[test]
fn nobody_gives_way_for_a_guess() {
    let config = SchedulerConfig {
        cells: 48,
        ..CONFIG
    };
    for claimed in [true, false] {
        let mut scheduler = Scheduler::new(config);
        let claim = Retention::default();
        let mut idle = request(1, 30, 1);
        idle.retention = claim.downgrade();
        scheduler.enqueue(Time::ZERO, idle).unwrap();
        for ended in [&[][..], &[RequestId(1)]] {
            let step = scheduler.plan(Time::ZERO);
            computed(&mut scheduler, &step, ended);
        }
        enqueue(&mut scheduler, 2, 16, 10);
        let step = scheduler.plan(Time::ZERO);
        computed(&mut scheduler, &step, &[]);
        // Two of 48 cells are free, and one is for the token that is certain.
        scheduler.propose_draft(RequestId(2), &[50, 51]);
        let step = scheduler.plan(Time::ZERO);
        assert_eq!((step.shape.drafts, step.rows.len()), (1, 1));
        gained(&mut scheduler, &[(2, 9)], &[]);
        // Now there is none beside that one, but what nobody claims makes way.
        let claim = claimed.then_some(claim);
        scheduler.propose_draft(RequestId(2), &[50, 51]);
        let step = scheduler.plan(Time::ZERO);
        let entries = scheduler.entries().count();
        let expected = if claimed { (0, 1) } else { (2, 0) };
        assert_eq!((step.shape.drafts, entries), expected);
        assert_eq!((step.rows.len(), claim.is_some()), (1, claimed));
    }
}

#[test]
fn a_step_that_failed_is_tried_again_without_drafts() {
    let mut scheduler = Scheduler::new(CONFIG);
    generating(&mut scheduler, 1, 5);
    scheduler.propose_draft(RequestId(1), &[50, 51]);
    assert_eq!(scheduler.plan(Time::ZERO).shape.drafts, 2);
    scheduler.applied(StepResult::Failed { now: Time::ZERO });
    assert_eq!(scheduler.cells().used(), 5);
    let step = scheduler.plan(Time::ZERO);
    assert_eq!((step.shape.drafts, step.rows[0].tokens()), (0, 1));
    assert_eq!(step.memory_ops, []);
}

#[test]
fn where_a_sequence_cannot_be_truncated_nothing_is_guessed() {
    let mut scheduler = Scheduler::new(SchedulerConfig {
        prefix_cache: true,
        can_truncate: false,
        max_drafts: 0,
        ..CONFIG
    });
    generating(&mut scheduler, 1, 5);
    scheduler.propose_draft(RequestId(1), &[50, 51]);
    assert_eq!(scheduler.plan(Time::ZERO).shape.drafts, 0);
}

#[test]
fn a_few_tokens_that_are_certain_ride_along_and_many_are_read() {
    let mut scheduler = Scheduler::new(CONFIG);
    enqueue(&mut scheduler, 1, 5, 90);
    let step = scheduler.plan(Time::ZERO);
    let tokens: Vec<_> = (0..9).map(|token| (1, token)).collect();
    gained(&mut scheduler, &tokens, &[]);
    assert_eq!(step.rows[0].to, 5);
    assert_eq!(scheduler.progress(RequestId(1)).unwrap().generated, 9);
    let step = scheduler.plan(Time::ZERO);
    let row = step.rows[0];
    assert_eq!((row.from, row.to, row.output), (5, 14, true));
    // It generates: the others count as read.
    assert_eq!((step.shape.rows, step.shape.prefill), (1, 8));
    let tokens: Vec<_> = (0..10).map(|token| (1, token)).collect();
    gained(&mut scheduler, &tokens, &[]);
    assert_eq!(
        scheduler.requests().next().unwrap().state,
        RequestState::Prefill
    );
    let step = scheduler.plan(Time::ZERO);
    assert_eq!((step.shape.rows, step.shape.prefill), (0, 10));
    gained(&mut scheduler, &[(1, 3)], &[]);
    assert_eq!(
        scheduler.requests().next().unwrap().state,
        RequestState::Decode
    );
}
