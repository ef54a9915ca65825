mod durable;
mod support;
mod threads;

use super::*;
use proptest::prelude::*;
use support::{BLOCK, Fault, KIB, TestStore, state};

#[test]
fn oldest_states_are_lost_without_disk() {
    let mut test = TestStore::new(10 * KIB, 0);
    for id in 0..4 {
        test.put(id, 3 * KIB);
        test.check();
    }
    assert_eq!(test.store.take_lost(), [0]);
    test.put(4, 6 * KIB);
    assert_eq!(test.store.take_lost(), [1, 2]);
    assert!(test.store.take_lost().is_empty());
    assert_eq!(test.store.fetch(1), FetchResult::Missing);
    assert_eq!(test.store.fetch(3), FetchResult::Ready(state(3, 3 * KIB)));
    assert_eq!(test.store.fetch(3), FetchResult::Missing);
    assert_eq!(test.store.ram_bytes(), 6 * KIB);
    assert_eq!(test.store.counts().lost, 3);
}

#[test]
fn states_move_to_disk_on_request() {
    let mut test = TestStore::new(16 * KIB, 2 * BLOCK);
    for id in 0..3 {
        test.put(id, 4 * KIB);
    }
    test.run();
    assert_eq!(test.store.ram_bytes(), 12 * KIB);
    test.store.move_to_disk(true);
    test.run();
    test.check();
    // The disk has room for two, and none is lost for the third.
    assert_eq!(test.store.ram_bytes(), 4 * KIB);
    assert_eq!(test.store.disk_bytes(), 2 * BLOCK);
    assert!(test.store.take_lost().is_empty());
    test.store.move_to_disk(false);
    for id in 0..3 {
        assert!(test.fetch_now(id) == Some(state(id, 4 * KIB)), "{id}");
    }
    let mut test = TestStore::new(16 * KIB, 0);
    test.put(0, 4 * KIB);
    test.store.move_to_disk(true);
    assert_eq!(test.store.ram_bytes(), 4 * KIB, "there is no disk");
}

#[test]
fn failed_move_keeps_states_and_stops() {
    let mut test = TestStore::new(16 * KIB, 4 * BLOCK);
    for id in 0..3 {
        test.put(id, 4 * KIB);
    }
    test.run();
    test.disk.lock().fault = Some(Fault::Full);
    test.store.move_to_disk(true);
    test.run();
    test.check();
    assert_eq!(test.store.ram_bytes(), 12 * KIB);
    assert_eq!(test.store.counts().written, 0, "it has stopped");
    assert!(test.store.take_lost().is_empty());
    test.store.move_to_disk(true);
    test.run();
    test.check();
    assert_eq!(test.store.ram_bytes(), 0);
    for id in 0..3 {
        assert!(test.fetch_now(id) == Some(state(id, 4 * KIB)), "{id}");
    }
}

#[test]
fn replaced_state_is_not_lost() {
    let mut test = TestStore::new(4 * KIB, 0);
    test.put(1, 3 * KIB);
    test.put(2, 3 * KIB);
    test.put(1, KIB);
    assert!(test.store.take_lost().is_empty(), "it is there again");
    test.put(2, 3 * KIB);
    assert_eq!(test.store.ram_bytes(), 4 * KIB);
    test.put(3, KIB);
    assert_eq!(test.store.take_lost(), [1]);
}

#[test]
fn oversized_state_is_refused_without_losses() {
    let mut test = TestStore::new(8 * KIB, 100 * KIB);
    test.put(1, 8 * KIB);
    test.run();
    let refused = test.store.put(2, state(2, 9 * KIB)).unwrap_err();
    let expected = PutError::TooLarge {
        bytes: 9 * KIB,
        limit: 8 * KIB,
    };
    assert_eq!(refused, expected);
    assert!(test.store.contains(1) && !test.store.contains(2));
    assert!(test.store.take_lost().is_empty());
    assert_eq!(test.store.counts().refused, 1);
}

#[test]
fn oldest_states_go_to_disk_then_are_lost() {
    let mut test = TestStore::new(16 * KIB, 3 * BLOCK);
    for id in 0..12 {
        test.put(id, 4 * KIB);
        test.run();
        test.check();
    }
    // A quarter of the memory is free; the disk holds three files.
    assert_eq!(test.store.ram_bytes(), 12 * KIB);
    assert_eq!(test.store.disk_bytes(), 3 * BLOCK);
    assert_eq!(test.store.take_lost(), [0, 1, 2, 3, 4, 5]);
    for id in 6..12 {
        assert!(test.fetch_now(id) == Some(state(id, 4 * KIB)), "{id}");
        test.check();
    }
    test.run();
    assert_eq!((test.store.ram_bytes(), test.store.disk_bytes()), (0, 0));
    assert_eq!(test.disk.used(), 0);
    assert_eq!(test.store.counts().lost, 6);
    assert!(test.store.counts().read >= 3);
}

#[test]
fn queued_write_is_fetched_without_disk() {
    let mut test = TestStore::new(16 * KIB, 100 * KIB);
    for id in 0..4 {
        test.put(id, 4 * KIB);
    }
    assert!(matches!(
        test.store.entries[&0].location,
        Location::Writing { .. }
    ));
    assert_eq!(test.store.fetch(0), FetchResult::Ready(state(0, 4 * KIB)));
    test.check();
    assert_eq!(test.store.disk_bytes(), 0);
}

#[test]
fn running_write_returns_its_state_when_done() {
    for fault in [None, Some(Fault::Full)] {
        let mut test = TestStore::new(24 * KIB, 100 * KIB);
        test.put(0, 20 * KIB);
        test.begin();
        assert_eq!(test.store.fetch(0), FetchResult::Pending);
        test.disk.lock().fault = fault;
        test.finish();
        assert!(test.woken);
        assert_eq!(test.store.fetch(0), FetchResult::Ready(state(0, 20 * KIB)));
        test.woken = false;
        test.check();
        test.run();
        let files = test.disk.lock().files.len();
        assert_eq!(files, 0, "its file is removed");
        assert_eq!(test.store.counts().read, 0);
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
        let mut test = TestStore::new(4 * KIB, 100 * KIB);
        test.put(7, 4 * KIB);
        test.run();
        assert_eq!(test.store.fetch(7), FetchResult::Pending);
        test.disk.lock().fault = Some(fault);
        test.begin();
        test.finish();
        assert!(test.woken, "{fault:?}");
        assert_eq!(test.store.fetch(7), FetchResult::Missing, "{fault:?}");
        assert_eq!(test.store.take_lost(), [7]);
        test.woken = false;
        test.run();
        assert_eq!(test.disk.used(), 0, "{fault:?}");
    }
    let mut test = TestStore::new(4 * KIB, 100 * KIB);
    test.disk.lock().fault = Some(Fault::Full);
    test.put(7, 4 * KIB);
    test.run();
    assert_eq!(test.store.take_lost(), [7]);
    assert_eq!(test.disk.used(), 0, "half a file is removed");
}

#[test]
fn unremovable_file_counts_toward_budget() {
    let mut test = TestStore::new(4 * KIB, BLOCK);
    test.put(1, KIB);
    test.put(2, 4 * KIB);
    test.run();
    assert_eq!(test.store.take_lost(), [1]);
    test.disk.lock().fault = Some(Fault::Stays);
    test.store.remove(2);
    test.run();
    assert_eq!(test.store.disk_bytes(), BLOCK);
    // The next write retries the removal.
    test.put(3, 4 * KIB);
    test.run();
    assert_eq!(test.store.disk_bytes(), BLOCK);
    assert_eq!(test.fetch_now(3), Some(state(3, 4 * KIB)));
}

#[test]
fn read_states_stay_until_fetched() {
    let mut test = TestStore::new(16 * KIB, 100 * KIB);
    for id in 0..8 {
        test.put(id, 4 * KIB);
        test.run();
    }
    for id in [2, 0, 1, 3] {
        assert_eq!(test.store.fetch(id), FetchResult::Pending);
    }
    test.run();
    test.check();
    let ready = |test: &TestStore| -> Vec<Id> {
        let entries = test.store.entries.iter();
        let ready = entries.filter(|(_, e)| matches!(e.location, Location::Ready { .. }));
        let mut ids: Vec<_> = ready.map(|(id, _)| *id).collect();
        ids.sort_unstable();
        ids
    };
    assert_eq!(ready(&test), [0, 2], "half of the memory, in order");
    // More puts do not evict them.
    for id in 20..30 {
        test.put(id, 4 * KIB);
        test.run();
        test.check();
    }
    assert_eq!(ready(&test), [0, 2]);
    assert_eq!(test.store.fetch(2), FetchResult::Ready(state(2, 4 * KIB)));
    test.run();
    assert_eq!(ready(&test), [0, 1]);
    test.store.cancel_fetch(0);
    test.run();
    assert_eq!(ready(&test), [1, 3]);
    assert_eq!(test.fetch_now(1), Some(state(1, 4 * KIB)));
    assert_eq!(test.fetch_now(0), Some(state(0, 4 * KIB)));
}

#[test]
fn pending_fetch_refuses_puts() {
    let mut test = TestStore::new(8 * KIB, 100 * KIB);
    for id in 0..2 {
        test.put(id, 8 * KIB);
        test.run();
    }
    assert_eq!(test.store.fetch(0), FetchResult::Pending);
    test.run();
    let refused = test.store.put(9, state(9, KIB));
    assert_eq!(refused, Err(PutError::Busy));
    assert_eq!(test.store.fetch(0), FetchResult::Ready(state(0, 8 * KIB)));
    test.put(9, KIB);
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

fn apply(test: &mut TestStore, kept: &mut Kept, op: Op, version: u64) {
    match op {
        Op::Put(id, length) => {
            let bytes = state(id + 100 * version, length);
            test.woken = false;
            kept.remove(&id);
            if test.store.put(id, bytes.clone()).is_ok() {
                kept.insert(id, bytes);
            }
        }
        Op::Fetch(id) => {
            test.woken = false;
            match test.store.fetch(id) {
                FetchResult::Ready(bytes) => {
                    assert_eq!(kept.get(&id), Some(&bytes));
                    // A durable store keeps what is on disk.
                    if !test.store.contains(id) {
                        kept.remove(&id);
                    }
                }
                FetchResult::Pending => assert!(kept.contains_key(&id)),
                FetchResult::Missing => assert!(!test.store.contains(id)),
            }
        }
        Op::Release(id) => test.store.cancel_fetch(id),
        Op::Forget(id) => {
            test.store.remove(id);
            kept.remove(&id);
        }
        Op::Poll => test.poll(),
        Op::Begin => test.begin(),
        Op::Finish => drop(test.finish()),
        Op::Break(fault) => test.disk.lock().fault = Some(fault),
    }
    test.check();
    for id in test.store.take_lost() {
        assert!(kept.remove(&id).is_some(), "{id} is lost and was not there");
    }
    for id in 0..10 {
        assert_eq!(test.store.contains(id), kept.contains_key(&id), "{id}");
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
        durable: bool,
        ops in prop::collection::vec(op(), 1..150),
    ) {
        let mut test = TestStore::new(ram, disk);
        test.store.durable = durable;
        let mut kept = Kept::new();
        for (version, op) in ops.into_iter().enumerate() {
            apply(&mut test, &mut kept, op, version as u64);
        }
        test.disk.lock().fault = None;
        // Fetch all at once, so that they queue. Each round answers at least one.
        for _ in 0..10 {
            let ids: Vec<_> = kept.keys().copied().collect();
            for id in ids {
                test.woken = false;
                if let FetchResult::Ready(bytes) = test.store.fetch(id) {
                    prop_assert_eq!(kept.remove(&id), Some(bytes));
                    test.store.remove(id);
                }
                test.check();
            }
            test.run();
            let lost = test.store.take_lost();
            kept.retain(|id, _| !lost.contains(id));
        }
        prop_assert!(kept.is_empty(), "{} fetches are pending", kept.len());
        test.run();
        prop_assert_eq!(test.store.ram_bytes(), 0);
        prop_assert_eq!(test.store.disk_bytes, 0);
        prop_assert!(test.disk.used() <= test.store.disk_queue.stuck());
    }
}
