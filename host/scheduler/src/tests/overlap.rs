//! Prompts that are computed while rows are sampled, and while steps wait for callers.

use super::*;

const ON: SchedulerConfig = SchedulerConfig {
    cells: 400,
    max_step_tokens: 64,
    overlap: Overlap::On,
    ..CONFIG
};

/// A decoding request, and one with a prompt of 43 tokens: the returned step computes 16 of them, and 3 that fill the
/// tile of the decode row.
fn decode_and_prompt(limits: SchedulerConfig) -> (Scheduler, Step) {
    let mut scheduler = Scheduler::new(limits);
    enqueue(&mut scheduler, 1, 4, 50);
    let step = scheduler.plan(Time::ZERO);
    assert_eq!(scheduler.plan_overlap(Duration::MAX), None, "no prompt");
    report_computed(&mut scheduler, &step, &[]);
    enqueue(&mut scheduler, 2, 43, 5);
    let step = scheduler.plan(Time::ZERO);
    assert_eq!(
        (step.shape.decode_rows, step.shape.prefill, step.overlapped),
        (1, 19, 0)
    );
    (scheduler, step)
}

/// The positions that a step computes of the second request, and whether it has output.
fn span(step: &Step) -> Option<(u32, u32, bool)> {
    let row = step.rows.iter().find(|row| row.request == RequestId(2))?;
    Some((row.from, row.to, row.output))
}

#[test]
fn overlap_takes_half_the_budget() {
    let (mut scheduler, mut step) = decode_and_prompt(ON);
    let mut seen = Vec::new();
    while let Some(ahead) = scheduler.plan_overlap(Duration::ZERO) {
        assert!(ahead.is_overlap && ahead.memory_ops.is_empty());
        assert_eq!(ahead.rows.len(), 1);
        report_computed(&mut scheduler, &step, &[]);
        scheduler.overlap_done(true);
        let before = ahead.shape.prefill;
        seen.push((span(&step), span(&ahead)));
        step = scheduler.plan(Time::ZERO);
        assert_eq!(
            (step.overlapped, step.prefill_budget, step.shape.decode_rows),
            (before, 19, 1)
        );
    }
    let expected = [
        (Some((0, 19, false)), Some((19, 27, false))),
        // The rest of the budget, and the rest of the prompt without its last token.
        (Some((27, 38, false)), Some((38, 42, false))),
    ];
    assert_eq!(seen, expected);
    assert_eq!(span(&step), Some((42, 43, true)));
}

#[test]
fn cpu_overlaps_only_when_on() {
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
fn no_overlap_when_off_or_unmeasured() {
    for overlap in [Overlap::Off, Overlap::Auto] {
        let (mut scheduler, step) = decode_and_prompt(SchedulerConfig { overlap, ..ON });
        assert_eq!(scheduler.plan_overlap(Duration::MAX), None, "{overlap:?}");
        report_computed(&mut scheduler, &step, &[]);
    }
}

#[test]
fn overlap_leaves_cells_for_next_step() {
    // 5 cells of the first and 19 of the second: 9 are free, of which the next token needs one.
    for (cells, size) in [(33, Some(8)), (32, Some(4)), (28, None)] {
        let config = SchedulerConfig { cells, ..ON };
        let mut scheduler = Scheduler::new(config);
        enqueue(&mut scheduler, 1, 4, 2);
        let step = scheduler.plan(Time::ZERO);
        report_computed(&mut scheduler, &step, &[]);
        enqueue(&mut scheduler, 2, cells - 5, 1);
        let step = scheduler.plan(Time::ZERO);
        assert_eq!(span(&step), Some((0, 19, false)));
        let ahead = scheduler.plan_overlap(Duration::ZERO);
        assert_eq!(ahead.map(|ahead| ahead.shape.prefill), size, "{cells}");
    }
}

#[test]
fn failed_overlap_repeats_in_smaller_steps() {
    let (mut scheduler, step) = decode_and_prompt(ON);
    let ahead = scheduler
        .plan_overlap(Duration::ZERO)
        .expect("half of the budget");
    let seq = ahead.rows[0].seq;
    report_computed(&mut scheduler, &step, &[]);
    scheduler.overlap_done(false);
    assert_eq!(scheduler.cells().held_by(seq), 19);
    assert!(scheduler.is_recovering());
    let step = scheduler.plan(Time::ZERO);
    let tokens: u32 = step.rows.iter().map(Row::tokens).sum();
    assert_eq!((tokens, step.overlapped), (5, 0));
    assert_eq!(
        span(&step),
        Some((19, 23, false)),
        "the other request continues"
    );
    assert_eq!(
        scheduler.plan_overlap(Duration::ZERO),
        None,
        "while recovering"
    );
}

#[test]
fn failed_request_leaves_no_overlapped_cells() {
    let (mut scheduler, step) = decode_and_prompt(ON);
    let ahead = scheduler
        .plan_overlap(Duration::ZERO)
        .expect("half of the budget");
    let used = scheduler.cells().used();
    assert_eq!(used, 5 + 19 + ahead.shape.prefill);
    report_computed(&mut scheduler, &step, &[]);
    scheduler.overlap_done(true);
    scheduler.fail(RequestId(2));
    let step = scheduler.plan(Time::ZERO);
    assert_eq!(step.memory_ops, [MemoryOp::Clear(ahead.rows[0].seq)]);
    assert_eq!(scheduler.cells().used(), 6);
}
