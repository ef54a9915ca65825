//! Restores the stored deployments when a server starts.
//!
//! A revision that cannot be loaded does not serve and reports why; other deployments are not affected. If
//! the cause may be temporary, such as a busy disk or too many open files, loading is retried for half an
//! hour, with pauses that grow from a second to a minute, and afterwards at the next change of the
//! deployment. A damaged component is not retried.

use super::change_error::ChangeError;
use super::deployment_table::{COMPILE_QUEUE_TIMEOUT, Deployments, Inner};
use super::name::DeploymentName;
use super::serving_deployment::{LoadError, ServingDeployment, ServingRevision};
use super::store::StoreError;
use super::stored_deployment::StoredDeployment;
use corral_runtime::PluginError;
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::task::JoinSet;

/// How long a deployment waits for a compile permit at start: until all others are compiled.
const RESTORE_QUEUE_TIMEOUT: Duration = Duration::from_secs(6 * 3600);
/// The first pause; each further one is twice as long.
const FIRST_RETRY_DELAY: Duration = Duration::from_secs(1);
const MAX_PAUSE: Duration = Duration::from_secs(60);
/// Retries: about half an hour.
const MAX_RETRIES: u32 = 35;

impl Deployments {
    /// Loads all stored deployments, as many at once as may compile. Retries temporary failures in the
    /// background.
    pub async fn restore(&self) {
        for name in self.restore_once().await {
            tokio::spawn(retry_until_loaded(Arc::downgrade(&self.0), name));
        }
    }

    /// The same for a developing server: all deployments serve at once, and answer 503 until they are compiled.
    pub fn restore_in_background(&self) {
        let Some(store) = &self.0.store else {
            return;
        };
        for (name, stored) in store.list() {
            let name = name.to_string();
            self.0.activate_restored(self.0.uncompiled(&name, &stored));
            let inner = Arc::clone(&self.0);
            tokio::spawn(async move {
                if inner.retry(&name, true).await {
                    let inner = Arc::downgrade(&inner);
                    retry_until_loaded(inner, name).await;
                }
            });
        }
    }

    /// Loads all stored deployments. Returns the names of those to retry.
    async fn restore_once(&self) -> Vec<String> {
        let mut to_retry = Vec::new();
        let Some(store) = &self.0.store else {
            return to_retry;
        };
        let mut loading = JoinSet::new();
        for (name, stored) in store.list() {
            let inner = Arc::clone(&self.0);
            loading.spawn(inner.load_deployment(name.as_str().into(), stored));
        }
        while let Some(loaded) = loading.join_next().await {
            let Ok(deployment) = loaded else {
                tracing::error!("a deployment could not be restored: its loader panicked");
                continue;
            };
            if deployment.revisions.iter().any(is_retryable) {
                to_retry.push(deployment.name.to_string());
            }
            let _lock = self.0.change_lock.lock().await;
            self.0.activate_restored(deployment);
        }
        to_retry
    }
}

/// Whether a revision failed to load for a possibly temporary reason.
fn is_retryable(revision: &ServingRevision) -> bool {
    matches!(&revision.plugin, Err(error) if error.retryable)
}

/// Retries until nothing retryable is left, or [`MAX_RETRIES`] times. Ends with the deployments.
async fn retry_until_loaded(inner: Weak<Inner>, name: String) {
    let mut pause = FIRST_RETRY_DELAY;
    for _ in 0..MAX_RETRIES {
        tokio::time::sleep(pause).await;
        pause = (2 * pause).min(MAX_PAUSE);
        let Some(inner) = inner.upgrade() else {
            return;
        };
        if !inner.retry(&name, true).await {
            return;
        }
    }
    if let Some(inner) = inner.upgrade() {
        // Repeats only if the deployment changes at the same time.
        while inner.retry(&name, false).await {}
    }
}

impl ChangeError {
    /// Whether the cause may pass without a change of the deployment.
    pub(super) fn is_temporary(&self) -> bool {
        match self {
            ChangeError::Busy
            | ChangeError::CompileTimeout { .. }
            | ChangeError::RefusedCompilation { .. }
            | ChangeError::Store(StoreError::Unreadable { .. }) => true,
            // A reload of the server's options may define the secret or the folder.
            ChangeError::Plugin(
                PluginError::CompileStopped { .. }
                | PluginError::InitializeStopped { .. }
                | PluginError::NoSecret { .. }
                | PluginError::NoFolder { .. },
            ) => true,
            _ => false,
        }
    }
}

impl Inner {
    async fn load_deployment(
        self: Arc<Self>,
        name: Arc<str>,
        stored: StoredDeployment,
    ) -> ServingDeployment {
        let context = self.context(&name);
        let mut plugins = Vec::new();
        let mut routes = Vec::new();
        for share in &stored.record.traffic {
            // The store has verified that the revision exists.
            let Some(revision) = stored.revisions.get(&share.revision) else {
                continue;
            };
            let manifest = &revision.manifest;
            let loaded = self
                .load(
                    &context,
                    manifest,
                    revision.component,
                    RESTORE_QUEUE_TIMEOUT,
                )
                .await;
            if let Err(error) = &loaded {
                let number = share.revision;
                tracing::error!("revision {number} of '{name}' cannot serve: {error}");
            }
            routes.clone_from(&manifest.routes);
            let loaded = loaded
                .inspect(|plugin| plugin.set_revision(share.revision))
                .map_err(|error| LoadError::new(&error, error.is_temporary()));
            plugins.push((*share, loaded));
        }
        let revisions = self.serving_revisions(&context, &stored, plugins);
        ServingDeployment::new(name, context, routes, stored.record.paused, revisions)
    }

    /// A deployment without loaded revisions.
    fn uncompiled(&self, name: &str, stored: &StoredDeployment) -> ServingDeployment {
        let context = self.context(name);
        let traffic = stored.record.traffic.iter();
        let plugins = traffic.map(|share| (*share, Err(LoadError::compiling())));
        let revisions = self.serving_revisions(&context, stored, plugins.collect());
        let mut shares = stored.record.traffic.iter().rev();
        let latest = shares.find_map(|share| stored.revisions.get(&share.revision));
        let routes = latest.map_or_else(Vec::new, |revision| revision.manifest.routes.clone());
        ServingDeployment::new(
            name.into(),
            context,
            routes,
            stored.record.paused,
            revisions,
        )
    }

    fn activate_restored(&self, mut deployment: ServingDeployment) {
        if let Some((route, owner)) = self.other_owner(&deployment.name, &deployment.routes) {
            let error = ChangeError::RouteTaken { route, owner };
            tracing::error!("'{}' cannot serve: {error}", deployment.name);
            deployment.routes.clear();
            for revision in &mut deployment.revisions {
                revision.plugin = Err(LoadError::new(&error, false));
            }
        }
        self.activate(deployment);
    }

    /// Retries the revisions that failed to load for a possibly temporary reason. Unless `retry_again`, a
    /// further failure is final. Returns whether to retry once more.
    async fn retry(self: &Arc<Self>, name: &str, retry_again: bool) -> bool {
        let Some(serving) = self.table().by_name.get(name).cloned() else {
            return false;
        };
        let parsed = name.parse::<DeploymentName>().ok();
        let stored = parsed.and_then(|name| self.store.as_ref()?.get(&name).ok());
        let Some(stored) = stored.filter(|_| serving.revisions.iter().any(is_retryable)) else {
            return false;
        };
        let mut revisions = serving.revisions.clone();
        for revision in revisions
            .iter_mut()
            .filter(|revision| is_retryable(revision))
        {
            let number = revision.share.revision;
            let Some(stored) = stored.revisions.get(&number) else {
                continue;
            };
            let (manifest, component) = (&stored.manifest, stored.component);
            let was_compiling = matches!(&revision.plugin, Err(error) if error.compiling);
            let queue_timeout = match was_compiling {
                true => RESTORE_QUEUE_TIMEOUT,
                false => COMPILE_QUEUE_TIMEOUT,
            };
            let loaded = self
                .load(&serving.context, manifest, component, queue_timeout)
                .await;
            match &loaded {
                Ok(_) if was_compiling => tracing::info!("revision {number} of '{name}' serves"),
                Ok(_) => tracing::info!("revision {number} of '{name}' serves again"),
                Err(error) => tracing::warn!("revision {number} of '{name}' cannot serve: {error}"),
            }
            revision.plugin = loaded
                .inspect(|plugin| plugin.set_revision(number))
                .map_err(|error| LoadError::new(&error, retry_again && error.is_temporary()));
        }
        let failures_left = revisions.iter().any(is_retryable);
        let _lock = self.change_lock.lock().await;
        // A concurrent change wins; check its result in the next retry.
        let table = self.table();
        let current = table.by_name.get(name);
        if !current.is_some_and(|current| Arc::ptr_eq(current, &serving)) {
            return true;
        }
        self.activate(serving.with(serving.paused, revisions));
        failures_left
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::deployments::test_support::{Fixture, manifest, name};
    use crate::deployments::{TrafficShare, Unavailable};
    use std::path::PathBuf;

    /// Restarts a server with a deployment `a` whose component's file cannot be read. Returns that file, and
    /// the file with the original content.
    async fn unreadable() -> (Fixture, PathBuf, PathBuf) {
        let fixture = Fixture::new();
        let component = fixture.upload(1);
        let deployed = fixture.deployments.deploy(manifest("a", component), true);
        deployed.await.expect("good");
        let fixture = fixture.restart();
        let file = fixture.directory().join("components");
        let file = file.join(format!("{}.wasm", component.hex()));
        let backup = fixture.directory().join("backup");
        std::fs::rename(&file, &backup).expect("ours");
        // A directory can be opened but not read, even by root.
        std::fs::create_dir(&file).expect("ours");
        (fixture, file, backup)
    }

    /// The load error of the first revision of `a`, and whether loading is retried.
    fn load_error(deployments: &Deployments) -> (String, bool) {
        let serving = deployments.get("a").expect("it exists");
        let error = serving.revisions[0]
            .plugin
            .as_ref()
            .expect_err("unreadable");
        (error.to_string(), error.retryable)
    }

    #[tokio::test]
    async fn developing_server_answers_while_compiling() {
        let fixture = Fixture::new();
        let component = fixture.upload(1);
        let deployed = fixture.deployments.deploy(manifest("a", component), true);
        deployed.await.expect("good");
        let fixture = fixture.restart();
        let deployments = &fixture.deployments;
        let permits = deployments.0.compile_permits.acquire_many(2).await;
        deployments.restore_in_background();
        let serving = deployments.find("/a").expect("it has its route");
        assert!(matches!(serving.pick(), Err(Unavailable::Compiling)));
        // A change in the meantime stays.
        let paused = deployments.set_paused(name("a"), true).await;
        paused.expect("it exists");
        drop(permits);
        loop {
            let serving = deployments.get("a").expect("it exists");
            assert!(serving.paused);
            if serving.revisions[0].plugin.is_ok() {
                break;
            }
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test]
    async fn temporary_failure_is_retried() {
        let (fixture, file, backup) = unreadable().await;
        let deployments = &fixture.deployments;
        assert_eq!(deployments.restore_once().await, ["a"]);
        let (message, retryable) = load_error(deployments);
        assert!(retryable && message.contains("cannot be read"), "{message}");
        assert!(
            message.ends_with("loading is retried automatically"),
            "{message}"
        );
        let inner = &deployments.0;
        assert!(inner.retry("a", true).await, "nothing has changed");
        // The last retry. Changes remain possible.
        assert!(!inner.retry("a", false).await);
        assert!(!inner.retry("a", true).await, "nothing is retryable");
        let (message, retryable) = load_error(deployments);
        assert!(
            !retryable && message.contains("cannot be read"),
            "{message}"
        );
        std::fs::remove_dir(&file).expect("ours");
        std::fs::rename(&backup, &file).expect("ours");
        let all = vec![TrafficShare {
            revision: 1,
            weight: 1,
        }];
        deployments
            .set_traffic(name("a"), all)
            .await
            .expect("it is there");
        assert!(deployments.get("a").expect("exists").pick().is_ok());
    }
}
