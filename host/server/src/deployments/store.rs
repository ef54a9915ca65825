//! Persistent storage of deployments: revisions in an embedded database, components in files named by
//! digest.
//!
//! Invariants that hold at every moment, even if the process is killed:
//!
//! - A component's file is complete: it is written under another name, synced, renamed, and its directory
//!   synced. It exists before the first revision that references it, except in the copy of a cluster's store, where it
//!   exists before the revision serves.
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
pub(super) mod private_files;
#[cfg(test)]
mod tests;

pub use error::StoreError;

use super::artifact::ArtifactReference;
use super::digest::Digest;
use super::manifest::Manifest;
use super::name::DeploymentName;
use super::revision::{DeploymentRecord, Revision};
use super::stored_deployment::{Entry, NewRevision, StoredDeployment};
use crate::clock::now_ms;
use component_files::ComponentFiles;
use database::Database;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

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
    /// Changes of each deployment since the store was opened.
    changes: BTreeMap<DeploymentName, u64>,
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
                changes: BTreeMap::new(),
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

    /// The mutable state of all deployments, which is smaller than their revisions.
    pub(crate) fn records(&self) -> BTreeMap<DeploymentName, DeploymentRecord> {
        let inner = self.lock();
        let deployments = inner.deployments.iter();
        let records = deployments.map(|(name, stored)| (name.clone(), stored.record.clone()));
        records.collect()
    }

    /// Checks that the deployment of this name exists or may be added.
    pub(crate) fn check_room_for(&self, name: &DeploymentName) -> Result<(), StoreError> {
        self.lock().check_room_for(name, &self.limits)
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

    /// The names of all deployments, and of the removed ones that are remembered.
    pub fn all_names(&self) -> Vec<DeploymentName> {
        let inner = self.lock();
        let existing = inner.deployments.keys();
        existing.chain(inner.removed.keys()).cloned().collect()
    }

    /// What the store holds under a name.
    pub fn get_entry(&self, name: &DeploymentName) -> Entry {
        self.lock().entry(name)
    }

    /// A revision with this manifest, whose components must be stored.
    pub fn new_revision(
        &self,
        manifest: Manifest,
        source: Option<ArtifactReference>,
    ) -> Result<NewRevision, StoreError> {
        let parse = |component: &str| {
            let digest = component.parse::<Digest>();
            digest.map_err(|_| StoreError::NotADigest(component.to_owned()))
        };
        let component = parse(&manifest.component)?;
        let components = &self.lock().components;
        let bytes_of = |digest| {
            let bytes = components.bytes(digest);
            bytes.ok_or(StoreError::NoComponent(digest))
        };
        let component_bytes = bytes_of(component)?;
        for (_, linked) in manifest.linked.all() {
            bytes_of(parse(&linked.component)?)?;
        }
        Ok(NewRevision {
            component,
            component_bytes,
            source,
            manifest,
        })
    }

    /// Replaces what the store holds under a name, if its version is still `expected`. Returns the new version once
    /// the change is durable.
    pub fn swap_entry(
        &self,
        name: &DeploymentName,
        expected: u64,
        entry: &Entry,
    ) -> Result<u64, StoreError> {
        let inner = &mut *self.lock();
        inner.reopen_database()?;
        let now = inner.entry(name);
        match now.version == expected {
            true => inner.write(name, entry, &self.limits),
            false => Err(StoreError::conflict(name, &now)),
        }
    }

    /// Replaces what the store holds under a name with what another store holds.
    pub(crate) fn replace(&self, name: &DeploymentName, entry: &Entry) -> Result<(), StoreError> {
        let inner = &mut *self.lock();
        inner.reopen_database()?;
        inner.write(name, entry, &self.limits).map(drop)
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

    fn entry(&self, name: &DeploymentName) -> Entry {
        let deployment = self.deployments.get(name);
        let latest_revision = match deployment {
            Some(deployment) => deployment.record.latest_revision,
            None => self
                .removed
                .get(name)
                .map_or(0, |removed| removed.latest_revision),
        };
        // A name that was used before the store was opened has version 1.
        let changes = self.changes.get(name).copied().unwrap_or(0);
        Entry {
            version: changes + u64::from(latest_revision > 0 && changes == 0),
            latest_revision,
            first_revision: 0,
            deployment: deployment.cloned(),
        }
    }

    /// Writes an entry and returns its version. The database must be open.
    fn write(
        &mut self,
        name: &DeploymentName,
        entry: &Entry,
        limits: &StoreLimits,
    ) -> Result<u64, StoreError> {
        let version = self.entry(name).version + 1;
        match &entry.deployment {
            Some(deployment) => self.write_deployment(name, deployment, limits)?,
            None => self.write_removal(name, entry.latest_revision)?,
        }
        self.changes.insert(name.clone(), version);
        self.sweep(limits.grace_period);
        Ok(version)
    }

    fn check_room_for(
        &self,
        name: &DeploymentName,
        limits: &StoreLimits,
    ) -> Result<(), StoreError> {
        let limit = limits.max_deployments;
        match self.deployments.contains_key(name) || self.deployments.len() < limit {
            true => Ok(()),
            false => Err(StoreError::TooManyDeployments { limit }),
        }
    }

    fn write_deployment(
        &mut self,
        name: &DeploymentName,
        deployment: &StoredDeployment,
        limits: &StoreLimits,
    ) -> Result<(), StoreError> {
        self.check_room_for(name, limits)?;
        let before = self.deployments.get(name).map(|before| &before.revisions);
        let stored = |number: &u64| before.and_then(|before| before.get(number));
        let revisions = deployment.revisions.iter();
        let new = revisions.filter(|(number, revision)| stored(number) != Some(*revision));
        let new: Vec<_> = new.map(|(_, revision)| revision).collect();
        let old = before.into_iter().flat_map(BTreeMap::keys);
        let dropped = old.filter(|number| !deployment.revisions.contains_key(number));
        let dropped: Vec<_> = dropped.copied().collect();
        self.database
            .write(name, &deployment.record, &new, &dropped)?;
        for digest in new.iter().flat_map(|revision| revision.components()) {
            self.components.mark_referenced(digest);
        }
        self.removed.remove(name);
        self.deployments.insert(name.clone(), deployment.clone());
        Ok(())
    }

    /// Removes a deployment, if it exists, and remembers the number of its latest revision, unless 4,096 others are
    /// removed later.
    fn write_removal(
        &mut self,
        name: &DeploymentName,
        latest_revision: u64,
    ) -> Result<(), StoreError> {
        let deployment = self.deployments.get(name);
        let numbers = deployment.into_iter().flat_map(|one| one.revisions.keys());
        let numbers: Vec<_> = numbers.copied().collect();
        let removed = Removed {
            latest_revision,
            removed_ms: now_ms(),
        };
        let forgotten = oldest_removed(&self.removed);
        self.database
            .remove(name, &numbers, removed, forgotten.as_ref())?;
        if let Some(forgotten) = forgotten {
            self.removed.remove(&forgotten);
            self.changes.remove(&forgotten);
        }
        self.removed.insert(name.clone(), removed);
        self.deployments.remove(name);
        Ok(())
    }

    /// Removes components that are neither referenced nor within their grace period.
    fn sweep(&mut self, grace_period: Duration) {
        let referenced = referenced(&self.deployments);
        self.components
            .sweep(&referenced, grace_period, Instant::now());
    }
}

fn unknown(name: &DeploymentName) -> StoreError {
    StoreError::NoDeployment(name.clone())
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
