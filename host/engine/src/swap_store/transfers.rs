//! Chooses which states move between memory and disk, and which are dropped.

use super::disk_queue::{Done, FileNumber, Job, charge};
use super::{Id, Location, PutError, Stamp, StoredFile, SwapStore, Transfer};

/// Memory is split into quarters: reads take at most two, and one is kept free or being written.
const SHARES: u64 = 4;
/// Maximum queued reads, and maximum queued writes.
const JOBS: usize = 64;

impl SwapStore {
    /// Frees memory for a new state at once; drops the oldest states if needed.
    pub(super) fn make_room(&mut self, length: u64) -> Result<(), PutError> {
        let limit = self.ram;
        if length > limit {
            let bytes = length;
            return Err(PutError::TooLarge { bytes, limit });
        }
        let reserved = self.reserved();
        let writing = self
            .disk_queue
            .writing()
            .and_then(|file| self.writes.get(&file));
        let fixed = self.pinned_bytes + writing.map_or(0, |transfer| transfer.length);
        // Drop nothing if the state cannot fit anyway.
        if fixed + reserved + length > limit {
            return Err(PutError::Busy);
        }
        while self.ram_bytes() + reserved + length > limit {
            if !self.drop_oldest_write() && !self.drop_oldest_resident() {
                return Err(PutError::Busy);
            }
        }
        Ok(())
    }

    /// Memory reserved for the next read.
    fn reserved(&self) -> u64 {
        let next = self.requested.front().and_then(|id| self.entries.get(id));
        next.map_or(0, |entry| {
            let alone = self.pinned_bytes == 0;
            let fits = self.pinned_bytes + entry.length <= self.ram / SHARES * 2;
            if alone || fits { entry.length } else { 0 }
        })
    }

    /// Queues disk jobs: reads first, then writes until enough memory is or becomes free, or of all states while they
    /// [move to disk](Self::move_to_disk) or the store is durable.
    pub(super) fn queue_jobs(&mut self) {
        if self.disk == 0 {
            return;
        }
        self.queue_reads_and_writes();
        while (self.moving || self.durable) && self.write_oldest(self.durable) {}
    }

    fn queue_reads_and_writes(&mut self) {
        loop {
            self.start_reads();
            let reserved = self.reserved();
            let short = reserved > 0 && self.ram_bytes() + reserved > self.ram;
            let spare = (self.ram / SHARES).max(self.last_put).max(reserved);
            let after_writes = self.resident_bytes + self.pinned_bytes;
            if self.resident.is_empty() || after_writes + spare <= self.ram {
                return;
            }
            // Read states leave soon and free their files, so do not drop states for them.
            let may_drop = short || self.resident_bytes + spare > self.ram;
            if self.write_oldest(may_drop) {
                continue;
            }
            // Drop a state that cannot be written, or the read waits forever.
            let stuck = short && self.writing_bytes == 0;
            if !stuck || !self.drop_oldest_resident() {
                return;
            }
        }
    }

    fn start_reads(&mut self) {
        loop {
            let reserved = self.reserved();
            if self.reads.len() >= JOBS || self.ram_bytes() + reserved > self.ram {
                return;
            }
            let Some(&id) = self.requested.front() else {
                return;
            };
            if reserved == 0 && self.pinned_bytes > 0 {
                return;
            }
            self.requested.pop_front();
            let Some(entry) = self.entries.get_mut(&id) else {
                debug_assert!(false, "a queued read has no entry");
                continue;
            };
            let Location::Requested(stored) = entry.location else {
                debug_assert!(false, "a queued read is not requested");
                continue;
            };
            let length = entry.length;
            let canceled = false;
            entry.location = Location::Reading { stored, canceled };
            self.pinned_bytes += length;
            let (id, keep) = (Some(id), false);
            let transfer = Transfer { id, length, keep };
            self.reads.insert(stored.file, transfer);
            self.disk_queue.push(Job::Read {
                file: stored.file,
                length,
                checksum: stored.checksum,
            });
        }
    }

    /// Queues a write of the oldest state in memory, or drops it if all states on disk are newer.
    /// False if it must wait, or may not drop a state.
    pub(super) fn write_oldest(&mut self, may_drop: bool) -> bool {
        let fits = |id: &Id| {
            let entry = self.entries.get(id);
            entry.is_some_and(|entry| charge(entry.length) <= self.disk)
        };
        // A state larger than the disk budget stays in memory.
        let oldest = self.resident.iter().find(|(_, id)| fits(id));
        let Some((&stamp, &id)) = oldest else {
            return false;
        };
        let Some(length) = self.entries.get(&id).map(|entry| entry.length) else {
            return false;
        };
        let most = self.ram / SHARES;
        let many = self.writing_bytes > 0 && self.writing_bytes + length > most;
        if many || self.writes.len() >= JOBS {
            return false;
        }
        while self.disk_bytes + charge(length) > self.disk {
            match self.on_disk.first_key_value().filter(|_| may_drop) {
                Some((&other, _)) if other > stamp => {
                    self.drop_state(id);
                    return true;
                }
                Some((_, &other)) => self.drop_state(other),
                None => return false,
            }
        }
        self.next_file += 1;
        let file = self.next_file;
        let Some(entry) = self.entries.get_mut(&id) else {
            return false;
        };
        let requested = false;
        let writing = Location::Writing { file, requested };
        let location = std::mem::replace(&mut entry.location, writing);
        let Location::Ram(bytes) = location else {
            debug_assert!(false, "a resident state is not in memory");
            return false;
        };
        self.resident.remove(&stamp);
        self.writing.insert(stamp, id);
        self.resident_bytes -= length;
        self.writing_bytes += length;
        self.disk_bytes += charge(length);
        let (id, keep) = (Some(id), self.moving);
        self.writes.insert(file, Transfer { id, length, keep });
        self.disk_queue.push(Job::Write { file, bytes });
        true
    }

    /// Records the result of a disk job.
    pub(super) fn job_done(&mut self, done: Done) {
        match done {
            Done::Written {
                file,
                checksum,
                bytes,
            } => {
                let Some(transfer) = self.end_write(file) else {
                    return;
                };
                self.counts.written += 1;
                self.counts.written_bytes += transfer.length;
                if self.durable {
                    self.written.extend(transfer.id);
                }
                let checksum = Some(checksum);
                let stored = StoredFile { file, checksum };
                match transfer.id {
                    Some(id) => self.finish_write(id, Some(stored), bytes, false),
                    None => self.remove_file(file, transfer.length),
                }
            }
            Done::Unwritten { file, bytes } => {
                let Some(transfer) = self.end_write(file) else {
                    return;
                };
                self.disk_bytes -= charge(transfer.length);
                self.moving = false;
                if let Some(id) = transfer.id {
                    self.counts.failed_writes += u64::from(!transfer.keep);
                    self.finish_write(id, None, Some(bytes), transfer.keep);
                }
            }
            Done::Read { file, bytes } => {
                if let Some(transfer) = self.end_read(file)
                    && let Some(id) = transfer.id
                {
                    self.finish_read(id, transfer.length, bytes);
                }
            }
        }
    }

    fn finish_write(
        &mut self,
        id: Id,
        stored: Option<StoredFile>,
        bytes: Option<Vec<u8>>,
        keep: bool,
    ) {
        let Some(mut entry) = self.entries.remove(&id) else {
            debug_assert!(false, "a finished write has no entry");
            return;
        };
        self.writing.remove(&entry.stamp);
        let requested = matches!(
            entry.location,
            Location::Writing {
                requested: true,
                ..
            }
        );
        entry.location = match (requested, bytes, stored) {
            (true, Some(bytes), stored) => {
                self.pinned_bytes += entry.length;
                Location::Ready { bytes, stored }
            }
            // The request came after the write returned.
            (true, None, Some(stored)) => {
                self.requested.push_back(id);
                Location::Requested(stored)
            }
            (false, _, Some(stored)) => self.list_on_disk(entry.stamp, id, stored),
            (false, Some(bytes), None) if keep => {
                self.resident.insert(entry.stamp, id);
                self.resident_bytes += entry.length;
                Location::Ram(bytes)
            }
            (_, _, None) => {
                self.note_lost(id);
                return;
            }
        };
        self.entries.insert(id, entry);
    }

    fn finish_read(&mut self, id: Id, length: u64, bytes: Option<Vec<u8>>) {
        let Some(mut entry) = self.entries.remove(&id) else {
            debug_assert!(false, "a finished read has no entry");
            return;
        };
        let Location::Reading { stored, canceled } = entry.location else {
            debug_assert!(false, "a finished read was not requested");
            return;
        };
        let Some(bytes) = bytes else {
            self.counts.failed_reads += 1;
            self.remove_file(stored.file, length);
            self.note_lost(id);
            return;
        };
        self.counts.read += 1;
        self.counts.read_bytes += length;
        entry.location = if canceled {
            self.list_on_disk(entry.stamp, id, stored)
        } else {
            self.pinned_bytes += length;
            let stored = Some(stored);
            Location::Ready { bytes, stored }
        };
        self.entries.insert(id, entry);
    }

    /// Lists a state as evictable on disk.
    pub(super) fn list_on_disk(&mut self, stamp: Stamp, id: Id, stored: StoredFile) -> Location {
        self.on_disk.insert(stamp, id);
        Location::Disk(stored)
    }

    fn end_write(&mut self, file: FileNumber) -> Option<Transfer> {
        let transfer = self.writes.remove(&file);
        debug_assert!(transfer.is_some(), "a finished write was not started");
        self.writing_bytes -= transfer.map_or(0, |transfer| transfer.length);
        transfer
    }

    pub(super) fn end_read(&mut self, file: FileNumber) -> Option<Transfer> {
        let transfer = self.reads.remove(&file);
        debug_assert!(transfer.is_some(), "a finished read was not started");
        self.pinned_bytes -= transfer.map_or(0, |transfer| transfer.length);
        transfer
    }

    /// Cancels a write that has not started and returns its bytes.
    pub(super) fn take_back(&mut self, file: FileNumber) -> Option<Vec<u8>> {
        let bytes = self.disk_queue.take_back(file)?;
        if let Some(transfer) = self.end_write(file) {
            self.disk_bytes -= charge(transfer.length);
        }
        Some(bytes)
    }

    /// Queues the removal of a file. Later writes may use its bytes.
    pub(super) fn remove_file(&mut self, file: FileNumber, length: u64) {
        self.disk_bytes -= charge(length);
        self.disk_queue.push(Job::Remove { file, length });
    }

    /// Drops the oldest state whose write has not started. False if there is none.
    fn drop_oldest_write(&mut self) -> bool {
        let file = |id: &Id| match self.entries.get(id)?.location {
            Location::Writing { file, .. } => Some(file),
            _ => None,
        };
        let writes = self.writing.iter();
        let writes = writes.filter_map(|(&stamp, id)| Some((stamp, *id, file(id)?)));
        let writes: Vec<_> = writes.collect();
        for (stamp, id, file) in writes {
            // Fails if the write has just started.
            if self.take_back(file).is_some() {
                self.writing.remove(&stamp);
                self.entries.remove(&id);
                self.note_lost(id);
                return true;
            }
        }
        false
    }

    /// Drops the oldest state in memory. False if there is none.
    fn drop_oldest_resident(&mut self) -> bool {
        let Some((_, &id)) = self.resident.first_key_value() else {
            return false;
        };
        self.drop_state(id);
        true
    }

    /// Drops an evictable state in memory or on disk.
    pub(super) fn drop_state(&mut self, id: Id) {
        let Some(entry) = self.entries.remove(&id) else {
            debug_assert!(false, "a dropped state has no entry");
            return;
        };
        match entry.location {
            Location::Ram(_) => {
                self.resident.remove(&entry.stamp);
                self.resident_bytes -= entry.length;
            }
            Location::Disk(stored) => {
                self.on_disk.remove(&entry.stamp);
                self.remove_file(stored.file, entry.length);
            }
            _ => debug_assert!(false, "a dropped state is in use"),
        }
        self.note_lost(id);
    }

    pub(super) fn note_lost(&mut self, id: Id) {
        self.counts.lost += 1;
        self.lost.insert(id);
    }
}
