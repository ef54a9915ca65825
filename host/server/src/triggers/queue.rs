//! The durable queue behind all triggers: the rules of jobs, over a [store](super::job_store).
//!
//! A trigger turns an event into jobs; the [executor](super::executor) runs jobs of any trigger alike, and also calls
//! [`cron`](super::cron) when a schedule is due. Another trigger calls [`JobQueue::submit`], with an idempotency key
//! for events that must count once. [`JobQueue::record_due_run`] is for schedules.
//!
//! A change that a method returned is durable. A job is claimed by one executor at a time. An unfinished job is never
//! dropped; a finished one stays finished, unless it is [retried](JobQueue::retry). Methods that change something block, so
//! async code calls them through [`Triggers`](super::Triggers); lookups read the index, which is in memory.

#[cfg(test)]
mod tests;

use super::job::{JobClaim, JobKey, JobOwner, JobRecord, JobState, Outcome, millis};
use super::job_index::{Added, JobIndex};
use super::job_store::{Change, JobStore};
use super::queue_error::QueueError;
use crate::deployments::with_jitter;
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Longest wait of a deferred job, unless the cause demands a longer one.
const MAX_DEFERRED_WAIT: Duration = Duration::from_secs(60);
/// How long a job waits whose body could not be read.
const UNREADABLE_PAUSE: Duration = Duration::from_secs(60);
/// Most jobs that one change changes, or removes for an operator.
const MAX_CHANGED: usize = 500;
/// How often a change is computed, if other hosts are faster each time.
const MAX_CONFLICTS: u32 = 8;
/// The pause before the third time; each further one is twice as long.
const FIRST_PAUSE: Duration = Duration::from_millis(20);

/// Bounds of the jobs of all deployments together, and of each.
#[derive(Clone, Copy, Debug)]
pub(crate) struct QueueLimits {
    /// Jobs of a deployment, finished ones included.
    pub(crate) jobs_per_deployment: usize,
    /// Bytes of bodies and results of a deployment.
    pub(crate) bytes_per_deployment: u64,
    /// Jobs in all.
    pub(crate) jobs: usize,
    /// Bytes of bodies and results in all.
    pub(crate) bytes: u64,
}

impl Default for QueueLimits {
    fn default() -> Self {
        QueueLimits {
            jobs_per_deployment: 20_000,
            bytes_per_deployment: 256 << 20,
            jobs: 50_000,
            bytes: 1 << 30,
        }
    }
}

/// A job that is not in the queue yet.
#[derive(Clone, Debug)]
pub(crate) struct NewJob {
    pub(crate) record: JobRecord,
    pub(crate) body: Bytes,
    /// Bound of the unfinished jobs of its deployment. Runs of schedules have none.
    pub(crate) queued: usize,
}

/// A job whose attempt has begun.
#[derive(Debug)]
pub(crate) struct ClaimedJob {
    pub(crate) record: JobRecord,
    pub(crate) body: Bytes,
}

/// What the queue remembers of a schedule.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
pub(crate) struct CronState {
    /// All times until then were handled.
    pub(crate) handled_ms: u64,
    /// Times that were skipped because the last run had not ended.
    pub(crate) overlaps: u64,
    /// Times that were missed and not run.
    pub(crate) missed: u64,
}

/// A time of a schedule that has come, and its run.
#[derive(Debug)]
pub(crate) struct DueRun {
    pub(crate) deployment: String,
    /// Identity of the schedule.
    pub(crate) entry: String,
    /// Its state before. None if it is new.
    pub(crate) before: Option<CronState>,
    pub(crate) state: CronState,
    /// The run. None if there is none for this time.
    pub(crate) job: Option<NewJob>,
}

/// Counts of a deployment's jobs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct JobCounts {
    pub(crate) waiting: usize,
    pub(crate) running: usize,
    pub(crate) finished: usize,
    pub(crate) bytes: u64,
    /// When the oldest waiting job was sent.
    pub(crate) oldest_waiting_ms: Option<u64>,
    /// When the next waiting job may run.
    pub(crate) next_ready_ms: Option<u64>,
}

/// A durable queue of jobs. See the module for its rules.
#[derive(Debug)]
pub(crate) struct JobQueue {
    store: Arc<dyn JobStore>,
    limits: QueueLimits,
    /// Held from the check of a change to its commit.
    changes: Mutex<()>,
}

impl JobQueue {
    pub(super) fn new(store: Arc<dyn JobStore>, limits: QueueLimits) -> Self {
        JobQueue {
            store,
            limits,
            changes: Mutex::new(()),
        }
    }

    /// Fails if the store cannot tell its jobs, or takes no changes now.
    pub(crate) fn check_ready(&self) -> Result<(), QueueError> {
        self.store.check_ready()
    }

    fn index(&self) -> MutexGuard<'_, JobIndex> {
        self.store.index()
    }

    /// Computes changes from the index, and makes them. If another host was faster, they are computed again.
    fn change<T>(
        &self,
        compute: impl Fn(&JobIndex) -> Result<(Vec<Change>, T), QueueError>,
    ) -> Result<T, QueueError> {
        let _lock = self.changes.lock().unwrap_or_else(PoisonError::into_inner);
        for attempt in 0..MAX_CONFLICTS {
            if attempt > 1 {
                std::thread::sleep(with_jitter(FIRST_PAUSE * (1 << (attempt - 2))));
            }
            self.store.check_ready()?;
            let (changes, value) = compute(&self.index())?;
            if changes.is_empty() || self.store.commit(changes)? {
                return Ok(value);
            }
        }
        Err(QueueError::Busy)
    }

    /// Adds jobs, each of another deployment: all or, with an error, none. Returns each with true. If one has the same
    /// idempotency key, subject and sender as a job that is there already, returns that with false.
    pub(crate) fn submit(&self, jobs: &[NewJob]) -> Result<Vec<(JobRecord, bool)>, QueueError> {
        self.change(|index| {
            let (mut submitted, mut added, mut new) = (Vec::new(), Vec::new(), Vec::new());
            for NewJob {
                record,
                body,
                queued,
            } in jobs
            {
                if let Some(same) = index.repeated(record)? {
                    submitted.push((same.clone(), false));
                    continue;
                }
                index.check_room(&record.deployment, &record.owner(), *queued)?;
                submitted.push((record.clone(), true));
                added.push(Added::job(record));
                new.push(Change::Body(record.key(), body.clone()));
                new.push(Change::job(record.clone()));
            }
            let mut changes = index.evict_finished(&self.limits, &added)?;
            changes.extend(new);
            Ok((changes, submitted))
        })
    }

    /// Refuses a further job of `owner` as [`submit`](JobQueue::submit) does if too many are unfinished. A tenant has at
    /// most half of `queued`, and so have schedules and plugins together, so that none keeps the others out.
    pub(crate) fn check_room(
        &self,
        deployment: &str,
        owner: &JobOwner,
        queued: usize,
    ) -> Result<(), QueueError> {
        self.index().check_room(deployment, owner, queued)
    }

    /// Takes up to `most` jobs of a deployment that may run at `now_ms`: of each owner in turn, those that waited longest
    /// first. A job whose body cannot be read waits again.
    pub(crate) fn claim(
        &self,
        deployment: &str,
        most: usize,
        now_ms: u64,
    ) -> Result<Vec<ClaimedJob>, QueueError> {
        let claimed = self.change(|index| {
            let jobs = index.deployments.get(deployment);
            let jobs = jobs.map_or_else(Vec::new, |jobs| jobs.claimable(most, now_ms));
            let mut claimed = Vec::from_iter(jobs.into_iter().cloned());
            for record in &mut claimed {
                record.begin(now_ms);
                record.host = self.store.host().map(str::to_owned);
            }
            Ok((claimed.iter().cloned().map(Change::job).collect(), claimed))
        })?;
        let (mut begun, mut unreadable) = (Vec::new(), Vec::new());
        for record in claimed {
            match self.store.body(&record) {
                Ok(body) => begun.push(ClaimedJob { record, body }),
                Err(error) => {
                    tracing::error!(%error, deployment, job = record.id, "the body of a job cannot be read");
                    unreadable.push(record.claim());
                }
            }
        }
        // The others run meanwhile.
        let again = now_ms.saturating_add(millis(UNREADABLE_PAUSE));
        if let Err(error) = self.release(&unreadable, again) {
            tracing::warn!(%error, deployment, "jobs without a readable body could not be returned to the queue");
        }
        Ok(begun)
    }

    /// Ends an attempt. One that is deferred lets the other jobs of its owner wait, too, for longer each time. If there is
    /// no room for a result, it is dropped. Returns nothing if this attempt no longer runs: its job was canceled or removed
    /// meanwhile, or another host has taken it over.
    pub(crate) fn finish(
        &self,
        claim: &JobClaim,
        outcome: &Outcome,
        now_ms: u64,
    ) -> Result<Option<JobRecord>, QueueError> {
        let JobKey { deployment, id } = &claim.key;
        let ended = self.change(|index| {
            let running = index.get(deployment, id).filter(|job| job.runs_as(claim));
            let Some(mut record) = running.cloned() else {
                return Ok((Vec::new(), None));
            };
            let mut outcome = outcome.clone();
            let pause = match &mut outcome {
                Outcome::Deferred { wait, .. } => {
                    let jobs = index.deployments.get(deployment);
                    let deferrals = jobs.map_or(1, |jobs| jobs.deferrals(&record.owner(), now_ms));
                    *wait = deferred_wait(*wait, deferrals, rand::random_range(0.75..=1.0));
                    Some((now_ms.saturating_add(millis(*wait)), deferrals))
                }
                _ => None,
            };
            let mut changes = Vec::new();
            if let Some(result) = record.end(outcome, now_ms) {
                let added = Added {
                    deployment,
                    jobs: 0,
                    bytes: result.len() as u64,
                };
                match index.evict_finished(&self.limits, &[added]) {
                    Ok(removed) => {
                        changes = removed;
                        changes.push(Change::Result(claim.key.clone(), result));
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
            changes.push(Change::job(record.clone()));
            Ok((changes, Some((record, pause))))
        })?;
        let Some((record, pause)) = ended else {
            return Ok(None);
        };
        if let Some(jobs) = self.index().deployments.get_mut(deployment) {
            jobs.set_pause(record.owner(), pause);
        }
        Ok(Some(record))
    }

    /// Returns the jobs of running attempts to the queue, without counting these attempts.
    pub(crate) fn release(&self, claims: &[JobClaim], now_ms: u64) -> Result<(), QueueError> {
        self.change_running(claims, |job| job.release(now_ms))
    }

    /// The same for attempts that ended without an outcome. Jobs to which this happens too often become dead letters.
    pub(crate) fn interrupt(&self, claims: &[JobClaim], now_ms: u64) -> Result<(), QueueError> {
        self.change_running(claims, |job| job.interrupt(now_ms))
    }

    /// Changes the jobs of those attempts that run.
    fn change_running(
        &self,
        claims: &[JobClaim],
        change: impl Fn(&mut JobRecord),
    ) -> Result<(), QueueError> {
        for claims in claims.chunks(MAX_CHANGED) {
            self.change(|index| {
                let mut changes = Vec::new();
                for claim in claims {
                    let job = index.get(&claim.key.deployment, &claim.key.id);
                    if let Some(mut job) = job.filter(|job| job.runs_as(claim)).cloned() {
                        change(&mut job);
                        changes.push(Change::job(job));
                    }
                }
                Ok((changes, ()))
            })?;
        }
        Ok(())
    }

    /// Running attempts of all deployments: of this host, and of those that the cluster has lost.
    pub(crate) fn running_here_or_lost(&self) -> Vec<JobClaim> {
        let index = self.index();
        let running = index.deployments.values().flat_map(|jobs| jobs.running());
        let own = running
            .filter(|job| job.host.as_deref() == self.store.host() || self.store.has_lost(job));
        own.map(JobRecord::claim).collect()
    }

    /// Cancels an unfinished job.
    pub(crate) fn cancel(&self, key: &JobKey, now_ms: u64) -> Result<JobRecord, QueueError> {
        self.store.catch_up(key)?;
        self.change(|index| {
            let mut job = index.known(key)?.clone();
            if job.state.is_finished() {
                return Err(QueueError::WrongState(job.state));
            }
            job.finish(JobState::Canceled, now_ms);
            Ok((vec![Change::job(job.clone())], job))
        })
    }

    /// Makes a dead or canceled job wait again.
    pub(crate) fn retry(&self, key: &JobKey, now_ms: u64) -> Result<JobRecord, QueueError> {
        self.store.catch_up(key)?;
        self.change(|index| {
            let mut job = index.known(key)?.clone();
            if !matches!(job.state, JobState::Dead | JobState::Canceled) {
                return Err(QueueError::WrongState(job.state));
            }
            let removed = Change::RemoveResult(key.clone(), job.result_bytes);
            job.requeue(now_ms);
            Ok((vec![removed, Change::job(job.clone())], job))
        })
    }

    /// Removes finished jobs of a deployment, those in this state if one is given. Returns their number.
    pub(crate) fn purge(
        &self,
        deployment: &str,
        state: Option<JobState>,
    ) -> Result<usize, QueueError> {
        let is_chosen = |job: &JobRecord| {
            job.state.is_finished() && state.is_none_or(|state| job.state == state)
        };
        self.remove_jobs(deployment, &is_chosen)
    }

    /// Removes the jobs of a deployment that `is_chosen`. Returns their number.
    fn remove_jobs(
        &self,
        deployment: &str,
        is_chosen: &dyn Fn(&JobRecord) -> bool,
    ) -> Result<usize, QueueError> {
        let mut count = 0;
        loop {
            let removed = self.change(|index| {
                let jobs = index.deployments.get(deployment);
                let jobs = jobs.into_iter().flat_map(|jobs| jobs.jobs.values());
                let chosen = jobs.filter(|job| is_chosen(job)).take(MAX_CHANGED);
                let removed = Vec::from_iter(chosen.map(Change::remove));
                let count = removed.len();
                Ok((removed, count))
            })?;
            if removed == 0 {
                return Ok(count);
            }
            count += removed;
        }
    }

    /// Removes finished jobs whose time has ended, and makes dead letters of jobs that waited for too long, as many as one
    /// change has. Returns these dead letters, and whether no job is left.
    pub(crate) fn expire(&self, now_ms: u64) -> Result<(Vec<JobRecord>, bool), QueueError> {
        self.change(|index| {
            let all = || index.deployments.values();
            let finished = all().flat_map(|jobs| jobs.finished());
            let ended = finished.filter(|(at, _)| *at <= now_ms);
            let ended = ended.map(|(_, job)| Change::remove(job));
            let mut changes = Vec::from_iter(ended.take(MAX_CHANGED));
            let waiting = all().flat_map(|jobs| jobs.waiting());
            let dead = waiting.filter_map(|job| {
                let mut job = job.clone();
                job.dead_letter_if_too_old(now_ms).then_some(job)
            });
            let dead = Vec::from_iter(dead.take(MAX_CHANGED - changes.len()));
            changes.extend(dead.iter().cloned().map(Change::job));
            let is_done = changes.len() < MAX_CHANGED;
            Ok((changes, (dead, is_done)))
        })
    }

    /// Deployments with jobs or schedules.
    pub(crate) fn deployments(&self) -> Vec<String> {
        self.index().deployments.keys().cloned().collect()
    }

    /// Removes the schedules of a deployment, and its jobs that were sent before this time: later ones are of another
    /// deployment with its name.
    pub(crate) fn remove_deployment(
        &self,
        deployment: &str,
        before_ms: u64,
    ) -> Result<(), QueueError> {
        self.remove_jobs(deployment, &|job| job.created_ms < before_ms)?;
        self.keep_schedules(deployment, &[])
    }

    /// Records that a time of a schedule was handled, and adds its run, unless this or a later time was handled before,
    /// or another host was faster. Returns whether it did.
    pub(crate) fn record_due_run(&self, due: &DueRun) -> Result<bool, QueueError> {
        let DueRun {
            deployment,
            entry,
            before,
            state,
            job,
        } = due;
        self.change(|index| {
            let jobs = index.deployments.get(deployment);
            let known = jobs.and_then(|jobs| jobs.cron.get(entry));
            // A schedule that begins anew has an earlier time, and no run.
            let is_handled = known.is_some_and(|known| known.handled_ms >= state.handled_ms);
            if known != before.as_ref() || (job.is_some() && is_handled) {
                return Ok((Vec::new(), false));
            }
            let mut changes = Vec::new();
            if let Some(NewJob { record, body, .. }) = job {
                changes = index.evict_finished(&self.limits, &[Added::job(record)])?;
                changes.push(Change::Body(record.key(), body.clone()));
                changes.push(Change::job(record.clone()));
            }
            changes.push(Change::Cron {
                deployment: deployment.clone(),
                entry: entry.clone(),
                state: Some(state.clone()),
                version: index.cron_version(deployment),
            });
            Ok((changes, true))
        })
    }

    /// The job, if it was not removed.
    pub(crate) fn job(&self, key: &JobKey) -> Option<JobRecord> {
        self.index().get(&key.deployment, &key.id).cloned()
    }

    /// The same for a job that another host may just have added.
    pub(crate) fn find(&self, key: &JobKey) -> Result<Option<JobRecord>, QueueError> {
        self.store.catch_up(key)?;
        Ok(self.job(key))
    }

    /// The result of a finished job.
    pub(crate) fn result(&self, key: &JobKey) -> Result<Bytes, QueueError> {
        let record = self.index().known(key)?.clone();
        self.store.result(&record)
    }

    /// At most `most` jobs of a deployment that `matches`, newest first.
    pub(crate) fn list(
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

    /// Forgets the schedules of a deployment that are not among `entries`.
    pub(crate) fn keep_schedules(
        &self,
        deployment: &str,
        entries: &[String],
    ) -> Result<(), QueueError> {
        self.change(|index| {
            let jobs = index.deployments.get(deployment);
            let known = jobs.into_iter().flat_map(|jobs| jobs.cron.keys());
            let old = known.filter(|entry| !entries.contains(entry));
            let removed = old.map(|entry| Change::Cron {
                deployment: deployment.to_owned(),
                entry: entry.clone(),
                state: None,
                version: index.cron_version(deployment),
            });
            Ok((removed.collect(), ()))
        })
    }

    /// The schedules of a deployment that it knows.
    pub(crate) fn cron_states(&self, deployment: &str) -> BTreeMap<String, CronState> {
        let index = self.index();
        let jobs = index.deployments.get(deployment);
        jobs.map(|jobs| jobs.cron.clone()).unwrap_or_default()
    }

    /// Counts by deployment.
    pub(crate) fn counts(&self) -> BTreeMap<String, JobCounts> {
        let index = self.index();
        let all = index.deployments.iter();
        all.map(|(name, jobs)| (name.clone(), jobs.counts(None)))
            .collect()
    }

    /// Counts of a deployment's jobs, of those of `owner` if one is given.
    pub(crate) fn counts_of(&self, deployment: &str, owner: Option<&JobOwner>) -> JobCounts {
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
