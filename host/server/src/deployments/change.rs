//! Changes of deployments: deploy, set traffic, roll back, pause, remove.
//!
//! A change is validated and compiled first, then written to the store, then activated, and acknowledged
//! last. It runs in a task of its own, so a client that disconnects leaves no partial change. One lock
//! covers the store and the table of serving deployments, so the two always agree.

use super::artifact::ArtifactReference;
use super::change_error::ChangeError;
use super::context::DeploymentContext;
use super::digest::Digest;
use super::manifest::Manifest;
use super::name::DeploymentName;
use super::revision::{DeploymentRecord, Revision, TrafficShare};
use super::serving::{COMPILE_QUEUE_TIMEOUT, Deployments, Inner};
use super::serving_deployment::ServingDeployment;
use super::store::{Store, StoredDeployment, check_traffic};
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
            let changed = inner.set_traffic(&name, traffic).await;
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
            let stored = inner.store()?.get(&name)?;
            let traffic = match revision {
                Some(revision) => vec![TrafficShare::all(revision)],
                None if stored.record.previous_traffic.is_empty() => {
                    return Err(ChangeError::NoPreviousTraffic(name));
                }
                None => stored.record.previous_traffic,
            };
            let changed = inner.set_traffic(&name, traffic).await;
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
            let _lock = inner.change_lock.lock().await;
            let writer = Arc::clone(&inner);
            let written = name.clone();
            let record =
                run_blocking(move || Ok(writer.store()?.set_paused(&written, paused)?)).await?;
            if let Some(serving) = inner.table().by_name.get(name.as_str()) {
                inner.activate(serving.with(paused, serving.revisions.clone()));
            }
            Ok(record)
        })
        .await
    }

    /// Removes a deployment. Its running requests continue.
    pub(crate) async fn remove(&self, name: DeploymentName) -> Result<(), ChangeError> {
        self.spawn_change(move |inner| async move {
            let _lock = inner.change_lock.lock().await;
            let writer = Arc::clone(&inner);
            let removed = name.clone();
            let remove = move || {
                writer.store()?.remove(&removed)?;
                writer.context(removed.as_str()).deployment.set_removed();
                writer.runtime.remove_key_values(removed.as_str());
                if let Some(triggers) = writer.triggers.get() {
                    triggers.remove_deployment(removed.as_str());
                }
                Ok(())
            };
            run_blocking(remove).await?;
            // Fewer routes cannot conflict.
            let _ = inner.update_table(|by_name| {
                by_name.remove(name.as_str());
            });
            inner.remove_context(name.as_str());
            Ok(())
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
        task.await.map_err(|_| ChangeError::Internal)?
    }
}

impl Inner {
    fn store(&self) -> Result<&Store, ChangeError> {
        self.store.as_ref().ok_or(ChangeError::NoStore)
    }

    fn check_routes(&self, name: &DeploymentName, routes: &[Route]) -> Result<(), ChangeError> {
        match self.other_owner(name.as_str(), routes) {
            Some((route, owner)) => Err(ChangeError::RouteTaken { route, owner }),
            None => Ok(()),
        }
    }

    async fn deploy(
        self: &Arc<Self>,
        manifest: Manifest,
        source: Option<ArtifactReference>,
        activate: bool,
    ) -> Result<Revision, ChangeError> {
        manifest.check()?;
        // The default requires keys if there are any.
        if (manifest.access, self.access) == (Some(Access::Keys), Access::Open) {
            return Err(ChangeError::NoApiKeys);
        }
        self.capacity.check(&manifest.limits, &self.limits)?;
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
        let writer = Arc::clone(self);
        let add = move || {
            let store = writer.store()?;
            if store.get(&manifest.name).is_err() {
                // A removed deployment of this name may have left values if the server crashed.
                writer.runtime.remove_key_values(manifest.name.as_str());
                // A client may have sent a job while it was removed.
                if let Some(triggers) = writer.triggers.get() {
                    triggers.remove_deployment(manifest.name.as_str());
                }
            }
            Ok(store.add_from(manifest, source, activate)?)
        };
        let revision = run_blocking(add).await?;
        plugin.set_revision(revision.number);
        let stored = self.store()?.get(&revision.manifest.name)?;
        if let [share] = stored.record.traffic[..]
            && share.revision == revision.number
        {
            let revisions = self.serving_revisions(context, &stored, vec![(share, Ok(plugin))]);
            self.activate(ServingDeployment::new(
                revision.manifest.name.to_string(),
                Arc::clone(context),
                revision.manifest.routes.clone(),
                stored.record.paused,
                revisions,
            ));
        }
        Ok(revision)
    }

    async fn set_traffic(
        self: &Arc<Self>,
        name: &DeploymentName,
        traffic: Vec<TrafficShare>,
    ) -> Result<DeploymentRecord, ChangeError> {
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
            let (writer, written) = (Arc::clone(self), name.clone());
            let record =
                run_blocking(move || Ok(writer.store()?.set_traffic(&written, traffic)?)).await?;
            let revisions = self.serving_revisions(&context, &now, plugins);
            self.activate(ServingDeployment::new(
                name.to_string(),
                context,
                routes,
                record.paused,
                revisions,
            ));
            return Ok(record);
        }
        Err(ChangeError::Busy)
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

    /// Routes new requests to `deployment`. Requires the lock, under which its routes were free.
    pub(super) fn activate(&self, deployment: ServingDeployment) {
        let name = deployment.name.clone();
        let updated = self.update_table(|by_name| {
            by_name.insert(deployment.name.clone(), Arc::new(deployment));
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
