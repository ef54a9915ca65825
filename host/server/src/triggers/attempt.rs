//! One attempt of a job: calls the handler of its deployment, and stores the outcome.
//!
//! The handler gets an HTTP request, or, if the job is a message and the plugin handles messages, the message.

use super::job::{JobClaim, JobKey, JobRecord, JobResponse, JobState, Outcome};
use super::queue::{ClaimedJob, JobQueue};
use super::{Triggers, schedule};
use crate::clock::now_ms;
use crate::deployments::Deployments;
use crate::problem::Problem;
use crate::request_id::{HttpRequestId, REQUEST_ID};
use crate::request_policy::Access;
use crate::state::ServerState;
use crate::telemetry::{JobAttempt, TraceCaller};
use bytes::Bytes;
use corral_runtime::{CallError, CallOptions, Message, Plugin};
use http::header::{CONTENT_TYPE, HOST};
use http::{HeaderName, HeaderValue, Request, StatusCode};
use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use std::sync::Arc;
use std::time::Duration;

/// Header with a job's id.
const JOB_ID: HeaderName = HeaderName::from_static("x-corral-job-id");
/// Header with the number of the attempt, from 1.
const JOB_ATTEMPT: HeaderName = HeaderName::from_static("x-corral-job-attempt");
/// Header with what made the job.
const TRIGGER: HeaderName = HeaderName::from_static("x-corral-trigger");
/// Header with the time of the schedule.
const SCHEDULED: HeaderName = HeaderName::from_static("x-corral-scheduled");
/// Header with the subject of a message.
const SUBJECT: HeaderName = HeaderName::from_static("x-corral-subject");
/// Header with the subject for an answer to a message.
const REPLY_TO: HeaderName = HeaderName::from_static("x-corral-reply-to");
/// Headers that only the host sets.
pub(crate) const HOST_HEADERS: [HeaderName; 6] =
    [JOB_ID, JOB_ATTEMPT, TRIGGER, SCHEDULED, SUBJECT, REPLY_TO];

/// Wait before the next attempt of a job whose deployment is unavailable.
const UNAVAILABLE_WAIT: Duration = Duration::from_secs(5);
/// Pause after an operation that failed on the store.
const STORAGE_PAUSE: Duration = Duration::from_secs(1);

/// One attempt of a job.
pub(super) struct Attempt {
    pub(super) claim: JobClaim,
    pub(super) state: Arc<ServerState>,
    pub(super) deployments: Deployments,
    pub(super) triggers: Arc<Triggers>,
}

impl Attempt {
    /// Calls the plugin, and stores the outcome.
    pub(super) async fn run(self, job: ClaimedJob) {
        let outcome = self.call(&job.record, job.body).await;
        let deferred = matches!(outcome, Outcome::Deferred { .. });
        if let Some(record) = self.finish(outcome).await {
            let event = match record.state {
                JobState::Waiting if deferred => "deferred",
                JobState::Waiting => "retried",
                state => state.name(),
            };
            self.triggers.counters.count(&record, event);
            if record.state == JobState::Dead {
                let JobKey { deployment, id } = &self.claim.key;
                let error = record.error.as_deref();
                tracing::warn!(deployment, job = id, error, "a job became a dead letter");
            }
        }
        self.triggers.running().remove(&self.claim);
    }

    /// Stores the outcome, as soon as the store allows it.
    async fn finish(&self, outcome: Outcome) -> Option<JobRecord> {
        let outcome = Arc::new(outcome);
        let mut is_logged = false;
        loop {
            let (claim, outcome) = (self.claim.clone(), Arc::clone(&outcome));
            let operation = move |queue: &JobQueue| queue.finish(&claim, &outcome, now_ms());
            match self.triggers.operate(operation).await {
                Ok(record) => return record,
                Err(error) if !is_logged => {
                    tracing::warn!(%error, "the outcome of a job could not be stored yet");
                    is_logged = true;
                }
                Err(_) => {}
            }
            tokio::time::sleep(STORAGE_PAUSE).await;
        }
    }

    /// Calls the handler.
    async fn call(&self, job: &JobRecord, body: Bytes) -> Outcome {
        let Some(deployment) = self.deployments.get(&job.deployment) else {
            return unavailable("the deployment is not loaded");
        };
        let Ok((plugin, policy)) = deployment.pick() else {
            return unavailable("the deployment is paused or not loaded");
        };
        let keys = self.state.api_keys.as_deref();
        let is_host_made = job.is_host_made();
        let holder = job.sender.as_ref().and_then(|sender| {
            // A plugin's message needs the grant of the plugin, not one of the key.
            let granted = (!is_host_made).then_some(&*deployment.name);
            keys.and_then(|keys| keys.holder(&sender.tenant, &sender.key, granted))
        });
        let needs_key = policy.access == Access::Keys && !is_host_made;
        if holder.is_none() && (needs_key || job.sender.is_some()) {
            let error = "its API key is no longer valid for this deployment";
            return refused(error.to_owned());
        }
        let tenant = holder.as_ref().map(|holder| holder.tenant);
        let _memory = match self.state.memory.get() {
            Some(memory) => match memory.admit(tenant).await {
                Ok(permit) => Some(permit),
                Err(problem) => return deferred(&problem),
            },
            None => None,
        };
        let quota_permit = match policy.acquire_quotas(holder.as_ref()) {
            Ok(permit) => permit,
            Err(problem) => return deferred(&problem),
        };
        let id = self.state.request_ids.next().text();
        let telemetry = self.state.telemetry.as_ref();
        let trace = telemetry.and_then(|telemetry| {
            telemetry.trace_job(|| JobAttempt {
                id: job.id.clone(),
                trigger: job.trigger().name(),
                attempt: job.attempts.into(),
                caller: TraceCaller {
                    deployment: Some(Arc::clone(&deployment.name)),
                    revision: plugin.revision(),
                    tenant: holder
                        .as_ref()
                        .map(|holder| Arc::clone(&holder.tenant_name)),
                    key: holder.as_ref().map(|holder| Arc::clone(&holder.key_name)),
                },
            })
        });
        let options = CallOptions {
            id: Some(Arc::clone(&id)),
            tenant,
            key_name: holder.as_ref().map(|holder| Arc::clone(&holder.key_name)),
            tenant_name: holder.map(|holder| holder.tenant_name),
            quota_permit,
            message_depth: job.message.as_ref().map_or(0, |message| message.depth),
            trace: trace.clone().map(|trace| trace as _),
            ..CallOptions::default()
        };
        deployment.count_request();
        let outcome = match &job.message {
            Some(message) if plugin.roles().messages => {
                handle_message(plugin, message.with_body(body), options).await
            }
            _ => {
                let mut request = match request(job, body, HttpRequestId::header(&id)) {
                    Ok(request) => request,
                    Err(error) => return refused(format!("it is no valid request: {error}")),
                };
                if let Some(trace) = &trace {
                    trace.set_headers(request.headers_mut());
                }
                handle_request(plugin, request, options, job.max_result_bytes).await
            }
        };
        outcome.unwrap_or_else(|error| {
            let busy = error.retry_after().is_some();
            let can_retry = !matches!(error, CallError::MissingExport { .. });
            let problem = Problem::from(error);
            let state = &deployment.context.deployment;
            state.count_refused_request(problem.code());
            match busy {
                true => deferred(&problem),
                false => failed(problem.detail().to_owned(), can_retry),
            }
        })
    }
}

/// Passes a message to a plugin that handles messages.
async fn handle_message(
    plugin: &Plugin,
    message: Message,
    options: CallOptions,
) -> Result<Outcome, CallError> {
    Ok(match plugin.handle_message(message, options).await? {
        Ok(()) => Outcome::Handled,
        Err(error) => failed(
            format!("the plugin did not handle the message: {}", error.message),
            error.can_retry,
        ),
    })
}

/// Passes a request to the plugin, and reads its response.
async fn handle_request(
    plugin: &Plugin,
    request: Request<Full<Bytes>>,
    options: CallOptions,
    max_result_bytes: u64,
) -> Result<Outcome, CallError> {
    let response = plugin.handle(request, options).await?;
    let (head, body) = response.into_parts();
    let limit = usize::try_from(max_result_bytes).unwrap_or(usize::MAX);
    let body = match Limited::new(body, limit).collect().await {
        Ok(body) => body.to_bytes(),
        Err(error) if error.is::<LengthLimitError>() => {
            return Ok(refused(format!(
                "its result is larger than {limit} bytes; raise 'jobs.result-kib' or answer less"
            )));
        }
        Err(error) => return Ok(failed(format!("the response broke off: {error}"), true)),
    };
    let content_type = head.headers.get(CONTENT_TYPE);
    let content_type = content_type.and_then(|value| value.to_str().ok());
    let response = JobResponse {
        status: head.status.as_u16(),
        content_type: content_type.map(str::to_owned),
        body,
    };
    Ok(match head.status {
        status if status.as_u16() < 400 => Outcome::Response(response),
        status => {
            let error = format!("the plugin answered with status {}", status.as_u16());
            let can_retry = status.is_server_error()
                || status == StatusCode::REQUEST_TIMEOUT
                || status == StatusCode::TOO_MANY_REQUESTS;
            Outcome::Failed {
                error,
                can_retry,
                response: Some(response),
            }
        }
    })
}

/// The request that a job becomes.
fn request(
    job: &JobRecord,
    body: Bytes,
    id: HeaderValue,
) -> Result<Request<Full<Bytes>>, http::Error> {
    let mut request = Request::post(format!("http://localhost{}", job.path))
        .header(HOST, "localhost")
        .header(REQUEST_ID, id)
        .header(JOB_ID, &job.id)
        .header(JOB_ATTEMPT, job.attempts)
        .header(TRIGGER, job.trigger().name());
    if let Some(content_type) = &job.content_type {
        request = request.header(CONTENT_TYPE, content_type);
    }
    if let Some(run) = &job.scheduled {
        request = request.header(SCHEDULED, schedule::rfc_3339(run.scheduled_ms));
    }
    if let Some(message) = &job.message {
        request = request.header(SUBJECT, message.subject.as_str());
        if let Some(reply_to) = &message.reply_to {
            request = request.header(REPLY_TO, reply_to.as_str());
        }
    }
    request.body(Full::new(body))
}

fn unavailable(reason: &str) -> Outcome {
    Outcome::Deferred {
        reason: reason.to_owned(),
        wait: UNAVAILABLE_WAIT,
    }
}

fn deferred(problem: &Problem) -> Outcome {
    Outcome::Deferred {
        reason: problem.detail().to_owned(),
        wait: problem.wait().unwrap_or(UNAVAILABLE_WAIT),
    }
}

/// A failure without a response.
fn failed(error: String, can_retry: bool) -> Outcome {
    Outcome::Failed {
        error,
        can_retry,
        response: None,
    }
}

/// A failure that another attempt would repeat.
fn refused(error: String) -> Outcome {
    failed(error, false)
}
