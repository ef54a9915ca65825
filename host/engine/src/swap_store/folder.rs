//! The disk: files in a folder of this process's own.
//!
//! Several processes may be given the same folder. Each makes a sub-folder with a locked file in it;
//! the lock ends with the process however that ends, so a sub-folder whose lock can be had is a dead
//! process's and is removed by the next that starts. Starting is under a lock of the whole folder:
//! without it a sub-folder could be seen between being made and being locked.

use std::fs::{self, DirBuilder, File, TryLockError};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// What the disk's thread needs of a disk. Files are written once, read whole and removed.
pub trait Disk: Send {
    /// Makes a file. Where that fails a part of it may be left.
    fn write(&mut self, file: u64, bytes: &[u8]) -> io::Result<()>;
    /// Reads a file that must be `length` bytes long.
    fn read(&mut self, file: u64, length: u64) -> io::Result<Vec<u8>>;
    /// Removes a file; `NotFound` if there is none.
    fn remove(&mut self, file: u64) -> io::Result<()>;
}

const PREFIX: &str = "spill-";
const LOCK: &str = "lock";

/// A private folder, removed with all files in it when dropped.
#[derive(Debug)]
pub struct Folder {
    path: PathBuf,
    /// Locked as long as it is open.
    _lock: File,
}

impl Folder {
    /// Makes a private folder (mode 0700) in `base`, which is made where it is missing, and removes
    /// those that dead processes left behind.
    ///
    /// Fails if files can't be made or locked there.
    pub fn open(base: &Path) -> io::Result<Self> {
        DirBuilder::new().recursive(true).mode(0o700).create(base)?;
        let starting = lock_file(&base.join(".spill-lock"))?;
        // Waits for other processes that start or clean up, never for one that runs.
        starting.lock()?;
        remove_dead(base)?;
        let path = make(base)?;
        let made = lock_file(&path.join(LOCK)).and_then(|lock| lock.lock().map(|()| lock));
        match made {
            Ok(lock) => Ok(Self { path, _lock: lock }),
            Err(error) => {
                let _ = fs::remove_dir_all(&path);
                Err(error)
            }
        }
    }

    /// Where the files are.
    pub fn path(&self) -> &Path {
        &self.path
    }

    fn file(&self, file: u64) -> PathBuf {
        self.path.join(format!("{file}.state"))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.path) {
            tracing::warn!(%error, folder = %self.path.display(), "spilled states could not be removed; the next start in this folder does it");
        }
    }
}

impl Disk for Folder {
    fn write(&mut self, file: u64, bytes: &[u8]) -> io::Result<()> {
        // Not synced: the files end with the process, and the kernel writes them when it suits it.
        let mut options = File::options();
        let mut file = options
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(self.file(file))?;
        file.write_all(bytes)
    }

    fn read(&mut self, file: u64, length: u64) -> io::Result<Vec<u8>> {
        let mut file = File::open(self.file(file))?;
        let found = file.metadata()?.len();
        if found != length {
            let text = format!("the file has {found} bytes instead of {length}");
            return Err(io::Error::new(io::ErrorKind::InvalidData, text));
        }
        let length = usize::try_from(length).map_err(io::Error::other)?;
        let mut bytes = Vec::new();
        bytes.try_reserve_exact(length)?;
        bytes.resize(length, 0);
        file.read_exact(&mut bytes)?;
        Ok(bytes)
    }

    fn remove(&mut self, file: u64) -> io::Result<()> {
        fs::remove_file(self.file(file))
    }
}

/// A sub-folder that was not there before. Its name is for people: the lock says whose it is.
fn make(base: &Path) -> io::Result<PathBuf> {
    let process = std::process::id();
    let mut number = 0_u32;
    loop {
        let path = base.join(format!("{PREFIX}{process}-{number}"));
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
        let ours = entry.file_name().to_string_lossy().starts_with(PREFIX);
        // A link is not followed: only folders that a process made here are removed.
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
            // Died between making the folder and locking it.
            Err(error) if error.kind() == io::ErrorKind::NotFound => true,
            Err(_) => false,
        };
        if dead && let Err(error) = fs::remove_dir_all(&path) {
            tracing::warn!(%error, folder = %path.display(), "what a dead process left behind cannot be removed; remove it by hand");
        }
    }
    Ok(())
}

fn lock_file(path: &Path) -> io::Result<File> {
    let mut options = File::options();
    options.write(true).create(true).truncate(false);
    options.mode(0o600).open(path)
}
