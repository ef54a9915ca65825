//! Swapped-out states of idle sequences or prefixes: in memory and, past a budget, in files.
//!
//! One thread uses a [`SwapStore`] and never waits for the disk; a background thread does the I/O.
//!
//! - Stored states, running writes, and reads that are not fetched yet fit the memory budget
//!   together. Files fit the disk budget in whole blocks, including running writes.
//! - The oldest state leaves first: from memory to a file, from a file to nothing. The store frees
//!   a quarter of the budget, or the size of the last state, ahead of need. If puts outrun the
//!   disk, the oldest states are lost.
//! - A requested state stays until it is fetched, the fetch is [canceled](SwapStore::cancel_fetch), or
//!   the state is [removed](SwapStore::remove). Reads run in request order and hold at most half of the
//!   memory, or one larger state. A caller that does none of the three blocks later reads.
//! - [`SwapStore::take_lost`] names each lost state once.
//!
//! The store does not limit the number of states; each costs about 200 bytes plus its own size.
//!
//! A [durable] store differs: its files outlive the fetch and the process.

mod disk_queue;
mod durable;
mod swap_dir;
mod transfers;

pub use disk_queue::{FileNumber, charge};
pub use swap_dir::{Disk, read_whole};

use crate::engine_waker::EngineWaker;
use disk_queue::{DiskQueue, DiskWorker};
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::JoinHandle;
use swap_dir::SwapDir;

/// Identifies a state.
pub type Id = u64;

/// Memory and disk budgets of a store.
#[derive(Clone, Debug)]
pub struct SwapBudget {
    /// Bytes of memory.
    pub ram: u64,
    /// Directory for files and its budget in bytes; `None` keeps states in memory only.
    pub disk: Option<(PathBuf, u64)>,
}

/// Result of [`SwapStore::fetch`].
#[derive(Debug, PartialEq, Eq)]
pub enum FetchResult {
    /// The state. The store no longer holds it.
    Ready(Vec<u8>),
    /// A read is pending. Fetch again after the waker runs.
    Pending,
    /// The store does not hold the state. Compute it again.
    Missing,
}

/// Why the store refused a state. It has dropped the previous state of that id too.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PutError {
    /// The state exceeds the memory budget.
    #[error(
        "a state of {bytes} bytes does not fit {limit} bytes of swap memory, which states on disk pass through too; raise the limit"
    )]
    TooLarge {
        /// Bytes of the state.
        bytes: u64,
        /// Bytes of memory.
        limit: u64,
    },
    /// Pending reads and running writes occupy the memory.
    #[error("pending reads and writes occupy the swap memory; try again later or raise its limit")]
    Busy,
}

/// Counters since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// States written to disk.
    pub written: u64,
    /// Bytes of those states.
    pub written_bytes: u64,
    /// States read from disk.
    pub read: u64,
    /// Bytes of those states.
    pub read_bytes: u64,
    /// States lost because of the budgets or a disk failure.
    pub lost: u64,
    /// Of those, states that could not be written.
    pub failed_writes: u64,
    /// Of those, states whose file could not be read or was damaged.
    pub failed_reads: u64,
    /// Refused states.
    pub refused: u64,
}

/// Order of last use; unique.
type Stamp = u64;

#[derive(Clone, Copy, Debug)]
struct StoredFile {
    file: FileNumber,
    /// `None` for a file of an earlier process, which the disk checks.
    checksum: Option<u32>,
}

#[derive(Debug)]
struct Entry {
    stamp: Stamp,
    length: u64,
    location: Location,
}

/// Where the store holds a state.
#[derive(Debug)]
enum Location {
    /// In memory, listed in `resident`.
    Ram(Vec<u8>),
    /// Queued or running write, listed in `writing`; `requested` if a fetch waits for its end.
    Writing { file: FileNumber, requested: bool },
    /// On disk, listed in `on_disk`.
    Disk(StoredFile),
    /// On disk and requested, listed in `requested`.
    Requested(StoredFile),
    /// Queued or running read; `canceled` if the fetch was.
    Reading { stored: StoredFile, canceled: bool },
    /// Read and not fetched yet. The file, if any, still exists.
    Ready {
        bytes: Vec<u8>,
        stored: Option<StoredFile>,
    },
}

/// A read or write queued for the disk thread.
#[derive(Clone, Copy, Debug)]
struct Transfer {
    /// The state; `None` if it was removed.
    id: Option<Id>,
    length: u64,
    /// Whether a state whose write fails stays in memory.
    keep: bool,
}

/// Holds swapped-out states; see the module.
pub struct SwapStore {
    ram: u64,
    /// 0 without a disk.
    disk: u64,
    entries: HashMap<Id, Entry>,
    /// Evictable states in memory, by last use.
    resident: BTreeMap<Stamp, Id>,
    /// States with a queued or running write, by last use.
    writing: BTreeMap<Stamp, Id>,
    /// Evictable states on disk, by last use.
    on_disk: BTreeMap<Stamp, Id>,
    /// Requested states on disk, in request order.
    requested: VecDeque<Id>,
    reads: HashMap<FileNumber, Transfer>,
    writes: HashMap<FileNumber, Transfer>,
    resident_bytes: u64,
    /// Bytes of `writes`.
    writing_bytes: u64,
    /// Bytes of `reads` and of states that were read and not fetched. Nothing else may take their memory.
    pinned_bytes: u64,
    /// Disk charge of existing files and queued writes.
    disk_bytes: u64,
    /// Length of the last state, as an estimate of the next.
    last_put: u64,
    /// Whether states move to disk although the budget has room for them.
    moving: bool,
    /// Whether files outlive their fetch.
    durable: bool,
    /// In a durable store, states written since the last [`SwapStore::take_written`].
    written: Vec<Id>,
    next_stamp: Stamp,
    next_file: FileNumber,
    lost: BTreeSet<Id>,
    counts: Counts,
    disk_queue: Arc<DiskQueue>,
    thread: Option<JoinHandle<()>>,
}

impl SwapStore {
    /// Creates the private directory and starts the disk thread if the budget has a disk.
    ///
    /// Fails if it cannot create, write or lock the directory, or start the thread.
    pub fn new(budget: SwapBudget, waker: EngineWaker) -> io::Result<Self> {
        match budget.disk {
            Some((base, bytes)) => {
                let dir = SwapDir::open(&base)?;
                tracing::info!(dir = %dir.path().display(), bytes, "idle sequences are swapped out to disk");
                Self::with_disk(budget.ram, bytes, dir, waker)
            }
            None => Ok(Self::without_thread(budget.ram, 0)),
        }
    }

    /// Creates a store over an empty disk and uses at most `disk_bytes` of it.
    pub fn with_disk(
        ram_bytes: u64,
        disk_bytes: u64,
        disk: impl Disk + 'static,
        waker: EngineWaker,
    ) -> io::Result<Self> {
        let mut store = Self::without_thread(ram_bytes, disk_bytes);
        let disk_queue = store.disk_queue.clone();
        let worker = DiskWorker::new(disk, disk_bytes);
        let thread = std::thread::Builder::new().name("swap".into());
        store.thread = Some(thread.spawn(move || worker.serve(&disk_queue, &|| waker.wake()))?);
        Ok(store)
    }

    fn without_thread(ram: u64, disk: u64) -> Self {
        Self {
            ram,
            disk,
            entries: HashMap::new(),
            resident: BTreeMap::new(),
            writing: BTreeMap::new(),
            on_disk: BTreeMap::new(),
            requested: VecDeque::new(),
            reads: HashMap::new(),
            writes: HashMap::new(),
            resident_bytes: 0,
            writing_bytes: 0,
            pinned_bytes: 0,
            disk_bytes: 0,
            last_put: 0,
            moving: false,
            durable: false,
            written: Vec::new(),
            next_stamp: 0,
            next_file: 0,
            lost: BTreeSet::new(),
            counts: Counts::default(),
            disk_queue: Arc::default(),
            thread: None,
        }
    }

    /// Stores a state and replaces the previous one of that id. May drop the oldest states.
    pub fn put(&mut self, id: Id, mut bytes: Vec<u8>) -> Result<(), PutError> {
        self.remove(id);
        // The budget counts the length, so the capacity must equal it.
        bytes.shrink_to_fit();
        let length = bytes.len() as u64;
        self.poll();
        let room = match self.durable && charge(length) > self.disk {
            true => Err(PutError::TooLarge {
                bytes: length,
                limit: self.disk,
            }),
            false => self.make_room(length),
        };
        if let Err(refused) = room {
            self.counts.refused += 1;
            return Err(refused);
        }
        let stamp = self.stamp();
        self.last_put = length;
        self.resident.insert(stamp, id);
        self.resident_bytes += length;
        let location = Location::Ram(bytes);
        self.entries.insert(
            id,
            Entry {
                stamp,
                length,
                location,
            },
        );
        self.queue_jobs();
        Ok(())
    }

    /// Removes and returns a state, or starts reading it from disk. A durable store returns a copy.
    pub fn fetch(&mut self, id: Id) -> FetchResult {
        self.poll();
        let Some(mut entry) = self.entries.remove(&id) else {
            return FetchResult::Missing;
        };
        entry.location = match entry.location {
            Location::Ram(bytes) if self.durable => {
                let copy = bytes.clone();
                entry.location = Location::Ram(bytes);
                self.entries.insert(id, entry);
                return FetchResult::Ready(copy);
            }
            Location::Ram(bytes) => {
                self.resident.remove(&entry.stamp);
                self.resident_bytes -= entry.length;
                self.queue_jobs();
                return FetchResult::Ready(bytes);
            }
            Location::Ready { bytes, stored } => {
                self.pinned_bytes -= entry.length;
                match stored {
                    Some(stored) if self.durable => {
                        entry.stamp = self.stamp();
                        entry.location = self.list_on_disk(entry.stamp, id, stored);
                        self.entries.insert(id, entry);
                    }
                    Some(stored) => self.remove_file(stored.file, entry.length),
                    None => {}
                }
                self.queue_jobs();
                return FetchResult::Ready(bytes);
            }
            Location::Writing { file, .. } => {
                if !self.durable
                    && let Some(bytes) = self.take_back(file)
                {
                    self.writing.remove(&entry.stamp);
                    self.queue_jobs();
                    return FetchResult::Ready(bytes);
                }
                self.disk_queue.return_bytes(file, true);
                Location::Writing {
                    file,
                    requested: true,
                }
            }
            Location::Disk(stored) => {
                self.on_disk.remove(&entry.stamp);
                self.requested.push_back(id);
                Location::Requested(stored)
            }
            Location::Reading { stored, .. } => Location::Reading {
                stored,
                canceled: false,
            },
            Location::Requested(stored) => Location::Requested(stored),
        };
        self.entries.insert(id, entry);
        self.queue_jobs();
        FetchResult::Pending
    }

    /// Cancels a [`fetch`](Self::fetch) that returned [`FetchResult::Pending`]. The state then counts as the newest.
    pub fn cancel_fetch(&mut self, id: Id) {
        let Some(mut entry) = self.entries.remove(&id) else {
            return;
        };
        match &entry.location {
            Location::Ram(_) | Location::Disk(_) => {
                self.entries.insert(id, entry);
                return;
            }
            Location::Writing { .. } => {
                self.writing.remove(&entry.stamp);
            }
            Location::Requested(_) | Location::Reading { .. } | Location::Ready { .. } => {}
        }
        entry.stamp = self.stamp();
        entry.location = match entry.location {
            Location::Writing { file, .. } => {
                self.writing.insert(entry.stamp, id);
                self.disk_queue.return_bytes(file, false);
                Location::Writing {
                    file,
                    requested: false,
                }
            }
            Location::Requested(stored) => {
                self.requested.retain(|&other| other != id);
                self.list_on_disk(entry.stamp, id, stored)
            }
            Location::Reading { stored, .. } => {
                if self.disk_queue.cancel_read(stored.file) {
                    self.end_read(stored.file);
                    self.list_on_disk(entry.stamp, id, stored)
                } else {
                    Location::Reading {
                        stored,
                        canceled: true,
                    }
                }
            }
            Location::Ready {
                stored: Some(stored),
                ..
            } => {
                self.pinned_bytes -= entry.length;
                self.list_on_disk(entry.stamp, id, stored)
            }
            Location::Ready {
                bytes,
                stored: None,
            } => {
                self.pinned_bytes -= entry.length;
                self.resident_bytes += entry.length;
                self.resident.insert(entry.stamp, id);
                Location::Ram(bytes)
            }
            location @ (Location::Ram(_) | Location::Disk(_)) => location,
        };
        self.entries.insert(id, entry);
        self.queue_jobs();
    }

    /// Removes a state, wherever it is.
    pub fn remove(&mut self, id: Id) {
        self.lost.remove(&id);
        let Some(entry) = self.entries.remove(&id) else {
            return;
        };
        match entry.location {
            Location::Ram(_) => {
                self.resident.remove(&entry.stamp);
                self.resident_bytes -= entry.length;
            }
            Location::Writing { file, .. } => {
                self.writing.remove(&entry.stamp);
                if self.take_back(file).is_none() {
                    self.disk_queue.return_bytes(file, false);
                    if let Some(transfer) = self.writes.get_mut(&file) {
                        transfer.id = None;
                    }
                }
            }
            Location::Disk(stored) => {
                self.on_disk.remove(&entry.stamp);
                self.remove_file(stored.file, entry.length);
            }
            Location::Requested(stored) => {
                self.requested.retain(|&other| other != id);
                self.remove_file(stored.file, entry.length);
            }
            Location::Reading { stored, .. } => {
                if self.disk_queue.cancel_read(stored.file) {
                    self.end_read(stored.file);
                } else if let Some(transfer) = self.reads.get_mut(&stored.file) {
                    transfer.id = None;
                }
                self.remove_file(stored.file, entry.length);
            }
            Location::Ready { stored, .. } => {
                self.pinned_bytes -= entry.length;
                if let Some(stored) = stored {
                    self.remove_file(stored.file, entry.length);
                }
            }
        }
        self.queue_jobs();
    }

    /// Starts or stops moving all states in memory to disk: the oldest first, as far as the disk has room, and at most a
    /// quarter of the memory at once. A state whose write fails stays in memory, and moving stops.
    pub fn move_to_disk(&mut self, moving: bool) {
        self.poll();
        self.moving = moving;
        self.queue_jobs();
    }

    /// Handles finished disk jobs and queues new ones. Never blocks. Call it after each wake; it is
    /// cheap enough for every step.
    pub fn poll(&mut self) {
        let done = self.disk_queue.take_done();
        if done.is_empty() {
            return;
        }
        for done in done {
            self.job_done(done);
        }
        self.queue_jobs();
    }

    /// Whether a state is in a file, and not in memory.
    pub fn is_on_disk(&self, id: Id) -> bool {
        let location = self.entries.get(&id).map(|entry| &entry.location);
        matches!(
            location,
            Some(Location::Disk(_) | Location::Requested(_) | Location::Reading { .. })
        )
    }

    /// Whether the store holds a state of this id.
    #[cfg(test)]
    pub fn contains(&self, id: Id) -> bool {
        self.entries.contains_key(&id)
    }

    /// Ids lost since the last call, ascending, without ids that were put again or removed.
    pub fn take_lost(&mut self) -> Vec<Id> {
        std::mem::take(&mut self.lost).into_iter().collect()
    }

    /// Bytes of states in memory, including running reads and writes.
    pub fn ram_bytes(&self) -> u64 {
        self.resident_bytes + self.writing_bytes + self.pinned_bytes
    }

    /// Bytes on disk in whole blocks, including running writes.
    pub fn disk_bytes(&self) -> u64 {
        self.disk_bytes + self.disk_queue.stuck()
    }

    /// Counters since the start.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    fn stamp(&mut self) -> Stamp {
        self.next_stamp += 1;
        self.next_stamp
    }
}

impl Drop for SwapStore {
    /// Stops the disk thread after its current job and the queued removals. A store that is not durable removes the
    /// directory.
    fn drop(&mut self) {
        self.disk_queue.stop();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the swap disk thread panicked");
        }
    }
}

#[cfg(test)]
mod tests;
