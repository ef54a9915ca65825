//! Ids for which the backend gives the highest logits only, beside others.

use super::*;

/// Three run at once.
const TWO_KINDS: Limits = Limits {
    seq_ids: 6,
    top_ids: 3,
    cells: 400,
    ..LIMITS
};

fn of(key: u64, rows: Rows) -> Request {
    Request {
        rows,
        ..request(key, 20, 9)
    }
}

/// Steps until the only one that runs has its first token, and ends there if it is to.
fn read(scheduler: &mut Scheduler, ended: &[Key]) {
    loop {
        let step = scheduler.plan(Time::ZERO);
        let output = step.rows.iter().any(|row| row.output);
        computed(scheduler, &step, if output { ended } else { &[] });
        if output {
            return;
        }
    }
}

#[test]
fn everybody_gets_an_id_of_its_kind_and_no_more_run_than_may() {
    let mut scheduler = Scheduler::new(TWO_KINDS);
    let kinds = [Rows::Top, Rows::Whole, Rows::Top, Rows::Whole];
    for (key, rows) in (1..).zip(kinds) {
        scheduler.enqueue(Time::ZERO, of(key, rows)).unwrap();
    }
    let step = scheduler.plan(Time::ZERO);
    assert_eq!(step.admitted, [Key(1), Key(2), Key(3)]);
    let ids = |scheduler: &Scheduler| -> Vec<_> {
        let running = scheduler.sequences();
        running.map(|one| (one.key.0, one.seq.0)).collect()
    };
    assert_eq!(ids(&scheduler), [(1, 0), (2, 3), (3, 1)]);
    computed(&mut scheduler, &step, &[]);
    scheduler.cancel(Key(1));
    let step = scheduler.plan(Time::ZERO);
    assert_eq!(ids(&scheduler), [(2, 3), (3, 1), (4, 4)]);
    computed(&mut scheduler, &step, &[]);
    // Whatever is asked for, as many run.
    let mut scheduler = Scheduler::new(TWO_KINDS);
    for key in 1..=4 {
        scheduler.enqueue(Time::ZERO, of(key, Rows::Whole)).unwrap();
    }
    scheduler.plan(Time::ZERO);
    assert_eq!(ids(&scheduler), [(1, 3), (2, 4), (3, 5)]);
}

#[test]
fn without_two_kinds_nobody_is_asked_for_one() {
    let mut scheduler = Scheduler::new(Limits {
        cells: 400,
        ..LIMITS
    });
    for key in 1..=4 {
        scheduler.enqueue(Time::ZERO, of(key, Rows::Top)).unwrap();
    }
    scheduler.plan(Time::ZERO);
    let ids: Vec<_> = scheduler.sequences().map(|one| one.seq.0).collect();
    assert_eq!(ids, [0, 1, 2, 3]);
}

#[test]
fn what_is_gone_on_with_otherwise_changes_its_id_and_is_not_computed_again() {
    for reuse in [Reuse::Any, Reuse::Whole] {
        for (first, then) in [(Rows::Top, Rows::Whole), (Rows::Whole, Rows::Top)] {
            let mut scheduler = Scheduler::new(Limits { reuse, ..TWO_KINDS });
            let claim = Claim::default();
            let claimed = Request {
                claim: claim.watch(),
                ..of(1, first)
            };
            let mut tokens = claimed.tokens.clone();
            scheduler.enqueue(Time::ZERO, claimed).unwrap();
            read(&mut scheduler, &[Key(1)]);
            let before = scheduler.entries().next().unwrap().seq.unwrap();
            assert_eq!(TWO_KINDS.rows_of(before), first);
            tokens.extend([7, 9]);
            let next = Request {
                tokens,
                goes_on: Some(claim),
                ..of(2, then)
            };
            scheduler.enqueue(Time::ZERO, next).unwrap();
            let step = scheduler.plan(Time::ZERO);
            let row = step.rows[0];
            assert_eq!((row.from, row.to), (20, 22), "{reuse:?}");
            assert_eq!(TWO_KINDS.rows_of(row.seq), then);
            let share = Memory::Share {
                from: before,
                to: row.seq,
                length: 20,
            };
            assert_eq!(step.memory, [share, Memory::Clear(before)]);
            assert_eq!(scheduler.entries().count(), 0);
            assert_eq!((scheduler.cells().used(), scheduler.ids_used()), (22, 1));
        }
    }
}

#[test]
fn entries_change_over_until_all_ids_are_taken_and_then_the_oldest_goes() {
    let mut scheduler = Scheduler::new(Limits {
        seq_ids: 2,
        top_ids: 1,
        ..TWO_KINDS
    });
    let mut kept = Vec::new();
    for key in 1..=3 {
        scheduler.enqueue(Time::ZERO, of(key, Rows::Top)).unwrap();
        read(&mut scheduler, &[Key(key)]);
        let entries = scheduler.entries();
        kept.push(entries.map(|one| one.entry.0).collect::<Vec<_>>());
    }
    assert_eq!(kept, [vec![1], vec![1, 2], vec![2, 3]]);
    let tally = scheduler.tally();
    assert_eq!((tally.evicted, tally.spilled), (1, 0));
    // One that needs all logits has the other id.
    scheduler.enqueue(Time::ZERO, of(4, Rows::Whole)).unwrap();
    let step = scheduler.plan(Time::ZERO);
    assert_eq!(step.rows[0].seq, SeqId(1));
    let left: Vec<_> = scheduler.entries().map(|one| one.entry.0).collect();
    assert_eq!(left, [3]);
}

#[test]
fn whose_top_does_not_tell_enough_sees_all_after_one_token_more() {
    for (reuse, from) in [(Reuse::Any, 19), (Reuse::Whole, 0), (Reuse::Off, 0)] {
        let mut scheduler = Scheduler::new(Limits { reuse, ..TWO_KINDS });
        scheduler.enqueue(Time::ZERO, of(1, Rows::Top)).unwrap();
        let step = scheduler.plan(Time::ZERO);
        computed(&mut scheduler, &step, &[]);
        let step = scheduler.plan(Time::ZERO);
        let row = step.rows[0];
        assert_eq!(
            (row.seq, row.from, row.to, row.output),
            (SeqId(0), 16, 20, true)
        );
        let result = StepResult::Decoded {
            sampled: &[],
            ended: &[],
            asked: &[],
            unsettled: &[Key(1)],
            took: Duration::from_millis(1),
        };
        assert_eq!(scheduler.applied(result), None);
        let step = scheduler.plan(Time::ZERO);
        let row = step.rows[0];
        assert_eq!((row.seq, row.from), (SeqId(3), from), "{reuse:?}");
        let clear = Memory::Clear(SeqId(0));
        assert_eq!(step.memory.last(), Some(&clear));
        computed(&mut scheduler, &step, &[]);
        if !row.output {
            read(&mut scheduler, &[]);
        }
        let progress = scheduler.progress(Key(1)).unwrap();
        assert_eq!((progress.recomputed, progress.generated), (20 - from, 1));
        assert_eq!(scheduler.tally().unsettled, 1);
        let step = scheduler.plan(Time::ZERO);
        assert_eq!((step.rows[0].seq, step.rows[0].from), (SeqId(3), 20));
        assert_eq!(scheduler.ids_used(), 1);
    }
}

/// Also where all ids are taken: one that something lies under is given up.
#[test]
fn there_is_an_id_for_whose_top_does_not_tell_enough() {
    let mut scheduler = Scheduler::new(Limits {
        seq_ids: 2,
        top_ids: 1,
        ..TWO_KINDS
    });
    scheduler.enqueue(Time::ZERO, of(1, Rows::Whole)).unwrap();
    read(&mut scheduler, &[Key(1)]);
    scheduler.enqueue(Time::ZERO, of(2, Rows::Top)).unwrap();
    let step = scheduler.plan(Time::ZERO);
    computed(&mut scheduler, &step, &[]);
    let step = scheduler.plan(Time::ZERO);
    assert_eq!((step.rows[0].seq, scheduler.ids_used()), (SeqId(0), 2));
    let result = StepResult::Decoded {
        sampled: &[],
        ended: &[],
        asked: &[],
        unsettled: &[Key(2)],
        took: Duration::from_millis(1),
    };
    scheduler.applied(result);
    let step = scheduler.plan(Time::ZERO);
    assert_eq!((step.rows[0].seq, step.rows[0].from), (SeqId(1), 19));
    assert_eq!((scheduler.tally().evicted, scheduler.ids_used()), (1, 1));
}
