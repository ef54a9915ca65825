//! The store of a cluster: buckets of NATS JetStream.
//!
//! | bucket | content |
//! |---|---|
//! | keys and values `corral_deployments` | a [record] for each name |
//! | objects `corral_components` | components, by the digits of their digests |
//! | keys and values `corral_hosts` | the [`HostStatus`] of each live host; entries expire |
//!
//! Missing buckets are created; existing ones may have more replicas, or other limits. A version is the number of the
//! record's message in its stream, which JetStream compares when it stores a new one.

use super::config::ClusterConfig;
use super::connection::{MESSAGE_OVERHEAD, NatsConnection};
use super::host::{HostStatus, MAX_HOSTS, STATUS_LIFETIME};
use super::record;
use crate::deployments::deployment_store::{DeploymentStore, StoreFuture};
use crate::deployments::digest::Digest;
use crate::deployments::name::DeploymentName;
use crate::deployments::store::StoreError;
use crate::deployments::stored_deployment::Entry;
use async_nats::jetstream::kv::{self, UpdateErrorKind};
use async_nats::jetstream::object_store::{self, ObjectStore};
use async_nats::jetstream::stream::LastRawMessageErrorKind;
use bytes::Bytes;
use futures_util::{StreamExt, TryStreamExt};
use std::fmt::Display;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;
use tokio::time::timeout;

const DEPLOYMENTS: &str = "corral_deployments";
pub(super) const COMPONENTS: &str = "corral_components";
const HOSTS: &str = "corral_hosts";
/// Names in the bucket, those of removed deployments included; more are not read.
pub(super) const MAX_NAMES: usize = 10_000;
/// Time limit for a list of keys, or of components.
pub(super) const LIST_TIME: Duration = Duration::from_secs(15);
/// Hosts' statuses that are read at once.
const MAX_READS: usize = 16;

/// Deployments in NATS JetStream.
pub struct JetStreamStore {
    pub(super) connection: Arc<NatsConnection>,
    /// `None` until they are opened.
    buckets: RwLock<Option<Arc<Buckets>>>,
    pub(super) max_component_bytes: u64,
}

pub(super) struct Buckets {
    deployments: kv::Store,
    pub(super) components: ObjectStore,
    hosts: kv::Store,
}

/// Which bucket has the records, and how far it is.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct BucketState {
    /// When it was created, in nanoseconds since 1970. The versions of another one mean nothing.
    pub(super) created: i128,
    /// The newest version that a record has, or had.
    pub(super) last_version: u64,
}

/// The records, and then each change of one.
pub(super) struct RecordChanges(kv::Watch);

/// A record that arrived.
pub(super) struct RecordChange {
    /// `None` for a key that is no name of a deployment.
    pub(super) name: Option<DeploymentName>,
    pub(super) version: u64,
    /// It may be unusable.
    pub(super) entry: Result<Entry, StoreError>,
}

impl JetStreamStore {
    /// Begins to connect, and returns before there is a connection.
    ///
    /// # Errors
    /// If the credentials are invalid.
    pub async fn connect(
        config: ClusterConfig,
        max_component_bytes: u64,
    ) -> Result<Self, StoreError> {
        let servers = config.servers.to_string();
        let connection = NatsConnection::open(config).await;
        let connection = connection.map_err(|error| StoreError::Unreachable {
            servers,
            cause: error.to_string(),
        })?;
        Ok(JetStreamStore {
            connection: Arc::new(connection),
            buckets: RwLock::default(),
            max_component_bytes,
        })
    }

    /// Waits for a connection, and returns its number.
    pub async fn connected(&self) -> u64 {
        self.connection.connected().await
    }

    /// Waits until the connection of this number is lost.
    pub(super) async fn lost(&self, number: u64) {
        self.connection.lost(number).await;
    }

    pub(super) fn is_connected(&self) -> bool {
        self.connection.is_connected()
    }

    pub(super) fn servers(&self) -> &str {
        &self.connection.servers
    }

    /// Fails without a usable connection.
    pub(super) fn check(&self) -> Result<(), StoreError> {
        self.connection.check().map_err(|cause| self.failed(cause))
    }

    /// Opens the buckets, and creates those that are missing.
    pub async fn open(&self) -> Result<(), StoreError> {
        self.check()?;
        let max_value = i32::try_from(record::MAX_BYTES + MESSAGE_OVERHEAD).unwrap_or(i32::MAX);
        let deployments = self.key_value(kv::Config {
            bucket: DEPLOYMENTS.to_owned(),
            description: "Corral's deployments".to_owned(),
            history: 1,
            max_value_size: max_value,
            ..kv::Config::default()
        });
        let deployments = deployments.await?;
        let hosts = self.key_value(kv::Config {
            bucket: HOSTS.to_owned(),
            description: "Corral's hosts".to_owned(),
            history: 1,
            max_age: STATUS_LIFETIME,
            ..kv::Config::default()
        });
        let hosts = hosts.await?;
        if hosts.stream.cached_info().config.max_age.is_zero() {
            tracing::warn!(
                "the bucket {HOSTS} keeps the hosts that are gone, for which deploys wait; make it with '--ttl 20s'"
            );
        }
        let components = match self.connection.context.get_object_store(COMPONENTS).await {
            Ok(components) => components,
            Err(_) => {
                let config = object_store::Config {
                    bucket: COMPONENTS.to_owned(),
                    description: Some("Components of Corral's deployments".to_owned()),
                    num_replicas: 1,
                    ..object_store::Config::default()
                };
                let created = self.connection.context.create_object_store(config).await;
                created.map_err(|error| self.failed(error))?
            }
        };
        let buckets = Buckets {
            deployments,
            components,
            hosts,
        };
        *self.buckets.write().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(buckets));
        Ok(())
    }

    /// The present state of the bucket of the records.
    pub(super) async fn bucket_state(&self) -> Result<BucketState, StoreError> {
        let info = self.buckets()?.deployments.stream.get_info().await;
        let info = info.map_err(|error| self.failed(error))?;
        Ok(BucketState {
            created: info.created.unix_timestamp_nanos(),
            last_version: info.state.last_sequence,
        })
    }

    async fn key_value(&self, config: kv::Config) -> Result<kv::Store, StoreError> {
        match self.connection.context.get_key_value(&config.bucket).await {
            Ok(bucket) => Ok(bucket),
            Err(_) => {
                let created = self.connection.context.create_key_value(config).await;
                created.map_err(|error| self.failed(error))
            }
        }
    }

    /// The buckets. Fails at once without a connection: the client would send requests later.
    pub(super) fn buckets(&self) -> Result<Arc<Buckets>, StoreError> {
        self.check()?;
        let buckets = self.buckets.read().unwrap_or_else(PoisonError::into_inner);
        let buckets = buckets.clone();
        buckets.ok_or_else(|| self.failed("its buckets are not open yet"))
    }

    /// Why there is no connection.
    pub(super) fn unreachable(&self) -> StoreError {
        self.failed(self.connection.last_error())
    }

    pub(super) fn failed(&self, cause: impl Display) -> StoreError {
        StoreError::Unreachable {
            servers: self.servers().to_owned(),
            cause: cause.to_string(),
        }
    }

    /// All records, and then each change of one.
    pub(super) async fn changes(&self) -> Result<RecordChanges, StoreError> {
        let bucket = &self.buckets()?.deployments;
        let watch = bucket.watch_with_history(">").await;
        watch.map(RecordChanges).map_err(|error| self.failed(error))
    }

    /// The keys of a bucket, at most `limit`, removed ones included. The client's own list of keys leaves a consumer for 30 s.
    async fn keys(&self, bucket: &kv::Store, limit: usize) -> Result<Vec<String>, StoreError> {
        let read = async {
            let all = format!("{}>", bucket.prefix);
            let subjects = bucket.stream.info_with_subjects(all).await?;
            subjects.take(limit).try_collect::<Vec<_>>().await
        };
        let late = |_| self.failed("it did not list its keys in time");
        let subjects = timeout(LIST_TIME, read).await.map_err(late)?;
        let subjects = subjects.map_err(|error| self.failed(error))?;
        let key =
            |(subject, _): (String, usize)| Some(subject.strip_prefix(&bucket.prefix)?.to_owned());
        Ok(subjects.into_iter().filter_map(key).collect())
    }

    /// Stores the status of a host, for a while.
    pub(super) async fn put_host(&self, status: &HostStatus) -> Result<(), StoreError> {
        let bytes = status.encode().map_err(|error| self.failed(error))?;
        let put = self.buckets()?.hosts.put(&status.id, bytes.into()).await;
        put.map(drop).map_err(|error| self.failed(error))
    }

    pub(super) async fn remove_host(&self, id: &str) -> Result<(), StoreError> {
        let removed = self.buckets()?.hosts.delete(id).await;
        removed.map_err(|error| self.failed(error))
    }

    /// The statuses of the live hosts, by address; at most 256.
    pub(super) async fn hosts(&self) -> Result<Vec<HostStatus>, StoreError> {
        let bucket = &self.buckets()?.hosts;
        let keys = self.keys(bucket, MAX_HOSTS).await?;
        let reads = keys.into_iter().map(|key| async move {
            let entry = bucket
                .entry(key)
                .await
                .map_err(|error| self.failed(error))?;
            // It may have expired meanwhile, be removed, or be of another version of Corral.
            let status = entry.and_then(|entry| serde_json::from_slice(&entry.value).ok());
            Ok::<Option<HostStatus>, StoreError>(status)
        });
        let reads = futures_util::stream::iter(reads).buffer_unordered(MAX_READS);
        let read: Vec<_> = reads.try_collect().await?;
        let mut hosts: Vec<_> = read.into_iter().flatten().collect();
        hosts.sort_by(|one, other| (&one.name, &one.address).cmp(&(&other.name, &other.address)));
        Ok(hosts)
    }

    async fn read_entry(&self, name: &DeploymentName) -> Result<Entry, StoreError> {
        let bucket = &self.buckets()?.deployments;
        let subject = format!("{}{name}", bucket.prefix);
        // From the leader, which has all acknowledged changes; a read of the bucket may ask a replica.
        let last = bucket.stream.get_last_raw_message_by_subject(&subject);
        match last.await {
            Ok(message) => record::decode(name, message.sequence, &message.payload),
            Err(error) if error.kind() == LastRawMessageErrorKind::NoMessageFound => {
                Ok(Entry::default())
            }
            Err(error) => Err(self.failed(error)),
        }
    }

    async fn write_entry(
        &self,
        name: &DeploymentName,
        expected: u64,
        entry: &Entry,
    ) -> Result<u64, StoreError> {
        let bytes = record::encode(name, entry)?;
        let buckets = self.buckets()?;
        let updated = buckets.deployments.update(name.as_str(), bytes, expected);
        match updated.await {
            Ok(version) => Ok(version),
            Err(error) => Err(match error.kind() {
                UpdateErrorKind::WrongLastRevision => {
                    StoreError::conflict(name, &self.read_entry(name).await?)
                }
                UpdateErrorKind::TimedOut => StoreError::Unconfirmed(name.clone()),
                UpdateErrorKind::InvalidKey | UpdateErrorKind::Other => self.failed(error),
            }),
        }
    }
}

impl RecordChanges {
    /// The next record.
    ///
    /// # Errors
    /// If no more follow, with the reason.
    pub(super) async fn next(&mut self) -> Result<RecordChange, String> {
        let change = match self.0.next().await {
            Some(Ok(change)) => change,
            Some(Err(error)) => return Err(error.to_string()),
            None => return Err("the stream of changes ended".to_owned()),
        };
        let name = change.key.parse::<DeploymentName>().ok();
        if name.is_none() {
            let key = &change.key;
            tracing::warn!(key, "the cluster has a key that is no name of a deployment");
        }
        let decode = |name: &DeploymentName| record::decode(name, change.revision, &change.value);
        Ok(RecordChange {
            entry: name.as_ref().map_or_else(|| Ok(Entry::default()), decode),
            version: change.revision,
            name,
        })
    }
}

impl DeploymentStore for JetStreamStore {
    fn names(&self) -> StoreFuture<'_, Vec<DeploymentName>> {
        Box::pin(async {
            let keys = self.keys(&self.buckets()?.deployments, MAX_NAMES).await?;
            let names = keys.iter().filter_map(|key| key.parse().ok());
            Ok(names.collect())
        })
    }

    fn entry<'a>(&'a self, name: &'a DeploymentName) -> StoreFuture<'a, Entry> {
        Box::pin(self.read_entry(name))
    }

    fn compare_and_set<'a>(
        &'a self,
        name: &'a DeploymentName,
        expected: u64,
        entry: &'a Entry,
    ) -> StoreFuture<'a, u64> {
        Box::pin(self.write_entry(name, expected, entry))
    }

    fn put_component(&self, digest: Digest, bytes: Bytes) -> StoreFuture<'_, ()> {
        Box::pin(self.write_component(digest, bytes))
    }

    fn read_component(&self, digest: Digest) -> StoreFuture<'_, Bytes> {
        Box::pin(self.download(digest))
    }
}
