//! Durable named copies of sequences, in files.
//!
//! Each owner, a deployment, has a directory with one file per snapshot. A write goes to a temporary file, syncs
//! it, renames it and syncs the directory. After a crash, a name refers to the complete old or new snapshot.
//! The next start removes temporary files.
//!
//! The limits of an owner hold for its named files at every moment, even with concurrent writes. A
//! replacement takes extra space until it is complete. A lock gives the directory to one [`Snapshots`]
//! at a time; threads may share it. Every function blocks on the disk.

mod error;
pub(crate) mod format;

pub use error::SnapshotError;

use crate::Token;
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::fs::{self, DirBuilder, File, TryLockError};
use std::io::{self, Read};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Maximum length of a snapshot or owner name.
const NAME_BYTES: usize = 128;
/// Name prefix of temporary files. Snapshot names never start with a dot.
pub(crate) const TEMPORARY: &str = ".writing-";

/// Model and settings that produced a state. Loading needs the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Origin {
    /// SHA-256 of the model file.
    pub model: [u8; 32],
    /// Fingerprint of cache types, context settings and llama.cpp version.
    pub layout: u64,
}

/// Contents of a snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SnapshotContent {
    /// Model and settings that produced it.
    pub origin: Origin,
    /// The tokens of the sequence.
    pub tokens: Vec<Token>,
    /// The images among the tokens, if there are any, then the KV state, if it exists: see `Sequence::snapshot`.
    pub state: Vec<u8>,
}

/// Limits on snapshot storage.
#[derive(Clone, Copy, Debug)]
pub struct SnapshotLimits {
    /// Maximum bytes of a snapshot file.
    pub snapshot_bytes: u64,
    /// Maximum bytes of all snapshot files of an owner.
    pub owner_bytes: u64,
    /// Maximum snapshots of an owner.
    pub owner_count: usize,
}

/// The snapshots in a directory.
#[derive(Debug)]
pub struct Snapshots {
    dir: PathBuf,
    limits: SnapshotLimits,
    writes: Mutex<Writes>,
    /// Holds the lock while open.
    _lock: File,
}

/// Running writes.
#[derive(Debug, Default)]
struct Writes {
    next: u64,
    pending: BTreeMap<u64, Pending>,
}

#[derive(Debug)]
struct Pending {
    owner: String,
    name: String,
    bytes: u64,
}

impl Snapshots {
    /// Locks a directory, creates it (mode 0700) if missing, and removes temporary files.
    ///
    /// Fails with [`SnapshotError::InUse`] if another process holds the lock.
    pub fn new(dir: impl Into<PathBuf>, limits: SnapshotLimits) -> Result<Self, SnapshotError> {
        let dir = dir.into();
        make_dir(&dir)?;
        let path = dir.join(".lock");
        let mut options = File::options();
        options.write(true).create(true).truncate(false).mode(0o600);
        let lock = options
            .open(&path)
            .map_err(|cause| SnapshotError::io("open", &path, cause))?;
        lock.try_lock().map_err(|error| match error {
            TryLockError::WouldBlock => SnapshotError::InUse { dir: dir.clone() },
            TryLockError::Error(cause) => SnapshotError::io("lock", &path, cause),
        })?;
        let snapshots = Self {
            dir,
            limits,
            writes: Mutex::default(),
            _lock: lock,
        };
        for owner in snapshots.owners()? {
            remove_temporaries(&owner)?;
        }
        Ok(snapshots)
    }

    /// Maximum bytes of a snapshot file.
    pub fn max_snapshot_bytes(&self) -> u64 {
        self.limits.snapshot_bytes
    }

    /// Writes or replaces a snapshot. After success, the snapshot survives a crash.
    ///
    /// Fails before anything is written with [`SnapshotError::Name`], [`SnapshotError::TooLarge`],
    /// [`SnapshotError::OverBudget`] or [`SnapshotError::TooMany`]. A failed write keeps the old snapshot, unless
    /// only the last sync failed.
    pub fn write(
        &self,
        owner: &str,
        name: &str,
        contents: &SnapshotContent,
    ) -> Result<(), SnapshotError> {
        let dir = self.owner(owner)?;
        check_name("snapshot", name)?;
        let limit = self.limits.snapshot_bytes;
        let (tokens, state) = (contents.tokens.len() as u64, contents.state.len() as u64);
        let bytes = format::length(tokens, state).unwrap_or(u64::MAX);
        if bytes > limit {
            return Err(SnapshotError::TooLarge { bytes, limit });
        }
        let reserved = self.reserve(owner, name, bytes)?;
        let temporary = Temporary::new(&dir, reserved.number)?;
        let written = |cause| SnapshotError::io("write", &temporary.path, cause);
        format::encode(&mut &temporary.file, contents).map_err(written)?;
        temporary.file.sync_all().map_err(written)?;
        temporary.take_name(&dir.join(name), reserved)?;
        sync(&dir)
    }

    /// Reads a snapshot and checks that its origin is `expected`.
    ///
    /// [`SnapshotError::Missing`] if there is none; [`SnapshotError::NotSnapshot`], [`SnapshotError::Version`],
    /// [`SnapshotError::Damaged`], [`SnapshotError::Model`] or [`SnapshotError::Layout`] if it is unusable;
    /// [`SnapshotError::TooLarge`] or [`SnapshotError::NoMemory`] if it does not fit.
    pub fn read(
        &self,
        owner: &str,
        name: &str,
        expected: &Origin,
    ) -> Result<SnapshotContent, SnapshotError> {
        let path = self.path(owner, name)?;
        let failed = |cause| missing_or("open", &path, name, cause);
        // Check before the open: opening a pipe blocks until it has a writer.
        if !fs::symlink_metadata(&path).map_err(failed)?.is_file() {
            return Err(SnapshotError::NotSnapshot);
        }
        let mut file = File::open(&path).map_err(failed)?;
        let bytes = file.metadata().map_err(failed)?.len();
        let limit = self.limits.snapshot_bytes;
        if bytes > limit {
            return Err(SnapshotError::TooLarge { bytes, limit });
        }
        format::decode(&mut file, bytes, expected)
    }

    /// Removes a snapshot. [`SnapshotError::Missing`] if there is none.
    pub fn remove(&self, owner: &str, name: &str) -> Result<(), SnapshotError> {
        let path = self.path(owner, name)?;
        fs::remove_file(&path).map_err(|cause| missing_or("remove", &path, name, cause))?;
        sync(&self.owner(owner)?)
    }

    fn owner(&self, owner: &str) -> Result<PathBuf, SnapshotError> {
        check_name("snapshot owner", owner)?;
        Ok(self.dir.join(owner))
    }

    fn path(&self, owner: &str, name: &str) -> Result<PathBuf, SnapshotError> {
        let dir = self.owner(owner)?;
        check_name("snapshot", name)?;
        Ok(dir.join(name))
    }

    /// The directories of all owners.
    fn owners(&self) -> Result<Vec<PathBuf>, SnapshotError> {
        let failed = |cause| SnapshotError::io("list", &self.dir, cause);
        let mut owners = Vec::new();
        for entry in fs::read_dir(&self.dir).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            let named = entry.file_name();
            let named = named.to_str().is_some_and(|name| is_name(name).is_ok());
            if named && entry.file_type().map_err(failed)?.is_dir() {
                owners.push(entry.path());
            }
        }
        Ok(owners)
    }

    fn lock(&self) -> MutexGuard<'_, Writes> {
        self.writes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reserves space for a snapshot. A running write counts with the larger of its old and new
    /// size, so the limits hold whether it succeeds or fails.
    fn reserve(&self, owner: &str, name: &str, bytes: u64) -> Result<Reserved<'_>, SnapshotError> {
        let mut writes = self.lock();
        let mut others = file_sizes(&self.owner(owner)?)?;
        others.remove(name);
        let mut most = bytes;
        for pending in writes.pending.values().filter(|p| p.owner == owner) {
            if pending.name == name {
                most = most.max(pending.bytes);
            } else {
                let other = others.entry(pending.name.clone()).or_default();
                *other = pending.bytes.max(*other);
            }
        }
        let limit = self.limits.owner_count;
        if others.len() >= limit {
            return Err(SnapshotError::TooMany { limit });
        }
        let limit = self.limits.owner_bytes;
        let used = others.values().sum::<u64>();
        if used.saturating_add(most) > limit {
            return Err(SnapshotError::OverBudget { bytes, used, limit });
        }
        // Under the lock, so that no other write uses the directory before its sync.
        make_dir(&self.owner(owner)?)?;
        let number = writes.next;
        writes.next += 1;
        let pending = Pending {
            owner: owner.to_owned(),
            name: name.to_owned(),
            bytes,
        };
        writes.pending.insert(number, pending);
        let snapshots = self;
        Ok(Reserved { snapshots, number })
    }
}

/// Reserved space. Dropping it frees the space.
struct Reserved<'a> {
    snapshots: &'a Snapshots,
    number: u64,
}

impl Drop for Reserved<'_> {
    fn drop(&mut self) {
        self.snapshots.lock().pending.remove(&self.number);
    }
}

/// A temporary file. Dropping it removes it unless it was renamed.
struct Temporary {
    path: PathBuf,
    file: File,
}

impl Temporary {
    fn new(dir: &Path, number: u64) -> Result<Self, SnapshotError> {
        let path = dir.join(format!("{TEMPORARY}{number}"));
        let mut options = File::options();
        let opened = options.write(true).create_new(true).mode(0o600).open(&path);
        let file = opened.map_err(|cause| SnapshotError::io("make", &path, cause))?;
        Ok(Self { path, file })
    }

    /// Renames the file to its final name. The file then counts instead of the reservation.
    fn take_name(self, path: &Path, reserved: Reserved<'_>) -> Result<(), SnapshotError> {
        let mut writes = reserved.snapshots.lock();
        let renamed = fs::rename(&self.path, path);
        writes.pending.remove(&reserved.number);
        drop(writes);
        renamed.map_err(|cause| SnapshotError::io("make", path, cause))
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        // Missing after a rename. The next start removes leftovers.
        let _ = fs::remove_file(&self.path);
    }
}

/// The SHA-256 of the only file of a model; of several parts, that of their SHA-256s. An error names its file.
pub fn digest_of_parts<'a>(
    parts: &'a [PathBuf],
    stopped: &AtomicBool,
) -> Result<[u8; 32], (&'a Path, io::Error)> {
    let digest =
        |path: &'a PathBuf| digest_unless(path, stopped).map_err(|error| (path.as_path(), error));
    if let [only] = parts {
        return digest(only);
    }
    let mut all = Sha256::new();
    for part in parts {
        all.update(digest(part)?);
    }
    Ok(all.finalize().into())
}

/// Computes the SHA-256 of a file. A large model takes seconds. Fails with [`io::ErrorKind::Interrupted`] soon after
/// `stopped` is set.
pub fn digest_unless(path: &Path, stopped: &AtomicBool) -> io::Result<[u8; 32]> {
    let mut file = File::open(path)?;
    let mut hash = Sha256::new();
    let mut buffer = vec![0; 1 << 20];
    loop {
        if stopped.load(Ordering::Relaxed) {
            return Err(io::ErrorKind::Interrupted.into());
        }
        match file.read(&mut buffer) {
            Ok(0) => return Ok(hash.finalize().into()),
            Ok(read) => hash.update(buffer.get(..read).unwrap_or_default()),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

fn check_name(of: &'static str, name: &str) -> Result<(), SnapshotError> {
    is_name(name).map_err(|why| SnapshotError::Name {
        of,
        name: name.chars().take(NAME_BYTES).collect(),
        why,
    })
}

/// Checks a name for use as a file name; rejects special characters.
pub(crate) fn is_name(name: &str) -> Result<(), &'static str> {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    if name.is_empty() {
        Err("it is empty")
    } else if name.len() > NAME_BYTES {
        Err("it is too long")
    } else if name.starts_with('.') {
        Err("it begins with a dot")
    } else if !name.bytes().all(allowed) {
        Err("it has other characters")
    } else {
        Ok(())
    }
}

/// The names and sizes of the snapshots in an owner's directory. A missing directory has none.
fn file_sizes(dir: &Path) -> Result<BTreeMap<String, u64>, SnapshotError> {
    let failed = |cause| SnapshotError::io("list", dir, cause);
    let files = match fs::read_dir(dir) {
        Ok(files) => files,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(BTreeMap::new()),
        Err(error) => return Err(failed(error)),
    };
    let mut sizes = BTreeMap::new();
    for file in files {
        let file = file.map_err(failed)?;
        let Ok(name) = file.file_name().into_string() else {
            continue;
        };
        if is_name(&name).is_err() {
            continue;
        }
        match file.metadata() {
            Ok(metadata) if metadata.is_file() => {
                sizes.insert(name, metadata.len());
            }
            Ok(_) => {}
            // Removed since the listing.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(failed(error)),
        }
    }
    Ok(sizes)
}

fn remove_temporaries(dir: &Path) -> Result<(), SnapshotError> {
    let failed = |cause| SnapshotError::io("list", dir, cause);
    for file in fs::read_dir(dir).map_err(failed)? {
        let file = file.map_err(failed)?;
        if file.file_name().to_string_lossy().starts_with(TEMPORARY) {
            let path = file.path();
            fs::remove_file(&path).map_err(|cause| SnapshotError::io("remove", &path, cause))?;
        }
    }
    Ok(())
}

/// Creates a directory durably if it does not exist.
fn make_dir(dir: &Path) -> Result<(), SnapshotError> {
    if dir.is_dir() {
        return Ok(());
    }
    let made = DirBuilder::new().recursive(true).mode(0o700).create(dir);
    made.map_err(|cause| SnapshotError::io("make", dir, cause))?;
    match dir.parent() {
        Some(parent) if parent.as_os_str().is_empty() => sync(Path::new(".")),
        Some(parent) => sync(parent),
        None => Ok(()),
    }
}

/// Syncs a directory, so that changes to its names survive a crash.
fn sync(dir: &Path) -> Result<(), SnapshotError> {
    let synced = File::open(dir).and_then(|dir| dir.sync_all());
    synced.map_err(|cause| SnapshotError::io("sync", dir, cause))
}

fn missing_or(what: &'static str, path: &Path, name: &str, cause: io::Error) -> SnapshotError {
    match cause.kind() {
        io::ErrorKind::NotFound => SnapshotError::Missing {
            name: name.to_owned(),
        },
        _ => SnapshotError::io(what, path, cause),
    }
}

#[cfg(test)]
mod tests;
