//! An in-memory index of the queue, without bodies and results, with one ordering for each lookup.

use super::job::{JobKey, JobOwner, JobRecord, JobState};
use super::job_store::Change;
use super::queue::{CronState, JobCounts, QueueLimits};
use super::queue_error::QueueError;
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};

/// Tenant, subject of the message if it is one, and idempotency key.
type ClientKey = (Option<String>, Option<String>, String);

/// All jobs and schedules.
#[derive(Debug, Default)]
pub(super) struct JobIndex {
    pub(super) deployments: BTreeMap<String, DeploymentJobs>,
    /// Number of jobs.
    pub(super) jobs: usize,
    /// Bytes of bodies and results.
    pub(super) bytes: u64,
    /// Versions of the schedules of each deployment, in a store that hosts share.
    cron_versions: BTreeMap<String, u64>,
}

/// What a change adds to a deployment.
pub(super) struct Added<'a> {
    pub(super) deployment: &'a str,
    pub(super) jobs: usize,
    pub(super) bytes: u64,
}

impl<'a> Added<'a> {
    pub(super) fn job(record: &'a JobRecord) -> Self {
        Added {
            deployment: &record.deployment,
            jobs: 1,
            bytes: record.bytes(),
        }
    }
}

/// Those of one deployment.
#[derive(Debug, Default)]
pub(super) struct DeploymentJobs {
    /// By id; ids ascend in the order of submission.
    pub(super) jobs: BTreeMap<String, JobRecord>,
    by_client_key: HashMap<ClientKey, String>,
    owners: BTreeMap<JobOwner, OwnedJobs>,
    /// Ids of waiting jobs, oldest first.
    waiting_ids: BTreeSet<String>,
    running: BTreeSet<String>,
    /// Claims so far.
    claims: u64,
    pub(super) bytes: u64,
    pub(super) cron: BTreeMap<String, CronState>,
}

/// Those of one owner.
#[derive(Debug, Default)]
struct OwnedJobs {
    /// Waiting jobs by the time that they may run.
    waiting: BTreeSet<(u64, String)>,
    running: usize,
    /// Finished jobs by the time that they are removed.
    finished: BTreeSet<(u64, String)>,
    bytes: u64,
    /// Claim number of this owner's last claim.
    turn: u64,
    /// Attempts that were deferred in a row.
    deferrals: u32,
    /// No job of this owner is claimed before this time.
    paused_until_ms: u64,
}

impl OwnedJobs {
    /// When the next one may be claimed.
    fn next_ready_ms(&self) -> Option<u64> {
        let ready = self.waiting.first().map(|(at, _)| *at);
        ready.map(|ready| ready.max(self.paused_until_ms))
    }
}

fn client_key(record: &JobRecord) -> Option<ClientKey> {
    let key = record.idempotency_key.clone()?;
    let message = record.message.as_ref();
    let subject = message.map(|message| message.subject.to_string());
    Some((record.tenant().map(str::to_owned), subject, key))
}

impl JobIndex {
    /// Adds or replaces a job.
    pub(super) fn insert(&mut self, record: JobRecord) {
        self.take(&record.deployment, &record.id);
        let jobs = self
            .deployments
            .entry(record.deployment.clone())
            .or_default();
        let id = record.id.clone();
        let owned = jobs.owners.entry(record.owner()).or_default();
        match record.state {
            JobState::Waiting => {
                owned.waiting.insert((record.ready_ms, id.clone()));
                jobs.waiting_ids.insert(id.clone());
            }
            JobState::Running => {
                owned.running += 1;
                jobs.claims += 1;
                owned.turn = jobs.claims;
                jobs.running.insert(id.clone());
            }
            _ => {
                let expires = record.expires_ms().unwrap_or(0);
                owned.finished.insert((expires, id.clone()));
            }
        }
        if let Some(key) = client_key(&record) {
            jobs.by_client_key.insert(key, id.clone());
        }
        owned.bytes += record.bytes();
        jobs.bytes += record.bytes();
        self.bytes += record.bytes();
        self.jobs += 1;
        jobs.jobs.insert(id, record);
    }

    pub(super) fn remove(&mut self, deployment: &str, id: &str) {
        self.take(deployment, id);
        self.drop_if_empty(deployment);
    }

    fn take(&mut self, deployment: &str, id: &str) {
        let Some(jobs) = self.deployments.get_mut(deployment) else {
            return;
        };
        let Some(old) = jobs.jobs.remove(id) else {
            return;
        };
        let owned = jobs.owners.entry(old.owner()).or_default();
        match old.state {
            JobState::Waiting => {
                owned.waiting.remove(&(old.ready_ms, old.id.clone()));
                jobs.waiting_ids.remove(&old.id);
            }
            JobState::Running => {
                owned.running -= 1;
                jobs.running.remove(&old.id);
            }
            _ => {
                let expires = old.expires_ms().unwrap_or(0);
                owned.finished.remove(&(expires, old.id.clone()));
            }
        }
        if let Some(key) = client_key(&old) {
            jobs.by_client_key.remove(&key);
        }
        owned.bytes -= old.bytes();
        jobs.bytes -= old.bytes();
        self.bytes -= old.bytes();
        self.jobs -= 1;
    }

    /// Replaces the schedules of a deployment.
    pub(super) fn set_schedules(
        &mut self,
        deployment: &str,
        cron: BTreeMap<String, CronState>,
        version: u64,
    ) {
        self.cron_versions.insert(deployment.to_owned(), version);
        let jobs = self.deployments.entry(deployment.to_owned()).or_default();
        jobs.cron = cron;
        self.drop_if_empty(deployment);
    }

    /// Replaces the state of a schedule, or removes it.
    pub(super) fn set_schedule(
        &mut self,
        deployment: String,
        entry: String,
        state: Option<CronState>,
    ) {
        let jobs = self.deployments.entry(deployment.clone()).or_default();
        match state {
            Some(state) => drop(jobs.cron.insert(entry, state)),
            None => drop(jobs.cron.remove(&entry)),
        }
        self.drop_if_empty(&deployment);
    }

    /// Version of a deployment's schedules.
    pub(super) fn cron_version(&self, deployment: &str) -> u64 {
        self.cron_versions.get(deployment).copied().unwrap_or(0)
    }

    fn drop_if_empty(&mut self, deployment: &str) {
        let jobs = self.deployments.get(deployment);
        if jobs.is_some_and(|jobs| jobs.jobs.is_empty() && jobs.cron.is_empty()) {
            self.deployments.remove(deployment);
        }
    }

    pub(super) fn get(&self, deployment: &str, id: &str) -> Option<&JobRecord> {
        self.deployments.get(deployment)?.jobs.get(id)
    }

    pub(super) fn known(&self, key: &JobKey) -> Result<&JobRecord, QueueError> {
        let found = self.get(&key.deployment, &key.id);
        found.ok_or_else(|| QueueError::Unknown(key.deployment.clone()))
    }

    /// The job that the same sender sent with the same idempotency key.
    pub(super) fn repeated(&self, record: &JobRecord) -> Result<Option<&JobRecord>, QueueError> {
        let jobs = self.deployments.get(&record.deployment);
        match jobs.and_then(|jobs| jobs.with_client_key(record)) {
            Some(same) if same.body_digest != record.body_digest => Err(QueueError::KeyReused),
            same => Ok(same),
        }
    }

    /// Hosts with jobs whose records have an earlier version, and run.
    pub(super) fn hosts_running_since(&self, version: u64) -> BTreeSet<String> {
        let running = self.deployments.values().flat_map(DeploymentJobs::running);
        let running = running.filter(|job| job.version < version);
        running.filter_map(|job| job.host.clone()).collect()
    }

    /// Refuses a further job of `owner` if too many are unfinished.
    pub(super) fn check_room(
        &self,
        deployment: &str,
        owner: &JobOwner,
        queued: usize,
    ) -> Result<(), QueueError> {
        let Some(jobs) = self.deployments.get(deployment) else {
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

    /// The finished jobs to remove so that there is room for what is added.
    pub(super) fn evict_finished(
        &self,
        limits: &QueueLimits,
        added: &[Added<'_>],
    ) -> Result<Vec<Change>, QueueError> {
        let none = DeploymentJobs::default();
        let mut removed = BTreeMap::new();
        let (mut all_jobs, mut all_bytes) = (self.jobs, self.bytes);
        for one in added {
            all_jobs += one.jobs;
            all_bytes += one.bytes;
        }
        for one in added {
            let own = self.deployments.get(one.deployment).unwrap_or(&none);
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
                removed.insert(job.key(), job);
            }
        }
        // Of the deployment that stores most, so that a small one keeps its results.
        let own = added.iter().map(|one| one.deployment);
        let candidates = self.largest_with_finished().into_iter().chain(own);
        let candidates = candidates.filter_map(|name| self.deployments.get(name));
        let mut finished = candidates.flat_map(DeploymentJobs::evictable);
        while all_jobs > limits.jobs || all_bytes > limits.bytes {
            let scope = || "jobs of all deployments".to_owned();
            let Some(job) = finished.find(|job| !removed.contains_key(&job.key())) else {
                return Err(match all_jobs > limits.jobs {
                    true => no_room("entries", limits.jobs as u64, scope()),
                    false => no_room("bytes", limits.bytes, scope()),
                });
            };
            (all_jobs, all_bytes) = (all_jobs - 1, all_bytes - job.bytes());
            removed.insert(job.key(), job);
        }
        Ok(removed.into_values().map(Change::remove).collect())
    }

    /// The deployment that stores the most bytes in finished jobs, or in number the most.
    fn largest_with_finished(&self) -> Option<&str> {
        let all = self.deployments.iter();
        let with_finished = all.filter(|(_, jobs)| jobs.finished().next().is_some());
        let largest = with_finished.max_by_key(|(_, jobs)| (jobs.bytes, jobs.jobs.len()));
        largest.map(|(name, _)| name.as_str())
    }
}

fn no_room(what: &'static str, limit: u64, scope: String) -> QueueError {
    QueueError::NoRoom { what, limit, scope }
}

impl DeploymentJobs {
    /// The job that a client sent with this key.
    fn with_client_key(&self, record: &JobRecord) -> Option<&JobRecord> {
        self.jobs.get(self.by_client_key.get(&client_key(record)?)?)
    }

    /// Jobs that wait or run.
    fn unfinished(&self) -> usize {
        self.waiting_ids.len() + self.running.len()
    }

    /// Up to `most` jobs that may run at `now_ms`: of the owner that runs fewest, then of the one that was served longest ago,
    /// those that waited longest first.
    pub(super) fn claimable(&self, most: usize, now_ms: u64) -> Vec<&JobRecord> {
        let owners = self.owners.values();
        let owners = owners.filter(|owned| owned.next_ready_ms().is_some_and(|at| at <= now_ms));
        let mut owners = Vec::from_iter(owners.map(|owned| {
            // While attempts are deferred, one at a time tries.
            let room = match owned.deferrals {
                0 => most,
                _ => 1_usize.saturating_sub(owned.running),
            };
            let ready = owned.waiting.iter().take_while(|(at, _)| *at <= now_ms);
            (
                owned.running,
                owned.turn,
                VecDeque::from_iter(ready.take(room)),
            )
        }));
        let mut chosen = Vec::new();
        while chosen.len() < most {
            owners.retain(|(_, _, ready)| !ready.is_empty());
            let next = owners
                .iter_mut()
                .min_by_key(|(running, turn, ready)| (*running, *turn, ready.front().copied()));
            let Some((running, turn, ready)) = next else {
                break;
            };
            *running += 1;
            *turn = u64::MAX;
            chosen.extend(ready.pop_front().and_then(|(_, id)| self.jobs.get(id)));
        }
        chosen
    }

    /// How often attempts of an owner were deferred in a row, with one that is deferred at `now_ms`. Those that began
    /// before a pause do not add to it.
    pub(super) fn deferrals(&self, owner: &JobOwner, now_ms: u64) -> u32 {
        let owned = self.owners.get(owner);
        owned.map_or(1, |owned| match now_ms < owned.paused_until_ms {
            true => owned.deferrals,
            false => owned.deferrals.saturating_add(1),
        })
    }

    /// Pauses an owner until a time after so many deferrals, or ends its pause.
    pub(super) fn set_pause(&mut self, owner: JobOwner, pause: Option<(u64, u32)>) {
        let owned = self.owners.entry(owner).or_default();
        (owned.paused_until_ms, owned.deferrals) = pause.unwrap_or_default();
    }

    /// Oldest first.
    pub(super) fn waiting(&self) -> impl Iterator<Item = &JobRecord> {
        self.waiting_ids.iter().filter_map(|id| self.jobs.get(id))
    }

    pub(super) fn running(&self) -> impl Iterator<Item = &JobRecord> {
        self.running.iter().filter_map(|id| self.jobs.get(id))
    }

    /// Finished jobs with the time that they are removed.
    pub(super) fn finished(&self) -> impl Iterator<Item = (u64, &JobRecord)> {
        let finished = self.owners.values().flat_map(|owned| &owned.finished);
        finished.filter_map(|(at, id)| Some((*at, self.jobs.get(id)?)))
    }

    /// Their counts, or those of one owner.
    pub(super) fn counts(&self, owner: Option<&JobOwner>) -> JobCounts {
        let oldest = self.waiting_ids.first().and_then(|id| self.jobs.get(id));
        let mut counts = JobCounts {
            oldest_waiting_ms: oldest.map(|job| job.created_ms),
            ..JobCounts::default()
        };
        let owners = self.owners.iter();
        for (_, owned) in owners.filter(|(of, _)| owner.is_none_or(|owner| owner == *of)) {
            counts.waiting += owned.waiting.len();
            counts.running += owned.running;
            counts.finished += owned.finished.len();
            counts.bytes += owned.bytes;
            let ready = owned.next_ready_ms();
            counts.next_ready_ms = counts.next_ready_ms.into_iter().chain(ready).min();
        }
        counts
    }

    /// The finished jobs in the order in which they make room: of the owner that stores most, the oldest first.
    fn evictable(&self) -> impl Iterator<Item = &JobRecord> {
        let owners = self.owners.values();
        let mut owners = Vec::from_iter(owners.map(|owned| {
            let jobs = owned.waiting.len() + owned.running + owned.finished.len();
            (owned.bytes, jobs, owned.finished.iter())
        }));
        std::iter::from_fn(move || {
            owners.retain(|(_, _, finished)| finished.len() > 0);
            let (bytes, jobs, finished) = owners
                .iter_mut()
                .max_by_key(|(bytes, jobs, _)| (*bytes, *jobs))?;
            let job = self.jobs.get(&finished.next()?.1)?;
            (*bytes, *jobs) = (*bytes - job.bytes(), *jobs - 1);
            Some(job)
        })
    }
}
