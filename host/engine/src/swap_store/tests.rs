mod bench;
mod threads;

use super::*;
use bench::{BLOCK, Bench, Fault, KIB, state};
use proptest::prelude::*;

#[test]
fn oldest_states_are_lost_without_disk() {
    let mut bench = Bench::new(10 * KIB, 0);
    for id in 0..4 {
        bench.put(id, 3 * KIB);
        bench.check();
    }
    assert_eq!(bench.store.take_lost(), [0]);
    bench.put(4, 6 * KIB);
    assert_eq!(bench.store.take_lost(), [1, 2]);
    assert!(bench.store.take_lost().is_empty());
    assert_eq!(bench.store.fetch(1), Fetched::Missing);
    assert_eq!(bench.store.fetch(3), Fetched::Ready(state(3, 3 * KIB)));
    assert_eq!(bench.store.fetch(3), Fetched::Missing);
    assert_eq!(bench.store.ram_bytes(), 6 * KIB);
    assert_eq!(bench.store.counts().lost, 3);
}

#[test]
fn replaced_state_is_not_lost() {
    let mut bench = Bench::new(4 * KIB, 0);
    bench.put(1, 3 * KIB);
    bench.put(2, 3 * KIB);
    bench.put(1, KIB);
    assert!(bench.store.take_lost().is_empty(), "it is there again");
    bench.put(2, 3 * KIB);
    assert_eq!(bench.store.ram_bytes(), 4 * KIB);
    bench.put(3, KIB);
    assert_eq!(bench.store.take_lost(), [1]);
}

#[test]
fn oversized_state_is_refused_without_losses() {
    let mut bench = Bench::new(8 * KIB, 100 * KIB);
    bench.put(1, 8 * KIB);
    bench.run();
    let refused = bench.store.put(2, state(2, 9 * KIB)).unwrap_err();
    let expected = PutError::TooLarge {
        bytes: 9 * KIB,
        limit: 8 * KIB,
    };
    assert_eq!(refused, expected);
    assert!(bench.store.contains(1) && !bench.store.contains(2));
    assert!(bench.store.take_lost().is_empty());
    assert_eq!(bench.store.counts().refused, 1);
}

#[test]
fn oldest_states_go_to_disk_then_are_lost() {
    let mut bench = Bench::new(16 * KIB, 3 * BLOCK);
    for id in 0..12 {
        bench.put(id, 4 * KIB);
        bench.run();
        bench.check();
    }
    // A quarter of the memory is free; the disk holds three files.
    assert_eq!(bench.store.ram_bytes(), 12 * KIB);
    assert_eq!(bench.store.disk_bytes(), 3 * BLOCK);
    assert_eq!(bench.store.take_lost(), [0, 1, 2, 3, 4, 5]);
    for id in 6..12 {
        assert!(bench.fetch_now(id) == Some(state(id, 4 * KIB)), "{id}");
        bench.check();
    }
    bench.run();
    assert_eq!((bench.store.ram_bytes(), bench.store.disk_bytes()), (0, 0));
    assert_eq!(bench.disk.used(), 0);
    assert_eq!(bench.store.counts().lost, 6);
    assert!(bench.store.counts().read >= 3);
}

#[test]
fn queued_write_is_fetched_without_disk() {
    let mut bench = Bench::new(16 * KIB, 100 * KIB);
    for id in 0..4 {
        bench.put(id, 4 * KIB);
    }
    assert!(matches!(
        bench.store.entries[&0].location,
        Location::Writing { .. }
    ));
    assert_eq!(bench.store.fetch(0), Fetched::Ready(state(0, 4 * KIB)));
    bench.check();
    assert_eq!(bench.store.disk_bytes(), 0);
}

#[test]
fn running_write_returns_its_state_when_done() {
    for fault in [None, Some(Fault::Full)] {
        let mut bench = Bench::new(24 * KIB, 100 * KIB);
        bench.put(0, 20 * KIB);
        bench.begin();
        assert_eq!(bench.store.fetch(0), Fetched::Pending);
        bench.disk.lock().fault = fault;
        bench.finish();
        assert!(bench.woken);
        assert_eq!(bench.store.fetch(0), Fetched::Ready(state(0, 20 * KIB)));
        bench.woken = false;
        bench.check();
        bench.run();
        let files = bench.disk.lock().files.len();
        assert_eq!(files, 0, "its file is removed");
        assert_eq!(bench.store.counts().read, 0);
    }
}

#[test]
fn each_disk_failure_loses_state_and_wakes() {
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
        assert_eq!(bench.store.fetch(7), Fetched::Pending);
        bench.disk.lock().fault = Some(fault);
        bench.begin();
        bench.finish();
        assert!(bench.woken, "{fault:?}");
        assert_eq!(bench.store.fetch(7), Fetched::Missing, "{fault:?}");
        assert_eq!(bench.store.take_lost(), [7]);
        bench.woken = false;
        bench.run();
        assert_eq!(bench.disk.used(), 0, "{fault:?}");
    }
    let mut bench = Bench::new(4 * KIB, 100 * KIB);
    bench.disk.lock().fault = Some(Fault::Full);
    bench.put(7, 4 * KIB);
    bench.run();
    assert_eq!(bench.store.take_lost(), [7]);
    assert_eq!(bench.disk.used(), 0, "half a file is removed");
}

#[test]
fn unremovable_file_counts_toward_budget() {
    let mut bench = Bench::new(4 * KIB, BLOCK);
    bench.put(1, KIB);
    bench.put(2, 4 * KIB);
    bench.run();
    assert_eq!(bench.store.take_lost(), [1]);
    bench.disk.lock().fault = Some(Fault::Stays);
    bench.store.forget(2);
    bench.run();
    assert_eq!(bench.store.disk_bytes(), BLOCK);
    // The next write retries the removal.
    bench.put(3, 4 * KIB);
    bench.run();
    assert_eq!(bench.store.disk_bytes(), BLOCK);
    assert_eq!(bench.fetch_now(3), Some(state(3, 4 * KIB)));
}

#[test]
fn read_states_stay_until_fetched() {
    let mut bench = Bench::new(16 * KIB, 100 * KIB);
    for id in 0..8 {
        bench.put(id, 4 * KIB);
        bench.run();
    }
    for id in [2, 0, 1, 3] {
        assert_eq!(bench.store.fetch(id), Fetched::Pending);
    }
    bench.run();
    bench.check();
    let ready = |bench: &Bench| -> Vec<Id> {
        let entries = bench.store.entries.iter();
        let ready = entries.filter(|(_, e)| matches!(e.location, Location::Ready { .. }));
        let mut ids: Vec<_> = ready.map(|(id, _)| *id).collect();
        ids.sort_unstable();
        ids
    };
    assert_eq!(ready(&bench), [0, 2], "half of the memory, in order");
    // More puts do not evict them.
    for id in 20..30 {
        bench.put(id, 4 * KIB);
        bench.run();
        bench.check();
    }
    assert_eq!(ready(&bench), [0, 2]);
    assert_eq!(bench.store.fetch(2), Fetched::Ready(state(2, 4 * KIB)));
    bench.run();
    assert_eq!(ready(&bench), [0, 1]);
    bench.store.release(0);
    bench.run();
    assert_eq!(ready(&bench), [1, 3]);
    assert_eq!(bench.fetch_now(1), Some(state(1, 4 * KIB)));
    assert_eq!(bench.fetch_now(0), Some(state(0, 4 * KIB)));
}

#[test]
fn pending_fetch_refuses_puts() {
    let mut bench = Bench::new(8 * KIB, 100 * KIB);
    for id in 0..2 {
        bench.put(id, 8 * KIB);
        bench.run();
    }
    assert_eq!(bench.store.fetch(0), Fetched::Pending);
    bench.run();
    let refused = bench.store.put(9, state(9, KIB));
    assert_eq!(refused, Err(PutError::Busy));
    assert_eq!(bench.store.fetch(0), Fetched::Ready(state(0, 8 * KIB)));
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

/// Expected states by id.
type Kept = HashMap<Id, Vec<u8>>;

fn apply(bench: &mut Bench, kept: &mut Kept, op: Op, version: u64) {
    match op {
        Op::Put(id, length) => {
            let bytes = state(id + 100 * version, length);
            bench.woken = false;
            kept.remove(&id);
            if bench.store.put(id, bytes.clone()).is_ok() {
                kept.insert(id, bytes);
            }
        }
        Op::Fetch(id) => {
            bench.woken = false;
            match bench.store.fetch(id) {
                Fetched::Ready(bytes) => assert_eq!(kept.remove(&id), Some(bytes)),
                Fetched::Pending => assert!(kept.contains_key(&id)),
                Fetched::Missing => assert!(!bench.store.contains(id)),
            }
        }
        Op::Release(id) => bench.store.release(id),
        Op::Forget(id) => {
            bench.store.forget(id);
            kept.remove(&id);
        }
        Op::Poll => bench.poll(),
        Op::Begin => bench.begin(),
        Op::Finish => drop(bench.finish()),
        Op::Break(fault) => bench.disk.lock().fault = Some(fault),
    }
    bench.check();
    for id in bench.store.take_lost() {
        assert!(kept.remove(&id).is_some(), "{id} is lost and was not there");
    }
    for id in 0..10 {
        assert_eq!(bench.store.contains(id), kept.contains_key(&id), "{id}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// Under any operations and disk faults, the budgets hold, fetches return only stored states,
    /// every loss is reported and every fetch ends.
    #[test]
    fn budgets_hold_and_fetches_end(
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
        // Fetch all at once, so that they queue. Each round answers at least one.
        for _ in 0..10 {
            let ids: Vec<_> = kept.keys().copied().collect();
            for id in ids {
                apply(&mut bench, &mut kept, Op::Fetch(id), 0);
            }
            bench.run();
            let lost = bench.store.take_lost();
            kept.retain(|id, _| !lost.contains(id));
        }
        prop_assert!(kept.is_empty(), "{} fetches are pending", kept.len());
        bench.run();
        prop_assert_eq!(bench.store.ram_bytes(), 0);
        prop_assert_eq!(bench.store.disk_bytes, 0);
        prop_assert!(bench.disk.used() <= bench.store.disk_queue.stuck());
    }
}
