//! The queue in redb, in the file `triggers.redb` of the store: one transaction per change, synced on commit.
//!
//! An index in memory mirrors the records; bodies and results are read from the file. One lock covers a change from its
//! check to its commit; lookups take only the lock of the index, so they do not wait for the disk. After a failed write
//! redb refuses everything until it is opened again, and the index is read again then.

use super::job::{JobClaim, JobKey, JobOwner, JobRecord, JobState, Outcome, millis};
use super::job_index::{DeploymentJobs, JobIndex};
use super::queue::{
    ClaimedJob, CronFire, CronState, JobCounts, JobQueue, NewJob, QueueError, QueueLimits,
};
use bytes::Bytes;
use redb::{Builder, ReadableDatabase, TableDefinition};
use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Version of the format.
const FORMAT: u64 = 1;
/// Page cache.
const CACHE_BYTES: usize = 8 << 20;
const FILE: &str = "triggers.redb";
/// Longest wait of a deferred job, unless the cause demands a longer one.
const MAX_DEFERRED_WAIT: Duration = Duration::from_secs(60);
/// Most jobs that one transaction removes.
const MAX_REMOVED: usize = 1000;

const METADATA: TableDefinition<&str, u64> = TableDefinition::new("metadata");
/// Deployment and id → [`JobRecord`] as JSON.
const JOBS: TableDefinition<(&str, &str), &[u8]> = TableDefinition::new("jobs");
/// The same → body of the request.
const BODIES: TableDefinition<(&str, &str), &[u8]> = TableDefinition::new("bodies");
/// The same → body of the response.
const RESULTS: TableDefinition<(&str, &str), &[u8]> = TableDefinition::new("results");
/// Deployment and schedule → [`CronState`] as JSON.
const CRON: TableDefinition<(&str, &str), &[u8]> = TableDefinition::new("cron");

/// An open queue.
#[derive(Debug)]
pub(crate) struct RedbQueue {
    path: PathBuf,
    limits: QueueLimits,
    /// `None` after a failed write, until the next access.
    database: Mutex<Option<redb::Database>>,
    index: Mutex<JobIndex>,
}

/// One part of a transaction.
enum Change {
    Job(Box<JobRecord>),
    Body(JobKey, Bytes),
    Result(JobKey, Bytes),
    Remove(JobKey),
    Cron(String, String, CronState),
    RemoveCron(String, String),
}

/// The database, held during a change.
type Writer<'a> = MutexGuard<'a, Option<redb::Database>>;

impl RedbQueue {
    /// Opens or creates the queue in the directory of a store. Jobs that ran when the process ended return to the queue.
    pub(crate) fn open(
        directory: &Path,
        limits: QueueLimits,
        now_ms: u64,
    ) -> Result<Self, QueueError> {
        let path = directory.join(FILE);
        if !path.exists() {
            create(directory, &path).map_err(|cause| storage(&path, &cause))?;
        }
        let queue = RedbQueue {
            path,
            limits,
            database: Mutex::new(None),
            index: Mutex::default(),
        };
        drop(queue.write()?);
        queue.interrupt(&queue.running(), now_ms)?;
        Ok(queue)
    }

    /// Deployments that it knows.
    pub(crate) fn deployments(&self) -> Vec<String> {
        self.index().deployments.keys().cloned().collect()
    }

    fn index(&self) -> MutexGuard<'_, JobIndex> {
        self.index.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins a change: the lock, with the database open.
    fn write(&self) -> Result<Writer<'_>, QueueError> {
        let mut writer = self.database.lock().unwrap_or_else(PoisonError::into_inner);
        if writer.is_none() {
            let mut builder = Builder::new();
            builder.set_cache_size(CACHE_BYTES);
            let opened = builder.open(&self.path);
            let database = opened.map_err(|cause| storage(&self.path, &cause))?;
            let index = read(&database).map_err(|cause| storage(&self.path, &cause))?;
            *self.index() = index;
            *writer = Some(database);
        }
        Ok(writer)
    }

    /// Ends a change: durable, and in the index, when this returns.
    fn commit(&self, mut writer: Writer<'_>, changes: Vec<Change>) -> Result<(), QueueError> {
        if changes.is_empty() {
            return Ok(());
        }
        let written = match &*writer {
            Some(database) => transact(database, &changes),
            None => Err(redb::Error::PreviousIo),
        };
        if let Err(cause) = written {
            *writer = None;
            return Err(storage(&self.path, &cause));
        }
        let index = &mut *self.index();
        for change in changes {
            match change {
                Change::Job(record) => index.insert(*record),
                Change::Remove(key) => index.remove(&key.deployment, &key.id),
                Change::Cron(deployment, entry, state) => {
                    let jobs = index.deployments.entry(deployment).or_default();
                    jobs.cron.insert(entry, state);
                }
                Change::RemoveCron(deployment, entry) => {
                    index.remove_schedule(&deployment, &entry);
                }
                Change::Body(..) | Change::Result(..) => {}
            }
        }
        Ok(())
    }

    /// The finished jobs to remove for one more job of `deployment` with `bytes` more bytes.
    fn make_room(
        &self,
        deployment: &str,
        jobs: usize,
        bytes: u64,
    ) -> Result<Vec<Change>, QueueError> {
        let limits = &self.limits;
        let index = self.index();
        let none = DeploymentJobs::default();
        let own = index.deployments.get(deployment).unwrap_or(&none);
        let mut removed = Vec::new();
        let (mut own_jobs, mut own_bytes) = (own.jobs.len() + jobs, own.bytes + bytes);
        let (mut all_jobs, mut all_bytes) = (index.jobs + jobs, index.bytes + bytes);
        let mut finished = own.evictable();
        while own_jobs > limits.jobs_per_deployment || own_bytes > limits.bytes_per_deployment {
            let scope = || format!("jobs of '{deployment}'");
            let Some(job) = finished.next() else {
                return Err(match own_jobs > limits.jobs_per_deployment {
                    true => no_room("entries", limits.jobs_per_deployment as u64, scope()),
                    false => no_room("bytes", limits.bytes_per_deployment, scope()),
                });
            };
            (own_jobs, own_bytes) = (own_jobs - 1, own_bytes - job.bytes());
            (all_jobs, all_bytes) = (all_jobs - 1, all_bytes - job.bytes());
            removed.push(Change::Remove(job.key()));
        }
        // Of the deployment that stores most, so that a small one keeps its results.
        let largest = index.largest_with_finished();
        let largest = largest.filter(|name| *name != deployment);
        let others = largest.and_then(|name| index.deployments.get(name));
        let mut finished = others
            .into_iter()
            .flat_map(DeploymentJobs::evictable)
            .chain(finished);
        while all_jobs > limits.jobs || all_bytes > limits.bytes {
            let scope = || "jobs of all deployments".to_owned();
            let Some(job) = finished.next() else {
                return Err(match all_jobs > limits.jobs {
                    true => no_room("entries", limits.jobs as u64, scope()),
                    false => no_room("bytes", limits.bytes, scope()),
                });
            };
            (all_jobs, all_bytes) = (all_jobs - 1, all_bytes - job.bytes());
            removed.push(Change::Remove(job.key()));
        }
        Ok(removed)
    }

    /// How often attempts of this owner were deferred in a row. Those that run at once count as one.
    fn deferrals(&self, deployment: &str, owner: &JobOwner, now_ms: u64) -> u32 {
        let index = self.index();
        let jobs = index.deployments.get(deployment);
        jobs.map_or(1, |jobs| jobs.deferrals(owner, now_ms))
    }

    /// Changes the jobs of those attempts that run.
    fn change_running(
        &self,
        claims: &[JobClaim],
        change: impl Fn(&mut JobRecord),
    ) -> Result<(), QueueError> {
        let writer = self.write()?;
        let mut changes = Vec::new();
        for claim in claims {
            if let Some(mut job) = self.job(&claim.key).filter(|job| job.runs_as(claim)) {
                change(&mut job);
                changes.push(Change::Job(Box::new(job)));
            }
        }
        self.commit(writer, changes)
    }

    fn known(&self, key: &JobKey) -> Result<JobRecord, QueueError> {
        let found = self.job(key);
        found.ok_or_else(|| QueueError::Unknown(key.deployment.clone()))
    }

    /// Reads the value of a job.
    fn value(
        &self,
        database: &redb::Database,
        table: TableDefinition<(&str, &str), &[u8]>,
        key: &JobKey,
    ) -> Result<Bytes, QueueError> {
        let read = || -> Result<Option<Bytes>, redb::Error> {
            let reading = database.begin_read()?;
            let table = reading.open_table(table)?;
            let value = table.get((key.deployment.as_str(), key.id.as_str()))?;
            Ok(value.map(|value| Bytes::copy_from_slice(value.value())))
        };
        let value = read().map_err(|cause| storage(&self.path, &cause))?;
        Ok(value.unwrap_or_default())
    }
}

impl JobQueue for RedbQueue {
    fn submit(&self, job: NewJob, queued: usize) -> Result<(JobRecord, bool), QueueError> {
        let writer = self.write()?;
        let NewJob { record, body } = job;
        {
            let index = self.index();
            let jobs = index.deployments.get(&record.deployment);
            if let Some(same) = jobs.and_then(|jobs| jobs.with_client_key(&record)) {
                return match same.body_digest == record.body_digest {
                    true => Ok((same.clone(), false)),
                    false => Err(QueueError::KeyReused),
                };
            }
        }
        self.check_room(&record.deployment, &record.owner(), queued)?;
        let mut changes = self.make_room(&record.deployment, 1, record.bytes())?;
        changes.push(Change::Body(record.key(), body));
        changes.push(Change::Job(Box::new(record.clone())));
        self.commit(writer, changes)?;
        Ok((record, true))
    }

    fn check_room(
        &self,
        deployment: &str,
        owner: &JobOwner,
        queued: usize,
    ) -> Result<(), QueueError> {
        let index = self.index();
        let Some(jobs) = index.deployments.get(deployment) else {
            return Ok(());
        };
        let full = |limit, whose| {
            Err(QueueError::Full {
                deployment: deployment.to_owned(),
                limit,
                whose,
            })
        };
        let share = queued.div_ceil(2);
        let own = jobs.counts(Some(owner));
        match owner {
            _ if jobs.unfinished() >= queued => full(queued, ""),
            JobOwner::Tenant(_) if own.waiting + own.running >= share => {
                full(share, " from this tenant")
            }
            _ => Ok(()),
        }
    }

    fn claim(
        &self,
        deployment: &str,
        most: usize,
        now_ms: u64,
    ) -> Result<Vec<ClaimedJob>, QueueError> {
        let writer = self.write()?;
        let ready = match self.index().deployments.get(deployment) {
            Some(jobs) => Vec::from_iter(jobs.ready(most, now_ms).into_iter().cloned()),
            None => Vec::new(),
        };
        let mut claimed = Vec::new();
        for mut record in ready {
            record.begin(now_ms);
            let body = match &*writer {
                Some(database) => self.value(database, BODIES, &record.key())?,
                None => Bytes::new(),
            };
            claimed.push(ClaimedJob { record, body });
        }
        let records = claimed
            .iter()
            .map(|job| Change::Job(Box::new(job.record.clone())));
        self.commit(writer, records.collect())?;
        Ok(claimed)
    }

    fn finish(
        &self,
        claim: &JobClaim,
        outcome: Outcome,
        now_ms: u64,
    ) -> Result<Option<JobRecord>, QueueError> {
        let writer = self.write()?;
        let key = &claim.key;
        let Some(mut record) = self.job(key).filter(|job| job.runs_as(claim)) else {
            return Ok(None);
        };
        let mut changes = Vec::new();
        let mut outcome = outcome;
        let owner = record.owner();
        let pause = match &mut outcome {
            Outcome::Deferred { wait, .. } => {
                let deferrals = self.deferrals(&key.deployment, &owner, now_ms);
                *wait = deferred_wait(*wait, deferrals, rand::random_range(0.75..=1.0));
                Some((now_ms.saturating_add(millis(*wait)), deferrals))
            }
            _ => None,
        };
        let result = record.end(outcome, now_ms);
        if let Some(result) = result {
            match self.make_room(&key.deployment, 0, result.len() as u64) {
                Ok(removed) => {
                    changes = removed;
                    changes.push(Change::Result(key.clone(), result));
                }
                Err(error) => {
                    record.result_bytes = 0;
                    if record.state == JobState::Succeeded {
                        let dropped = "it succeeded, but there was no room for its result";
                        record.error = Some(format!("{dropped}: {error}"));
                    }
                }
            }
        }
        changes.push(Change::Job(Box::new(record.clone())));
        self.commit(writer, changes)?;
        let mut index = self.index();
        if let Some(jobs) = index.deployments.get_mut(&key.deployment) {
            jobs.set_pause(owner, pause);
        }
        Ok(Some(record))
    }

    fn release(&self, claims: &[JobClaim], now_ms: u64) -> Result<(), QueueError> {
        self.change_running(claims, |job| job.release(now_ms))
    }

    fn interrupt(&self, claims: &[JobClaim], now_ms: u64) -> Result<(), QueueError> {
        self.change_running(claims, |job| job.interrupt(now_ms))
    }

    fn running(&self) -> Vec<JobClaim> {
        let index = self.index();
        let running = index.deployments.values().flat_map(|jobs| jobs.running());
        running.map(JobRecord::claim).collect()
    }

    fn cancel(&self, key: &JobKey, now_ms: u64) -> Result<JobRecord, QueueError> {
        let writer = self.write()?;
        let mut job = self.known(key)?;
        if job.state.is_finished() {
            return Err(QueueError::WrongState(job.state));
        }
        job.finish(JobState::Canceled, now_ms);
        self.commit(writer, vec![Change::Job(Box::new(job.clone()))])?;
        Ok(job)
    }

    fn retry(&self, key: &JobKey, now_ms: u64) -> Result<JobRecord, QueueError> {
        let writer = self.write()?;
        let mut job = self.known(key)?;
        if !matches!(job.state, JobState::Dead | JobState::Canceled) {
            return Err(QueueError::WrongState(job.state));
        }
        job.requeue(now_ms);
        let changes = vec![
            Change::Result(key.clone(), Bytes::new()),
            Change::Job(Box::new(job.clone())),
        ];
        self.commit(writer, changes)?;
        Ok(job)
    }

    fn purge(&self, deployment: &str, state: Option<JobState>) -> Result<usize, QueueError> {
        let mut count = 0;
        loop {
            let writer = self.write()?;
            let removed = match self.index().deployments.get(deployment) {
                Some(jobs) => {
                    let finished = jobs.finished().map(|(_, job)| job);
                    let chosen =
                        finished.filter(|job| state.is_none_or(|state| job.state == state));
                    let removed = chosen.map(|job| Change::Remove(job.key()));
                    Vec::from_iter(removed.take(MAX_REMOVED))
                }
                None => Vec::new(),
            };
            if removed.is_empty() {
                return Ok(count);
            }
            count += removed.len();
            self.commit(writer, removed)?;
        }
    }

    fn expire(&self, now_ms: u64) -> Result<Vec<JobRecord>, QueueError> {
        let writer = self.write()?;
        let (mut changes, mut dead) = (Vec::new(), Vec::new());
        for jobs in self.index().deployments.values() {
            let ended = jobs.finished().filter(|(at, _)| *at <= now_ms);
            changes.extend(ended.map(|(_, job)| Change::Remove(job.key())));
            for job in jobs.waiting() {
                let mut job = job.clone();
                if job.dead_letter_if_too_old(now_ms) {
                    changes.push(Change::Job(Box::new(job.clone())));
                    dead.push(job);
                }
            }
        }
        self.commit(writer, changes)?;
        Ok(dead)
    }

    fn remove_deployment(&self, deployment: &str) -> Result<(), QueueError> {
        let writer = self.write()?;
        let mut changes = Vec::new();
        if let Some(jobs) = self.index().deployments.get(deployment) {
            changes.extend(jobs.jobs.values().map(|job| Change::Remove(job.key())));
            let entries = jobs.cron.keys().cloned();
            changes.extend(entries.map(|entry| Change::RemoveCron(deployment.to_owned(), entry)));
        }
        self.commit(writer, changes)
    }

    fn fire(&self, fire: CronFire) -> Result<bool, QueueError> {
        let writer = self.write()?;
        let CronFire {
            deployment,
            entry,
            state,
            job,
        } = fire;
        let known = self.cron_states(&deployment).remove(&entry);
        // A schedule that begins anew has an earlier time, and no run.
        if job.is_some() && known.is_some_and(|known| known.handled_ms >= state.handled_ms) {
            return Ok(false);
        }
        let mut changes = Vec::new();
        if let Some(NewJob { record, body }) = job {
            changes = self.make_room(&deployment, 1, record.bytes())?;
            changes.push(Change::Body(record.key(), body));
            changes.push(Change::Job(Box::new(record)));
        }
        changes.push(Change::Cron(deployment, entry, state));
        self.commit(writer, changes)?;
        Ok(true)
    }

    fn job(&self, key: &JobKey) -> Option<JobRecord> {
        self.index().get(&key.deployment, &key.id).cloned()
    }

    fn result(&self, key: &JobKey) -> Result<Bytes, QueueError> {
        let writer = self.write()?;
        match &*writer {
            Some(database) => self.value(database, RESULTS, key),
            None => Ok(Bytes::new()),
        }
    }

    fn list(
        &self,
        deployment: &str,
        most: usize,
        matches: &dyn Fn(&JobRecord) -> bool,
    ) -> Vec<JobRecord> {
        let index = self.index();
        let jobs = index.deployments.get(deployment);
        let newest = jobs.into_iter().flat_map(|jobs| jobs.jobs.values().rev());
        newest
            .filter(|job| matches(job))
            .take(most)
            .cloned()
            .collect()
    }

    fn keep_schedules(&self, deployment: &str, entries: &[String]) -> Result<(), QueueError> {
        let writer = self.write()?;
        let known = self.cron_states(deployment).into_keys();
        let old = known.filter(|entry| !entries.contains(entry));
        let removed = old.map(|entry| Change::RemoveCron(deployment.to_owned(), entry));
        self.commit(writer, removed.collect())
    }

    fn cron_states(&self, deployment: &str) -> BTreeMap<String, CronState> {
        let index = self.index();
        let jobs = index.deployments.get(deployment);
        jobs.map(|jobs| jobs.cron.clone()).unwrap_or_default()
    }

    fn counts(&self) -> BTreeMap<String, JobCounts> {
        let index = self.index();
        let all = index.deployments.iter();
        all.map(|(name, jobs)| (name.clone(), jobs.counts(None)))
            .collect()
    }

    fn counts_of(&self, deployment: &str, owner: Option<&JobOwner>) -> JobCounts {
        let index = self.index();
        let jobs = index.deployments.get(deployment);
        jobs.map(|jobs| jobs.counts(owner)).unwrap_or_default()
    }
}

/// The wait of a deferred job: doubles with each deferral in a row, and is a little less by chance (`part` is from 0.75 to 1),
/// but not less than what the cause demands.
fn deferred_wait(wait: Duration, deferrals: u32, part: f64) -> Duration {
    let doublings = deferrals.saturating_sub(1).min(16);
    let longest = wait.saturating_mul(1 << doublings).min(MAX_DEFERRED_WAIT);
    longest.mul_f64(part).max(wait)
}

fn no_room(what: &'static str, limit: u64, scope: String) -> QueueError {
    QueueError::NoRoom { what, limit, scope }
}

fn storage(path: &Path, cause: &dyn std::fmt::Display) -> QueueError {
    tracing::error!(file = %path.display(), %cause, "jobs cannot be accessed");
    QueueError::Storage(format!("{}: {cause}", path.display()))
}

fn transact(database: &redb::Database, changes: &[Change]) -> Result<(), redb::Error> {
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
                Change::Remove(key) => {
                    let key = (key.deployment.as_str(), key.id.as_str());
                    jobs.remove(key)?;
                    bodies.remove(key)?;
                    results.remove(key)?;
                }
                Change::Cron(deployment, entry, state) => {
                    let value = serde_json::to_vec(state).map_err(json)?;
                    cron.insert((deployment.as_str(), entry.as_str()), value.as_slice())?;
                }
                Change::RemoveCron(deployment, entry) => {
                    cron.remove((deployment.as_str(), entry.as_str()))?;
                }
            }
        }
    }
    writing.commit()?;
    Ok(())
}

/// The records of a database.
fn read(database: &redb::Database) -> Result<JobIndex, redb::Error> {
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
fn create(directory: &Path, path: &Path) -> Result<(), redb::Error> {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::triggers::job::{JobResponse, JobSender, record};

    fn open(directory: &Path) -> RedbQueue {
        RedbQueue::open(directory, QueueLimits::default(), 100).expect("opens")
    }

    fn job(id: &str, body: &'static [u8]) -> NewJob {
        NewJob {
            record: record("a", id, body, 1),
            body: Bytes::from_static(body),
        }
    }

    fn with_key(mut job: NewJob, key: &str, tenant: Option<&str>) -> NewJob {
        job.record.idempotency_key = Some(key.to_owned());
        job.record.sender = tenant.map(|tenant| JobSender {
            tenant: tenant.to_owned(),
            key: "k".to_owned(),
        });
        job
    }

    fn done(body: &'static [u8]) -> Outcome {
        Outcome::Response(JobResponse {
            status: 200,
            content_type: None,
            body: Bytes::from_static(body),
        })
    }

    /// The first attempt of a job.
    fn first(id: &str) -> JobClaim {
        JobClaim {
            key: key(id),
            number: 1,
        }
    }

    fn key(id: &str) -> JobKey {
        JobKey {
            deployment: "a".to_owned(),
            id: id.to_owned(),
        }
    }

    #[test]
    fn jobs_survive_reopening_and_run_again() {
        let dir = tempfile::tempdir().expect("there is room");
        let queue = open(dir.path());
        for id in ["1", "2", "3"] {
            queue.submit(job(id, b"body"), 9).expect("there is room");
        }
        let claimed = queue.claim("a", 2, 5).expect("two");
        assert_eq!(
            claimed
                .iter()
                .map(|job| &*job.record.id)
                .collect::<Vec<_>>(),
            ["1", "2"]
        );
        assert_eq!(claimed[0].body, "body");
        queue
            .finish(&first("1"), done(b"result"), 6)
            .expect("stored");
        drop(queue);
        let queue = open(dir.path());
        assert_eq!(queue.result(&key("1")).expect("stored"), "result");
        assert_eq!(
            queue.job(&key("1")).expect("it is there").state,
            JobState::Succeeded
        );
        let interrupted = queue.job(&key("2")).expect("it is there");
        assert_eq!(
            (interrupted.state, interrupted.interruptions),
            (JobState::Waiting, 1)
        );
        let again = queue.claim("a", 9, 200).expect("the others");
        assert_eq!(
            again.iter().map(|job| &*job.record.id).collect::<Vec<_>>(),
            ["3", "2"]
        );
        let late = queue
            .finish(&first("1"), done(b"other"), 7)
            .expect("no failure");
        assert!(late.is_none(), "a finished job stays finished");
    }

    #[test]
    fn repeated_idempotency_key_returns_the_same_job() {
        let dir = tempfile::tempdir().expect("there is room");
        let queue = open(dir.path());
        let send = |id, body, tenant| queue.submit(with_key(job(id, body), "k", tenant), 9);
        let first = send("1", b"x", Some("alice")).expect("new");
        assert!(first.1);
        let again = send("2", b"x", Some("alice")).expect("the same");
        assert_eq!((again.0.id.as_str(), again.1), ("1", false));
        let other_body = send("2", b"y", Some("alice"));
        assert!(matches!(other_body, Err(QueueError::KeyReused)));
        let other_tenant = send("2", b"x", Some("bob")).expect("new");
        assert!(other_tenant.1);
    }

    #[test]
    fn finished_jobs_make_room_and_unfinished_do_not() {
        let dir = tempfile::tempdir().expect("there is room");
        let limits = QueueLimits {
            jobs_per_deployment: 3,
            bytes_per_deployment: 10,
            ..QueueLimits::default()
        };
        let queue = RedbQueue::open(dir.path(), limits, 1).expect("opens");
        queue.submit(job("1", b"12345"), 9).expect("there is room");
        queue.claim("a", 1, 2).expect("one");
        queue.finish(&first("1"), done(b"1"), 3).expect("stored");
        queue
            .submit(job("2", b"12345"), 9)
            .expect("in place of the first");
        assert!(queue.job(&key("1")).is_none());
        queue.submit(job("3", b"12345"), 9).expect("there is room");
        let full = queue.submit(job("4", b"1"), 9).expect_err("no bytes");
        assert!(full.to_string().contains("all 10 bytes"), "{full}");
        queue.submit(job("5", b""), 9).expect("there is room");
        let full = queue.submit(job("6", b""), 9).expect_err("no entry");
        assert!(full.to_string().contains("all 3 entries"), "{full}");
        let full = queue
            .submit(job("6", b""), 3)
            .expect_err("the queue is full");
        assert!(matches!(full, QueueError::Full { limit: 3, .. }));
        let counts = queue.counts()["a"];
        assert_eq!((counts.waiting, counts.bytes), (3, 10));
    }

    #[test]
    fn canceled_dead_and_expired_jobs_end() {
        let dir = tempfile::tempdir().expect("there is room");
        let queue = open(dir.path());
        for id in ["1", "2"] {
            queue.submit(job(id, b"x"), 9).expect("there is room");
        }
        queue.claim("a", 1, 2).expect("one");
        queue.cancel(&key("1"), 3).expect("it runs");
        assert!(
            queue
                .finish(&first("1"), done(b""), 4)
                .expect("no failure")
                .is_none()
        );
        let twice = queue.cancel(&key("1"), 3).expect_err("it has ended");
        assert!(matches!(twice, QueueError::WrongState(JobState::Canceled)));
        queue.retry(&key("1"), 5).expect("it was canceled");
        queue.claim("a", 2, 9).expect("both");
        let stale = [first("1")];
        queue.release(&stale, 9).expect("no failure");
        queue.interrupt(&stale, 9).expect("no failure");
        let ended = queue.finish(&stale[0], done(b""), 9).expect("no failure");
        assert!(ended.is_none(), "the first attempt was canceled");
        queue.release(&[first("2")], 9).expect("it runs");
        let second = queue.running();
        assert_eq!(second, [queue.job(&key("1")).expect("it is there").claim()]);
        assert_eq!(queue.job(&key("2")).expect("it is there").attempts, 0);
        let ended = queue.finish(&second[0], done(b""), 10).expect("it runs");
        assert_eq!(ended.expect("it runs").state, JobState::Succeeded);
        let day = 24 * 3600 * 1000;
        queue.expire(day).expect("no failure");
        assert!(queue.job(&key("1")).is_some());
        queue.expire(day + 10).expect("no failure");
        assert!(queue.job(&key("1")).is_none());
        let dead = queue.expire(8 * day).expect("no failure");
        assert_eq!((dead.len(), dead[0].state), (1, JobState::Dead));
        assert_eq!(
            queue
                .purge("a", Some(JobState::Succeeded))
                .expect("no failure"),
            0
        );
        assert_eq!(
            queue.purge("a", Some(JobState::Dead)).expect("no failure"),
            1
        );
        assert!(queue.counts().is_empty(), "an empty entry is dropped");
    }

    /// A job of a tenant.
    fn job_of(tenant: &str, id: &str) -> NewJob {
        with_key(job(id, b""), id, Some(tenant))
    }

    fn claim(queue: &RedbQueue, most: usize, now_ms: u64) -> Vec<String> {
        let claimed = queue.claim("a", most, now_ms).expect("no failure");
        claimed.into_iter().map(|job| job.record.id).collect()
    }

    #[test]
    fn tenants_share_the_queue_and_take_turns() {
        let dir = tempfile::tempdir().expect("there is room");
        let queue = open(dir.path());
        for id in ["1", "2", "3"] {
            queue.submit(job_of("alice", id), 6).expect("there is room");
        }
        let full = queue.submit(job_of("alice", "4"), 6).expect_err("half");
        assert!(full.to_string().contains("3 jobs of 'a' from this tenant"));
        for id in ["5", "6"] {
            queue.submit(job_of("bob", id), 6).expect("there is room");
        }
        assert_eq!(claim(&queue, 1, 9), ["1"]);
        assert_eq!(claim(&queue, 3, 9), ["5", "2", "6"]);
        assert_eq!(claim(&queue, 3, 9), ["3"]);
        // One at a time they take turns as well.
        for id in ["1", "2", "3", "5", "6"] {
            queue.finish(&first(id), done(b""), 10).expect("it runs");
        }
        for (tenant, id) in [("alice", "7"), ("alice", "8"), ("bob", "9")] {
            queue.submit(job_of(tenant, id), 6).expect("there is room");
        }
        let mut order = Vec::new();
        for _ in 0..3 {
            let ids = claim(&queue, 1, 20);
            queue
                .finish(&first(&ids[0]), done(b""), 21)
                .expect("it runs");
            order.extend(ids);
        }
        assert_eq!(order, ["9", "7", "8"], "alice was last served");
    }

    #[test]
    fn deferral_lets_the_backlog_of_its_tenant_wait() {
        let dir = tempfile::tempdir().expect("there is room");
        let queue = open(dir.path());
        for (tenant, id) in [("alice", "1"), ("alice", "2"), ("bob", "3")] {
            queue.submit(job_of(tenant, id), 9).expect("there is room");
        }
        let deferred = || Outcome::Deferred {
            reason: "no quota".to_owned(),
            wait: Duration::from_secs(1),
        };
        assert_eq!(claim(&queue, 1, 9), ["1"]);
        queue.finish(&first("1"), deferred(), 10).expect("it runs");
        assert_eq!(claim(&queue, 9, 20), ["3"], "alice waits");
        assert_eq!(queue.counts()["a"].next_ready_ms, Some(1010));
        assert_eq!(claim(&queue, 9, 1010), ["2"], "one of alice tries");
        queue
            .finish(&first("2"), deferred(), 1010)
            .expect("it runs");
        let next = queue.counts()["a"].next_ready_ms.expect("alice waits");
        assert!((2510..=3010).contains(&next), "{next}");
        assert_eq!(claim(&queue, 9, 3010).len(), 1);
        let running = queue.running();
        queue.finish(&running[0], done(b""), 3011).expect("it runs");
        assert_eq!(claim(&queue, 9, 3011).len(), 1, "the pause is over");
        let second = Duration::from_secs(1);
        assert_eq!(deferred_wait(second, 99, 1.0), MAX_DEFERRED_WAIT);
        assert_eq!(deferred_wait(second * 90, 9, 0.75), second * 90);
    }

    #[test]
    fn full_store_drops_results_of_whom_stores_most() {
        let dir = tempfile::tempdir().expect("there is room");
        let limits = QueueLimits {
            bytes_per_deployment: 10,
            ..QueueLimits::default()
        };
        let queue = RedbQueue::open(dir.path(), limits, 1).expect("opens");
        for (tenant, id) in [("bob", "1"), ("alice", "2"), ("alice", "3")] {
            queue.submit(job_of(tenant, id), 9).expect("there is room");
            assert_eq!(claim(&queue, 1, 2), [id]);
            queue.finish(&first(id), done(b"abc"), 3).expect("it runs");
        }
        queue.submit(job("4", b"1234"), 9).expect("there is room");
        assert!(queue.job(&key("2")).is_none(), "alice stored most");
        assert!(queue.job(&key("1")).is_some() && queue.job(&key("3")).is_some());
        claim(&queue, 1, 2);
        let ended = queue.finish(&first("4"), done(b"1234567"), 3);
        let ended = ended.expect("no failure").expect("it runs");
        assert_eq!((ended.state, ended.result_bytes), (JobState::Succeeded, 0));
        assert!(ended.error.expect("why").contains("no room for its result"));
    }

    #[test]
    fn schedule_fires_once_for_a_time() {
        let dir = tempfile::tempdir().expect("there is room");
        let fire = |queue: &RedbQueue, id: &str, handled_ms| {
            queue.fire(CronFire {
                deployment: "a".to_owned(),
                entry: "daily".to_owned(),
                state: CronState {
                    handled_ms,
                    ..CronState::default()
                },
                job: Some(job(id, b"")),
            })
        };
        let queue = open(dir.path());
        assert!(fire(&queue, "1", 50).expect("no failure"));
        drop(queue);
        let queue = open(dir.path());
        assert!(
            !fire(&queue, "2", 50).expect("no failure"),
            "after a restart"
        );
        assert!(fire(&queue, "3", 60).expect("no failure"));
        assert_eq!(queue.counts()["a"].waiting, 2);
        queue.remove_deployment("a").expect("no failure");
        drop(queue);
        let queue = open(dir.path());
        assert!(queue.counts().is_empty());
        assert!(queue.cron_states("a").is_empty());
    }
}
