//! Sharing, swapping and compaction of cached sequences.

use super::*;

/// A request with a prefix that all share, and tokens of its own.
fn with_prefix(key: u64, shared: u32, own: u32) -> Request {
    let mut request = request(key, own, 5);
    request.tokens.splice(0..0, 500_000..500_000 + shared);
    request
}

const ROOMY: SchedulerConfig = SchedulerConfig {
    cells: 400,
    ..CONFIG
};

/// A swapped-out entry of this many tokens.
fn swapped_out_entry(scheduler: &mut Scheduler, tokens: u32, retention: WeakRetention) -> EntryId {
    let order = PositionOrder::new(std::iter::once(0..tokens).collect()).unwrap();
    let text = with_prefix(0, tokens, 0).tokens;
    scheduler.import_entry(PrefixScope(0), text, order, retention)
}

#[test]
fn two_requests_share_one_swapped_entry() {
    let mut scheduler = Scheduler::new(ROOMY);
    let retention = Retention::default();
    let entry = swapped_out_entry(&mut scheduler, 60, retention.downgrade());
    for request in [with_prefix(1, 40, 30), with_prefix(2, 60, 30)] {
        scheduler.enqueue(Time::ZERO, request).unwrap();
    }
    assert!(scheduler.plan(Time::ZERO).rows.is_empty());
    assert!(
        scheduler.waits_for_swap_in(RequestId(1), entry)
            && scheduler.waits_for_swap_in(RequestId(2), entry)
    );
    drop(retention);
    assert!(scheduler.begin_swap_in(RequestId(1), entry).is_some());
    assert!(
        scheduler.finish_swap_in(RequestId(1), entry, true),
        "one still waits"
    );
    // The first differs after 40 tokens.
    assert!(scheduler.waits_for_swap_in(RequestId(2), entry));
    assert!(scheduler.begin_swap_in(RequestId(2), entry).is_some());
    assert!(
        !scheduler.finish_swap_in(RequestId(2), entry, true),
        "nobody waits"
    );
    let step = scheduler.plan(Time::ZERO);
    let starts: Vec<_> = step
        .rows
        .iter()
        .map(|row| (row.request.0, row.from))
        .collect();
    assert_eq!(starts, [(1, 40), (2, 60)]);
}

#[test]
fn awaited_entry_is_not_swept() {
    let mut scheduler = Scheduler::new(ROOMY);
    let entry = swapped_out_entry(&mut scheduler, 60, WeakRetention::default());
    scheduler
        .enqueue(Time::ZERO, with_prefix(1, 60, 3))
        .unwrap();
    scheduler.plan(Time::ZERO);
    scheduler.plan(Duration::from_secs(9));
    assert!(scheduler.waits_for_swap_in(RequestId(1), entry));
}

/// The request alone holds the retention of the sequence that it continues.
#[test]
fn swapped_entry_is_kept_for_its_owner() {
    let mut scheduler = Scheduler::new(SchedulerConfig {
        seq_ids: 1,
        ..ROOMY
    });
    enqueue(&mut scheduler, 1, 5, 9);
    let step = scheduler.plan(Time::ZERO);
    report_computed(&mut scheduler, &step, &[]);
    let retention = Retention::default();
    let entry = swapped_out_entry(&mut scheduler, 60, retention.downgrade());
    let request = Request {
        continued: Some(retention),
        ..with_prefix(2, 60, 3)
    };
    scheduler.enqueue(Time::ZERO, request).unwrap();
    for second in 1..9 {
        let step = scheduler.plan(Duration::from_secs(second));
        let ended = [RequestId(1)];
        report_computed(&mut scheduler, &step, &ended[..usize::from(second == 8)]);
    }
    scheduler.plan(Duration::from_secs(9));
    assert!(scheduler.waits_for_swap_in(RequestId(2), entry));
    // It is dropped once the request has it.
    assert!(scheduler.begin_swap_in(RequestId(2), entry).is_some());
    assert!(!scheduler.finish_swap_in(RequestId(2), entry, true));
    assert!(!scheduler.has_entry(entry));
}

/// The request is preempted a second time before its state is back.
#[test]
fn preemption_during_swap_in_keeps_the_entry() {
    let mut scheduler = Scheduler::new(CONFIG);
    let urgent = |key, priority| Request {
        priority: Priority(priority),
        ..request(key, 80, 5)
    };
    enqueue(&mut scheduler, 1, 60, 20);
    for _ in 0..5 {
        let step = scheduler.plan(Time::ZERO);
        report_computed(&mut scheduler, &step, &[]);
    }
    for key in [2, 3] {
        scheduler.enqueue(Time::ZERO, urgent(key, 1)).unwrap();
        scheduler.plan(Time::ZERO);
        assert!(scheduler.is_waiting(RequestId(1)));
        scheduler.step_done(StepResult::Failed { now: Time::ZERO });
        scheduler.cancel(RequestId(key));
        scheduler.plan(Time::ZERO);
        let entry = scheduler.entries().next().unwrap();
        assert!(entry.retained && scheduler.waits_for_swap_in(RequestId(1), entry.id));
    }
}

#[test]
fn canceled_leader_leaves_prefix_to_followers() {
    let mut scheduler = Scheduler::new(ROOMY);
    for key in [1, 2, 3] {
        scheduler
            .enqueue(Time::ZERO, with_prefix(key, 60, 9))
            .unwrap();
    }
    let step = scheduler.plan(Time::ZERO);
    assert_eq!(step.rows.len(), 1);
    report_computed(&mut scheduler, &step, &[]);
    scheduler.cancel(RequestId(1));
    let step = scheduler.plan(Time::ZERO);
    assert_eq!(
        (step.rows[0].request, step.rows[0].from),
        (RequestId(2), 16)
    );
    report_computed(&mut scheduler, &step, &[]);
    // A request that went wrong leaves nothing.
    scheduler.fail(RequestId(2));
    let step = scheduler.plan(Time::ZERO);
    assert_eq!(
        (step.rows[0].request, step.rows[0].from),
        (RequestId(3), 16)
    );
}

/// The owner may continue a canceled request.
#[test]
fn retained_sequence_survives_cancel() {
    let mut scheduler = Scheduler::new(ROOMY);
    let retention = Retention::default();
    let retained = Request {
        retention: retention.downgrade(),
        ..request(1, 30, 5)
    };
    scheduler.enqueue(Time::ZERO, retained).unwrap();
    let step = scheduler.plan(Time::ZERO);
    report_computed(&mut scheduler, &step, &[]);
    scheduler.cancel(RequestId(1));
    let kept: Vec<_> = scheduler.entries().map(|entry| entry.tokens).collect();
    assert_eq!(kept, [16]);
}

#[test]
fn longer_entry_replaces_shorter_only_if_truncatable() {
    for ((prefix_cache, can_truncate), kept) in
        [((true, true), vec![39]), ((true, false), vec![39, 34])]
    {
        let mut scheduler = Scheduler::new(SchedulerConfig {
            prefix_cache,
            can_truncate,
            ..ROOMY
        });
        for (key, steps) in [(1, 10), (2, 5)] {
            let alike = Request {
                id: RequestId(key),
                ..request(1, 30, 20)
            };
            scheduler.enqueue(Time::ZERO, alike).unwrap();
            let mut said = 0;
            while said < steps {
                let step = scheduler.plan(Time::ZERO);
                said += step.rows.iter().filter(|row| row.output).count();
                let ended = [RequestId(key)];
                report_computed(&mut scheduler, &step, &ended[..usize::from(said == steps)]);
            }
        }
        let lengths: Vec<_> = scheduler.entries().map(|entry| entry.tokens).collect();
        assert_eq!(lengths, kept, "{prefix_cache} {can_truncate}");
    }
}

/// A host keeps thousands of sequences, nearly all of them swapped out.
#[test]
fn steps_visit_few_entries() {
    const KEPT: u64 = 5000;
    let looked_at = crate::prefix_cache::SWEEP_ENTRIES as u64;
    let mut scheduler = Scheduler::new(CONFIG);
    let old: Vec<_> = (0..KEPT).map(|_| Retention::default()).collect();
    for (number, retention) in (1000..).zip(&old) {
        let order = PositionOrder::new(std::iter::once(0..20).collect()).unwrap();
        let text = request(number, 20, 1).tokens;
        scheduler.import_entry(PrefixScope(0), text, order, retention.downgrade());
    }
    let new: Vec<_> = (0..50).map(|_| Retention::default()).collect();
    let mut most = 0_u64;
    let mut plan = |scheduler: &mut Scheduler, second| {
        let before = scheduler.kv.entries.visits();
        let step = scheduler.plan(Duration::from_secs(second));
        scheduler.check_consistency();
        most = most.max(scheduler.kv.entries.visits() - before);
        step
    };
    for (key, retention) in (1..).zip(&new) {
        let newcomer = Request {
            retention: retention.downgrade(),
            ..request(key, 20, 1)
        };
        scheduler.enqueue(Time::ZERO, newcomer).unwrap();
        let ended = [RequestId(key)];
        for (from, count) in [(0, 0), (16, 1)] {
            let step = plan(&mut scheduler, key);
            assert_eq!((step.rows.len(), step.rows[0].from), (1, from));
            report_computed(&mut scheduler, &step, &ended[..count]);
        }
    }
    // Each is swapped out for the fourth request after it.
    assert_eq!(scheduler.counters().swapped_out, 46);
    assert_eq!(scheduler.entries().count() as u64, KEPT + 50);
    // Released entries are dropped after a while.
    drop(old);
    let rounds = 2 * (KEPT / looked_at + 2);
    for second in 100..100 + rounds {
        plan(&mut scheduler, second);
    }
    assert_eq!(scheduler.entries().count(), 50);
    assert!(most >= looked_at, "no sweep");
    let ids = u64::from(CONFIG.seq_ids);
    assert!(most <= looked_at + 16 * ids, "{most} of {KEPT} in a step");
}

/// Unowned entries go first, each side in order of last use.
#[test]
fn least_recently_used_unretained_entry_goes_first() {
    let mut scheduler = Scheduler::new(ROOMY);
    let mut retentions: Vec<_> = (0..4).map(|_| Some(Retention::default())).collect();
    for (key, retention) in (1..).zip(&retentions) {
        let watch = retention
            .as_ref()
            .map(Retention::downgrade)
            .unwrap_or_default();
        let kept = Request {
            retention: watch,
            ..request(key, 16, 1)
        };
        scheduler.enqueue(Time::ZERO, kept).unwrap();
        let step = scheduler.plan(Time::ZERO);
        report_computed(&mut scheduler, &step, &[RequestId(key)]);
    }
    let kept = |scheduler: &Scheduler| -> Vec<u64> {
        let in_cells = scheduler.entries().filter(|entry| entry.seq.is_some());
        in_cells.map(|entry| entry.id.0).collect()
    };
    assert_eq!(kept(&scheduler), [1, 2, 3, 4]);
    // The third is released, and the first is used again.
    retentions[2] = None;
    scheduler.kv.entries.touch(EntryId(1));
    let mut gone = Vec::new();
    for _ in 0..4 {
        let before = kept(&scheduler);
        assert!(scheduler.kv.take_id(LogitsKind::All, None).is_some());
        let after = kept(&scheduler);
        gone.extend(before.into_iter().filter(|id| !after.contains(id)));
        scheduler.check_consistency();
    }
    assert_eq!(gone, [3, 2, 4, 1]);
}
