//! Watches the cluster's records, and applies each new one.
//!
//! After every connection all records are read again, so that nothing depends on what arrived before. They are also read
//! again if a check finds that a record did not arrive.

use super::Cluster;
use super::connection::with_jitter;
use super::jetstream::{BucketState, RecordChanges};
use super::progress::Epoch;
use crate::deployments::deployment_store::DeploymentStore;
use crate::deployments::deployment_table::{Deployments, Inner};
use crate::deployments::digest::Digest;
use crate::deployments::name::DeploymentName;
use crate::deployments::store::StoreError;
use crate::deployments::stored_deployment::Entry;
use bytes::Bytes;
use std::collections::BTreeSet;
use std::convert::Infallible;
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::time::{Instant, sleep, timeout};

/// The first pause after a failure; each further one is twice as long.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const MAX_PAUSE: Duration = Duration::from_secs(60);
/// How long no record arrives until the bucket is compared with those that did.
const CHECK_INTERVAL: Duration = Duration::from_secs(30);

/// Watches the records until the deployments end.
pub(super) async fn watch(inner: Weak<Inner>, cluster: Arc<Cluster>) {
    let mut pause = FIRST_PAUSE;
    loop {
        let number = cluster.store.connected().await;
        let began = Instant::now();
        let watched = tokio::select! {
            watched = watch_connection(&inner, &cluster) => watched,
            () = cluster.store.lost(number) => {
                pause = FIRST_PAUSE;
                continue;
            }
        };
        let Err(error) = watched;
        if inner.strong_count() == 0 {
            return;
        }
        tracing::warn!("cannot watch the cluster's records, trying again: {error}");
        if began.elapsed() > MAX_PAUSE {
            pause = FIRST_PAUSE;
        }
        sleep(with_jitter(pause)).await;
        pause = (2 * pause).min(MAX_PAUSE);
    }
}

/// Watches the records of one connection. Ends only with an error.
async fn watch_connection(
    inner: &Weak<Inner>,
    cluster: &Arc<Cluster>,
) -> Result<Infallible, StoreError> {
    let store = &cluster.store;
    store.open().await?;
    let bucket = store.bucket_state().await?;
    let epoch = cluster.begin_bucket(bucket);
    cluster.expect_first(store.names().await?);
    if cluster.has_lost() {
        // Before an older record, which another host has written, replaces the local copy.
        if let Err(error) = adopt(inner, cluster).await {
            tracing::warn!("cannot restore all deployments that NATS has lost: {error}");
        }
    }
    let changes = store.changes().await?;
    cluster.status_changed.notify_one();
    tokio::select! {
        watched = watch_changes(inner, cluster, bucket, epoch, changes) => watched,
        never = add_missing(inner, cluster) => match never {},
    }
}

async fn watch_changes(
    inner: &Weak<Inner>,
    cluster: &Arc<Cluster>,
    bucket: BucketState,
    epoch: Epoch,
    mut changes: RecordChanges,
) -> Result<Infallible, StoreError> {
    let store = &cluster.store;
    let mut newest = bucket.last_version;
    // What the bucket had at the last check has arrived at the next one.
    let mut expected = newest;
    loop {
        let Ok(change) = timeout(CHECK_INTERVAL, changes.next()).await else {
            let now = store.bucket_state().await?;
            if now.created != bucket.created || now.last_version < newest {
                return Err(store.failed("the bucket of the records is another one"));
            }
            if expected > newest {
                return Err(store.failed("a record did not arrive"));
            }
            expected = now.last_version;
            continue;
        };
        let change = change.map_err(|cause| store.failed(cause))?;
        newest = newest.max(change.version);
        let Some(name) = change.name else {
            continue;
        };
        match change.entry {
            Ok(entry) => offer(inner, cluster, name, entry),
            Err(error) => {
                tracing::error!("{error}");
                let error = error.to_string();
                cluster.set_failed(&name, change.version, epoch, &error, false);
            }
        }
    }
}

/// Adds the deployments that only the local copy has, and tries again until it can. Returns never.
async fn add_missing(inner: &Weak<Inner>, cluster: &Cluster) -> Infallible {
    let mut pause = FIRST_PAUSE;
    while let Err(error) = adopt(inner, cluster).await {
        tracing::warn!("cannot add all local deployments to the cluster, trying again: {error}");
        sleep(with_jitter(pause)).await;
        pause = (2 * pause).min(MAX_PAUSE);
    }
    std::future::pending().await
}

/// Writes the deployments that only the local copy has: NATS lost them, or this host had them before it joined. After a loss,
/// also those of which another host has written an earlier revision.
async fn adopt(inner: &Weak<Inner>, cluster: &Cluster) -> Result<(), StoreError> {
    let has_lost = cluster.has_lost();
    let names = BTreeSet::from_iter(cluster.store.names().await?);
    let Some(inner) = inner.upgrade() else {
        return Ok(());
    };
    let Some(local) = &inner.store else {
        return Ok(());
    };
    for (name, deployment) in local.list() {
        let latest = deployment.record.latest_revision;
        let replaced = match has_lost {
            true => replaced_version(cluster, &name, latest).await?,
            false => (!names.contains(&name)).then_some(0),
        };
        let Some(mut expected) = replaced else {
            continue;
        };
        let revisions = deployment.revisions.values();
        let components: BTreeSet<_> = revisions.flat_map(|one| one.components()).collect();
        for digest in components {
            // A host has the components of revisions that it served.
            if local.component(digest).is_none() {
                continue;
            }
            match upload(&inner, cluster, digest).await {
                Err(error @ StoreError::Unreachable { .. }) => return Err(error),
                // The others are added all the same.
                Err(error) => {
                    tracing::error!("the cluster does not get a component of '{name}': {error}")
                }
                Ok(()) => {}
            }
        }
        let entry = Entry {
            version: 0,
            latest_revision: latest,
            first_revision: 1,
            deployment: Some(deployment),
        };
        loop {
            let set = cluster.store.compare_and_set(&name, expected, &entry).await;
            match set {
                Ok(_) if expected > 0 => tracing::warn!(
                    "the cluster had an earlier revision of '{name}'; this host has written the one that NATS had lost"
                ),
                Ok(_) => {
                    tracing::info!("the cluster did not have '{name}'; this host has added it");
                }
                // Another host was faster, perhaps with an earlier revision.
                Err(StoreError::Conflict { .. }) if has_lost => {
                    if let Some(now) = replaced_version(cluster, &name, latest).await? {
                        expected = now;
                        continue;
                    }
                }
                Err(StoreError::Conflict { .. }) => {}
                Err(error @ StoreError::Record { .. }) => tracing::error!("{error}"),
                Err(error) => return Err(error),
            }
            break;
        }
    }
    cluster.set_restored();
    Ok(())
}

/// Version of the record that one with this latest revision replaces after a loss; 0 if there is none. `None` if the one that is
/// there counts.
async fn replaced_version(
    cluster: &Cluster,
    name: &DeploymentName,
    latest: u64,
) -> Result<Option<u64>, StoreError> {
    match cluster.store.entry(name).await {
        Ok(now) => {
            let is_earlier = now.deployment.is_some() && now.latest_revision < latest;
            Ok((now.version == 0 || is_earlier).then_some(now.version))
        }
        Err(StoreError::Record { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Uploads a component of the local copy, unless the cluster has it.
pub(super) async fn upload(
    inner: &Arc<Inner>,
    cluster: &Cluster,
    digest: Digest,
) -> Result<(), StoreError> {
    let local = inner.store.as_ref().ok_or(StoreError::Stopped)?;
    let bytes: Bytes = local.read_component(digest).await?;
    cluster.store.put_component(digest, bytes).await
}

/// Keeps the records of a deployment from being applied while this host changes it, so that its change is not loaded
/// twice.
pub(in crate::deployments) struct OwnChange {
    inner: Weak<Inner>,
    cluster: Arc<Cluster>,
    name: DeploymentName,
}

impl Inner {
    /// Begins a change of this host. `None` if a record of this name is being applied.
    pub(in crate::deployments) fn begin_own_change(
        self: &Arc<Self>,
        name: &DeploymentName,
    ) -> Option<OwnChange> {
        let cluster = self.cluster.get()?;
        cluster.reserve(name).then(|| OwnChange {
            inner: Arc::downgrade(self),
            cluster: Arc::clone(cluster),
            name: name.clone(),
        })
    }
}

impl Drop for OwnChange {
    fn drop(&mut self) {
        // Applies what arrived meanwhile.
        let (inner, cluster) = (self.inner.clone(), Arc::clone(&self.cluster));
        tokio::spawn(apply_targets(inner, cluster, self.name.clone()));
    }
}

/// Starts to apply a record that arrived, unless this host has applied it, or a task applies another of this name.
fn offer(inner: &Weak<Inner>, cluster: &Arc<Cluster>, name: DeploymentName, entry: Entry) {
    if cluster.add_target(&name, entry) {
        tokio::spawn(apply_targets(inner.clone(), Arc::clone(cluster), name));
    }
}

/// Applies the records of one deployment until none is left. What fails for a possibly temporary reason is tried again.
async fn apply_targets(inner: Weak<Inner>, cluster: Arc<Cluster>, name: DeploymentName) {
    let mut pause = FIRST_PAUSE;
    let mut arrivals = cluster.arrivals.subscribe();
    loop {
        // Before the target is read, so that none that arrives later is missed.
        arrivals.mark_unchanged();
        let target = cluster.progress().target(&name);
        let Some((entry, epoch)) = target else {
            return;
        };
        let Some(deployments) = inner.upgrade().map(Deployments) else {
            return;
        };
        let version = entry.version;
        let applied = {
            let Ok(_permit) = cluster.apply_permits.acquire().await else {
                return;
            };
            deployments.apply(&name, entry, epoch).await
        };
        drop(deployments);
        let Err(error) = applied else {
            pause = FIRST_PAUSE;
            continue;
        };
        let retry = error.may_pass_in_cluster();
        if !error.is_unreachable() {
            tracing::error!("the cluster's record of '{name}' cannot serve here: {error}");
            cluster.set_failed(&name, version, epoch, &error.to_string(), retry);
        }
        if retry {
            tokio::select! {
                () = sleep(with_jitter(pause)) => {}
                _ = arrivals.changed() => {}
            }
            pause = (2 * pause).min(MAX_PAUSE);
        }
    }
}
