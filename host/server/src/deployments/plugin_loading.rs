//! Loads components of the store as a plugin, without blocking the serving path.
//!
//! A few components compile at a time, in child processes with limits on memory and time. A component that exceeds
//! one is refused for an hour. Without child processes a compilation cannot be interrupted: one that exceeds its
//! time fails its change but keeps its permit until it ends.

use super::change_error::ChangeError;
use super::deployment_context::DeploymentContext;
use super::deployment_table::{Inner, LARGE_COMPONENT_BYTES};
use super::digest::Digest;
use super::linked_components::{LinkedComponent, LinkedComponents};
use super::manifest::Manifest;
use super::refused_compilations::RefusedCompilations;
use super::requested_reuse::RequestedReuse;
use super::revision::TrafficShare;
use super::serving_deployment::{LoadError, ServingRevision};
use super::store::{Store, StoreError};
use super::stored_deployment::StoredDeployment;
use crate::request_policy::RequestPolicy;
use crate::routes::Route;
use crate::triggers::TriggerSettings;
use bytes::Bytes;
use corral_runtime::{Limits, Plugin, PluginConfig, PluginError, SystemGrants};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

impl Inner {
    /// Compiles a component of the store, composed with the manifest's linked components. The plugin has no
    /// revision number yet.
    pub(super) async fn load(
        self: &Arc<Self>,
        context: &DeploymentContext,
        manifest: &Manifest,
        component: Digest,
        queue_timeout: Duration,
    ) -> Result<Plugin, ChangeError> {
        let linked = manifest.linked.digests()?;
        let compiled = compilation_digest(component, &linked, manifest.initialize);
        self.check_not_refused(compiled)?;
        let permits =
            self.compile_permits(std::iter::once(component).chain(linked.iter().copied()));
        let permits = match timeout(queue_timeout, permits).await {
            Ok(Some(permits)) => permits,
            _ => return Err(ChangeError::Busy),
        };
        // Another change may have exceeded the limit in the meantime.
        self.check_not_refused(compiled)?;
        let ended = Arc::new(AtomicBool::new(false));
        let inner = Arc::clone(self);
        let deployment = context.deployment.clone();
        let name = manifest.name.to_string();
        let mut config = self.plugin_config(manifest);
        let manifest_linked = manifest.linked.clone();
        let gets_messages = manifest.messages.is_some();
        let end = Arc::clone(&ended);
        let loading = tokio::spawn(async move {
            let (reader, reader_name) = (Arc::clone(&inner), name.clone());
            let reading = tokio::task::spawn_blocking(move || {
                let store = reader.store.as_ref().ok_or(ChangeError::NoStore)?;
                let all = std::iter::once(component).chain(linked);
                read_components(store, &reader_name, &Vec::from_iter(all))
            });
            let mut read = reading
                .await
                .map_err(|_| ChangeError::Internal)??
                .into_iter();
            let bytes = read.next().ok_or(ChangeError::Internal)?;
            config.linked = with_bytes(&manifest_linked, read);
            let runtime = &inner.runtime;
            let loaded = runtime.load_plugin_into(&deployment, &name, bytes, config);
            let loaded = loaded.await;
            if matches!(&loaded, Err(error) if error.is_compile_limit()) {
                inner
                    .refused_compilations()
                    .record(compiled, Instant::now());
            }
            let plugin = loaded?;
            {
                let mut refused = inner.refused_compilations();
                end.store(true, Ordering::Relaxed);
                refused.remove(compiled);
            }
            drop(permits);
            let roles = plugin.roles();
            if !(roles.http || roles.messages && gets_messages) {
                return Err(ChangeError::NoHandler);
            }
            Ok(plugin)
        });
        match timeout(self.compile_timeout, loading).await {
            Ok(loaded) => loaded.map_err(|_| ChangeError::Internal)?,
            Err(_) => {
                let mut refused = self.refused_compilations();
                // Unless the compilation ended at the last moment.
                if !ended.load(Ordering::Relaxed) {
                    refused.record(compiled, Instant::now());
                }
                Err(ChangeError::CompileTimeout {
                    limit: self.compile_timeout,
                })
            }
        }
    }

    /// Waits for the permits to compile these components of the store together.
    async fn compile_permits(
        &self,
        components: impl Iterator<Item = Digest>,
    ) -> Option<(Option<OwnedSemaphorePermit>, OwnedSemaphorePermit)> {
        let store = self.store.as_ref();
        let sizes = components.filter_map(|digest| store?.component(digest));
        // First the permit for which only large components wait.
        let large = match sizes.sum::<u64>() >= LARGE_COMPONENT_BYTES {
            true => Some(acquire(&self.large_compile_permit).await?),
            false => None,
        };
        Some((large, acquire(&self.compile_permits).await?))
    }

    /// Refuses a component whose compilation recently exceeded a limit or crashed.
    fn check_not_refused(&self, component: Digest) -> Result<(), ChangeError> {
        match self
            .refused_compilations()
            .remaining(component, Instant::now())
        {
            Some(wait) => Err(ChangeError::RefusedCompilation { wait }),
            None => Ok(()),
        }
    }

    fn refused_compilations(&self) -> MutexGuard<'_, RefusedCompilations> {
        self.refused_compilations
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// The revisions that serve together, each with its own policy. Revisions that serve already keep
    /// theirs.
    pub(super) fn serving_revisions(
        &self,
        context: &DeploymentContext,
        stored: &StoredDeployment,
        plugins: Vec<(TrafficShare, Result<Plugin, LoadError>)>,
    ) -> Vec<ServingRevision> {
        let known = plugins.into_iter().filter_map(|(share, plugin)| {
            let revision = stored.revisions.get(&share.revision)?;
            Some((share, plugin, &revision.manifest))
        });
        let known = Vec::from_iter(known);
        let Some((_, _, manifest)) = known.first() else {
            return Vec::new();
        };
        let limits = known.iter();
        let limits = limits.map(|(_, _, manifest)| manifest.limits.quota_limits());
        let quotas = context.quotas(manifest.name.as_str(), &Vec::from_iter(limits));
        known
            .into_iter()
            .zip(quotas)
            .map(|((share, plugin, manifest), quota)| ServingRevision {
                share,
                policy: RequestPolicy {
                    access: manifest.access.unwrap_or(self.access),
                    quota,
                    error_format: manifest.error_format,
                    cors: manifest.cors.clone(),
                },
                triggers: Arc::new(TriggerSettings::of(
                    manifest.jobs.as_ref(),
                    &manifest.cron,
                    manifest.messages.as_ref(),
                )),
                plugin,
            })
            .collect()
    }

    /// The runtime's configuration of a plugin: the manifest, with the server's defaults.
    fn plugin_config(&self, manifest: &Manifest) -> PluginConfig {
        let requested = &manifest.limits;
        let default = &self.limits;
        let kib = 1 << 10;
        PluginConfig {
            limits: Limits {
                memory: requested
                    .memory_mib
                    .map_or(default.memory, |n| n.times(1 << 20)),
                time: requested
                    .time_seconds
                    .map_or(default.time, |s| s.duration()),
                cpu: requested.cpu_seconds.map_or(default.cpu, |s| s.duration()),
                request_bytes: requested
                    .request_kib
                    .map_or(default.request_bytes, |n| n.times(kib)),
                response_bytes: requested
                    .response_kib
                    .map_or(default.response_bytes, |n| n.times(kib) as u64),
                concurrent: requested
                    .concurrent_requests
                    .map_or(default.concurrent, |n| n.times(1)),
                waiting_calls: requested
                    .queued_requests
                    .map_or(default.waiting_calls, |n| n.times(1)),
                generation_queue_time: requested
                    .queue_time_seconds
                    .map(|s| s.duration())
                    .or(default.generation_queue_time),
                priority: manifest.priority,
                latency: manifest.latency.map_or(default.latency, |one| one.0),
                share_prefixes: manifest.grants.share_prefixes,
                key_value_bytes: manifest
                    .grants
                    .key_value_mib
                    .map_or(0, |n| n.times(1 << 20) as u64),
                cells_percent: requested
                    .kv_cells_percent
                    .and_then(|n| u8::try_from(n.get()).ok()),
            },
            reuse: manifest.reuse.map(RequestedReuse::reuse),
            initialize: manifest.initialize,
            models: manifest.models.clone(),
            environment: manifest.configuration.clone().into_iter().collect(),
            secrets: manifest.grants.secrets.clone(),
            folders: manifest.grants.folders.clone(),
            outbound: manifest
                .grants
                .outbound
                .iter()
                .map(|entry| entry.0.clone())
                .collect(),
            deployments: manifest
                .grants
                .deployments
                .iter()
                .map(|name| name.as_str().to_owned())
                .collect(),
            messages: manifest.grants.messages.clone(),
            system: SystemGrants {
                clocks: manifest.grants.clocks,
                random: manifest.grants.random,
            },
            // Added when their bytes have been read.
            linked: corral_runtime::LinkedComponents::default(),
        }
    }

    /// The plugin of a revision that is loaded already.
    pub(super) fn loaded_plugin(&self, name: &str, share: &TrafficShare) -> Option<Plugin> {
        let table = self.table();
        let mut revisions = table.by_name.get(name)?.revisions.iter();
        let revision = revisions.find(|revision| revision.share.revision == share.revision)?;
        revision.plugin.as_ref().ok().cloned()
    }

    /// The routes of the revisions of `traffic`.
    ///
    /// # Errors
    /// If their routes differ.
    pub(super) fn common_routes(
        stored: &StoredDeployment,
        traffic: &[TrafficShare],
    ) -> Result<Vec<Route>, ChangeError> {
        let mut routes: Option<&Vec<Route>> = None;
        for share in traffic {
            let Some(revision) = stored.revisions.get(&share.revision) else {
                continue;
            };
            match routes {
                Some(first) if *first != revision.manifest.routes => {
                    return Err(ChangeError::RoutesDiffer {
                        one: traffic[0].revision,
                        other: share.revision,
                    });
                }
                _ => routes = Some(&revision.manifest.routes),
            }
        }
        Ok(routes.cloned().unwrap_or_default())
    }
}

async fn acquire(permits: &Arc<Semaphore>) -> Option<OwnedSemaphorePermit> {
    Arc::clone(permits).acquire_owned().await.ok()
}

/// Identifies a compilation: the component's digest, or a digest of all composed components, and whether the first is
/// initialized.
fn compilation_digest(component: Digest, linked: &[Digest], initialize: bool) -> Digest {
    if linked.is_empty() && !initialize {
        return component;
    }
    let all = std::iter::once(&component).chain(linked);
    let mut text: String = all.map(Digest::hex).collect();
    if initialize {
        text += " initialized";
    }
    Digest::of(text.as_bytes())
}

/// Reads components of the deployment `name` from the store. Together they must not exceed the size limit
/// of one.
fn read_components(
    store: &Store,
    name: &str,
    digests: &[Digest],
) -> Result<Vec<Bytes>, ChangeError> {
    let limit = store.limits().max_component_bytes;
    let mut all = Vec::new();
    let mut bytes = 0;
    for digest in digests {
        let read = store.read(*digest)?;
        bytes += read.len() as u64;
        if bytes > limit {
            return Err(match digests {
                [_] => StoreError::TooLarge { bytes, limit }.into(),
                _ => ChangeError::Plugin(PluginError::TooLargeTogether {
                    plugin: name.to_owned(),
                    limit: usize::try_from(limit).unwrap_or(usize::MAX),
                }),
            });
        }
        all.push(read.into());
    }
    Ok(all)
}

/// The manifest's linked components with their bytes, which are in the order of
/// [`LinkedComponents::all`].
fn with_bytes(
    linked: &LinkedComponents,
    mut bytes: impl Iterator<Item = Bytes>,
) -> corral_runtime::LinkedComponents {
    let linked_component =
        |(component, bytes): (&LinkedComponent, Bytes)| corral_runtime::LinkedComponent {
            component: bytes.into(),
            inherit: component.inherit,
        };
    // `zip` takes bytes only if there is a component, which it asks first.
    let templating = linked.templating.iter().zip(bytes.by_ref());
    corral_runtime::LinkedComponents {
        templating: templating.map(linked_component).next(),
        sampling: linked
            .sampling
            .keys()
            .cloned()
            .zip(bytes.by_ref().map(Into::into))
            .collect(),
        middleware: linked
            .middleware
            .iter()
            .zip(bytes)
            .map(linked_component)
            .collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::deployments::StoreLimits;
    use crate::deployments::deployment_table::COMPILE_TIMEOUT;
    use crate::deployments::test_support::{Fixture, manifest};
    use std::sync::mpsc;

    #[test]
    fn oversized_composition_is_reported_as_such() {
        let dir = tempfile::tempdir().expect("there is room");
        let limits = StoreLimits {
            max_component_bytes: 10,
            ..StoreLimits::default()
        };
        let store = Store::open(dir.path(), limits).expect("opens");
        let digests = [b"1234567", b"abcdefg"].map(|bytes| {
            let digest = Digest::of(bytes);
            store.put(digest, bytes).expect("small");
            digest
        });
        assert_eq!(
            read_components(&store, "a", &digests[..1])
                .expect("small")
                .len(),
            1
        );
        let error = read_components(&store, "a", &digests).expect_err("large");
        let expected = "the plugin a and its linked components together have more than the 10";
        assert!(error.to_string().contains(expected), "{error}");
    }

    #[tokio::test]
    async fn slow_compilations_leave_permit_to_others() {
        let fixture = Fixture::new();
        let small = fixture.upload(1);
        let large = fixture.upload_with_padding(2, LARGE_COMPONENT_BYTES);
        let inner = &fixture.deployments.0;
        // A large component compiles.
        let permits = inner.compile_permits(std::iter::once(large)).await;
        let deploy = |name: &str, component| {
            let deployments = fixture.deployments.clone();
            let manifest = manifest(name, component);
            async move { deployments.deploy(manifest, true).await }
        };
        let waiting = tokio::spawn(deploy("large", large));
        assert_eq!(deploy("small", small).await.expect("at once").number, 1);
        assert!(!waiting.is_finished());
        assert_eq!(fixture.compiled(), 1.0);
        drop(permits);
        waiting.await.expect("no crash").expect("good");
    }

    #[test]
    fn timed_out_component_is_refused_until_compiled() {
        // One blocking thread, so that nothing compiles while the test occupies it.
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .max_blocking_threads(1)
            .build()
            .expect("starts");
        runtime.block_on(async {
            let mut fixture = Fixture::new();
            let component = fixture.upload(1);
            let set_timeout =
                |fixture: &mut Fixture, limit| match Arc::get_mut(&mut fixture.deployments.0) {
                    Some(inner) => {
                        inner.compile_timeout = limit;
                        true
                    }
                    None => false,
                };
            assert!(set_timeout(&mut fixture, Duration::ZERO));
            let (go, wait) = mpsc::channel::<()>();
            let blocked = tokio::task::spawn_blocking(move || wait.recv());
            let deploy = async |fixture: &Fixture| {
                let manifest = manifest("a", component);
                fixture.deployments.deploy(manifest, true).await
            };
            let error = deploy(&fixture).await.expect_err("timed out");
            assert!(
                matches!(error, ChangeError::CompileTimeout { .. }),
                "{error:?}"
            );
            // The compilation still has its permit; the second deploy asks for none.
            let permits = || fixture.deployments.0.compile_permits.available_permits();
            assert_eq!(permits(), 1);
            let error = deploy(&fixture).await.expect_err("refused");
            assert!(
                matches!(error, ChangeError::RefusedCompilation { .. }),
                "{error:?}"
            );
            assert_eq!((permits(), fixture.compiled()), (1, 0.0));
            drop(go);
            blocked.await.expect("no crash").expect_err("disconnected");
            while !set_timeout(&mut fixture, COMPILE_TIMEOUT) {
                tokio::task::yield_now().await;
            }
            assert_eq!(fixture.compiled(), 1.0, "compilation is not interrupted");
            assert_eq!(deploy(&fixture).await.expect("at once").number, 1);
        });
    }
}
