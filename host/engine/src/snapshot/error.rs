//! What can go wrong with a snapshot, in words for the person who can do something about it.

use std::io;
use std::path::{Path, PathBuf};

/// Why a snapshot was not written, read or removed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A name of a snapshot or tenant that is not allowed.
    #[error(
        "{name:?} is not allowed as the name of a {of}: {why}; give 1 to 128 of A-Z, a-z, 0-9, '.', '_' and '-', beginning with another than '.'"
    )]
    Name {
        /// What it was to name: a snapshot or a tenant.
        of: &'static str,
        /// The name, cut off where it is too long.
        name: String,
        /// The rule that it breaks.
        why: &'static str,
    },
    /// There is none.
    #[error("there is no snapshot {name:?}; save one under this name first, or give another")]
    Missing {
        /// The name.
        name: String,
    },
    /// The file is something else.
    #[error(
        "the file is not a snapshot: it does not begin as one does; remove it or give another name"
    )]
    NotSnapshot,
    /// The file is a snapshot in another format.
    #[error(
        "the snapshot has format {found} and this version of Corral reads format {expected}; save it again with this version"
    )]
    Version {
        /// What the file says.
        found: u32,
        /// What can be read.
        expected: u32,
    },
    /// It was made with another model.
    #[error(
        "the snapshot was made with the model whose file has the SHA-256 {}..., and this model's is {}...; load that model, or save it again with this one",
        hex(found),
        hex(expected)
    )]
    Model {
        /// Digest of the model it was made with.
        found: [u8; 32],
        /// Digest of the model that is loaded.
        expected: [u8; 32],
    },
    /// It was made with the model but not so that its state can be used.
    #[error(
        "the snapshot was made with other cache settings or another version of llama.cpp ({found:016x}, here {expected:016x}); use the same, or save it again"
    )]
    Layout {
        /// Fingerprint in the file.
        found: u64,
        /// Fingerprint of what runs.
        expected: u64,
    },
    /// The bytes are not those that were written.
    #[error("the snapshot is damaged: {what}; remove it and save it again")]
    Damaged {
        /// What is wrong.
        what: String,
    },
    /// It is larger than a snapshot may be.
    #[error(
        "the snapshot has {bytes} bytes and may have {limit}; shorten the sequence or raise the limit"
    )]
    TooLarge {
        /// Its size.
        bytes: u64,
        /// What is allowed.
        limit: u64,
    },
    /// The tenant's bytes are used up.
    #[error(
        "the snapshot needs {bytes} bytes, {used} are used by others and {limit} allowed; remove some or raise the limit"
    )]
    OverBudget {
        /// Its size.
        bytes: u64,
        /// Bytes of the tenant's other snapshots, with those being written.
        used: u64,
        /// What is allowed.
        limit: u64,
    },
    /// The tenant has as many as it may.
    #[error("there are {limit} snapshots already, as many as are allowed; remove one first")]
    TooMany {
        /// How many are allowed.
        limit: usize,
    },
    /// The disk is full, or the quota on it.
    #[error("there is no space on the disk for the snapshot; free some")]
    NoSpace,
    /// It is there, and larger than what memory is free.
    #[error("there is no memory for a snapshot of {bytes} bytes; free some or try again")]
    NoMemory {
        /// Its size.
        bytes: u64,
    },
    /// Another process, or another part of this one, has the folder.
    #[error(
        "the snapshots in {folder} are in use by another process; end it or give another folder",
        folder = folder.display()
    )]
    InUse {
        /// The folder.
        folder: PathBuf,
    },
    /// The operating system refused something.
    #[error("cannot {what} {path}: {cause}", path = path.display())]
    Io {
        /// What was tried.
        what: &'static str,
        /// On which file or folder.
        path: PathBuf,
        /// What it said.
        cause: io::Error,
    },
}

/// Enough of a digest to tell two apart.
fn hex(digest: &[u8; 32]) -> String {
    let head = digest.iter().take(8);
    head.map(|byte| format!("{byte:02x}")).collect()
}

impl Error {
    /// What became of a call to the operating system.
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

    pub(super) fn damaged(what: impl Into<String>) -> Self {
        Self::Damaged { what: what.into() }
    }
}
