//! What is shared, put aside, brought back and moved.

use super::*;

/// Tokens of a text that several begin with, and then their own.
fn beginning(key: u64, shared: u32, own: u32) -> Request {
    let mut request = request(key, own, 5);
    request.tokens.splice(0..0, 500_000..500_000 + shared);
    request
}

const ROOMY: SchedulerConfig = SchedulerConfig {
    cells: 400,
    ..CONFIG
};

/// Something of so many tokens that was put aside.
fn put_aside(scheduler: &mut Scheduler, tokens: u32, claim: WeakRetention) -> EntryId {
    let layout = Layout::new(std::iter::once(0..tokens).collect()).unwrap();
    let text = beginning(0, tokens, 0).tokens;
    scheduler.import_entry(PrefixScope(0), text, layout, claim)
}

#[test]
fn two_that_begin_unlike_each_get_what_they_share_of_what_was_put_aside() {
    let mut scheduler = Scheduler::new(ROOMY);
    let claim = Retention::default();
    let entry = put_aside(&mut scheduler, 60, claim.downgrade());
    for request in [beginning(1, 40, 30), beginning(2, 60, 30)] {
        scheduler.enqueue(Time::ZERO, request).unwrap();
    }
    assert!(scheduler.plan(Time::ZERO).rows.is_empty());
    assert!(
        scheduler.waits_for_swap_in(RequestId(1), entry)
            && scheduler.waits_for_swap_in(RequestId(2), entry)
    );
    drop(claim);
    assert!(scheduler.begin_swap_in(RequestId(1), entry).is_some());
    assert!(
        scheduler.finish_swap_in(RequestId(1), entry, true),
        "one still waits"
    );
    // The first begins otherwise after 40.
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
fn what_is_being_fetched_is_not_swept() {
    let mut scheduler = Scheduler::new(ROOMY);
    let entry = put_aside(&mut scheduler, 60, WeakRetention::default());
    scheduler.enqueue(Time::ZERO, beginning(1, 60, 3)).unwrap();
    scheduler.plan(Time::ZERO);
    scheduler.plan(Duration::from_secs(9));
    assert!(scheduler.waits_for_swap_in(RequestId(1), entry));
}

/// The caller has only the new claim in hand as soon as it has asked.
#[test]
fn what_was_put_aside_is_kept_for_who_goes_on_with_it_however_long_it_waits() {
    let mut scheduler = Scheduler::new(SchedulerConfig {
        seq_ids: 1,
        ..ROOMY
    });
    enqueue(&mut scheduler, 1, 5, 9);
    let step = scheduler.plan(Time::ZERO);
    computed(&mut scheduler, &step, &[]);
    let claim = Retention::default();
    let entry = put_aside(&mut scheduler, 60, claim.downgrade());
    let request = Request {
        continues: Some(claim),
        ..beginning(2, 60, 3)
    };
    scheduler.enqueue(Time::ZERO, request).unwrap();
    for second in 1..9 {
        let step = scheduler.plan(Duration::from_secs(second));
        let ended = [RequestId(1)];
        computed(&mut scheduler, &step, &ended[..usize::from(second == 8)]);
    }
    scheduler.plan(Duration::from_secs(9));
    assert!(scheduler.waits_for_swap_in(RequestId(2), entry));
    // And no longer, as soon as it has it.
    assert!(scheduler.begin_swap_in(RequestId(2), entry).is_some());
    assert!(!scheduler.finish_swap_in(RequestId(2), entry, true));
    assert!(!scheduler.has_entry(entry));
}

/// It gave way once, and again before it had its state back.
#[test]
fn who_gives_way_while_it_fetches_keeps_what_it_left_behind() {
    let mut scheduler = Scheduler::new(CONFIG);
    let urgent = |key, priority| Request {
        priority: Priority(priority),
        ..request(key, 80, 5)
    };
    enqueue(&mut scheduler, 1, 60, 20);
    for _ in 0..5 {
        let step = scheduler.plan(Time::ZERO);
        computed(&mut scheduler, &step, &[]);
    }
    for key in [2, 3] {
        scheduler.enqueue(Time::ZERO, urgent(key, 1)).unwrap();
        scheduler.plan(Time::ZERO);
        assert!(scheduler.is_waiting(RequestId(1)));
        scheduler.applied(StepResult::Failed { now: Time::ZERO });
        scheduler.cancel(RequestId(key));
        scheduler.plan(Time::ZERO);
        let entry = scheduler.entries().next().unwrap();
        assert!(entry.retained && scheduler.waits_for_swap_in(RequestId(1), entry.id));
    }
}

#[test]
fn what_a_leader_has_read_stays_for_its_followers_when_it_goes_away() {
    let mut scheduler = Scheduler::new(ROOMY);
    for key in [1, 2, 3] {
        scheduler
            .enqueue(Time::ZERO, beginning(key, 60, 9))
            .unwrap();
    }
    let step = scheduler.plan(Time::ZERO);
    assert_eq!(step.rows.len(), 1);
    computed(&mut scheduler, &step, &[]);
    scheduler.cancel(RequestId(1));
    let step = scheduler.plan(Time::ZERO);
    assert_eq!(
        (step.rows[0].request, step.rows[0].from),
        (RequestId(2), 16)
    );
    computed(&mut scheduler, &step, &[]);
    // But not of one that went wrong.
    scheduler.fail_request(RequestId(2));
    let step = scheduler.plan(Time::ZERO);
    assert_eq!(
        (step.rows[0].request, step.rows[0].from),
        (RequestId(3), 16)
    );
}

/// Who cancels what it reads may go on with it all the same.
#[test]
fn what_is_claimed_stays_when_it_is_cancelled() {
    let mut scheduler = Scheduler::new(ROOMY);
    let claim = Retention::default();
    let claimed = Request {
        retention: claim.downgrade(),
        ..request(1, 30, 5)
    };
    scheduler.enqueue(Time::ZERO, claimed).unwrap();
    let step = scheduler.plan(Time::ZERO);
    computed(&mut scheduler, &step, &[]);
    scheduler.cancel(RequestId(1));
    let kept: Vec<_> = scheduler.entries().map(|entry| entry.tokens).collect();
    assert_eq!(kept, [16]);
}

#[test]
fn a_longer_sequence_does_not_stand_for_a_shorter_one_where_there_are_no_parts() {
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
                computed(&mut scheduler, &step, &ended[..usize::from(said == steps)]);
            }
        }
        let lengths: Vec<_> = scheduler.entries().map(|entry| entry.tokens).collect();
        assert_eq!(lengths, kept, "{prefix_cache} {can_truncate}");
    }
}

/// A host keeps thousands of chats, nearly all of which were put aside.
#[test]
fn no_step_looks_at_all_that_is_kept() {
    const KEPT: u64 = 5000;
    let looked_at = crate::prefix_cache::SWEEP_ENTRIES as u64;
    let mut scheduler = Scheduler::new(CONFIG);
    let old: Vec<_> = (0..KEPT).map(|_| Retention::default()).collect();
    for (number, claim) in (1000..).zip(&old) {
        let layout = Layout::new(std::iter::once(0..20).collect()).unwrap();
        let text = request(number, 20, 1).tokens;
        scheduler.import_entry(PrefixScope(0), text, layout, claim.downgrade());
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
    for (key, claim) in (1..).zip(&new) {
        let newcomer = Request {
            retention: claim.downgrade(),
            ..request(key, 20, 1)
        };
        scheduler.enqueue(Time::ZERO, newcomer).unwrap();
        let ended = [RequestId(key)];
        for (from, count) in [(0, 0), (16, 1)] {
            let step = plan(&mut scheduler, key);
            assert_eq!((step.rows.len(), step.rows[0].from), (1, from));
            computed(&mut scheduler, &step, &ended[..count]);
        }
    }
    // Each had to make room for the next one but three, and has been kept.
    assert_eq!(scheduler.counters().swapped_out, 46);
    assert_eq!(scheduler.entries().count() as u64, KEPT + 50);
    // What is let go is gone after a while all the same.
    drop(old);
    let rounds = 2 * (KEPT / looked_at + 2);
    for second in 100..100 + rounds {
        plan(&mut scheduler, second);
    }
    assert_eq!(scheduler.entries().count(), 50);
    assert!(most >= looked_at, "it is swept");
    let ids = u64::from(CONFIG.seq_ids);
    assert!(most <= looked_at + 16 * ids, "{most} of {KEPT} in a step");
}

/// Who was of use last gives way last, and who is claimed after all that nobody claims.
#[test]
fn the_least_recently_used_gives_way_first_and_claims_count_when_they_are_held() {
    let mut scheduler = Scheduler::new(ROOMY);
    let mut claims: Vec<_> = (0..4).map(|_| Some(Retention::default())).collect();
    for (key, claim) in (1..).zip(&claims) {
        let watch = claim.as_ref().map(Retention::downgrade).unwrap_or_default();
        let kept = Request {
            retention: watch,
            ..request(key, 16, 1)
        };
        scheduler.enqueue(Time::ZERO, kept).unwrap();
        let step = scheduler.plan(Time::ZERO);
        computed(&mut scheduler, &step, &[RequestId(key)]);
    }
    let kept = |scheduler: &Scheduler| -> Vec<u64> {
        let in_cells = scheduler.entries().filter(|entry| entry.seq.is_some());
        in_cells.map(|entry| entry.id.0).collect()
    };
    assert_eq!(kept(&scheduler), [1, 2, 3, 4]);
    // The third was let go, and the first is of use once more.
    claims[2] = None;
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
