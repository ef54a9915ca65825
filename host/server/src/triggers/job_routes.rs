//! `/jobs/NAME` on the public listener: clients send jobs to a deployment, and see, cancel and collect them.
//!
//! These paths belong to the host where NAME is a deployment that takes jobs. All others belong to the deployments, and a
//! manifest may not name a route below `/jobs`. Access is that of the deployment's requests; a tenant of API keys sees its
//! own jobs only.

use super::body_memory::{BodyPermit, BodySender};
use super::job::{BodyDigest, JobOwner, JobRecord, JobSender};
use super::queue::NewJob;
use super::queue_error::QueueError;
use super::settings::JobSettings;
use super::status::JobStatus;
use super::{JobKey, JobState, Triggers, new_id};
use crate::api_keys::KeyHolder;
use crate::clock::now_ms;
use crate::deployments::{Deployments, ServingDeployment};
use crate::json_response::json;
use crate::problem::Problem;
use crate::request_body::{BodyState, BodyStatus, RequestBody};
use crate::request_log::RequestDetails;
use crate::response_policy::ResponsePolicy;
use crate::state::ServerState;
use bytes::Bytes;
use corral_runtime::Body;
use http::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderMap, LOCATION};
use http::request::Parts;
use http::{HeaderName, HeaderValue, Method, Response, StatusCode};
use http_body::Body as _;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use std::sync::Arc;
use std::time::Duration;

/// Header with a client's idempotency key.
pub(super) const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");
/// Longest idempotency key, in bytes.
pub(super) const MAX_KEY: usize = 255;
/// Longest content type, in bytes.
pub(super) const MAX_CONTENT_TYPE: usize = 255;
/// Jobs of a list, unless the client asks for another number.
const DEFAULT_LISTED: usize = 100;
/// Most jobs of a list.
pub(crate) const MAX_LISTED: usize = 1000;
/// Time limit for a whole body.
const BODY_TIMEOUT: Duration = Duration::from_secs(300);
/// `Retry-After` of a full queue, and of a job that has not finished.
const RETRY: Duration = Duration::from_secs(1);

pub(super) type Answer = Result<Response<Body>, Problem>;

/// The deployment that takes jobs at `path`, with its settings.
pub(crate) fn target(
    deployments: &Deployments,
    path: &str,
) -> Option<(Arc<ServingDeployment>, JobSettings)> {
    deployments.triggers()?;
    let name = path.strip_prefix("/jobs/")?.split('/').next()?;
    let deployment = deployments
        .get(name)
        .filter(|deployment| deployment.stored)?;
    let settings = deployment.triggers()?.jobs.clone()?;
    Some((deployment, settings))
}

/// The problem for a path below `/jobs` that belongs to nobody.
pub(crate) fn no_jobs(deployments: &Deployments, path: &str) -> Option<Problem> {
    let name = path.strip_prefix("/jobs/")?.split('/').next()?;
    let deployment = deployments.get(name)?;
    let detail = format!(
        "'{}' takes no jobs; add 'jobs = {{}}' to its manifest, and deploy it on a server with --store",
        deployment.name
    );
    Some(Problem::new(StatusCode::NOT_FOUND, "no-jobs", detail))
}

/// Answers a request for jobs of a deployment.
pub(crate) async fn answer(
    state: &ServerState,
    deployments: &Deployments,
    (deployment, settings): (Arc<ServingDeployment>, JobSettings),
    (mut head, body, body_status): (Parts, RequestBody<Incoming>, BodyStatus),
    details: &mut RequestDetails,
    response_policy: &mut ResponsePolicy,
) -> Answer {
    let Some((policy, triggers)) = deployment.first_policy().zip(deployments.triggers()) else {
        return Err(Problem::no_route(head.uri.path()));
    };
    details.deployment = Some(deployment.routed(head.uri.path()));
    *response_policy = ResponsePolicy::of(policy, head.uri.path());
    if let Some(preflight) = policy.cors.preflight(&head.method, &head.headers) {
        return Ok(preflight.map(|()| Body::empty()));
    }
    let keys = state.api_keys.as_deref();
    let holder = policy.authenticate(keys, &deployment.name, &mut head.headers)?;
    let names = |holder: &KeyHolder| [holder.key_name.clone(), holder.tenant_name.clone()];
    details.key = holder.as_ref().map(names);
    let tenant = holder.as_ref().map(|holder| holder.tenant);
    let jobs = Jobs {
        triggers,
        deployment: &deployment,
        settings: &settings,
        sender: holder.map(|holder| JobSender {
            tenant: holder.tenant_name.to_string(),
            key: holder.key_name.to_string(),
        }),
    };
    let path = head.uri.path().to_owned();
    let segments = Vec::from_iter(path.split('/').skip(3));
    match (&segments[..], &head.method) {
        ([], &Method::POST) => {
            jobs.check_room(&head.headers)?;
            if let Some(memory) = state.memory.get() {
                details.memory_permit = Some(memory.admit(tenant).await?);
            }
            let limit = max_body_bytes(&deployment, &settings);
            let request = (&head.headers, body, body_status);
            let sender = BodySender::client(jobs.sender.as_ref().map(|key| &*key.tenant));
            let (body, memory) = collect(state, triggers, sender, request, limit).await?;
            jobs.submit(&head.headers, body, memory).await
        }
        ([], &Method::GET | &Method::HEAD) => jobs.list(&head).await,
        ([], _) => Err(Problem::method("GET, HEAD, POST")),
        ([id], &Method::GET | &Method::HEAD) => {
            Ok(json(StatusCode::OK, &JobStatus::of(&jobs.job(id).await?)))
        }
        ([id], &Method::DELETE) => {
            let key = jobs.job(id).await?.key();
            Ok(json(StatusCode::OK, &triggers.cancel(key).await?))
        }
        ([_], _) => Err(Problem::method("DELETE, GET, HEAD")),
        ([id, "result"], &Method::GET | &Method::HEAD) => jobs.result(id).await,
        ([_, "result"], _) => Err(Problem::method("GET, HEAD")),
        _ => Err(Problem::no_route(&path)),
    }
}

struct Jobs<'a> {
    triggers: &'a Arc<Triggers>,
    deployment: &'a ServingDeployment,
    settings: &'a JobSettings,
    sender: Option<JobSender>,
}

impl Jobs<'_> {
    /// Refuses a job before its body is read if the queue is full. A repeated one may be there already.
    fn check_room(&self, headers: &HeaderMap) -> Result<(), QueueError> {
        let queue = &self.triggers.queue;
        match headers.contains_key(IDEMPOTENCY_KEY) {
            true => Ok(()),
            false => queue.check_room(&self.deployment.name, &self.owner(), self.settings.queued()),
        }
    }

    async fn submit(&self, headers: &HeaderMap, body: Bytes, memory: BodyPermit) -> Answer {
        let deployment = self.deployment.name.to_string();
        let path = path(self.deployment, self.settings.path.as_ref());
        let content_type = text(headers, &CONTENT_TYPE, MAX_CONTENT_TYPE)?;
        let idempotency_key = text(headers, &IDEMPOTENCY_KEY, MAX_KEY)?;
        let now = now_ms();
        let id = new_id(now);
        let key = JobKey { deployment, id };
        let digest = BodyDigest::of(&body);
        let mut record = JobRecord::new(key, path, content_type, digest, self.settings, now);
        record.sender.clone_from(&self.sender);
        record.idempotency_key = idempotency_key;
        let job = NewJob {
            record,
            body,
            queued: self.settings.queued(),
        };
        let mut submitted = self.triggers.submit(vec![job], memory).await?;
        let record = submitted.pop().ok_or_else(|| super::stopped(()))?;
        let mut response = json(StatusCode::ACCEPTED, &JobStatus::of(&record));
        let location = format!("/jobs/{}/{}", record.deployment, record.id);
        if let Ok(location) = HeaderValue::try_from(location) {
            response.headers_mut().insert(LOCATION, location);
        }
        Ok(response)
    }

    /// Whose jobs the client may see.
    fn owner(&self) -> JobOwner {
        JobOwner::of(self.sender.as_ref(), JobOwner::Anyone)
    }

    async fn job(&self, id: &str) -> Result<JobRecord, Problem> {
        let key = JobKey {
            deployment: self.deployment.name.to_string(),
            id: id.to_owned(),
        };
        let mut job = self.triggers.queue.job(&key);
        if job.is_none() {
            let key = key.clone();
            job = self.triggers.operate(move |queue| queue.find(&key)).await?;
        }
        let job = job.filter(|job| job.owner() == self.owner());
        job.ok_or_else(|| QueueError::Unknown(key.deployment).into())
    }

    async fn list(&self, head: &Parts) -> Answer {
        let (state, most) = list_query(head.uri.query())?;
        let name = self.deployment.name.to_string();
        let list = self.triggers.list(name, Some(self.owner()), state, most);
        Ok(json(StatusCode::OK, &list.await?))
    }

    /// The plugin's response to the job.
    async fn result(&self, id: &str) -> Answer {
        let job = self.job(id).await?;
        let refuse = |code, detail: String| Problem::new(StatusCode::CONFLICT, code, detail);
        match job.state {
            JobState::Succeeded => {
                if let Some(error) = job.error {
                    return Err(refuse("job-result-dropped", error));
                }
            }
            JobState::Dead => {
                let error = job.error.as_deref().unwrap_or("it failed");
                let detail = format!("the job failed after {} attempts: {error}", job.attempts);
                return Err(refuse("job-failed", detail));
            }
            JobState::Canceled => {
                return Err(refuse("job-canceled", "the job was canceled".to_owned()));
            }
            JobState::Waiting | JobState::Running => {
                let detail = format!("the job is {}; ask again later", job.state.name());
                return Err(refuse("job-not-finished", detail).retry_after(RETRY));
            }
        }
        let key = job.key();
        let body = self
            .triggers
            .operate(move |queue| queue.result(&key))
            .await?;
        let mut response = Response::new(Body::from(body));
        let status = job
            .status
            .and_then(|status| StatusCode::from_u16(status).ok());
        *response.status_mut() = status.unwrap_or(StatusCode::OK);
        let content_type = job.result_content_type.as_deref();
        let content_type = content_type.and_then(|value| HeaderValue::from_str(value).ok());
        if let Some(content_type) = content_type {
            response.headers_mut().insert(CONTENT_TYPE, content_type);
        }
        let no_store = HeaderValue::from_static("no-store");
        response.headers_mut().insert(CACHE_CONTROL, no_store);
        Ok(response)
    }
}

/// State and number of a list's query.
pub(crate) fn list_query(query: Option<&str>) -> Result<(Option<JobState>, usize), Problem> {
    let (mut state, mut most) = (None, DEFAULT_LISTED);
    let pairs = query.unwrap_or_default().split('&');
    for (name, value) in pairs.filter_map(|pair| pair.split_once('=')) {
        let bad = |expected: String| {
            let detail = format!("the query parameter '{name}' must be {expected}");
            Problem::new(StatusCode::BAD_REQUEST, "invalid-query", detail)
        };
        match name {
            "state" => {
                let expected = "waiting, running, succeeded, dead or canceled".to_owned();
                state = Some(value.parse::<JobState>().map_err(|_| bad(expected))?);
            }
            "limit" => {
                let number = value.parse().ok().filter(|n| (1..=MAX_LISTED).contains(n));
                most = number.ok_or_else(|| bad(format!("a number from 1 to {MAX_LISTED}")))?;
            }
            _ => {}
        }
    }
    Ok((state, most))
}

/// Largest body of a job: what the deployment's requests may have, too.
pub(super) fn max_body_bytes(deployment: &ServingDeployment, settings: &JobSettings) -> u64 {
    let limit = settings.max_body_bytes();
    let requests = deployment.request_bytes();
    requests.map_or(limit, |requests| limit.min(requests))
}

/// The path of the request that a job becomes: the first route, unless the manifest names one.
pub(super) fn path(deployment: &ServingDeployment, named: Option<&String>) -> String {
    match (named, deployment.routes.first()) {
        (Some(path), _) => path.clone(),
        (None, Some(route)) => route.to_string(),
        (None, None) => "/".to_owned(),
    }
}

/// The value of a header that the request may have: visible ASCII of 1 to `max` bytes.
pub(super) fn text(
    headers: &HeaderMap,
    name: &HeaderName,
    max: usize,
) -> Result<Option<String>, Problem> {
    let Some(value) = headers.get(name) else {
        return Ok(None);
    };
    let value = value
        .to_str()
        .ok()
        .filter(|text| (1..=max).contains(&text.len()));
    let refuse = || {
        Problem::bad_request(format!(
            "the header '{name}' must be visible ASCII of 1 to {max} bytes"
        ))
    };
    value.map(str::to_owned).map(Some).ok_or_else(refuse)
}

/// Reads the whole body, and reserves memory for it.
pub(super) async fn collect(
    state: &ServerState,
    triggers: &Triggers,
    sender: BodySender,
    (headers, mut body, status): (&HeaderMap, RequestBody<Incoming>, BodyStatus),
    limit: u64,
) -> Result<(Bytes, BodyPermit), Problem> {
    let announced = body.size_hint().exact().unwrap_or(limit);
    let memory = triggers.reserve(sender, announced.min(limit))?;
    body.set_limit(limit, || ());
    if body.refuse_announced_length(headers) {
        return Err(Problem::too_large(limit));
    }
    let idle = state.limits.body_idle_timeout;
    let collected = tokio::time::timeout(BODY_TIMEOUT, body.collect()).await;
    match (status.state(), collected) {
        (BodyState::TooLarge, _) => Err(Problem::too_large(limit)),
        (BodyState::Good, Ok(Ok(body))) => Ok((body.to_bytes(), memory)),
        (BodyState::Stalled, _) | (_, Err(_)) => Err(Problem::body_stalled(idle)),
        (_, Ok(_)) => Err(Problem::body_incomplete()),
    }
}

impl From<QueueError> for Problem {
    fn from(error: QueueError) -> Self {
        let detail = match &error {
            // Its cause names files of the server; the log has it.
            QueueError::Storage(_) => "the store of jobs failed; try again later".to_owned(),
            error => error.to_string(),
        };
        let (status, code) = match &error {
            QueueError::Full { .. } => (StatusCode::TOO_MANY_REQUESTS, "job-queue-full"),
            QueueError::NoRoom { .. } => (StatusCode::TOO_MANY_REQUESTS, "job-store-full"),
            QueueError::KeyReused => (StatusCode::UNPROCESSABLE_ENTITY, "idempotency-key-reused"),
            QueueError::Unknown(_) => (StatusCode::NOT_FOUND, "no-job"),
            QueueError::WrongState(_) => (StatusCode::CONFLICT, "wrong-job-state"),
            QueueError::Storage(_) => (StatusCode::SERVICE_UNAVAILABLE, "job-store-failed"),
            QueueError::Busy => (StatusCode::SERVICE_UNAVAILABLE, "jobs-busy"),
            QueueError::Unreachable { .. } => {
                (StatusCode::SERVICE_UNAVAILABLE, "cluster-unreachable")
            }
        };
        let problem = Problem::new(status, code, detail);
        match status {
            StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE => {
                problem.retry_after(RETRY)
            }
            _ => problem,
        }
    }
}
