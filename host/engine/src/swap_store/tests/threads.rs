//! Tests with a real thread and real directories.

use super::super::*;
use super::support::{FakeDisk, Fault, KIB, check, state};
use crate::engine_waker::EngineWaker;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::sync::mpsc::{Receiver, sync_channel};
use std::time::{Duration, Instant};

/// Creates a store with a real directory and thread. The channel receives wakes.
fn real(base: &std::path::Path, ram: u64, disk: u64) -> (SwapStore, Receiver<()>) {
    let (sender, receiver) = sync_channel(64);
    let budget = SwapBudget {
        ram,
        disk: Some((base.to_owned(), disk)),
    };
    let waker = EngineWaker::new(move || sender.try_send(()).unwrap());
    (SwapStore::new(budget, waker).unwrap(), receiver)
}

fn wait_for(store: &mut SwapStore, woken: &Receiver<()>, id: Id) -> Option<Vec<u8>> {
    loop {
        match store.fetch(id) {
            FetchResult::Ready(bytes) => return Some(bytes),
            FetchResult::Missing => return None,
            FetchResult::Pending => woken.recv_timeout(Duration::from_secs(60)).unwrap(),
        }
    }
}

fn settle(store: &mut SwapStore, woken: &Receiver<()>) {
    loop {
        store.poll();
        if store.writes.is_empty() && store.reads.is_empty() {
            return;
        }
        woken.recv_timeout(Duration::from_secs(60)).unwrap();
    }
}

fn subdirectories(base: &std::path::Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(base).unwrap();
    let paths = entries.map(|entry| entry.unwrap().path());
    paths.filter(|path| path.is_dir()).collect()
}

#[test]
fn files_are_private_and_removed_on_exit() {
    use std::os::unix::fs::PermissionsExt;
    let base = tempfile::tempdir().unwrap();
    let (mut store, woken) = real(base.path(), 64 * KIB, 1024 * KIB);
    for id in 0..20 {
        store.put(id, state(id, 16 * KIB + id)).unwrap();
        settle(&mut store, &woken);
    }
    let directory = &subdirectories(base.path())[0];
    let mode = |path: &std::path::Path| path.metadata().unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(directory), 0o700);
    let files = std::fs::read_dir(directory).unwrap();
    let files: Vec<_> = files.map(|file| file.unwrap().path()).collect();
    assert!(files.len() > 10 && files.iter().all(|file| mode(file) == 0o600));
    for id in 0..20 {
        let bytes = wait_for(&mut store, &woken, id);
        assert_eq!(bytes, Some(state(id, 16 * KIB + id)));
    }
    assert!(store.take_lost().is_empty());
    drop(store);
    assert_eq!(subdirectories(base.path()), Vec::<PathBuf>::new());
}

#[test]
fn damaged_files_lose_their_states() {
    let base = tempfile::tempdir().unwrap();
    let (mut store, woken) = real(base.path(), 16 * KIB, 1024 * KIB);
    for id in 0..3 {
        store.put(id, state(id, 16 * KIB)).unwrap();
        settle(&mut store, &woken);
    }
    let directory = subdirectories(base.path()).remove(0);
    let file = |number: u64| directory.join(format!("{number}.state"));
    std::fs::remove_file(file(1)).unwrap();
    std::fs::write(file(2), b"short").unwrap();
    let mut bytes = std::fs::read(file(3)).unwrap();
    bytes[5000] ^= 1;
    std::fs::write(file(3), bytes).unwrap();
    for id in 0..3 {
        assert_eq!(wait_for(&mut store, &woken, id), None, "{id}");
    }
    assert_eq!(store.take_lost(), [0, 1, 2]);
}

#[test]
fn only_directories_of_dead_processes_are_removed() {
    let base = tempfile::tempdir().unwrap();
    let dead = base.path().join("corral-swap-1-0");
    std::fs::create_dir(&dead).unwrap();
    std::fs::write(dead.join("lock"), b"").unwrap();
    std::fs::write(dead.join("1.state"), b"leftover").unwrap();
    std::fs::create_dir(base.path().join("corral-swap-2-0")).unwrap();
    std::fs::create_dir(base.path().join("not-ours")).unwrap();
    let (mut first, woken) = real(base.path(), 16 * KIB, 1024 * KIB);
    assert_eq!(
        subdirectories(base.path()).len(),
        2,
        "not-ours and the new one"
    );
    first.put(1, state(1, 16 * KIB)).unwrap();
    settle(&mut first, &woken);
    // Locks belong to open files, so a second store acts like another process.
    let (second, _woken) = real(base.path(), 16 * KIB, 1024 * KIB);
    assert_eq!(subdirectories(base.path()).len(), 3);
    let bytes = wait_for(&mut first, &woken, 1);
    assert_eq!(bytes, Some(state(1, 16 * KIB)));
    drop(first);
    drop(second);
    assert_eq!(subdirectories(base.path()).len(), 1);
}

/// A disk that blocks writes until the test releases them.
struct SlowDisk(Receiver<()>, FakeDisk);

impl Disk for SlowDisk {
    fn write(&mut self, file: u64, bytes: &[u8]) -> io::Result<()> {
        // Returns when the test drops the sender.
        let _ = self.0.recv();
        self.1.write(file, bytes)
    }

    fn read(&mut self, file: u64, length: u64) -> io::Result<Vec<u8>> {
        self.1.read(file, length)
    }

    fn remove(&mut self, file: u64) -> io::Result<()> {
        self.1.remove(file)
    }
}

#[test]
fn hanging_disk_does_not_block_the_store() {
    let (release, held) = sync_channel(1);
    let disk = FakeDisk::new(1024 * KIB);
    let slow = SlowDisk(held, disk.clone());
    let mut store =
        SwapStore::with_disk(64 * KIB, 1024 * KIB, slow, EngineWaker::default()).unwrap();
    for id in 0..1000 {
        store.put(id, state(id, KIB)).unwrap();
        assert!(store.ram_bytes() <= 64 * KIB);
    }
    assert_eq!(store.take_lost().len(), 1000 - 64);
    assert!(store.writes.len() > 10, "many are queued");
    let disk_queue = store.disk_queue.clone();
    let releaser = std::thread::spawn(move || {
        let until = Instant::now() + Duration::from_secs(60);
        while !disk_queue.is_stopped() && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(1));
        }
        drop(release);
    });
    drop(store);
    releaser.join().unwrap();
    let files = disk.lock().files.len();
    assert!(files <= 1, "{files} were written, of all that were queued");
}

/// The property test with a real thread, for interleavings that steps cannot produce.
#[test]
fn budgets_hold_and_fetches_end_with_thread() {
    let disk = FakeDisk::new(60 * KIB);
    let (sender, woken) = sync_channel(64);
    let waker = EngineWaker::new(move || sender.try_send(()).unwrap());
    let mut store = SwapStore::with_disk(32 * KIB, 60 * KIB, disk.clone(), waker).unwrap();
    let mut kept = HashMap::new();
    let mut random = ChaCha8Rng::seed_from_u64(1);
    for round in 0..20_000 {
        let id = random.random_range(0..24);
        match random.random_range(0..16) {
            0..7 => {
                let bytes = state(id + round, random.random_range(1..=6 * KIB));
                kept.remove(&id);
                if store.put(id, bytes.clone()).is_ok() {
                    kept.insert(id, bytes);
                }
            }
            7..13 => match store.fetch(id) {
                FetchResult::Ready(bytes) => assert!(kept.remove(&id) == Some(bytes)),
                FetchResult::Pending => assert!(kept.contains_key(&id)),
                FetchResult::Missing => assert!(!store.contains(id)),
            },
            13 => store.cancel_fetch(id),
            14 => {
                store.remove(id);
                kept.remove(&id);
            }
            _ => {
                let faults = [Fault::Full, Fault::Stays, Fault::Missing, Fault::Flipped];
                disk.lock().fault = faults.get(random.random_range(0..40)).copied();
            }
        }
        while woken.try_recv().is_ok() {}
        // Ensures progress on a busy machine.
        if round % 32 == 0 {
            settle(&mut store, &woken);
        }
        check(&store, &disk);
        for id in store.take_lost() {
            assert!(kept.remove(&id).is_some());
        }
    }
    disk.lock().fault = None;
    // All in turn: a state that was read for an earlier fetch holds its room until it is fetched again.
    loop {
        kept.retain(|&id, bytes| match store.fetch(id) {
            FetchResult::Ready(found) => {
                assert!(found == *bytes);
                false
            }
            FetchResult::Missing => false,
            FetchResult::Pending => true,
        });
        if kept.is_empty() {
            break;
        }
        woken.recv_timeout(Duration::from_secs(60)).unwrap();
    }
    assert_eq!(store.ram_bytes(), store.writing_bytes);
    let counts = store.counts();
    assert!(counts.written > 100 && counts.read > 100, "{counts:?}");
}
