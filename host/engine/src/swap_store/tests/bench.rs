//! A spill whose disk works when the test says so, and fails as it says.

use super::super::desk::{self, Job};
use super::super::*;
use std::sync::{Mutex, MutexGuard};

pub const KIB: u64 = 1024;
/// A file of a small state.
pub const BLOCK: u64 = 4096;

/// What goes wrong at the next operation of the disk that it concerns.
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
    /// A bit of the file to be read is another.
    Flipped,
    /// Reading fails.
    Unreadable,
}

#[derive(Default)]
pub struct Platter {
    pub files: HashMap<u64, Vec<u8>>,
    pub fault: Option<Fault>,
    pub budget: u64,
}

/// A disk in memory, which a test can look into and break.
#[derive(Clone, Default)]
pub struct FakeDisk(Arc<Mutex<Platter>>);

impl FakeDisk {
    pub fn new(budget: u64) -> Self {
        let disk = Self::default();
        disk.lock().budget = budget;
        disk
    }

    pub fn lock(&self) -> MutexGuard<'_, Platter> {
        self.0.lock().unwrap()
    }

    pub fn used(&self) -> u64 {
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
pub struct Bench {
    pub spill: SwapStore,
    pub clerk: Clerk<FakeDisk>,
    pub disk: FakeDisk,
    /// A job that was begun.
    pub job: Option<Job>,
    /// Whether the engine was told and has not looked since.
    pub told: bool,
}

impl Bench {
    pub fn new(ram: u64, disk_bytes: u64) -> Self {
        let disk = FakeDisk::new(disk_bytes);
        Self {
            spill: SwapStore::without_thread(ram, disk_bytes),
            clerk: Clerk::new(disk.clone(), disk_bytes),
            disk,
            job: None,
            told: false,
        }
    }

    pub fn begin(&mut self) {
        if self.job.is_none() {
            self.job = self.spill.desk.begin();
        }
    }

    /// Ends the job that was begun. False if there was none.
    pub fn finish(&mut self) -> bool {
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

    pub fn poll(&mut self) {
        self.told = false;
        self.spill.poll();
    }

    /// Lets the disk do all there is to do.
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
        self.spill.put(id, state(id, length)).unwrap();
    }

    pub fn fetch_now(&mut self, id: Id) -> Option<Vec<u8>> {
        for _ in 0..2 {
            match self.spill.fetch(id) {
                Fetched::Here(bytes) => return Some(bytes),
                Fetched::Coming => self.run(),
                Fetched::Gone => return None,
            }
        }
        panic!("it was read and is not here");
    }

    pub fn check(&self) {
        check(&self.spill, &self.disk);
    }
}

/// Checks all that must hold between two calls.
pub fn check(spill: &SwapStore, disk: &FakeDisk) {
    assert!(spill.ram_bytes() <= spill.ram, "memory budget");
    assert!(spill.disk_bytes <= spill.disk, "disk budget");
    assert!(disk.used() <= disk.lock().budget, "files");
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

/// What is put under an id.
pub fn state(id: Id, length: u64) -> Vec<u8> {
    (0..length).map(|i| (id * 31 + i * 7) as u8).collect()
}
