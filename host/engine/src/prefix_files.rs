//! Files of prefixes that survive the process, so that a restarted server need not compute them again.
//!
//! A file is a [snapshot](crate::snapshot::format) with a layout of its own. Before the model's state it has the key of
//! the prefix, a digest of its owner and adapter, and the order of its positions. The start reads only what precedes the
//! state; the whole file is read, and its SHA-256 checked, when a request needs it. Files that cannot be used are removed.
//!
//! A name refers to a complete file, since a write ends with a rename. Nothing is synced: the checksum finds what a crash
//! of the machine leaves incomplete. Prefixes with images have no files.

use crate::caller::PrefixOwner;
use crate::engine_waker::EngineWaker;
use crate::file_identity::FileIdentity;
use crate::model_config::ModelConfig;
use crate::snapshot::format::{self, DIGEST, HEADER};
use crate::snapshot::{Origin, SnapshotError, TEMPORARY, digest_of_parts, digest_unless, is_name};
use crate::split_files::split_files;
use crate::state_format::format_hash;
use crate::swap_store::{Disk, FileNumber, charge, read_whole};
use crate::{LoadError, Token};
use corral_llama::KvType;
use corral_scheduler::PositionOrder;
use sha2::{Digest, Sha256};
use std::fs::{self, DirBuilder, File, TryLockError};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

/// Added to the layout of a state, so that a snapshot is never taken for a prefix.
const LAYOUT: u64 = u64::from_le_bytes(*b"prefix 1");
/// Ends the name of a file.
const EXTENSION: &str = ".prefix";
/// Largest number of a file in its name; entries of the store have others.
const MAX_FILE_NUMBER: FileNumber = 1 << 62;

/// A digest of the owner and the adapter of a prefix.
pub type PrefixKey = [u8; 32];

/// The key of an owner's prefixes with the adapter of this digest, or without one.
pub fn key(owner: &PrefixOwner, adapter: Option<&[u8; 32]>) -> PrefixKey {
    let hash = Sha256::new().chain_update(owner.digest());
    match adapter {
        Some(adapter) => hash.chain_update(adapter).finalize().into(),
        None => hash.finalize().into(),
    }
}

/// What precedes the state in a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PrefixHead {
    pub key: PrefixKey,
    pub tokens: Vec<Token>,
    pub order: PositionOrder,
}

impl PrefixHead {
    /// The bytes between the tokens and the state: key, number of runs, start and end of each.
    fn description(&self) -> impl Iterator<Item = u8> {
        let runs = self.order.runs();
        let count = u32::try_from(runs.len()).unwrap_or(u32::MAX);
        let numbers = runs.iter().flat_map(|run| [run.start, run.end]);
        let numbers = std::iter::once(count).chain(numbers);
        self.key
            .into_iter()
            .chain(numbers.flat_map(u32::to_le_bytes))
    }

    /// Bytes before the state.
    fn length(&self) -> usize {
        HEADER + 4 * self.tokens.len() + size_of::<PrefixKey>() + 4 + 8 * self.order.runs().len()
    }

    /// The bytes before a state of this many bytes, with room for `reserved` more.
    fn encode(&self, origin: &Origin, state: usize, reserved: usize) -> Vec<u8> {
        let length = self.length();
        let mut bytes = Vec::with_capacity(length + reserved);
        let tokens = self.tokens.len();
        let described = length - HEADER - 4 * tokens + state;
        bytes.extend(format::header(origin, tokens as u64, described as u64));
        bytes.extend(self.tokens.iter().flat_map(|token| token.to_le_bytes()));
        bytes.extend(self.description());
        bytes
    }

    /// A file with this state, and zeros in place of its digest.
    pub fn file(&self, origin: &Origin, state: &[u8]) -> Vec<u8> {
        let mut bytes = self.encode(origin, state.len(), state.len() + DIGEST);
        bytes.extend(state);
        bytes.resize(bytes.len() + DIGEST, 0);
        bytes
    }

    /// The state in a file, if this precedes it.
    pub fn state<'a>(&self, origin: &Origin, file: &'a [u8]) -> Option<&'a [u8]> {
        let state = file.len().checked_sub(self.length() + DIGEST)?;
        let rest = file.strip_prefix(self.encode(origin, state, 0).as_slice())?;
        rest.get(..state)
    }

    /// Reads a head from the start of a file of `length` bytes. Allocates no more than the file has.
    pub fn read(file: &mut impl Read, length: u64, origin: &Origin) -> Result<Self, SnapshotError> {
        let header = read_some(file, HEADER as u64)?;
        let (tokens, described) = format::check_header(&header, length, origin)?;
        let tokens = read_numbers(file, tokens)?;
        let fixed = read_some(file, described.min(size_of::<PrefixKey>() as u64 + 4))?;
        let mut rest = fixed.as_slice();
        let short = || SnapshotError::damaged("it ends before its state");
        let key = format::field(&mut rest).ok_or_else(short)?;
        let runs = format::field(&mut rest).map(u32::from_le_bytes);
        let runs = u64::from(runs.ok_or_else(short)?);
        if runs > tokens.len() as u64 || fixed.len() as u64 + 8 * runs > described {
            return Err(short());
        }
        let numbers = read_numbers(file, 2 * runs)?;
        let (runs, _) = numbers.as_chunks::<2>();
        let order = PositionOrder::new(runs.iter().map(|[start, end]| *start..*end).collect());
        let whole = |order: &PositionOrder| order.length() as usize == tokens.len();
        match order.filter(whole) {
            Some(order) if !tokens.is_empty() => Ok(Self { key, tokens, order }),
            _ => Err(SnapshotError::damaged(
                "the order of its positions is wrong",
            )),
        }
    }
}

/// Reads the head of a file as the start does. Says whether a state follows it; `None` if the file is refused.
pub fn has_state(file: &[u8], origin: &Origin) -> Option<bool> {
    let head = PrefixHead::read(&mut &*file, file.len() as u64, origin).ok()?;
    Some(head.state(origin, file).is_some())
}

fn read_some(file: &mut impl Read, bytes: u64) -> Result<Vec<u8>, SnapshotError> {
    let mut read = Vec::new();
    let cause = match file.by_ref().take(bytes).read_to_end(&mut read) {
        Ok(count) if count as u64 == bytes => return Ok(read),
        Ok(_) => "it is too short".to_owned(),
        Err(cause) => return Err(unreadable(cause)),
    };
    Err(SnapshotError::damaged(cause))
}

/// The file may be good: reading it failed.
fn unreadable(cause: io::Error) -> SnapshotError {
    SnapshotError::Io {
        what: "read",
        path: PathBuf::from("it"),
        cause,
    }
}

fn read_numbers(file: &mut impl Read, count: u64) -> Result<Vec<u32>, SnapshotError> {
    let bytes = read_some(file, count.saturating_mul(4))?;
    let (words, _) = bytes.as_chunks::<4>();
    Ok(words.iter().map(|word| u32::from_le_bytes(*word)).collect())
}

/// The files that a model's states depend on, and the type of its cells.
#[derive(Clone, Debug)]
pub struct PrefixSources {
    /// The parts of the model.
    pub model: Vec<PathBuf>,
    /// Adapters, in the order of their ids.
    pub adapters: Vec<PathBuf>,
    pub kv_type: KvType,
    /// Identities of all these files before the model was loaded.
    identities: Vec<FileIdentity>,
}

impl PrefixSources {
    /// The sources of a model that is about to be loaded.
    pub fn of(config: &ModelConfig) -> io::Result<Self> {
        let adapters = config.adapters.iter().map(|(_, path)| path.clone());
        let mut sources = Self {
            model: split_files(&config.path),
            adapters: adapters.collect(),
            kv_type: config.placement.kv_type,
            identities: Vec::new(),
        };
        sources.identities = sources.identities()?;
        Ok(sources)
    }

    fn identities(&self) -> io::Result<Vec<FileIdentity>> {
        let files = self.model.iter().chain(&self.adapters);
        files.map(|path| FileIdentity::of(path)).collect()
    }

    /// Whether no file was replaced or written to since the load began.
    pub fn are_unchanged(&self) -> bool {
        self.identities().is_ok_and(|now| now == self.identities)
    }
}

/// What [`PrefixDir`] found at the start.
#[derive(Debug)]
pub struct FoundPrefixes {
    pub origin: Origin,
    /// Digests of the adapters, in the order of their ids.
    pub adapters: Vec<[u8; 32]>,
    /// The prefixes, least recently used first.
    pub prefixes: Vec<FoundPrefix>,
    /// Number of files removed because they cannot be used.
    pub removed: u64,
    /// Number of files removed because the budget has no room.
    pub no_room: u64,
    /// Files that could not be read, and stay.
    pub unread: UnreadFiles,
}

/// Files that could not be read: later ones need other numbers.
#[derive(Debug, Default)]
pub struct UnreadFiles {
    pub files: u64,
    /// The largest number.
    pub last: FileNumber,
    /// What they take of the budget.
    pub charge: u64,
}

/// A file of an earlier process.
#[derive(Debug)]
pub struct FoundPrefix {
    pub file: FileNumber,
    /// Bytes of the file.
    pub length: u64,
    pub head: PrefixHead,
}

/// What the engine tells the disk's thread.
#[derive(Debug, Default)]
pub struct PrefixDirControl {
    /// Ends [`Disk::prepare`] early.
    pub stopped: AtomicBool,
    /// The last use of the prefixes that are written from now on; `None` is now.
    pub last_use: Mutex<Option<SystemTime>>,
}

/// The locked directory of a model's prefixes.
pub struct PrefixDir {
    path: PathBuf,
    /// Most bytes of all files.
    budget: u64,
    sources: PrefixSources,
    /// Receives what the directory holds; `None` afterwards.
    found: Option<Sender<FoundPrefixes>>,
    waker: EngineWaker,
    control: Arc<PrefixDirControl>,
    /// Holds the lock while open.
    _lock: File,
}

impl PrefixDir {
    /// Locks the directory of the named model in `base`, and creates it (mode 0700) if missing. The mode of an existing
    /// one stays, but others must not be able to write to it. Its files are sent to `found` later, on the disk's thread.
    pub fn open(
        (base, budget): (&Path, u64),
        model: &str,
        sources: PrefixSources,
        found: Sender<FoundPrefixes>,
        waker: EngineWaker,
        control: Arc<PrefixDirControl>,
    ) -> Result<Self, LoadError> {
        let path = base.join(dir_name(model));
        let failed = |error: &dyn std::fmt::Display| {
            let path = path.display();
            LoadError::Config(format!(
                "cannot keep prefixes in {path}: {error}; give another directory with --prefix-dir"
            ))
        };
        let open = || {
            DirBuilder::new()
                .recursive(true)
                .mode(0o700)
                .create(&path)?;
            if fs::metadata(&path)?.permissions().mode() & 0o022 != 0 {
                return Err(io::Error::other(
                    "users other than its owner can write to it; change that with 'chmod go-w'",
                ));
            }
            let mut options = File::options();
            options.write(true).create(true).truncate(false).mode(0o600);
            options.open(path.join(".lock"))
        };
        let lock = open().map_err(|error| failed(&error))?;
        lock.try_lock().map_err(|error| match error {
            TryLockError::WouldBlock => failed(&"another process uses it"),
            TryLockError::Error(error) => failed(&error),
        })?;
        Ok(Self {
            path,
            budget,
            sources,
            found: Some(found),
            waker,
            control,
            _lock: lock,
        })
    }

    fn file(&self, file: FileNumber) -> PathBuf {
        self.path.join(format!("{file}{EXTENSION}"))
    }

    fn temporary(&self, file: FileNumber) -> PathBuf {
        self.path.join(format!("{TEMPORARY}{file}"))
    }

    fn find(&self) -> io::Result<FoundPrefixes> {
        let stopped = &self.control.stopped;
        let digest = |path: &PathBuf| digest_unless(path, stopped);
        let model = digest_of_parts(&self.sources.model, stopped).map_err(|(_, error)| error)?;
        let origin = Origin {
            model,
            layout: format_hash(self.sources.kv_type) ^ LAYOUT,
        };
        let adapters = self.sources.adapters.iter().map(digest);
        let adapters = adapters.collect::<Result<_, _>>()?;
        if !self.sources.are_unchanged() {
            return Err(io::Error::other(
                "a file of the model changed after it was loaded; restart the server to keep prefixes",
            ));
        }
        let mut found = FoundPrefixes {
            origin,
            adapters,
            prefixes: Vec::new(),
            removed: 0,
            no_room: 0,
            unread: UnreadFiles::default(),
        };
        self.read_files(self.files()?, &mut found)?;
        found.prefixes.reverse();
        Ok(found)
    }

    /// The files of prefixes and when each was last used, the most recent first. Removes what interrupted writes left.
    fn files(&self) -> io::Result<Vec<(SystemTime, FileNumber)>> {
        let mut files = Vec::new();
        for entry in fs::read_dir(&self.path)? {
            self.check_not_stopped()?;
            let entry = entry?;
            let name = entry.file_name();
            let name = name.to_string_lossy();
            if name.starts_with(TEMPORARY) {
                // What cannot be removed is only in the way.
                let _ = fs::remove_file(entry.path());
                continue;
            }
            // Other files are not ours.
            let number = name.strip_suffix(EXTENSION).map(str::parse);
            let Some(Ok(file)) = number else { continue };
            if file > MAX_FILE_NUMBER || name != format!("{file}{EXTENSION}") {
                continue;
            }
            let used = entry.metadata().and_then(|metadata| metadata.modified());
            files.push((used.unwrap_or(SystemTime::UNIX_EPOCH), file));
        }
        files.sort_unstable_by(|a, b| b.cmp(a));
        Ok(files)
    }

    /// Reads the heads of files until the budget is used, and removes the others. Files that cannot be read stay.
    fn read_files(
        &self,
        files: Vec<(SystemTime, FileNumber)>,
        found: &mut FoundPrefixes,
    ) -> io::Result<()> {
        let mut left = self.budget;
        for (_, file) in files {
            self.check_not_stopped()?;
            let (path, dir) = (self.file(file), self.path.display());
            match found_prefix(&path, file, &found.origin, left) {
                Ok(Some(prefix)) => {
                    left -= charge(prefix.length);
                    found.prefixes.push(prefix);
                }
                Ok(None) => {
                    // The older ones have no room either.
                    left = 0;
                    found.no_room += 1;
                    let _ = fs::remove_file(path);
                }
                Err(error @ SnapshotError::Io { .. }) => {
                    let length = fs::symlink_metadata(path).map_or(0, |file| file.len());
                    let unread = &mut found.unread;
                    unread.files += 1;
                    unread.last = unread.last.max(file);
                    unread.charge += charge(length).min(left);
                    left = left.saturating_sub(charge(length));
                    if unread.files == 1 {
                        tracing::warn!(%dir, file, %error, "a file of a prefix cannot be read now; it stays until the next start, and all others like it");
                    }
                }
                Err(error) => {
                    let _ = fs::remove_file(path);
                    found.removed += 1;
                    if found.removed == 1 {
                        tracing::warn!(%dir, file, %error, "a file of a prefix cannot be used; it is removed, and all others like it");
                    }
                }
            }
        }
        Ok(())
    }

    fn check_not_stopped(&self) -> io::Result<()> {
        match self.control.stopped.load(Ordering::Relaxed) {
            true => Err(io::ErrorKind::Interrupted.into()),
            false => Ok(()),
        }
    }
}

/// The prefix in a file. `None` if it takes more than `left` bytes.
fn found_prefix(
    path: &Path,
    file: FileNumber,
    origin: &Origin,
    left: u64,
) -> Result<Option<FoundPrefix>, SnapshotError> {
    // Check before the open: opening a pipe blocks until it has a writer.
    let metadata = fs::symlink_metadata(path).map_err(unreadable)?;
    if !metadata.is_file() {
        return Err(SnapshotError::NotSnapshot);
    }
    let length = metadata.len();
    if charge(length) > left {
        return Ok(None);
    }
    let mut opened = io::BufReader::new(File::open(path).map_err(unreadable)?);
    let head = PrefixHead::read(&mut opened, length, origin)?;
    Ok(Some(FoundPrefix { file, length, head }))
}

impl Disk for PrefixDir {
    fn prepare(&mut self) -> u64 {
        let sender = self.found.take();
        match self.find() {
            Ok(found) => {
                let charges = found.prefixes.iter().map(|found| charge(found.length));
                let used = charges.sum::<u64>() + found.unread.charge;
                // Fails only if the engine has ended.
                if let Some(sender) = sender {
                    let _ = sender.send(found);
                }
                self.waker.wake();
                used
            }
            Err(error) => {
                if error.kind() != io::ErrorKind::Interrupted {
                    let dir = self.path.display();
                    tracing::warn!(%dir, %error, "cannot use the prefixes on disk; they are computed, and none is written");
                }
                0
            }
        }
    }

    fn write(&mut self, file: u64, bytes: &[u8]) -> io::Result<()> {
        let temporary = self.temporary(file);
        let mut options = File::options();
        options.write(true).create_new(true).mode(0o600);
        let mut opened = options.open(&temporary)?;
        let contents = contents(bytes)?;
        opened.write_all(contents)?;
        opened.write_all(&Sha256::digest(contents))?;
        let last_use = *self
            .control
            .last_use
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if let Some(last_use) = last_use {
            // Only the order after a restart depends on this time.
            let _ = opened.set_modified(last_use);
        }
        fs::rename(temporary, self.file(file))
    }

    fn read(&mut self, file: u64, length: u64) -> io::Result<Vec<u8>> {
        let mut opened = File::open(self.file(file))?;
        let mut bytes = read_whole(&mut opened, length)?;
        let contents = contents(&bytes)?;
        let digest = bytes.get(contents.len()..).unwrap_or_default();
        if digest != Sha256::digest(contents).as_slice() {
            let text = "the bytes do not match their checksum";
            return Err(io::Error::new(io::ErrorKind::InvalidData, text));
        }
        // As the engine wrote it.
        let end = contents.len();
        bytes.truncate(end);
        bytes.resize(end + DIGEST, 0);
        #[expect(clippy::disallowed_methods, reason = "files have dates")]
        let _ = opened.set_modified(SystemTime::now());
        Ok(bytes)
    }

    fn remove(&mut self, file: u64) -> io::Result<()> {
        match fs::remove_file(self.temporary(file)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => fs::remove_file(self.file(file)),
        }
    }
}

/// A file without its digest.
fn contents(file: &[u8]) -> io::Result<&[u8]> {
    let contents = file.len().checked_sub(DIGEST);
    contents
        .and_then(|length| file.get(..length))
        .ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// The name of a model's directory: the model's own, unless that is no file name.
fn dir_name(model: &str) -> String {
    match is_name(model) {
        Ok(()) => model.to_owned(),
        Err(_) => {
            let digest: [u8; 32] = Sha256::digest(model).into();
            let head = digest.iter().take(16);
            head.map(|byte| format!("{byte:02x}")).collect()
        }
    }
}

#[cfg(test)]
mod tests;
