//! How far this host is with each record of the cluster.
//!
//! Versions can be compared within an epoch only. An epoch ends when the bucket of the records is made anew or restored from a
//! backup, so that its versions start over. A record of an earlier epoch is not applied any more.

use super::Cluster;
use super::host::MAX_ERROR_CHARS;
use super::jetstream::{BucketState, MAX_NAMES};
use crate::deployments::change_error::ChangeError;
use crate::deployments::name::DeploymentName;
use crate::deployments::stored_deployment::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{MutexGuard, PoisonError};

/// The records that arrived, and which of them this host has applied.
#[derive(Debug, Default)]
pub(super) struct Progress {
    deployments: BTreeMap<DeploymentName, DeploymentProgress>,
    /// When the bucket of the records was created.
    created: i128,
    epoch: Epoch,
    /// Whether the bucket was made anew, and the local deployments were not written into it yet.
    has_lost: bool,
    /// Names of the first connection that were neither applied nor failed yet; `None` until they are known.
    first: Option<BTreeSet<DeploymentName>>,
}

/// The number of the bucket whose versions count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::deployments) struct Epoch(u64);

#[derive(Debug, Default)]
struct DeploymentProgress {
    /// Version of the record that this host serves.
    applied: u64,
    /// Whether the applied record has no deployment.
    is_removed: bool,
    /// A newer record.
    target: Option<Entry>,
    /// Version of a record that could not be applied, and why.
    failure: Option<(u64, String)>,
    /// Whether a task applies the target.
    is_busy: bool,
}

impl Cluster {
    pub(super) fn progress(&self) -> MutexGuard<'_, Progress> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The epoch of the versions that arrive now.
    pub(in crate::deployments) fn epoch(&self) -> Epoch {
        self.progress().epoch
    }

    /// Begins a new epoch if the bucket is another one than before, or is older, and tries again what has failed.
    pub(super) fn begin_bucket(&self, bucket: BucketState) -> Epoch {
        let epoch = self.progress().begin_bucket(bucket);
        self.arrivals.send_modify(|arrivals| *arrivals += 1);
        epoch
    }

    /// Whether NATS has lost records that this host may have.
    pub(super) fn has_lost(&self) -> bool {
        self.progress().has_lost
    }

    /// Records that the cluster has what this host had.
    pub(super) fn set_restored(&self) {
        self.progress().has_lost = false;
    }

    /// Remembers the names that the cluster had at the first connection.
    pub(super) fn expect_first(&self, names: impl IntoIterator<Item = DeploymentName>) {
        let mut progress = self.progress();
        if progress.first.is_none() {
            progress.first = Some(names.into_iter().collect());
            self.first_applied.send_replace(Some(false));
        }
        self.check_first(&progress);
    }

    /// Adds a record that arrived. Returns whether a task must be started to apply it.
    pub(super) fn add_target(&self, name: &DeploymentName, entry: Entry) -> bool {
        let mut progress = self.progress();
        let added = progress.add_target(name, entry);
        self.check_first(&progress);
        drop(progress);
        if added != Added::Known {
            self.arrivals.send_modify(|arrivals| *arrivals += 1);
        }
        added == Added::Start
    }

    /// Reserves a deployment for a change of this host, so that no task is started. False if one applies a record.
    pub(super) fn reserve(&self, name: &DeploymentName) -> bool {
        let mut progress = self.progress();
        let one = progress.entry(name);
        one.is_some_and(|one| !std::mem::replace(&mut one.is_busy, true))
    }

    /// Records that this host serves a record.
    pub(super) fn set_applied(&self, name: &DeploymentName, entry: &Entry, epoch: Epoch) {
        let mut progress = self.progress();
        progress.set_applied(name, entry, epoch);
        self.check_first(&progress);
        drop(progress);
        self.status_changed.notify_one();
    }

    /// Records why a record cannot be applied. Without `retry` it is given up.
    pub(super) fn set_failed(
        &self,
        name: &DeploymentName,
        version: u64,
        epoch: Epoch,
        error: &str,
        retry: bool,
    ) {
        let mut progress = self.progress();
        progress.set_failed(name, version, epoch, error, retry);
        self.check_first(&progress);
        drop(progress);
        self.status_changed.notify_one();
    }

    fn check_first(&self, progress: &Progress) {
        if progress.first.as_ref().is_some_and(BTreeSet::is_empty) {
            self.first_applied.send_replace(Some(true));
        }
    }
}

/// What became of a record that arrived.
#[derive(Debug, PartialEq, Eq)]
enum Added {
    /// It is not newer than what is known, or there are too many.
    Known,
    /// A task that runs applies it.
    Waiting,
    /// A task must be started.
    Start,
}

impl Progress {
    fn begin_bucket(&mut self, bucket: BucketState) -> Epoch {
        let names = self.deployments.keys();
        let newest = names.map(|name| self.known_version(name)).max();
        let before = std::mem::replace(&mut self.created, bucket.created);
        let is_other = before != bucket.created;
        self.has_lost |= is_other && before != 0;
        if is_other || newest.is_some_and(|newest| newest > bucket.last_version) {
            self.epoch.0 += 1;
            self.deployments.retain(|_, one| {
                *one = DeploymentProgress {
                    is_busy: one.is_busy,
                    ..DeploymentProgress::default()
                };
                one.is_busy
            });
        }
        self.epoch
    }

    /// The progress of a deployment, which is added if it is new. Forgets removed deployments if there are too many, and
    /// returns `None` if there are too many others.
    fn entry(&mut self, name: &DeploymentName) -> Option<&mut DeploymentProgress> {
        let is_full = |all: &BTreeMap<_, _>| all.len() >= MAX_NAMES && !all.contains_key(name);
        if is_full(&self.deployments) {
            let is_needed = |one: &DeploymentProgress| {
                !one.is_removed || one.is_busy || one.target.is_some() || one.failure.is_some()
            };
            self.deployments.retain(|_, one| is_needed(one));
        }
        if is_full(&self.deployments) {
            tracing::error!(
                "'{name}' is ignored: the cluster has {MAX_NAMES} other deployments already"
            );
            return None;
        }
        Some(self.deployments.entry(name.clone()).or_default())
    }

    fn add_target(&mut self, name: &DeploymentName, entry: Entry) -> Added {
        let Some(one) = self.entry(name) else {
            self.settle(name);
            return Added::Known;
        };
        let known = one.target.as_ref().map_or(0, |target| target.version);
        if entry.version <= one.applied.max(known) {
            if one.target.is_none() {
                self.settle(name);
            }
            return Added::Known;
        }
        one.target = Some(entry);
        match std::mem::replace(&mut one.is_busy, true) {
            true => Added::Waiting,
            false => Added::Start,
        }
    }

    /// The record to apply, and its epoch. `None` ends the task that applies it.
    pub(super) fn target(&mut self, name: &DeploymentName) -> Option<(Entry, Epoch)> {
        let one = self.deployments.get_mut(name)?;
        one.is_busy = one.target.is_some();
        if let Some(target) = &one.target {
            return Some((target.clone(), self.epoch));
        }
        if one.applied == 0 && one.failure.is_none() {
            // A change of a deployment that does not exist.
            self.deployments.remove(name);
        }
        None
    }

    fn set_applied(&mut self, name: &DeploymentName, entry: &Entry, epoch: Epoch) {
        self.settle(name);
        let version = entry.version;
        if epoch != self.epoch {
            return;
        }
        if let Some(one) = self.entry(name)
            && one.applied <= version
        {
            one.applied = version;
            one.is_removed = entry.deployment.is_none();
            one.target.take_if(|target| target.version <= version);
            one.failure.take_if(|(failed, _)| *failed <= version);
        }
    }

    fn set_failed(
        &mut self,
        name: &DeploymentName,
        version: u64,
        epoch: Epoch,
        error: &str,
        retry: bool,
    ) {
        self.settle(name);
        if epoch != self.epoch {
            return;
        }
        if let Some(one) = self.entry(name) {
            if one.applied < version {
                let error = error.chars().take(MAX_ERROR_CHARS).collect();
                one.failure = Some((version, error));
            }
            if !retry {
                one.target.take_if(|target| target.version <= version);
            }
        }
    }

    fn settle(&mut self, name: &DeploymentName) {
        if let Some(first) = &mut self.first {
            first.remove(name);
        }
    }

    /// Whether this host serves this version of a record, or a later one.
    ///
    /// # Errors
    /// If the version is of an earlier epoch: the record may be gone.
    pub(super) fn is_applied(
        &self,
        name: &DeploymentName,
        version: u64,
        epoch: Epoch,
    ) -> Result<bool, ChangeError> {
        match epoch == self.epoch {
            true => Ok(self.applied_version(name) >= version),
            false => Err(ChangeError::Busy),
        }
    }

    /// Version of the record that this host serves.
    pub(super) fn applied_version(&self, name: &DeploymentName) -> u64 {
        self.deployments.get(name).map_or(0, |one| one.applied)
    }

    /// Version of the newest record that arrived.
    pub(super) fn known_version(&self, name: &DeploymentName) -> u64 {
        self.deployments.get(name).map_or(0, |one| {
            let target = one.target.as_ref().map_or(0, |target| target.version);
            let failed = one.failure.as_ref().map_or(0, |(version, _)| *version);
            one.applied.max(target).max(failed)
        })
    }

    /// The record that could not be applied, and why.
    pub(super) fn failures(&self) -> impl Iterator<Item = (&DeploymentName, u64, &str)> {
        self.deployments.iter().filter_map(|(name, one)| {
            let (version, error) = one.failure.as_ref()?;
            Some((name, *version, error.as_str()))
        })
    }

    /// Whether no record of this name is newer than the one that this host serves.
    pub(super) fn is_newest(&self, name: &str) -> bool {
        let mut all = self.deployments.iter();
        let one = all.find(|(known, _)| known.as_str() == name);
        one.is_none_or(|(_, one)| one.target.is_none() && one.failure.is_none())
    }

    /// Deployments whose newest record is not applied.
    pub(super) fn behind(&self) -> usize {
        let all = self.deployments.values();
        all.filter(|one| one.target.is_some() || one.failure.is_some())
            .count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::deployments::digest::Digest;
    use crate::deployments::stored_deployment::NewRevision;
    use crate::deployments::test_support::{manifest, name};

    fn bucket(created: i128, last_version: u64) -> BucketState {
        BucketState {
            created,
            last_version,
        }
    }

    /// A record of `a`.
    fn record(version: u64) -> Entry {
        let component = Digest::of(b"component");
        let mut entry = Entry {
            version,
            ..Entry::default()
        };
        let new = NewRevision {
            component,
            component_bytes: 9,
            source: None,
            manifest: manifest("a", component),
        };
        entry.deploy(new, true, 20);
        entry
    }

    fn removal(version: u64) -> Entry {
        Entry {
            version,
            ..Entry::default()
        }
    }

    fn target_version(progress: &mut Progress) -> Option<u64> {
        progress
            .target(&name("a"))
            .map(|(target, _)| target.version)
    }

    #[test]
    fn newest_record_is_applied_by_one_task() {
        let (a, mut progress) = (name("a"), Progress::default());
        let epoch = progress.begin_bucket(bucket(1, 9));
        assert_eq!(progress.add_target(&a, record(7)), Added::Start);
        assert_eq!(progress.add_target(&a, record(8)), Added::Waiting);
        assert_eq!(progress.add_target(&a, record(7)), Added::Known);
        assert_eq!(target_version(&mut progress), Some(8));
        progress.set_applied(&a, &record(7), epoch);
        assert_eq!((progress.applied_version(&a), progress.behind()), (7, 1));
        progress.set_applied(&a, &record(8), epoch);
        assert_eq!((progress.applied_version(&a), progress.behind()), (8, 0));
        assert!(progress.is_applied(&a, 8, epoch).expect("the same bucket"));
        assert_eq!(target_version(&mut progress), None, "the task ends");
        assert_eq!(progress.add_target(&a, record(8)), Added::Known);
        assert_eq!(progress.add_target(&a, record(9)), Added::Start);
    }

    #[test]
    fn failure_stays_until_newer_record() {
        let (a, mut progress) = (name("a"), Progress::default());
        let epoch = progress.begin_bucket(bucket(1, 9));
        progress.add_target(&a, record(7));
        progress.set_failed(&a, 7, epoch, "busy", true);
        assert_eq!(target_version(&mut progress), Some(7), "it is tried again");
        progress.set_failed(&a, 7, epoch, "invalid", false);
        assert_eq!(target_version(&mut progress), None, "it is given up");
        let failures = Vec::from_iter(progress.failures());
        assert_eq!(failures, [(&a, 7, "invalid")]);
        assert_eq!((progress.known_version(&a), progress.behind()), (7, 1));
        progress.add_target(&a, record(8));
        progress.set_applied(&a, &record(8), epoch);
        assert_eq!(progress.behind(), 0);
    }

    #[test]
    fn late_apply_of_lost_bucket_is_ignored() {
        let (a, mut progress) = (name("a"), Progress::default());
        let old = progress.begin_bucket(bucket(1, 50));
        progress.add_target(&a, record(50));
        // A task applies it, while NATS loses its data.
        assert!(!progress.has_lost);
        let new = progress.begin_bucket(bucket(2, 3));
        assert_ne!(old, new);
        assert!(progress.has_lost);
        assert_eq!(progress.add_target(&a, record(3)), Added::Waiting);
        let late = progress.is_applied(&a, 50, old);
        assert!(matches!(late, Err(ChangeError::Busy)), "{late:?}");
        progress.set_applied(&a, &record(50), old);
        progress.set_failed(&a, 50, old, "late", false);
        assert_eq!(
            (progress.applied_version(&a), progress.known_version(&a)),
            (0, 3)
        );
        assert_eq!(target_version(&mut progress), Some(3));
    }

    #[test]
    fn restored_bucket_begins_new_epoch() {
        let (a, mut progress) = (name("a"), Progress::default());
        let first = progress.begin_bucket(bucket(1, 50));
        progress.add_target(&a, record(50));
        progress.set_applied(&a, &record(50), first);
        assert_eq!(progress.begin_bucket(bucket(1, 60)), first);
        assert_eq!(progress.applied_version(&a), 50);
        // A backup has the same date of creation, and fewer records.
        assert_ne!(progress.begin_bucket(bucket(1, 40)), first);
        assert!(!progress.has_lost, "its records count");
        assert_eq!(progress.applied_version(&a), 0);
        assert_ne!(progress.add_target(&a, record(40)), Added::Known);
    }

    #[test]
    fn removed_deployments_make_room_for_others() {
        let mut progress = Progress::default();
        let epoch = progress.begin_bucket(bucket(1, 0));
        let a = name("a");
        progress.add_target(&a, record(1));
        progress.set_applied(&a, &record(1), epoch);
        for number in 1..MAX_NAMES {
            let name = name(&format!("n{number}"));
            assert_eq!(progress.add_target(&name, removal(2)), Added::Start);
            progress.set_applied(&name, &removal(2), epoch);
            assert!(progress.target(&name).is_none(), "its task ends");
        }
        assert_eq!(progress.deployments.len(), MAX_NAMES);
        assert_eq!(progress.add_target(&name("b"), record(3)), Added::Start);
        assert_eq!(progress.deployments.len(), 2, "the existing ones");
        assert_eq!(progress.applied_version(&a), 1);
    }
}
