//! The status that a host reports to the cluster, and the host's identity.

use super::connection::MAX_MESSAGE_BYTES;
use crate::deployments::revision::TrafficShare;
use crate::deployments::store::StoreError;
use crate::deployments::store::private_files::{file_options, sync_directory};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::path::Path;
use std::time::Duration;

/// How long a status counts: a host that ended without leaving the cluster is listed until then.
pub(super) const STATUS_LIFETIME: Duration = Duration::from_secs(20);
/// How often a host reports its status.
pub(super) const REPORT_INTERVAL: Duration = Duration::from_secs(5);
/// Hosts that are listed.
pub(super) const MAX_HOSTS: usize = 256;
/// Longest error in a status.
pub(super) const MAX_ERROR_CHARS: usize = 400;
/// The same if the status would not fit into a message.
const SHORT_ERROR_CHARS: usize = 100;
/// File of the identity in the store's directory.
const FILE: &str = "cluster-host";
const ID_DIGITS: usize = 16;
/// Where Linux tells its name.
const NAME_FILE: &str = "/proc/sys/kernel/hostname";
const MAX_NAME_CHARS: usize = 128;

/// What a host serves, and what is wrong there.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct HostStatus {
    /// Id of the host, which its store keeps.
    pub id: String,
    /// Name of the machine.
    pub name: String,
    /// HOST:PORT of the public listener.
    pub address: String,
    /// Version of Corral.
    pub version: String,
    /// The deployments of the cluster, by name.
    pub deployments: BTreeMap<String, HostDeployment>,
}

/// A deployment on one host.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct HostDeployment {
    /// Version of the record that the host serves; 0 if none.
    pub version: u64,
    /// Revisions that receive requests.
    pub traffic: Vec<TrafficShare>,
    /// Whether requests are refused.
    pub paused: bool,
    /// Version of the newest record, if the host could not apply it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failed_version: Option<u64>,
    /// What is wrong.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

impl HostStatus {
    /// Its form in the cluster: JSON. If it does not fit into a message, its errors are shortened.
    pub(super) fn encode(&self) -> serde_json::Result<Vec<u8>> {
        let whole = serde_json::to_vec(self)?;
        if whole.len() <= MAX_MESSAGE_BYTES {
            return Ok(whole);
        }
        let mut short = self.clone();
        for deployment in short.deployments.values_mut() {
            let error = deployment.error.take();
            deployment.error = error.map(|error| error.chars().take(SHORT_ERROR_CHARS).collect());
        }
        serde_json::to_vec(&short)
    }
}

/// Who this host is.
#[derive(Clone, Debug)]
pub(super) struct HostIdentity {
    pub(super) id: String,
    pub(super) name: String,
    pub(super) address: String,
}

impl HostIdentity {
    /// The identity of the host with this store, which gets one if it has none.
    pub(super) fn read_or_create(store: &Path, address: String) -> Result<Self, StoreError> {
        let id = read_or_create_id(store);
        let name = std::fs::read_to_string(NAME_FILE).unwrap_or_default();
        Ok(HostIdentity {
            id: id.map_err(|cause| StoreError::Directory {
                directory: store.to_owned(),
                cause,
            })?,
            name: name.trim().chars().take(MAX_NAME_CHARS).collect(),
            address,
        })
    }
}

fn read_or_create_id(store: &Path) -> io::Result<String> {
    let path = store.join(FILE);
    match std::fs::File::open(&path) {
        Ok(file) => {
            let mut text = String::new();
            file.take(1 << 10).read_to_string(&mut text)?;
            let id = text.trim();
            if id.len() == ID_DIGITS && id.bytes().all(|byte| byte.is_ascii_hexdigit()) {
                return Ok(id.to_owned());
            }
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    let id = format!("{:016x}", rand::random::<u64>());
    // A rename leaves a whole id or none after a crash.
    let new = path.with_extension("new");
    let mut file = file_options().truncate(true).open(&new)?;
    file.write_all(id.as_bytes())?;
    file.sync_all()?;
    std::fs::rename(&new, &path)?;
    sync_directory(store)?;
    Ok(id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn status_with_many_errors_fits_into_message() {
        let deployment = HostDeployment {
            error: Some("\u{1}".repeat(MAX_ERROR_CHARS)),
            ..HostDeployment::default()
        };
        // Those that are served, and those that cannot be applied.
        let deployments = (0..512).map(|number| (format!("{number:064}"), deployment.clone()));
        let status = HostStatus {
            id: String::new(),
            name: String::new(),
            address: String::new(),
            version: String::new(),
            deployments: deployments.collect(),
        };
        let bytes = status.encode().expect("JSON");
        assert!(bytes.len() <= MAX_MESSAGE_BYTES, "{}", bytes.len());
    }

    #[test]
    fn host_keeps_its_id() {
        let dir = tempfile::tempdir().expect("there is room");
        let identity = || {
            let identity = HostIdentity::read_or_create(dir.path(), "a:1".to_owned());
            identity.expect("readable").id
        };
        let id = identity();
        assert_eq!(identity(), id);
        std::fs::write(dir.path().join(FILE), "damaged").expect("ours");
        assert_ne!(identity(), "damaged");
    }
}
