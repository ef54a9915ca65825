//! From a revision that is kept to a plugin that can be called, beside the serving path.
//!
//! A component is compiled on threads that give way to those that serve. There are at most so many
//! at once, and each gets so long; one that takes longer is refused, and though nothing can stop it, it
//! keeps its place until it ends, so that many of them can't pile up. For an hour the same one is refused
//! at once. What remains: as many others as there are places, none of which ever ends, take all of them
//! until the process is started again. Then nothing new is compiled, which is said to be busy; what
//! serves goes on, and so do changes that compile nothing.

use super::Digest;
use super::change::ChangeError;
use super::links::Links;
use super::manifest::Manifest;
use super::revision::Share;
use super::serving::{Inner, Part, Unloaded};
use super::slow::Slow;
use super::store::{Kept, Store, StoreError};
use super::tally::Standing;
use crate::routes::Prefix;
use crate::terms::Terms as CallTerms;
use bytes::Bytes;
use corral_runtime::{Limits, Plugin, PluginConfig, PluginError};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::time::timeout;

/// How long a component may take to compile: some hundred times what one of a megabyte takes.
pub(super) const COMPILE_TIME: Duration = Duration::from_secs(60);

/// How long a change waits for a place.
pub(super) const PATIENCE: Duration = Duration::from_secs(60);

impl Inner {
    /// Compiles a component of the store, with those that the manifest links with it, on the manifest's
    /// terms. The plugin has no number yet.
    pub(super) async fn load(
        self: &Arc<Self>,
        standing: &Standing,
        manifest: &Manifest,
        component: Digest,
        patience: Duration,
    ) -> Result<Plugin, ChangeError> {
        let links = manifest.links.digests()?;
        let compiled = together(component, &links);
        self.not_slow(compiled)?;
        let place = Arc::clone(&self.compiling).acquire_owned();
        let place = match timeout(patience, place).await {
            Ok(Ok(place)) => place,
            _ => return Err(ChangeError::Busy),
        };
        // It may have run over for another one while this one waited.
        self.not_slow(compiled)?;
        let ended = Arc::new(AtomicBool::new(false));
        let inner = Arc::clone(self);
        let deployment = standing.deployment.clone();
        let name = manifest.name.to_string();
        let mut terms = self.terms(manifest);
        let manifest_links = manifest.links.clone();
        let end = Arc::clone(&ended);
        let loading = tokio::spawn(async move {
            let (reader, called) = (Arc::clone(&inner), name.clone());
            let reading = tokio::task::spawn_blocking(move || {
                let store = reader.store.as_ref().ok_or(ChangeError::NoStore)?;
                let all = std::iter::once(component).chain(links);
                read_all(store, &called, &Vec::from_iter(all))
            });
            let mut read = reading.await.map_err(|_| ChangeError::Host)??.into_iter();
            let bytes = read.next().ok_or(ChangeError::Host)?;
            terms.linked = linked(&manifest_links, read);
            let runtime = &inner.runtime;
            let plugin = runtime
                .load_plugin_into(&deployment, &name, bytes, terms)
                .await?;
            {
                let mut slow = inner.slow();
                end.store(true, Ordering::Relaxed);
                slow.forget(compiled);
            }
            drop(place);
            if !plugin.roles().http {
                return Err(ChangeError::NoHandler);
            }
            Ok(plugin)
        });
        match timeout(self.compile_time, loading).await {
            Ok(loaded) => loaded.map_err(|_| ChangeError::Host)?,
            Err(_) => {
                let mut slow = self.slow();
                // Not if it was through at the last moment.
                if !ended.load(Ordering::Relaxed) {
                    slow.ran_over(compiled, Instant::now());
                }
                Err(ChangeError::CompileTime {
                    limit: self.compile_time,
                })
            }
        }
    }

    /// Whether nothing speaks against compiling it.
    fn not_slow(&self, component: Digest) -> Result<(), ChangeError> {
        match self.slow().refused(component, Instant::now()) {
            Some(wait) => Err(ChangeError::CompiledTooLong { wait }),
            None => Ok(()),
        }
    }

    fn slow(&self) -> MutexGuard<'_, Slow> {
        self.slow.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Revisions that are to serve together, each on its own terms. Those that serve now keep theirs.
    pub(super) fn parts(
        &self,
        standing: &Standing,
        kept: &Kept,
        plugins: Vec<(Share, Result<Plugin, Unloaded>)>,
    ) -> Vec<Part> {
        let known = plugins.into_iter().filter_map(|(share, plugin)| {
            let revision = kept.revisions.get(&share.revision)?;
            Some((share, plugin, &revision.manifest))
        });
        let known = Vec::from_iter(known);
        let Some((_, _, manifest)) = known.first() else {
            return Vec::new();
        };
        let allowances = known
            .iter()
            .map(|(_, _, manifest)| manifest.limits.allowance());
        let quotas = standing.quotas(manifest.name.as_str(), &Vec::from_iter(allowances));
        known
            .into_iter()
            .zip(quotas)
            .map(|((share, plugin, manifest), quota)| Part {
                share,
                terms: CallTerms {
                    access: manifest.access.unwrap_or(self.access),
                    quota,
                    errors: manifest.error_format,
                },
                plugin,
            })
            .collect()
    }

    /// The manifest's terms for the runtime, completed by the server's.
    fn terms(&self, manifest: &Manifest) -> PluginConfig {
        let asked = &manifest.limits;
        let own = &self.limits;
        let kib = 1 << 10;
        PluginConfig {
            limits: Limits {
                memory: asked.memory_mib.map_or(own.memory, |n| n.times(1 << 20)),
                time: asked.time_seconds.map_or(own.time, |s| s.duration()),
                cpu: asked.cpu_seconds.map_or(own.cpu, |s| s.duration()),
                request_bytes: asked
                    .request_kib
                    .map_or(own.request_bytes, |n| n.times(kib)),
                response_bytes: asked
                    .response_kib
                    .map_or(own.response_bytes, |n| n.times(kib) as u64),
                concurrent: asked.concurrent.map_or(own.concurrent, |n| n.times(1)),
                queue: asked.queue.map_or(own.queue, |n| n.times(1)),
                queue_time: asked.queue_seconds.map(|s| s.duration()).or(own.queue_time),
                priority: manifest.priority,
                share_prefixes: manifest.grants.share_prefixes,
                cells_percent: asked.cells_percent.and_then(|n| u8::try_from(n.get()).ok()),
            },
            models: manifest.models.clone(),
            environment: manifest.configuration.clone().into_iter().collect(),
            // They are read later.
            linked: corral_runtime::LinkedComponents::default(),
        }
    }

    /// The plugin of a revision that is loaded already.
    pub(super) fn loaded(&self, name: &str, share: &Share) -> Option<Plugin> {
        let table = self.table();
        let parts = &table.by_name.get(name)?.parts;
        let part = parts
            .iter()
            .find(|part| part.share.revision == share.revision)?;
        part.plugin.as_ref().ok().cloned()
    }

    /// The routes of all these revisions, which have to be the same for all.
    pub(super) fn routes_of(kept: &Kept, traffic: &[Share]) -> Result<Vec<Prefix>, ChangeError> {
        let mut routes: Option<&Vec<Prefix>> = None;
        for share in traffic {
            let Some(revision) = kept.revisions.get(&share.revision) else {
                continue;
            };
            match routes {
                Some(first) if *first != revision.manifest.routes => {
                    return Err(ChangeError::OtherRoutes {
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

/// What is compiled is known by: the component's digest, or one of all the digests where it is linked.
fn together(component: Digest, links: &[Digest]) -> Digest {
    if links.is_empty() {
        return component;
    }
    let all = std::iter::once(&component).chain(links);
    Digest::of(all.map(Digest::hex).collect::<String>().as_bytes())
}

/// Components of the store, those of the deployment `name`: all of them together no larger than one may be.
fn read_all(store: &Store, name: &str, digests: &[Digest]) -> Result<Vec<Bytes>, ChangeError> {
    let limit = store.bounds().component_bytes;
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

/// The manifest's links with their components' bytes, which come in the order of [`Links::all`].
fn linked(
    links: &Links,
    mut read: impl Iterator<Item = Bytes>,
) -> corral_runtime::LinkedComponents {
    let templating = links.templating.as_ref();
    // Only where there is one is the first component its.
    let templating = templating.and_then(|link| Some((link, read.next()?)));
    corral_runtime::LinkedComponents {
        templating: templating.map(|(link, bytes)| corral_runtime::LinkedComponent {
            component: bytes.into(),
            inherit: link.inherit,
        }),
        sampling: links
            .sampling
            .keys()
            .cloned()
            .zip(read.map(Into::into))
            .collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::deployments::Bounds;
    use crate::deployments::fixture::{Fixture, manifest};
    use std::sync::mpsc;

    #[test]
    fn a_sum_that_is_too_large_is_called_a_sum() {
        let folder = tempfile::tempdir().expect("there is room");
        let bounds = Bounds {
            component_bytes: 10,
            ..Bounds::default()
        };
        let store = Store::open(folder.path(), bounds).expect("opens");
        let digests = [b"1234567", b"abcdefg"].map(|bytes| {
            let digest = Digest::of(bytes);
            store.put(digest, bytes).expect("small");
            digest
        });
        assert_eq!(
            read_all(&store, "a", &digests[..1]).expect("small").len(),
            1
        );
        let error = read_all(&store, "a", &digests).expect_err("large");
        let expected = "the plugin a and its linked components together have more than the 10";
        assert!(error.to_string().contains(expected), "{error}");
    }

    #[test]
    fn what_ran_over_its_time_is_refused_at_once_until_it_is_through() {
        // One thread for all that blocks, so that nothing is compiled while the test has it.
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .max_blocking_threads(1)
            .build()
            .expect("starts");
        runtime.block_on(async {
            let mut fixture = Fixture::new();
            let component = fixture.upload(1);
            let alone =
                |fixture: &mut Fixture, limit| match Arc::get_mut(&mut fixture.deployments.0) {
                    Some(inner) => {
                        inner.compile_time = limit;
                        true
                    }
                    None => false,
                };
            assert!(alone(&mut fixture, Duration::ZERO));
            let (go, wait) = mpsc::channel::<()>();
            let blocked = tokio::task::spawn_blocking(move || wait.recv());
            let deploy = async |fixture: &Fixture| {
                let manifest = manifest("a", component);
                fixture.deployments.deploy(manifest, true).await
            };
            let error = deploy(&fixture).await.expect_err("it ran over");
            assert!(
                matches!(error, ChangeError::CompileTime { .. }),
                "{error:?}"
            );
            // It has its place still; the second time it asks for none.
            let places = || fixture.deployments.0.compiling.available_permits();
            assert_eq!(places(), 1);
            let error = deploy(&fixture).await.expect_err("it was tried just now");
            assert!(
                matches!(error, ChangeError::CompiledTooLong { .. }),
                "{error:?}"
            );
            assert_eq!((places(), fixture.compiled()), (1, 0.0));
            drop(go);
            blocked.await.expect("no crash").expect_err("nothing came");
            while !alone(&mut fixture, COMPILE_TIME) {
                tokio::task::yield_now().await;
            }
            assert_eq!(fixture.compiled(), 1.0, "nothing could stop it");
            assert_eq!(deploy(&fixture).await.expect("at once").number, 1);
        });
    }
}
