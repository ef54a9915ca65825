//! Swapped-out states in files that are damaged at any time. Each pair of bytes is an operation. A state comes back as it
//! was put, or is lost and named once. The bytes are also read as the file of a prefix, which is refused or has a state.

#![no_main]

use corral_engine::testing::{
    EngineWaker, FetchResult, SnapshotOrigin, SwapBudget, SwapStore, prefix_file_has_state,
};
use libfuzzer_sys::fuzz_target;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, sync_channel};
use std::time::Duration;

const RAM: u64 = 32 << 10;
const DISK: u64 = 60 << 10;
/// Limit of a wait for the disk's thread.
const TIMEOUT: Duration = Duration::from_secs(15);

/// The files of states, in the only private directory.
fn files(base: &Path) -> Vec<PathBuf> {
    let list = |dir: &Path| fs::read_dir(dir).into_iter().flatten().flatten();
    let dirs = list(base).filter(|entry| entry.path().is_dir());
    let mut files: Vec<_> = dirs
        .flat_map(|dir| list(&dir.path()).map(|file| file.path()))
        .filter(|file| file.extension().is_some_and(|end| end == "state"))
        .collect();
    files.sort();
    files
}

fn damage(file: &Path, how: u8) {
    let Ok(mut bytes) = fs::read(file) else {
        return;
    };
    // The disk's thread may remove the file meanwhile.
    let _ = match how % 5 {
        0 => fs::remove_file(file),
        1 => fs::write(file, &bytes[..bytes.len() / 2]),
        2 => fs::write(file, [&bytes[..], b"more"].concat()),
        3 => fs::remove_file(file).and_then(|()| fs::create_dir(file)),
        _ => {
            if let Some(byte) = bytes.last_mut() {
                *byte ^= 4;
            }
            fs::write(file, bytes)
        }
    };
}

/// Fetches a state and waits for it. Releases the other pending ones, which could block it.
fn wait_for(
    store: &mut SwapStore,
    woken: &Receiver<()>,
    pending: &mut BTreeSet<u64>,
    id: u64,
) -> Option<Vec<u8>> {
    pending.remove(&id);
    for other in std::mem::take(pending) {
        store.cancel_fetch(other);
    }
    loop {
        match store.fetch(id) {
            FetchResult::Ready(bytes) => return Some(bytes),
            FetchResult::Missing => return None,
            FetchResult::Pending => woken
                .recv_timeout(TIMEOUT)
                .expect("the disk's thread answers"),
        }
    }
}

/// Bytes of the header of a file of a prefix that its checksum covers.
const COVERED: usize = 68;

/// Reads the bytes as the file of a prefix, with the checksum of its header made right.
fn check_prefix_file(data: &[u8]) {
    let mut file = data.to_vec();
    if file.len() >= COVERED + 4 {
        let checksum = crc32fast::hash(&file[..COVERED]);
        file[COVERED..COVERED + 4].copy_from_slice(&checksum.to_le_bytes());
    }
    let origin = SnapshotOrigin {
        model: [b'm'; 32],
        layout: u64::from_le_bytes([b'l'; 8]),
    };
    assert_ne!(prefix_file_has_state(&file, &origin), Some(false));
}

fuzz_target!(|data: &[u8]| {
    check_prefix_file(data);
    let base = tempfile::tempdir().expect("a temporary directory");
    let (sender, woken) = sync_channel(64);
    let budget = SwapBudget {
        ram: RAM,
        disk: Some((base.path().to_owned(), DISK)),
    };
    let waker = EngineWaker::new(move || {
        let _ = sender.try_send(());
    });
    let mut store = SwapStore::new(budget, waker).expect("the directory is ours");
    let mut stored: BTreeMap<u64, Vec<u8>> = BTreeMap::new();
    let mut pending = BTreeSet::new();
    let (operations, _) = data.as_chunks::<2>();
    for (number, [what, size]) in operations.iter().take(512).enumerate() {
        let id = u64::from(what >> 4);
        let mut missing = None;
        match what % 8 {
            0..3 => {
                stored.remove(&id);
                let bytes = vec![number as u8; usize::from(*size) * 37];
                if store.put(id, bytes.clone()).is_ok() {
                    stored.insert(id, bytes);
                }
            }
            3 => match store.fetch(id) {
                FetchResult::Ready(bytes) => assert_eq!(stored.remove(&id), Some(bytes)),
                FetchResult::Pending => {
                    assert!(stored.contains_key(&id));
                    pending.insert(id);
                }
                FetchResult::Missing => missing = Some(id),
            },
            4 => match wait_for(&mut store, &woken, &mut pending, id) {
                Some(bytes) => assert_eq!(stored.remove(&id), Some(bytes)),
                None => missing = Some(id),
            },
            5 => {
                store.cancel_fetch(id);
                pending.remove(&id);
            }
            6 => {
                store.remove(id);
                stored.remove(&id);
            }
            _ => {
                let files = files(base.path());
                if !files.is_empty() {
                    damage(&files[usize::from(id as u8) % files.len()], *size);
                }
            }
        }
        assert!(store.ram_bytes() <= RAM);
        for id in store.take_lost() {
            assert!(
                stored.remove(&id).is_some(),
                "{id} was not stored, or is named twice"
            );
        }
        assert!(
            missing.is_none_or(|id| !stored.contains_key(&id)),
            "a lost state is named"
        );
    }
    for (id, bytes) in stored {
        let found = wait_for(&mut store, &woken, &mut pending, id);
        assert!(found.is_none_or(|found| found == bytes));
    }
});
