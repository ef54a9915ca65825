//! The queue in redb, in the file `triggers.redb` of the store: one transaction per change, synced on commit.
//!
//! An index in memory mirrors the records; bodies and results are read from the file. One lock covers a change from its
//! check to its commit; lookups take only the lock of the index, so they do not wait for the disk. After a failed write
//! redb refuses everything until it is opened again, and the index is read again then.

mod tables;
#[cfg(test)]
mod tests;

use super::job::{JobClaim, JobKey, JobOwner, JobRecord, JobState, Outcome, millis};
use super::job_index::{DeploymentJobs, JobIndex};
use super::queue::{
    ClaimedJob, CronState, DueRun, JobCounts, JobQueue, NewJob, QueueError, QueueLimits,
};
use bytes::Bytes;
use redb::{Builder, ReadableDatabase, TableDefinition};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tables::{BODIES, Change, RESULTS, create, read, transact};

/// Of redb's page cache.
const CACHE_BYTES: usize = 8 << 20;
const FILE: &str = "triggers.redb";
/// Longest wait of a deferred job, unless the cause demands a longer one.
const MAX_DEFERRED_WAIT: Duration = Duration::from_secs(60);
/// Most jobs that one transaction removes.
const MAX_REMOVED: usize = 1000;

#[derive(Debug)]
pub(crate) struct RedbQueue {
    path: PathBuf,
    limits: QueueLimits,
    /// `None` after a failed write, until the next access.
    database: Mutex<Option<redb::Database>>,
    index: Mutex<JobIndex>,
}

/// What a change adds to a deployment.
struct Added<'a> {
    deployment: &'a str,
    jobs: usize,
    bytes: u64,
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

    /// Deployments with jobs or schedules.
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

    /// The finished jobs to remove so that there is room for what is added.
    fn evict_finished(&self, added: &[Added<'_>]) -> Result<Vec<Change>, QueueError> {
        let limits = &self.limits;
        let index = self.index();
        let none = DeploymentJobs::default();
        let mut removed = BTreeSet::new();
        let (mut all_jobs, mut all_bytes) = (index.jobs, index.bytes);
        for one in added {
            all_jobs += one.jobs;
            all_bytes += one.bytes;
        }
        for one in added {
            let own = index.deployments.get(one.deployment).unwrap_or(&none);
            let (mut own_jobs, mut own_bytes) = (own.jobs.len() + one.jobs, own.bytes + one.bytes);
            let mut finished = own.evictable();
            while own_jobs > limits.jobs_per_deployment || own_bytes > limits.bytes_per_deployment {
                let scope = || format!("jobs of '{}'", one.deployment);
                let Some(job) = finished.next() else {
                    return Err(match own_jobs > limits.jobs_per_deployment {
                        true => no_room("entries", limits.jobs_per_deployment as u64, scope()),
                        false => no_room("bytes", limits.bytes_per_deployment, scope()),
                    });
                };
                (own_jobs, own_bytes) = (own_jobs - 1, own_bytes - job.bytes());
                (all_jobs, all_bytes) = (all_jobs - 1, all_bytes - job.bytes());
                removed.insert(job.key());
            }
        }
        // Of the deployment that stores most, so that a small one keeps its results.
        let own = added.iter().map(|one| one.deployment);
        let candidates = index.largest_with_finished().into_iter().chain(own);
        let candidates = candidates.filter_map(|name| index.deployments.get(name));
        let mut finished = candidates.flat_map(DeploymentJobs::evictable);
        while all_jobs > limits.jobs || all_bytes > limits.bytes {
            let scope = || "jobs of all deployments".to_owned();
            let Some(job) = finished.find(|job| !removed.contains(&job.key())) else {
                return Err(match all_jobs > limits.jobs {
                    true => no_room("entries", limits.jobs as u64, scope()),
                    false => no_room("bytes", limits.bytes, scope()),
                });
            };
            (all_jobs, all_bytes) = (all_jobs - 1, all_bytes - job.bytes());
            removed.insert(job.key());
        }
        Ok(removed.into_iter().map(Change::Remove).collect())
    }

    /// The job that the same sender sent with the same idempotency key.
    fn repeated(&self, record: &JobRecord) -> Result<Option<JobRecord>, QueueError> {
        let index = self.index();
        let jobs = index.deployments.get(&record.deployment);
        match jobs.and_then(|jobs| jobs.with_client_key(record)) {
            Some(same) if same.body_digest != record.body_digest => Err(QueueError::KeyReused),
            same => Ok(same.cloned()),
        }
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

    /// A job's value in a table; empty if there is none.
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
    fn submit(&self, jobs: Vec<NewJob>) -> Result<Vec<(JobRecord, bool)>, QueueError> {
        let writer = self.write()?;
        let (mut submitted, mut new) = (Vec::new(), Vec::new());
        for job in jobs {
            if let Some(same) = self.repeated(&job.record)? {
                submitted.push((same, false));
                continue;
            }
            let record = &job.record;
            self.check_room(&record.deployment, &record.owner(), job.queued)?;
            submitted.push((record.clone(), true));
            new.push(job);
        }
        let added = new.iter().map(|job| Added {
            deployment: &job.record.deployment,
            jobs: 1,
            bytes: job.record.bytes(),
        });
        let mut changes = self.evict_finished(&Vec::from_iter(added))?;
        for NewJob { record, body, .. } in new {
            changes.push(Change::Body(record.key(), body));
            changes.push(Change::Job(Box::new(record)));
        }
        self.commit(writer, changes)?;
        Ok(submitted)
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
            JobOwner::Deployment if own.waiting + own.running >= share => {
                full(share, " from schedules and plugins")
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
            let added = Added {
                deployment: &key.deployment,
                jobs: 0,
                bytes: result.len() as u64,
            };
            match self.evict_finished(&[added]) {
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

    fn record_due_run(&self, due: DueRun) -> Result<bool, QueueError> {
        let writer = self.write()?;
        let DueRun {
            deployment,
            entry,
            state,
            job,
        } = due;
        let known = self.cron_states(&deployment).remove(&entry);
        // A schedule that begins anew has an earlier time, and no run.
        if job.is_some() && known.is_some_and(|known| known.handled_ms >= state.handled_ms) {
            return Ok(false);
        }
        let mut changes = Vec::new();
        if let Some(NewJob { record, body, .. }) = job {
            changes = self.evict_finished(&[Added {
                deployment: &deployment,
                jobs: 1,
                bytes: record.bytes(),
            }])?;
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
