//! Changes: deploy, share out, roll back, pause, remove.
//!
//! Each is checked and compiled first, then written to the store, then swapped in, and acknowledged
//! last. From the moment when it begins to be written it runs in a task of its own: a client that goes
//! away leaves no half change behind. The store and the table are changed under one lock, so they tell
//! the same.

use super::load::PATIENCE;
use super::manifest::{Manifest, ManifestError};
use super::name::Name;
use super::revision::{Record, Revision, Share};
use super::serving::{Deployments, Inner, Served};
use super::store::{Kept, Store, StoreError, check_traffic};
use super::tally::Standing;
use super::{Digest, DigestError};
use crate::routes::Prefix;
use corral_runtime::{Plugin, PluginError};
use std::sync::Arc;
use std::time::Duration;

/// Changes that may be under way at once, those that wait for a place to be compiled included.
pub(super) const WAITING: usize = 16;
/// How often a change begins anew because another one came first.
const ATTEMPTS: usize = 3;

/// Why a deployment was not changed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ChangeError {
    #[error("this server keeps no deployments; start it with 'corral serve --store FOLDER'")]
    NoStore,
    #[error("the manifest is refused: {0}")]
    Manifest(#[from] ManifestError),
    #[error("the manifest is of '{manifest}', the request is for '{path}'; send it there")]
    OtherName { manifest: Name, path: Name },
    #[error(transparent)]
    Digest(#[from] DigestError),
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Plugin(#[from] PluginError),
    #[error(
        "the component answers no HTTP requests, since it exports no wasi:http handler; build it with one, or use it with 'corral run'"
    )]
    NoHandler,
    #[error(
        "the component was not compiled within {} s; make it smaller, or strip what it does not use",
        limit.as_secs()
    )]
    CompileTime { limit: Duration },
    #[error(
        "the component was not compiled in time when it was last tried; make it smaller, or strip what it does not use; this one is tried again in {} s at the soonest",
        wait.as_secs() + 1
    )]
    CompiledTooLong { wait: Duration },
    #[error("the route '{route}' belongs to '{holder}'; choose another, or remove that deployment")]
    RouteTaken { route: Prefix, holder: String },
    #[error(
        "revisions {one} and {other} have different routes, so requests cannot be shared out among them; give one of them all requests"
    )]
    OtherRoutes { one: u64, other: u64 },
    #[error("'{0}' has had no other traffic to roll back to; name a revision")]
    NothingBefore(Name),
    #[error("other changes are under way; try again")]
    Busy,
    #[error("the host failed; its log says why")]
    Host,
}

impl Deployments {
    /// Deploys a component that was uploaded: a new revision, which gets all requests if `activate`.
    pub(crate) async fn deploy(
        &self,
        manifest: Manifest,
        activate: bool,
    ) -> Result<Revision, ChangeError> {
        self.apart(move |inner| async move {
            let name = manifest.name.to_string();
            let deployed = inner.deploy(manifest, activate).await;
            inner.forget(&name);
            deployed
        })
        .await
    }

    /// Shares out a deployment's requests.
    pub(crate) async fn share(
        &self,
        name: Name,
        traffic: Vec<Share>,
    ) -> Result<Record, ChangeError> {
        self.apart(move |inner| async move {
            let shared = inner.share(&name, traffic).await;
            inner.forget(name.as_str());
            shared
        })
        .await
    }

    /// Gives all requests to `revision`, or shares them out as they were before the last change.
    pub(crate) async fn roll_back(
        &self,
        name: Name,
        revision: Option<u64>,
    ) -> Result<Record, ChangeError> {
        self.apart(move |inner| async move {
            let kept = inner.store()?.get(&name)?;
            let traffic = match revision {
                Some(revision) => vec![Share {
                    revision,
                    weight: 1,
                }],
                None if kept.record.before.is_empty() => {
                    return Err(ChangeError::NothingBefore(name));
                }
                None => kept.record.before,
            };
            let shared = inner.share(&name, traffic).await;
            inner.forget(name.as_str());
            shared
        })
        .await
    }

    /// Lets a deployment's requests be refused from now on, or served again.
    pub(crate) async fn pause(&self, name: Name, paused: bool) -> Result<Record, ChangeError> {
        self.apart(move |inner| async move {
            let _changing = inner.changing.lock().await;
            let writer = Arc::clone(&inner);
            let named = name.clone();
            let record = on_disk(move || Ok(writer.store()?.set_paused(&named, paused)?)).await?;
            inner.swap(&name, |served| {
                Served::new(
                    served.name.clone(),
                    Arc::clone(&served.standing),
                    served.routes.clone(),
                    paused,
                    served.parts.clone(),
                )
            });
            Ok(record)
        })
        .await
    }

    /// Removes a deployment. Its running requests end as they would have.
    pub(crate) async fn remove(&self, name: Name) -> Result<(), ChangeError> {
        self.apart(move |inner| async move {
            let _changing = inner.changing.lock().await;
            let writer = Arc::clone(&inner);
            let named = name.clone();
            on_disk(move || Ok(writer.store()?.remove(&named)?)).await?;
            // Fewer routes can't collide.
            let _ = inner.replace(|by_name| {
                by_name.remove(name.as_str());
            });
            inner.dismiss(name.as_str());
            Ok(())
        })
        .await
    }

    /// Does `change` in a task of its own, if not too many are under way.
    async fn apart<T, F>(&self, change: impl FnOnce(Arc<Inner>) -> F) -> Result<T, ChangeError>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, ChangeError>> + Send + 'static,
    {
        self.0.store()?;
        let place = Arc::clone(&self.0.changes)
            .try_acquire_owned()
            .map_err(|_| ChangeError::Busy)?;
        let change = change(Arc::clone(&self.0));
        let task = tokio::spawn(async move {
            let changed = change.await;
            drop(place);
            changed
        });
        task.await.map_err(|_| ChangeError::Host)?
    }
}

impl Inner {
    fn store(&self) -> Result<&Store, ChangeError> {
        self.store.as_ref().ok_or(ChangeError::NoStore)
    }

    fn free(&self, name: &Name, routes: &[Prefix]) -> Result<(), ChangeError> {
        match self.holder(name.as_str(), routes) {
            Some((route, holder)) => Err(ChangeError::RouteTaken { route, holder }),
            None => Ok(()),
        }
    }

    async fn deploy(
        self: &Arc<Self>,
        manifest: Manifest,
        activate: bool,
    ) -> Result<Revision, ChangeError> {
        manifest.check()?;
        self.capacity.check(&manifest.limits, &self.limits)?;
        let component: Digest = manifest.component.parse()?;
        let mut held = Vec::new();
        for digest in manifest.digests()? {
            held.push(self.store()?.hold(digest)?);
        }
        for _ in 0..ATTEMPTS {
            // Cheap refusals before the compiler; all is checked again under the lock.
            self.free(&manifest.name, &manifest.routes)?;
            let standing = self.standing(manifest.name.as_str());
            let plugin = self.load(&standing, &manifest, component, PATIENCE).await?;

            let _changing = self.changing.lock().await;
            if !self.stands(&manifest.name, &standing) {
                // Removed meanwhile: what the plugin was loaded for is gone with all that it had.
                continue;
            }
            self.free(&manifest.name, &manifest.routes)?;
            return self.add(manifest, activate, &standing, plugin).await;
        }
        Err(ChangeError::Busy)
    }

    /// Adds a revision to the store and lets it serve, under the lock.
    async fn add(
        self: &Arc<Self>,
        manifest: Manifest,
        activate: bool,
        standing: &Arc<Standing>,
        plugin: Plugin,
    ) -> Result<Revision, ChangeError> {
        let writer = Arc::clone(self);
        let revision = on_disk(move || Ok(writer.store()?.add(manifest, activate)?)).await?;
        plugin.set_revision(revision.number);
        let kept = self.store()?.get(&revision.manifest.name)?;
        if let [share] = kept.record.traffic[..]
            && share.revision == revision.number
        {
            let parts = self.parts(standing, &kept, vec![(share, Ok(plugin))]);
            self.install(Served::new(
                revision.manifest.name.to_string(),
                Arc::clone(standing),
                revision.manifest.routes.clone(),
                kept.record.paused,
                parts,
            ));
        }
        Ok(revision)
    }

    async fn share(
        self: &Arc<Self>,
        name: &Name,
        traffic: Vec<Share>,
    ) -> Result<Record, ChangeError> {
        for _ in 0..ATTEMPTS {
            // What is not loaded yet is compiled without the lock. What was kept then has to be kept
            // still when the lock is held.
            let kept = self.store()?.get(name)?;
            check_traffic(name, &kept, &traffic)?;
            let routes = Self::routes_of(&kept, &traffic)?;
            self.free(name, &routes)?;
            let standing = self.standing(name.as_str());
            let mut plugins = Vec::new();
            for share in &traffic {
                let plugin = match self.loaded(name.as_str(), share) {
                    Some(plugin) => plugin,
                    None => {
                        let plugin = self.load_kept(&standing, &kept, share).await?;
                        plugin.set_revision(share.revision);
                        plugin
                    }
                };
                plugins.push((*share, Ok(plugin)));
            }
            let _changing = self.changing.lock().await;
            let now = self.store()?.get(name)?;
            let same = traffic.iter().all(|share| {
                now.revisions.get(&share.revision) == kept.revisions.get(&share.revision)
            });
            if !same || !self.stands(name, &standing) {
                continue;
            }
            self.free(name, &routes)?;
            let (writer, named) = (Arc::clone(self), name.clone());
            let record = on_disk(move || Ok(writer.store()?.set_traffic(&named, traffic)?)).await?;
            let parts = self.parts(&standing, &now, plugins);
            self.install(Served::new(
                name.to_string(),
                standing,
                routes,
                record.paused,
                parts,
            ));
            return Ok(record);
        }
        Err(ChangeError::Busy)
    }

    async fn load_kept(
        self: &Arc<Self>,
        standing: &Standing,
        kept: &Kept,
        share: &Share,
    ) -> Result<Plugin, ChangeError> {
        // Checked before: the revision is there.
        let revision = kept
            .revisions
            .get(&share.revision)
            .ok_or(ChangeError::Busy)?;
        self.load(standing, &revision.manifest, revision.component, PATIENCE)
            .await
    }

    /// From here on new requests go there. The routes were found free, under the lock.
    pub(super) fn install(&self, served: Served) {
        let name = served.name.clone();
        let installed = self.replace(|by_name| {
            by_name.insert(served.name.clone(), Arc::new(served));
        });
        if let Err(taken) = installed {
            tracing::error!("'{name}' does not serve as it is kept: {taken}");
        }
    }

    /// Puts another one in the place of a deployment that serves.
    fn swap(&self, name: &Name, make: impl FnOnce(&Served) -> Served) {
        let table = self.table();
        if let Some(served) = table.by_name.get(name.as_str()) {
            self.install(make(served));
        }
    }
}

/// Waits for the disk on a thread where that is allowed.
async fn on_disk<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, ChangeError> + Send + 'static,
) -> Result<T, ChangeError> {
    tokio::task::spawn_blocking(work)
        .await
        .map_err(|_| ChangeError::Host)?
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::deployments::fixture::{Fixture, manifest, name};

    #[tokio::test]
    async fn a_deploy_beside_a_remove_makes_a_new_deployment() {
        let fixture = Fixture::new();
        let deployments = &fixture.deployments;
        let inner = &deployments.0;
        let component = fixture.upload(1);
        let first = deployments.deploy(manifest("a", component), true).await;
        assert_eq!(first.expect("good").number, 1);
        let old = inner.standing("a");
        // The next one waits for a place to be compiled.
        let places = Arc::clone(&inner.compiling).acquire_many_owned(2).await;
        let known = Arc::strong_count(&old);
        let next = tokio::spawn({
            let deployments = deployments.clone();
            async move { deployments.deploy(manifest("a", component), true).await }
        });
        while Arc::strong_count(&old) == known {
            tokio::task::yield_now().await;
        }
        deployments.remove(name("a")).await.expect("it is there");
        drop(places);
        // What it was told to deploy is there still, though nobody named it for a while.
        let next = next.await.expect("no crash").expect("good");
        assert_eq!(next.number, 2);
        let served = deployments.get("a").expect("it serves");
        let plugin = served.parts[0].plugin.as_ref().expect("loaded");
        let now = served.standing.deployment.tenant();
        assert_ne!(now, old.deployment.tenant());
        assert_eq!(plugin.tenant(), now, "nothing of it is the old one's");
        assert!(Arc::ptr_eq(
            plugin.deployment().logs(),
            served.standing.deployment.logs()
        ));
    }

    #[tokio::test]
    async fn nothing_stays_of_a_deploy_that_failed() {
        let fixture = Fixture::new();
        let deployments = &fixture.deployments;
        let component = fixture.upload(1);
        let mut wrong = manifest("a", component);
        wrong.models = Some(vec!["none".to_owned()]);
        let places = Arc::clone(&deployments.0.compiling)
            .acquire_many_owned(2)
            .await;
        let begin = |manifest: Manifest| {
            let deployments = deployments.clone();
            tokio::spawn(async move { deployments.deploy(manifest, true).await })
        };
        let (failing, going) = (begin(wrong.clone()), begin(manifest("a", component)));
        let both = || {
            let standing = deployments.0.standing("a");
            Arc::strong_count(&standing) == 4
        };
        while !both() {
            tokio::task::yield_now().await;
        }
        drop(places);
        failing.await.expect("no crash").expect_err("no such model");
        going.await.expect("no crash").expect("good");
        let served = deployments.get("a").expect("it serves");
        assert!(deployments.0.stands(&name("a"), &served.standing));
        wrong.name = name("b");
        wrong.routes = manifest("b", component).routes;
        let failed = deployments.deploy(wrong, true).await;
        failed.expect_err("no such model");
        let standings = deployments.0.standings.lock().expect("nobody panics");
        assert_eq!(Vec::from_iter(standings.keys()), ["a"]);
    }
}
