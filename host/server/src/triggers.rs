//! Triggers: what calls a deployment besides its own requests. All of them put jobs into one durable [queue], which one
//! [executor] runs, or, in a cluster, one on each host.
//!
//! - [`job_routes`]: clients send them with `POST /jobs/NAME` on the public listener.
//! - [`cron`]: schedules of the manifest.
//! - [`messages`]: clients and plugins publish them to subjects; each deployment that subscribes gets a job.
//!
//! A job becomes a request or a message, which the deployment's handler gets in this process; it holds no connection. It
//! runs at least once, and once it has finished it does not run again. A plugin that is interrupted sees the same id in
//! `x-corral-job-id` when the job runs again.

pub(crate) mod attempt;
mod body_memory;
mod counters;
mod cron;
pub(crate) mod executor;
mod job;
mod job_index;
pub(crate) mod job_routes;
mod job_store;
mod job_stream;
pub(crate) mod messages;
mod queue;
mod queue_error;
mod redb_store;
mod schedule;
mod settings;
mod status;

use counters::TriggerCounters;
pub(crate) use job::{JobKey, JobState};
pub(crate) use queue_error::QueueError;
pub use settings::{CronEntry, JobSettings, MessageSettings};
pub(crate) use settings::{TriggerSettings, check as check_settings, check_subjects};
pub(crate) use status::{JobList, JobStatus, ScheduleStatus};

use crate::clock::now_ms;
use crate::deployments::NatsConnection;
use crate::prometheus::MetricFamilies;
use body_memory::{BodyMemory, BodyPermit, BodySender};
use job::{JobClaim, JobOwner, JobRecord};
use job_stream::JobStream;
use queue::{JobQueue, NewJob, QueueLimits};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::{Notify, Semaphore};
use tokio::task::AbortHandle;

/// Operations on the queue that may occupy blocking threads at once; others wait.
const MAX_OPERATIONS: usize = 16;
/// Longest wait for such a thread.
const OPERATION_WAIT: Duration = Duration::from_secs(10);

/// The triggers of a server with a store.
#[derive(Debug)]
pub(crate) struct Triggers {
    queue: Arc<JobQueue>,
    /// The jobs of the cluster, if the queue is in one.
    shared: Option<Arc<JobStream>>,
    /// Wakes the executor.
    changed: Arc<Notify>,
    /// Abort handles of running attempts.
    running: Mutex<BTreeMap<JobClaim, AbortHandle>>,
    counters: TriggerCounters,
    operations: Arc<Semaphore>,
    /// Of each body until its jobs are stored.
    body_memory: Arc<BodyMemory>,
}

impl Triggers {
    /// Opens the queue in the directory of a store with these deployments, and removes jobs of deployments that no longer exist.
    pub(crate) fn open(
        directory: &Path,
        deployments: &BTreeSet<String>,
    ) -> Result<Self, QueueError> {
        let queue = redb_store::open(directory, QueueLimits::default(), now_ms())?;
        for known in queue.deployments() {
            if !deployments.contains(&known) {
                queue.remove_deployment(&known, u64::MAX)?;
            }
        }
        Ok(Triggers::with(queue, None, Arc::default()))
    }

    /// The jobs of a cluster, in which this host has this id. `directory` is that of the store. Must be called in a
    /// tokio runtime.
    pub(crate) fn join(directory: &Path, connection: Arc<NatsConnection>, host_id: &str) -> Self {
        warn_of_own_jobs(directory);
        let changed = Arc::<Notify>::default();
        let stream = JobStream::follow(connection, host_id, Arc::clone(&changed));
        let store = Arc::clone(&stream);
        let queue = JobQueue::new(store, QueueLimits::default());
        Triggers::with(queue, Some(stream), changed)
    }

    fn with(queue: JobQueue, shared: Option<Arc<JobStream>>, changed: Arc<Notify>) -> Self {
        Triggers {
            queue: Arc::new(queue),
            shared,
            changed,
            running: Mutex::default(),
            counters: TriggerCounters::default(),
            operations: Arc::new(Semaphore::new(MAX_OPERATIONS)),
            body_memory: Arc::default(),
        }
    }

    /// Waits until the jobs of the cluster are known, if there is one.
    pub(crate) async fn wait_until_loaded(&self) {
        if let Some(stream) = &self.shared {
            stream.wait_until_loaded().await;
        }
    }

    /// Lets the executor look for work.
    pub(crate) fn wake(&self) {
        self.changed.notify_one();
    }

    /// Runs an operation on the queue on a blocking thread. It runs to its end, even if the caller goes away.
    async fn operate<T: Send + 'static>(
        &self,
        operation: impl FnOnce(&JobQueue) -> Result<T, QueueError> + Send + 'static,
    ) -> Result<T, QueueError> {
        let permit = Arc::clone(&self.operations).acquire_owned();
        let permit = tokio::time::timeout(OPERATION_WAIT, permit).await;
        let permit = permit.map_err(|_| QueueError::Busy)?.map_err(stopped)?;
        let queue = Arc::clone(&self.queue);
        let task = tokio::task::spawn_blocking(move || {
            // Held until the thread is free again, not only while the caller waits.
            let _permit = permit;
            operation(&queue)
        });
        task.await.map_err(stopped)?
    }

    /// Runs a change of the queue with what follows from it to the end, even if the caller goes away.
    async fn change<T: Send + 'static>(
        self: &Arc<Self>,
        operation: impl FnOnce(&JobQueue) -> Result<T, QueueError> + Send + 'static,
        then: impl FnOnce(&Self, &T) + Send + 'static,
    ) -> Result<T, QueueError> {
        let triggers = Arc::clone(self);
        let task = tokio::spawn(async move {
            let changed = triggers.operate(operation).await?;
            then(&triggers, &changed);
            triggers.wake();
            Ok(changed)
        });
        task.await.map_err(stopped)?
    }

    /// Reserves memory for a body.
    fn reserve(&self, sender: BodySender, bytes: u64) -> Result<BodyPermit, QueueError> {
        let permit = self.body_memory.reserve(sender, bytes);
        permit.ok_or(QueueError::Busy)
    }

    /// Adds jobs, each of another deployment: all or none. Returns in place of a job the one that is there already if it has
    /// the same idempotency key and sender. `memory` is that of their bodies.
    async fn submit(
        self: &Arc<Self>,
        jobs: Vec<NewJob>,
        memory: BodyPermit,
    ) -> Result<Vec<JobRecord>, QueueError> {
        let operation = move |queue: &JobQueue| {
            let submitted = queue.submit(&jobs);
            drop(memory);
            submitted
        };
        let count = |triggers: &Self, submitted: &Vec<(JobRecord, bool)>| {
            for (record, _) in submitted.iter().filter(|(_, is_new)| *is_new) {
                triggers.counters.count(record, "submitted");
            }
        };
        let submitted = self.change(operation, count).await?;
        Ok(submitted.into_iter().map(|(record, _)| record).collect())
    }

    /// Cancels an unfinished job, and stops its plugin if it runs.
    pub(crate) async fn cancel(self: &Arc<Self>, key: JobKey) -> Result<JobStatus, QueueError> {
        let operation = move |queue: &JobQueue| queue.cancel(&key, now_ms());
        let stop = |triggers: &Self, record: &JobRecord| {
            if let Some(task) = triggers.running().remove(&record.claim()) {
                task.abort();
            }
            triggers.counters.count(record, "canceled");
        };
        let record = self.change(operation, stop).await?;
        Ok(JobStatus::of(&record))
    }

    /// Makes a dead or canceled job wait again.
    pub(crate) async fn retry(self: &Arc<Self>, key: JobKey) -> Result<JobStatus, QueueError> {
        let operation = move |queue: &JobQueue| queue.retry(&key, now_ms());
        let record = self.change(operation, |_, _| ()).await?;
        Ok(JobStatus::of(&record))
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

    /// Removes the schedules of a removed deployment, and its jobs that were sent before this time. Blocks.
    pub(crate) fn remove_jobs(&self, deployment: &str, before_ms: u64) {
        if let Err(error) = self.queue.remove_deployment(deployment, before_ms) {
            // The next start removes them, and in a cluster the next deploy of this name.
            tracing::error!(%error, deployment, "jobs of a removed deployment are left");
        }
    }

    /// Stops the running jobs of a deployment that this host serves no longer, and removes all jobs, unless a cluster
    /// shares them: there the host that changes the record does so. Blocks.
    pub(crate) fn remove_deployment(&self, deployment: &str) {
        if self.shared.is_none() {
            self.remove_jobs(deployment, u64::MAX);
        }
        self.counters.remove(deployment);
        self.running().retain(|claim, task| {
            let is_removed = claim.key.deployment == deployment;
            if is_removed {
                task.abort();
            }
            !is_removed
        });
    }

    /// The jobs of a deployment, or those of one owner, newest first, with counts.
    pub(crate) async fn list(
        &self,
        deployment: String,
        owner: Option<JobOwner>,
        state: Option<JobState>,
        most: usize,
    ) -> Result<JobList, QueueError> {
        let operation = move |queue: &JobQueue| {
            let matches = |job: &JobRecord| {
                state.is_none_or(|state| job.state == state)
                    && owner.as_ref().is_none_or(|owner| job.owner() == *owner)
            };
            queue.check_ready()?;
            let jobs = queue.list(&deployment, most, &matches);
            let counts = queue.counts_of(&deployment, owner.as_ref());
            Ok(JobList {
                waiting: counts.waiting,
                running: counts.running,
                finished: counts.finished,
                jobs: jobs.iter().map(JobStatus::of).collect(),
            })
        };
        self.operate(operation).await
    }

    /// The schedules of a deployment, with their last and next runs.
    pub(crate) async fn schedules(
        &self,
        deployment: String,
        settings: Arc<TriggerSettings>,
    ) -> Result<Vec<ScheduleStatus>, QueueError> {
        let operation = move |queue: &JobQueue| {
            let mut states = queue.cron_states(&deployment);
            let views = settings.cron.iter().map(|(entry, schedule)| {
                let identity = entry.identity();
                let state = states.remove(&identity).unwrap_or_default();
                let is_run = |job: &JobRecord| {
                    let run = job.scheduled.as_ref();
                    run.is_some_and(|run| run.entry == identity)
                };
                let last = queue.list(&deployment, status::MAX_LAST_RUNS, &is_run);
                ScheduleStatus::of(entry, schedule, &state, &last, now_ms())
            });
            Ok(views.collect())
        };
        self.operate(operation).await
    }

    pub(crate) fn write_metrics(&self, families: &mut MetricFamilies) {
        counters::write_gauges(families, &self.queue.counts(), now_ms());
        self.counters.write(families);
    }

    fn running(&self) -> MutexGuard<'_, BTreeMap<JobClaim, AbortHandle>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Warns of jobs that a host had before it joined a cluster.
fn warn_of_own_jobs(directory: &Path) {
    if !redb_store::exists(directory) {
        return;
    }
    let queue = redb_store::open(directory, QueueLimits::default(), now_ms());
    let counts = queue.map(|queue| queue.counts()).unwrap_or_default();
    let waiting: usize = counts.values().map(|counts| counts.waiting).sum();
    if waiting > 0 {
        tracing::warn!(
            "{waiting} jobs from before this host joined the cluster do not run; start it without --cluster to run them"
        );
    }
}

/// The error of an operation that did not reach its end.
fn stopped<E>(_: E) -> QueueError {
    QueueError::Storage("the operation did not end".to_owned())
}

/// A new id of a job. Later ones are greater.
fn new_id(now_ms: u64) -> String {
    let random: [u8; 10] = rand::random();
    format!("{now_ms:012x}{}", data_encoding::HEXLOWER.encode(&random))
}
