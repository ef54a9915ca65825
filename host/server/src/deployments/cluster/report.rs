//! Reports this host's status to the cluster.

use super::Cluster;
use super::host::{HostDeployment, HostStatus, MAX_ERROR_CHARS, REPORT_INTERVAL};
use crate::deployments::deployment_table::Inner;
use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::time::sleep;

/// Changes of the status within this time are reported together.
const REPORT_DELAY: Duration = Duration::from_millis(50);

/// Records in a status that could not be applied. The status must fit into a message of NATS.
const MAX_FAILURES: usize = 256;

/// Reports the status at intervals, and after each change of it, until the deployments end.
pub(super) async fn report(inner: Weak<Inner>, cluster: Arc<Cluster>) {
    loop {
        {
            let Some(inner) = inner.upgrade() else {
                return;
            };
            let has_left = cluster.has_left.load(Ordering::Acquire);
            if !has_left && cluster.store.is_connected() {
                // Without it, the next one follows soon.
                if let Err(error) = cluster.store.put_host(&cluster.host_status(&inner)).await {
                    tracing::debug!("cannot report the status of this host: {error}");
                }
            }
        }
        tokio::select! {
            () = sleep(REPORT_INTERVAL) => {}
            () = cluster.status_changed.notified() => sleep(REPORT_DELAY).await,
        }
    }
}

impl Cluster {
    /// What this host serves of the cluster's deployments, and what is wrong.
    pub(super) fn host_status(&self, inner: &Inner) -> HostStatus {
        let records = inner.store.as_ref().map(|store| store.records());
        let table = inner.table();
        let progress = self.progress();
        let mut deployments = BTreeMap::new();
        for (name, record) in records.unwrap_or_default() {
            let serving = table.by_name.get(name.as_str());
            let error = serving.map(|serving| serving.load_errors());
            let error = error.filter(|error| !error.is_empty());
            let status = HostDeployment {
                version: progress.applied_version(&name),
                traffic: record.traffic,
                paused: record.paused,
                failed_version: None,
                error: error.map(|error| error.chars().take(MAX_ERROR_CHARS).collect()),
            };
            deployments.insert(name.to_string(), status);
        }
        for (name, version, error) in progress.failures().take(MAX_FAILURES) {
            let status = deployments.entry(name.to_string());
            let status = status.or_insert_with(HostDeployment::default);
            status.failed_version = Some(version);
            status.error = Some(error.to_owned());
        }
        HostStatus {
            id: self.host.id.clone(),
            name: self.host.name.clone(),
            address: self.host.address.clone(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            deployments,
        }
    }
}
