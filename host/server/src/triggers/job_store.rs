//! What the queue needs of a store: its records in an index in memory, and changes that are durable.
//!
//! There are two: [one](super::redb_store) in a file, and [one](super::job_stream) that the hosts of a cluster share.

use super::job::{JobKey, JobRecord};
use super::job_index::JobIndex;
use super::queue::CronState;
use super::queue_error::QueueError;
use bytes::Bytes;
use std::fmt::Debug;
use std::sync::MutexGuard;

/// One part of a change.
pub(super) enum Change {
    /// Adds a job, or replaces it if it has the version of this record.
    Job(Box<JobRecord>),
    Body(JobKey, Bytes),
    Result(JobKey, Bytes),
    /// Removes a result of so many bytes.
    RemoveResult(JobKey, u64),
    /// Removes a job with its body and result, if it has the version of this record.
    Remove(Box<JobRecord>),
    /// Replaces the state of a schedule, or removes it, if the deployment's schedules have this version.
    Cron {
        deployment: String,
        entry: String,
        state: Option<CronState>,
        version: u64,
    },
}

impl Change {
    pub(super) fn job(record: JobRecord) -> Self {
        Change::Job(Box::new(record))
    }

    pub(super) fn remove(record: &JobRecord) -> Self {
        Change::Remove(Box::new(record.clone()))
    }
}

/// Where jobs and the states of schedules are kept.
pub(super) trait JobStore: Send + Sync + Debug {
    /// Fails if the index is not read, or the store takes no changes now, with the reason. May block.
    fn check_ready(&self) -> Result<(), QueueError>;

    /// The records. Held for a moment only.
    fn index(&self) -> MutexGuard<'_, JobIndex>;

    /// Makes all changes, or none: they are durable, and in the index, when this returns true. Returns false if a record
    /// has another version by now, which is in the index then. Removals may be made alone.
    fn commit(&self, changes: Vec<Change>) -> Result<bool, QueueError>;

    /// The body of a job.
    fn body(&self, record: &JobRecord) -> Result<Bytes, QueueError>;

    /// The result of a finished job; empty if there is none.
    fn result(&self, record: &JobRecord) -> Result<Bytes, QueueError>;

    /// Id of this host, if it shares the store.
    fn host(&self) -> Option<&str> {
        None
    }

    /// Whether the host of a running job has sent no heartbeat for so long that the job is taken over.
    fn has_lost(&self, _job: &JobRecord) -> bool {
        false
    }

    /// Waits until the index has a job if another host has added it.
    fn catch_up(&self, _key: &JobKey) -> Result<(), QueueError> {
        Ok(())
    }
}
