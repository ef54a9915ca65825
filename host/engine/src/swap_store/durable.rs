//! A store whose files outlive the process.
//!
//! It writes each state at once and keeps the file when the state is fetched, so its memory is for transfers alone. The
//! caller lists the files of an earlier process with [`SwapStore::add_file`].

use super::disk_queue::{FileNumber, charge};
use super::swap_dir::Disk;
use super::{Entry, Id, Location, StoredFile, SwapStore};
use crate::engine_waker::EngineWaker;
use std::io;

impl SwapStore {
    /// Creates a durable store. Its thread first calls [`Disk::prepare`].
    pub fn durable(
        ram_bytes: u64,
        disk_bytes: u64,
        disk: impl Disk + 'static,
        waker: EngineWaker,
    ) -> io::Result<Self> {
        let mut store = Self::with_disk(ram_bytes, disk_bytes, disk, waker)?;
        store.durable = true;
        Ok(store)
    }

    /// Lists a file of an earlier process as the newest state of a durable store. Drops the oldest states that no longer
    /// fit.
    pub fn add_file(&mut self, id: Id, length: u64, file: FileNumber) {
        self.next_file = self.next_file.max(file);
        self.disk_bytes += charge(length);
        let stamp = self.stamp();
        let stored = StoredFile {
            file,
            checksum: None,
        };
        let location = self.list_on_disk(stamp, id, stored);
        let entry = Entry {
            stamp,
            length,
            location,
        };
        self.entries.insert(id, entry);
        while self.disk_bytes > self.disk
            && let Some((_, &oldest)) = self.on_disk.first_key_value()
        {
            self.drop_state(oldest);
        }
    }

    /// Gives no new file a number up to `last`.
    pub fn skip_files(&mut self, last: FileNumber) {
        self.next_file = self.next_file.max(last);
    }

    /// Gives a state on disk another id, which must be new. False if it is not there.
    pub fn rename(&mut self, id: Id, new: Id) -> bool {
        let on_disk = |entry: &Entry| matches!(entry.location, Location::Disk(_));
        if !self.entries.get(&id).is_some_and(on_disk) {
            return false;
        }
        if let Some(entry) = self.entries.remove(&id) {
            self.on_disk.insert(entry.stamp, new);
            self.entries.insert(new, entry);
        }
        true
    }

    /// States of a durable store that were written since the last call.
    pub fn take_written(&mut self) -> Vec<Id> {
        std::mem::take(&mut self.written)
    }

    /// Whether a state waits for its write or is being written.
    pub fn is_writing(&self) -> bool {
        self.resident_bytes + self.writing_bytes > 0
    }

    /// Number of states on disk.
    pub fn files(&self) -> usize {
        self.entries.len() - self.resident.len() - self.writing.len()
    }
}
