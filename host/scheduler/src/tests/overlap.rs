//! Prompts that are read while rows are sampled, and while callers that sample themselves are waited for.

use super::*;

const ON: SchedulerConfig = SchedulerConfig {
    cells: 400,
    max_step_tokens: 64,
    overlap: Overlap::On,
    ..CONFIG
};

/// One that generates, and one that begins to read 43 tokens beside it: in the step that is returned 16 of
/// them, and 3 that fill the tile of its row.
fn reading(limits: SchedulerConfig) -> (Scheduler, Step) {
    let mut scheduler = Scheduler::new(limits);
    enqueue(&mut scheduler, 1, 4, 50);
    let step = scheduler.plan(Time::ZERO);
    assert_eq!(scheduler.plan_overlap(Duration::MAX), None, "nobody reads");
    computed(&mut scheduler, &step, &[]);
    enqueue(&mut scheduler, 2, 43, 5);
    let step = scheduler.plan(Time::ZERO);
    assert_eq!(
        (step.shape.rows, step.shape.prefill, step.overlapped),
        (1, 19, 0)
    );
    (scheduler, step)
}

/// What a step computes of the second one, and whether a token comes of it.
fn span(step: &Step) -> Option<(u32, u32, bool)> {
    let row = step.rows.iter().find(|row| row.request == RequestId(2))?;
    Some((row.from, row.to, row.output))
}

#[test]
fn half_of_the_budget_runs_ahead_and_no_prompt_comes_to_its_end_there() {
    let (mut scheduler, mut step) = reading(ON);
    let mut seen = Vec::new();
    while let Some(ahead) = scheduler.plan_overlap(Duration::ZERO) {
        assert!(ahead.is_overlap && ahead.memory_ops.is_empty());
        assert_eq!(ahead.rows.len(), 1);
        computed(&mut scheduler, &step, &[]);
        scheduler.applied_overlap(true);
        let before = ahead.shape.prefill;
        seen.push((span(&step), span(&ahead)));
        step = scheduler.plan(Time::ZERO);
        assert_eq!(
            (step.overlapped, step.prefill_budget, step.shape.rows),
            (before, 19, 1)
        );
    }
    let expected = [
        (Some((0, 19, false)), Some((19, 27, false))),
        // What is left of the budget, and what is left of the prompt but for its end.
        (Some((27, 38, false)), Some((38, 42, false))),
    ];
    assert_eq!(seen, expected);
    assert_eq!(span(&step), Some((42, 43, true)));
}

#[test]
fn a_processor_runs_ahead_only_if_it_is_told_to() {
    let [auto, off, on] = [Overlap::Auto, Overlap::Off, Overlap::On];
    assert_eq!(
        [auto, off, on].map(|asked| asked.resolve(true)),
        [off, off, on]
    );
    assert_eq!(
        [auto, off, on].map(|asked| asked.resolve(false)),
        [auto, off, on]
    );
}

#[test]
fn nothing_runs_ahead_where_it_is_off_or_not_known_to_pay() {
    for overlap in [Overlap::Off, Overlap::Auto] {
        let (mut scheduler, step) = reading(SchedulerConfig { overlap, ..ON });
        assert_eq!(scheduler.plan_overlap(Duration::MAX), None, "{overlap:?}");
        computed(&mut scheduler, &step, &[]);
    }
}

#[test]
fn it_takes_no_cell_that_the_next_step_needs() {
    // 4 and 1 of the first one, 19 of the second: 9 are left, of which the next token needs one.
    for (cells, size) in [(33, Some(8)), (32, Some(4)), (28, None)] {
        let config = SchedulerConfig { cells, ..ON };
        let mut scheduler = Scheduler::new(config);
        enqueue(&mut scheduler, 1, 4, 2);
        let step = scheduler.plan(Time::ZERO);
        computed(&mut scheduler, &step, &[]);
        enqueue(&mut scheduler, 2, cells - 5, 1);
        let step = scheduler.plan(Time::ZERO);
        assert_eq!(span(&step), Some((0, 19, false)));
        let ahead = scheduler.plan_overlap(Duration::ZERO);
        assert_eq!(ahead.map(|ahead| ahead.shape.prefill), size, "{cells}");
    }
}

#[test]
fn what_failed_ahead_is_undone_and_read_again_in_smaller_parts() {
    let (mut scheduler, step) = reading(ON);
    let ahead = scheduler.plan_overlap(Duration::ZERO).expect("half of it");
    let seq = ahead.rows[0].seq;
    computed(&mut scheduler, &step, &[]);
    scheduler.applied_overlap(false);
    assert_eq!(scheduler.cells().held_by(seq), 19);
    assert!(scheduler.is_recovering());
    let step = scheduler.plan(Time::ZERO);
    let tokens: u32 = step.rows.iter().map(Row::tokens).sum();
    assert_eq!((tokens, step.overlapped), (5, 0));
    assert_eq!(span(&step), Some((19, 23, false)), "the other one goes on");
    assert_eq!(scheduler.plan_overlap(Duration::ZERO), None, "not so soon");
}

#[test]
fn nothing_stays_of_one_that_leaves_after_it_ran_ahead() {
    let (mut scheduler, step) = reading(ON);
    let ahead = scheduler.plan_overlap(Duration::ZERO).expect("half of it");
    let used = scheduler.cells().used();
    assert_eq!(used, 5 + 19 + ahead.shape.prefill);
    computed(&mut scheduler, &step, &[]);
    scheduler.applied_overlap(true);
    scheduler.fail_request(RequestId(2));
    let step = scheduler.plan(Time::ZERO);
    assert_eq!(step.memory_ops, [MemoryOp::Clear(ahead.rows[0].seq)]);
    assert_eq!(scheduler.cells().used(), 6);
}
