//! The tables of `triggers.redb`: what a change writes there, what is read at the start, and an empty file.

use crate::triggers::job_index::JobIndex;
use crate::triggers::job_store::Change;
use redb::{Builder, ReadableDatabase, TableDefinition};
use std::fs::File;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Version of the format.
const FORMAT: u64 = 1;

const METADATA: TableDefinition<&str, u64> = TableDefinition::new("metadata");
/// Deployment and id → record of the job as JSON.
const JOBS: TableDefinition<(&str, &str), &[u8]> = TableDefinition::new("jobs");
/// The same → body of the request.
pub(super) const BODIES: TableDefinition<(&str, &str), &[u8]> = TableDefinition::new("bodies");
/// The same → body of the response.
pub(super) const RESULTS: TableDefinition<(&str, &str), &[u8]> = TableDefinition::new("results");
/// Deployment and schedule → state of the schedule as JSON.
const CRON: TableDefinition<(&str, &str), &[u8]> = TableDefinition::new("cron");

/// Writes the changes in one transaction, durable when this returns.
pub(super) fn transact(database: &redb::Database, changes: &[Change]) -> Result<(), redb::Error> {
    let writing = database.begin_write()?;
    {
        let mut jobs = writing.open_table(JOBS)?;
        let mut bodies = writing.open_table(BODIES)?;
        let mut results = writing.open_table(RESULTS)?;
        let mut cron = writing.open_table(CRON)?;
        let json = |error: serde_json::Error| redb::Error::Corrupted(error.to_string());
        for change in changes {
            match change {
                Change::Job(record) => {
                    let value = serde_json::to_vec(record).map_err(json)?;
                    let key = (record.deployment.as_str(), record.id.as_str());
                    jobs.insert(key, value.as_slice())?;
                }
                Change::Body(key, body) => {
                    bodies.insert((key.deployment.as_str(), key.id.as_str()), &**body)?;
                }
                Change::Result(key, result) => {
                    results.insert((key.deployment.as_str(), key.id.as_str()), &**result)?;
                }
                Change::RemoveResult(key, _) => {
                    results.remove((key.deployment.as_str(), key.id.as_str()))?;
                }
                Change::Remove(record) => {
                    let key = (record.deployment.as_str(), record.id.as_str());
                    jobs.remove(key)?;
                    bodies.remove(key)?;
                    results.remove(key)?;
                }
                Change::Cron {
                    deployment,
                    entry,
                    state,
                    ..
                } => {
                    let key = (deployment.as_str(), entry.as_str());
                    match state {
                        Some(state) => {
                            let value = serde_json::to_vec(state).map_err(json)?;
                            cron.insert(key, value.as_slice())?;
                        }
                        None => drop(cron.remove(key)?),
                    }
                }
            }
        }
    }
    writing.commit()?;
    Ok(())
}

/// The records of a database.
pub(super) fn read(database: &redb::Database) -> Result<JobIndex, redb::Error> {
    let invalid = |what: String| redb::Error::Corrupted(what);
    let reading = database.begin_read()?;
    let format = reading.open_table(METADATA)?.get("format")?;
    let format = format.map_or(0, |format| format.value());
    if format != FORMAT {
        let what = format!("it has the format {format}; this version of Corral knows {FORMAT}");
        return Err(invalid(what));
    }
    let mut index = JobIndex::default();
    for row in reading.open_table(JOBS)?.range::<(&str, &str)>(..)? {
        let (key, value) = row?;
        let record = serde_json::from_slice(value.value());
        index.insert(record.map_err(|error| invalid(format!("job {:?}: {error}", key.value())))?);
    }
    for row in reading.open_table(CRON)?.range::<(&str, &str)>(..)? {
        let (key, value) = row?;
        let (deployment, entry) = key.value();
        let state = serde_json::from_slice(value.value());
        let state = state.map_err(|error| invalid(format!("schedule {entry:?}: {error}")))?;
        let jobs = index.deployments.entry(deployment.to_owned()).or_default();
        jobs.cron.insert(entry.to_owned(), state);
    }
    Ok(index)
}

/// Creates an empty database, complete before it has its final name.
pub(super) fn create(directory: &Path, path: &Path) -> Result<(), redb::Error> {
    let new = directory.join("triggers-being-made.redb");
    let mut options = File::options();
    options.write(true).create(true).truncate(true).mode(0o600);
    options.open(&new).map_err(redb::Error::Io)?;
    let database = Builder::new().create(&new)?;
    let writing = database.begin_write()?;
    writing.open_table(METADATA)?.insert("format", FORMAT)?;
    writing.open_table(JOBS)?;
    writing.open_table(BODIES)?;
    writing.open_table(RESULTS)?;
    writing.open_table(CRON)?;
    writing.commit()?;
    drop(database);
    std::fs::rename(&new, path).map_err(redb::Error::Io)?;
    let synced = File::open(directory).and_then(|directory| directory.sync_all());
    synced.map_err(redb::Error::Io)
}
