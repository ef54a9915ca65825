//! Persistent storage of deployments: revisions in an embedded database, components in files named by
//! digest.
//!
//! Invariants that hold at every moment, even if the process is killed:
//!
//! - A component's file is complete: it is written under another name, synced, renamed, and its directory
//!   synced. It exists before the first revision that references it.
//! - A revision and the deployment's new state are stored together, in one transaction. An acknowledged
//!   change survives a restart.
//! - A file is removed after the last revision that references it, but never while a change
//!   [holds](Store::hold) it or within [`StoreLimits::grace_period`] after a client learned that it
//!   exists. Opening the store removes partial and unreferenced files.
//! - One process uses the store; a lock file enforces that.
//!
//! `tests/tests/deploy_crash_safety.rs` verifies this by killing a server at hundreds of moments. Across power loss and
//! system crashes it relies on the guarantees of the disk, the file system and redb, and is untested.
//!
//! [`StoreLimits`] bounds the size. Changes block on the disk, and [`Store::put`] and [`Store::read`] for as
//! long as a component takes, so async tasks must not call them directly. Lookups wait for one commit at
//! most.

mod component_files;
mod database;
mod error;
mod private_files;
#[cfg(test)]
mod tests;

pub use error::StoreError;

use super::artifact::ArtifactReference;
use super::digest::Digest;
use super::manifest::Manifest;
use super::name::DeploymentName;
use super::revision::{DeploymentRecord, MAX_WEIGHT, Revision, TrafficShare};
use component_files::ComponentFiles;
use database::Database;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Limits of a store.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct StoreLimits {
    /// Bytes of one component. Default 64 MiB, like that of the runtime.
    pub max_component_bytes: u64,
    /// Bytes of all components. Default 4 GiB.
    pub max_total_bytes: u64,
    /// Deployments. Default 256.
    pub max_deployments: usize,
    /// Revisions per deployment, beside those in use; the oldest are dropped. Default 20.
    pub max_revisions: usize,
    /// Components that no revision references; the oldest are dropped. Default 32: a deploy with the
    /// maximum of linked components uploads 26.
    pub max_unreferenced: usize,
    /// How long an unreferenced component stays after a client learned that it exists: the time between
    /// its upload and its deploy. Default 60 s.
    pub grace_period: Duration,
}

impl Default for StoreLimits {
    fn default() -> Self {
        StoreLimits {
            max_component_bytes: 64 << 20,
            max_total_bytes: 4 << 30,
            max_deployments: 256,
            max_revisions: 20,
            max_unreferenced: 32,
            grace_period: Duration::from_secs(60),
        }
    }
}

/// Removed deployments whose revision numbers are remembered; the oldest are forgotten.
const MAX_REMOVED: usize = 4096;

/// A deployment in the store.
#[derive(Clone, Debug, PartialEq)]
pub struct StoredDeployment {
    /// Its mutable state.
    pub record: DeploymentRecord,
    /// Its revisions, by number.
    pub revisions: BTreeMap<u64, Revision>,
}

/// What the store remembers of a removed deployment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Removed {
    /// Number of its latest revision.
    latest_revision: u64,
    /// When it was removed, in milliseconds since 1970.
    removed_ms: u64,
}

/// An open store.
#[derive(Debug)]
pub struct Store {
    directory: PathBuf,
    limits: StoreLimits,
    inner: Mutex<Inner>,
    /// Held while a component is written, which takes too long to hold `inner`.
    upload_lock: Mutex<()>,
    /// Locked while the store is open.
    _lock_file: File,
}

#[derive(Debug)]
struct Inner {
    database: Database,
    components: ComponentFiles,
    /// Content of the database.
    deployments: BTreeMap<DeploymentName, StoredDeployment>,
    removed: BTreeMap<DeploymentName, Removed>,
}

impl Store {
    /// Opens the store in `directory`, creating it if needed, and removes what a killed process left
    /// behind.
    pub fn open(directory: &Path, limits: StoreLimits) -> Result<Self, StoreError> {
        let failed = |cause| StoreError::directory(directory, cause);
        private_files::create_directory(directory).map_err(failed)?;
        let lock_file = private_files::file_options()
            .truncate(false)
            .open(directory.join("lock"))
            .map_err(failed)?;
        match lock_file.try_lock() {
            Ok(()) => {}
            Err(std::fs::TryLockError::WouldBlock) => {
                return Err(StoreError::Locked(directory.to_owned()));
            }
            Err(std::fs::TryLockError::Error(cause)) => return Err(failed(cause)),
        }
        let (database, content) = Database::open(directory)?;
        let referenced = referenced(&content.deployments);
        let components = ComponentFiles::open(directory, &referenced).map_err(failed)?;
        Ok(Store {
            directory: directory.to_owned(),
            limits,
            inner: Mutex::new(Inner {
                database,
                components,
                deployments: content.deployments,
                removed: content.removed,
            }),
            upload_lock: Mutex::new(()),
            _lock_file: lock_file,
        })
    }

    /// The directory of the store.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// The limits of the store.
    pub fn limits(&self) -> StoreLimits {
        self.limits
    }

    /// All deployments.
    pub fn list(&self) -> BTreeMap<DeploymentName, StoredDeployment> {
        self.lock().deployments.clone()
    }

    /// The deployment of this name.
    pub fn get(&self, name: &DeploymentName) -> Result<StoredDeployment, StoreError> {
        let inner = self.lock();
        let deployment = inner.deployments.get(name);
        deployment.cloned().ok_or_else(|| unknown(name))
    }

    /// The size of the component, if it exists. It then stays for [`StoreLimits::grace_period`].
    pub fn component(&self, digest: Digest) -> Option<u64> {
        let components = &mut self.lock().components;
        components.renew_grace(digest, Instant::now());
        components.bytes(digest)
    }

    /// Keeps an existing component from being removed while the hold exists.
    pub(crate) fn hold(&self, digest: Digest) -> Result<ComponentHold<'_>, StoreError> {
        let components = &mut self.lock().components;
        if components.bytes(digest).is_none() {
            return Err(StoreError::NoComponent(digest));
        }
        components.hold(digest);
        Ok(ComponentHold {
            store: self,
            digest,
        })
    }

    /// Stores a component, for at least [`StoreLimits::grace_period`]. Rewrites an existing one, which
    /// repairs damage. Returns whether it is new.
    pub fn put(&self, digest: Digest, bytes: &[u8]) -> Result<bool, StoreError> {
        let actual = Digest::of(bytes);
        if actual != digest {
            return Err(StoreError::DigestMismatch { digest, actual });
        }
        let size = bytes.len() as u64;
        if size > self.limits.max_component_bytes {
            return Err(StoreError::TooLarge {
                bytes: size,
                limit: self.limits.max_component_bytes,
            });
        }
        let _uploading = self
            .upload_lock
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let (file, is_new) = {
            let inner = &mut *self.lock();
            let is_new = inner.components.bytes(digest).is_none();
            if is_new {
                // The upload lock keeps the room free.
                inner
                    .components
                    .make_room(size, &self.limits, Instant::now())?;
            }
            // Protects an existing component while it is rewritten.
            inner.components.renew_grace(digest, Instant::now());
            (inner.components.file(digest), is_new)
        };
        file.write(bytes)
            .map_err(|cause| StoreError::directory(&self.directory, cause))?;
        let inner = &mut *self.lock();
        inner.components.add(digest, size);
        inner.components.renew_grace(digest, Instant::now());
        if referenced(&inner.deployments).contains(&digest) {
            inner.components.mark_referenced(digest);
        }
        Ok(is_new)
    }

    /// Reads a component and verifies its digest. A damaged or missing file no longer counts as stored; a
    /// file that cannot be read for now does.
    pub fn read(&self, digest: Digest) -> Result<Vec<u8>, StoreError> {
        // Reads without the lock: an existing file does not change.
        let file = {
            let inner = self.lock();
            if inner.components.bytes(digest).is_none() {
                return Err(StoreError::NoComponent(digest));
            }
            inner.components.file(digest)
        };
        match file.read() {
            Ok(bytes) if Digest::of(&bytes) == digest => return Ok(bytes),
            Err(cause) if cause.kind() != ErrorKind::NotFound => {
                return Err(StoreError::Unreadable { digest, cause });
            }
            Ok(_) | Err(_) => {}
        }
        self.lock().components.mark_missing(digest);
        Err(StoreError::Damaged(digest))
    }

    /// Adds a revision, whose components must be stored. With `activate`, or as the first of its
    /// deployment, it receives all requests. Returns once the revision is durable.
    pub fn add(&self, manifest: Manifest, activate: bool) -> Result<Revision, StoreError> {
        self.add_from(manifest, None, activate)
    }

    /// The same for a deployment from an artifact.
    pub fn add_from(
        &self,
        manifest: Manifest,
        source: Option<ArtifactReference>,
        activate: bool,
    ) -> Result<Revision, StoreError> {
        let parse = |component: &str| {
            let digest = component.parse::<Digest>();
            digest.map_err(|_| StoreError::NotADigest(component.to_owned()))
        };
        let digest = parse(&manifest.component)?;
        let mut linked = Vec::new();
        for (_, component) in manifest.linked.all() {
            linked.push(parse(&component.component)?);
        }
        let inner = &mut *self.lock();
        inner.reopen_database()?;
        let Some(bytes) = inner.components.bytes(digest) else {
            return Err(StoreError::NoComponent(digest));
        };
        let is_missing = |digest: &&Digest| inner.components.bytes(**digest).is_none();
        if let Some(missing) = linked.iter().find(is_missing) {
            return Err(StoreError::NoComponent(*missing));
        }
        let name = manifest.name.clone();
        let before = inner.deployments.get(&name);
        if before.is_none() && inner.deployments.len() >= self.limits.max_deployments {
            return Err(StoreError::TooManyDeployments {
                limit: self.limits.max_deployments,
            });
        }
        let number = match before {
            Some(deployment) => deployment.record.latest_revision,
            None => inner
                .removed
                .get(&name)
                .map_or(0, |removed| removed.latest_revision),
        } + 1;
        let revision = Revision {
            number,
            component: digest,
            component_bytes: bytes,
            created_ms: now_ms(),
            source,
            manifest,
        };
        let all = vec![TrafficShare::all(number)];
        let mut deployment = before.cloned().unwrap_or_else(|| StoredDeployment {
            record: DeploymentRecord {
                latest_revision: number,
                traffic: all.clone(),
                previous_traffic: Vec::new(),
                paused: false,
            },
            revisions: BTreeMap::new(),
        });
        deployment.record.latest_revision = number;
        if activate {
            deployment.record.set_traffic(all);
        }
        deployment.revisions.insert(number, revision.clone());
        let dropped = drop_old_revisions(&mut deployment, self.limits.max_revisions);
        inner
            .database
            .write(&name, &deployment.record, Some(&revision), &dropped)?;
        inner.removed.remove(&name);
        inner.deployments.insert(name, deployment);
        for digest in revision.components() {
            inner.components.mark_referenced(digest);
        }
        inner.sweep(self.limits.grace_period);
        Ok(revision)
    }

    /// Distributes a deployment's requests among its revisions.
    pub fn set_traffic(
        &self,
        name: &DeploymentName,
        traffic: Vec<TrafficShare>,
    ) -> Result<DeploymentRecord, StoreError> {
        self.update(name, |deployment| {
            check_traffic(name, deployment, &traffic)?;
            deployment.record.set_traffic(traffic);
            Ok(())
        })
    }

    /// Pauses or resumes a deployment.
    pub fn set_paused(
        &self,
        name: &DeploymentName,
        paused: bool,
    ) -> Result<DeploymentRecord, StoreError> {
        self.update(name, |deployment| {
            deployment.record.paused = paused;
            Ok(())
        })
    }

    /// Removes a deployment with all its revisions, and the components that are no longer referenced. A
    /// later deployment of the same name continues the revision numbers, unless 4,096 others were removed
    /// in between.
    pub fn remove(&self, name: &DeploymentName) -> Result<(), StoreError> {
        let inner = &mut *self.lock();
        inner.reopen_database()?;
        let Some(deployment) = inner.deployments.get(name) else {
            return Err(unknown(name));
        };
        let numbers = Vec::from_iter(deployment.revisions.keys().copied());
        let removed = Removed {
            latest_revision: deployment.record.latest_revision,
            removed_ms: now_ms(),
        };
        let forgotten = oldest_removed(&inner.removed);
        inner
            .database
            .remove(name, &numbers, removed, forgotten.as_ref())?;
        if let Some(forgotten) = forgotten {
            inner.removed.remove(&forgotten);
        }
        inner.removed.insert(name.clone(), removed);
        inner.deployments.remove(name);
        inner.sweep(self.limits.grace_period);
        Ok(())
    }

    fn update(
        &self,
        name: &DeploymentName,
        change: impl FnOnce(&mut StoredDeployment) -> Result<(), StoreError>,
    ) -> Result<DeploymentRecord, StoreError> {
        let inner = &mut *self.lock();
        inner.reopen_database()?;
        let deployment = inner.deployments.get(name);
        let mut deployment = deployment.ok_or_else(|| unknown(name))?.clone();
        change(&mut deployment)?;
        let record = deployment.record.clone();
        inner.database.write(name, &record, None, &[])?;
        inner.deployments.insert(name.clone(), deployment);
        Ok(record)
    }

    /// Memory changes after the database, so a panic in between leaves both valid.
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Keeps a component from being removed.
#[derive(Debug)]
pub(crate) struct ComponentHold<'a> {
    store: &'a Store,
    digest: Digest,
}

impl Drop for ComponentHold<'_> {
    fn drop(&mut self) {
        self.store.lock().components.release(self.digest);
    }
}

impl Inner {
    /// Makes the database usable again after a failed write.
    fn reopen_database(&mut self) -> Result<(), StoreError> {
        if let Some(content) = self.database.reopen()? {
            self.deployments = content.deployments;
            self.removed = content.removed;
        }
        Ok(())
    }

    /// Removes components that are neither referenced nor within their grace period.
    fn sweep(&mut self, grace_period: Duration) {
        let referenced = referenced(&self.deployments);
        self.components
            .sweep(&referenced, grace_period, Instant::now());
    }
}

/// Checks that `traffic` names existing revisions, with valid weights.
pub(crate) fn check_traffic(
    name: &DeploymentName,
    deployment: &StoredDeployment,
    traffic: &[TrafficShare],
) -> Result<(), StoreError> {
    let invalid = |message: String| Err(StoreError::InvalidTraffic(message));
    if traffic.is_empty() {
        return invalid("no revision is given; name at least one".to_owned());
    }
    let mut seen = BTreeSet::new();
    for share in traffic {
        let revision = share.revision;
        if !deployment.revisions.contains_key(&revision) {
            return Err(StoreError::NoRevision {
                name: name.clone(),
                revision,
                existing: Vec::from_iter(deployment.revisions.keys().copied()),
            });
        }
        if !(1..=MAX_WEIGHT).contains(&share.weight) {
            return invalid(format!(
                "revision {revision} has the weight {}; give 1 to {MAX_WEIGHT}, or omit the revision",
                share.weight
            ));
        }
        if !seen.insert(revision) {
            return invalid(format!(
                "revision {revision} is given twice; name each once"
            ));
        }
    }
    Ok(())
}

fn unknown(name: &DeploymentName) -> StoreError {
    StoreError::NoDeployment(name.clone())
}

/// Drops the oldest revisions until `limit` are left, except the latest and those in current or previous
/// traffic. Returns the dropped numbers.
fn drop_old_revisions(deployment: &mut StoredDeployment, limit: usize) -> Vec<u64> {
    let record = &deployment.record;
    let shares = record.traffic.iter().chain(&record.previous_traffic);
    let needed: BTreeSet<_> = shares
        .map(|share| share.revision)
        .chain([record.latest_revision])
        .collect();
    let surplus = deployment.revisions.len().saturating_sub(limit);
    let dropped: Vec<_> = deployment
        .revisions
        .keys()
        .filter(|number| !needed.contains(number))
        .take(surplus)
        .copied()
        .collect();
    for number in &dropped {
        deployment.revisions.remove(number);
    }
    dropped
}

/// The deployment that was removed first, if there is no room for one more.
fn oldest_removed(removed: &BTreeMap<DeploymentName, Removed>) -> Option<DeploymentName> {
    if removed.len() < MAX_REMOVED {
        return None;
    }
    let oldest = removed
        .iter()
        .min_by_key(|(_, removed)| removed.removed_ms)?;
    Some(oldest.0.clone())
}

/// All components that revisions reference.
fn referenced(deployments: &BTreeMap<DeploymentName, StoredDeployment>) -> BTreeSet<Digest> {
    deployments
        .values()
        .flat_map(|deployment| deployment.revisions.values())
        .flat_map(Revision::components)
        .collect()
}

fn now_ms() -> u64 {
    // A clock before 1970 counts as 1970.
    #[expect(clippy::disallowed_methods, reason = "the date of a revision")]
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| u64::try_from(since.as_millis()).unwrap_or(0))
}
