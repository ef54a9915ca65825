//! The redb file of the values: opened at the first access, opened again after a failure of the disk, and compacted.
//!
//! Accesses share the open file. Reopening and compaction need exclusive access, so they wait for the accesses in
//! progress. Every function blocks on the disk.
//!
//! redb reuses free pages but seldom returns them to the file system. So the file is compacted if less than half of it is
//! in use: when it is opened, after the removal of a deployment, and after so much was freed that it may be.

use super::{KeyValueError, USED_BYTES, VALUES};
use redb::{Builder, Database};
use std::fs::{File, Metadata};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// Page cache.
const CACHE_BYTES: usize = 8 << 20;
/// A smaller file is not compacted.
const MIN_COMPACT_BYTES: u64 = 16 << 20;
/// Freed bytes after which the file is checked, if they are half of it. The check reads all of it.
const MIN_FREED_BYTES: u64 = 64 << 20;

/// The file.
#[derive(Debug)]
pub(super) struct ValuesFile {
    path: PathBuf,
    database: RwLock<Option<Database>>,
    /// Whether redb refuses all accesses until the file is opened again.
    must_reopen: AtomicBool,
    /// Bytes that were freed since the last check.
    freed_bytes: AtomicU64,
}

impl ValuesFile {
    pub fn new(path: PathBuf) -> Self {
        Self {
            path,
            database: RwLock::default(),
            must_reopen: AtomicBool::new(false),
            freed_bytes: AtomicU64::new(0),
        }
    }

    pub fn exists(&self) -> bool {
        self.path.exists()
    }

    /// Accesses the database. A failure is logged.
    pub fn access<R>(
        &self,
        access: impl FnOnce(&Database) -> Result<R, KeyValueError>,
    ) -> Result<R, KeyValueError> {
        let opened = self.opened();
        let result = opened.and_then(|opened| match &*opened {
            Some(database) => access(database),
            None => Err(KeyValueError::Failed(redb::Error::DatabaseClosed)),
        });
        if let Err(KeyValueError::Failed(cause)) = &result {
            let file = self.path.display();
            tracing::warn!(%file, %cause, "values of plugins can't be accessed");
            if needs_reopening(cause) {
                self.must_reopen.store(true, Ordering::Relaxed);
            }
        }
        result
    }

    /// Records bytes that an access freed, and compacts the file if enough were freed since the last check.
    pub fn freed(&self, bytes: u64) {
        let before = self.freed_bytes.fetch_add(bytes, Ordering::Relaxed);
        let freed = before.saturating_add(bytes);
        let is_half = |file: Metadata| freed >= file.len() / 2;
        if freed >= MIN_FREED_BYTES && std::fs::metadata(&self.path).is_ok_and(is_half) {
            self.compact();
        }
    }

    /// Compacts the file if less than half of it is in use. A failure is logged.
    pub fn compact(&self) {
        self.freed_bytes.store(0, Ordering::Relaxed);
        if let Some(database) = &mut *self.write() {
            compact_if_sparse(database, &self.path);
        }
    }

    /// The open database.
    fn opened(&self) -> Result<RwLockReadGuard<'_, Option<Database>>, KeyValueError> {
        loop {
            let shared = self.database.read().unwrap_or_else(PoisonError::into_inner);
            if shared.is_some() && !self.must_reopen.load(Ordering::Relaxed) {
                return Ok(shared);
            }
            drop(shared);
            let mut alone = self.write();
            if alone.is_none() || self.must_reopen.load(Ordering::Relaxed) {
                // The file can be open once only.
                *alone = None;
                *alone = Some(open(&self.path)?);
                self.must_reopen.store(false, Ordering::Relaxed);
            }
        }
    }

    fn write(&self) -> RwLockWriteGuard<'_, Option<Database>> {
        // redb keeps the file consistent if an access panics.
        self.database
            .write()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether redb refuses further accesses after this error.
fn needs_reopening(cause: &redb::Error) -> bool {
    matches!(
        cause,
        redb::Error::Io(_)
            | redb::Error::PreviousIo
            | redb::Error::Corrupted(_)
            | redb::Error::DatabaseClosed
            | redb::Error::LockPoisoned(_)
    )
}

fn open(path: &Path) -> Result<Database, KeyValueError> {
    let mut options = File::options();
    let options = options.read(true).write(true).create(true).truncate(false);
    let file = options.mode(0o600).open(path).map_err(redb::Error::Io)?;
    let mut builder = Builder::new();
    let mut database = builder.set_cache_size(CACHE_BYTES).create_file(file)?;
    // Reading needs the tables.
    let write = database.begin_write()?;
    write.open_table(VALUES)?;
    write.open_table(USED_BYTES)?;
    write.commit()?;
    compact_if_sparse(&mut database, path);
    Ok(database)
}

fn compact_if_sparse(database: &mut Database, path: &Path) {
    let compacted = is_sparse(database, path).and_then(|sparse| match sparse {
        true => Ok(database.compact().map(drop)?),
        false => Ok(()),
    });
    if let Err(cause) = compacted {
        tracing::warn!(file = %path.display(), %cause, "the values of plugins can't be compacted");
    }
}

/// Whether less than half of the file is in use.
fn is_sparse(database: &Database, path: &Path) -> Result<bool, redb::Error> {
    let length = std::fs::metadata(path).map_err(redb::Error::Io)?.len();
    if length < MIN_COMPACT_BYTES {
        return Ok(false);
    }
    let write = database.begin_write()?;
    let stats = write.stats()?;
    write.abort()?;
    let used = stats.allocated_pages() * stats.page_size() as u64;
    Ok(used < length / 2)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Barrier;

    fn failure(cause: redb::Error) -> Result<(), KeyValueError> {
        Err(KeyValueError::Failed(cause))
    }

    #[test]
    fn failures_disturb_no_other_access() {
        let dir = tempfile::tempdir().unwrap();
        let file = ValuesFile::new(dir.path().join("values.redb"));
        let (began, failed) = (Barrier::new(2), Barrier::new(2));
        std::thread::scope(|scope| {
            let other = scope.spawn(|| {
                file.access(|database| {
                    began.wait();
                    failed.wait();
                    Ok(database.begin_write()?.commit()?)
                })
            });
            began.wait();
            // The other access still has the file, which can't be opened twice.
            for cause in [
                redb::Error::ValueTooLarge(1),
                redb::Error::Io(std::io::Error::other("the disk is full")),
            ] {
                file.access(|_| failure(cause)).unwrap_err();
            }
            let next =
                scope.spawn(|| file.access(|database| Ok(database.begin_write()?.commit()?)));
            failed.wait();
            other.join().unwrap().expect("it is not disturbed");
            next.join().unwrap().expect("the file is opened again");
        });
    }

    #[test]
    fn freed_space_returns_to_the_file_system() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("values.redb");
        let file = ValuesFile::new(path.clone());
        let length = || std::fs::metadata(&path).unwrap().len();
        let fill = |file: &ValuesFile| {
            for number in 0..40_u32 {
                let insert = |database: &Database| {
                    let write = database.begin_write()?;
                    let key = ("a", "", &*number.to_string());
                    write.open_table(VALUES)?.insert(key, &[1; 1 << 20][..])?;
                    Ok(write.commit()?)
                };
                file.access(insert).unwrap();
            }
        };
        let clear = |file: &ValuesFile| {
            let clear = |database: &Database| {
                let write = database.begin_write()?;
                write.open_table(VALUES)?.retain(|_, _| false)?;
                Ok(write.commit()?)
            };
            file.access(clear).unwrap();
        };
        fill(&file);
        let full = length();
        assert!(full > 40 << 20, "{full}");
        clear(&file);
        file.freed(MIN_FREED_BYTES - 1);
        assert_eq!(length(), full);
        file.freed(full / 2);
        assert!(length() < MIN_COMPACT_BYTES, "{}", length());
        // Also when it is opened.
        fill(&file);
        clear(&file);
        drop(file);
        ValuesFile::new(path.clone()).access(|_| Ok(())).unwrap();
        assert!(length() < MIN_COMPACT_BYTES, "{}", length());
    }
}
