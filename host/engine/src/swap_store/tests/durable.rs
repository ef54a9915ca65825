//! A durable store: its files outlive the fetch and the store.

use super::support::*;
use super::*;

/// A durable store with memory for four states and a disk for three files.
fn durable() -> TestStore {
    let mut test = TestStore::new(16 * KIB, 3 * BLOCK);
    test.store.durable = true;
    test
}

#[test]
fn durable_state_is_written_at_once_and_stays() {
    let mut test = durable();
    test.put(1, 4 * KIB);
    assert!(test.store.is_writing());
    assert_eq!(
        test.store.fetch(1),
        FetchResult::Pending,
        "its write goes on"
    );
    test.run();
    assert!(!test.store.is_writing());
    assert_eq!(test.store.take_written(), [1]);
    for _ in 0..3 {
        assert_eq!(test.fetch_now(1), Some(state(1, 4 * KIB)));
        test.check();
        assert_eq!((test.store.ram_bytes(), test.store.files()), (0, 1));
    }
    assert_eq!(test.store.counts().written, 1);
    test.store.remove(1);
    test.run();
    assert_eq!(test.disk.used(), 0);
}

#[test]
fn least_recently_used_file_leaves_first() {
    let mut test = durable();
    for id in 1..=3 {
        test.put(id, 4 * KIB);
        test.run();
    }
    assert_eq!(test.fetch_now(1), Some(state(1, 4 * KIB)));
    test.put(4, 4 * KIB);
    test.run();
    test.check();
    assert_eq!(test.store.take_lost(), [2]);
    assert_eq!(test.store.files(), 3);
    let refused = test.store.put(5, state(5, 4 * BLOCK));
    assert!(matches!(refused, Err(PutError::TooLarge { .. })));
    assert!(
        test.store.take_lost().is_empty(),
        "what does not fit displaces nothing"
    );
}

#[test]
fn failed_write_loses_the_state_alone() {
    let mut test = durable();
    test.disk.lock().fault = Some(Fault::Full);
    test.put(1, 4 * KIB);
    test.run();
    test.check();
    assert_eq!(test.store.take_lost(), [1]);
    assert_eq!(test.store.counts().failed_writes, 1);
    test.put(2, 4 * KIB);
    test.run();
    assert_eq!(test.store.take_written(), [2]);
}

#[test]
fn files_of_earlier_process_are_listed() {
    let mut test = durable();
    for file in 1..=4 {
        test.disk.lock().files.insert(file, state(file, 4 * KIB));
    }
    test.disk.lock().budget = 4 * BLOCK;
    test.worker = DiskWorker::new(test.disk.clone(), 3 * BLOCK).with_used(4 * BLOCK);
    for file in 1..=4 {
        test.store.add_file(100 + file, 4 * KIB, file);
    }
    assert_eq!(test.store.take_lost(), [101], "the oldest does not fit");
    assert!(test.store.rename(103, 7));
    assert!(!test.store.rename(101, 8), "it is gone");
    test.run();
    test.check();
    assert_eq!(test.fetch_now(7), Some(state(3, 4 * KIB)));
    // New files have numbers of their own, and displace the oldest.
    test.put(9, 4 * KIB);
    test.run();
    test.check();
    assert_eq!(test.store.take_lost(), [102]);
    assert_eq!(test.fetch_now(9), Some(state(9, 4 * KIB)));
    test.disk.lock().fault = Some(Fault::Unreadable);
    assert_eq!(test.fetch_now(104), None);
    assert_eq!(test.store.counts().failed_reads, 1);
}
