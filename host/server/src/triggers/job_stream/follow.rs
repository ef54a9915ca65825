//! Follows the stream of jobs, and sends heartbeats.
//!
//! After every connection all records are read again into a new index, so that nothing depends on what arrived before.

use super::host_heartbeats::{HEARTBEAT_INTERVAL, HostHeartbeats};
use super::{JobStream, PREFIX, STREAM, last_message};
use crate::deployments::with_jitter;
use crate::triggers::job::JobRecord;
use crate::triggers::job_index::JobIndex;
use crate::triggers::job_store::JobStore;
use async_nats::jetstream::consumer::{DeliverPolicy, push};
use async_nats::jetstream::stream::{Config, DiscardPolicy, StorageType, Stream};
use async_nats::{HeaderMap, header};
use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::future::join_all;
use std::collections::HashMap;
use std::convert::Infallible;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::Notify;
use tokio::time::{MissedTickBehavior, interval, sleep};

/// Heartbeats of this host that were stored and have not arrived, after which everything is read again.
const MAX_MISSING_HEARTBEATS: u32 = 3;
/// More bytes than a body or result has.
const MAX_BYTES: u64 = 16 << 20;
/// How long a heartbeat stays: longer than the clock of NATS may be set forward.
const HEARTBEAT_LIFETIME: &str = "24h";
/// The first pause after a failure; each further one is twice as long.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const MAX_PAUSE: Duration = Duration::from_secs(10);

/// Follows the stream until the process ends.
pub(super) async fn follow(jobs: Arc<JobStream>, changed: Arc<Notify>) {
    let connection = &jobs.connection;
    let mut pause = FIRST_PAUSE;
    loop {
        let number = connection.connected().await;
        let followed = tokio::select! {
            followed = jobs.follow_connection(&changed) => Some(followed),
            () = connection.lost(number) => None,
        };
        if jobs.arrived.send_replace(None).is_some() {
            pause = FIRST_PAUSE;
        }
        let Some(Err(error)) = followed else {
            continue;
        };
        tracing::warn!("cannot follow the cluster's jobs, trying again: {error}");
        sleep(with_jitter(pause)).await;
        pause = (2 * pause).min(MAX_PAUSE);
    }
}

impl JobStream {
    /// Follows the stream of one connection. Ends only with an error.
    async fn follow_connection(
        &self,
        changed: &Notify,
    ) -> Result<Infallible, Box<dyn std::error::Error + Send + Sync>> {
        let stream = self.open().await?;
        // The index is complete when the heartbeat of this host arrives, since it is the newest message.
        let newest = self.send_heartbeat().await?;
        let consumer = stream.create_consumer(push::OrderedConfig {
            deliver_subject: self.connection.client.new_inbox(),
            filter_subjects: vec![
                format!("{PREFIX}.job.>"),
                format!("{PREFIX}.cron.>"),
                heartbeat_subject(&self.host_id),
            ],
            deliver_policy: DeliverPolicy::LastPerSubject,
            ..push::OrderedConfig::default()
        });
        let mut messages = consumer.await?.messages().await?;
        let stream = Arc::new(stream);
        *self.stream.write().unwrap_or_else(PoisonError::into_inner) = Some(Arc::clone(&stream));
        *self.heartbeats() = HostHeartbeats::new(&self.host_id);
        let mut loading = Some(JobIndex::default());
        let (mut newest_heartbeat, mut missing_heartbeats) = (newest, 0);
        let mut heartbeats = interval(HEARTBEAT_INTERVAL);
        heartbeats.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let message = tokio::select! {
                _ = heartbeats.tick() => {
                    match self.send_heartbeat().await {
                        Ok(_) if loading.is_none() && missing_heartbeats >= MAX_MISSING_HEARTBEATS => {
                            return Err("NATS has stored changes that do not arrive".into());
                        }
                        Ok(sequence) => {
                            newest_heartbeat = sequence;
                            missing_heartbeats += 1;
                            if loading.is_none() && self.find_lost_hosts(&stream).await {
                                changed.notify_one();
                            }
                        }
                        // The next one follows soon.
                        Err(error) => tracing::debug!("cannot send a heartbeat: {error}"),
                    }
                    continue;
                }
                message = messages.next() => message.ok_or("the stream of changes ended")??,
            };
            let sequence = message.info()?.stream_sequence;
            if sequence >= newest_heartbeat {
                missing_heartbeats = 0;
            }
            let is_record = match &mut loading {
                Some(index) => self.apply(index, &message.subject, sequence, &message.payload),
                None => {
                    let index = &mut *self.index();
                    self.apply(index, &message.subject, sequence, &message.payload)
                }
            };
            if sequence >= newest
                && let Some(index) = loading.take()
            {
                *self.index() = index;
                changed.notify_one();
            }
            if loading.is_none() {
                self.arrived.send_replace(Some(sequence));
                if is_record {
                    changed.notify_one();
                }
            }
        }
    }

    /// Opens the stream, and creates it if it is missing.
    async fn open(&self) -> Result<Stream, String> {
        let config = Config {
            name: STREAM.to_owned(),
            description: Some("Jobs of Corral's deployments".to_owned()),
            subjects: vec![format!("{PREFIX}.>")],
            max_messages_per_subject: 1,
            discard: DiscardPolicy::New,
            storage: StorageType::File,
            allow_message_ttl: true,
            allow_atomic_publish: true,
            ..Config::default()
        };
        let opened = self.connection.context.get_or_create_stream(config).await;
        let stream = opened.map_err(|error| format!("the stream {STREAM}: {error}"))?;
        let config = &stream.cached_info().config;
        let is_usable = config.allow_atomic_publish
            && config.allow_message_ttl
            && config.max_messages_per_subject == 1;
        if !is_usable {
            return Err(format!(
                "the stream {STREAM} does not allow atomic batches and times to live, with one message per subject; jobs \
                 need NATS 2.12 or later, and a stream that Corral has created"
            ));
        }
        Ok(stream)
    }

    /// Tells the other hosts that this one lives. Returns the sequence of the message.
    async fn send_heartbeat(&self) -> Result<u64, Box<dyn std::error::Error + Send + Sync>> {
        let mut headers = HeaderMap::new();
        headers.insert(header::NATS_MESSAGE_TTL, HEARTBEAT_LIFETIME);
        let subject = heartbeat_subject(&self.host_id);
        let context = &self.connection.context;
        let published = context.publish_with_headers(subject, headers, Bytes::new());
        Ok(published.await?.await?.sequence)
    }

    /// Checks some of the hosts whose jobs run since before a settled heartbeat of this host. Returns whether one is lost.
    async fn find_lost_hosts(&self, stream: &Stream) -> bool {
        let Some(settled) = self.heartbeats().settled(Instant::now()) else {
            return false;
        };
        let mut hosts = self.index().hosts_running_since(settled);
        hosts.remove(&self.host_id);
        let checked = self.heartbeats().next_checked(&hosts);
        let reads = checked.into_iter().map(|host| async move {
            let last = last_message(stream, &heartbeat_subject(&host)).await;
            (host, last)
        });
        let mut lost = HashMap::new();
        for (host, last) in join_all(reads).await {
            match last {
                Ok(last) if last.as_ref().is_none_or(|last| last.sequence < settled) => {
                    lost.insert(host, settled);
                }
                Ok(_) => {}
                // It counts as alive until the next check.
                Err(error) => tracing::debug!(host, "cannot read a heartbeat: {error}"),
            }
        }
        let has_lost = !lost.is_empty();
        self.heartbeats().set_lost(lost);
        has_lost
    }

    /// Puts a message into the index. Returns whether it is a record.
    fn apply(&self, index: &mut JobIndex, subject: &str, version: u64, payload: &[u8]) -> bool {
        let below = subject.strip_prefix(PREFIX).unwrap_or_default();
        let parts = Vec::from_iter(below.split('.').skip(1));
        let applied = match parts[..] {
            ["host", _] => {
                self.heartbeats().arrive(version, Instant::now());
                return false;
            }
            ["job", deployment, id] if payload.is_empty() => {
                index.remove(deployment, id);
                Ok(())
            }
            ["job", deployment, id] => {
                let is_own = |job: &JobRecord| job.deployment == deployment && job.id == id;
                match serde_json::from_slice::<JobRecord>(payload) {
                    Ok(job) if job.body_bytes.max(job.result_bytes) > MAX_BYTES => {
                        Err("its body or result is too large".to_owned())
                    }
                    Ok(mut job) if is_own(&job) => {
                        job.version = version;
                        index.insert(job);
                        Ok(())
                    }
                    Ok(_) => Err("it is the record of another job".to_owned()),
                    Err(error) => Err(error.to_string()),
                }
            }
            ["cron", deployment] => match serde_json::from_slice(payload) {
                Ok(states) => {
                    index.set_schedules(deployment, states, version);
                    Ok(())
                }
                Err(error) => Err(error.to_string()),
            },
            _ => Err("its subject is unknown".to_owned()),
        };
        if let Err(error) = applied {
            // The version before is no longer the job's.
            if let ["job", deployment, id] = parts[..] {
                index.remove(deployment, id);
            }
            tracing::error!(
                subject,
                "the cluster has an unusable record of jobs: {error}"
            );
        }
        true
    }
}

fn heartbeat_subject(host: &str) -> String {
    format!("{PREFIX}.host.{host}")
}
