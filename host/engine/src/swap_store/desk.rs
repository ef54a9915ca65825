//! The desk between the engine's thread and the disk's: jobs go one way, results come back.
//!
//! It is a queue under a lock, not a channel, since the engine takes jobs back: a state that is
//! wanted before it was written needs no disk at all. Both sides hold the lock for a few
//! instructions only, never while a file is touched, so the engine does not wait for the disk.
//!
//! Bounds: reads and writes by [`SwapStore`](super::SwapStore), which counts their bytes as memory; removals
//! by the files there are, as a file is removed once and none is written without a counted write;
//! results by the jobs.

use super::folder::Disk;
use std::collections::VecDeque;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// A file's number; never used twice.
pub type FileNumber = u64;

/// Files are charged in whole blocks, as file systems do. It also bounds how many there can be.
const BLOCK: u64 = 4096;

/// What a blob of this many bytes takes of the disk budget.
pub fn charge(bytes: u64) -> u64 {
    bytes.max(1).div_ceil(BLOCK).saturating_mul(BLOCK)
}

/// Something to do on the disk.
#[derive(Debug)]
pub enum Job {
    /// Write a blob to a new file.
    Write { file: FileNumber, bytes: Vec<u8> },
    /// Read a file of this many bytes with this checksum.
    Read {
        file: FileNumber,
        length: u64,
        checksum: u32,
    },
    /// Remove a file of this many bytes.
    Remove { file: FileNumber, length: u64 },
}

/// What became of a read or a write; removals are not reported.
#[derive(Debug)]
pub enum Done {
    /// The file is there. The bytes come back if they were asked for meanwhile.
    Written {
        file: FileNumber,
        checksum: u32,
        bytes: Option<Vec<u8>>,
    },
    /// There is no file. The bytes come back if they were asked for meanwhile.
    Unwritten {
        file: FileNumber,
        bytes: Option<Vec<u8>>,
    },
    /// The file was read, or is gone or damaged.
    Read {
        file: FileNumber,
        bytes: Option<Vec<u8>>,
    },
}

#[derive(Debug, Default)]
struct Queue {
    /// Before all else: someone waits for them. Their files are written, so the order is free.
    reads: VecDeque<Job>,
    /// Writes and removals in order, so that a removal makes room for the write behind it.
    chores: VecDeque<Job>,
    /// The file whose write has begun, and whether its bytes shall come back.
    writing: Option<(FileNumber, bool)>,
    done: Vec<Done>,
    stopped: bool,
}

/// See the module.
#[derive(Debug, Default)]
pub struct Desk {
    queue: Mutex<Queue>,
    work: Condvar,
    /// Bytes of files that were to be removed and could not be.
    stuck: AtomicU64,
}

impl Desk {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Hands a job to the disk's thread.
    pub fn push(&self, job: Job) {
        let mut queue = self.lock();
        match job {
            Job::Read { .. } => queue.reads.push_back(job),
            Job::Write { .. } | Job::Remove { .. } => queue.chores.push_back(job),
        }
        drop(queue);
        self.work.notify_one();
    }

    /// Takes back the bytes of a write that has not begun; the file is then never made.
    pub fn take_back(&self, number: FileNumber) -> Option<Vec<u8>> {
        let mut queue = self.lock();
        let is_it = |job: &Job| matches!(job, Job::Write { file, .. } if *file == number);
        let at = queue.chores.iter().position(is_it)?;
        match queue.chores.remove(at) {
            Some(Job::Write { bytes, .. }) => Some(bytes),
            _ => None,
        }
    }

    /// Takes back a read that has not begun. False if it has.
    pub fn cancel_read(&self, number: FileNumber) -> bool {
        let mut queue = self.lock();
        let is_it = |job: &Job| matches!(job, Job::Read { file, .. } if *file == number);
        let at = queue.reads.iter().position(is_it);
        at.is_some_and(|at| queue.reads.remove(at).is_some())
    }

    /// Says whether the bytes of a write that has begun shall come back. Has no effect once it ended.
    pub fn keep(&self, number: FileNumber, wanted: bool) {
        if let Some((file, keep)) = &mut self.lock().writing
            && *file == number
        {
            *keep = wanted;
        }
    }

    /// The file whose write has begun.
    pub fn writing(&self) -> Option<FileNumber> {
        self.lock().writing.map(|(file, _)| file)
    }

    /// What was done since the last call.
    pub fn take_done(&self) -> Vec<Done> {
        std::mem::take(&mut self.lock().done)
    }

    /// Bytes of files that were to be removed and could not be; they count as disk bytes.
    pub fn stuck(&self) -> u64 {
        self.stuck.load(Ordering::Relaxed)
    }

    /// Ends the disk's thread after what it does now. What is queued is not done.
    pub fn stop(&self) {
        self.lock().stopped = true;
        self.work.notify_one();
    }

    #[cfg(test)]
    pub fn is_stopped(&self) -> bool {
        self.lock().stopped
    }

    /// The next job, if there is one: for the disk's thread.
    #[cfg(test)]
    pub fn begin(&self) -> Option<Job> {
        begin(&mut self.lock())
    }

    fn wait(&self) -> Option<Job> {
        let mut queue = self.lock();
        loop {
            if queue.stopped {
                return None;
            }
            if let Some(job) = begin(&mut queue) {
                return Some(job);
            }
            queue = self
                .work
                .wait(queue)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Reports what was done. True if the engine must be told: whoever was told before has not looked
    /// yet, so it is told once.
    pub fn finish(&self, mut done: Done) -> bool {
        if let Done::Written { bytes, .. } | Done::Unwritten { bytes, .. } = &mut done {
            let kept = self.lock().writing.take().is_some_and(|(_, keep)| keep);
            if !kept {
                // Freed before it is reported, and not by the engine: it still counts as memory.
                *bytes = None;
            }
        }
        let mut queue = self.lock();
        queue.done.push(done);
        queue.done.len() == 1
    }
}

fn begin(queue: &mut Queue) -> Option<Job> {
    let job = queue
        .reads
        .pop_front()
        .or_else(|| queue.chores.pop_front())?;
    if let Job::Write { file, .. } = &job {
        queue.writing = Some((*file, false));
    }
    Some(job)
}

/// Does the jobs. It counts the files that exist, so that the budget holds even where a file can't
/// be removed: the engine counts what it asked for, this what is there.
pub struct Clerk<D> {
    disk: D,
    budget: u64,
    used: u64,
    /// Files that could not be removed, with their charges; tried again at each write and removal.
    stuck: Vec<(FileNumber, u64)>,
    /// Whether the last write or read went well: a disk that fails is logged once.
    healthy: bool,
}

impl<D: Disk> Clerk<D> {
    /// A clerk with an empty disk, of which it may use `budget` bytes.
    pub fn new(disk: D, budget: u64) -> Self {
        Self {
            disk,
            budget,
            used: 0,
            stuck: Vec::new(),
            healthy: true,
        }
    }

    /// Does jobs until the desk is stopped; `wake` tells the engine that something was done.
    pub fn serve(mut self, desk: &Desk, wake: &dyn Fn()) {
        while let Some(job) = desk.wait() {
            if let Some(done) = self.perform(job, desk)
                && desk.finish(done)
            {
                wake();
            }
        }
    }

    /// Does one job.
    pub fn perform(&mut self, job: Job, desk: &Desk) -> Option<Done> {
        let done = match job {
            Job::Write { file, bytes } => {
                let written = self.write(file, &bytes);
                let bytes = Some(bytes);
                match self.note(written, "write") {
                    Some(checksum) => Some(Done::Written {
                        file,
                        checksum,
                        bytes,
                    }),
                    None => Some(Done::Unwritten { file, bytes }),
                }
            }
            Job::Read {
                file,
                length,
                checksum,
            } => {
                let read = self.disk.read(file, length).and_then(|bytes| {
                    if crc32fast::hash(&bytes) == checksum {
                        Ok(bytes)
                    } else {
                        Err(io::Error::new(
                            io::ErrorKind::InvalidData,
                            "the file's bytes are not those that were written",
                        ))
                    }
                });
                let bytes = self.note(read, "read back");
                Some(Done::Read { file, bytes })
            }
            Job::Remove { file, length } => {
                self.retry_stuck();
                self.remove(file, charge(length));
                None
            }
        };
        let stuck = self.stuck.iter().map(|(_, charge)| charge).sum();
        desk.stuck.store(stuck, Ordering::Relaxed);
        done
    }

    fn write(&mut self, file: FileNumber, bytes: &[u8]) -> io::Result<u32> {
        self.retry_stuck();
        let charge = charge(bytes.len() as u64);
        if self.used.saturating_add(charge) > self.budget {
            let full = "the disk budget is taken up by files that could not be removed";
            return Err(io::Error::new(io::ErrorKind::StorageFull, full));
        }
        self.used += charge;
        let checksum = crc32fast::hash(bytes);
        match self.disk.write(file, bytes) {
            Ok(()) => Ok(checksum),
            Err(error) => {
                // A part of it may be there.
                self.remove(file, charge);
                Err(error)
            }
        }
    }

    fn remove(&mut self, file: FileNumber, charge: u64) {
        match self.disk.remove(file) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                if self.stuck.is_empty() {
                    tracing::warn!(%error, file, "a spilled state's file cannot be removed; it is tried again");
                }
                self.stuck.push((file, charge));
            }
            _ => self.used -= charge,
        }
    }

    fn retry_stuck(&mut self) {
        for (file, charge) in std::mem::take(&mut self.stuck) {
            self.remove(file, charge);
        }
    }

    fn note<T>(&mut self, result: io::Result<T>, what: &str) -> Option<T> {
        match result {
            Ok(value) => {
                self.healthy = true;
                Some(value)
            }
            Err(error) => {
                if self.healthy {
                    tracing::warn!(%error, "cannot {what} a spilled state; it will be computed again");
                }
                self.healthy = false;
                None
            }
        }
    }
}
