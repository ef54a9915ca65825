//! The jobs of a cluster: the stream `corral_jobs` of NATS JetStream, which all hosts share.
//!
//! | subject below `corral.jobs` | last message |
//! |---|---|
//! | `job.DEPLOYMENT.ID` | record of a job; an empty message removes it |
//! | `body.DEPLOYMENT.ID.N`, `result.DEPLOYMENT.ID.N` | a part of its body or result |
//! | `key.DEPLOYMENT.DIGITS` | the id of the job with an idempotency key |
//! | `cron.DEPLOYMENT` | states of the schedules |
//! | `host.ID` | heartbeat of a host |
//!
//! Each host [follows](follow) the records and schedules, and keeps them in an index. A change is an atomic
//! [batch], in which each record names the version that it replaces: of two hosts that claim a job, add one with the same
//! idempotency key, or handle the same time of a schedule, one is told that the other was faster. So the hosts need neither a
//! leader nor a queue beside the records. A host sends [heartbeats](host_heartbeats); the jobs of one that sends none for 30 s
//! are returned to the queue by the others. If it still runs them, their outcomes are dropped.

mod batch;
mod follow;
mod host_heartbeats;

use super::job::{JobKey, JobRecord};
use super::job_index::JobIndex;
use super::job_store::{Change, JobStore};
use super::queue::CronState;
use super::queue_error::QueueError;
use crate::deployments::{MAX_MESSAGE_BYTES, NatsConnection};
use async_nats::jetstream::message::StreamMessage;
use async_nats::jetstream::stream::{LastRawMessageError, LastRawMessageErrorKind, Stream};
use batch::{Batch, Committed};
use bytes::Bytes;
use futures_util::{StreamExt, TryStreamExt};
use host_heartbeats::HostHeartbeats;
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::fmt::{self, Display};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Duration, Instant};
use tokio::runtime::Handle;
use tokio::sync::{Notify, watch};
use tokio::time::timeout;

const STREAM: &str = "corral_jobs";
const PREFIX: &str = "corral.jobs";
/// Bytes of a part of a body or result.
const PART_BYTES: u64 = MAX_MESSAGE_BYTES as u64;
/// Parts that are read at once.
const MAX_READS: usize = 4;
/// Longest wait for what NATS has confirmed, and for the first index.
const ARRIVAL_TIME: Duration = Duration::from_secs(5);
/// Longest wait for what another host was faster to change, if its sequence is unknown.
const CONFLICT_TIME: Duration = Duration::from_millis(50);

/// Jobs in NATS JetStream.
pub(super) struct JobStream {
    connection: Arc<NatsConnection>,
    host_id: String,
    runtime: Handle,
    /// `None` until it is opened.
    stream: RwLock<Option<Arc<Stream>>>,
    index: Mutex<JobIndex>,
    /// Sequence of the last message in the index. None while there is no connection, or the index is being read.
    arrived: watch::Sender<Option<u64>>,
    heartbeats: Mutex<HostHeartbeats>,
}

impl JobStream {
    /// Follows the jobs of a cluster until the process ends, and notifies `changed` when jobs change.
    pub(super) fn follow(
        connection: Arc<NatsConnection>,
        host_id: &str,
        changed: Arc<Notify>,
    ) -> Arc<Self> {
        let heartbeats = Mutex::new(HostHeartbeats::new(host_id));
        let jobs = Arc::new(JobStream {
            connection,
            host_id: host_id.to_owned(),
            runtime: Handle::current(),
            stream: RwLock::default(),
            index: Mutex::default(),
            arrived: watch::Sender::new(None),
            heartbeats,
        });
        tokio::spawn(follow::follow(Arc::clone(&jobs), changed));
        jobs
    }

    /// Waits until the jobs are known, but not for long.
    pub(super) async fn wait_until_loaded(&self) {
        let mut arrived = self.arrived.subscribe();
        // Without them, changes are refused.
        let _ = timeout(ARRIVAL_TIME, arrived.wait_for(Option::is_some)).await;
    }

    fn heartbeats(&self) -> MutexGuard<'_, HostHeartbeats> {
        self.heartbeats
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// The stream, if its jobs are in the index.
    fn stream(&self) -> Result<Arc<Stream>, QueueError> {
        let usable = self.connection.check();
        usable.map_err(|cause| self.unreachable(cause))?;
        let stream = self.stream.read().unwrap_or_else(PoisonError::into_inner);
        let stream = stream.clone().filter(|_| self.arrived.borrow().is_some());
        stream.ok_or_else(|| self.unreachable("they are not read yet"))
    }

    fn unreachable(&self, cause: impl Display) -> QueueError {
        QueueError::Unreachable {
            servers: self.connection.servers.clone(),
            cause: cause.to_string(),
        }
    }

    /// Waits until the index has the message of this sequence.
    async fn wait_for(&self, sequence: u64) {
        let mut arrived = self.arrived.subscribe();
        let has_arrived = |arrived: &Option<u64>| arrived.is_none_or(|at| at >= sequence);
        // What is late only makes other changes fail.
        let _ = timeout(ARRIVAL_TIME, arrived.wait_for(has_arrived)).await;
    }

    /// Publishes a batch. Returns false if a record has another version.
    async fn publish(&self, batch: Batch) -> Result<bool, QueueError> {
        if batch.is_empty() {
            return Ok(true);
        }
        let client = &self.connection.client;
        let committed = batch.commit(client).await;
        match committed.map_err(|cause| self.unreachable(cause))? {
            Committed::At(sequence) => {
                self.wait_for(sequence).await;
                Ok(true)
            }
            Committed::WrongVersion(Some(sequence)) => {
                self.wait_for(sequence).await;
                Ok(false)
            }
            Committed::WrongVersion(None) => {
                let mut arrived = self.arrived.subscribe();
                // Without an arrival, the change is tried again as it is.
                let _ = timeout(CONFLICT_TIME, arrived.changed()).await;
                Ok(false)
            }
            Committed::Refused(cause) => {
                tracing::error!("NATS refuses a change of jobs: {cause}");
                Err(QueueError::Storage(cause))
            }
        }
    }

    /// The states of a deployment's schedules, if they have this version.
    fn schedules(&self, deployment: &str, version: u64) -> Option<BTreeMap<String, CronState>> {
        let index = self.index();
        if index.cron_version(deployment) != version {
            return None;
        }
        let jobs = index.deployments.get(deployment);
        Some(jobs.map(|jobs| jobs.cron.clone()).unwrap_or_default())
    }

    async fn change(&self, changes: Vec<Change>) -> Result<bool, QueueError> {
        let (mut batch, mut records) = (Batch::default(), Vec::new());
        for change in changes {
            match change {
                Change::Remove(job) => {
                    let mut removal = Batch::default();
                    removal.remove_parts("body", &job.key(), job.body_bytes);
                    removal.remove_parts("result", &job.key(), job.result_bytes);
                    if let Some(subject) = client_key(&job) {
                        removal.remove(subject);
                    }
                    removal.remove_record(subject("job", &job.key()), job.version);
                    if !batch.has_room_for(&removal) && !self.publish(batch.take()).await? {
                        return Ok(false);
                    }
                    batch.append(removal);
                }
                change => records.push(change),
            }
        }
        // What is removed makes room first, so that one batch need not hold everything.
        if !self.publish(batch.take()).await? {
            return Ok(false);
        }
        let mut keys = Vec::new();
        for change in &records {
            match change {
                Change::Body(key, body) => batch.put_parts("body", key, body),
                Change::Result(key, result) => batch.put_parts("result", key, result),
                Change::RemoveResult(key, bytes) => batch.remove_parts("result", key, *bytes),
                Change::Job(job) if job.version == 0 => {
                    if let Some(subject) = client_key(job) {
                        keys.push(subject.clone());
                        batch.put_version(subject, 0, job.id.clone().into());
                    }
                }
                _ => {}
            }
        }
        // Last, since the index waits for the last message.
        if !self.add_records(&mut batch, records)? {
            return Ok(false);
        }
        let again = (!keys.is_empty()).then(|| batch.clone());
        if self.publish(batch).await? {
            return Ok(true);
        }
        match again {
            Some(batch) => self.publish_freed(batch, &keys).await,
            None => Ok(false),
        }
    }

    /// Adds records of jobs and schedules to a batch. Returns false if the schedules have another version.
    fn add_records(&self, batch: &mut Batch, records: Vec<Change>) -> Result<bool, QueueError> {
        let mut schedules = BTreeMap::new();
        for change in records {
            match change {
                Change::Job(job) => {
                    let record = serde_json::to_vec(&*job).map_err(|error| {
                        QueueError::Storage(format!("the record of a job: {error}"))
                    })?;
                    batch.put_version(subject("job", &job.key()), job.version, record.into());
                }
                Change::Cron {
                    deployment,
                    entry,
                    state,
                    version,
                } => {
                    let Some(states) = self.schedules(&deployment, version) else {
                        return Ok(false);
                    };
                    let changed = schedules.entry((deployment, version)).or_insert(states);
                    match state {
                        Some(state) => drop(changed.insert(entry, state)),
                        None => drop(changed.remove(&entry)),
                    }
                }
                _ => {}
            }
        }
        for ((deployment, version), states) in schedules {
            let states = serde_json::to_vec(&states).map_err(|error| {
                QueueError::Storage(format!("the state of a schedule: {error}"))
            })?;
            batch.put_version(
                format!("{PREFIX}.cron.{deployment}"),
                version,
                states.into(),
            );
        }
        Ok(true)
    }

    /// Publishes a batch again whose idempotency keys had another version, if one of them was freed: the message that
    /// removed it with its job stays for a moment. Returns false if none was, or another host was faster.
    async fn publish_freed(&self, mut batch: Batch, keys: &[String]) -> Result<bool, QueueError> {
        let stream = self.stream()?;
        let mut has_freed = false;
        for key in keys {
            let last = last_message(&stream, key).await;
            let last = last.map_err(|error| self.unreachable(error))?;
            if let Some(last) = last.filter(|last| last.payload.is_empty()) {
                batch.expect(key, last.sequence);
                has_freed = true;
            }
        }
        match has_freed {
            true => self.publish(batch).await,
            false => Ok(false),
        }
    }

    /// The parts of a body or result of so many bytes.
    async fn parts(&self, kind: &str, key: JobKey, bytes: u64) -> Result<Bytes, QueueError> {
        let stream = self.stream()?;
        let subjects = (0..bytes.div_ceil(PART_BYTES)).map(|part| self::part(kind, &key, part));
        let reads = futures_util::stream::iter(subjects).map(|subject| {
            let stream = &stream;
            async move { stream.get_last_raw_message_by_subject(&subject).await }
        });
        let parts: Vec<_> = reads
            .buffered(MAX_READS)
            .try_collect()
            .await
            .map_err(|error| self.unreachable(error))?;
        let parts = Vec::from_iter(parts.iter().map(|part| &part.payload[..])).concat();
        match parts.len() as u64 {
            read if read == bytes => Ok(parts.into()),
            read => Err(QueueError::Storage(format!(
                "the {kind} of job {} has {read} bytes in NATS instead of {bytes}",
                key.id
            ))),
        }
    }
}

impl JobStore for JobStream {
    fn check_ready(&self) -> Result<(), QueueError> {
        self.stream().map(drop)
    }

    fn index(&self) -> MutexGuard<'_, JobIndex> {
        self.index.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn commit(&self, changes: Vec<Change>) -> Result<bool, QueueError> {
        self.runtime.block_on(self.change(changes))
    }

    fn body(&self, record: &JobRecord) -> Result<Bytes, QueueError> {
        let parts = self.parts("body", record.key(), record.body_bytes);
        self.runtime.block_on(parts)
    }

    fn result(&self, record: &JobRecord) -> Result<Bytes, QueueError> {
        let parts = self.parts("result", record.key(), record.result_bytes);
        self.runtime.block_on(parts)
    }

    fn host(&self) -> Option<&str> {
        Some(&self.host_id)
    }

    fn has_lost(&self, job: &JobRecord) -> bool {
        let has_lost = |host: &String| {
            let heartbeats = self.heartbeats();
            heartbeats.has_lost(host, job.version, Instant::now())
        };
        job.host.as_ref().is_none_or(has_lost)
    }

    fn catch_up(&self, key: &JobKey) -> Result<(), QueueError> {
        // An id is a part of a subject.
        let is_id = !key.id.is_empty() && key.id.bytes().all(|byte| byte.is_ascii_alphanumeric());
        if !is_id || self.index().get(&key.deployment, &key.id).is_some() {
            return Ok(());
        }
        let stream = self.stream()?;
        let subject = subject("job", key);
        let last = self.runtime.block_on(last_message(&stream, &subject));
        if let Some(message) = last.map_err(|error| self.unreachable(error))? {
            self.runtime.block_on(self.wait_for(message.sequence));
        }
        Ok(())
    }
}

impl fmt::Debug for JobStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "JobStream({})", self.connection.servers)
    }
}

/// The last message of a subject, as the leader of the stream knows it.
async fn last_message(
    stream: &Stream,
    subject: &str,
) -> Result<Option<StreamMessage>, LastRawMessageError> {
    match stream.get_last_raw_message_by_subject(subject).await {
        Ok(message) => Ok(Some(message)),
        Err(error) if error.kind() == LastRawMessageErrorKind::NoMessageFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// The subject of a job's record.
fn subject(kind: &str, JobKey { deployment, id }: &JobKey) -> String {
    format!("{PREFIX}.{kind}.{deployment}.{id}")
}

/// The subject of a part of a job's body or result.
fn part(kind: &str, key: &JobKey, part: u64) -> String {
    format!("{}.{part}", subject(kind, key))
}

/// The subject of a job's idempotency key, if it has one.
fn client_key(record: &JobRecord) -> Option<String> {
    let message = record.message.as_ref();
    let subject = message.map(|message| message.subject.as_str());
    let key = (record.tenant(), subject, record.idempotency_key.as_ref()?);
    // A tuple of texts is JSON.
    let text = serde_json::to_vec(&key).ok()?;
    let digits = data_encoding::HEXLOWER.encode(&Sha256::digest(text));
    Some(format!("{PREFIX}.key.{}.{digits}", record.deployment))
}
