//! What goes to the disk and comes back, who has to make room, and who is lost.

use super::desk::{Done, FileNumber, Job, charge};
use super::{Filed, Flight, Id, Place, Refused, Stamp, SwapStore};

/// A part of the memory: reads may hold two of it, and one is kept free or is being written.
const SHARES: u64 = 4;
/// Most reads, and most writes, at the disk's thread at once.
const JOBS: usize = 64;

impl SwapStore {
    /// Makes the room in memory for a new state, at once.
    pub(super) fn make_room(&mut self, length: u64) -> Result<(), Refused> {
        let limit = self.ram;
        if length > limit {
            let bytes = length;
            return Err(Refused::TooLarge { bytes, limit });
        }
        let claimed = self.claimed();
        let writing = self.desk.writing().and_then(|file| self.writes.get(&file));
        let fixed = self.pinned_bytes + writing.map_or(0, |flight| flight.length);
        // Nothing is lost for one that finds no room even so.
        if fixed + claimed + length > limit {
            return Err(Refused::Busy);
        }
        while self.ram_bytes() + claimed + length > limit {
            if !self.lose_oldest_write() && !self.lose_oldest_resident() {
                return Err(Refused::Busy);
            }
        }
        Ok(())
    }

    /// Memory that the next read waits for: nobody else may take it.
    fn claimed(&self) -> u64 {
        let next = self.line.front().and_then(|id| self.entries.get(id));
        next.map_or(0, |entry| {
            let alone = self.pinned_bytes == 0;
            let fits = self.pinned_bytes + entry.length <= self.ram / SHARES * 2;
            if alone || fits { entry.length } else { 0 }
        })
    }

    /// Gives the disk's thread what it should do now: reads first, then writes until enough memory
    /// is free or about to be.
    pub(super) fn pump(&mut self) {
        if self.disk == 0 {
            return;
        }
        loop {
            self.start_reads();
            let claimed = self.claimed();
            let short = claimed > 0 && self.ram_bytes() + claimed > self.ram;
            let spare = (self.ram / SHARES).max(self.last_put).max(claimed);
            let after_writes = self.resident_bytes + self.pinned_bytes;
            if self.resident.is_empty() || after_writes + spare <= self.ram {
                return;
            }
            // What was read goes soon, and then its file makes room: nobody is lost for it before.
            let may_lose = short || self.resident_bytes + spare > self.ram;
            if self.write_oldest(may_lose) {
                continue;
            }
            // A read must not wait for ever for what can't be written.
            let stuck = short && self.writing_bytes == 0;
            if !stuck || !self.lose_oldest_resident() {
                return;
            }
        }
    }

    fn start_reads(&mut self) {
        loop {
            let claimed = self.claimed();
            if self.reads.len() >= JOBS || self.ram_bytes() + claimed > self.ram {
                return;
            }
            let Some(&id) = self.line.front() else {
                return;
            };
            if claimed == 0 && self.pinned_bytes > 0 {
                return;
            }
            self.line.pop_front();
            let Some(entry) = self.entries.get_mut(&id) else {
                debug_assert!(false, "a state in line that is not there");
                continue;
            };
            let Place::Wanted(filed) = entry.place else {
                debug_assert!(false, "a state in line that is not wanted");
                continue;
            };
            let length = entry.length;
            let released = false;
            entry.place = Place::Reading { filed, released };
            self.pinned_bytes += length;
            let id = Some(id);
            self.reads.insert(filed.file, Flight { id, length });
            self.desk.push(Job::Read {
                file: filed.file,
                length,
                checksum: filed.checksum,
            });
        }
    }

    /// Hands the least recently used state in memory to the disk's thread, or loses it if all on
    /// disk were used since. False if it has to wait, or someone would be lost who may not.
    fn write_oldest(&mut self, may_lose: bool) -> bool {
        let fits = |id: &Id| {
            let entry = self.entries.get(id);
            entry.is_some_and(|entry| charge(entry.length) <= self.disk)
        };
        // One that is larger than the disk's budget stays until it has to go.
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
            match self.filed.first_key_value().filter(|_| may_lose) {
                Some((&other, _)) if other > stamp => {
                    self.lose(id);
                    return true;
                }
                Some((_, &other)) => self.lose(other),
                None => return false,
            }
        }
        self.next_file += 1;
        let file = self.next_file;
        let Some(entry) = self.entries.get_mut(&id) else {
            return false;
        };
        let wanted = false;
        let place = std::mem::replace(&mut entry.place, Place::Writing { file, wanted });
        let Place::Ram(bytes) = place else {
            debug_assert!(false, "a resident state that is not in memory");
            return false;
        };
        self.resident.remove(&stamp);
        self.writing.insert(stamp, id);
        self.resident_bytes -= length;
        self.writing_bytes += length;
        self.disk_bytes += charge(length);
        let id = Some(id);
        self.writes.insert(file, Flight { id, length });
        self.desk.push(Job::Write { file, bytes });
        true
    }

    pub(super) fn settle(&mut self, done: Done) {
        match done {
            Done::Written {
                file,
                checksum,
                bytes,
            } => {
                let Some(flight) = self.end_write(file) else {
                    return;
                };
                self.counts.spilled += 1;
                self.counts.spilled_bytes += flight.length;
                let filed = Filed { file, checksum };
                match flight.id {
                    Some(id) => self.settle_write(id, Some(filed), bytes),
                    None => self.discard(file, flight.length),
                }
            }
            Done::Unwritten { file, bytes } => {
                let Some(flight) = self.end_write(file) else {
                    return;
                };
                self.disk_bytes -= charge(flight.length);
                if let Some(id) = flight.id {
                    self.settle_write(id, None, bytes);
                }
            }
            Done::Read { file, bytes } => {
                if let Some(flight) = self.end_read(file)
                    && let Some(id) = flight.id
                {
                    self.settle_read(id, flight.length, bytes);
                }
            }
        }
    }

    fn settle_write(&mut self, id: Id, filed: Option<Filed>, bytes: Option<Vec<u8>>) {
        let Some(mut entry) = self.entries.remove(&id) else {
            debug_assert!(false, "a state was written that is not there");
            return;
        };
        self.writing.remove(&entry.stamp);
        let wanted = matches!(entry.place, Place::Writing { wanted: true, .. });
        entry.place = match (wanted, bytes, filed) {
            (true, Some(bytes), filed) => {
                self.pinned_bytes += entry.length;
                Place::Ready { bytes, filed }
            }
            // It was asked for just after it was written.
            (true, None, Some(filed)) => {
                self.line.push_back(id);
                Place::Wanted(filed)
            }
            (false, _, Some(filed)) => self.file(entry.stamp, id, filed),
            (_, _, None) => {
                self.note_lost(id);
                return;
            }
        };
        self.entries.insert(id, entry);
    }

    fn settle_read(&mut self, id: Id, length: u64, bytes: Option<Vec<u8>>) {
        let Some(mut entry) = self.entries.remove(&id) else {
            debug_assert!(false, "a state was read that is not there");
            return;
        };
        let Place::Reading { filed, released } = entry.place else {
            debug_assert!(false, "a state was read that was not asked for");
            return;
        };
        let Some(bytes) = bytes else {
            self.discard(filed.file, length);
            self.note_lost(id);
            return;
        };
        self.counts.read_back += 1;
        self.counts.read_back_bytes += length;
        entry.place = if released {
            self.file(entry.stamp, id, filed)
        } else {
            self.pinned_bytes += length;
            let filed = Some(filed);
            Place::Ready { bytes, filed }
        };
        self.entries.insert(id, entry);
    }

    /// Notes that a state lies on disk and is free to go.
    pub(super) fn file(&mut self, stamp: Stamp, id: Id, filed: Filed) -> Place {
        self.filed.insert(stamp, id);
        Place::Disk(filed)
    }

    fn end_write(&mut self, file: FileNumber) -> Option<Flight> {
        let flight = self.writes.remove(&file);
        debug_assert!(flight.is_some(), "a write ended that nobody began");
        self.writing_bytes -= flight.map_or(0, |flight| flight.length);
        flight
    }

    pub(super) fn end_read(&mut self, file: FileNumber) -> Option<Flight> {
        let flight = self.reads.remove(&file);
        debug_assert!(flight.is_some(), "a read ended that nobody began");
        self.pinned_bytes -= flight.map_or(0, |flight| flight.length);
        flight
    }

    /// Takes back the bytes of a write that has not begun.
    pub(super) fn take_back(&mut self, file: FileNumber) -> Option<Vec<u8>> {
        let bytes = self.desk.take_back(file)?;
        if let Some(flight) = self.end_write(file) {
            self.disk_bytes -= charge(flight.length);
        }
        Some(bytes)
    }

    /// Has a file removed. Its bytes are free for writes that come behind.
    pub(super) fn discard(&mut self, file: FileNumber, length: u64) {
        self.disk_bytes -= charge(length);
        self.desk.push(Job::Remove { file, length });
    }

    /// Loses the least recently used state whose write has not begun. False if there is none.
    fn lose_oldest_write(&mut self) -> bool {
        let file = |id: &Id| match self.entries.get(id)?.place {
            Place::Writing { file, .. } => Some(file),
            _ => None,
        };
        let writes = self.writing.iter();
        let writes = writes.filter_map(|(&stamp, id)| Some((stamp, *id, file(id)?)));
        let writes: Vec<_> = writes.collect();
        for (stamp, id, file) in writes {
            // Not those that have begun, even if they did just now.
            if self.take_back(file).is_some() {
                self.writing.remove(&stamp);
                self.entries.remove(&id);
                self.note_lost(id);
                return true;
            }
        }
        false
    }

    /// Loses the least recently used state in memory. False if there is none.
    fn lose_oldest_resident(&mut self) -> bool {
        let Some((_, &id)) = self.resident.first_key_value() else {
            return false;
        };
        self.lose(id);
        true
    }

    /// Loses a state that lies in memory or on disk and is free to go.
    fn lose(&mut self, id: Id) {
        let Some(entry) = self.entries.remove(&id) else {
            debug_assert!(false, "a state is lost that is not there");
            return;
        };
        match entry.place {
            Place::Ram(_) => {
                self.resident.remove(&entry.stamp);
                self.resident_bytes -= entry.length;
            }
            Place::Disk(filed) => {
                self.filed.remove(&entry.stamp);
                self.discard(filed.file, entry.length);
            }
            _ => debug_assert!(false, "a state is lost that is in use"),
        }
        self.note_lost(id);
    }

    pub(super) fn note_lost(&mut self, id: Id) {
        self.counts.lost += 1;
        self.lost.insert(id);
    }
}
