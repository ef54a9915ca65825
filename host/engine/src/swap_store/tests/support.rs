//! A store whose disk works when the test says so, and fails as it says.

use super::super::disk_queue::{self, Job};
use super::super::*;
use std::sync::{Mutex, MutexGuard};

pub const KIB: u64 = 1024;
/// Disk charge of a small state.
pub const BLOCK: u64 = 4096;

/// Fault of the next matching disk operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// A write leaves half a file and fails.
    Full,
    /// A removal fails.
    Stays,
    /// The file to be read is gone.
    Missing,
    /// The file to be read is shorter than it was.
    Short,
    /// The file to be read has a flipped bit.
    Flipped,
    /// Reading fails.
    Unreadable,
}

#[derive(Default)]
pub struct FakeDiskState {
    pub files: HashMap<u64, Vec<u8>>,
    pub fault: Option<Fault>,
    pub budget: u64,
}

/// A disk in memory that tests inspect and break.
#[derive(Clone, Default)]
pub struct FakeDisk(Arc<Mutex<FakeDiskState>>);

impl FakeDisk {
    pub fn new(budget: u64) -> Self {
        let disk = Self::default();
        disk.lock().budget = budget;
        disk
    }

    pub fn lock(&self) -> MutexGuard<'_, FakeDiskState> {
        self.0.lock().unwrap()
    }

    pub fn used(&self) -> u64 {
        let state = self.lock();
        let charges = state.files.values().map(|bytes| charge_of(bytes));
        charges.sum()
    }

    fn fault(&self, which: &[Fault]) -> Option<Fault> {
        let mut state = self.lock();
        let fault = state.fault.filter(|fault| which.contains(fault));
        if fault.is_some() {
            state.fault = None;
        }
        fault
    }
}

fn charge_of(bytes: &[u8]) -> u64 {
    disk_queue::charge(bytes.len() as u64)
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
        let mut state = self.lock();
        let bytes = state.files.get_mut(&file).ok_or(io::ErrorKind::NotFound)?;
        match fault {
            Some(Fault::Unreadable) => return Err(io::Error::other("a bad sector")),
            Some(Fault::Short) => drop(bytes.pop()),
            Some(Fault::Flipped) => {
                if let Some(byte) = bytes.last_mut() {
                    *byte ^= 4;
                }
            }
            Some(Fault::Missing) => {
                state.files.remove(&file);
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

/// A store whose disk works when the test says so, one half of a job at a time.
pub struct TestStore {
    pub store: SwapStore,
    pub worker: DiskWorker<FakeDisk>,
    pub disk: FakeDisk,
    /// The running job.
    pub job: Option<Job>,
    /// Whether a wake is pending.
    pub woken: bool,
}

impl TestStore {
    pub fn new(ram: u64, disk_bytes: u64) -> Self {
        let disk = FakeDisk::new(disk_bytes);
        Self {
            store: SwapStore::without_thread(ram, disk_bytes),
            worker: DiskWorker::new(disk.clone(), disk_bytes),
            disk,
            job: None,
            woken: false,
        }
    }

    pub fn begin(&mut self) {
        if self.job.is_none() {
            self.job = self.store.disk_queue.begin();
        }
    }

    /// Finishes the running job. False if there is none.
    pub fn finish(&mut self) -> bool {
        let Some(job) = self.job.take() else {
            return false;
        };
        if let Some(done) = self.worker.perform(job, &self.store.disk_queue)
            && self.store.disk_queue.finish(done)
        {
            assert!(!self.woken, "the engine is woken once");
            self.woken = true;
        }
        true
    }

    pub fn poll(&mut self) {
        self.woken = false;
        self.store.poll();
    }

    /// Runs all disk jobs.
    pub fn run(&mut self) {
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

    pub fn put(&mut self, id: Id, length: u64) {
        self.store.put(id, state(id, length)).unwrap();
    }

    pub fn fetch_now(&mut self, id: Id) -> Option<Vec<u8>> {
        for _ in 0..2 {
            match self.store.fetch(id) {
                FetchResult::Ready(bytes) => return Some(bytes),
                FetchResult::Pending => self.run(),
                FetchResult::Missing => return None,
            }
        }
        panic!("a finished read was not fetched");
    }

    pub fn check(&self) {
        check(&self.store, &self.disk);
    }
}

/// Checks the invariants between two calls.
pub fn check(store: &SwapStore, disk: &FakeDisk) {
    assert!(store.ram_bytes() <= store.ram, "memory budget");
    assert!(store.disk_bytes <= store.disk, "disk budget");
    assert!(disk.used() <= disk.lock().budget, "files");
    let sum = |matches: fn(&Location) -> bool| -> u64 {
        let entries = store.entries.values();
        entries
            .filter(|e| matches(&e.location))
            .map(|e| e.length)
            .sum()
    };
    assert_eq!(store.resident_bytes, sum(|p| matches!(p, Location::Ram(_))));
    let transfer_bytes = |transfer_bytes: &HashMap<u64, Transfer>| -> u64 {
        transfer_bytes
            .values()
            .map(|transfer| transfer.length)
            .sum()
    };
    assert_eq!(store.writing_bytes, transfer_bytes(&store.writes));
    let ready = sum(|p| matches!(p, Location::Ready { .. }));
    assert_eq!(store.pinned_bytes, transfer_bytes(&store.reads) + ready);
    for (id, entry) in &store.entries {
        let listed = [&store.resident, &store.writing, &store.on_disk]
            .map(|list| list.get(&entry.stamp) == Some(id));
        let expected = match &entry.location {
            Location::Ram(_) => [true, false, false],
            Location::Writing { .. } => [false, true, false],
            Location::Disk(_) => [false, false, true],
            _ => [false; 3],
        };
        assert_eq!(listed, expected, "{id}: {entry:?}");
        let in_requested = store.requested.iter().filter(|&other| other == id).count();
        let is_requested = matches!(entry.location, Location::Requested(_));
        assert_eq!(in_requested, usize::from(is_requested));
    }
    let lists = store.resident.len() + store.writing.len() + store.on_disk.len();
    assert!(lists + store.requested.len() <= store.entries.len());
    let charged = |e: &Entry| match &e.location {
        Location::Ram(_) | Location::Ready { stored: None, .. } | Location::Writing { .. } => 0,
        _ => disk_queue::charge(e.length),
    };
    let files: u64 = store.entries.values().map(charged).sum();
    let writes = store.writes.values().map(|f| disk_queue::charge(f.length));
    assert_eq!(store.disk_bytes, files + writes.sum::<u64>());
}

/// Test state of an id.
pub fn state(id: Id, length: u64) -> Vec<u8> {
    (0..length).map(|i| (id * 31 + i * 7) as u8).collect()
}
