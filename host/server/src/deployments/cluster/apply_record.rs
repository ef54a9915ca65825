//! Applies a record of the cluster: downloads its components, compiles them and lets the revision serve.
//!
//! The revision that serves stays until all that the record needs is loaded, and also if something cannot be loaded.

use super::progress::Epoch;
use super::watch_records::upload;
use crate::deployments::change_error::ChangeError;
use crate::deployments::deployment_store::DeploymentStore;
use crate::deployments::deployment_table::{COMPILE_QUEUE_TIMEOUT, Deployments, Inner};
use crate::deployments::digest::Digest;
use crate::deployments::name::DeploymentName;
use crate::deployments::revision::{Revision, TrafficShare};
use crate::deployments::serving_deployment::ServingDeployment;
use crate::deployments::store::{ComponentHold, StoreError};
use crate::deployments::stored_deployment::{Entry, StoredDeployment};
use corral_runtime::Plugin;
use std::sync::Arc;

impl Deployments {
    /// Applies a record.
    pub(super) async fn apply(
        &self,
        name: &DeploymentName,
        entry: Entry,
        epoch: Epoch,
    ) -> Result<(), ChangeError> {
        let applied = self.0.apply(name, &entry, epoch, Vec::new()).await;
        self.0.remove_unused_context(name.as_str());
        applied
    }
}

impl Inner {
    /// The entry that a change in the cluster starts from; `None` if this host is in no cluster.
    pub(in crate::deployments) async fn cluster_entry(
        &self,
        name: &DeploymentName,
    ) -> Result<Option<Entry>, ChangeError> {
        match self.cluster.get() {
            Some(cluster) => Ok(Some(cluster.store.entry(name).await?)),
            None => Ok(None),
        }
    }

    /// Uploads components of the local copy that the cluster lacks.
    pub(in crate::deployments) async fn upload_components(
        self: &Arc<Self>,
        components: impl IntoIterator<Item = Digest>,
    ) -> Result<(), ChangeError> {
        if let Some(cluster) = self.cluster.get() {
            for digest in components {
                upload(self, cluster, digest).await?;
            }
        }
        Ok(())
    }

    /// Applies a record that a change of this host has made. `loaded` has revisions of it that are loaded already.
    ///
    /// # Errors
    /// If this host cannot serve it, although the change is made. The host applies it later if it can.
    pub(in crate::deployments) async fn apply_own(
        self: &Arc<Self>,
        name: &DeploymentName,
        entry: &Entry,
        epoch: Epoch,
        loaded: Vec<(u64, Plugin)>,
    ) -> Result<(), ChangeError> {
        let cluster = self.cluster.get().ok_or(ChangeError::Internal)?;
        let applied = self.apply(name, entry, epoch, loaded).await;
        applied.map_err(|error| {
            let cause = error.to_string();
            cluster.set_failed(name, entry.version, epoch, &cause, true);
            let name = name.clone();
            ChangeError::NotServedHere { name, cause }
        })
    }

    /// Downloads the components that the local copy lacks, and keeps all of them from being removed.
    pub(in crate::deployments) async fn fetch_components(
        &self,
        revision: &Revision,
    ) -> Result<Vec<ComponentHold<'_>>, ChangeError> {
        let store = self.store.as_ref().ok_or(ChangeError::NoStore)?;
        let mut holds = Vec::new();
        for digest in revision.components() {
            if store.component(digest).is_none()
                && let Some(cluster) = self.cluster.get()
            {
                let bytes = cluster.store.read_component(digest).await?;
                store.put_component(digest, bytes).await?;
            }
            holds.push(store.hold(digest)?);
        }
        Ok(holds)
    }

    async fn apply(
        self: &Arc<Self>,
        name: &DeploymentName,
        entry: &Entry,
        epoch: Epoch,
        loaded: Vec<(u64, Plugin)>,
    ) -> Result<(), ChangeError> {
        let cluster = self.cluster.get().ok_or(ChangeError::Internal)?;
        let local = self.store.as_ref().ok_or(ChangeError::NoStore)?;
        let is_applied = || cluster.progress().is_applied(name, entry.version, epoch);
        let mut before = local.get_entry(name);
        let was_removed = before.latest_revision < entry.first_revision;
        if before.deployment.is_some() && (entry.deployment.is_none() || was_removed) {
            let _lock = self.change_lock.lock().await;
            if is_applied()? {
                return Ok(());
            }
            before = local.get_entry(name);
            before.deployment = None;
            before.latest_revision = before.latest_revision.max(entry.latest_revision);
            self.write_copy(name, &before).await?;
            self.forget(name).await?;
        }
        let Some(wanted) = &entry.deployment else {
            cluster.set_applied(name, entry, epoch);
            return Ok(());
        };
        local.check_room_for(name)?;
        let mut holds = Vec::new();
        for share in &wanted.record.traffic {
            let revision = revision_of(wanted, share)?;
            self.check_manifest(&revision.manifest)?;
            holds.extend(self.fetch_components(revision).await?);
        }
        let routes = Self::common_routes(wanted, &wanted.record.traffic)?;
        self.check_routes(name, &routes)?;
        let context = self.context(name.as_str());
        let mut plugins = Vec::new();
        for share in &wanted.record.traffic {
            let revision = revision_of(wanted, share)?;
            let number = share.revision;
            let given = loaded.iter().find(|(given, _)| *given == number);
            let given = given.map(|(_, plugin)| plugin.clone());
            let known = given.or_else(|| self.serving_plugin(&before, revision));
            let plugin = match known {
                // Not one of a deployment that was removed meanwhile.
                Some(plugin) if plugin.tenant() == context.deployment.tenant() => plugin,
                _ => {
                    let (manifest, component) = (&revision.manifest, revision.component);
                    self.load(&context, manifest, component, COMPILE_QUEUE_TIMEOUT)
                        .await?
                }
            };
            plugin.set_revision(number);
            plugins.push((*share, Ok(plugin)));
        }
        let _lock = self.change_lock.lock().await;
        if is_applied()? {
            return Ok(());
        }
        if !self.is_current(name, &context) {
            return Err(ChangeError::Busy);
        }
        self.check_routes(name, &routes)?;
        // Another record may have been applied meanwhile.
        let now = local.get_entry(name).deployment;
        if now.is_none() {
            self.remove_leftovers(name).await?;
        }
        if now != entry.deployment {
            self.write_copy(name, entry).await?;
        }
        let revisions = self.serving_revisions(&context, wanted, plugins);
        self.activate(ServingDeployment::new(
            name.as_str().into(),
            context,
            routes,
            wanted.record.paused,
            revisions,
        ));
        cluster.set_applied(name, entry, epoch);
        let version = entry.version;
        tracing::info!(version, "'{name}' serves as the cluster has it");
        Ok(())
    }

    /// The plugin of a revision, if it serves and is the same in the local copy.
    fn serving_plugin(&self, local: &Entry, revision: &Revision) -> Option<Plugin> {
        let stored = local.deployment.as_ref()?.revisions.get(&revision.number)?;
        let share = TrafficShare::all(revision.number);
        let name = revision.manifest.name.as_str();
        let is_same = stored == revision;
        is_same.then(|| self.loaded_plugin(name, &share)).flatten()
    }

    /// Writes an entry of the cluster into the local copy. Requires the lock.
    async fn write_copy(
        self: &Arc<Self>,
        name: &DeploymentName,
        entry: &Entry,
    ) -> Result<(), ChangeError> {
        let (inner, name, entry) = (Arc::clone(self), name.clone(), entry.clone());
        let written = tokio::task::spawn_blocking(move || {
            let store = inner.store.as_ref().ok_or(ChangeError::NoStore)?;
            Ok(store.replace(&name, &entry)?)
        });
        written.await.map_err(|_| ChangeError::Internal)?
    }
}

fn revision_of<'a>(
    deployment: &'a StoredDeployment,
    share: &TrafficShare,
) -> Result<&'a Revision, ChangeError> {
    // A record without it is refused when it is read.
    let revision = deployment.revisions.get(&share.revision);
    revision.ok_or(ChangeError::Internal)
}

impl ChangeError {
    /// Whether this host may be able to apply the record later.
    pub(super) fn may_pass_in_cluster(&self) -> bool {
        self.is_temporary()
            || matches!(
                self,
                ChangeError::RouteTaken { .. }
                    | ChangeError::NoApiKeys
                    | ChangeError::Store(
                        StoreError::Unreachable { .. }
                            | StoreError::ClusterComponent { .. }
                            | StoreError::NoComponent(_)
                            | StoreError::Damaged(_)
                            | StoreError::Full { .. }
                            | StoreError::TooManyUnreferenced { .. }
                            | StoreError::TooManyDeployments { .. }
                            | StoreError::Directory { .. }
                            | StoreError::Database { .. }
                    )
            )
    }

    /// Whether the connection to NATS failed, which concerns no record.
    pub(super) fn is_unreachable(&self) -> bool {
        matches!(self, ChangeError::Store(StoreError::Unreachable { .. }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::deployments::cluster::Cluster;
    use crate::deployments::cluster::config::ClusterConfig;
    use crate::deployments::cluster::host::HostIdentity;
    use crate::deployments::cluster::jetstream::{BucketState, JetStreamStore};
    use crate::deployments::stored_deployment::NewRevision;
    use crate::deployments::test_support::{Fixture, manifest, name};

    /// Makes the host one of a cluster whose NATS does not answer.
    async fn join(fixture: &Fixture) -> Arc<Cluster> {
        let config = ClusterConfig {
            servers: "nats://127.0.0.1:1".parse().expect("valid"),
            credentials: None,
            tls: None,
            require_tls: false,
        };
        let store = JetStreamStore::connect(config, 1 << 20)
            .await
            .expect("valid");
        let host = HostIdentity::read_or_create(fixture.directory(), "host:1".to_owned());
        let cluster = Cluster::new(store, host.expect("writable"));
        let set = fixture.deployments.0.cluster.set(Arc::clone(&cluster));
        assert!(set.is_ok(), "it was in none");
        cluster
    }

    #[tokio::test]
    async fn record_of_lost_bucket_changes_nothing() {
        let fixture = Fixture::new();
        let cluster = join(&fixture).await;
        let deployments = &fixture.deployments;
        let component = fixture.upload(1);
        let mut entry = Entry::default();
        let new = NewRevision {
            component,
            component_bytes: 1,
            source: None,
            manifest: manifest("a", component),
        };
        entry.deploy(new, true, 20);
        let a = name("a");
        let mut apply = async |version, epoch| {
            entry.version = version;
            deployments.apply(&a, entry.clone(), epoch).await
        };
        let begin = |created, last_version| {
            cluster.begin_bucket(BucketState {
                created,
                last_version,
            })
        };
        let (old, new) = (begin(1, 50), begin(2, 3));
        let late = apply(50, old).await;
        assert!(matches!(late, Err(ChangeError::Busy)), "{late:?}");
        let local = || deployments.store().expect("there is one").get(&name("a"));
        assert!(deployments.get("a").is_none() && local().is_err());
        apply(3, new).await.expect("it has the component");
        let serving = deployments.get("a").expect("it is applied");
        assert!(serving.pick().is_ok() && local().is_ok());
        assert_eq!(cluster.progress().applied_version(&name("a")), 3);
    }
}
