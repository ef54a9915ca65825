//! Why the store says no.

use crate::deployments::digest::Digest;
use crate::deployments::name::Name;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Why the store did not do what it was asked to. Nothing is changed then.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// Another process has it.
    #[error("the store {path} is in use by another process; stop that one, or name another folder", path = .0.display())]
    Locked(PathBuf),
    /// The operating system says no.
    #[error("the store {path} cannot be used: {cause}; give a folder that this user can write to, on a disk with room", path = folder.display())]
    Folder {
        /// The store's folder.
        folder: PathBuf,
        /// What the operating system said.
        cause: io::Error,
    },
    /// There are components and no database that says whose they are.
    #[error("the store {folder} holds {components} components, but its database {file} is gone; put it back, or, to begin anew, move the folder 'components' away as well", folder = folder.display())]
    NoDatabase {
        /// The store's folder.
        folder: PathBuf,
        /// The name of the database's file.
        file: &'static str,
        /// How many components there are.
        components: usize,
    },
    /// The database can't be read or written.
    #[error("the store's database {path} fails: {cause}; check the disk, or, to begin anew, move the whole folder away", path = path.display())]
    Database {
        /// The database's file.
        path: PathBuf,
        /// What the database said.
        cause: String,
    },
    /// A later version of Corral wrote it.
    #[error("the store {path} has format {found}, this version of Corral knows {known}; use the version that wrote it, or name another folder", path = path.display())]
    Format {
        /// The store's folder.
        path: PathBuf,
        /// The format that was found.
        found: u64,
        /// The format that is known.
        known: u64,
    },
    /// The bytes have another digest than was said.
    #[error("these bytes are {found}, not {digest}; send the component whose digest it is")]
    OtherDigest {
        /// What was said.
        digest: Digest,
        /// What was found.
        found: Digest,
    },
    /// A component is larger than is kept.
    #[error(
        "the component has {bytes} bytes, but at most {limit} are taken; strip its debug information (wasm-tools strip)"
    )]
    TooLarge {
        /// Its size.
        bytes: u64,
        /// The largest that is kept.
        limit: u64,
    },
    /// All components together are more than is kept.
    #[error(
        "the store is full: it has {used} of {limit} bytes; remove deployments that nobody needs"
    )]
    Full {
        /// Bytes that are there.
        used: u64,
        /// Bytes that may be there.
        limit: u64,
    },
    /// Many were uploaded just now and are not deployed yet.
    #[error("{limit} components that no revision names were uploaded or asked for just now; deploy them, or try again in {} s", wait.as_secs() + 1)]
    Crowded {
        /// How many of them are kept.
        limit: usize,
        /// When the first of them may go.
        wait: Duration,
    },
    /// There are as many deployments as there may be.
    #[error("there are {limit} deployments, the most that are kept; remove one that nobody needs")]
    TooMany {
        /// How many there may be.
        limit: usize,
    },
    /// A manifest names no digest.
    #[error("the manifest names the component '{}'; name a component that was uploaded by its digest, sha256:…", .0.escape_debug())]
    NoDigest(String),
    /// A component isn't there.
    #[error("there is no component {0}; upload it first")]
    NoComponent(Digest),
    /// A component's file can't be read now. It may be whole.
    #[error(
        "the file of component {digest} cannot be read: {cause}; check the disk, and the limit on open files (ulimit -n)"
    )]
    Unreadable {
        /// The component.
        digest: Digest,
        /// What the operating system said.
        cause: io::Error,
    },
    /// A component's file isn't what it was.
    #[error("the file of component {0} is damaged or gone; upload it again")]
    Damaged(Digest),
    /// There is no such deployment.
    #[error("there is no deployment '{0}'; see which there are with 'corral list'")]
    NoDeployment(Name),
    /// There is no such revision.
    #[error("'{name}' has no revision {revision}; it has {}", list(kept))]
    NoRevision {
        /// The deployment.
        name: Name,
        /// The number that was asked for.
        revision: u64,
        /// Those that there are.
        kept: Vec<u64>,
    },
    /// Requests can't be shared out so.
    #[error("the requests cannot be shared out so: {0}")]
    Traffic(String),
}

impl StoreError {
    pub(super) fn folder(folder: &Path, cause: io::Error) -> Self {
        StoreError::Folder {
            folder: folder.to_owned(),
            cause,
        }
    }
}

fn list(numbers: &[u64]) -> String {
    let numbers: Vec<_> = numbers.iter().map(u64::to_string).collect();
    numbers.join(", ")
}
