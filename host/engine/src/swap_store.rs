//! States of idle sequences, or of prefixes, kept in memory and, past a budget, in files.
//!
//! [`SwapStore`] is used by one thread and never waits for a disk: one background thread does that.
//! What holds at every moment, whatever the disk does:
//!
//! - Memory: what lies here, what is being written, and what is being read or was read and not yet
//!   taken are together within the budget. Disk: so are the files, in whole blocks, including those
//!   being written.
//! - The least recently put state is the first to go: from memory to a file, from a file to nowhere.
//!   Memory is emptied ahead of need, by a quarter of the budget or the size of the last state,
//!   so that the next `put` finds room without waiting for the disk. Where puts come faster than the
//!   disk writes, the oldest states are lost instead.
//! - A state that is waited for stays until it is taken, released or forgotten. Reads begin in the
//!   order they were asked for and hold at most half of the memory, or one state if that is larger;
//!   others wait in line. So who waits must take, [release](SwapStore::release) or
//!   [forget](SwapStore::forget), or those behind wait for it.
//! - A state that is lost is counted, and named once by [`SwapStore::take_lost`].
//!
//! The number of states is the caller's to bound: each costs about 200 bytes beside its own.

mod desk;
mod folder;
mod traffic;

pub use folder::Disk;

use crate::engine_waker::EngineWaker;
use desk::{Clerk, Desk, FileNumber};
use folder::Folder;
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::JoinHandle;

/// Names a state.
pub type Id = u64;

/// How much may be kept where.
#[derive(Clone, Debug)]
pub struct SwapBudget {
    /// Bytes of memory.
    pub ram: u64,
    /// The folder for files and their bytes; none to keep states in memory alone.
    pub disk: Option<(PathBuf, u64)>,
}

/// What [`SwapStore::fetch`] found.
#[derive(Debug, PartialEq, Eq)]
pub enum Fetched {
    /// The state; it is no longer kept.
    Here(Vec<u8>),
    /// It is being read; the waker is called, and then to be asked again.
    Coming,
    /// It was never put, was taken or forgotten, or is lost: to be computed again.
    Gone,
}

/// Why a state was not kept. What was kept under its id before is gone too.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// It can never be kept.
    #[error(
        "a state of {bytes} bytes can't be kept in {limit} bytes of memory, through which it would go even to disk; give more"
    )]
    TooLarge {
        /// Bytes of the state.
        bytes: u64,
        /// Bytes of memory.
        limit: u64,
    },
    /// The memory is taken up by states that are waited for or being written.
    #[error("the memory for states is taken up by those that are waited for or being written")]
    Busy,
}

/// What was done so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// States written to disk.
    pub spilled: u64,
    /// Bytes of them.
    pub spilled_bytes: u64,
    /// States read back.
    pub read_back: u64,
    /// Bytes of them.
    pub read_back_bytes: u64,
    /// States lost: for want of room, or because the disk failed.
    pub lost: u64,
    /// States not taken in at all.
    pub refused: u64,
}

/// When a state was last used; unique.
type Stamp = u64;

#[derive(Clone, Copy, Debug)]
struct Filed {
    file: FileNumber,
    checksum: u32,
}

#[derive(Debug)]
struct Entry {
    stamp: Stamp,
    length: u64,
    place: Place,
}

/// Where a state is.
#[derive(Debug)]
enum Place {
    /// In memory; in `resident`.
    Ram(Vec<u8>),
    /// With the disk's thread, to be written; in `writing`.
    Writing { file: FileNumber, wanted: bool },
    /// On disk; in `filed`.
    Disk(Filed),
    /// On disk, in line to be read; in `line`.
    Wanted(Filed),
    /// With the disk's thread, to be read; released if nobody waits any more.
    Reading { filed: Filed, released: bool },
    /// In memory until it is taken; the file, if there is one, is still there.
    Ready {
        bytes: Vec<u8>,
        filed: Option<Filed>,
    },
}

/// A read or write with the disk's thread.
#[derive(Clone, Copy, Debug)]
struct Flight {
    /// Whose state it is; none if it was forgotten.
    id: Option<Id>,
    length: u64,
}

/// See the module.
pub struct SwapStore {
    ram: u64,
    /// 0 without a disk.
    disk: u64,
    entries: HashMap<Id, Entry>,
    /// In memory and free to go, by last use.
    resident: BTreeMap<Stamp, Id>,
    /// To be written, by last use.
    writing: BTreeMap<Stamp, Id>,
    /// On disk and free to go, by last use.
    filed: BTreeMap<Stamp, Id>,
    /// On disk and waited for, in the order they were asked for.
    line: VecDeque<Id>,
    reads: HashMap<FileNumber, Flight>,
    writes: HashMap<FileNumber, Flight>,
    resident_bytes: u64,
    /// Of `writes`.
    writing_bytes: u64,
    /// Of `reads`, and of what was read and not taken.
    pinned_bytes: u64,
    /// Charges of the files that are there or were handed over to be written.
    disk_bytes: u64,
    /// Length of the last state put: the next is likely as long.
    last_put: u64,
    next_stamp: Stamp,
    next_file: FileNumber,
    lost: BTreeSet<Id>,
    counts: Counts,
    desk: Arc<Desk>,
    thread: Option<JoinHandle<()>>,
}

impl SwapStore {
    /// Makes the private folder, if there is to be a disk, and starts its thread.
    ///
    /// Fails if the folder can't be made, written or locked, or no thread can be started.
    pub fn new(budgets: SwapBudget, waker: EngineWaker) -> io::Result<Self> {
        match budgets.disk {
            Some((base, bytes)) => {
                let folder = Folder::open(&base)?;
                tracing::info!(folder = %folder.path().display(), bytes, "idle sequences are spilled to disk");
                Self::with_disk(budgets.ram, bytes, folder, waker)
            }
            None => Ok(Self::without_thread(budgets.ram, 0)),
        }
    }

    /// The same with any empty disk, of which `disk_bytes` may be used.
    pub fn with_disk(
        ram_bytes: u64,
        disk_bytes: u64,
        disk: impl Disk + 'static,
        waker: EngineWaker,
    ) -> io::Result<Self> {
        let mut spill = Self::without_thread(ram_bytes, disk_bytes);
        let desk = spill.desk.clone();
        let clerk = Clerk::new(disk, disk_bytes);
        let thread = std::thread::Builder::new().name("spill".into());
        spill.thread = Some(thread.spawn(move || clerk.serve(&desk, &|| waker.wake()))?);
        Ok(spill)
    }

    fn without_thread(ram: u64, disk: u64) -> Self {
        Self {
            ram,
            disk,
            entries: HashMap::new(),
            resident: BTreeMap::new(),
            writing: BTreeMap::new(),
            filed: BTreeMap::new(),
            line: VecDeque::new(),
            reads: HashMap::new(),
            writes: HashMap::new(),
            resident_bytes: 0,
            writing_bytes: 0,
            pinned_bytes: 0,
            disk_bytes: 0,
            last_put: 0,
            next_stamp: 0,
            next_file: 0,
            lost: BTreeSet::new(),
            counts: Counts::default(),
            desk: Arc::default(),
            thread: None,
        }
    }

    /// Keeps a state under an id, in place of what was kept under it before. Others may be lost for
    /// it: those least recently put.
    pub fn put(&mut self, id: Id, mut bytes: Vec<u8>) -> Result<(), Refused> {
        self.forget(id);
        // What it really takes is what is counted.
        bytes.shrink_to_fit();
        let length = bytes.len() as u64;
        self.poll();
        if let Err(refused) = self.make_room(length) {
            self.counts.refused += 1;
            return Err(refused);
        }
        let stamp = self.stamp();
        self.last_put = length;
        self.resident.insert(stamp, id);
        self.resident_bytes += length;
        let place = Place::Ram(bytes);
        self.entries.insert(
            id,
            Entry {
                stamp,
                length,
                place,
            },
        );
        self.pump();
        Ok(())
    }

    /// Takes a state out, or has it read so that it can be taken once the waker was called.
    pub fn fetch(&mut self, id: Id) -> Fetched {
        self.poll();
        let Some(mut entry) = self.entries.remove(&id) else {
            return Fetched::Gone;
        };
        entry.place = match entry.place {
            Place::Ram(bytes) => {
                self.resident.remove(&entry.stamp);
                self.resident_bytes -= entry.length;
                self.pump();
                return Fetched::Here(bytes);
            }
            Place::Ready { bytes, filed } => {
                self.pinned_bytes -= entry.length;
                if let Some(filed) = filed {
                    self.discard(filed.file, entry.length);
                }
                self.pump();
                return Fetched::Here(bytes);
            }
            Place::Writing { file, .. } => {
                if let Some(bytes) = self.take_back(file) {
                    self.writing.remove(&entry.stamp);
                    self.pump();
                    return Fetched::Here(bytes);
                }
                self.desk.keep(file, true);
                Place::Writing { file, wanted: true }
            }
            Place::Disk(filed) => {
                self.filed.remove(&entry.stamp);
                self.line.push_back(id);
                Place::Wanted(filed)
            }
            Place::Reading { filed, .. } => Place::Reading {
                filed,
                released: false,
            },
            Place::Wanted(filed) => Place::Wanted(filed),
        };
        self.entries.insert(id, entry);
        self.pump();
        Fetched::Coming
    }

    /// Says that a state that [`fetch`](Self::fetch) called `Coming` is no longer waited for. It is
    /// kept as if it had just been put.
    pub fn release(&mut self, id: Id) {
        let Some(mut entry) = self.entries.remove(&id) else {
            return;
        };
        match &entry.place {
            Place::Ram(_) | Place::Disk(_) => {
                self.entries.insert(id, entry);
                return;
            }
            Place::Writing { .. } => {
                self.writing.remove(&entry.stamp);
            }
            Place::Wanted(_) | Place::Reading { .. } | Place::Ready { .. } => {}
        }
        entry.stamp = self.stamp();
        entry.place = match entry.place {
            Place::Writing { file, .. } => {
                self.writing.insert(entry.stamp, id);
                self.desk.keep(file, false);
                Place::Writing {
                    file,
                    wanted: false,
                }
            }
            Place::Wanted(filed) => {
                self.line.retain(|&other| other != id);
                self.file(entry.stamp, id, filed)
            }
            Place::Reading { filed, .. } => {
                if self.desk.cancel_read(filed.file) {
                    self.end_read(filed.file);
                    self.file(entry.stamp, id, filed)
                } else {
                    Place::Reading {
                        filed,
                        released: true,
                    }
                }
            }
            Place::Ready {
                filed: Some(filed), ..
            } => {
                self.pinned_bytes -= entry.length;
                self.file(entry.stamp, id, filed)
            }
            Place::Ready { bytes, filed: None } => {
                self.pinned_bytes -= entry.length;
                self.resident_bytes += entry.length;
                self.resident.insert(entry.stamp, id);
                Place::Ram(bytes)
            }
            place @ (Place::Ram(_) | Place::Disk(_)) => place,
        };
        self.entries.insert(id, entry);
        self.pump();
    }

    /// Drops a state, wherever it is.
    pub fn forget(&mut self, id: Id) {
        self.lost.remove(&id);
        let Some(entry) = self.entries.remove(&id) else {
            return;
        };
        match entry.place {
            Place::Ram(_) => {
                self.resident.remove(&entry.stamp);
                self.resident_bytes -= entry.length;
            }
            Place::Writing { file, .. } => {
                self.writing.remove(&entry.stamp);
                if self.take_back(file).is_none() {
                    self.desk.keep(file, false);
                    if let Some(flight) = self.writes.get_mut(&file) {
                        flight.id = None;
                    }
                }
            }
            Place::Disk(filed) => {
                self.filed.remove(&entry.stamp);
                self.discard(filed.file, entry.length);
            }
            Place::Wanted(filed) => {
                self.line.retain(|&other| other != id);
                self.discard(filed.file, entry.length);
            }
            Place::Reading { filed, .. } => {
                if self.desk.cancel_read(filed.file) {
                    self.end_read(filed.file);
                } else if let Some(flight) = self.reads.get_mut(&filed.file) {
                    flight.id = None;
                }
                self.discard(filed.file, entry.length);
            }
            Place::Ready { filed, .. } => {
                self.pinned_bytes -= entry.length;
                if let Some(filed) = filed {
                    self.discard(filed.file, entry.length);
                }
            }
        }
        self.pump();
    }

    /// Takes in what the disk's thread has done, and gives it more to do. Never waits. To be called
    /// whenever the waker was, and cheap enough to be called at each step.
    pub fn poll(&mut self) {
        let done = self.desk.take_done();
        if done.is_empty() {
            return;
        }
        for done in done {
            self.settle(done);
        }
        self.pump();
    }

    /// Whether a state is kept under this id, wherever.
    #[cfg(test)]
    pub fn contains(&self, id: Id) -> bool {
        self.entries.contains_key(&id)
    }

    /// The ids lost since the last call, in rising order; those put again or forgotten meanwhile are
    /// left out.
    pub fn take_lost(&mut self) -> Vec<Id> {
        std::mem::take(&mut self.lost).into_iter().collect()
    }

    /// Bytes of states in memory, with those being written and read.
    pub fn ram_bytes(&self) -> u64 {
        self.resident_bytes + self.writing_bytes + self.pinned_bytes
    }

    /// Bytes on disk in whole blocks, with those being written.
    pub fn disk_bytes(&self) -> u64 {
        self.disk_bytes + self.desk.stuck()
    }

    /// What was done so far.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    fn stamp(&mut self) -> Stamp {
        self.next_stamp += 1;
        self.next_stamp
    }
}

impl Drop for SwapStore {
    /// Ends the disk's thread, after the file it writes or reads now, and removes the folder.
    fn drop(&mut self) {
        self.desk.stop();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the thread that spills states had panicked");
        }
    }
}

#[cfg(test)]
mod tests;
