//! Where deployments outlive the process: revisions in an embedded database, components in files that
//! are named by their digests.
//!
//! What holds at every instant, also when the process is killed in the midst of anything:
//!
//! - A component's file is whole: it is written under another name, synced, renamed, and its folder
//!   synced. So it is there before the first revision that names it.
//! - A revision is there with its deployment's new state, or neither is: one transaction of the
//!   database. Whoever was told that a change was made finds it after any restart.
//! - A file goes after the last revision that names it, and never while a change [holds](Store::hold)
//!   it or for [`Bounds::grace`] after somebody was told that it is there. What a kill leaves over, half
//!   files and files that no revision names, is swept when the store is next opened.
//! - One process has the store: a lock file says so.
//!
//! That is shown by killing the process at hundreds of moments (`store_kill`). Where the power goes, or the
//! system crashes, it rests on what is promised by others: that the disk keeps what was synced, and that
//! the file system and redb come back with it. Nobody has tried that here.
//!
//! What it may grow to is bounded by [`Bounds`]. Changes wait for the disk, and [`Store::put`] and
//! [`Store::read`] for as long as a component takes: not for async threads. Looking things up waits for
//! the commit of a change at most.

mod components;
mod database;
mod error;
mod private;
#[cfg(test)]
mod tests;

pub use error::StoreError;

use super::digest::Digest;
use super::manifest::Manifest;
use super::name::Name;
use super::revision::{Record, Revision, Share, WEIGHT};
use components::Components;
use database::Database;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// What a store may grow to.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Bounds {
    /// Largest component, in bytes. 64 MiB, which is also what the runtime takes by default.
    pub component_bytes: u64,
    /// Bytes of all components together. 4 GiB.
    pub total_bytes: u64,
    /// Deployments. 256.
    pub deployments: usize,
    /// Revisions kept of each, those that get requests apart; the oldest go first. 20.
    pub revisions: usize,
    /// Components kept that no revision names; the oldest go first. 32: a deploy with all the links that it
    /// may have brings 18.
    pub loose: usize,
    /// How long a component that no revision names stays after somebody was told that it is there: from
    /// its upload to the deploy. 60 s.
    pub grace: Duration,
}

impl Default for Bounds {
    fn default() -> Self {
        Bounds {
            component_bytes: 64 << 20,
            total_bytes: 4 << 30,
            deployments: 256,
            revisions: 20,
            loose: 32,
            grace: Duration::from_secs(60),
        }
    }
}

/// Deployments that were removed and whose numbers are remembered; the oldest go first.
const MOST_REMOVED: usize = 4096;

/// A deployment as it is kept.
#[derive(Clone, Debug, PartialEq)]
pub struct Kept {
    /// What changes about it.
    pub record: Record,
    /// Its revisions by their numbers.
    pub revisions: BTreeMap<u64, Revision>,
}

/// An open store.
#[derive(Debug)]
pub struct Store {
    folder: PathBuf,
    bounds: Bounds,
    inner: Mutex<Inner>,
    /// Held while a component is written, which takes longer than anybody should wait for `inner`.
    writing: Mutex<()>,
    /// Locked as long as the store is open.
    _lock: File,
}

#[derive(Debug)]
struct Inner {
    database: Database,
    components: Components,
    /// What the database holds.
    kept: BTreeMap<Name, Kept>,
    /// Deployments that were removed: the number of the latest revision, and when.
    removed: BTreeMap<Name, (u64, u64)>,
}

impl Store {
    /// Opens the store in `folder`, which is made if it isn't there, and sweeps what a killed process
    /// left over.
    pub fn open(folder: &Path, bounds: Bounds) -> Result<Self, StoreError> {
        let at = |cause| StoreError::folder(folder, cause);
        private::make_folder(folder).map_err(at)?;
        let lock = private::file_options()
            .truncate(false)
            .open(folder.join("lock"))
            .map_err(at)?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(std::fs::TryLockError::WouldBlock) => {
                return Err(StoreError::Locked(folder.to_owned()));
            }
            Err(std::fs::TryLockError::Error(cause)) => return Err(at(cause)),
        }
        let (database, contents) = Database::open(folder)?;
        let used = named(&contents.kept);
        let components = Components::open(folder, &used).map_err(at)?;
        Ok(Store {
            folder: folder.to_owned(),
            bounds,
            inner: Mutex::new(Inner {
                database,
                components,
                kept: contents.kept,
                removed: contents.removed,
            }),
            writing: Mutex::new(()),
            _lock: lock,
        })
    }

    /// Where it is.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// What it may grow to.
    pub fn bounds(&self) -> Bounds {
        self.bounds
    }

    /// All deployments.
    pub fn list(&self) -> BTreeMap<Name, Kept> {
        self.lock().kept.clone()
    }

    /// The deployment of this name.
    pub fn get(&self, name: &Name) -> Result<Kept, StoreError> {
        let inner = self.lock();
        inner.kept.get(name).cloned().ok_or_else(|| unknown(name))
    }

    /// Size of the component, if it is there. Then it stays for [`Bounds::grace`].
    pub fn component(&self, digest: Digest) -> Option<u64> {
        let components = &mut self.lock().components;
        components.told(digest, Instant::now());
        components.bytes(digest)
    }

    /// Has the component stay, which has to be there, whatever happens to the revisions that name it.
    pub(crate) fn hold(&self, digest: Digest) -> Result<Hold<'_>, StoreError> {
        let components = &mut self.lock().components;
        if components.bytes(digest).is_none() {
            return Err(StoreError::NoComponent(digest));
        }
        components.hold(digest);
        Ok(Hold {
            store: self,
            digest,
        })
    }

    /// Keeps a component, for [`Bounds::grace`] at least; one that is there already is written anew,
    /// which mends a damaged one. Returns whether it was not there before.
    pub fn put(&self, digest: Digest, bytes: &[u8]) -> Result<bool, StoreError> {
        let found = Digest::of(bytes);
        if found != digest {
            return Err(StoreError::OtherDigest { digest, found });
        }
        let size = bytes.len() as u64;
        if size > self.bounds.component_bytes {
            return Err(StoreError::TooLarge {
                bytes: size,
                limit: self.bounds.component_bytes,
            });
        }
        let _writing = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
        let (file, new) = {
            let inner = &mut *self.lock();
            let new = inner.components.bytes(digest).is_none();
            if new {
                // Nobody else adds a component meanwhile.
                inner
                    .components
                    .make_room(size, &self.bounds, Instant::now())?;
            }
            // One that is there isn't swept while it is written anew.
            inner.components.told(digest, Instant::now());
            (inner.components.file(digest), new)
        };
        file.write(bytes)
            .map_err(|cause| StoreError::folder(&self.folder, cause))?;
        let inner = &mut *self.lock();
        inner.components.written(digest, size);
        inner.components.told(digest, Instant::now());
        if named(&inner.kept).contains(&digest) {
            inner.components.named(digest);
        }
        Ok(new)
    }

    /// A component's bytes, checked against its digest. A file that is damaged or gone is no longer taken
    /// to be there; one that only can't be read now is.
    pub fn read(&self, digest: Digest) -> Result<Vec<u8>, StoreError> {
        // Read without the lock: a file that is there doesn't change.
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
        self.lock().components.forget(digest);
        Err(StoreError::Damaged(digest))
    }

    /// Adds a revision, whose components have to be there, and with `activate` lets it have all requests.
    /// A deployment's first revision always gets them. Returns the revision once it is safe.
    pub fn add(&self, manifest: Manifest, activate: bool) -> Result<Revision, StoreError> {
        let digest: Digest = manifest
            .component
            .parse()
            .map_err(|_| StoreError::NoDigest(manifest.component.clone()))?;
        let mut linked = Vec::new();
        for (_, link) in manifest.links.all() {
            let digest: Result<Digest, _> = link.component.parse();
            linked.push(digest.map_err(|_| StoreError::NoDigest(link.component.clone()))?);
        }
        let inner = &mut *self.lock();
        let Some(bytes) = inner.components.bytes(digest) else {
            return Err(StoreError::NoComponent(digest));
        };
        let gone = |digest: &&Digest| inner.components.bytes(**digest).is_none();
        if let Some(gone) = linked.iter().find(gone) {
            return Err(StoreError::NoComponent(*gone));
        }
        let name = manifest.name.clone();
        let before = inner.kept.get(&name);
        if before.is_none() && inner.kept.len() >= self.bounds.deployments {
            return Err(StoreError::TooMany {
                limit: self.bounds.deployments,
            });
        }
        let number = match before {
            Some(kept) => kept.record.latest,
            None => inner.removed.get(&name).map_or(0, |(latest, _)| *latest),
        } + 1;
        let revision = Revision {
            number,
            component: digest,
            component_bytes: bytes,
            created_ms: now_ms(),
            manifest,
        };
        let all = vec![Share {
            revision: number,
            weight: 1,
        }];
        let mut kept = before.cloned().unwrap_or_else(|| Kept {
            record: Record {
                latest: number,
                traffic: all.clone(),
                before: Vec::new(),
                paused: false,
            },
            revisions: BTreeMap::new(),
        });
        kept.record.latest = number;
        if activate && kept.record.traffic != all {
            kept.record.before = std::mem::replace(&mut kept.record.traffic, all);
        }
        kept.revisions.insert(number, revision.clone());
        let dropped = retain(&mut kept, self.bounds.revisions);
        inner
            .database
            .write(&name, &kept.record, Some(&revision), &dropped)?;
        inner.removed.remove(&name);
        inner.kept.insert(name, kept);
        for digest in revision.components() {
            inner.components.named(digest);
        }
        inner.sweep(self.bounds.grace);
        Ok(revision)
    }

    /// Shares a deployment's requests out among some of its revisions.
    pub fn set_traffic(&self, name: &Name, traffic: Vec<Share>) -> Result<Record, StoreError> {
        self.change(name, |kept| {
            check_traffic(name, kept, &traffic)?;
            if kept.record.traffic != traffic {
                kept.record.before = std::mem::replace(&mut kept.record.traffic, traffic);
            }
            Ok(())
        })
    }

    /// Lets a deployment's requests be refused, or served again.
    pub fn set_paused(&self, name: &Name, paused: bool) -> Result<Record, StoreError> {
        self.change(name, |kept| {
            kept.record.paused = paused;
            Ok(())
        })
    }

    /// Removes a deployment with all its revisions, and the components that no other one names and
    /// nobody relies on. The
    /// numbers of its revisions are not given again when another one gets its name, unless 4,096 others
    /// were removed since.
    pub fn remove(&self, name: &Name) -> Result<(), StoreError> {
        let inner = &mut *self.lock();
        let Some(kept) = inner.kept.get(name) else {
            return Err(unknown(name));
        };
        let numbers = Vec::from_iter(kept.revisions.keys().copied());
        let latest = (kept.record.latest, now_ms());
        let forgotten = surplus(&inner.removed);
        inner
            .database
            .remove(name, &numbers, latest, forgotten.as_ref())?;
        if let Some(forgotten) = forgotten {
            inner.removed.remove(&forgotten);
        }
        inner.removed.insert(name.clone(), latest);
        inner.kept.remove(name);
        inner.sweep(self.bounds.grace);
        Ok(())
    }

    fn change(
        &self,
        name: &Name,
        change: impl FnOnce(&mut Kept) -> Result<(), StoreError>,
    ) -> Result<Record, StoreError> {
        let inner = &mut *self.lock();
        let mut kept = inner.kept.get(name).ok_or_else(|| unknown(name))?.clone();
        change(&mut kept)?;
        let record = kept.record.clone();
        inner.database.write(name, &record, None, &[])?;
        inner.kept.insert(name.clone(), kept);
        Ok(record)
    }

    /// Memory is changed after the database, so a panic in between leaves nothing wrong.
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Has a component stay as long as this is there.
#[derive(Debug)]
pub(crate) struct Hold<'a> {
    store: &'a Store,
    digest: Digest,
}

impl Drop for Hold<'_> {
    fn drop(&mut self) {
        self.store.lock().components.release(self.digest);
    }
}

impl Inner {
    /// Drops the files of components that no revision names any more, and nobody relies on.
    fn sweep(&mut self, grace: Duration) {
        self.components
            .sweep(&named(&self.kept), grace, Instant::now());
    }
}

/// Whether `traffic` can be had of the revisions that are kept.
pub(crate) fn check_traffic(name: &Name, kept: &Kept, traffic: &[Share]) -> Result<(), StoreError> {
    let refuse = |problem: String| Err(StoreError::Traffic(problem));
    if traffic.is_empty() {
        return refuse("no revision is named; name one at least".to_owned());
    }
    let mut seen = BTreeSet::new();
    for share in traffic {
        let revision = share.revision;
        if !kept.revisions.contains_key(&revision) {
            return Err(StoreError::NoRevision {
                name: name.clone(),
                revision,
                kept: Vec::from_iter(kept.revisions.keys().copied()),
            });
        }
        if !(1..=WEIGHT).contains(&share.weight) {
            return refuse(format!(
                "revision {revision} has the weight {}; give from 1 to {WEIGHT}, or leave the revision away",
                share.weight
            ));
        }
        if !seen.insert(revision) {
            return refuse(format!(
                "revision {revision} is named twice; name each once"
            ));
        }
    }
    Ok(())
}

fn unknown(name: &Name) -> StoreError {
    StoreError::NoDeployment(name.clone())
}

/// Drops the oldest revisions until `most` are left; never the latest, those that get requests, or those
/// to which a roll back leads. Returns the numbers of the dropped ones.
fn retain(kept: &mut Kept, most: usize) -> Vec<u64> {
    let record = &kept.record;
    let shares = record.traffic.iter().chain(&record.before);
    let needed: BTreeSet<_> = shares
        .map(|share| share.revision)
        .chain([record.latest])
        .collect();
    let surplus = kept.revisions.len().saturating_sub(most);
    let dropped: Vec<_> = kept
        .revisions
        .keys()
        .filter(|number| !needed.contains(number))
        .take(surplus)
        .copied()
        .collect();
    for number in &dropped {
        kept.revisions.remove(number);
    }
    dropped
}

/// The one that was removed first, if there is no room for one more.
fn surplus(removed: &BTreeMap<Name, (u64, u64)>) -> Option<Name> {
    if removed.len() < MOST_REMOVED {
        return None;
    }
    let oldest = removed.iter().min_by_key(|(_, (_, when))| *when)?;
    Some(oldest.0.clone())
}

/// The components that revisions name.
fn named(kept: &BTreeMap<Name, Kept>) -> BTreeSet<Digest> {
    kept.values()
        .flat_map(|kept| kept.revisions.values())
        .flat_map(Revision::components)
        .collect()
}

fn now_ms() -> u64 {
    // A clock before 1970 is wrong anyway.
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| u64::try_from(since.as_millis()).unwrap_or(0))
}
