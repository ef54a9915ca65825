//! Removes components from the cluster's store that no record references any more.
//!
//! A deploy uploads its components before it changes the record. So a component stays for an hour after its upload, and an
//! upload of one that is older than half an hour stores it again, which starts the hour again.

use super::Cluster;
use super::jetstream::{JetStreamStore, MAX_NAMES};
use crate::deployments::deployment_store::DeploymentStore;
use crate::deployments::store::StoreError;
use std::collections::BTreeSet;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

/// How long a component stays at least.
pub(super) const MIN_AGE: Duration = Duration::from_secs(3600);
/// Shortest time between two removals by this host.
const INTERVAL: Duration = Duration::from_secs(3600);

impl Cluster {
    /// Removes unused components in the background, after a change of this host, unless it did so lately.
    pub(in crate::deployments) fn clean_up(self: &Arc<Self>) {
        let now = Instant::now();
        {
            let mut last = self
                .cleaned_up
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            if last.is_some_and(|last| now.duration_since(last) < INTERVAL) {
                return;
            }
            *last = Some(now);
        }
        let cluster = Arc::clone(self);
        tokio::spawn(async move {
            match cluster.store.remove_unused(MIN_AGE).await {
                Ok(0) => {}
                Ok(count) => tracing::info!(count, "removed unused components of the cluster"),
                Err(error) => {
                    tracing::warn!("cannot remove unused components of the cluster: {error}");
                }
            }
        });
    }
}

impl JetStreamStore {
    /// Removes the components that no record references, and that were uploaded longer than `min_age` ago. Returns
    /// their number.
    pub async fn remove_unused(&self, min_age: Duration) -> Result<usize, StoreError> {
        // Before the records, so that a component of a later upload is not in the list.
        let candidates = self.components_before(min_age).await?;
        if candidates.is_empty() {
            return Ok(0);
        }
        let mut used = BTreeSet::new();
        let names = self.names().await?;
        if names.len() >= MAX_NAMES {
            // The others may use some of them.
            return Ok(0);
        }
        for name in names {
            let entry = self.entry(&name).await?;
            let deployments = entry.deployment.iter();
            let revisions = deployments.flat_map(|deployment| deployment.revisions.values());
            used.extend(revisions.flat_map(|revision| revision.components()));
        }
        let mut count = 0;
        for digest in candidates {
            if !used.contains(&digest) && self.remove_component(digest, min_age).await? {
                count += 1;
            }
        }
        Ok(count)
    }
}
