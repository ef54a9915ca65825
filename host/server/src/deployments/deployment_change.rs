//! Changes of deployments: deploy, set traffic, roll back, pause, remove.
//!
//! A change is validated and compiled first, then written to the store, then activated, and acknowledged
//! last. It runs in a task of its own, so a client that disconnects leaves no partial change. One lock
//! covers the store and the table of serving deployments, so the two always agree. In a cluster, a change compares and
//! sets the cluster's record as it was before the change began, and this host then applies the record as all others do.

use super::artifact::ArtifactReference;
use super::change_error::ChangeError;
use super::deployment_context::DeploymentContext;
use super::deployment_store::DeploymentStore;
use super::deployment_table::{COMPILE_QUEUE_TIMEOUT, Deployments, Inner};
use super::digest::Digest;
use super::manifest::Manifest;
use super::name::DeploymentName;
use super::revision::{DeploymentRecord, Revision, TrafficShare};
use super::serving_deployment::ServingDeployment;
use super::store::{Store, StoreError};
use super::stored_deployment::{Entry, StoredDeployment, check_traffic};
use crate::clock::now_ms;
use crate::request_policy::Access;
use crate::routes::Route;
use corral_runtime::Plugin;
use std::sync::Arc;

/// How often a change starts over because a concurrent one came first.
const MAX_ATTEMPTS: usize = 3;

impl Deployments {
    /// Deploys an uploaded component as a new revision, which receives all requests if `activate`.
    pub(crate) async fn deploy(
        &self,
        manifest: Manifest,
        activate: bool,
    ) -> Result<Revision, ChangeError> {
        self.deploy_from(manifest, None, activate).await
    }

    /// The same from an artifact, which the revision records.
    pub(crate) async fn deploy_from(
        &self,
        manifest: Manifest,
        source: Option<ArtifactReference>,
        activate: bool,
    ) -> Result<Revision, ChangeError> {
        self.spawn_change(move |inner| async move {
            let name = manifest.name.to_string();
            let deployed = inner.deploy(manifest, source, activate).await;
            inner.remove_unused_context(&name);
            deployed
        })
        .await
    }

    /// Distributes a deployment's requests among its revisions.
    pub(crate) async fn set_traffic(
        &self,
        name: DeploymentName,
        traffic: Vec<TrafficShare>,
    ) -> Result<DeploymentRecord, ChangeError> {
        self.spawn_change(move |inner| async move {
            let base = inner.cluster_entry(&name).await?;
            let changed = inner.set_traffic(&name, base, traffic).await;
            inner.remove_unused_context(name.as_str());
            changed
        })
        .await
    }

    /// Routes all requests to `revision`, or restores the previous traffic.
    pub(crate) async fn roll_back(
        &self,
        name: DeploymentName,
        revision: Option<u64>,
    ) -> Result<DeploymentRecord, ChangeError> {
        self.spawn_change(move |inner| async move {
            let base = inner.cluster_entry(&name).await?;
            let entry = match &base {
                Some(base) => base,
                None => &inner.store()?.get_entry(&name),
            };
            let record = &entry.existing(&name)?.record;
            let traffic = match revision {
                Some(revision) => vec![TrafficShare::all(revision)],
                None if record.previous_traffic.is_empty() => {
                    return Err(ChangeError::NoPreviousTraffic(name));
                }
                None => record.previous_traffic.clone(),
            };
            let changed = inner.set_traffic(&name, base, traffic).await;
            inner.remove_unused_context(name.as_str());
            changed
        })
        .await
    }

    /// Pauses or resumes a deployment.
    pub(crate) async fn set_paused(
        &self,
        name: DeploymentName,
        paused: bool,
    ) -> Result<DeploymentRecord, ChangeError> {
        self.spawn_change(move |inner| async move {
            let pause = |entry: &mut Entry| entry.set_paused(&name, paused);
            if inner.cluster.get().is_some() {
                let changed = inner.change_in_cluster(&name, None, pause, |()| Vec::new());
                let (entry, ()) = changed.await?;
                return Ok(entry.existing(&name)?.record.clone());
            }
            let _lock = inner.change_lock.lock().await;
            let (entry, ()) = inner.commit(&name, None, pause).await?;
            if let Some(serving) = inner.table().by_name.get(name.as_str()) {
                inner.activate(serving.with(paused, serving.revisions.clone()));
            }
            Ok(entry.existing(&name)?.record.clone())
        })
        .await
    }

    /// Removes a deployment. Its running requests continue.
    pub(crate) async fn remove(&self, name: DeploymentName) -> Result<(), ChangeError> {
        self.spawn_change(move |inner| async move {
            let remove = |entry: &mut Entry| entry.remove(&name);
            if inner.cluster.get().is_some() {
                let changed = inner.change_in_cluster(&name, None, remove, |()| Vec::new());
                changed.await?;
                return inner.remove_jobs(&name, now_ms()).await;
            }
            let _lock = inner.change_lock.lock().await;
            inner.commit(&name, None, remove).await?;
            inner.forget(&name).await
        })
        .await
    }

    /// Runs `change` in a task of its own, unless too many are in progress.
    async fn spawn_change<T, F>(
        &self,
        change: impl FnOnce(Arc<Inner>) -> F,
    ) -> Result<T, ChangeError>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, ChangeError>> + Send + 'static,
    {
        self.0.store()?;
        let permit = Arc::clone(&self.0.change_permits)
            .try_acquire_owned()
            .map_err(|_| ChangeError::Busy)?;
        let change = change(Arc::clone(&self.0));
        let task = tokio::spawn(async move {
            let changed = change.await;
            drop(permit);
            changed
        });
        let changed = task.await.map_err(|_| ChangeError::Internal)?;
        if let Some(cluster) = self.cluster() {
            match &changed {
                Ok(_) => cluster.clean_up(),
                Err(error) => cluster.count_refusal(error),
            }
        }
        changed
    }
}

impl Inner {
    fn store(&self) -> Result<&Arc<Store>, ChangeError> {
        self.store.as_ref().ok_or(ChangeError::NoStore)
    }

    pub(super) fn check_routes(
        &self,
        name: &DeploymentName,
        routes: &[Route],
    ) -> Result<(), ChangeError> {
        match self.other_owner(name.as_str(), routes) {
            Some((route, owner)) => Err(ChangeError::RouteTaken { route, owner }),
            None => Ok(()),
        }
    }

    /// Checks what a manifest asks of this server.
    pub(super) fn check_manifest(&self, manifest: &Manifest) -> Result<(), ChangeError> {
        manifest.check()?;
        // The default requires keys if there are any.
        if (manifest.access, self.access) == (Some(Access::Keys), Access::Open) {
            return Err(ChangeError::NoApiKeys);
        }
        Ok(self.capacity.check(&manifest.limits, &self.limits)?)
    }

    /// Makes a change of what the store holds under a name, in the cluster's store if there is one. Returns what the
    /// store then holds. `base` is what the change starts from, if it was read before. Without a cluster it requires the
    /// lock, so that no other change comes first.
    async fn commit<T>(
        &self,
        name: &DeploymentName,
        base: Option<Entry>,
        change: impl FnOnce(&mut Entry) -> Result<T, StoreError>,
    ) -> Result<(Entry, T), ChangeError> {
        let store: &dyn DeploymentStore = match self.cluster.get() {
            Some(cluster) => &cluster.store,
            None => self.store()?,
        };
        let mut entry = match base {
            Some(base) => base,
            None => store.entry(name).await?,
        };
        let changed = change(&mut entry)?;
        entry.version = store.compare_and_set(name, entry.version, &entry).await?;
        Ok((entry, changed))
    }

    /// Makes a change in the cluster, and applies the record that it makes. `loaded` gives the revisions of it that are
    /// loaded already.
    async fn change_in_cluster<T>(
        self: &Arc<Self>,
        name: &DeploymentName,
        base: Option<Entry>,
        change: impl FnOnce(&mut Entry) -> Result<T, StoreError>,
        loaded: impl FnOnce(&T) -> Vec<(u64, Plugin)>,
    ) -> Result<(Entry, T), ChangeError> {
        let cluster = self.cluster.get().ok_or(ChangeError::Internal)?;
        let _own = self.begin_own_change(name);
        let epoch = cluster.epoch();
        let (entry, changed) = self.commit(name, base, change).await?;
        self.apply_own(name, &entry, epoch, loaded(&changed))
            .await?;
        Ok((entry, changed))
    }

    async fn deploy(
        self: &Arc<Self>,
        manifest: Manifest,
        source: Option<ArtifactReference>,
        activate: bool,
    ) -> Result<Revision, ChangeError> {
        self.check_manifest(&manifest)?;
        let began_ms = now_ms();
        let base = self.cluster_entry(&manifest.name).await?;
        let component: Digest = manifest.component.parse()?;
        let mut holds = Vec::new();
        for digest in manifest.digests()? {
            holds.push(self.store()?.hold(digest)?);
        }
        for _ in 0..MAX_ATTEMPTS {
            // Cheap checks before compiling; repeated under the lock.
            self.check_routes(&manifest.name, &manifest.routes)?;
            let context = self.context(manifest.name.as_str());
            let plugin = self
                .load(&context, &manifest, component, COMPILE_QUEUE_TIMEOUT)
                .await?;
            if let Some(base) = base {
                return self
                    .deploy_in_cluster(base, began_ms, manifest, source, activate, plugin)
                    .await;
            }
            let _lock = self.change_lock.lock().await;
            if !self.is_current(&manifest.name, &context) {
                // The deployment was removed, and with it the context of the plugin.
                continue;
            }
            self.check_routes(&manifest.name, &manifest.routes)?;
            return self
                .add_revision(manifest, source, activate, &context, plugin)
                .await;
        }
        Err(ChangeError::Busy)
    }

    /// Stores a revision and lets it serve. Requires the lock.
    async fn add_revision(
        self: &Arc<Self>,
        manifest: Manifest,
        source: Option<ArtifactReference>,
        activate: bool,
        context: &Arc<DeploymentContext>,
        plugin: Plugin,
    ) -> Result<Revision, ChangeError> {
        let store = self.store()?;
        let name = manifest.name.clone();
        if store.get(&name).is_err() {
            self.remove_leftovers(&name).await?;
        }
        let new = store.new_revision(manifest, source)?;
        let limit = store.limits().max_revisions;
        let (entry, revision) = self
            .commit(&name, None, |entry| Ok(entry.deploy(new, activate, limit)))
            .await?;
        plugin.set_revision(revision.number);
        let stored = entry.existing(&name)?;
        if let [share] = stored.record.traffic[..]
            && share.revision == revision.number
        {
            let revisions = self.serving_revisions(context, stored, vec![(share, Ok(plugin))]);
            self.activate(ServingDeployment::new(
                revision.manifest.name.as_str().into(),
                Arc::clone(context),
                revision.manifest.routes.clone(),
                stored.record.paused,
                revisions,
            ));
        }
        Ok(revision)
    }

    /// Makes a new revision the cluster's, and lets it serve. A change that came after `base` was read, at `began_ms`, wins.
    async fn deploy_in_cluster(
        self: &Arc<Self>,
        base: Entry,
        began_ms: u64,
        manifest: Manifest,
        source: Option<ArtifactReference>,
        activate: bool,
        plugin: Plugin,
    ) -> Result<Revision, ChangeError> {
        let store = self.store()?;
        let name = manifest.name.clone();
        store.check_room_for(&name)?;
        self.upload_components(manifest.digests()?).await?;
        if base.deployment.is_none() {
            // Later jobs are of a deploy through another host, which wins.
            self.remove_jobs(&name, began_ms).await?;
        }
        let new = store.new_revision(manifest, source)?;
        let limit = store.limits().max_revisions;
        let deploy = |entry: &mut Entry| Ok(entry.deploy(new, activate, limit));
        let loaded = |revision: &Revision| vec![(revision.number, plugin)];
        let changed = self.change_in_cluster(&name, Some(base), deploy, loaded);
        Ok(changed.await?.1)
    }

    async fn set_traffic(
        self: &Arc<Self>,
        name: &DeploymentName,
        base: Option<Entry>,
        traffic: Vec<TrafficShare>,
    ) -> Result<DeploymentRecord, ChangeError> {
        if let Some(base) = base {
            return self.set_traffic_in_cluster(name, base, traffic).await;
        }
        for _ in 0..MAX_ATTEMPTS {
            // Compiles without the lock what is not loaded, then checks under the lock that the
            // revisions have not changed.
            let stored = self.store()?.get(name)?;
            check_traffic(name, &stored, &traffic)?;
            let routes = Self::common_routes(&stored, &traffic)?;
            self.check_routes(name, &routes)?;
            let context = self.context(name.as_str());
            let mut plugins = Vec::new();
            for share in &traffic {
                let plugin = match self.loaded_plugin(name.as_str(), share) {
                    Some(plugin) => plugin,
                    None => {
                        let plugin = self.load_stored(&context, &stored, share).await?;
                        plugin.set_revision(share.revision);
                        plugin
                    }
                };
                plugins.push((*share, Ok(plugin)));
            }
            let _lock = self.change_lock.lock().await;
            let now = self.store()?.get(name)?;
            let unchanged = traffic.iter().all(|share| {
                now.revisions.get(&share.revision) == stored.revisions.get(&share.revision)
            });
            if !unchanged || !self.is_current(name, &context) {
                continue;
            }
            self.check_routes(name, &routes)?;
            let (entry, ()) = self
                .commit(name, None, |entry| entry.set_traffic(name, traffic))
                .await?;
            let record = entry.existing(name)?.record.clone();
            let revisions = self.serving_revisions(&context, &now, plugins);
            self.activate(ServingDeployment::new(
                name.as_str().into(),
                context,
                routes,
                record.paused,
                revisions,
            ));
            return Ok(record);
        }
        Err(ChangeError::Busy)
    }

    /// Distributes requests in the whole cluster, once this host could load the revisions that get some.
    async fn set_traffic_in_cluster(
        self: &Arc<Self>,
        name: &DeploymentName,
        base: Entry,
        traffic: Vec<TrafficShare>,
    ) -> Result<DeploymentRecord, ChangeError> {
        let stored = base.existing(name)?;
        check_traffic(name, stored, &traffic)?;
        let routes = Self::common_routes(stored, &traffic)?;
        self.check_routes(name, &routes)?;
        let context = self.context(name.as_str());
        let mut holds = Vec::new();
        let mut loaded = Vec::new();
        for share in &traffic {
            if self.loaded_plugin(name.as_str(), share).is_some() {
                continue;
            }
            if let Some(revision) = stored.revisions.get(&share.revision) {
                holds.extend(self.fetch_components(revision).await?);
            }
            let plugin = self.load_stored(&context, stored, share).await?;
            loaded.push((share.revision, plugin));
        }
        let set_traffic = |entry: &mut Entry| entry.set_traffic(name, traffic);
        let base = Some(base.clone());
        let changed = self.change_in_cluster(name, base, set_traffic, |()| loaded);
        let (entry, ()) = changed.await?;
        Ok(entry.existing(name)?.record.clone())
    }

    async fn load_stored(
        self: &Arc<Self>,
        context: &DeploymentContext,
        stored: &StoredDeployment,
        share: &TrafficShare,
    ) -> Result<Plugin, ChangeError> {
        // `check_traffic` has found the revision.
        let revision = stored
            .revisions
            .get(&share.revision)
            .ok_or(ChangeError::Busy)?;
        self.load(
            context,
            &revision.manifest,
            revision.component,
            COMPILE_QUEUE_TIMEOUT,
        )
        .await
    }

    /// Removes what a removed deployment of this name may have left: values, if the server crashed, and jobs that a
    /// client sent meanwhile.
    pub(super) async fn remove_leftovers(
        self: &Arc<Self>,
        name: &DeploymentName,
    ) -> Result<(), ChangeError> {
        let (inner, name) = (Arc::clone(self), name.clone());
        run_blocking(move || {
            inner.runtime.remove_key_values(name.as_str());
            if let Some(triggers) = inner.triggers.get() {
                triggers.remove_deployment(name.as_str());
            }
            Ok(())
        })
        .await
    }

    /// Removes the jobs that the cluster has of a removed deployment, of those sent before this time.
    async fn remove_jobs(
        self: &Arc<Self>,
        name: &DeploymentName,
        before_ms: u64,
    ) -> Result<(), ChangeError> {
        let (inner, name) = (Arc::clone(self), name.clone());
        run_blocking(move || {
            if let Some(triggers) = inner.triggers.get() {
                triggers.remove_jobs(name.as_str(), before_ms);
            }
            Ok(())
        })
        .await
    }

    /// Stops serving a deployment that the store no longer has. Requires the lock.
    pub(super) async fn forget(self: &Arc<Self>, name: &DeploymentName) -> Result<(), ChangeError> {
        self.context(name.as_str()).deployment.set_removed();
        self.remove_leftovers(name).await?;
        // Fewer routes cannot conflict.
        let _ = self.update_table(|by_name| {
            by_name.remove(name.as_str());
        });
        self.remove_context(name.as_str());
        Ok(())
    }

    /// Routes new requests to `deployment`. Requires the lock, under which its routes were free.
    pub(super) fn activate(&self, deployment: ServingDeployment) {
        let name = Arc::clone(&deployment.name);
        let updated = self.update_table(|by_name| {
            by_name.insert(Arc::clone(&name), Arc::new(deployment));
        });
        if let Err(taken) = updated {
            tracing::error!("'{name}' does not serve as stored: {taken}");
        }
    }
}

/// Runs `work`, which waits for the disk, on a blocking thread.
async fn run_blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, ChangeError> + Send + 'static,
) -> Result<T, ChangeError> {
    tokio::task::spawn_blocking(work)
        .await
        .map_err(|_| ChangeError::Internal)?
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::deployments::test_support::{Fixture, manifest, name};

    #[tokio::test]
    async fn deploy_during_remove_creates_new_deployment() {
        let fixture = Fixture::new();
        let deployments = &fixture.deployments;
        let inner = &deployments.0;
        let component = fixture.upload(1);
        let first = deployments.deploy(manifest("a", component), true).await;
        assert_eq!(first.expect("good").number, 1);
        let old = inner.context("a");
        // The next deploy waits for a compile permit.
        let permits = Arc::clone(&inner.compile_permits)
            .acquire_many_owned(2)
            .await;
        let references = Arc::strong_count(&old);
        let next = tokio::spawn({
            let deployments = deployments.clone();
            async move { deployments.deploy(manifest("a", component), true).await }
        });
        while Arc::strong_count(&old) == references {
            tokio::task::yield_now().await;
        }
        deployments.remove(name("a")).await.expect("it exists");
        drop(permits);
        // The change holds its component, although no revision referenced it for a while.
        let next = next.await.expect("no crash").expect("good");
        assert_eq!(next.number, 2);
        let serving = deployments.get("a").expect("it serves");
        let plugin = serving.revisions[0].plugin.as_ref().expect("loaded");
        let now = serving.context.deployment.tenant();
        assert_ne!(now, old.deployment.tenant());
        assert_eq!(plugin.tenant(), now, "nothing of the removed deployment");
        assert!(Arc::ptr_eq(
            plugin.deployment().logs(),
            serving.context.deployment.logs()
        ));
    }

    #[tokio::test]
    async fn failed_deploy_leaves_nothing() {
        let fixture = Fixture::new();
        let deployments = &fixture.deployments;
        let component = fixture.upload(1);
        let mut wrong = manifest("a", component);
        wrong.models = Some(vec!["none".to_owned()]);
        let permits = Arc::clone(&deployments.0.compile_permits)
            .acquire_many_owned(2)
            .await;
        let begin = |manifest: Manifest| {
            let deployments = deployments.clone();
            tokio::spawn(async move { deployments.deploy(manifest, true).await })
        };
        let (failing, succeeding) = (begin(wrong.clone()), begin(manifest("a", component)));
        let both = || {
            let context = deployments.0.context("a");
            Arc::strong_count(&context) == 4
        };
        while !both() {
            tokio::task::yield_now().await;
        }
        drop(permits);
        failing.await.expect("no crash").expect_err("no such model");
        succeeding.await.expect("no crash").expect("good");
        let serving = deployments.get("a").expect("it serves");
        assert!(deployments.0.is_current(&name("a"), &serving.context));
        wrong.name = name("b");
        wrong.routes = manifest("b", component).routes;
        let failed = deployments.deploy(wrong, true).await;
        failed.expect_err("no such model");
        let contexts = deployments.0.contexts.lock().expect("no panic");
        assert_eq!(Vec::from_iter(contexts.keys()), ["a"]);
    }
}
