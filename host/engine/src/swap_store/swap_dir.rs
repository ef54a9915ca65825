//! Swap files in a private directory of this process.
//!
//! Processes may share the base directory. Each creates a subdirectory with a locked file. The lock ends
//! with the process, so a subdirectory with a free lock belongs to a dead process; the next start
//! removes it. A lock on the base directory serializes starts, so that no process sees a subdirectory
//! before its owner locks it.

use std::fs::{self, DirBuilder, File, TryLockError};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Storage for the disk thread. Each file is written once, read whole and removed.
pub trait Disk: Send {
    /// Called once, before all other calls. Returns the charges of the files that exist.
    fn prepare(&mut self) -> u64 {
        0
    }
    /// Creates a file. A failure may leave a partial file.
    fn write(&mut self, file: u64, bytes: &[u8]) -> io::Result<()>;
    /// Reads a file that must be `length` bytes long.
    fn read(&mut self, file: u64, length: u64) -> io::Result<Vec<u8>>;
    /// Removes a file; fails with `NotFound` if it does not exist.
    fn remove(&mut self, file: u64) -> io::Result<()>;
}

const NAME_PREFIX: &str = "corral-swap-";
const LOCK: &str = "lock";

/// A private directory. Dropping it removes it with its files.
#[derive(Debug)]
pub struct SwapDir {
    path: PathBuf,
    /// Holds the lock while open.
    _lock: File,
}

impl SwapDir {
    /// Creates a private directory (mode 0700) in `base`, and `base` if missing. Removes the directories of
    /// dead processes.
    ///
    /// Fails if it cannot create or lock files there.
    pub fn open(base: &Path) -> io::Result<Self> {
        DirBuilder::new().recursive(true).mode(0o700).create(base)?;
        let starting = lock_file(&base.join(".swap-lock"))?;
        // Other processes hold this lock only while they start.
        starting.lock()?;
        remove_dead(base)?;
        let path = create_unique(base)?;
        let locked = lock_file(&path.join(LOCK)).and_then(|lock| lock.lock().map(|()| lock));
        match locked {
            Ok(lock) => Ok(Self { path, _lock: lock }),
            Err(error) => {
                let _ = fs::remove_dir_all(&path);
                Err(error)
            }
        }
    }

    /// Path of the directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    fn file(&self, file: u64) -> PathBuf {
        self.path.join(format!("{file}.state"))
    }
}

impl Drop for SwapDir {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.path) {
            tracing::warn!(%error, dir = %self.path.display(), "cannot remove swapped-out states; the next start with this directory removes them");
        }
    }
}

impl Disk for SwapDir {
    fn write(&mut self, file: u64, bytes: &[u8]) -> io::Result<()> {
        // No sync: the files do not outlive the process.
        let mut options = File::options();
        let mut file = options
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(self.file(file))?;
        file.write_all(bytes)
    }

    fn read(&mut self, file: u64, length: u64) -> io::Result<Vec<u8>> {
        read_whole(&mut File::open(self.file(file))?, length)
    }

    fn remove(&mut self, file: u64) -> io::Result<()> {
        fs::remove_file(self.file(file))
    }
}

/// Reads a file that must be `length` bytes long.
pub fn read_whole(file: &mut File, length: u64) -> io::Result<Vec<u8>> {
    let found = file.metadata()?.len();
    if found != length {
        let text = format!("the file has {found} bytes, expected {length}");
        return Err(io::Error::new(io::ErrorKind::InvalidData, text));
    }
    let length = usize::try_from(length).map_err(io::Error::other)?;
    let mut bytes = Vec::new();
    bytes.try_reserve_exact(length)?;
    bytes.resize(length, 0);
    file.read_exact(&mut bytes)?;
    Ok(bytes)
}

/// Creates a new subdirectory. Its name is informative only; the lock marks the owner.
fn create_unique(base: &Path) -> io::Result<PathBuf> {
    let process = std::process::id();
    let mut number = 0_u32;
    loop {
        let path = base.join(format!("{NAME_PREFIX}{process}-{number}"));
        match DirBuilder::new().mode(0o700).create(&path) {
            Ok(()) => return Ok(path),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists && number < u32::MAX => {
                number += 1;
            }
            Err(error) => return Err(error),
        }
    }
}

fn remove_dead(base: &Path) -> io::Result<()> {
    for entry in fs::read_dir(base)? {
        let entry = entry?;
        let ours = entry.file_name().to_string_lossy().starts_with(NAME_PREFIX);
        // Skip links: remove only directories that a process created here.
        if !ours || !entry.file_type()?.is_dir() {
            continue;
        }
        let path = entry.path();
        let dead = match File::open(path.join(LOCK)) {
            Ok(lock) => match lock.try_lock() {
                Ok(()) => true,
                Err(TryLockError::WouldBlock) => false,
                Err(TryLockError::Error(error)) => return Err(error),
            },
            // The process died before it created the lock.
            Err(error) if error.kind() == io::ErrorKind::NotFound => true,
            Err(_) => false,
        };
        if dead && let Err(error) = fs::remove_dir_all(&path) {
            tracing::warn!(%error, dir = %path.display(), "cannot remove the directory of a dead process; remove it by hand");
        }
    }
    Ok(())
}

fn lock_file(path: &Path) -> io::Result<File> {
    let mut options = File::options();
    options.write(true).create(true).truncate(false);
    options.mode(0o600).open(path)
}
