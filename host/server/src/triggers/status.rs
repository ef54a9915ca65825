//! The status of jobs and schedules, as JSON for clients and operators.

use super::job::{JobRecord, JobState, Trigger};
use super::queue::CronState;
use super::schedule::{Due, Schedule};
use super::settings::CronEntry;
use serde::Serialize;

/// Runs of a schedule that are shown.
pub(super) const MAX_LAST_RUNS: usize = 10;

/// A job.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub(crate) struct JobStatus {
    /// Its id.
    pub(crate) id: String,
    /// Its state.
    pub(crate) state: JobState,
    /// What made it.
    pub(crate) trigger: Trigger,
    /// Attempts that began.
    pub(crate) attempts: u32,
    /// Attempts until it becomes a dead letter.
    pub(crate) max_attempts: u32,
    /// When it was sent, in milliseconds since 1970.
    pub(crate) created_ms: u64,
    /// When a waiting job may run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) ready_ms: Option<u64>,
    /// When its last attempt began.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) started_ms: Option<u64>,
    /// When it finished.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) finished_ms: Option<u64>,
    /// When a finished job is removed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) expires_ms: Option<u64>,
    /// HTTP status of the plugin's last response.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) status: Option<u16>,
    /// Bytes of the result.
    pub(crate) result_bytes: u64,
    /// Why its last attempt failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) error: Option<String>,
    /// The time of the schedule that it is the run of.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) scheduled_ms: Option<u64>,
    /// The subject of the message that it delivers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) subject: Option<String>,
    /// The tenant of the API key that it was sent with.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) tenant: Option<String>,
}

/// The jobs of a deployment.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub(crate) struct JobList {
    /// Jobs that wait, for their turn or for their next attempt.
    pub(crate) waiting: usize,
    /// Jobs that run.
    pub(crate) running: usize,
    /// Finished jobs that are not removed yet.
    pub(crate) finished: usize,
    /// The jobs, newest first.
    pub(crate) jobs: Vec<JobStatus>,
}

/// A schedule.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub(crate) struct ScheduleStatus {
    /// The schedule.
    pub(crate) schedule: String,
    /// Its time zone.
    pub(crate) time_zone: String,
    /// Path of its requests.
    pub(crate) path: String,
    /// Its next time, in milliseconds since 1970.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) next_ms: Option<u64>,
    /// Times that were skipped because the last run had not ended.
    pub(crate) overlaps: u64,
    /// Times that were missed and not run, because a later one was.
    pub(crate) missed: u64,
    /// Its last runs, newest first.
    pub(crate) runs: Vec<JobStatus>,
}

impl JobStatus {
    /// As operators and clients see it.
    pub(crate) fn of(record: &JobRecord) -> Self {
        let is_waiting = record.state == JobState::Waiting;
        JobStatus {
            id: record.id.clone(),
            state: record.state,
            trigger: record.trigger(),
            attempts: record.attempts,
            max_attempts: record.max_attempts,
            created_ms: record.created_ms,
            ready_ms: is_waiting.then_some(record.ready_ms),
            started_ms: record.started_ms,
            finished_ms: record.finished_ms,
            expires_ms: record.expires_ms(),
            status: record.status,
            result_bytes: record.result_bytes,
            error: record.error.clone(),
            scheduled_ms: record.scheduled.as_ref().map(|run| run.scheduled_ms),
            subject: record
                .message
                .as_ref()
                .map(|message| message.subject.to_string()),
            tenant: record.tenant().map(str::to_owned),
        }
    }
}

impl ScheduleStatus {
    pub(super) fn of(
        entry: &CronEntry,
        schedule: &Schedule,
        state: &CronState,
        runs: &[JobRecord],
        now_ms: u64,
    ) -> Self {
        let next_ms = match schedule.due(state.handled_ms.max(1), now_ms) {
            Due::At(next) if state.handled_ms > 0 => next,
            _ => schedule.next_after(now_ms),
        };
        ScheduleStatus {
            schedule: entry.schedule.clone(),
            time_zone: entry.time_zone.clone().unwrap_or_else(|| "UTC".to_owned()),
            path: entry.path.clone(),
            next_ms,
            overlaps: state.overlaps,
            missed: state.missed,
            runs: runs.iter().map(JobStatus::of).collect(),
        }
    }
}
