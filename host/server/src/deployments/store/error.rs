//! Errors of the store.

use crate::deployments::digest::Digest;
use crate::deployments::name::DeploymentName;
use crate::deployments::stored_deployment::Entry;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Why the store refused or failed an operation. The store is unchanged then.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// Another process uses the store.
    #[error("the store {path} is in use by another process; stop that process, or name another directory", path = .0.display())]
    Locked(PathBuf),
    /// The directory cannot be used.
    #[error("the store {path} cannot be used: {cause}; give a directory that this user can write to, on a disk with free space", path = directory.display())]
    Directory {
        /// The store's directory.
        directory: PathBuf,
        /// Error of the operating system.
        cause: io::Error,
    },
    /// There are components but no database that references them.
    #[error("the store {directory} contains {components} components, but its database {file} is missing; restore it, or move the directory 'components' away to start empty", directory = directory.display())]
    NoDatabase {
        /// The store's directory.
        directory: PathBuf,
        /// Name of the database's file.
        file: &'static str,
        /// Number of components.
        components: usize,
    },
    /// The database cannot be read or written.
    #[error("the store's database {path} fails: {cause}; check the disk and its free space, or move the whole directory away to start empty", path = path.display())]
    Database {
        /// The database's file.
        path: PathBuf,
        /// Error of the database.
        cause: String,
    },
    /// Another version of Corral wrote the database.
    #[error("the store {path} has format {found}, this version of Corral requires {known}; use the version that wrote it, or name another directory", path = path.display())]
    Format {
        /// The store's directory.
        path: PathBuf,
        /// Format of the database.
        found: u64,
        /// Format of this version.
        known: u64,
    },
    /// The bytes do not have the given digest.
    #[error(
        "the bytes have the digest {actual}, not {digest}; send the component with that digest"
    )]
    DigestMismatch {
        /// The given digest.
        digest: Digest,
        /// The digest of the bytes.
        actual: Digest,
    },
    /// A component is too large.
    #[error(
        "the component has {bytes} bytes, the limit is {limit}; strip its debug information (wasm-tools strip)"
    )]
    TooLarge {
        /// Its size.
        bytes: u64,
        /// The size limit.
        limit: u64,
    },
    /// All components together reach the size limit.
    #[error("the store is full: it has {used} of {limit} bytes; remove unused deployments")]
    Full {
        /// Bytes in use.
        used: u64,
        /// The size limit.
        limit: u64,
    },
    /// Too many components were uploaded and not deployed yet.
    #[error("{limit} components have been uploaded or queried and not deployed; deploy them, or try again in {} s", wait.as_secs() + 1)]
    TooManyUnreferenced {
        /// The limit of such components.
        limit: usize,
        /// When the next one may be dropped.
        wait: Duration,
    },
    /// The store has the maximum number of deployments.
    #[error("there are {limit} deployments already, which is the limit; remove an unused one")]
    TooManyDeployments {
        /// The limit.
        limit: usize,
    },
    /// A manifest names a component by something else than a digest.
    #[error("the manifest names the component '{}'; name an uploaded component by its digest, sha256:…", .0.escape_debug())]
    NotADigest(String),
    /// A component does not exist.
    #[error("there is no component {0}; upload it first")]
    NoComponent(Digest),
    /// A component's file cannot be read for now. It may be intact.
    #[error(
        "the file of component {digest} cannot be read: {cause}; check the disk, and the limit on open files (ulimit -n)"
    )]
    Unreadable {
        /// The component.
        digest: Digest,
        /// Error of the operating system.
        cause: io::Error,
    },
    /// A component's file is damaged or missing.
    #[error("the file of component {0} is damaged or missing; upload it again")]
    Damaged(Digest),
    /// A deployment does not exist.
    #[error("there is no deployment '{0}'; list deployments with 'corral list'")]
    NoDeployment(DeploymentName),
    /// A revision does not exist.
    #[error("'{name}' has no revision {revision}; it has {}", list(existing))]
    NoRevision {
        /// The deployment.
        name: DeploymentName,
        /// The requested revision.
        revision: u64,
        /// The existing revisions.
        existing: Vec<u64>,
    },
    /// Another change of the deployment came first.
    #[error(
        "another change of '{name}' came first: it {now}; look at it with 'corral show {name}', and try again"
    )]
    Conflict {
        /// The deployment.
        name: DeploymentName,
        /// What it is now.
        now: String,
    },
    /// The cluster's store cannot be reached, or fails.
    #[error(
        "this host cannot use the cluster's store, {servers}: {cause}; it serves what it has, and takes no changes; check NATS, or try again on another host"
    )]
    Unreachable {
        /// Addresses of NATS, without passwords.
        servers: String,
        /// What failed.
        cause: String,
    },
    /// The cluster's store did not confirm a change in time.
    #[error(
        "NATS did not confirm the change of '{0}' in time, so it may have been made or not; look with 'corral show {0}' before you try again"
    )]
    Unconfirmed(DeploymentName),
    /// A record of the cluster's store cannot be used.
    #[error("the cluster's record of '{name}' cannot be used: {problem}")]
    Record {
        /// The deployment.
        name: DeploymentName,
        /// What is wrong, and what to do.
        problem: String,
    },
    /// A component of the cluster's store cannot be used.
    #[error(
        "the component {digest} in the cluster's store {problem}; deploy it again from its file, which repairs it"
    )]
    ClusterComponent {
        /// The component.
        digest: Digest,
        /// What is wrong.
        problem: String,
    },
    /// The server is stopping.
    #[error("the server is stopping; try again on another one")]
    Stopped,
    /// The distribution of requests is invalid.
    #[error("the split of requests is invalid: {0}")]
    InvalidTraffic(String),
}

impl StoreError {
    pub(super) fn directory(directory: &Path, cause: io::Error) -> Self {
        StoreError::Directory {
            directory: directory.to_owned(),
            cause,
        }
    }

    /// The error of a change that another one overtook.
    pub(crate) fn conflict(name: &DeploymentName, now: &Entry) -> Self {
        let now = match &now.deployment {
            Some(deployment) => {
                let record = &deployment.record;
                let shares = record.traffic.iter();
                let shares = shares.map(|share| format!("{}={}", share.revision, share.weight));
                let paused = if record.paused { ", paused" } else { "" };
                format!(
                    "is now at revision {}, traffic {}{paused}",
                    record.latest_revision,
                    Vec::from_iter(shares).join(" ")
                )
            }
            None => "does not exist now".to_owned(),
        };
        StoreError::Conflict {
            name: name.clone(),
            now,
        }
    }
}

fn list(numbers: &[u64]) -> String {
    let numbers: Vec<_> = numbers.iter().map(u64::to_string).collect();
    numbers.join(", ")
}
