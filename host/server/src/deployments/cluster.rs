//! A cluster of hosts that serve the same deployments, through NATS JetStream.
//!
//! The deployments' records live in a bucket of keys and values, their components in a bucket of objects
//! ([`JetStreamStore`]). A change on any host compares and sets the record. Every host [watches](watch_records)
//! the records and [applies](apply_record) each of them: it downloads and compiles what is new beside the serving path, writes
//! its own [`Store`](super::Store), the local copy, and lets the revision serve. If a host cannot apply a record, what serves
//! stays as it is, and the host's status, which all hosts can read, has the error.
//!
//! Without NATS a host serves its local copy, also after a restart, and refuses changes. What NATS lost, such as after the
//! loss of its disk, the hosts write again from their copies.
//!
//! The hosts share [jobs](crate::triggers), too, but not quotas, keys or plugins' values: each has its own.

mod apply_record;
mod cleanup;
mod components;
mod config;
mod connection;
mod host;
mod jetstream;
mod progress;
mod record;
mod report;
mod watch_records;

pub use config::{ClusterConfig, ClusterServers, ClusterServersError};
pub(crate) use connection::{MAX_MESSAGE_BYTES, NatsConnection, with_jitter};
pub use host::{HostDeployment, HostStatus};
pub use jetstream::JetStreamStore;

use super::change_error::ChangeError;
use super::deployment_table::Deployments;
use super::name::DeploymentName;
use super::store::StoreError;
use crate::prometheus::MetricFamilies;
use crate::triggers::Triggers;
use corral_engine::MetricKind;
use host::HostIdentity;
use progress::Progress;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio::sync::{Notify, Semaphore, watch};
use tokio::time::timeout;

/// Records that are applied at once. Each may download components, and waits for a permit to compile.
const MAX_APPLYING: usize = 2;
/// How long a starting host waits for NATS before it serves its local copy.
const CONNECT_TIME: Duration = Duration::from_secs(5);
/// How long a starting host waits until it can read the records.
const OPEN_TIME: Duration = Duration::from_secs(20);
/// How long a starting host waits until it has applied the records before it serves what it has.
const FIRST_APPLY_TIME: Duration = Duration::from_secs(60);
/// How long a stopping host tries to remove its status.
const LEAVE_TIME: Duration = Duration::from_secs(1);

/// This host's membership of a cluster.
pub(crate) struct Cluster {
    pub(super) store: JetStreamStore,
    host: HostIdentity,
    progress: Mutex<Progress>,
    /// Permits for records that are being applied.
    apply_permits: Semaphore,
    /// Wakes the task that reports this host's status.
    status_changed: Notify,
    /// Grows with each record that arrives.
    arrivals: watch::Sender<u64>,
    /// Whether the records of the first connection were applied, or could not be. `None` until they are known.
    first_applied: watch::Sender<Option<bool>>,
    has_left: AtomicBool,
    /// When this host last removed unused components.
    cleaned_up: Mutex<Option<Instant>>,
    conflicts: AtomicU64,
    refusals: AtomicU64,
}

impl Deployments {
    /// Joins a cluster, for as long as the deployments exist. `address` is where this host listens, for people. Returns
    /// once this host has applied what the cluster holds, or could not in time; it goes on in the background.
    ///
    /// # Errors
    /// Without a store, which keeps the local copy; if the configuration is invalid.
    pub async fn join(&self, config: ClusterConfig, address: String) -> Result<(), StoreError> {
        let store = self.0.store.as_ref().ok_or(StoreError::Stopped)?;
        let host = HostIdentity::read_or_create(store.directory(), address)?;
        let limit = store.limits().max_component_bytes;
        let cluster = Cluster::new(JetStreamStore::connect(config, limit).await?, host);
        if self.0.cluster.set(Arc::clone(&cluster)).is_err() {
            tracing::error!("this server is in a cluster already; the second one is ignored");
            return Ok(());
        }
        let connection = Arc::clone(&cluster.store.connection);
        let triggers = Triggers::join(store.directory(), connection, cluster.host_id());
        let triggers = Arc::new(triggers);
        if self.0.triggers.set(Arc::clone(&triggers)).is_err() {
            tracing::error!("the jobs of this host are open already; those of the cluster are not");
        }
        let inner = Arc::downgrade(&self.0);
        tokio::spawn(watch_records::watch(inner.clone(), Arc::clone(&cluster)));
        tokio::spawn(report::report(inner, Arc::clone(&cluster)));
        // It goes on in the background.
        let _ = timeout(CONNECT_TIME, cluster.store.connected()).await;
        if let Err(error) = cluster.store.check() {
            tracing::error!("serving the local copy of the deployments: {error}");
            return Ok(());
        }
        let mut applied = cluster.first_applied.subscribe();
        let known = applied.wait_for(Option::is_some);
        if !matches!(timeout(OPEN_TIME, known).await, Ok(Ok(_))) {
            tracing::warn!(
                "the cluster's records cannot be read after {} s; serving the local copy of the deployments",
                OPEN_TIME.as_secs()
            );
            return Ok(());
        }
        let all_applied = applied.wait_for(|applied| *applied == Some(true));
        if !matches!(timeout(FIRST_APPLY_TIME, all_applied).await, Ok(Ok(_))) {
            tracing::warn!(
                "not all deployments of the cluster are applied after {} s; serving those that are",
                FIRST_APPLY_TIME.as_secs()
            );
        }
        triggers.wait_until_loaded().await;
        // Before this host is ready, so that deploys wait for it from then on.
        if let Err(error) = cluster.store.put_host(&cluster.host_status(&self.0)).await {
            tracing::warn!("cannot report the status of this host: {error}");
        }
        Ok(())
    }

    /// Removes this host from the list of hosts, before it stops.
    pub async fn leave(&self) {
        if let Some(cluster) = self.cluster() {
            cluster.has_left.store(true, Ordering::Release);
            // Otherwise the status expires.
            let _ = timeout(LEAVE_TIME, cluster.store.remove_host(&cluster.host.id)).await;
        }
    }

    /// Whether this host serves the newest record of a deployment, as far as it knows. Always so without a cluster.
    pub(crate) fn is_newest(&self, name: &str) -> bool {
        let newest = |cluster: &Arc<Cluster>| cluster.progress().is_newest(name);
        self.cluster().is_none_or(newest)
    }

    /// The cluster that this host is in.
    pub(crate) fn cluster(&self) -> Option<&Arc<Cluster>> {
        self.0.cluster.get()
    }
}

impl Cluster {
    fn new(store: JetStreamStore, host: HostIdentity) -> Arc<Self> {
        Arc::new(Cluster {
            store,
            host,
            progress: Mutex::default(),
            apply_permits: Semaphore::new(MAX_APPLYING),
            status_changed: Notify::new(),
            arrivals: watch::Sender::new(0),
            first_applied: watch::Sender::new(None),
            has_left: AtomicBool::new(false),
            cleaned_up: Mutex::default(),
            conflicts: AtomicU64::new(0),
            refusals: AtomicU64::new(0),
        })
    }

    /// Addresses of NATS, without passwords.
    pub(crate) fn servers(&self) -> &str {
        self.store.servers()
    }

    /// Id of this host.
    pub(crate) fn host_id(&self) -> &str {
        &self.host.id
    }

    /// The status of all live hosts, or that of this one with the reason why the others are unknown.
    pub(crate) async fn hosts(
        &self,
        deployments: &Deployments,
    ) -> (Vec<HostStatus>, Option<StoreError>) {
        let own = self.host_status(&deployments.0);
        match self.store.hosts().await {
            Ok(mut hosts) => {
                // What it reported may be older.
                match hosts.iter_mut().find(|host| host.id == own.id) {
                    Some(host) => *host = own,
                    None => hosts.push(own),
                }
                (hosts, None)
            }
            Err(error) => (vec![own], Some(error)),
        }
    }

    /// Version of the last record of a deployment that arrived.
    pub(crate) fn known_version(&self, name: &DeploymentName) -> u64 {
        self.progress().known_version(name)
    }

    /// Counts a change that the cluster refused.
    pub(super) fn count_refusal(&self, error: &ChangeError) {
        let counter = match error {
            ChangeError::Store(StoreError::Conflict { .. }) => &self.conflicts,
            ChangeError::Store(StoreError::Unreachable { .. } | StoreError::Unconfirmed(_)) => {
                &self.refusals
            }
            _ => return,
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }

    /// Writes the metrics of this host's membership.
    pub(super) fn write_metrics(&self, families: &mut MetricFamilies) {
        families.sample(
            "corral_cluster_connected",
            "1 while this host has a connection to the cluster's NATS.",
            MetricKind::Gauge,
            &[],
            f64::from(u8::from(self.store.is_connected())),
        );
        families.sample(
            "corral_cluster_deployments_behind",
            "Deployments whose newest record this host has not applied, because it is being loaded or cannot be.",
            MetricKind::Gauge,
            &[],
            self.progress().behind() as f64,
        );
        for (reason, counter) in [("conflict", &self.conflicts), ("nats", &self.refusals)] {
            families.sample(
                "corral_cluster_changes_refused_total",
                "Changes that this host refused because another one came first (conflict), or because NATS did not \
                 answer (nats).",
                MetricKind::Counter,
                &[("reason", reason)],
                counter.load(Ordering::Relaxed) as f64,
            );
        }
    }
}
