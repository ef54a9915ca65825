mod bench;
mod threads;

use super::*;
use bench::{BLOCK, Bench, Fault, KIB, state};
use proptest::prelude::*;

#[test]
fn without_a_disk_the_least_recently_put_are_lost() {
    let mut bench = Bench::new(10 * KIB, 0);
    for id in 0..4 {
        bench.put(id, 3 * KIB);
        bench.check();
    }
    assert_eq!(bench.spill.take_lost(), [0]);
    bench.put(4, 6 * KIB);
    assert_eq!(bench.spill.take_lost(), [1, 2]);
    assert!(bench.spill.take_lost().is_empty());
    assert_eq!(bench.spill.fetch(1), Fetched::Gone);
    assert_eq!(bench.spill.fetch(3), Fetched::Here(state(3, 3 * KIB)));
    assert_eq!(bench.spill.fetch(3), Fetched::Gone);
    assert_eq!(bench.spill.ram_bytes(), 6 * KIB);
    assert_eq!(bench.spill.counts().lost, 3);
}

#[test]
fn what_is_put_again_is_new_and_not_lost() {
    let mut bench = Bench::new(4 * KIB, 0);
    bench.put(1, 3 * KIB);
    bench.put(2, 3 * KIB);
    bench.put(1, KIB);
    assert!(bench.spill.take_lost().is_empty(), "it is there again");
    bench.put(2, 3 * KIB);
    assert_eq!(bench.spill.ram_bytes(), 4 * KIB);
    bench.put(3, KIB);
    assert_eq!(bench.spill.take_lost(), [1]);
}

#[test]
fn what_can_never_be_kept_is_refused_and_nobody_is_lost_for_it() {
    let mut bench = Bench::new(8 * KIB, 100 * KIB);
    bench.put(1, 8 * KIB);
    bench.run();
    let refused = bench.spill.put(2, state(2, 9 * KIB)).unwrap_err();
    let expected = Refused::TooLarge {
        bytes: 9 * KIB,
        limit: 8 * KIB,
    };
    assert_eq!(refused, expected);
    assert!(bench.spill.contains(1) && !bench.spill.contains(2));
    assert!(bench.spill.take_lost().is_empty());
    assert_eq!(bench.spill.counts().refused, 1);
}

#[test]
fn the_oldest_go_to_disk_ahead_of_need_and_then_to_nowhere() {
    let mut bench = Bench::new(16 * KIB, 3 * BLOCK);
    for id in 0..12 {
        bench.put(id, 4 * KIB);
        bench.run();
        bench.check();
    }
    // A quarter of the memory is free, three files are full.
    assert_eq!(bench.spill.ram_bytes(), 12 * KIB);
    assert_eq!(bench.spill.disk_bytes(), 3 * BLOCK);
    assert_eq!(bench.spill.take_lost(), [0, 1, 2, 3, 4, 5]);
    for id in 6..12 {
        assert!(bench.fetch_now(id) == Some(state(id, 4 * KIB)), "{id}");
        bench.check();
    }
    bench.run();
    assert_eq!((bench.spill.ram_bytes(), bench.spill.disk_bytes()), (0, 0));
    assert_eq!(bench.disk.used(), 0);
    assert_eq!(bench.spill.counts().lost, 6);
    assert!(bench.spill.counts().read_back >= 3);
}

#[test]
fn what_waits_to_be_written_needs_no_disk_to_come_back() {
    let mut bench = Bench::new(16 * KIB, 100 * KIB);
    for id in 0..4 {
        bench.put(id, 4 * KIB);
    }
    assert!(matches!(
        bench.spill.entries[&0].place,
        Place::Writing { .. }
    ));
    assert_eq!(bench.spill.fetch(0), Fetched::Here(state(0, 4 * KIB)));
    bench.check();
    assert_eq!(bench.spill.disk_bytes(), 0);
}

#[test]
fn what_is_being_written_comes_back_when_it_was() {
    for fault in [None, Some(Fault::Full)] {
        let mut bench = Bench::new(24 * KIB, 100 * KIB);
        bench.put(0, 20 * KIB);
        bench.begin();
        assert_eq!(bench.spill.fetch(0), Fetched::Coming);
        bench.disk.lock().fault = fault;
        bench.finish();
        assert!(bench.told);
        assert_eq!(bench.spill.fetch(0), Fetched::Here(state(0, 20 * KIB)));
        bench.told = false;
        bench.check();
        bench.run();
        let files = bench.disk.lock().files.len();
        assert_eq!(files, 0, "its file is removed");
        assert_eq!(bench.spill.counts().read_back, 0);
    }
}

#[test]
fn each_way_of_failing_loses_the_state_and_tells() {
    let faults = [
        Fault::Missing,
        Fault::Short,
        Fault::Flipped,
        Fault::Unreadable,
    ];
    for fault in faults {
        let mut bench = Bench::new(4 * KIB, 100 * KIB);
        bench.put(7, 4 * KIB);
        bench.run();
        assert_eq!(bench.spill.fetch(7), Fetched::Coming);
        bench.disk.lock().fault = Some(fault);
        bench.begin();
        bench.finish();
        assert!(bench.told, "{fault:?}");
        assert_eq!(bench.spill.fetch(7), Fetched::Gone, "{fault:?}");
        assert_eq!(bench.spill.take_lost(), [7]);
        bench.told = false;
        bench.run();
        assert_eq!(bench.disk.used(), 0, "{fault:?}");
    }
    let mut bench = Bench::new(4 * KIB, 100 * KIB);
    bench.disk.lock().fault = Some(Fault::Full);
    bench.put(7, 4 * KIB);
    bench.run();
    assert_eq!(bench.spill.take_lost(), [7]);
    assert_eq!(bench.disk.used(), 0, "half a file is removed");
}

#[test]
fn a_file_that_cannot_be_removed_still_counts() {
    let mut bench = Bench::new(4 * KIB, BLOCK);
    bench.put(1, KIB);
    bench.put(2, 4 * KIB);
    bench.run();
    assert_eq!(bench.spill.take_lost(), [1]);
    bench.disk.lock().fault = Some(Fault::Stays);
    bench.spill.forget(2);
    bench.run();
    assert_eq!(bench.spill.disk_bytes(), BLOCK);
    // The next one tries again first.
    bench.put(3, 4 * KIB);
    bench.run();
    assert_eq!(bench.spill.disk_bytes(), BLOCK);
    assert_eq!(bench.fetch_now(3), Some(state(3, 4 * KIB)));
}

#[test]
fn what_was_read_stays_until_taken_and_others_wait_in_line() {
    let mut bench = Bench::new(16 * KIB, 100 * KIB);
    for id in 0..8 {
        bench.put(id, 4 * KIB);
        bench.run();
    }
    for id in [2, 0, 1, 3] {
        assert_eq!(bench.spill.fetch(id), Fetched::Coming);
    }
    bench.run();
    bench.check();
    let ready = |bench: &Bench| -> Vec<Id> {
        let entries = bench.spill.entries.iter();
        let ready = entries.filter(|(_, e)| matches!(e.place, Place::Ready { .. }));
        let mut ids: Vec<_> = ready.map(|(id, _)| *id).collect();
        ids.sort_unstable();
        ids
    };
    assert_eq!(ready(&bench), [0, 2], "half of the memory, in order");
    // Puts go on, and do not throw them out.
    for id in 20..30 {
        bench.put(id, 4 * KIB);
        bench.run();
        bench.check();
    }
    assert_eq!(ready(&bench), [0, 2]);
    assert_eq!(bench.spill.fetch(2), Fetched::Here(state(2, 4 * KIB)));
    bench.run();
    assert_eq!(ready(&bench), [0, 1]);
    bench.spill.release(0);
    bench.run();
    assert_eq!(ready(&bench), [1, 3]);
    assert_eq!(bench.fetch_now(1), Some(state(1, 4 * KIB)));
    assert_eq!(bench.fetch_now(0), Some(state(0, 4 * KIB)));
}

#[test]
fn who_waits_makes_puts_wait_outside() {
    let mut bench = Bench::new(8 * KIB, 100 * KIB);
    for id in 0..2 {
        bench.put(id, 8 * KIB);
        bench.run();
    }
    assert_eq!(bench.spill.fetch(0), Fetched::Coming);
    bench.run();
    let refused = bench.spill.put(9, state(9, KIB));
    assert_eq!(refused, Err(Refused::Busy));
    assert_eq!(bench.spill.fetch(0), Fetched::Here(state(0, 8 * KIB)));
    bench.put(9, KIB);
}

#[derive(Clone, Debug)]
enum Op {
    Put(Id, u64),
    Fetch(Id),
    Release(Id),
    Forget(Id),
    Poll,
    Begin,
    Finish,
    Break(Fault),
}

fn op() -> impl Strategy<Value = Op> {
    let id = 0..10_u64;
    let fault = prop_oneof![
        Just(Fault::Full),
        Just(Fault::Stays),
        Just(Fault::Missing),
        Just(Fault::Short),
        Just(Fault::Flipped),
        Just(Fault::Unreadable),
    ];
    prop_oneof![
        6 => (id.clone(), 1..9 * KIB).prop_map(|(id, length)| Op::Put(id, length)),
        5 => id.clone().prop_map(Op::Fetch),
        1 => id.clone().prop_map(Op::Release),
        1 => id.prop_map(Op::Forget),
        2 => Just(Op::Poll),
        6 => Just(Op::Begin),
        6 => Just(Op::Finish),
        1 => fault.prop_map(Op::Break),
    ]
}

/// What should be kept: by id, what was put there last.
type Kept = HashMap<Id, Vec<u8>>;

fn apply(bench: &mut Bench, kept: &mut Kept, op: Op, version: u64) {
    match op {
        Op::Put(id, length) => {
            let bytes = state(id + 100 * version, length);
            bench.told = false;
            kept.remove(&id);
            if bench.spill.put(id, bytes.clone()).is_ok() {
                kept.insert(id, bytes);
            }
        }
        Op::Fetch(id) => {
            bench.told = false;
            match bench.spill.fetch(id) {
                Fetched::Here(bytes) => assert_eq!(kept.remove(&id), Some(bytes)),
                Fetched::Coming => assert!(kept.contains_key(&id)),
                Fetched::Gone => assert!(!bench.spill.contains(id)),
            }
        }
        Op::Release(id) => bench.spill.release(id),
        Op::Forget(id) => {
            bench.spill.forget(id);
            kept.remove(&id);
        }
        Op::Poll => bench.poll(),
        Op::Begin => bench.begin(),
        Op::Finish => drop(bench.finish()),
        Op::Break(fault) => bench.disk.lock().fault = Some(fault),
    }
    bench.check();
    for id in bench.spill.take_lost() {
        assert!(kept.remove(&id).is_some(), "{id} is lost and was not there");
    }
    for id in 0..10 {
        assert_eq!(bench.spill.contains(id), kept.contains_key(&id), "{id}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// Whatever is done, and whatever the disk does: the budgets hold, nothing comes back that was
    /// not put, all that goes is named, and whoever waits gets an answer.
    #[test]
    fn budgets_hold_and_nobody_waits_for_ever(
        ram in 1..20 * KIB,
        disk in 0..10 * BLOCK,
        ops in prop::collection::vec(op(), 1..150),
    ) {
        let mut bench = Bench::new(ram, disk);
        let mut kept = Kept::new();
        for (version, op) in ops.into_iter().enumerate() {
            apply(&mut bench, &mut kept, op, version as u64);
        }
        bench.disk.lock().fault = None;
        // All at once, so that they stand in line; each round answers one at least.
        for _ in 0..10 {
            let ids: Vec<_> = kept.keys().copied().collect();
            for id in ids {
                apply(&mut bench, &mut kept, Op::Fetch(id), 0);
            }
            bench.run();
            let lost = bench.spill.take_lost();
            kept.retain(|id, _| !lost.contains(id));
        }
        prop_assert!(kept.is_empty(), "{} still wait", kept.len());
        bench.run();
        prop_assert_eq!(bench.spill.ram_bytes(), 0);
        prop_assert_eq!(bench.spill.disk_bytes, 0);
        prop_assert!(bench.disk.used() <= bench.spill.desk.stuck());
    }
}
