//! Triggers: what calls a deployment besides its own requests. All of them put jobs into one durable [queue], which one
//! [executor] empties.
//!
//! - [`jobs`]: clients send them with `POST /jobs/NAME` on the public listener.
//! - [`cron`]: schedules of the manifest.
//!
//! A job becomes a request that the deployment's handler answers in this process; it holds no connection. It runs at least
//! once, and once it has finished it does not run again. A plugin that is interrupted sees the same id in
//! `x-corral-job-id` when the job runs again.

mod counters;
mod cron;
mod executor;
mod job;
mod job_index;
pub(crate) mod jobs;
mod queue;
mod redb_queue;
mod schedule;
mod settings;
mod view;

use counters::TriggerCounters;
pub(crate) use executor::Executor;
pub(crate) use job::{JobKey, JobState};
pub(crate) use queue::QueueError;
pub use settings::{CronEntry, JobSettings};
pub(crate) use settings::{TriggerSettings, check as check_settings};
pub(crate) use view::{JobList, JobView, ScheduleView};

use crate::prometheus::MetricFamilies;
use job::JobRecord;
use queue::{JobQueue, NewJob, QueueLimits};
use redb_queue::RedbQueue;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};
use tokio::sync::{Notify, Semaphore};
use tokio::task::AbortHandle;

/// Operations on the queue that may occupy blocking threads at once; others wait.
const MAX_OPERATIONS: usize = 16;

/// The triggers of a server with a store.
#[derive(Debug)]
pub(crate) struct Triggers {
    queue: Arc<dyn JobQueue>,
    /// Wakes the executor.
    changed: Notify,
    /// What stops a running job.
    running: Mutex<BTreeMap<JobKey, AbortHandle>>,
    counters: TriggerCounters,
    operations: Semaphore,
}

impl Triggers {
    /// Opens the queue in the directory of a store with these deployments, and removes what belongs to others.
    pub(crate) fn open(
        directory: &Path,
        deployments: &BTreeSet<String>,
    ) -> Result<Self, QueueError> {
        let queue = RedbQueue::open(directory, QueueLimits::default(), now_ms())?;
        for known in queue.deployments() {
            if !deployments.contains(&known) {
                queue.remove_deployment(&known)?;
            }
        }
        Ok(Triggers {
            queue: Arc::new(queue),
            changed: Notify::new(),
            running: Mutex::default(),
            counters: TriggerCounters::default(),
            operations: Semaphore::new(MAX_OPERATIONS),
        })
    }

    /// Lets the executor look for work.
    pub(crate) fn wake(&self) {
        self.changed.notify_one();
    }

    /// Runs an operation on the queue on a blocking thread.
    async fn operate<T: Send + 'static>(
        &self,
        operation: impl FnOnce(&dyn JobQueue) -> Result<T, QueueError> + Send + 'static,
    ) -> Result<T, QueueError> {
        let stopped = |_| QueueError::Storage("the server is ending".to_owned());
        let _permit = self.operations.acquire().await.map_err(|_| stopped(()))?;
        let queue = Arc::clone(&self.queue);
        let task = tokio::task::spawn_blocking(move || operation(&*queue));
        task.await.map_err(|_| stopped(()))?
    }

    /// Adds a job. False if it was there already.
    async fn submit(&self, job: NewJob, queued: usize) -> Result<(JobRecord, bool), QueueError> {
        let submitted = self.operate(move |queue| queue.submit(job, queued)).await?;
        if submitted.1 {
            self.counters.count(&submitted.0, "submitted");
            self.wake();
        }
        Ok(submitted)
    }

    /// Cancels an unfinished job, and stops its plugin if it runs.
    pub(crate) async fn cancel(&self, key: JobKey) -> Result<JobView, QueueError> {
        let canceled = key.clone();
        let operation = move |queue: &dyn JobQueue| queue.cancel(&canceled, now_ms());
        let record = self.operate(operation).await?;
        if let Some(task) = self.running().remove(&key) {
            task.abort();
        }
        self.counters.count(&record, "canceled");
        self.wake();
        Ok(JobView::of(&record))
    }

    /// Makes a dead or canceled job wait again.
    pub(crate) async fn retry(&self, key: JobKey) -> Result<JobView, QueueError> {
        let record = self
            .operate(move |queue| queue.retry(&key, now_ms()))
            .await?;
        self.wake();
        Ok(JobView::of(&record))
    }

    /// Removes finished jobs of a deployment. Returns their number.
    pub(crate) async fn purge(
        &self,
        deployment: String,
        state: Option<JobState>,
    ) -> Result<usize, QueueError> {
        self.operate(move |queue| queue.purge(&deployment, state))
            .await
    }

    /// Removes all jobs and schedules of a removed deployment, and stops its running jobs. Blocks.
    pub(crate) fn remove_deployment(&self, deployment: &str) {
        if let Err(error) = self.queue.remove_deployment(deployment) {
            // The next start removes them.
            tracing::error!(%error, deployment, "jobs of a removed deployment are left");
        }
        self.counters.remove(deployment);
        self.running().retain(|key, task| {
            let is_removed = key.deployment == deployment;
            if is_removed {
                task.abort();
            }
            !is_removed
        });
    }

    /// The jobs of a deployment, newest first, with counts.
    pub(crate) fn list(&self, deployment: &str, state: Option<JobState>, most: usize) -> JobList {
        let matches = |job: &JobRecord| state.is_none_or(|state| job.state == state);
        let jobs = self.queue.list(deployment, most, &matches);
        let counts = self.queue.counts().remove(deployment).unwrap_or_default();
        JobList {
            waiting: counts.waiting,
            running: counts.running,
            finished: counts.finished,
            jobs: jobs.iter().map(JobView::of).collect(),
        }
    }

    /// The schedules of a deployment, with their last and next runs.
    pub(crate) fn schedules(
        &self,
        deployment: &str,
        settings: &TriggerSettings,
    ) -> Vec<ScheduleView> {
        let mut states = self.queue.cron_states(deployment);
        let views = settings.cron.iter().map(|(entry, schedule)| {
            let identity = entry.identity();
            let state = states.remove(&identity).unwrap_or_default();
            let is_run = |job: &JobRecord| {
                let run = job.scheduled.as_ref();
                run.is_some_and(|run| run.entry == identity)
            };
            let last = self.queue.list(deployment, view::MAX_LAST_RUNS, &is_run);
            ScheduleView::of(entry, schedule, &state, &last, now_ms())
        });
        views.collect()
    }

    /// Writes the metrics.
    pub(crate) fn write_metrics(&self, families: &mut MetricFamilies) {
        counters::write_gauges(families, &self.queue.counts(), now_ms());
        self.counters.write(families);
    }

    fn running(&self) -> MutexGuard<'_, BTreeMap<JobKey, AbortHandle>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A new id of a job. Later ones are greater.
fn new_id(now_ms: u64) -> String {
    let random: [u8; 10] = rand::random();
    format!("{now_ms:012x}{}", data_encoding::HEXLOWER.encode(&random))
}

/// Milliseconds since 1970. A clock before that counts as 1970.
fn now_ms() -> u64 {
    #[expect(clippy::disallowed_methods, reason = "schedules follow the clock")]
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, job::millis)
}
