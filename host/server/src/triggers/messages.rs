//! Messages: `POST /messages/SUBJECT` on the public listener, and those that plugins publish. A message becomes a job of each
//! deployment that subscribes to its subject.
//!
//! A message is stored for all of them or for none: if one has no room, the sender gets an error, and may send it again.
//! A client reaches those deployments that its API key may call. The paths below `/messages` belong to the host while a
//! deployment subscribes to anything, and a manifest may not name a route there.

use super::body_memory::{BodyPermit, BodySender};
use super::job::{BodyDigest, JobKey, JobMessage, JobOwner, JobRecord, JobSender};
use super::job_routes::{
    Answer, IDEMPOTENCY_KEY, MAX_CONTENT_TYPE, MAX_KEY, collect, max_body_bytes, path, text,
};
use super::queue::NewJob;
use super::queue_error::QueueError;
use super::settings::JobSettings;
use super::{TriggerSettings, Triggers, new_id};
use crate::api_keys::KeyHolder;
use crate::clock::now_ms;
use crate::deployments::{Deployments, ServingDeployment};
use crate::json_response::json;
use crate::problem::Problem;
use crate::request_body::{BodyStatus, RequestBody};
use crate::request_log::RequestDetails;
use crate::state::ServerState;
use bytes::Bytes;
use corral_runtime::{Message, MessageSender, PublishError, Subject};
use http::header::CONTENT_TYPE;
use http::request::Parts;
use http::{Method, StatusCode};
use hyper::body::Incoming;
use serde_json::json as object;
use std::sync::Arc;

/// Most deployments that may get one message.
const MAX_SUBSCRIBERS: usize = 32;
/// Content type of messages that plugins publish.
const BYTES: &str = "application/octet-stream";

/// The subject that `path` names, if some deployment subscribes to any.
pub(crate) fn target<'a>(deployments: &Deployments, path: &'a str) -> Option<&'a str> {
    let subject = path.strip_prefix("/messages/")?;
    deployments.triggers()?;
    let all = deployments.all();
    let mut settings = all.iter().filter_map(|deployment| deployment.triggers());
    let is_used = settings.any(|settings| settings.messages.is_some());
    is_used.then_some(subject)
}

/// The problem for a path below `/messages` that belongs to nobody.
pub(crate) fn no_subscriber(path: &str) -> Option<Problem> {
    let subject = path.strip_prefix("/messages/")?;
    let detail = format!(
        "no deployment subscribes to '{}'; add the subject to 'messages.subscriptions' of a manifest, and deploy it on a \
         server with --store",
        subject.escape_debug()
    );
    Some(Problem::new(StatusCode::NOT_FOUND, "no-subscriber", detail))
}

/// Answers a request for messages.
pub(crate) async fn answer(
    state: &ServerState,
    deployments: &Deployments,
    subject: &str,
    (head, body, body_status): (Parts, RequestBody<Incoming>, BodyStatus),
    details: &mut RequestDetails,
) -> Answer {
    if head.method != Method::POST {
        return Err(Problem::method("POST"));
    }
    let subject: Subject = subject.parse().map_err(|error| {
        Problem::new(
            StatusCode::BAD_REQUEST,
            "invalid-subject",
            format!("{error}"),
        )
    })?;
    let found = Subscriber::find(deployments, &subject);
    let (Some(triggers), false) = (deployments.triggers(), found.is_empty()) else {
        let no_route = || Problem::no_route(head.uri.path());
        return Err(no_subscriber(head.uri.path()).unwrap_or_else(no_route));
    };
    let (subscribers, holder) = authorized(state, &head, found)?;
    let names = |holder: &KeyHolder| [holder.key_name.clone(), holder.tenant_name.clone()];
    details.key = holder.as_ref().map(names);
    check_number(&subscribers).map_err(too_many)?;
    // One that is repeated may be there already.
    if !head.headers.contains_key(IDEMPOTENCY_KEY) {
        for subscriber in &subscribers {
            subscriber.check_room(triggers, JobOwner::Anyone)?;
        }
    }
    if let Some(memory) = state.memory.get() {
        let tenant = holder.as_ref().map(|holder| holder.tenant);
        details.memory_permit = Some(memory.admit(tenant).await?);
    }
    let limits = subscribers.iter().map(Subscriber::max_body_bytes);
    let limit = limits.min().unwrap_or(0);
    let content_type = text(&head.headers, &CONTENT_TYPE, MAX_CONTENT_TYPE)?;
    let idempotency_key = text(&head.headers, &IDEMPOTENCY_KEY, MAX_KEY)?;
    let request = (&head.headers, body, body_status);
    let sender = BodySender::client(holder.as_ref().map(|holder| &*holder.tenant_name));
    let (body, memory) = collect(state, triggers, sender, request, limit).await?;
    let message = NewMessage {
        message: JobMessage {
            subject,
            reply_to: None,
            publisher: None,
            depth: 0,
        },
        body,
        content_type,
        idempotency_key,
    };
    let count = message.submit(triggers, &subscribers, memory).await?;
    let answer = object!({ "subscribers": count });
    Ok(json(StatusCode::ACCEPTED, &answer))
}

/// Those subscribers that the client may call, and its key. If it may call none, the problem of the first.
fn authorized(
    state: &ServerState,
    head: &Parts,
    found: Vec<Subscriber>,
) -> Result<(Vec<Subscriber>, Option<KeyHolder>), Problem> {
    let keys = state.api_keys.as_deref();
    let (mut authorized, mut client, mut refusal) = (Vec::new(), None, None);
    for mut subscriber in found {
        let deployment = &subscriber.deployment;
        let Some(policy) = deployment.first_policy() else {
            continue;
        };
        match policy.authenticate(keys, &deployment.name, &mut head.headers.clone()) {
            Ok(holder) => {
                subscriber.sender = holder.as_ref().map(|holder| JobSender {
                    tenant: holder.tenant_name.to_string(),
                    key: holder.key_name.to_string(),
                });
                client = client.or(holder);
                authorized.push(subscriber);
            }
            Err(problem) => {
                refusal.get_or_insert(problem);
            }
        }
    }
    match refusal.filter(|_| authorized.is_empty()) {
        Some(problem) => Err(problem),
        None => Ok((authorized, client)),
    }
}

/// Stores a message that a plugin publishes. Its grant replaces access to the subscribers.
pub(crate) async fn publish_for_plugin(
    deployments: &Deployments,
    message: Message,
    sender: MessageSender,
) -> Result<(), PublishError> {
    let triggers = deployments.triggers().ok_or(PublishError::Unavailable)?;
    let mut subscribers = Subscriber::find(deployments, &message.subject);
    check_number(&subscribers).map_err(PublishError::Other)?;
    let key = sender.key.map(|[tenant, key]| JobSender {
        tenant: tenant.to_string(),
        key: key.to_string(),
    });
    for subscriber in &mut subscribers {
        subscriber.sender.clone_from(&key);
    }
    if subscribers.is_empty() {
        return Ok(());
    }
    let bytes = message.body.len() as u64;
    let limits = subscribers.iter().map(Subscriber::max_body_bytes);
    if limits.min().is_some_and(|limit| bytes > limit) {
        return Err(PublishError::TooLarge);
    }
    for subscriber in &subscribers {
        subscriber.check_room(triggers, JobOwner::Deployment)?;
    }
    let publisher = sender.deployment.to_string();
    let memory = triggers.reserve(BodySender::Plugin(publisher.clone()), bytes)?;
    let message = NewMessage {
        message: JobMessage {
            subject: message.subject,
            reply_to: message.reply_to,
            publisher: Some(publisher),
            depth: sender.depth,
        },
        body: message.body,
        content_type: Some(BYTES.to_owned()),
        idempotency_key: None,
    };
    message.submit(triggers, &subscribers, memory).await?;
    Ok(())
}

impl From<QueueError> for PublishError {
    fn from(error: QueueError) -> Self {
        match error {
            QueueError::Full { .. } | QueueError::NoRoom { .. } => PublishError::Full,
            _ => PublishError::Unavailable,
        }
    }
}

/// A deployment that gets a message.
struct Subscriber {
    deployment: Arc<ServingDeployment>,
    settings: Arc<TriggerSettings>,
    /// The key that the message was sent with.
    sender: Option<JobSender>,
}

impl Subscriber {
    /// The deployments that subscribe to `subject`, by name.
    fn find(deployments: &Deployments, subject: &Subject) -> Vec<Self> {
        let all = deployments.all().into_iter();
        let found = all.filter_map(|deployment| {
            let settings = deployment.triggers().filter(|_| deployment.stored)?;
            settings.subscription(subject)?;
            Some(Subscriber {
                deployment,
                settings,
                sender: None,
            })
        });
        found.collect()
    }

    fn job_settings(&self) -> JobSettings {
        self.settings.job_settings()
    }

    fn max_body_bytes(&self) -> u64 {
        max_body_bytes(&self.deployment, &self.job_settings())
    }

    /// Refuses a message of the key's tenant, or else of `other`, if the queue is full, before its body is read and without
    /// access to the disk.
    fn check_room(&self, triggers: &Triggers, other: JobOwner) -> Result<(), QueueError> {
        let owner = JobOwner::of(self.sender.as_ref(), other);
        let queued = self.job_settings().queued();
        triggers
            .queue
            .check_room(&self.deployment.name, &owner, queued)
    }
}

/// Refuses a message that too many deployments would get.
fn check_number(subscribers: &[Subscriber]) -> Result<(), String> {
    match subscribers.len() > MAX_SUBSCRIBERS {
        true => Err(format!(
            "{} deployments subscribe to this subject; at most {MAX_SUBSCRIBERS} can get one message",
            subscribers.len()
        )),
        false => Ok(()),
    }
}

fn too_many(detail: String) -> Problem {
    Problem::new(StatusCode::CONFLICT, "too-many-subscribers", detail)
}

/// A message that is not stored yet.
struct NewMessage {
    message: JobMessage,
    body: Bytes,
    content_type: Option<String>,
    idempotency_key: Option<String>,
}

impl NewMessage {
    /// Stores it for each of these deployments, and returns their number.
    async fn submit(
        &self,
        triggers: &Arc<Triggers>,
        subscribers: &[Subscriber],
        memory: BodyPermit,
    ) -> Result<usize, QueueError> {
        let (now, digest) = (now_ms(), BodyDigest::of(&self.body));
        let jobs = subscribers.iter().map(|one| self.job(one, &digest, now));
        Ok(triggers.submit(jobs.collect(), memory).await?.len())
    }

    fn job(&self, subscriber: &Subscriber, digest: &BodyDigest, now_ms: u64) -> NewJob {
        let deployment = &subscriber.deployment;
        let settings = subscriber.job_settings();
        let messages = subscriber.settings.messages.as_ref();
        let path = path(
            deployment,
            messages.and_then(|messages| messages.path.as_ref()),
        );
        let key = JobKey {
            deployment: deployment.name.to_string(),
            id: new_id(now_ms),
        };
        let content_type = self.content_type.clone();
        let digest = digest.clone();
        let mut record = JobRecord::new(key, path, content_type, digest, &settings, now_ms);
        if let Some(attempts) = messages.and_then(|messages| messages.attempts()) {
            record.max_attempts = attempts;
        }
        record.sender.clone_from(&subscriber.sender);
        record.idempotency_key.clone_from(&self.idempotency_key);
        record.message = Some(self.message.clone());
        NewJob {
            record,
            body: self.body.clone(),
            queued: settings.queued(),
        }
    }
}
