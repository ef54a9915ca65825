//! Sequence ids with only the highest logits, beside others.

use super::*;

/// At most three requests run.
const TWO_KINDS: SchedulerConfig = SchedulerConfig {
    seq_ids: 6,
    top_k_seq_ids: 3,
    cells: 400,
    ..CONFIG
};

fn of(key: u64, rows: LogitsKind) -> Request {
    Request {
        logits: rows,
        ..request(key, 20, 9)
    }
}

/// Runs steps until the only request has its first token, and finishes it if it is in `ended`.
fn run_to_first_token(scheduler: &mut Scheduler, ended: &[RequestId]) {
    loop {
        let step = scheduler.plan(Time::ZERO);
        let output = step.rows.iter().any(|row| row.output);
        report_computed(scheduler, &step, if output { ended } else { &[] });
        if output {
            return;
        }
    }
}

#[test]
fn requests_get_ids_of_their_kind() {
    let mut scheduler = Scheduler::new(TWO_KINDS);
    let kinds = [
        LogitsKind::TopK,
        LogitsKind::All,
        LogitsKind::TopK,
        LogitsKind::All,
    ];
    for (key, rows) in (1..).zip(kinds) {
        scheduler.enqueue(Time::ZERO, of(key, rows)).unwrap();
    }
    let step = scheduler.plan(Time::ZERO);
    assert_eq!(step.admitted, [RequestId(1), RequestId(2), RequestId(3)]);
    let ids = |scheduler: &Scheduler| -> Vec<_> {
        let running = scheduler.requests();
        running.map(|one| (one.id.0, one.seq.0)).collect()
    };
    assert_eq!(ids(&scheduler), [(1, 0), (2, 3), (3, 1)]);
    report_computed(&mut scheduler, &step, &[]);
    scheduler.cancel(RequestId(1));
    let step = scheduler.plan(Time::ZERO);
    assert_eq!(ids(&scheduler), [(2, 3), (3, 1), (4, 4)]);
    report_computed(&mut scheduler, &step, &[]);
    // As many run whatever their logits.
    let mut scheduler = Scheduler::new(TWO_KINDS);
    for key in 1..=4 {
        scheduler
            .enqueue(Time::ZERO, of(key, LogitsKind::All))
            .unwrap();
    }
    scheduler.plan(Time::ZERO);
    assert_eq!(ids(&scheduler), [(1, 3), (2, 4), (3, 5)]);
}

#[test]
fn single_kind_serves_all_requests() {
    let mut scheduler = Scheduler::new(SchedulerConfig {
        cells: 400,
        ..CONFIG
    });
    for key in 1..=4 {
        scheduler
            .enqueue(Time::ZERO, of(key, LogitsKind::TopK))
            .unwrap();
    }
    scheduler.plan(Time::ZERO);
    let ids: Vec<_> = scheduler.requests().map(|one| one.seq.0).collect();
    assert_eq!(ids, [0, 1, 2, 3]);
}

#[test]
fn continuation_changes_id_kind_without_recompute() {
    for (prefix_cache, can_truncate) in [(true, true), (true, false)] {
        for (first, then) in [
            (LogitsKind::TopK, LogitsKind::All),
            (LogitsKind::All, LogitsKind::TopK),
        ] {
            let mut scheduler = Scheduler::new(SchedulerConfig {
                prefix_cache,
                can_truncate,
                ..TWO_KINDS
            });
            let retention = Retention::default();
            let retained = Request {
                retention: retention.downgrade(),
                ..of(1, first)
            };
            let mut tokens = retained.tokens.clone();
            scheduler.enqueue(Time::ZERO, retained).unwrap();
            run_to_first_token(&mut scheduler, &[RequestId(1)]);
            let before = scheduler.entries().next().unwrap().seq.unwrap();
            assert_eq!(TWO_KINDS.logits_of(before), first);
            tokens.extend([7, 9]);
            let next = Request {
                tokens,
                continued: Some(retention),
                ..of(2, then)
            };
            scheduler.enqueue(Time::ZERO, next).unwrap();
            let step = scheduler.plan(Time::ZERO);
            let row = step.rows[0];
            assert_eq!(
                (row.from, row.to),
                (20, 22),
                "{prefix_cache} {can_truncate}"
            );
            assert_eq!(TWO_KINDS.logits_of(row.seq), then);
            let share = MemoryOp::Share {
                from: before,
                to: row.seq,
                length: 20,
            };
            assert_eq!(step.memory_ops, [share, MemoryOp::Clear(before)]);
            assert_eq!(scheduler.entries().count(), 0);
            assert_eq!(
                (scheduler.cells().used(), scheduler.seq_ids_used()),
                (22, 1)
            );
        }
    }
}

#[test]
fn entries_change_kind_before_eviction() {
    let mut scheduler = Scheduler::new(SchedulerConfig {
        seq_ids: 2,
        top_k_seq_ids: 1,
        ..TWO_KINDS
    });
    let mut kept = Vec::new();
    for key in 1..=3 {
        scheduler
            .enqueue(Time::ZERO, of(key, LogitsKind::TopK))
            .unwrap();
        run_to_first_token(&mut scheduler, &[RequestId(key)]);
        let entries = scheduler.entries();
        kept.push(entries.map(|one| one.id.0).collect::<Vec<_>>());
    }
    assert_eq!(kept, [vec![1], vec![1, 2], vec![2, 3]]);
    let counters = scheduler.counters();
    assert_eq!((counters.dropped, counters.swapped_out), (1, 0));
    // A request that needs all logits gets the other id.
    scheduler
        .enqueue(Time::ZERO, of(4, LogitsKind::All))
        .unwrap();
    let step = scheduler.plan(Time::ZERO);
    assert_eq!(step.rows[0].seq, SeqId(1));
    let left: Vec<_> = scheduler.entries().map(|one| one.id.0).collect();
    assert_eq!(left, [3]);
}

#[test]
fn retry_with_all_logits_recomputes_one_token() {
    for ((prefix_cache, can_truncate), from) in
        [((true, true), 19), ((true, false), 0), ((false, true), 0)]
    {
        let mut scheduler = Scheduler::new(SchedulerConfig {
            prefix_cache,
            can_truncate,
            ..TWO_KINDS
        });
        scheduler
            .enqueue(Time::ZERO, of(1, LogitsKind::TopK))
            .unwrap();
        let step = scheduler.plan(Time::ZERO);
        report_computed(&mut scheduler, &step, &[]);
        let step = scheduler.plan(Time::ZERO);
        let row = step.rows[0];
        assert_eq!(
            (row.seq, row.from, row.to, row.output),
            (SeqId(0), 16, 20, true)
        );
        let result = StepResult::Decoded {
            gained: &[],
            finished: &[],
            awaits_sampler: &[],
            needs_all_logits: &[RequestId(1)],
            took: Duration::from_millis(1),
        };
        assert_eq!(scheduler.step_done(result), None);
        let step = scheduler.plan(Time::ZERO);
        let row = step.rows[0];
        assert_eq!(
            (row.seq, row.from),
            (SeqId(3), from),
            "{prefix_cache} {can_truncate}"
        );
        let clear = MemoryOp::Clear(SeqId(0));
        assert_eq!(step.memory_ops.last(), Some(&clear));
        report_computed(&mut scheduler, &step, &[]);
        if !row.output {
            run_to_first_token(&mut scheduler, &[]);
        }
        let progress = scheduler.progress(RequestId(1)).unwrap();
        assert_eq!((progress.recomputed, progress.generated), (20 - from, 1));
        assert_eq!(scheduler.counters().top_k_retries, 1);
        let step = scheduler.plan(Time::ZERO);
        assert_eq!((step.rows[0].seq, step.rows[0].from), (SeqId(3), 20));
        assert_eq!(scheduler.seq_ids_used(), 1);
    }
}

/// Also with all ids in use: an entry is evicted.
#[test]
fn retry_with_all_logits_evicts_for_an_id() {
    let mut scheduler = Scheduler::new(SchedulerConfig {
        seq_ids: 2,
        top_k_seq_ids: 1,
        ..TWO_KINDS
    });
    scheduler
        .enqueue(Time::ZERO, of(1, LogitsKind::All))
        .unwrap();
    run_to_first_token(&mut scheduler, &[RequestId(1)]);
    scheduler
        .enqueue(Time::ZERO, of(2, LogitsKind::TopK))
        .unwrap();
    let step = scheduler.plan(Time::ZERO);
    report_computed(&mut scheduler, &step, &[]);
    let step = scheduler.plan(Time::ZERO);
    assert_eq!((step.rows[0].seq, scheduler.seq_ids_used()), (SeqId(0), 2));
    let result = StepResult::Decoded {
        gained: &[],
        finished: &[],
        awaits_sampler: &[],
        needs_all_logits: &[RequestId(2)],
        took: Duration::from_millis(1),
    };
    scheduler.step_done(result);
    let step = scheduler.plan(Time::ZERO);
    assert_eq!((step.rows[0].seq, step.rows[0].from), (SeqId(1), 19));
    assert_eq!(
        (scheduler.counters().dropped, scheduler.seq_ids_used()),
        (1, 1)
    );
}
