//! The durable queue behind all triggers: what a trigger needs of a store.
//!
//! A trigger turns an event into jobs; the [executor](super::executor) runs jobs of any trigger alike, and also calls
//! [`cron`](super::cron) when a schedule is due. Another trigger calls [`JobQueue::submit`], with an idempotency key
//! for events that must count once. [`JobQueue::record_due_run`] is for schedules.
//!
//! Rules for an implementation: a change that a method returned is durable. A job is claimed by one executor at a time. An
//! unfinished job is never dropped; a finished one stays finished, unless it is [retried](JobQueue::retry). Methods block,
//! so async code calls them through [`Triggers`](super::Triggers).

use super::job::{JobClaim, JobKey, JobOwner, JobRecord, JobState, Outcome};
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

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

#[derive(Debug)]
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

/// Why the queue refuses something.
#[derive(Debug, thiserror::Error)]
pub(crate) enum QueueError {
    #[error("{limit} jobs of '{deployment}'{whose} wait or run already; try again later")]
    Full {
        deployment: String,
        limit: usize,
        whose: &'static str,
    },
    #[error(
        "unfinished jobs occupy all {limit} {what} that the server has for {scope}; try again later"
    )]
    NoRoom {
        what: &'static str,
        limit: u64,
        scope: String,
    },
    #[error("the idempotency key was used for another body; send the same body, or another key")]
    KeyReused,
    #[error("'{0}' has no job with this id, or no longer; 'GET /jobs/{0}' lists those there are")]
    Unknown(String),
    #[error("the job is {}, so this does not apply to it", .0.name())]
    WrongState(JobState),
    #[error("the store of jobs failed: {0}; the server's log says more")]
    Storage(String),
    #[error("too many operations on jobs wait already; try again later")]
    Busy,
}

/// A durable queue of jobs. See the module for its rules.
pub(crate) trait JobQueue: Send + Sync + std::fmt::Debug {
    /// Adds jobs, each of another deployment: all or, with an error, none. Returns each with true. If one has the same
    /// idempotency key, subject and sender as a job that is there already, returns that with false.
    fn submit(&self, jobs: Vec<NewJob>) -> Result<Vec<(JobRecord, bool)>, QueueError>;

    /// Refuses a further job of `owner` as [`submit`](JobQueue::submit) does if too many are unfinished. A tenant has at
    /// most half of `queued`, and so have schedules and plugins together, so that none keeps the others out.
    fn check_room(
        &self,
        deployment: &str,
        owner: &JobOwner,
        queued: usize,
    ) -> Result<(), QueueError>;

    /// Takes up to `most` jobs of a deployment that may run at `now_ms`: of each owner in turn, those that waited longest
    /// first.
    fn claim(
        &self,
        deployment: &str,
        most: usize,
        now_ms: u64,
    ) -> Result<Vec<ClaimedJob>, QueueError>;

    /// Ends an attempt. One that is deferred lets the other jobs of its owner wait, too, for longer each time. If there is
    /// no room for a result, it is dropped. Returns nothing if this attempt no longer runs: its job was canceled or removed meanwhile.
    fn finish(
        &self,
        claim: &JobClaim,
        outcome: Outcome,
        now_ms: u64,
    ) -> Result<Option<JobRecord>, QueueError>;

    /// Returns the jobs of running attempts to the queue, without counting these attempts.
    fn release(&self, claims: &[JobClaim], now_ms: u64) -> Result<(), QueueError>;

    /// The same for attempts that ended without an outcome. Jobs to which this happens too often become dead letters.
    fn interrupt(&self, claims: &[JobClaim], now_ms: u64) -> Result<(), QueueError>;

    /// Running attempts of all deployments.
    fn running(&self) -> Vec<JobClaim>;

    /// Cancels an unfinished job.
    fn cancel(&self, key: &JobKey, now_ms: u64) -> Result<JobRecord, QueueError>;

    /// Makes a dead or canceled job wait again.
    fn retry(&self, key: &JobKey, now_ms: u64) -> Result<JobRecord, QueueError>;

    /// Removes finished jobs of a deployment, those in this state if one is given. Returns their number.
    fn purge(&self, deployment: &str, state: Option<JobState>) -> Result<usize, QueueError>;

    /// Removes finished jobs whose time has ended. Jobs that waited for too long become dead letters, which it returns.
    fn expire(&self, now_ms: u64) -> Result<Vec<JobRecord>, QueueError>;

    /// Removes everything of a deployment.
    fn remove_deployment(&self, deployment: &str) -> Result<(), QueueError>;

    /// Records that a time of a schedule was handled, and adds its run, unless this or a later time was handled before.
    /// Returns whether it did.
    fn record_due_run(&self, due: DueRun) -> Result<bool, QueueError>;

    /// The job, if it was not removed.
    fn job(&self, key: &JobKey) -> Option<JobRecord>;

    /// The result of a finished job.
    fn result(&self, key: &JobKey) -> Result<Bytes, QueueError>;

    /// At most `most` jobs of a deployment that `matches`, newest first.
    fn list(
        &self,
        deployment: &str,
        most: usize,
        matches: &dyn Fn(&JobRecord) -> bool,
    ) -> Vec<JobRecord>;

    /// Forgets the schedules of a deployment that are not among `entries`.
    fn keep_schedules(&self, deployment: &str, entries: &[String]) -> Result<(), QueueError>;

    /// The schedules of a deployment that it knows.
    fn cron_states(&self, deployment: &str) -> BTreeMap<String, CronState>;

    /// Counts by deployment.
    fn counts(&self) -> BTreeMap<String, JobCounts>;

    /// Counts of a deployment's jobs, of those of `owner` if one is given.
    fn counts_of(&self, deployment: &str, owner: Option<&JobOwner>) -> JobCounts;
}
