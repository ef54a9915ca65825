//! Named, durable copies of sequences, in files.
//!
//! One file per snapshot, in one folder per tenant. A snapshot is written beside its place, synced,
//! and renamed into it, and then the folder is synced: after a crash a name stands for the old
//! snapshot or the new one, whole. What a crash leaves half written is removed at the next start.
//!
//! The limits of a tenant hold for its named files at every moment, also with writes under way at
//! once; a snapshot that replaces another takes its space in addition until it is complete. The
//! folder belongs to one [`Snapshots`] at a time, which a lock sees to: otherwise two processes could
//! both find the last room free. It may be shared between threads.
//!
//! Every function blocks on the disk.

mod error;
mod format;

pub use error::Error;

use crate::Token;
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::fs::{self, DirBuilder, File, TryLockError};
use std::io::{self, Read};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

/// Longest name of a snapshot or tenant.
const NAME_BYTES: usize = 128;
/// Begins the name of a file that is being written; no snapshot's name begins with a dot.
const TEMPORARY: &str = ".writing-";

/// What a state was made with, and must be used with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Origin {
    /// SHA-256 of the model file.
    pub model: [u8; 32],
    /// A fingerprint of all else that the state depends on: cache types, settings of the context,
    /// version of llama.cpp.
    pub layout: u64,
}

/// What a snapshot holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Contents {
    /// What it was made with.
    pub origin: Origin,
    /// The tokens of the sequence.
    pub tokens: Vec<Token>,
    /// The model's memory of them.
    pub state: Vec<u8>,
}

/// How much may be kept.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Bytes of a snapshot's file.
    pub snapshot_bytes: u64,
    /// Bytes of all files of a tenant.
    pub tenant_bytes: u64,
    /// Snapshots of a tenant.
    pub tenant_count: usize,
}

/// A snapshot in a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Its name.
    pub name: String,
    /// Bytes of its file.
    pub bytes: u64,
    /// When it was written.
    pub modified: SystemTime,
}

/// The snapshots in a folder.
#[derive(Debug)]
pub struct Snapshots {
    folder: PathBuf,
    limits: Limits,
    writes: Mutex<Writes>,
    /// Locked as long as it is open.
    _lock: File,
}

/// The writes under way.
#[derive(Debug, Default)]
struct Writes {
    next: u64,
    pending: BTreeMap<u64, Pending>,
}

#[derive(Debug)]
struct Pending {
    tenant: String,
    name: String,
    bytes: u64,
}

impl Snapshots {
    /// Takes a folder, which is made (mode 0700) where it is missing, and removes what a crash left
    /// half written.
    ///
    /// [`Error::InUse`] if someone else has it.
    pub fn new(folder: impl Into<PathBuf>, limits: Limits) -> Result<Self, Error> {
        let folder = folder.into();
        make_folder(&folder)?;
        let path = folder.join(".lock");
        let mut options = File::options();
        options.write(true).create(true).truncate(false).mode(0o600);
        let lock = options
            .open(&path)
            .map_err(|cause| Error::io("open", &path, cause))?;
        lock.try_lock().map_err(|error| match error {
            TryLockError::WouldBlock => Error::InUse {
                folder: folder.clone(),
            },
            TryLockError::Error(cause) => Error::io("lock", &path, cause),
        })?;
        let snapshots = Self {
            folder,
            limits,
            writes: Mutex::default(),
            _lock: lock,
        };
        for tenant in snapshots.tenants()? {
            remove_temporaries(&tenant)?;
        }
        Ok(snapshots)
    }

    /// Most bytes of a snapshot's file.
    pub fn largest(&self) -> u64 {
        self.limits.snapshot_bytes
    }

    /// Writes a snapshot, in place of that of the same name if there is one. When it returns, the
    /// snapshot survives a crash.
    ///
    /// Fails before anything is written with [`Error::Name`], [`Error::TooLarge`],
    /// [`Error::OverBudget`] or [`Error::TooMany`]. Whatever fails, what had the name keeps it;
    /// only if the last sync fails the new one may have it already.
    pub fn write(&self, tenant: &str, name: &str, contents: &Contents) -> Result<(), Error> {
        let folder = self.tenant(tenant)?;
        check_name("snapshot", name)?;
        let limit = self.limits.snapshot_bytes;
        let (tokens, state) = (contents.tokens.len() as u64, contents.state.len() as u64);
        let bytes = format::length(tokens, state).unwrap_or(u64::MAX);
        if bytes > limit {
            return Err(Error::TooLarge { bytes, limit });
        }
        let reserved = self.reserve(tenant, name, bytes)?;
        let temporary = Temporary::new(&folder, reserved.number)?;
        let written = |cause| Error::io("write", &temporary.path, cause);
        format::encode(&mut &temporary.file, contents).map_err(written)?;
        temporary.file.sync_all().map_err(written)?;
        temporary.take_name(&folder.join(name), reserved)?;
        sync(&folder)
    }

    /// Reads a snapshot that must have been made with `expected`.
    ///
    /// [`Error::Missing`] if there is none; [`Error::NotSnapshot`], [`Error::Version`],
    /// [`Error::Damaged`], [`Error::Model`] or [`Error::Layout`] if it is of no use;
    /// [`Error::TooLarge`] or [`Error::NoMemory`] if there is no room for it.
    pub fn read(&self, tenant: &str, name: &str, expected: &Origin) -> Result<Contents, Error> {
        let path = self.path(tenant, name)?;
        let failed = |cause| missing_or("open", &path, name, cause);
        // Asked first: opening a pipe would wait for its writer.
        if !fs::symlink_metadata(&path).map_err(failed)?.is_file() {
            return Err(Error::NotSnapshot);
        }
        let mut file = File::open(&path).map_err(failed)?;
        let bytes = file.metadata().map_err(failed)?.len();
        let limit = self.limits.snapshot_bytes;
        if bytes > limit {
            return Err(Error::TooLarge { bytes, limit });
        }
        format::decode(&mut file, bytes, expected)
    }

    /// Removes a snapshot. [`Error::Missing`] if there is none.
    pub fn remove(&self, tenant: &str, name: &str) -> Result<(), Error> {
        let path = self.path(tenant, name)?;
        fs::remove_file(&path).map_err(|cause| missing_or("remove", &path, name, cause))?;
        sync(&self.tenant(tenant)?)
    }

    /// The snapshots of a tenant, by name.
    pub fn list(&self, tenant: &str) -> Result<Vec<Entry>, Error> {
        entries(&self.tenant(tenant)?)
    }

    /// Bytes of all snapshots of all tenants.
    pub fn bytes(&self) -> Result<u64, Error> {
        let mut sum = 0;
        for tenant in self.tenants()? {
            sum += entries(&tenant)?
                .iter()
                .map(|entry| entry.bytes)
                .sum::<u64>();
        }
        Ok(sum)
    }

    fn tenant(&self, tenant: &str) -> Result<PathBuf, Error> {
        check_name("tenant", tenant)?;
        Ok(self.folder.join(tenant))
    }

    fn path(&self, tenant: &str, name: &str) -> Result<PathBuf, Error> {
        let folder = self.tenant(tenant)?;
        check_name("snapshot", name)?;
        Ok(folder.join(name))
    }

    /// The folders of all tenants.
    fn tenants(&self) -> Result<Vec<PathBuf>, Error> {
        let failed = |cause| Error::io("list", &self.folder, cause);
        let mut tenants = Vec::new();
        for entry in fs::read_dir(&self.folder).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            let named = entry.file_name();
            let named = named.to_str().is_some_and(|name| is_name(name).is_ok());
            if named && entry.file_type().map_err(failed)?.is_dir() {
                tenants.push(entry.path());
            }
        }
        Ok(tenants)
    }

    fn lock(&self) -> MutexGuard<'_, Writes> {
        self.writes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets room aside for a snapshot. What is under way counts as done, and what it replaces as
    /// there, whichever is more: the limits hold however the writes end.
    fn reserve(&self, tenant: &str, name: &str, bytes: u64) -> Result<Reserved<'_>, Error> {
        let mut writes = self.lock();
        let mut others = BTreeMap::new();
        for entry in self.list(tenant)? {
            others.insert(entry.name, entry.bytes);
        }
        others.remove(name);
        let mut most = bytes;
        for pending in writes.pending.values().filter(|p| p.tenant == tenant) {
            if pending.name == name {
                most = most.max(pending.bytes);
            } else {
                let other = others.entry(pending.name.clone()).or_default();
                *other = pending.bytes.max(*other);
            }
        }
        let limit = self.limits.tenant_count;
        if others.len() >= limit {
            return Err(Error::TooMany { limit });
        }
        let limit = self.limits.tenant_bytes;
        let used = others.values().sum::<u64>();
        if used.saturating_add(most) > limit {
            return Err(Error::OverBudget { bytes, used, limit });
        }
        // Under the lock, so that nobody relies on a folder that is not synced yet.
        make_folder(&self.tenant(tenant)?)?;
        let number = writes.next;
        writes.next += 1;
        let pending = Pending {
            tenant: tenant.to_owned(),
            name: name.to_owned(),
            bytes,
        };
        writes.pending.insert(number, pending);
        let snapshots = self;
        Ok(Reserved { snapshots, number })
    }
}

/// Room that was set aside; given back when dropped.
struct Reserved<'a> {
    snapshots: &'a Snapshots,
    number: u64,
}

impl Drop for Reserved<'_> {
    fn drop(&mut self) {
        self.snapshots.lock().pending.remove(&self.number);
    }
}

/// A file that is being written; removed when dropped, unless it took its name.
struct Temporary {
    path: PathBuf,
    file: File,
}

impl Temporary {
    fn new(folder: &Path, number: u64) -> Result<Self, Error> {
        let path = folder.join(format!("{TEMPORARY}{number}"));
        let mut options = File::options();
        let opened = options.write(true).create_new(true).mode(0o600).open(&path);
        let file = opened.map_err(|cause| Error::io("make", &path, cause))?;
        Ok(Self { path, file })
    }

    /// From here on it counts as what it is, not as what was reserved.
    fn take_name(self, path: &Path, reserved: Reserved<'_>) -> Result<(), Error> {
        let mut writes = reserved.snapshots.lock();
        let renamed = fs::rename(&self.path, path);
        writes.pending.remove(&reserved.number);
        drop(writes);
        renamed.map_err(|cause| Error::io("make", path, cause))
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        // Not there if it took its name. What stays is removed at the next start.
        let _ = fs::remove_file(&self.path);
    }
}

/// The SHA-256 of a file, read in parts. A large model takes seconds.
pub fn digest_of(path: &Path) -> io::Result<[u8; 32]> {
    let mut file = File::open(path)?;
    let mut hash = Sha256::new();
    let mut buffer = vec![0; 1 << 20];
    loop {
        match file.read(&mut buffer) {
            Ok(0) => return Ok(hash.finalize().into()),
            Ok(read) => hash.update(buffer.get(..read).unwrap_or_default()),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

fn check_name(of: &'static str, name: &str) -> Result<(), Error> {
    is_name(name).map_err(|why| Error::Name {
        of,
        name: name.chars().take(NAME_BYTES).collect(),
        why,
    })
}

/// Names become file names: nothing that means something to the file system is allowed.
fn is_name(name: &str) -> Result<(), &'static str> {
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

/// The snapshots in a tenant's folder, by name; none if there is no folder.
fn entries(folder: &Path) -> Result<Vec<Entry>, Error> {
    let failed = |cause| Error::io("list", folder, cause);
    let files = match fs::read_dir(folder) {
        Ok(files) => files,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(failed(error)),
    };
    let mut entries = Vec::new();
    for file in files {
        let file = file.map_err(failed)?;
        let Ok(name) = file.file_name().into_string() else {
            continue;
        };
        if is_name(&name).is_err() {
            continue;
        }
        let about = match file.metadata() {
            Ok(about) => about,
            // Removed meanwhile.
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(failed(error)),
        };
        if about.is_file() {
            entries.push(Entry {
                name,
                bytes: about.len(),
                modified: about.modified().map_err(failed)?,
            });
        }
    }
    entries.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(entries)
}

fn remove_temporaries(folder: &Path) -> Result<(), Error> {
    let failed = |cause| Error::io("list", folder, cause);
    for file in fs::read_dir(folder).map_err(failed)? {
        let file = file.map_err(failed)?;
        if file.file_name().to_string_lossy().starts_with(TEMPORARY) {
            let path = file.path();
            fs::remove_file(&path).map_err(|cause| Error::io("remove", &path, cause))?;
        }
    }
    Ok(())
}

/// Makes a folder that outlives a crash, unless it is there.
fn make_folder(folder: &Path) -> Result<(), Error> {
    if folder.is_dir() {
        return Ok(());
    }
    let made = DirBuilder::new().recursive(true).mode(0o700).create(folder);
    made.map_err(|cause| Error::io("make", folder, cause))?;
    match folder.parent() {
        Some(parent) if parent.as_os_str().is_empty() => sync(Path::new(".")),
        Some(parent) => sync(parent),
        None => Ok(()),
    }
}

/// Makes what was done to the names in a folder outlive a crash.
fn sync(folder: &Path) -> Result<(), Error> {
    let synced = File::open(folder).and_then(|folder| folder.sync_all());
    synced.map_err(|cause| Error::io("sync", folder, cause))
}

fn missing_or(what: &'static str, path: &Path, name: &str, cause: io::Error) -> Error {
    match cause.kind() {
        io::ErrorKind::NotFound => Error::Missing {
            name: name.to_owned(),
        },
        _ => Error::io(what, path, cause),
    }
}

#[cfg(test)]
mod tests;
