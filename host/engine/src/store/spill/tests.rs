use super::desk::Job;
use super::*;
use proptest::prelude::*;
use std::sync::mpsc::{Receiver, sync_channel};
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

const KIB: u64 = 1024;
/// A file of a small state.
const BLOCK: u64 = 4096;

/// What goes wrong at the next operation of the disk that it concerns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    /// A write leaves half a file and fails.
    Full,
    /// A removal fails.
    Stays,
    /// The file to be read is gone.
    Missing,
    /// The file to be read is shorter than it was.
    Short,
    /// A bit of the file to be read is another.
    Flipped,
    /// Reading fails.
    Unreadable,
}

#[derive(Default)]
struct Platter {
    files: HashMap<u64, Vec<u8>>,
    fault: Option<Fault>,
    budget: u64,
}

/// A disk in memory, which a test can look into and break.
#[derive(Clone, Default)]
struct FakeDisk(Arc<Mutex<Platter>>);

impl FakeDisk {
    fn new(budget: u64) -> Self {
        let disk = Self::default();
        disk.lock().budget = budget;
        disk
    }

    fn lock(&self) -> MutexGuard<'_, Platter> {
        self.0.lock().unwrap()
    }

    fn used(&self) -> u64 {
        let platter = self.lock();
        let charges = platter.files.values().map(|bytes| charge_of(bytes));
        charges.sum()
    }

    fn fault(&self, which: &[Fault]) -> Option<Fault> {
        let mut platter = self.lock();
        let fault = platter.fault.filter(|fault| which.contains(fault));
        if fault.is_some() {
            platter.fault = None;
        }
        fault
    }
}

fn charge_of(bytes: &[u8]) -> u64 {
    desk::charge(bytes.len() as u64)
}

impl Disk for FakeDisk {
    fn write(&mut self, file: u64, bytes: &[u8]) -> io::Result<()> {
        let fault = self.fault(&[Fault::Full]);
        let written = if fault.is_some() {
            &bytes[..bytes.len() / 2]
        } else {
            bytes
        };
        let old = self.lock().files.insert(file, written.to_vec());
        assert!(old.is_none(), "a file is written once");
        let budget = self.lock().budget;
        assert!(self.used() <= budget, "the files are within the budget");
        match fault {
            Some(_) => Err(io::ErrorKind::StorageFull.into()),
            None => Ok(()),
        }
    }

    fn read(&mut self, file: u64, length: u64) -> io::Result<Vec<u8>> {
        let broken = [
            Fault::Missing,
            Fault::Short,
            Fault::Flipped,
            Fault::Unreadable,
        ];
        let fault = self.fault(&broken);
        let mut platter = self.lock();
        let bytes = platter
            .files
            .get_mut(&file)
            .ok_or(io::ErrorKind::NotFound)?;
        match fault {
            Some(Fault::Unreadable) => return Err(io::Error::other("a bad sector")),
            Some(Fault::Short) => drop(bytes.pop()),
            Some(Fault::Flipped) => {
                if let Some(byte) = bytes.last_mut() {
                    *byte ^= 4;
                }
            }
            Some(Fault::Missing) => {
                platter.files.remove(&file);
                return Err(io::ErrorKind::NotFound.into());
            }
            _ => {}
        }
        if bytes.len() as u64 != length {
            return Err(io::ErrorKind::InvalidData.into());
        }
        Ok(bytes.clone())
    }

    fn remove(&mut self, file: u64) -> io::Result<()> {
        if self.fault(&[Fault::Stays]).is_some() {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        let removed = self.lock().files.remove(&file);
        removed.map(drop).ok_or(io::ErrorKind::NotFound.into())
    }
}

/// A spill whose disk works when the test says so, one half of a job at a time.
struct Bench {
    spill: Spill,
    clerk: Clerk<FakeDisk>,
    disk: FakeDisk,
    /// A job that was begun.
    job: Option<Job>,
    /// Whether the engine was told and has not looked since.
    told: bool,
}

impl Bench {
    fn new(ram: u64, disk_bytes: u64) -> Self {
        let disk = FakeDisk::new(disk_bytes);
        Self {
            spill: Spill::without_thread(ram, disk_bytes),
            clerk: Clerk::new(disk.clone(), disk_bytes),
            disk,
            job: None,
            told: false,
        }
    }

    fn begin(&mut self) {
        if self.job.is_none() {
            self.job = self.spill.desk.begin();
        }
    }

    /// Ends the job that was begun. False if there was none.
    fn finish(&mut self) -> bool {
        let Some(job) = self.job.take() else {
            return false;
        };
        if let Some(done) = self.clerk.perform(job, &self.spill.desk)
            && self.spill.desk.finish(done)
        {
            assert!(!self.told, "who was told is not told again");
            self.told = true;
        }
        true
    }

    fn poll(&mut self) {
        self.told = false;
        self.spill.poll();
    }

    /// Lets the disk do all there is to do.
    fn run(&mut self) {
        loop {
            self.begin();
            if !self.finish() {
                self.poll();
                self.begin();
                if self.job.is_none() {
                    return;
                }
            }
        }
    }

    fn put(&mut self, id: Id, length: u64) {
        self.spill.put(id, state(id, length)).unwrap();
    }

    fn fetch_now(&mut self, id: Id) -> Option<Vec<u8>> {
        for _ in 0..2 {
            match self.spill.fetch(id) {
                Fetched::Here(bytes) => return Some(bytes),
                Fetched::Coming => self.run(),
                Fetched::Gone => return None,
            }
        }
        panic!("it was read and is not here");
    }

    fn check(&self) {
        let spill = &self.spill;
        assert!(spill.ram_bytes() <= spill.ram, "memory budget");
        assert!(spill.disk_bytes <= spill.disk, "disk budget");
        assert!(self.disk.used() <= self.disk.lock().budget, "files");
        let sum = |wanted: fn(&Place) -> bool| -> u64 {
            let entries = spill.entries.values();
            entries.filter(|e| wanted(&e.place)).map(|e| e.length).sum()
        };
        assert_eq!(spill.resident_bytes, sum(|p| matches!(p, Place::Ram(_))));
        let flights = |flights: &HashMap<u64, Flight>| -> u64 {
            flights.values().map(|flight| flight.length).sum()
        };
        assert_eq!(spill.writing_bytes, flights(&spill.writes));
        let ready = sum(|p| matches!(p, Place::Ready { .. }));
        assert_eq!(spill.pinned_bytes, flights(&spill.reads) + ready);
        for (id, entry) in &spill.entries {
            let listed = [&spill.resident, &spill.writing, &spill.filed]
                .map(|list| list.get(&entry.stamp) == Some(id));
            let expected = match &entry.place {
                Place::Ram(_) => [true, false, false],
                Place::Writing { .. } => [false, true, false],
                Place::Disk(_) => [false, false, true],
                _ => [false; 3],
            };
            assert_eq!(listed, expected, "{id}: {entry:?}");
            let in_line = spill.line.iter().filter(|&other| other == id).count();
            let wanted = matches!(entry.place, Place::Wanted(_));
            assert_eq!(in_line, usize::from(wanted));
        }
        let lists = spill.resident.len() + spill.writing.len() + spill.filed.len();
        assert!(lists + spill.line.len() <= spill.entries.len());
        let charged = |e: &Entry| match &e.place {
            Place::Ram(_) | Place::Ready { filed: None, .. } | Place::Writing { .. } => 0,
            _ => desk::charge(e.length),
        };
        let files: u64 = spill.entries.values().map(charged).sum();
        let writes = spill.writes.values().map(|f| desk::charge(f.length));
        assert_eq!(spill.disk_bytes, files + writes.sum::<u64>());
    }
}

fn state(id: Id, length: u64) -> Vec<u8> {
    (0..length).map(|i| (id * 31 + i * 7) as u8).collect()
}

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
    assert_eq!(bench.spill.take_lost(), []);
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
    assert_eq!(bench.spill.take_lost(), [], "it is there again");
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
    assert_eq!(bench.spill.take_lost(), []);
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

/// A real folder and thread; what the waker says comes through the channel.
fn real(base: &std::path::Path, ram: u64, disk: u64) -> (Spill, Receiver<()>) {
    let (sender, receiver) = sync_channel(64);
    let budgets = Budgets {
        ram,
        disk: Some((base.to_owned(), disk)),
    };
    let waker = Box::new(move || sender.try_send(()).unwrap());
    (Spill::new(budgets, waker).unwrap(), receiver)
}

fn wait_for(spill: &mut Spill, told: &Receiver<()>, id: Id) -> Option<Vec<u8>> {
    loop {
        match spill.fetch(id) {
            Fetched::Here(bytes) => return Some(bytes),
            Fetched::Gone => return None,
            Fetched::Coming => told.recv_timeout(Duration::from_secs(60)).unwrap(),
        }
    }
}

fn settle(spill: &mut Spill, told: &Receiver<()>) {
    while !spill.writes.is_empty() {
        told.recv_timeout(Duration::from_secs(60)).unwrap();
        spill.poll();
    }
}

fn folders(base: &std::path::Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(base).unwrap();
    let paths = entries.map(|entry| entry.unwrap().path());
    paths.filter(|path| path.is_dir()).collect()
}

#[test]
fn files_are_private_come_back_and_go_with_the_process() {
    use std::os::unix::fs::PermissionsExt;
    let base = tempfile::tempdir().unwrap();
    let (mut spill, told) = real(base.path(), 64 * KIB, 1024 * KIB);
    for id in 0..20 {
        spill.put(id, state(id, 16 * KIB + id)).unwrap();
        settle(&mut spill, &told);
    }
    let folder = &folders(base.path())[0];
    let mode = |path: &std::path::Path| path.metadata().unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(folder), 0o700);
    let files = std::fs::read_dir(folder).unwrap();
    let files: Vec<_> = files.map(|file| file.unwrap().path()).collect();
    assert!(files.len() > 10 && files.iter().all(|file| mode(file) == 0o600));
    for id in 0..20 {
        let bytes = wait_for(&mut spill, &told, id);
        assert_eq!(bytes, Some(state(id, 16 * KIB + id)));
    }
    assert_eq!(spill.take_lost(), []);
    drop(spill);
    assert_eq!(folders(base.path()), Vec::<PathBuf>::new());
}

#[test]
fn files_damaged_on_a_real_disk_are_gone() {
    let base = tempfile::tempdir().unwrap();
    let (mut spill, told) = real(base.path(), 16 * KIB, 1024 * KIB);
    for id in 0..3 {
        spill.put(id, state(id, 16 * KIB)).unwrap();
        settle(&mut spill, &told);
    }
    let folder = folders(base.path()).remove(0);
    let file = |number: u64| folder.join(format!("{number}.state"));
    std::fs::remove_file(file(1)).unwrap();
    std::fs::write(file(2), b"short").unwrap();
    let mut bytes = std::fs::read(file(3)).unwrap();
    bytes[5000] ^= 1;
    std::fs::write(file(3), bytes).unwrap();
    for id in 0..3 {
        assert_eq!(wait_for(&mut spill, &told, id), None, "{id}");
    }
    assert_eq!(spill.take_lost(), [0, 1, 2]);
}

#[test]
fn the_folder_of_a_live_process_is_left_alone_and_that_of_a_dead_one_removed() {
    let base = tempfile::tempdir().unwrap();
    let dead = base.path().join("spill-1-0");
    std::fs::create_dir(&dead).unwrap();
    std::fs::write(dead.join("lock"), b"").unwrap();
    std::fs::write(dead.join("1.state"), b"left over").unwrap();
    std::fs::create_dir(base.path().join("spill-2-0")).unwrap();
    std::fs::create_dir(base.path().join("not-ours")).unwrap();
    let (mut first, told) = real(base.path(), 16 * KIB, 1024 * KIB);
    assert_eq!(folders(base.path()).len(), 2, "not-ours and the new one");
    first.put(1, state(1, 16 * KIB)).unwrap();
    settle(&mut first, &told);
    // A lock belongs to an open file: another one of this process stands for another process.
    let (second, _told) = real(base.path(), 16 * KIB, 1024 * KIB);
    assert_eq!(folders(base.path()).len(), 3);
    let bytes = wait_for(&mut first, &told, 1);
    assert_eq!(bytes, Some(state(1, 16 * KIB)));
    drop(first);
    drop(second);
    assert_eq!(folders(base.path()).len(), 1);
}

/// A disk whose writes wait until they are let go.
struct SlowDisk(Receiver<()>, FakeDisk);

impl Disk for SlowDisk {
    fn write(&mut self, file: u64, bytes: &[u8]) -> io::Result<()> {
        // Ends when the other side is gone.
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
fn a_disk_that_hangs_holds_up_nobody_and_what_is_queued_is_dropped_at_the_end() {
    let (let_go, gate) = sync_channel(1);
    let disk = FakeDisk::new(1024 * KIB);
    let slow = SlowDisk(gate, disk.clone());
    let mut spill = Spill::with_disk(64 * KIB, 1024 * KIB, slow, Box::new(|| ())).unwrap();
    for id in 0..1000 {
        spill.put(id, state(id, KIB)).unwrap();
        assert!(spill.ram_bytes() <= 64 * KIB);
    }
    assert_eq!(spill.take_lost().len(), 1000 - 64);
    assert!(spill.writes.len() > 10, "many are queued");
    let ender = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(20));
        drop(let_go);
    });
    drop(spill);
    ender.join().unwrap();
    let files = disk.lock().files.len();
    assert!(files <= 1, "{files} were written, of all that were queued");
}
