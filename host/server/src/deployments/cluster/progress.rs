//! How far this host is with each record of the cluster.

use super::Cluster;
use super::host::MAX_ERROR_CHARS;
use super::jetstream::MAX_NAMES;
use crate::deployments::entry::Entry;
use crate::deployments::name::DeploymentName;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{MutexGuard, PoisonError};

/// The records that arrived, and which of them this host has taken.
#[derive(Debug, Default)]
pub(super) struct Progress {
    deployments: BTreeMap<DeploymentName, DeploymentProgress>,
    /// When the bucket of the records was created.
    bucket: i128,
    /// Names of the first connection that were neither taken nor failed yet; `None` until they are known.
    first: Option<BTreeSet<DeploymentName>>,
}

#[derive(Debug, Default)]
struct DeploymentProgress {
    /// Version of the record that this host serves.
    taken: u64,
    /// A newer record.
    target: Option<Entry>,
    /// Version of a record that could not be taken, and why.
    failure: Option<(u64, String)>,
    /// Whether a task takes the target.
    is_busy: bool,
}

impl Cluster {
    pub(super) fn progress(&self) -> MutexGuard<'_, Progress> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Forgets all versions if the bucket is another one than before, such as after NATS has lost its data.
    pub(super) fn begin_bucket(&self, created: i128) {
        let mut progress = self.progress();
        if std::mem::replace(&mut progress.bucket, created) != created {
            for one in progress.deployments.values_mut() {
                *one = DeploymentProgress {
                    is_busy: one.is_busy,
                    ..DeploymentProgress::default()
                };
            }
        }
    }

    /// Remembers the names that the cluster had at the first connection.
    pub(super) fn expect_first(&self, names: impl IntoIterator<Item = DeploymentName>) {
        let mut progress = self.progress();
        if progress.first.is_none() {
            progress.first = Some(names.into_iter().collect());
            self.check_settled(&progress);
        }
    }

    /// Adds a record that arrived. Returns whether a task must be started to take it.
    pub(super) fn add_target(&self, name: &DeploymentName, entry: Entry) -> bool {
        let mut progress = self.progress();
        let count = progress.deployments.len();
        if count >= MAX_NAMES && !progress.deployments.contains_key(name) {
            return false;
        }
        let one = progress.deployments.entry(name.clone()).or_default();
        let known = one.target.as_ref().map_or(0, |target| target.version);
        if entry.version <= one.taken.max(known) {
            if one.target.is_none() {
                progress.settle(name);
                self.check_settled(&progress);
            }
            return false;
        }
        one.target = Some(entry);
        let is_new = !std::mem::replace(&mut one.is_busy, true);
        drop(progress);
        self.arrivals.send_modify(|arrivals| *arrivals += 1);
        is_new
    }

    /// Reserves a deployment for a change of this host, so that no task is started. False if one takes a record.
    pub(super) fn reserve(&self, name: &DeploymentName) -> bool {
        let mut progress = self.progress();
        let one = progress.deployments.entry(name.clone()).or_default();
        !std::mem::replace(&mut one.is_busy, true)
    }

    /// The record to take. `None` ends the task that takes it.
    pub(super) fn target(&self, name: &DeploymentName) -> Option<Entry> {
        let mut progress = self.progress();
        let one = progress.deployments.get_mut(name)?;
        one.is_busy = one.target.is_some();
        if let Some(target) = &one.target {
            return Some(target.clone());
        }
        if one.taken == 0 && one.failure.is_none() {
            // A change of a deployment that does not exist.
            progress.deployments.remove(name);
        }
        None
    }

    /// Records that this host serves a record.
    pub(super) fn set_taken(&self, name: &DeploymentName, version: u64) {
        let mut progress = self.progress();
        let one = progress.deployments.entry(name.clone()).or_default();
        one.taken = one.taken.max(version);
        one.target.take_if(|target| target.version <= version);
        one.failure.take_if(|(failed, _)| *failed <= version);
        progress.settle(name);
        self.check_settled(&progress);
        drop(progress);
        self.status_changed.notify_one();
    }

    /// Records why a record cannot be taken. Without `retry` it is given up.
    pub(super) fn set_failed(&self, name: &DeploymentName, version: u64, error: &str, retry: bool) {
        let mut progress = self.progress();
        let one = progress.deployments.entry(name.clone()).or_default();
        if one.taken < version {
            let error = error.chars().take(MAX_ERROR_CHARS).collect();
            one.failure = Some((version, error));
        }
        if !retry {
            one.target.take_if(|target| target.version <= version);
        }
        progress.settle(name);
        self.check_settled(&progress);
        drop(progress);
        self.status_changed.notify_one();
    }

    fn check_settled(&self, progress: &Progress) {
        if progress.first.as_ref().is_some_and(BTreeSet::is_empty) {
            self.is_settled.send_replace(true);
        }
    }
}

impl Progress {
    fn settle(&mut self, name: &DeploymentName) {
        if let Some(first) = &mut self.first {
            first.remove(name);
        }
    }

    /// Version of the record that this host serves.
    pub(super) fn taken(&self, name: &DeploymentName) -> u64 {
        self.deployments.get(name).map_or(0, |one| one.taken)
    }

    /// Version of the newest record that arrived.
    pub(super) fn known_version(&self, name: &DeploymentName) -> u64 {
        self.deployments.get(name).map_or(0, |one| {
            let target = one.target.as_ref().map_or(0, |target| target.version);
            let failed = one.failure.as_ref().map_or(0, |(version, _)| *version);
            one.taken.max(target).max(failed)
        })
    }

    /// The record that could not be taken, and why.
    pub(super) fn failures(&self) -> impl Iterator<Item = (&DeploymentName, u64, &str)> {
        self.deployments.iter().filter_map(|(name, one)| {
            let (version, error) = one.failure.as_ref()?;
            Some((name, *version, error.as_str()))
        })
    }

    /// Deployments whose newest record is not taken.
    pub(super) fn behind(&self) -> usize {
        let all = self.deployments.values();
        all.filter(|one| one.target.is_some() || one.failure.is_some())
            .count()
    }
}
