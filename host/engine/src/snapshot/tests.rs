use super::format::{HEADER, HEADER_CHECKSUM, MAGIC, VERSION, decode, encode, header, length};
use super::*;
use proptest::prelude::*;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;

const ORIGIN: Origin = Origin {
    model: [7; 32],
    layout: 42,
};
const LIMITS: SnapshotLimits = SnapshotLimits {
    snapshot_bytes: 10_000,
    owner_bytes: 20_000,
    owner_count: 3,
};

fn contents(tokens: u32, state: usize) -> SnapshotContent {
    SnapshotContent {
        origin: ORIGIN,
        tokens: (0..tokens).map(|i| i.wrapping_mul(77_777)).collect(),
        state: (0..state).map(|i| (i * 13) as u8).collect(),
    }
}

fn bytes_of(contents: &SnapshotContent) -> Vec<u8> {
    let mut bytes = Vec::new();
    encode(&mut bytes, contents).unwrap();
    bytes
}

fn read_bytes(bytes: &[u8]) -> Result<SnapshotContent, SnapshotError> {
    decode(&mut &*bytes, bytes.len() as u64, &ORIGIN)
}

/// A snapshot with one token and this many bytes in total.
fn sized(bytes: u64) -> SnapshotContent {
    let fixed = length(1, 0).unwrap();
    contents(1, usize::try_from(bytes - fixed).unwrap())
}

fn open(dir: &Path) -> Snapshots {
    Snapshots::new(dir, LIMITS).unwrap()
}

#[test]
fn snapshot_round_trips() {
    // Includes sizes above the hash chunk.
    for (tokens, state) in [(0, 0), (1, 0), (0, 1), (3, 100), (70_000, 600_001)] {
        let contents = contents(tokens, state);
        let bytes = bytes_of(&contents);
        assert_eq!(
            length(tokens.into(), state as u64),
            Some(bytes.len() as u64)
        );
        assert!(read_bytes(&bytes).unwrap() == contents);
    }
}

#[test]
fn every_damaged_byte_is_detected() {
    let good = bytes_of(&contents(5, 60));
    for at in 0..good.len() {
        for bit in 0..8 {
            let mut bytes = good.clone();
            bytes[at] ^= 1 << bit;
            let error = read_bytes(&bytes).unwrap_err();
            let expected = match at {
                0..8 => matches!(error, SnapshotError::NotSnapshot),
                8..12 => matches!(error, SnapshotError::Version { .. }),
                _ => matches!(error, SnapshotError::Damaged { .. }),
            };
            assert!(expected, "bit {bit} of byte {at}: {error}");
        }
        let error = read_bytes(&good[..at]).unwrap_err();
        let expected = match at {
            0..8 => matches!(error, SnapshotError::NotSnapshot),
            _ => matches!(error, SnapshotError::Damaged { .. }),
        };
        assert!(expected, "cut to {at} bytes: {error}");
    }
    let longer = [&good[..], b"x"].concat();
    assert!(matches!(
        read_bytes(&longer),
        Err(SnapshotError::Damaged { .. })
    ));
}

#[test]
fn shrinking_or_failing_file_is_damaged() {
    let good = bytes_of(&contents(5, 60));
    for left in HEADER..good.len() {
        let error = decode(&mut &good[..left], good.len() as u64, &ORIGIN).unwrap_err();
        assert!(
            matches!(error, SnapshotError::Damaged { .. }),
            "{left}: {error}"
        );
    }
    struct Failing<'a>(&'a [u8]);
    impl Read for Failing<'_> {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            if self.0.is_empty() {
                return Err(io::Error::other("a bad sector"));
            }
            self.0.read(buffer)
        }
    }
    for left in 0..good.len() {
        let mut failing = Failing(&good[..left]);
        let error = decode(&mut failing, good.len() as u64, &ORIGIN).unwrap_err();
        assert!(error.to_string().contains("bad sector"), "{left}: {error}");
    }
}

#[test]
fn each_mismatch_has_its_own_error() {
    let good = bytes_of(&contents(5, 60));
    let read = |origin| decode(&mut &*good, good.len() as u64, &origin).unwrap_err();
    let mut other = ORIGIN;
    other.model[0] = 8;
    let error = read(other);
    assert!(matches!(error, SnapshotError::Model { found, expected }
        if found == ORIGIN.model && expected == other.model));
    let text = error.to_string();
    assert!(
        text.contains("0707070707070707") && text.contains("0807070707070707"),
        "{text}"
    );
    let mut other = ORIGIN;
    other.layout = 43;
    assert!(matches!(
        read(other),
        SnapshotError::Layout {
            found: 42,
            expected: 43
        }
    ));
    let error = read_bytes(b"GGUF").unwrap_err();
    assert!(matches!(error, SnapshotError::NotSnapshot));
    let mut newer = good.clone();
    newer[8] = 9;
    let error = read_bytes(&newer).unwrap_err();
    assert!(matches!(error, SnapshotError::Version { found: 9, expected } if expected == VERSION));
}

#[test]
fn false_lengths_in_header_allocate_nothing() {
    for (tokens, state) in [
        (u64::MAX, 0),
        (0, u64::MAX),
        (u64::MAX / 4, u64::MAX),
        (1 << 62, 1 << 40),
        (1 << 40, 0),
    ] {
        let bytes = [&header(&ORIGIN, tokens, state)[..], &[0; 64]].concat();
        let error = read_bytes(&bytes).unwrap_err();
        assert!(matches!(error, SnapshotError::Damaged { .. }), "{error}");
    }
    // The file has the stated length, but memory does not suffice.
    let state = u64::MAX - 200;
    let length = length(1, state).unwrap();
    let error = decode(&mut &header(&ORIGIN, 1, state)[..], length, &ORIGIN).unwrap_err();
    assert!(matches!(error, SnapshotError::NoMemory { .. }), "{error}");
}

proptest! {
    #[test]
    fn any_bytes_are_refused(
        random in prop::collection::vec(any::<u8>(), 0..400),
        tokens in prop_oneof![0..100_u64, any::<u64>()],
        state in prop_oneof![0..400_u64, any::<u64>()],
        begin in 0..4,
    ) {
        let front = match begin {
            0 => Vec::new(),
            1 => MAGIC.to_vec(),
            2 => header(&ORIGIN, tokens, state).to_vec(),
            // The header fits the length, so only the last checksum detects the damage.
            _ if random.len() >= 32 => header(&ORIGIN, 0, random.len() as u64 - 32).to_vec(),
            _ => header(&ORIGIN, 0, 0)[..HEADER_CHECKSUM].to_vec(),
        };
        let bytes = [front, random].concat();
        prop_assert!(read_bytes(&bytes).is_err());
    }
}

#[test]
fn full_disk_is_reported_at_every_step() {
    struct Full(usize);
    impl Write for Full {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let written = bytes.len().min(self.0);
            self.0 -= written;
            match written {
                0 => Err(io::ErrorKind::StorageFull.into()),
                _ => Ok(written),
            }
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let contents = contents(5, 60);
    let all = bytes_of(&contents).len();
    for room in 0..all {
        let cause = encode(&mut Full(room), &contents).unwrap_err();
        let error = SnapshotError::io("write", Path::new("x"), cause);
        assert!(matches!(error, SnapshotError::NoSpace));
    }
    encode(&mut Full(all), &contents).unwrap();
}

#[test]
fn snapshot_outlives_its_writer_and_is_replaced_atomically() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path().join("made/here");
    let first = contents(3, 100);
    let snapshots = open(&dir);
    snapshots.write("chat", "a.b-C_1", &first).unwrap();
    drop(snapshots);

    let snapshots = open(&dir);
    assert!(snapshots.read("chat", "a.b-C_1", &ORIGIN).unwrap() == first);
    let second = contents(4, 50);
    snapshots.write("chat", "a.b-C_1", &second).unwrap();
    assert!(snapshots.read("chat", "a.b-C_1", &ORIGIN).unwrap() == second);
    let mode = |path: &Path| path.metadata().unwrap().permissions().mode() & 0o777;
    let owner = dir.join("chat");
    assert_eq!(mode(&dir), 0o700);
    assert_eq!(mode(&owner), 0o700);
    assert_eq!(mode(&owner.join("a.b-C_1")), 0o600);
    let files = fs::read_dir(&owner).unwrap().count();
    assert_eq!(files, 1, "nothing else is left");

    snapshots.write("chat", "0", &first).unwrap();
    snapshots.write("other", "0", &second).unwrap();
    let sizes = file_sizes(&owner).unwrap();
    let expected = [("0", length(3, 100)), ("a.b-C_1", length(4, 50))];
    let expected = expected.map(|(name, bytes)| (name.to_owned(), bytes.unwrap()));
    assert_eq!(sizes, expected.into());
    assert!(file_sizes(&dir.join("unknown")).unwrap().is_empty());

    snapshots.remove("chat", "0").unwrap();
    let missing = |result| matches!(result, Err(SnapshotError::Missing { name }) if name == "0");
    assert!(missing(snapshots.remove("chat", "0")));
    assert!(missing(snapshots.read("chat", "0", &ORIGIN).map(drop)));
    assert!(missing(snapshots.read("unknown", "0", &ORIGIN).map(drop)));
    assert!(snapshots.read("other", "0", &ORIGIN).unwrap() == second);
}

#[test]
fn limits_are_checked_before_writing() {
    let dir = tempfile::tempdir().unwrap();
    let snapshots = open(dir.path());
    let error = snapshots.write("t", "a", &sized(10_001)).unwrap_err();
    assert!(matches!(
        error,
        SnapshotError::TooLarge {
            bytes: 10_001,
            limit: 10_000
        }
    ));
    assert!(!dir.path().join("t").exists());
    snapshots.write("t", "a", &sized(10_000)).unwrap();
    snapshots.write("t", "b", &sized(9_000)).unwrap();
    let error = snapshots.write("t", "c", &sized(1_001)).unwrap_err();
    assert!(matches!(
        error,
        SnapshotError::OverBudget {
            bytes: 1_001,
            used: 19_000,
            limit: 20_000
        }
    ));
    snapshots.write("t", "c", &sized(1_000)).unwrap();
    let error = snapshots.write("t", "d", &sized(200)).unwrap_err();
    assert!(matches!(error, SnapshotError::TooMany { limit: 3 }));
    // The replaced snapshot and other owners do not count.
    snapshots.write("t", "a", &sized(10_000)).unwrap();
    snapshots.write("u", "a", &sized(10_000)).unwrap();
    // A file above the limit is not read.
    fs::write(dir.path().join("u/b"), vec![0; 10_001]).unwrap();
    let error = snapshots.read("u", "b", &ORIGIN).unwrap_err();
    assert!(matches!(error, SnapshotError::TooLarge { .. }));
}

#[test]
fn unfinished_writes_count_toward_limits() {
    let dir = tempfile::tempdir().unwrap();
    let snapshots = open(dir.path());
    snapshots.write("t", "a", &sized(9_000)).unwrap();
    let smaller = snapshots.reserve("t", "a", 1_000).unwrap();
    let new = snapshots.reserve("t", "b", 9_000).unwrap();
    // The smaller write may fail, so the larger snapshot counts.
    let error = snapshots.write("t", "c", &sized(2_001)).unwrap_err();
    assert!(matches!(
        error,
        SnapshotError::OverBudget { used: 18_000, .. }
    ));
    let third = snapshots.reserve("t", "c", 2_000).unwrap();
    let error = snapshots.write("t", "d", &sized(200)).unwrap_err();
    assert!(matches!(error, SnapshotError::TooMany { .. }));
    drop((smaller, new, third));
    snapshots.write("t", "d", &sized(10_000)).unwrap();
}

#[test]
fn concurrent_writers_stay_within_limits() {
    let root = tempfile::tempdir().unwrap();
    let snapshots = open(root.path());
    let dir = &root.path().join("t");
    std::thread::scope(|scope| {
        for writer in 0..4_u64 {
            let snapshots = &snapshots;
            scope.spawn(move || {
                for round in 0..20 {
                    let name = format!("n{}", (writer + round) % 5);
                    let size = 4_000 + 1_000 * writer;
                    match snapshots.write("t", &name, &sized(size)) {
                        Ok(())
                        | Err(SnapshotError::OverBudget { .. } | SnapshotError::TooMany { .. }) => {
                        }
                        Err(error) => panic!("{error}"),
                    }
                    let sizes = file_sizes(dir).unwrap();
                    assert!(sizes.len() <= 3 + 4, "a listing is not one moment");
                    let _ = snapshots.read("t", &name, &ORIGIN).map(|read| {
                        assert_eq!(read.tokens.len(), 1);
                    });
                    if round % 3 == 0 {
                        let _ = snapshots.remove("t", &name);
                    }
                }
            });
        }
    });
    let sizes = file_sizes(dir).unwrap();
    assert!(sizes.len() <= 3);
    assert!(sizes.values().sum::<u64>() <= LIMITS.owner_bytes);
    let files = fs::read_dir(dir).unwrap().count();
    assert_eq!(files, sizes.len(), "no temporary file is left");
    for name in sizes.keys() {
        snapshots.read("t", name, &ORIGIN).unwrap();
    }
}

#[test]
fn crash_removes_partial_file_and_keeps_old() {
    let dir = tempfile::tempdir().unwrap();
    let snapshots = open(dir.path());
    let contents = contents(3, 100);
    snapshots.write("t", "a", &contents).unwrap();
    let half = dir.path().join("t/.writing-0");
    fs::write(&half, &bytes_of(&contents)[..50]).unwrap();
    // Running writes are not listed.
    assert_eq!(file_sizes(&dir.path().join("t")).unwrap().len(), 1);
    drop(snapshots);
    let snapshots = open(dir.path());
    assert!(!half.exists());
    assert!(snapshots.read("t", "a", &ORIGIN).unwrap() == contents);
}

#[test]
fn failed_write_keeps_old_snapshot() {
    let dir = tempfile::tempdir().unwrap();
    let snapshots = open(dir.path());
    // A directory, which a rename cannot replace.
    fs::create_dir_all(dir.path().join("t/a/b")).unwrap();
    let error = snapshots.write("t", "a", &contents(1, 1)).unwrap_err();
    assert!(matches!(error, SnapshotError::Io { .. }), "{error}");
    assert!(dir.path().join("t/a/b").exists());
    assert_eq!(fs::read_dir(dir.path().join("t")).unwrap().count(), 1);
    assert!(snapshots.lock().pending.is_empty());
    let error = snapshots.read("t", "a", &ORIGIN).unwrap_err();
    assert!(matches!(error, SnapshotError::NotSnapshot));
}

#[test]
fn dir_is_locked_by_one_process() {
    let dir = tempfile::tempdir().unwrap();
    let first = open(dir.path());
    let error = Snapshots::new(dir.path(), LIMITS).unwrap_err();
    assert!(matches!(error, SnapshotError::InUse { .. }));
    drop(first);
    open(dir.path());
}

#[test]
fn unsafe_names_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let snapshots = open(dir.path());
    let long = "x".repeat(129);
    let bad = [
        "", ".", "..", ".hidden", "a/b", "../a", "a\\b", "a b", "a\0", "ä", "a\n", &long,
    ];
    for name in bad {
        let contents = contents(1, 1);
        let results = [
            snapshots.write("t", name, &contents),
            snapshots.write(name, "a", &contents),
            snapshots.read("t", name, &ORIGIN).map(drop),
            snapshots.read(name, "a", &ORIGIN).map(drop),
            snapshots.remove("t", name),
            snapshots.remove(name, "a"),
        ];
        for (at, result) in results.into_iter().enumerate() {
            assert!(
                matches!(result, Err(SnapshotError::Name { .. })),
                "{name:?} {at}"
            );
        }
    }
    let longest = "x".repeat(128);
    snapshots
        .write(&longest, &longest, &contents(1, 1))
        .unwrap();
}

#[test]
fn digest_covers_the_whole_file() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model");
    fs::write(&path, b"abc").unwrap();
    let digest_of = |path: &Path| digest_unless(path, &AtomicBool::new(false));
    let digest = digest_of(&path).unwrap();
    assert_eq!(digest[..4], [0xba, 0x78, 0x16, 0xbf]);
    let large = vec![b'a'; 3_000_001];
    fs::write(&path, &large).unwrap();
    assert_eq!(digest_of(&path).unwrap(), *Sha256::digest(&large));
    assert!(digest_of(&dir.path().join("none")).is_err());
}

#[test]
fn digest_covers_all_parts_of_model() {
    let dir = tempfile::tempdir().unwrap();
    let first = dir.path().join("m-00001-of-00002.gguf");
    let second = dir.path().join("m-00002-of-00002.gguf");
    let parts = crate::split_files::split_files(&first);
    let digest = || digest_of_parts(&parts, &AtomicBool::new(false));
    fs::write(&first, "head").unwrap();
    let (missing, _) = digest().unwrap_err();
    assert_eq!(missing, second);
    let digests = ["weights", "other weights"].map(|weights| {
        fs::write(&second, weights).unwrap();
        digest().unwrap()
    });
    assert_ne!(digests[0], digests[1]);
    // The digest of a single file is its SHA-256.
    let single = digest_of_parts(&parts[..1], &AtomicBool::new(false)).unwrap();
    assert_eq!(single, *Sha256::digest("head"));
}
