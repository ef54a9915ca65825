//! The jobs of the queue in memory, without bodies and results: what the database holds, ordered for each question.

use super::job::{JobRecord, JobState};
use super::queue::{CronState, JobCounts};
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// Tenant and idempotency key.
type ClientKey = (Option<String>, String);

/// All jobs and schedules.
#[derive(Debug, Default)]
pub(super) struct JobIndex {
    pub(super) deployments: BTreeMap<String, DeploymentJobs>,
    /// Number of jobs.
    pub(super) jobs: usize,
    /// Bytes of bodies and results.
    pub(super) bytes: u64,
}

/// Those of one deployment.
#[derive(Debug, Default)]
pub(super) struct DeploymentJobs {
    /// By id; ids ascend in the order of submission.
    pub(super) jobs: BTreeMap<String, JobRecord>,
    by_client_key: HashMap<ClientKey, String>,
    /// Waiting jobs by the time that they may run.
    waiting: BTreeSet<(u64, String)>,
    /// Ids of waiting jobs, oldest first.
    waiting_ids: BTreeSet<String>,
    running: BTreeSet<String>,
    /// Finished jobs by the time that they are removed.
    finished: BTreeSet<(u64, String)>,
    pub(super) bytes: u64,
    pub(super) cron: BTreeMap<String, CronState>,
}

fn client_key(record: &JobRecord) -> Option<ClientKey> {
    let key = record.idempotency_key.clone()?;
    Some((record.tenant().map(str::to_owned), key))
}

impl JobIndex {
    /// Adds or replaces a job.
    pub(super) fn insert(&mut self, record: JobRecord) {
        self.remove(&record.deployment, &record.id);
        let jobs = self
            .deployments
            .entry(record.deployment.clone())
            .or_default();
        let id = record.id.clone();
        match record.state {
            JobState::Waiting => {
                jobs.waiting.insert((record.ready_ms, id.clone()));
                jobs.waiting_ids.insert(id.clone());
            }
            JobState::Running => drop(jobs.running.insert(id.clone())),
            _ => drop(
                jobs.finished
                    .insert((record.expires_ms().unwrap_or(0), id.clone())),
            ),
        }
        if let Some(key) = client_key(&record) {
            jobs.by_client_key.insert(key, id.clone());
        }
        jobs.bytes += record.bytes();
        self.bytes += record.bytes();
        self.jobs += 1;
        jobs.jobs.insert(id, record);
    }

    /// Removes a job, if it is there.
    pub(super) fn remove(&mut self, deployment: &str, id: &str) {
        let Some(jobs) = self.deployments.get_mut(deployment) else {
            return;
        };
        let Some(old) = jobs.jobs.remove(id) else {
            return;
        };
        match old.state {
            JobState::Waiting => {
                jobs.waiting.remove(&(old.ready_ms, old.id.clone()));
                jobs.waiting_ids.remove(&old.id);
            }
            JobState::Running => drop(jobs.running.remove(&old.id)),
            _ => drop(
                jobs.finished
                    .remove(&(old.expires_ms().unwrap_or(0), old.id.clone())),
            ),
        }
        if let Some(key) = client_key(&old) {
            jobs.by_client_key.remove(&key);
        }
        jobs.bytes -= old.bytes();
        self.bytes -= old.bytes();
        self.jobs -= 1;
    }

    /// Removes everything of a deployment.
    pub(super) fn remove_deployment(&mut self, deployment: &str) {
        if let Some(jobs) = self.deployments.remove(deployment) {
            self.bytes -= jobs.bytes;
            self.jobs -= jobs.jobs.len();
        }
    }

    /// A job.
    pub(super) fn get(&self, deployment: &str, id: &str) -> Option<&JobRecord> {
        self.deployments.get(deployment)?.jobs.get(id)
    }

    /// The deployment that stores the most bytes in finished jobs, or in number the most.
    pub(super) fn largest_with_finished(&self) -> Option<&str> {
        let all = self.deployments.iter();
        let with_finished = all.filter(|(_, jobs)| !jobs.finished.is_empty());
        let largest = with_finished.max_by_key(|(_, jobs)| (jobs.bytes, jobs.jobs.len()));
        largest.map(|(name, _)| name.as_str())
    }
}

impl DeploymentJobs {
    /// The job that a client sent with this key.
    pub(super) fn with_client_key(&self, record: &JobRecord) -> Option<&JobRecord> {
        self.jobs.get(self.by_client_key.get(&client_key(record)?)?)
    }

    /// Jobs that wait or run.
    pub(super) fn unfinished(&self) -> usize {
        self.waiting.len() + self.running.len()
    }

    /// Jobs that may run at `now_ms`, those that waited longest first.
    pub(super) fn ready(&self, now_ms: u64) -> impl Iterator<Item = &JobRecord> {
        let ready = self.waiting.iter().take_while(move |(at, _)| *at <= now_ms);
        ready.filter_map(|(_, id)| self.jobs.get(id))
    }

    /// Waiting jobs.
    pub(super) fn waiting(&self) -> impl Iterator<Item = &JobRecord> {
        self.waiting.iter().filter_map(|(_, id)| self.jobs.get(id))
    }

    /// Running jobs.
    pub(super) fn running(&self) -> impl Iterator<Item = &JobRecord> {
        self.running.iter().filter_map(|id| self.jobs.get(id))
    }

    /// Finished jobs with the time that they are removed, soonest first.
    pub(super) fn finished(&self) -> impl Iterator<Item = (u64, &JobRecord)> {
        let finished = self.finished.iter();
        finished.filter_map(|(at, id)| Some((*at, self.jobs.get(id)?)))
    }

    /// Their counts.
    pub(super) fn counts(&self) -> JobCounts {
        let oldest = self.waiting_ids.first().and_then(|id| self.jobs.get(id));
        JobCounts {
            waiting: self.waiting.len(),
            running: self.running.len(),
            finished: self.finished.len(),
            bytes: self.bytes,
            oldest_waiting_ms: oldest.map(|job| job.created_ms),
            next_ready_ms: self.waiting.first().map(|(at, _)| *at),
        }
    }
}
