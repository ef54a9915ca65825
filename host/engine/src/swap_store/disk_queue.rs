//! The job queue between the engine thread and the disk thread.
//!
//! It is a locked queue and not a channel because the engine cancels jobs: a fetch before the write
//! starts needs no disk. Neither side touches a file under the lock, so the engine never waits for
//! the disk.
//!
//! Bounds: [`SwapStore`](super::SwapStore) counts the bytes of reads and writes as memory. Each file
//! has one counted write and one removal. Results do not outnumber jobs.

use super::swap_dir::Disk;
use std::collections::VecDeque;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// Number of a file; never reused.
pub type FileNumber = u64;

/// Files count in whole blocks, as in file systems. This also bounds their number.
const BLOCK: u64 = 4096;

/// Disk budget that a file of this many bytes uses.
pub fn charge(bytes: u64) -> u64 {
    bytes.max(1).div_ceil(BLOCK).saturating_mul(BLOCK)
}

/// A disk job.
#[derive(Debug)]
pub enum Job {
    /// Write a new file.
    Write { file: FileNumber, bytes: Vec<u8> },
    /// Read a file of this many bytes with this checksum, unless the disk checks it.
    Read {
        file: FileNumber,
        length: u64,
        checksum: Option<u32>,
    },
    /// Remove a file of this many bytes.
    Remove { file: FileNumber, length: u64 },
}

/// Result of a read or write. Removals report nothing.
#[derive(Debug)]
pub enum Done {
    /// The file exists. Has the bytes if the engine requested them during the write.
    Written {
        file: FileNumber,
        checksum: u32,
        bytes: Option<Vec<u8>>,
    },
    /// The write failed.
    Unwritten { file: FileNumber, bytes: Vec<u8> },
    /// The read ended; `None` if the file is missing or damaged.
    Read {
        file: FileNumber,
        bytes: Option<Vec<u8>>,
    },
}

#[derive(Debug, Default)]
struct QueueState {
    /// Run first, because requests wait for them. Their files exist, so any order works.
    reads: VecDeque<Job>,
    /// Run in order: a removal frees space for the next write.
    writes_and_removals: VecDeque<Job>,
    /// The running write, and whether it returns its bytes.
    writing: Option<(FileNumber, bool)>,
    done: Vec<Done>,
    stopped: bool,
}

/// Job queue; see the module.
#[derive(Debug, Default)]
pub struct DiskQueue {
    queue: Mutex<QueueState>,
    work: Condvar,
    /// Bytes of files whose removal failed.
    stuck: AtomicU64,
}

impl DiskQueue {
    fn lock(&self) -> MutexGuard<'_, QueueState> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Queues a job.
    pub fn push(&self, job: Job) {
        let mut queue = self.lock();
        match job {
            Job::Read { .. } => queue.reads.push_back(job),
            Job::Write { .. } | Job::Remove { .. } => queue.writes_and_removals.push_back(job),
        }
        drop(queue);
        self.work.notify_one();
    }

    /// Cancels a write that has not started and returns its bytes.
    pub fn take_back(&self, number: FileNumber) -> Option<Vec<u8>> {
        let mut queue = self.lock();
        let is_it = |job: &Job| matches!(job, Job::Write { file, .. } if *file == number);
        let at = queue.writes_and_removals.iter().position(is_it)?;
        match queue.writes_and_removals.remove(at) {
            Some(Job::Write { bytes, .. }) => Some(bytes),
            _ => None,
        }
    }

    /// Cancels a read. False if it has started.
    pub fn cancel_read(&self, number: FileNumber) -> bool {
        let mut queue = self.lock();
        let is_it = |job: &Job| matches!(job, Job::Read { file, .. } if *file == number);
        let at = queue.reads.iter().position(is_it);
        at.is_some_and(|at| queue.reads.remove(at).is_some())
    }

    /// Sets whether a running write returns its bytes. No effect after it ends.
    pub fn return_bytes(&self, number: FileNumber, requested: bool) {
        if let Some((file, returns_bytes)) = &mut self.lock().writing
            && *file == number
        {
            *returns_bytes = requested;
        }
    }

    /// File of the running write.
    pub fn writing(&self) -> Option<FileNumber> {
        self.lock().writing.map(|(file, _)| file)
    }

    /// Takes the results since the last call.
    pub fn take_done(&self) -> Vec<Done> {
        std::mem::take(&mut self.lock().done)
    }

    /// Bytes of files whose removal failed; they count as disk bytes.
    pub fn stuck(&self) -> u64 {
        self.stuck.load(Ordering::Relaxed)
    }

    /// Stops the disk thread after its current job and the queued removals. Drops other queued jobs.
    pub fn stop(&self) {
        let mut queue = self.lock();
        queue.stopped = true;
        queue.reads.clear();
        let jobs = &mut queue.writes_and_removals;
        jobs.retain(|job| matches!(job, Job::Remove { .. }));
        drop(queue);
        self.work.notify_one();
    }

    #[cfg(test)]
    pub fn is_stopped(&self) -> bool {
        self.lock().stopped
    }

    /// Starts the next job, if any.
    #[cfg(test)]
    pub fn begin(&self) -> Option<Job> {
        begin(&mut self.lock())
    }

    fn wait(&self) -> Option<Job> {
        let mut queue = self.lock();
        loop {
            if let Some(job) = begin(&mut queue) {
                return Some(job);
            }
            if queue.stopped {
                return None;
            }
            queue = self
                .work
                .wait(queue)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Reports a result. True for the first one since [`take_done`](Self::take_done): wake the engine.
    pub fn finish(&self, mut done: Done) -> bool {
        if matches!(done, Done::Written { .. } | Done::Unwritten { .. }) {
            let writing = self.lock().writing.take();
            let returns_bytes = writing.is_some_and(|(_, returns_bytes)| returns_bytes);
            if let Done::Written { bytes, .. } = &mut done
                && !returns_bytes
            {
                // Free the bytes before the report, because they count as memory until then.
                *bytes = None;
            }
        }
        let mut queue = self.lock();
        queue.done.push(done);
        queue.done.len() == 1
    }
}

fn begin(queue: &mut QueueState) -> Option<Job> {
    let job = queue
        .reads
        .pop_front()
        .or_else(|| queue.writes_and_removals.pop_front())?;
    if let Job::Write { file, .. } = &job {
        queue.writing = Some((*file, false));
    }
    Some(job)
}

/// Runs jobs on the disk thread. Counts existing files, so the budget holds even if removals fail.
pub struct DiskWorker<D> {
    disk: D,
    budget: u64,
    used: u64,
    /// Files whose removal failed, with their charges. Each write and removal retries them.
    stuck: Vec<(FileNumber, u64)>,
    /// Whether the last read or write succeeded. Only the first failure is logged.
    healthy: bool,
}

impl<D: Disk> DiskWorker<D> {
    /// Creates a worker over an empty disk with a budget in bytes.
    pub fn new(disk: D, budget: u64) -> Self {
        Self {
            disk,
            budget,
            used: 0,
            stuck: Vec::new(),
            healthy: true,
        }
    }

    /// The same, where files of these charges exist.
    pub fn with_used(self, used: u64) -> Self {
        Self { used, ..self }
    }

    /// Runs jobs until the queue stops. Calls `wake` when the engine has results to take.
    pub fn serve(mut self, disk_queue: &DiskQueue, wake: &dyn Fn()) {
        let used = self.disk.prepare();
        self = self.with_used(used);
        while let Some(job) = disk_queue.wait() {
            if let Some(done) = self.perform(job, disk_queue)
                && disk_queue.finish(done)
            {
                wake();
            }
        }
    }

    /// Runs one job.
    pub fn perform(&mut self, job: Job, disk_queue: &DiskQueue) -> Option<Done> {
        let done = match job {
            Job::Write { file, bytes } => {
                let written = self.write(file, &bytes);
                match self.note(written, "write") {
                    Some(checksum) => Some(Done::Written {
                        file,
                        checksum,
                        bytes: Some(bytes),
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
                    if checksum.is_none_or(|checksum| crc32fast::hash(&bytes) == checksum) {
                        Ok(bytes)
                    } else {
                        Err(io::Error::new(
                            io::ErrorKind::InvalidData,
                            "the file's checksum does not match",
                        ))
                    }
                });
                let bytes = self.note(read, "read");
                Some(Done::Read { file, bytes })
            }
            Job::Remove { file, length } => {
                self.retry_stuck();
                self.remove(file, charge(length));
                None
            }
        };
        let stuck = self.stuck.iter().map(|(_, charge)| charge).sum();
        disk_queue.stuck.store(stuck, Ordering::Relaxed);
        done
    }

    fn write(&mut self, file: FileNumber, bytes: &[u8]) -> io::Result<u32> {
        self.retry_stuck();
        let charge = charge(bytes.len() as u64);
        if self.used.saturating_add(charge) > self.budget {
            let full = "files that cannot be removed use up the disk budget; remove them by hand";
            return Err(io::Error::new(io::ErrorKind::StorageFull, full));
        }
        self.used += charge;
        let checksum = crc32fast::hash(bytes);
        match self.disk.write(file, bytes) {
            Ok(()) => Ok(checksum),
            Err(error) => {
                // A partial file may exist.
                self.remove(file, charge);
                Err(error)
            }
        }
    }

    fn remove(&mut self, file: FileNumber, charge: u64) {
        match self.disk.remove(file) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                if self.stuck.is_empty() {
                    tracing::warn!(%error, file, "cannot remove the file of a swapped-out state; retrying");
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
                    tracing::warn!(%error, "cannot {what} a swapped-out state; the engine may have to compute it again");
                }
                self.healthy = false;
                None
            }
        }
    }
}
