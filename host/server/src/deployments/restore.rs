//! What the store has serves again when a server starts.
//!
//! A revision that can't be loaded does not serve, says why, and keeps nobody else from it. Where the
//! reason may pass by itself, such as a disk that can't be read now or too many open files, it is tried
//! again, after a second and then with pauses that grow to a minute, for half an hour; from then on at
//! the next change of the deployment. A damaged component does not mend itself, and is not.

use super::change::ChangeError;
use super::load::PATIENCE;
use super::name::Name;
use super::serving::{Deployments, Inner, Part, Served, Unloaded};
use super::store::{Kept, StoreError};
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::task::JoinSet;

/// How long a deployment waits for a place to be compiled when a server starts: as long as all the others
/// take.
const PATIENCE_AT_START: Duration = Duration::from_secs(6 * 3600);
/// The first pause, after which each is twice as long as the one before.
const PAUSE: Duration = Duration::from_secs(1);
/// The longest pause.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);
/// How often a revision is tried again: for half an hour, about.
const TRIES: u32 = 35;

impl Deployments {
    /// Loads what the store has, as many at once as may be compiled. What can't be loaded does not
    /// serve, says why, and keeps nobody else from it; if that may pass, it is tried again in the
    /// background.
    pub async fn restore(&self) {
        for name in self.restore_once().await {
            tokio::spawn(try_again(Arc::downgrade(&self.0), name));
        }
    }

    /// Loads what the store has. Returns the names of those that are to be tried again.
    async fn restore_once(&self) -> Vec<String> {
        let mut again = Vec::new();
        let Some(store) = &self.0.store else {
            return again;
        };
        let mut loading = JoinSet::new();
        for (name, kept) in store.list() {
            let inner = Arc::clone(&self.0);
            loading.spawn(async move { inner.restored(name.to_string(), kept).await });
        }
        while let Some(restored) = loading.join_next().await {
            let Ok(served) = restored else {
                tracing::error!("a deployment could not be restored: its loader crashed");
                continue;
            };
            if served.parts.iter().any(tried_again) {
                again.push(served.name.clone());
            }
            let _changing = self.0.changing.lock().await;
            self.0.install_restored(served);
        }
        again
    }
}

/// Whether a part could not be loaded for a reason that may pass.
fn tried_again(part: &Part) -> bool {
    matches!(&part.plugin, Err(unloaded) if unloaded.passing)
}

/// Tries again until there is nothing left that may pass, or often enough. Lasts no longer than the
/// deployments do.
async fn try_again(inner: Weak<Inner>, name: String) {
    let mut pause = PAUSE;
    for _ in 0..TRIES {
        tokio::time::sleep(pause).await;
        pause = (2 * pause).min(LONGEST_PAUSE);
        let Some(inner) = inner.upgrade() else {
            return;
        };
        if !inner.mend(&name, true).await {
            return;
        }
    }
    if let Some(inner) = inner.upgrade() {
        // Once more for each change that came in between.
        while inner.mend(&name, false).await {}
    }
}

impl ChangeError {
    /// Whether it may pass without anybody doing something about the deployment.
    fn passes(&self) -> bool {
        matches!(
            self,
            ChangeError::Busy
                | ChangeError::CompileTime { .. }
                | ChangeError::CompiledTooLong { .. }
                | ChangeError::Store(StoreError::Unreadable { .. })
        )
    }
}

impl Inner {
    async fn restored(self: Arc<Self>, name: String, kept: Kept) -> Served {
        let standing = self.standing(&name);
        let mut plugins = Vec::new();
        let mut routes = Vec::new();
        for share in &kept.record.traffic {
            // The store has checked that it is there.
            let Some(revision) = kept.revisions.get(&share.revision) else {
                continue;
            };
            let manifest = &revision.manifest;
            let loaded = self
                .load(&standing, manifest, revision.component, PATIENCE_AT_START)
                .await;
            if let Err(error) = &loaded {
                let number = share.revision;
                tracing::error!("revision {number} of '{name}' cannot serve: {error}");
            }
            routes.clone_from(&manifest.routes);
            let loaded = loaded
                .inspect(|plugin| plugin.set_revision(share.revision))
                .map_err(|error| Unloaded::new(&error, error.passes()));
            plugins.push((*share, loaded));
        }
        let parts = self.parts(&standing, &kept, plugins);
        Served::new(name, standing, routes, kept.record.paused, parts)
    }

    fn install_restored(&self, mut served: Served) {
        if let Some((route, holder)) = self.holder(&served.name, &served.routes) {
            let problem = ChangeError::RouteTaken { route, holder };
            tracing::error!("'{}' cannot serve: {problem}", served.name);
            served.routes.clear();
            for part in &mut served.parts {
                part.plugin = Err(Unloaded::new(&problem, false));
            }
        }
        let installed = self.replace(|by_name| {
            by_name.insert(served.name.clone(), Arc::new(served));
        });
        if let Err(taken) = installed {
            tracing::error!("a deployment cannot serve: {taken}");
        }
    }

    /// Tries the parts once more that could not be loaded for a reason that may pass; without `again`
    /// for the last time. Returns whether one of them is to be tried again.
    async fn mend(self: &Arc<Self>, name: &str, again: bool) -> bool {
        let Some(served) = self.table().by_name.get(name).cloned() else {
            return false;
        };
        let known = name.parse::<Name>().ok();
        let kept = known.and_then(|name| self.store.as_ref()?.get(&name).ok());
        let Some(kept) = kept.filter(|_| served.parts.iter().any(tried_again)) else {
            return false;
        };
        let mut parts = served.parts.clone();
        for part in parts.iter_mut().filter(|part| tried_again(part)) {
            let number = part.share.revision;
            let Some(revision) = kept.revisions.get(&number) else {
                continue;
            };
            let (manifest, component) = (&revision.manifest, revision.component);
            let loaded = self
                .load(&served.standing, manifest, component, PATIENCE)
                .await;
            match &loaded {
                Ok(_) => tracing::info!("revision {number} of '{name}' serves again"),
                Err(error) => tracing::warn!("revision {number} of '{name}' cannot serve: {error}"),
            }
            part.plugin = loaded
                .inspect(|plugin| plugin.set_revision(number))
                .map_err(|error| Unloaded::new(&error, again && error.passes()));
        }
        let left = parts.iter().any(tried_again);
        let _changing = self.changing.lock().await;
        // What was changed meanwhile is as somebody wants it now, and looked at again.
        let table = self.table();
        let now = table.by_name.get(name);
        if !now.is_some_and(|now| Arc::ptr_eq(now, &served)) {
            return true;
        }
        self.install(Served::new(
            served.name.clone(),
            Arc::clone(&served.standing),
            served.routes.clone(),
            served.paused,
            parts,
        ));
        left
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::deployments::Share;
    use crate::deployments::fixture::{Fixture, manifest, name};
    use std::path::PathBuf;

    /// A server that starts again with a deployment `a` whose component's file can't be read: that file,
    /// and where what it held is.
    async fn unreadable() -> (Fixture, PathBuf, PathBuf) {
        let fixture = Fixture::new();
        let component = fixture.upload(1);
        let deployed = fixture.deployments.deploy(manifest("a", component), true);
        deployed.await.expect("good");
        let fixture = fixture.again();
        let file = fixture.folder().join("components");
        let file = file.join(format!("{}.wasm", component.hex()));
        let aside = fixture.folder().join("aside");
        std::fs::rename(&file, &aside).expect("ours");
        // A folder can be opened and not be read, also by root.
        std::fs::create_dir(&file).expect("ours");
        (fixture, file, aside)
    }

    /// Why the first part of `a` does not serve, and whether it is tried again.
    fn problem(deployments: &Deployments) -> (String, bool) {
        let served = deployments.get("a").expect("it is known");
        let unloaded = served.parts[0].plugin.as_ref().expect_err("it can't");
        (unloaded.to_string(), unloaded.passing)
    }

    #[tokio::test]
    async fn what_could_not_be_read_for_now_is_tried_again() {
        let (fixture, file, aside) = unreadable().await;
        let deployments = &fixture.deployments;
        assert_eq!(deployments.restore_once().await, ["a"]);
        let (told, passing) = problem(deployments);
        assert!(passing && told.contains("cannot be read"), "{told}");
        assert!(told.ends_with("it is tried again by itself"), "{told}");
        let inner = &deployments.0;
        assert!(inner.mend("a", true).await, "nothing has changed");
        // Given up at some time, which does not stop anybody from changing it.
        assert!(!inner.mend("a", false).await);
        assert!(!inner.mend("a", true).await, "there is nothing to be tried");
        let (told, passing) = problem(deployments);
        assert!(!passing && told.contains("cannot be read"), "{told}");
        std::fs::remove_dir(&file).expect("ours");
        std::fs::rename(&aside, &file).expect("ours");
        let all = vec![Share {
            revision: 1,
            weight: 1,
        }];
        deployments
            .share(name("a"), all)
            .await
            .expect("it is there");
        assert!(deployments.get("a").expect("there").pick().is_ok());
    }

    #[tokio::test]
    async fn what_can_be_read_again_serves_again_and_damage_does_not() {
        let (fixture, file, aside) = unreadable().await;
        let deployments = &fixture.deployments;
        deployments.restore_once().await;
        std::fs::remove_dir(&file).expect("ours");
        std::fs::copy(&aside, &file).expect("ours");
        assert!(!deployments.0.mend("a", true).await, "nothing is left");
        let served = deployments.get("a").expect("there");
        assert!(served.pick().is_ok());
        assert_eq!(served.routes.len(), 1);
        drop(served);

        let fixture = fixture.again();
        std::fs::write(&file, "damaged").expect("ours");
        assert!(fixture.deployments.restore_once().await.is_empty());
        let (told, passing) = problem(&fixture.deployments);
        assert!(!passing && told.contains("is damaged or gone"), "{told}");
        std::fs::rename(&aside, &file).expect("ours");
        assert!(!fixture.deployments.0.mend("a", true).await);
    }
}
