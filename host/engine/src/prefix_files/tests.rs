use super::*;
use proptest::prelude::*;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;
use tempfile::TempDir;

fn origin(model: u8) -> Origin {
    Origin {
        model: [model; 32],
        layout: 42,
    }
}

fn head(tokens: u32, key: u8) -> PrefixHead {
    let middle = tokens / 2;
    PrefixHead {
        key: [key; 32],
        tokens: (0..tokens).map(|i| i.wrapping_mul(77_777)).collect(),
        order: PositionOrder::new(vec![middle..tokens, 0..middle]).unwrap(),
    }
}

fn read(bytes: &[u8]) -> Result<PrefixHead, SnapshotError> {
    PrefixHead::read(&mut &*bytes, bytes.len() as u64, &origin(1))
}

/// A directory and the file of its model.
struct Test {
    dir: TempDir,
    sources: PrefixSources,
    budget: u64,
}

impl Test {
    fn new() -> Self {
        let dir = TempDir::new().unwrap();
        let model = dir.path().join("model");
        fs::write(&model, "model").unwrap();
        let sources = PrefixSources::of(&ModelConfig::new("m", model)).unwrap();
        Self {
            dir,
            sources,
            budget: u64::MAX,
        }
    }

    fn open(&self) -> Result<(PrefixDir, Receiver<FoundPrefixes>), LoadError> {
        let (sender, found) = channel();
        let dir = PrefixDir::open(
            (&self.dir.path().join("prefixes"), self.budget),
            "m",
            self.sources.clone(),
            sender,
            EngineWaker::default(),
            Arc::default(),
        )?;
        Ok((dir, found))
    }

    /// Opens the directory and reads what it holds.
    fn find(&self) -> (PrefixDir, FoundPrefixes, u64) {
        let (mut dir, found) = self.open().unwrap();
        let used = dir.prepare();
        (dir, found.recv().unwrap(), used)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join("prefixes/m").join(name)
    }
}

#[test]
fn head_and_state_round_trip() {
    for (tokens, state) in [(2, &b"state"[..]), (1000, b""), (33, b"x")] {
        let head = head(tokens, 9);
        let file = head.file(&origin(1), state);
        assert_eq!(read(&file).unwrap(), head);
        assert_eq!(head.state(&origin(1), &file), Some(state));
        assert_eq!(head.state(&origin(2), &file), None, "another model");
        for other in [
            super::tests::head(tokens, 8),
            super::tests::head(tokens + 1, 9),
        ] {
            assert_eq!(other.state(&origin(1), &file), None);
        }
        for cut in 0..file.len() {
            assert!(read(&file[..cut]).is_err(), "{cut} bytes");
            assert_eq!(head.state(&origin(1), &file[..cut]), None);
        }
    }
}

#[test]
fn keys_depend_on_owner_and_adapter() {
    let owners = [
        PrefixOwner::new("tenant", "a"),
        PrefixOwner::new("tenant", "b"),
        PrefixOwner::new("deployment", "a"),
        PrefixOwner::new("tenanta", ""),
    ];
    let adapters = [None, Some([0; 32]), Some([1; 32])];
    let keys = owners
        .iter()
        .flat_map(|o| adapters.map(|a| key(o, a.as_ref())));
    let keys: std::collections::BTreeSet<_> = keys.collect();
    assert_eq!(keys.len(), owners.len() * adapters.len());
}

#[test]
fn written_prefixes_are_found_by_last_use() {
    let test = Test::new();
    let (mut dir, found, used) = test.find();
    assert!((found.prefixes.is_empty(), used) == (true, 0));
    let mut files = Vec::new();
    for number in 1..=3 {
        let file = head(40, number).file(&found.origin, b"state");
        dir.write(number.into(), &file).unwrap();
        let used = SystemTime::UNIX_EPOCH + Duration::from_secs(number.into());
        let opened = File::open(dir.file(number.into())).unwrap();
        opened.set_modified(used).unwrap();
        files.push(file);
    }
    let length = files[0].len() as u64;
    assert!(dir.read(1, length).unwrap() == files[0], "as written");
    assert!(dir.read(1, length + 1).is_err());
    assert!(dir.read(4, length).is_err());
    drop(dir);
    let (_dir, found, used) = test.find();
    let order: Vec<_> = found.prefixes.iter().map(|found| found.file).collect();
    assert_eq!(order, [2, 3, 1], "the first was read last");
    assert_eq!(found.prefixes[0].head, head(40, 2));
    assert_eq!((used, found.removed), (3 * 4096, 0));
}

#[test]
fn unusable_files_are_removed_and_others_left() {
    let test = Test::new();
    let (mut dir, found, _) = test.find();
    let origin = found.origin;
    let file = head(40, 1).file(&origin, b"state");
    dir.write(1, &file).unwrap();
    let other_model = Origin {
        model: [0; 32],
        ..origin
    };
    dir.write(2, &head(40, 1).file(&other_model, b"state"))
        .unwrap();
    let other_cells = Origin {
        layout: format_hash(KvType::Q8_0) ^ LAYOUT,
        ..origin
    };
    dir.write(3, &head(40, 1).file(&other_cells, b"state"))
        .unwrap();
    let snapshot = Origin {
        layout: format_hash(KvType::F16),
        ..origin
    };
    dir.write(4, &head(40, 1).file(&snapshot, b"state"))
        .unwrap();
    fs::write(test.path("5.prefix"), &file[..file.len() - 1]).unwrap();
    fs::write(test.path("6.prefix"), "text").unwrap();
    fs::write(test.path(".writing-7"), &file).unwrap();
    fs::create_dir(test.path("8.prefix")).unwrap();
    for name in ["notes", "x.prefix", "9.prefix.bak"] {
        fs::write(test.path(name), "mine").unwrap();
    }
    drop(dir);
    let (_dir, found, used) = test.find();
    assert_eq!((found.prefixes.len(), found.removed, used), (1, 6, 4096));
    let names = fs::read_dir(test.path("")).unwrap();
    let names = names.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<_> = names.collect();
    names.sort();
    let left = [
        ".lock",
        "1.prefix",
        "8.prefix",
        "9.prefix.bak",
        "notes",
        "x.prefix",
    ];
    assert_eq!(names, left);
}

#[test]
fn directory_is_private_and_locked() {
    let test = Test::new();
    let (mut dir, found, _) = test.find();
    dir.write(1, &head(40, 1).file(&found.origin, b"state"))
        .unwrap();
    for (name, mode) in [("", 0o700), ("1.prefix", 0o600)] {
        let metadata = fs::metadata(test.path(name)).unwrap();
        assert_eq!(metadata.permissions().mode() & 0o777, mode, "{name}");
    }
    let refused = test.open().err().unwrap().to_string();
    assert!(refused.contains("another process uses it"), "{refused}");
    drop(dir);
    assert!(test.open().is_ok());
}

#[test]
fn model_names_become_directory_names() {
    assert_eq!(dir_name("qwen-0.6b"), "qwen-0.6b");
    for name in ["../x", "a/b", "", ".hidden"] {
        assert_eq!(dir_name(name).len(), 32, "{name}");
    }
}

#[test]
fn start_reads_no_more_than_the_budget() {
    let mut test = Test::new();
    let (mut dir, found, _) = test.find();
    for number in 1..=4_u8 {
        dir.write(
            number.into(),
            &head(40, number).file(&found.origin, b"state"),
        )
        .unwrap();
        let used = SystemTime::UNIX_EPOCH + Duration::from_secs(number.into());
        let opened = File::open(dir.file(number.into())).unwrap();
        opened.set_modified(used).unwrap();
    }
    // Its head is not read: it would count as unusable.
    fs::write(test.path("1.prefix"), "text").unwrap();
    let old = File::open(test.path("1.prefix")).unwrap();
    old.set_modified(SystemTime::UNIX_EPOCH).unwrap();
    drop(dir);
    test.budget = 2 * 4096;
    let (dir, found, used) = test.find();
    let order: Vec<_> = found.prefixes.iter().map(|found| found.file).collect();
    assert_eq!((order, found.removed, used), (vec![3, 4], 0, 2 * 4096));
    assert_eq!(found.no_room, 2);
    assert!(!dir.file(1).exists() && !dir.file(2).exists());
}

#[test]
fn file_that_cannot_be_read_now_stays() {
    /// Fails as a disk or a process without free descriptors does.
    struct Failing;
    impl Read for Failing {
        fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
            Err(io::Error::other("no descriptor"))
        }
    }
    let refused = PrefixHead::read(&mut Failing, 1000, &origin(1)).unwrap_err();
    assert!(matches!(refused, SnapshotError::Io { .. }), "{refused}");
    let test = Test::new();
    let (dir, mut found, _) = test.find();
    // It is gone when it is read.
    dir.read_files(vec![(SystemTime::UNIX_EPOCH, 7)], &mut found)
        .unwrap();
    let unread = &found.unread;
    assert_eq!((unread.files, unread.last, found.removed), (1, 7, 0));
}

#[test]
fn existing_directory_keeps_its_mode() {
    let test = Test::new();
    fs::create_dir_all(test.path("")).unwrap();
    let set_mode = |mode| {
        fs::set_permissions(test.path(""), fs::Permissions::from_mode(mode)).unwrap();
    };
    set_mode(0o750);
    drop(test.open().unwrap());
    let mode = fs::metadata(test.path("")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o750);
    set_mode(0o770);
    let refused = test.open().err().unwrap().to_string();
    assert!(refused.contains("can write to it"), "{refused}");
}

#[test]
fn stopped_start_finds_nothing() {
    let test = Test::new();
    let (mut dir, found) = test.open().unwrap();
    dir.control
        .stopped
        .store(true, std::sync::atomic::Ordering::Relaxed);
    assert_eq!(dir.prepare(), 0);
    assert!(found.try_recv().is_err());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// Whatever a file begins with, its head is refused, or its bytes are those of the head. Some checksums are made right,
    /// so that the bytes behind them are read.
    #[test]
    fn damaged_heads_are_refused_or_read_exactly(
        tokens in 2_u32..40,
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6),
        cut in 0_usize..50,
        is_checksum_right: bool,
    ) {
        let mut file = head(tokens, 3).file(&origin(1), b"state");
        for (at, byte) in changes {
            let at = at.index(file.len());
            file[at] = byte;
        }
        file.truncate(file.len() - cut.min(file.len()));
        let covered = crate::snapshot::format::HEADER_CHECKSUM;
        if is_checksum_right && file.len() > HEADER {
            let checksum = crc32fast::hash(&file[..covered]);
            file[covered..HEADER].copy_from_slice(&checksum.to_le_bytes());
        }
        prop_assert_ne!(has_state(&file, &origin(1)), Some(false));
    }

    #[test]
    fn changed_byte_of_file_is_found(at: prop::sample::Index, byte in 1_u8..) {
        let test = Test::new();
        let (mut dir, found, _) = test.find();
        let file = head(20, 3).file(&found.origin, b"state");
        dir.write(1, &file).unwrap();
        let path = test.path("1.prefix");
        let mut written = fs::read(&path).unwrap();
        let at = at.index(written.len());
        written[at] ^= byte;
        fs::write(&path, written).unwrap();
        prop_assert!(dir.read(1, file.len() as u64).is_err());
    }
}
