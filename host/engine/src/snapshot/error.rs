//! Errors of snapshots. Each text says how to fix the problem.

use std::io;
use std::path::{Path, PathBuf};

/// Why a snapshot was not written, read or removed.
#[derive(Debug, thiserror::Error)]
pub enum SnapshotError {
    /// The name of a snapshot or owner is invalid.
    #[error(
        "{name:?} is not allowed as the name of a {of}: {why}; give 1 to 128 of A-Z, a-z, 0-9, '.', '_' and '-', not starting with '.'"
    )]
    Name {
        /// `snapshot` or `snapshot owner`.
        of: &'static str,
        /// The name, truncated if too long.
        name: String,
        /// The broken rule.
        why: &'static str,
    },
    /// The snapshot does not exist.
    #[error("there is no snapshot {name:?}; save one under this name first, or give another")]
    Missing {
        /// The name.
        name: String,
    },
    /// The file is not a snapshot.
    #[error(
        "the file is not a snapshot: it does not begin as one does; remove it or give another name"
    )]
    NotSnapshot,
    /// The file is a snapshot in another format.
    #[error(
        "the snapshot has format {found} and this version of Corral reads format {expected}; save it again with this version"
    )]
    Version {
        /// Format of the file.
        found: u32,
        /// Supported format.
        expected: u32,
    },
    /// Another model produced the snapshot.
    #[error(
        "the snapshot was made with the model whose file has the SHA-256 {}..., and this model's is {}...; load that model, or save it again with this one",
        hex(found),
        hex(expected)
    )]
    Model {
        /// Digest of the snapshot's model.
        found: [u8; 32],
        /// Digest of the loaded model.
        expected: [u8; 32],
    },
    /// Other cache settings or another llama.cpp version produced the snapshot.
    #[error(
        "the snapshot was made with other cache settings or another version of llama.cpp ({found:016x}, here {expected:016x}); use the same, or save it again"
    )]
    Layout {
        /// Fingerprint in the file.
        found: u64,
        /// Fingerprint of this process.
        expected: u64,
    },
    /// The file is damaged.
    #[error("the snapshot is damaged: {what}; remove it and save it again")]
    Damaged {
        /// Description of the damage.
        what: String,
    },
    /// The snapshot exceeds the size limit.
    #[error(
        "the snapshot has {bytes} bytes and may have {limit}; shorten the sequence, or raise --snapshot-disk, of which a snapshot may take 1 GiB"
    )]
    TooLarge {
        /// Its size.
        bytes: u64,
        /// The limit.
        limit: u64,
    },
    /// The owner's byte limit is reached.
    #[error(
        "the snapshot needs {bytes} bytes, other snapshots use {used} of the {limit} bytes allowed; remove some or raise --snapshot-disk"
    )]
    OverBudget {
        /// Its size.
        bytes: u64,
        /// Bytes of the owner's other snapshots, including running writes.
        used: u64,
        /// The limit.
        limit: u64,
    },
    /// The owner's snapshot limit is reached.
    #[error("there are {limit} snapshots, which is the limit; remove one first")]
    TooMany {
        /// The limit.
        limit: usize,
    },
    /// The disk or its quota is full.
    #[error("there is no space on the disk for the snapshot; free some")]
    NoSpace,
    /// The snapshot does not fit free memory.
    #[error("there is no memory for a snapshot of {bytes} bytes; free some or try again")]
    NoMemory {
        /// Its size.
        bytes: u64,
    },
    /// Another `Snapshots` holds the lock of the directory.
    #[error(
        "the snapshots in {dir} are in use by another process; end it or give another directory with --snapshot-dir",
        dir = dir.display()
    )]
    InUse {
        /// The directory.
        dir: PathBuf,
    },
    /// A system call failed.
    #[error("cannot {what} {path}: {cause}", path = path.display())]
    Io {
        /// The attempted operation.
        what: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// The cause.
        cause: io::Error,
    },
}

/// First eight bytes of a digest, in hexadecimal.
fn hex(digest: &[u8; 32]) -> String {
    let head = digest.iter().take(8);
    head.map(|byte| format!("{byte:02x}")).collect()
}

impl SnapshotError {
    /// Converts an I/O error.
    pub(super) fn io(what: &'static str, path: &Path, cause: io::Error) -> Self {
        match cause.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Self::NoSpace,
            _ => Self::Io {
                what,
                path: path.to_owned(),
                cause,
            },
        }
    }

    pub(crate) fn damaged(what: impl Into<String>) -> Self {
        Self::Damaged { what: what.into() }
    }
}
