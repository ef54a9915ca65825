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

/// A prefix on disk of this many tokens.
fn durable_entry(scheduler: &mut Scheduler, tokens: u32) -> EntryId {
    let order = PositionOrder::new(std::iter::once(0..tokens).collect()).unwrap();
    let text = with_prefix(0, tokens, 0).tokens;
    scheduler.import_durable(PrefixScope(0), text, order)
}

#[test]
fn selected_entries_are_dropped_unless_retained() {
    let mut scheduler = Scheduler::new(ROOMY);
    let retention = Retention::default();
    let long = durable_entry(&mut scheduler, 60);
    let retained = swapped_out_entry(&mut scheduler, 50, retention.downgrade());
    let short = durable_entry(&mut scheduler, 40);
    let result = scheduler.drop_entries(|entries| {
        let order = Vec::from_iter(entries.iter().map(|entry| (entry.id, entry.shared)));
        assert_eq!(order, [(short, 0), (retained, 40), (long, 50)]);
        vec![retained, long]
    });
    assert_eq!((result.dropped, result.kept), (1, 1));
    let left = Vec::from_iter(scheduler.entries().map(|entry| entry.id));
    assert_eq!(left, [short, retained]);
}

/// Swaps in an entry for a new request, which ends at once.
fn take_entry(scheduler: &mut Scheduler, key: u64, entry: EntryId) {
    let now = Duration::from_secs(key);
    let request = Request {
        arrived_at: now,
        max_tokens: 1,
        ..with_prefix(key, 70, 0)
    };
    scheduler.enqueue(now, request).unwrap();
    scheduler.plan(now);
    assert!(scheduler.waits_for_swap_in(RequestId(key), entry));
    assert!(scheduler.begin_swap_in(RequestId(key), entry).is_some());
    scheduler.finish_swap_in(RequestId(key), entry, true);
    let step = scheduler.plan(now);
    assert_eq!(step.rows[0].from, 60);
    report_computed(scheduler, &step, &[RequestId(key)]);
    scheduler.check_consistency();
}

#[test]
fn durable_entry_stays_after_swap_in() {
    let mut scheduler = Scheduler::new(ROOMY);
    let entry = durable_entry(&mut scheduler, 60);
    take_entry(&mut scheduler, 1, entry);
    // The longer entry in the cells does not replace it, and no sweep or lack of memory drops it.
    scheduler.plan(Duration::from_secs(9));
    scheduler.drop_offloaded_prefixes();
    assert!(scheduler.is_durable(entry));
    assert_eq!(scheduler.entries().count(), 2);
    // Nor is it in the way of an offload of the same tokens.
    scheduler.offload_all_prefixes();
    assert_eq!(scheduler.counters().offloaded, 1);
    scheduler.drop_offloaded_prefixes();
    take_entry(&mut scheduler, 10, entry);
    scheduler.clear_prefix_cache();
    assert_eq!(scheduler.entries().count(), 0);
}

#[test]
fn entry_in_ram_comes_before_durable_one() {
    let mut scheduler = Scheduler::new(ROOMY);
    let retention = Retention::default();
    let first = durable_entry(&mut scheduler, 60);
    let in_ram = swapped_out_entry(&mut scheduler, 60, retention.downgrade());
    let last = durable_entry(&mut scheduler, 60);
    take_entry(&mut scheduler, 1, in_ram);
    assert!(scheduler.is_durable(first) && scheduler.is_durable(last));
}

#[test]
fn longer_durable_entry_makes_shorter_redundant() {
    for can_truncate in [true, false] {
        let mut scheduler = Scheduler::new(SchedulerConfig {
            can_truncate,
            ..ROOMY
        });
        let [short, same, long] = [40, 60, 60].map(|n| durable_entry(&mut scheduler, n));
        let text = |tokens| with_prefix(0, tokens, 0).tokens;
        let has =
            |scheduler: &Scheduler, tokens| scheduler.has_durable(PrefixScope(0), &text(tokens));
        assert!(has(&scheduler, 60) && has(&scheduler, 40) && !has(&scheduler, 61));
        assert_eq!(has(&scheduler, 50), can_truncate);
        scheduler.drop_redundant(long);
        assert!(scheduler.has_entry(long));
        for other in [short, same] {
            assert_eq!(scheduler.has_entry(other), !can_truncate);
        }
    }
}

#[test]
fn last_used_entries_are_saved_first() {
    let mut scheduler = Scheduler::new(ROOMY);
    let retention = Retention::default();
    for (key, tokens) in [(1, 40), (2, 50), (3, 20), (4, 60)] {
        let request = Request {
            retention: match key {
                2 => retention.downgrade(),
                _ => WeakRetention::default(),
            },
            ..request(key, tokens, 1)
        };
        scheduler.enqueue(Time::ZERO, request).unwrap();
        while !scheduler.is_idle() {
            let step = scheduler.plan(Time::ZERO);
            let ended = [RequestId(key)];
            let is_last = step.rows.last().is_some_and(|row| row.output);
            report_computed(&mut scheduler, &step, &ended[..usize::from(is_last)]);
        }
    }
    let mut saved = Vec::new();
    while let Some((entry, _)) = scheduler.next_to_save(32) {
        let (scope, tokens, order) = scheduler.entry_text(entry).unwrap();
        assert_eq!(tokens.len(), order.length() as usize);
        saved.push(tokens.len());
        let tokens = tokens.to_vec();
        scheduler.import_durable(scope, tokens, order);
        scheduler.drop_entry(entry);
        scheduler.check_consistency();
    }
    assert_eq!(saved, [60, 50, 40]);
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
        let mut entries: Vec<_> = scheduler.entries().collect();
        entries.sort_by_key(|entry| entry.id);
        let lengths: Vec<_> = entries.iter().map(|entry| entry.tokens).collect();
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
