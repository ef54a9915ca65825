//! The store of one host: the file `triggers.redb`, with one transaction per change, synced on commit.
//!
//! An index in memory mirrors the records; bodies and results are read from the file. After a failed write redb refuses
//! everything until it is opened again, and the index is read again then.

mod tables;

use super::job::{JobKey, JobRecord};
use super::job_index::JobIndex;
use super::job_store::{Change, JobStore};
use super::queue::{JobQueue, QueueLimits};
use super::queue_error::QueueError;
use bytes::Bytes;
use redb::{Builder, ReadableDatabase, TableDefinition};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tables::{BODIES, RESULTS, create, read, transact};

/// Of redb's page cache.
const CACHE_BYTES: usize = 8 << 20;
const FILE: &str = "triggers.redb";

#[derive(Debug)]
struct RedbStore {
    path: PathBuf,
    /// `None` after a failed write, until the next access.
    database: Mutex<Option<redb::Database>>,
    index: Mutex<JobIndex>,
}

/// Opens or creates the queue in the directory of a store. Jobs that ran when the process ended return to the queue.
pub(super) fn open(
    directory: &Path,
    limits: QueueLimits,
    now_ms: u64,
) -> Result<JobQueue, QueueError> {
    let path = directory.join(FILE);
    if !path.exists() {
        create(directory, &path).map_err(|cause| storage(&path, &cause))?;
    }
    let store = RedbStore {
        path,
        database: Mutex::new(None),
        index: Mutex::default(),
    };
    drop(store.database()?);
    let queue = JobQueue::new(Arc::new(store), limits);
    queue.interrupt(&queue.running_here_or_lost(), now_ms)?;
    Ok(queue)
}

/// Whether the directory of a store has a queue.
pub(super) fn exists(directory: &Path) -> bool {
    directory.join(FILE).exists()
}

impl RedbStore {
    /// The database, opened if it is not, with a new index.
    fn database(&self) -> Result<MutexGuard<'_, Option<redb::Database>>, QueueError> {
        let mut opened = self.database.lock().unwrap_or_else(PoisonError::into_inner);
        if opened.is_none() {
            let mut builder = Builder::new();
            builder.set_cache_size(CACHE_BYTES);
            let database = builder.open(&self.path);
            let database = database.map_err(|cause| storage(&self.path, &cause))?;
            let index = read(&database).map_err(|cause| storage(&self.path, &cause))?;
            *self.index() = index;
            *opened = Some(database);
        }
        Ok(opened)
    }

    /// A job's value in a table; empty if there is none.
    fn value(
        &self,
        table: TableDefinition<(&str, &str), &[u8]>,
        key: &JobKey,
    ) -> Result<Bytes, QueueError> {
        let database = self.database()?;
        let read = || -> Result<Option<Bytes>, redb::Error> {
            let Some(database) = &*database else {
                return Err(redb::Error::PreviousIo);
            };
            let table = database.begin_read()?.open_table(table)?;
            let value = table.get((key.deployment.as_str(), key.id.as_str()))?;
            Ok(value.map(|value| Bytes::copy_from_slice(value.value())))
        };
        let value = read().map_err(|cause| storage(&self.path, &cause))?;
        Ok(value.unwrap_or_default())
    }
}

impl JobStore for RedbStore {
    fn check_ready(&self) -> Result<(), QueueError> {
        self.database().map(drop)
    }

    fn index(&self) -> MutexGuard<'_, JobIndex> {
        self.index.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn commit(&self, changes: Vec<Change>) -> Result<bool, QueueError> {
        let mut database = self.database()?;
        let written = match &*database {
            Some(database) => transact(database, &changes),
            None => Err(redb::Error::PreviousIo),
        };
        if let Err(cause) = written {
            *database = None;
            return Err(storage(&self.path, &cause));
        }
        let index = &mut *self.index();
        for change in changes {
            match change {
                Change::Job(record) => index.insert(*record),
                Change::Remove(record) => index.remove(&record.deployment, &record.id),
                Change::Cron {
                    deployment,
                    entry,
                    state,
                    ..
                } => index.set_schedule(deployment, entry, state),
                Change::Body(..) | Change::Result(..) | Change::RemoveResult(..) => {}
            }
        }
        Ok(true)
    }

    fn body(&self, record: &JobRecord) -> Result<Bytes, QueueError> {
        self.value(BODIES, &record.key())
    }

    fn result(&self, record: &JobRecord) -> Result<Bytes, QueueError> {
        self.value(RESULTS, &record.key())
    }
}

fn storage(path: &Path, cause: &dyn std::fmt::Display) -> QueueError {
    tracing::error!(file = %path.display(), %cause, "jobs cannot be accessed");
    QueueError::Storage(format!("{}: {cause}", path.display()))
}
