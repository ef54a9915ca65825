//! Snapshot files. A file is refused, or it is what the server writes for its contents. The first byte says whether the
//! checksums are made right, so that the bytes between them are read.

#![no_main]

use corral_engine::testing::SnapshotOrigin;
use corral_engine::{SnapshotLimits, Snapshots};
use libfuzzer_sys::fuzz_target;
use sha2::{Digest, Sha256};
use std::fs;
use std::sync::LazyLock;
use tempfile::TempDir;

/// Bytes of the header that its checksum covers, and of the checksums.
const COVERED: usize = 68;
const CRC: usize = 4;
const DIGEST: usize = 32;

static STORE: LazyLock<(TempDir, Snapshots)> = LazyLock::new(|| {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let limits = SnapshotLimits {
        snapshot_bytes: 1 << 20,
        owner_bytes: 1 << 22,
        owner_count: 4,
    };
    let store = Snapshots::new(dir.path(), limits).expect("the directory is ours");
    fs::create_dir(dir.path().join("owner")).expect("the directory is ours");
    (dir, store)
});

fuzz_target!(|data: &[u8]| {
    let [kind, file @ ..] = data else {
        return;
    };
    let mut file = file.to_vec();
    if kind & 1 == 1 && file.len() >= COVERED + CRC + DIGEST {
        let crc = crc32fast::hash(&file[..COVERED]);
        file[COVERED..COVERED + CRC].copy_from_slice(&crc.to_le_bytes());
    }
    if kind & 2 == 2 && file.len() >= DIGEST {
        let end = file.len() - DIGEST;
        let digest = Sha256::digest(&file[..end]);
        file[end..].copy_from_slice(&digest);
    }
    let (dir, store) = &*STORE;
    let path = dir.path().join("owner/name");
    fs::write(&path, &file).expect("the directory is ours");
    let origin = SnapshotOrigin {
        model: [b'm'; 32],
        layout: u64::from_le_bytes([b'l'; 8]),
    };
    if let Ok(contents) = store.read("owner", "name", &origin) {
        store.write("owner", "name", &contents).expect("it fits");
        assert!(fs::read(&path).expect("written") == file);
    }
});
