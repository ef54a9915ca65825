//! A job: its record, its states, and what follows from the outcome of an attempt. Knows no storage and no clock.

use super::settings::JobSettings;
use corral_runtime::{Message, Subject};
use serde::{Deserialize, Serialize};
use std::time::Duration;
use strum::{EnumString, IntoStaticStr};

/// Longest wait between two attempts.
pub(super) const MAX_BACKOFF: Duration = Duration::from_secs(3600);
/// How often a job may be interrupted by the end of the process before it becomes a dead letter: it may be the cause.
const MAX_INTERRUPTIONS: u32 = 20;
/// A job that has not begun for longer becomes a dead letter.
const MAX_START_DELAY: Duration = Duration::from_secs(7 * 24 * 3600);
/// Longest stored error, in characters.
const MAX_ERROR_CHARS: usize = 1000;

/// What made a job.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Deserialize, Serialize, IntoStaticStr,
)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
#[strum(serialize_all = "lowercase")]
pub(crate) enum Trigger {
    /// A client, with 'POST /jobs/NAME'.
    Job,
    /// A schedule of the manifest.
    Cron,
    /// A message to whose subject the deployment subscribes.
    Message,
}

impl Trigger {
    /// Its name in metrics and headers.
    pub(crate) fn name(self) -> &'static str {
        self.into()
    }
}

/// The state of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, EnumString, IntoStaticStr)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
#[strum(serialize_all = "lowercase")]
pub(crate) enum JobState {
    /// It waits for its turn, or for its next attempt.
    Waiting,
    /// The plugin handles it.
    Running,
    /// The plugin answered with a status below 400, or handled the message.
    Succeeded,
    /// A dead letter: it failed, and is not tried again.
    Dead,
    /// It was canceled.
    Canceled,
}

impl JobState {
    pub(crate) fn name(self) -> &'static str {
        self.into()
    }

    /// Whether no attempt follows, unless an operator retries it.
    pub(crate) fn is_finished(self) -> bool {
        !matches!(self, JobState::Waiting | JobState::Running)
    }
}

/// Names a job: its deployment and its id.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct JobKey {
    pub(crate) deployment: String,
    pub(crate) id: String,
}

/// One attempt of a job. A later attempt has a greater number, also after a retry.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct JobClaim {
    pub(crate) key: JobKey,
    pub(crate) number: u64,
}

/// Whom a job belongs to.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum JobOwner {
    /// The deployment: by a schedule, or by a message that a plugin published without an API key.
    Deployment,
    /// Every client: it was sent without an API key.
    Anyone,
    /// A tenant of API keys.
    Tenant(String),
}

impl JobOwner {
    /// The tenant of the API key, or `other` without one.
    pub(crate) fn of(key: Option<&JobSender>, other: Self) -> Self {
        key.map_or(other, |key| Self::Tenant(key.tenant.clone()))
    }
}

/// The API key that a job was sent with.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub(crate) struct JobSender {
    pub(crate) tenant: String,
    pub(crate) key: String,
}

/// The run of a schedule that a job is.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub(crate) struct ScheduledRun {
    /// Identity of the entry of the manifest.
    pub(crate) entry: String,
    /// The time that the schedule names.
    pub(crate) scheduled_ms: u64,
}

/// The message that a job delivers, without its body.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub(crate) struct JobMessage {
    pub(crate) subject: Subject,
    pub(crate) reply_to: Option<Subject>,
    /// The deployment whose plugin published it. None if a client did.
    pub(crate) publisher: Option<String>,
    /// Messages in a row that led to it, each published while the one before was handled.
    pub(crate) depth: u8,
}

impl JobMessage {
    /// The message as a plugin gets it.
    pub(crate) fn with_body(&self, body: bytes::Bytes) -> Message {
        Message {
            subject: self.subject.clone(),
            body,
            reply_to: self.reply_to.clone(),
        }
    }
}

/// What a record holds of its job's body.
#[derive(Clone, Debug)]
pub(crate) struct BodyDigest {
    /// SHA-256, in hexadecimal digits.
    sha256: String,
    bytes: u64,
}

impl BodyDigest {
    pub(crate) fn of(body: &[u8]) -> Self {
        use sha2::{Digest, Sha256};
        Self {
            sha256: data_encoding::HEXLOWER.encode(&Sha256::digest(body)),
            bytes: body.len() as u64,
        }
    }
}

/// A job without its body and its result.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub(crate) struct JobRecord {
    pub(crate) deployment: String,
    pub(crate) id: String,
    /// Its sender. None for a schedule, for a message of a plugin that was called without an API key, and if the deployment
    /// is open.
    pub(crate) sender: Option<JobSender>,
    pub(crate) idempotency_key: Option<String>,
    /// SHA-256 of the body, in hexadecimal digits.
    pub(crate) body_digest: String,
    pub(crate) body_bytes: u64,
    pub(crate) content_type: Option<String>,
    /// Path and query of the request.
    pub(crate) path: String,
    pub(crate) scheduled: Option<ScheduledRun>,
    pub(crate) message: Option<JobMessage>,
    pub(crate) state: JobState,
    /// Attempts that began, without those that do not count.
    pub(crate) attempts: u32,
    pub(crate) max_attempts: u32,
    /// Times that the process ended during an attempt, or its host was lost.
    pub(crate) interruptions: u32,
    /// Host of its last attempt, if it is in a cluster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) host: Option<String>,
    /// Version of the stored record, in a store that hosts share; 0 if it is new.
    #[serde(skip)]
    pub(crate) version: u64,
    /// Times that it was claimed. Never reset, so it tells one attempt from another.
    pub(crate) claims: u64,
    pub(crate) backoff_ms: u64,
    pub(crate) ttl_ms: u64,
    pub(crate) max_result_bytes: u64,
    pub(crate) created_ms: u64,
    /// When it may run.
    pub(crate) ready_ms: u64,
    pub(crate) started_ms: Option<u64>,
    pub(crate) finished_ms: Option<u64>,
    /// Status of the last response.
    pub(crate) status: Option<u16>,
    pub(crate) result_content_type: Option<String>,
    pub(crate) result_bytes: u64,
    /// Why the last attempt failed.
    pub(crate) error: Option<String>,
}

/// How an attempt ended. Copies share bodies.
#[derive(Clone, Debug)]
pub(crate) enum Outcome {
    /// The plugin answered with a status below 400.
    Response(JobResponse),
    /// The plugin handled the message.
    Handled,
    /// It failed. A response of the plugin is kept.
    Failed {
        error: String,
        can_retry: bool,
        response: Option<JobResponse>,
    },
    /// It did not reach the plugin, and does not count as an attempt.
    Deferred { reason: String, wait: Duration },
}

/// A response of the plugin.
#[derive(Clone, Debug)]
pub(crate) struct JobResponse {
    pub(crate) status: u16,
    pub(crate) content_type: Option<String>,
    pub(crate) body: bytes::Bytes,
}

impl JobRecord {
    /// A new job, which may run at once.
    pub(crate) fn new(
        key: JobKey,
        path: String,
        content_type: Option<String>,
        body: BodyDigest,
        settings: &JobSettings,
        now_ms: u64,
    ) -> Self {
        JobRecord {
            deployment: key.deployment,
            id: key.id,
            sender: None,
            idempotency_key: None,
            body_digest: body.sha256,
            body_bytes: body.bytes,
            content_type,
            path,
            scheduled: None,
            message: None,
            state: JobState::Waiting,
            attempts: 0,
            max_attempts: settings.attempts(),
            interruptions: 0,
            host: None,
            version: 0,
            claims: 0,
            backoff_ms: millis(settings.backoff()),
            ttl_ms: millis(settings.ttl()),
            max_result_bytes: settings.max_result_bytes(),
            created_ms: now_ms,
            ready_ms: now_ms,
            started_ms: None,
            finished_ms: None,
            status: None,
            result_content_type: None,
            result_bytes: 0,
            error: None,
        }
    }

    pub(crate) fn key(&self) -> JobKey {
        JobKey {
            deployment: self.deployment.clone(),
            id: self.id.clone(),
        }
    }

    /// Its last attempt.
    pub(crate) fn claim(&self) -> JobClaim {
        JobClaim {
            key: self.key(),
            number: self.claims,
        }
    }

    /// Whether this attempt of it runs.
    pub(crate) fn runs_as(&self, claim: &JobClaim) -> bool {
        self.state == JobState::Running && self.claims == claim.number
    }

    /// Whom it belongs to.
    pub(crate) fn owner(&self) -> JobOwner {
        let other = match self.is_host_made() {
            true => JobOwner::Deployment,
            false => JobOwner::Anyone,
        };
        JobOwner::of(self.sender.as_ref(), other)
    }

    /// Whether no client sent it: it is the run of a schedule, or a plugin published it.
    pub(crate) fn is_host_made(&self) -> bool {
        let message = self.message.as_ref();
        self.scheduled.is_some() || message.is_some_and(|message| message.publisher.is_some())
    }

    pub(crate) fn trigger(&self) -> Trigger {
        match (&self.scheduled, &self.message) {
            (Some(_), _) => Trigger::Cron,
            (None, Some(_)) => Trigger::Message,
            (None, None) => Trigger::Job,
        }
    }

    /// The tenant that may see it. None if every client of the deployment may.
    pub(crate) fn tenant(&self) -> Option<&str> {
        self.sender.as_ref().map(|sender| sender.tenant.as_str())
    }

    /// Bytes that it stores.
    pub(crate) fn bytes(&self) -> u64 {
        self.body_bytes + self.result_bytes
    }

    /// When a finished job is removed.
    pub(crate) fn expires_ms(&self) -> Option<u64> {
        Some(self.finished_ms?.saturating_add(self.ttl_ms))
    }

    /// Begins an attempt.
    pub(crate) fn begin(&mut self, now_ms: u64) {
        self.state = JobState::Running;
        // A record of the cluster may have any numbers.
        self.attempts = self.attempts.saturating_add(1);
        self.claims = self.claims.saturating_add(1);
        self.started_ms = Some(now_ms);
    }

    /// Ends an attempt with its outcome, and returns the result to store.
    pub(crate) fn end(&mut self, outcome: Outcome, now_ms: u64) -> Option<bytes::Bytes> {
        match outcome {
            Outcome::Response(response) => {
                self.error = None;
                self.finish(JobState::Succeeded, now_ms);
                Some(self.store_response(response))
            }
            Outcome::Handled => {
                // An earlier attempt may have been a request.
                (self.error, self.status) = (None, None);
                self.finish(JobState::Succeeded, now_ms);
                None
            }
            Outcome::Failed {
                error,
                can_retry,
                response,
            } => {
                self.set_error(&error);
                match can_retry && self.attempts < self.max_attempts {
                    true => {
                        self.state = JobState::Waiting;
                        self.ready_ms = now_ms.saturating_add(millis(self.backoff()));
                        self.status = response.map(|response| response.status);
                        None
                    }
                    false => {
                        self.finish(JobState::Dead, now_ms);
                        response.map(|response| self.store_response(response))
                    }
                }
            }
            Outcome::Deferred { reason, wait } => {
                self.set_error(&reason);
                self.release(now_ms.saturating_add(millis(wait)));
                self.dead_letter_if_too_old(now_ms);
                None
            }
        }
    }

    /// Returns a running job to the queue. The attempt does not count.
    pub(crate) fn release(&mut self, ready_ms: u64) {
        self.state = JobState::Waiting;
        self.attempts = self.attempts.saturating_sub(1);
        self.ready_ms = ready_ms;
    }

    /// Returns a job to the queue whose attempt ended without an outcome: with the process, or by a fault of the server.
    pub(crate) fn interrupt(&mut self, now_ms: u64) {
        self.release(now_ms);
        self.interruptions = self.interruptions.saturating_add(1);
        if self.interruptions > MAX_INTERRUPTIONS {
            self.set_error("the server ended or failed too often while this job ran");
            self.finish(JobState::Dead, now_ms);
        }
    }

    /// Turns a job that could not begin for too long into a dead letter. Returns whether it did. One between two attempts
    /// has begun.
    pub(crate) fn dead_letter_if_too_old(&mut self, now_ms: u64) -> bool {
        let is_old = now_ms.saturating_sub(self.created_ms) > millis(MAX_START_DELAY);
        if is_old && self.state == JobState::Waiting && self.attempts == 0 {
            let days = MAX_START_DELAY.as_secs() / (24 * 3600);
            let last = self.error.take().unwrap_or_default();
            self.set_error(&format!("it could not run within {days} days; {last}"));
            self.finish(JobState::Dead, now_ms);
            return true;
        }
        false
    }

    /// Makes a finished job wait again, with all its attempts.
    pub(crate) fn requeue(&mut self, now_ms: u64) {
        self.state = JobState::Waiting;
        (self.attempts, self.interruptions) = (0, 0);
        (self.created_ms, self.ready_ms) = (now_ms, now_ms);
        self.finished_ms = None;
        self.result_bytes = 0;
        self.result_content_type = None;
        self.status = None;
    }

    /// Ends it in a final state.
    pub(crate) fn finish(&mut self, state: JobState, now_ms: u64) {
        self.state = state;
        self.finished_ms = Some(now_ms);
    }

    fn store_response(&mut self, response: JobResponse) -> bytes::Bytes {
        self.status = Some(response.status);
        self.result_content_type = response.content_type;
        self.result_bytes = response.body.len() as u64;
        response.body
    }

    fn set_error(&mut self, error: &str) {
        self.error = Some(error.chars().take(MAX_ERROR_CHARS).collect());
    }

    /// The wait before the next attempt: doubles with each.
    fn backoff(&self) -> Duration {
        let doublings = self.attempts.saturating_sub(1).min(31);
        let wait = self.backoff_ms.saturating_mul(1 << doublings);
        Duration::from_millis(wait).min(MAX_BACKOFF)
    }
}

/// Whole milliseconds.
pub(super) fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
pub(super) fn record(deployment: &str, id: &str, body: &[u8], now_ms: u64) -> JobRecord {
    let key = JobKey {
        deployment: deployment.to_owned(),
        id: id.to_owned(),
    };
    let settings = JobSettings::default();
    let body = BodyDigest::of(body);
    JobRecord::new(key, "/a".to_owned(), None, body, &settings, now_ms)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failure(can_retry: bool) -> Outcome {
        Outcome::Failed {
            error: "no".to_owned(),
            can_retry,
            response: None,
        }
    }

    #[test]
    fn waits_double_until_attempts_end() {
        let mut job = record("a", "1", b"", 0);
        let mut waits = Vec::new();
        while job.state == JobState::Waiting {
            job.begin(100);
            job.end(failure(true), 1000);
            waits.push(job.ready_ms.saturating_sub(1000));
        }
        assert_eq!(waits[..4], [1000, 2000, 4000, 8000]);
        assert_eq!((job.attempts, waits.len()), (5, 5));
        assert_eq!(job.state, JobState::Dead);
        job.attempts = 30;
        assert_eq!(job.backoff(), MAX_BACKOFF);
    }

    #[test]
    fn final_failure_is_not_tried_again() {
        let mut job = record("a", "1", b"", 0);
        job.begin(1);
        job.end(failure(false), 2);
        assert_eq!((job.state, job.attempts), (JobState::Dead, 1));
        job.requeue(9);
        assert_eq!((job.state, job.attempts), (JobState::Waiting, 0));
        assert_eq!(job.ready_ms, 9);
    }

    #[test]
    fn handled_message_has_no_earlier_status() {
        let mut job = record("a", "1", b"", 0);
        job.begin(1);
        let response = JobResponse {
            status: 500,
            content_type: None,
            body: bytes::Bytes::new(),
        };
        let failed = Outcome::Failed {
            error: "no".to_owned(),
            can_retry: true,
            response: Some(response),
        };
        job.end(failed, 2);
        assert_eq!((job.state, job.status), (JobState::Waiting, Some(500)));
        job.begin(3);
        job.end(Outcome::Handled, 4);
        assert_eq!((job.state, job.status), (JobState::Succeeded, None));
    }

    #[test]
    fn deferred_and_released_attempts_do_not_count() {
        let mut job = record("a", "1", b"", 0);
        for _ in 0..100 {
            job.begin(1);
            let wait = Duration::from_secs(1);
            let reason = "busy".to_owned();
            job.end(Outcome::Deferred { reason, wait }, 5);
        }
        assert_eq!(
            (job.state, job.attempts, job.ready_ms),
            (JobState::Waiting, 0, 1005)
        );
        job.begin(2000);
        assert_eq!(job.attempts, 1);
        let wait = Duration::ZERO;
        let reason = "paused".to_owned();
        job.end(
            Outcome::Deferred { reason, wait },
            millis(MAX_START_DELAY) + 1,
        );
        assert_eq!(job.state, JobState::Dead, "it waited for too long");
        let mut begun = record("a", "1", b"", 0);
        begun.begin(1);
        begun.end(failure(true), 2);
        assert!(!begun.dead_letter_if_too_old(millis(MAX_START_DELAY) + 1));
    }

    #[test]
    fn largest_counts_of_a_record_are_kept() {
        let mut job = record("a", "1", b"", 0);
        (job.attempts, job.claims) = (u32::MAX, u64::MAX);
        job.interruptions = u32::MAX;
        job.begin(1);
        job.interrupt(2);
        assert_eq!((job.state, job.claims), (JobState::Dead, u64::MAX));
    }

    #[test]
    fn job_that_kills_the_process_becomes_dead_letter() {
        let mut job = record("a", "1", b"", 0);
        for _ in 0..MAX_INTERRUPTIONS {
            job.begin(1);
            job.interrupt(2);
            assert_eq!((job.state, job.attempts), (JobState::Waiting, 0));
        }
        job.begin(1);
        job.interrupt(2);
        assert_eq!(job.state, JobState::Dead);
    }
}
