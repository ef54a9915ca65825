//! The directory of downloaded models: `ORG/REPO/FILE` in `corral/models` of the user's cache.
//!
//! A file has its name only if it is complete. Beside it lies `FILE.sha256`, as `sha256sum` writes it, and while it is
//! downloaded `FILE.ETAG.part`, from which a later download continues. `.lock` in a repository's directory is locked
//! while a process changes its files.

use super::reference::{HubReference, is_safe_path, models};
use crate::Error;
use crate::user_cache::user_cache_dir;
use std::fs::{self, File, TryLockError};
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Ending of an incomplete file.
const PART: &str = ".part";
/// Ending of a file's checksum.
const CHECKSUM: &str = ".sha256";
/// Lock file in a repository's directory.
const LOCK: &str = ".lock";
/// Attempts to create it in a directory that another process keeps removing.
const MAX_REMOVALS: u32 = 100;
/// Time between attempts to lock it.
const LOCK_INTERVAL: Duration = Duration::from_millis(100);
/// How long to wait for another process that downloads from the same repository.
const LOCK_TIMEOUT: Duration = Duration::from_secs(3600);
/// Deepest directory in a repository that is searched.
const MAX_DEPTH: usize = 8;

/// The directory of all repositories.
#[derive(Debug)]
pub struct ModelCache {
    dir: PathBuf,
}

/// A complete model.
#[derive(Debug, PartialEq, Eq)]
pub struct CachedModel {
    /// Names its first file.
    pub reference: HubReference,
    /// Its files, the one to load first.
    pub files: Vec<PathBuf>,
}

/// A repository's directory, which no other process changes.
#[derive(Debug)]
pub struct LockedRepository {
    dir: PathBuf,
    _lock: File,
}

impl CachedModel {
    /// The file to load.
    pub fn file(&self) -> &Path {
        &self.files[0]
    }

    /// Bytes of all files.
    pub fn bytes(&self) -> u64 {
        let files = self.files.iter().filter_map(|file| fs::metadata(file).ok());
        files.map(|file| file.len()).sum()
    }
}

impl ModelCache {
    /// The cache of this user, which need not exist yet.
    pub fn open() -> Result<Self, Error> {
        let dir = user_cache_dir().ok_or_else(|| {
            Error::failed(
                "there is no directory for models, since neither XDG_CACHE_HOME nor HOME is an absolute path; set one",
            )
        })?;
        Ok(Self {
            dir: dir.join("models"),
        })
    }

    /// Where the models are.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The cached model that a reference means.
    pub fn find(&self, reference: &HubReference) -> Option<CachedModel> {
        let dir = self.dir.join(&reference.repo);
        let files = reference.choose(&files(&dir))?;
        Some(cached(&dir, &reference.repo, &files))
    }

    /// [`find`](Self::find), or an error that says what to do.
    pub fn expect(&self, reference: &HubReference) -> Result<CachedModel, Error> {
        self.find(reference).ok_or_else(|| {
            Error::failed(format!(
                "{reference} is not in the cache; see 'corral model list', or download it with 'corral model pull {reference}'"
            ))
        })
    }

    /// All cached models, in the order of their names.
    pub fn models(&self) -> Vec<CachedModel> {
        let mut found = Vec::new();
        for org in directories(&self.dir) {
            for repo in directories(&self.dir.join(&org)) {
                let name = format!("{org}/{repo}");
                let dir = self.dir.join(&name);
                let models = models(&files(&dir)).into_iter();
                found.extend(models.map(|files| cached(&dir, &name, &files)));
            }
        }
        found
    }

    /// Locks a repository's directory, which is created. Waits while another process holds the lock.
    pub fn lock(&self, repo: &str, note: impl Fn(String)) -> Result<LockedRepository, Error> {
        let dir = self.dir.join(repo);
        let path = dir.join(LOCK);
        let start = Instant::now();
        let mut waits = false;
        let mut removals = 0;
        loop {
            let mut options = File::options();
            options.write(true).create(true).truncate(false);
            let lock = fs::create_dir_all(&dir).and_then(|()| options.open(&path));
            let locked = lock.and_then(|lock| match lock.try_lock() {
                // Another process may have removed the file between its opening and its locking.
                Ok(()) if is_at(&lock, &path) => Ok(Some(lock)),
                Ok(()) | Err(TryLockError::WouldBlock) => Ok(None),
                Err(TryLockError::Error(error)) => Err(error),
            });
            match locked {
                Ok(Some(lock)) => return Ok(LockedRepository { dir, _lock: lock }),
                Ok(None) => {}
                // Another process may have removed the directory before the file was created.
                Err(error) if error.kind() == ErrorKind::NotFound && removals < MAX_REMOVALS => {
                    removals += 1;
                    continue;
                }
                Err(error) => return Err(with_cause(&path)(error)),
            }
            if start.elapsed() > LOCK_TIMEOUT {
                return Err(Error::failed(format!(
                    "another process still downloads from {repo} after {} minutes; wait until it ends, or stop it",
                    LOCK_TIMEOUT.as_secs() / 60
                )));
            }
            if !std::mem::replace(&mut waits, true) {
                note(format!(
                    "another process downloads from {repo}; waiting for it"
                ));
            }
            std::thread::sleep(LOCK_INTERVAL);
        }
    }
}

impl LockedRepository {
    /// The path of a file. Creates its directory. Fails if the path would lie outside the repository's directory.
    pub fn path(&self, file: &str) -> Result<PathBuf, Error> {
        if !is_safe_path(file) {
            return Err(Error::failed(format!(
                "the repository has a file named '{}', which is refused: it must be a relative path without '..'",
                file.escape_debug()
            )));
        }
        let path = self.dir.join(file);
        if let Some(dir) = path.parent() {
            fs::create_dir_all(dir).map_err(with_cause(dir))?;
        }
        Ok(path)
    }

    /// Free bytes of the disk.
    pub fn free_bytes(&self) -> Option<u64> {
        let disk = rustix::fs::statvfs(&self.dir).ok()?;
        Some(disk.f_bavail.saturating_mul(disk.f_frsize))
    }

    /// Removes a model's files with their checksums.
    pub fn remove(self, model: &CachedModel) -> Result<(), Error> {
        model.files.iter().try_for_each(|file| remove_file(file))
    }

    /// Removes the repository with its incomplete files.
    pub fn remove_all(self) -> Result<(), Error> {
        let entries = fs::read_dir(&self.dir).map_err(with_cause(&self.dir))?;
        for entry in entries.flatten().filter(|entry| entry.file_name() != LOCK) {
            let path = entry.path();
            let removed = match entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                true => fs::remove_dir_all(&path),
                false => fs::remove_file(&path),
            };
            removed.map_err(with_cause(&path))?;
        }
        // The lock file goes last: once it is gone, another process may use the directory, which then is not empty and
        // stays.
        let lock = self.dir.join(LOCK);
        fs::remove_file(&lock).map_err(with_cause(&lock))?;
        let _ = fs::remove_dir(&self.dir);
        // The organization's directory, if it is empty now.
        let _ = self.dir.parent().map(fs::remove_dir);
        Ok(())
    }
}

/// The incomplete file of `file` with this ETag.
pub fn part_file(file: &Path, etag: &str) -> PathBuf {
    let etag: String = etag.chars().filter(char::is_ascii_alphanumeric).collect();
    append(file, &format!(".{etag:.64}{PART}"))
}

/// The incomplete files of `file`, whatever their ETags.
pub fn part_files(file: &Path) -> Vec<PathBuf> {
    let start = append(file, ".");
    let is_part = |path: &PathBuf| {
        let path = path.to_string_lossy();
        path.starts_with(&*start.to_string_lossy()) && path.ends_with(PART)
    };
    let entries = file.parent().and_then(|dir| fs::read_dir(dir).ok());
    let entries = entries.into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).filter(is_part).collect()
}

/// Removes a complete file and its checksum.
pub fn remove_file(file: &Path) -> Result<(), Error> {
    fs::remove_file(file).map_err(with_cause(file))?;
    // A file without one was put there by hand.
    let _ = fs::remove_file(checksum_file(file));
    Ok(())
}

/// Records the SHA-256 of a file beside it.
pub fn write_checksum(file: &Path, sha256: &str) -> std::io::Result<()> {
    let name = file.file_name().unwrap_or_default().to_string_lossy();
    fs::write(checksum_file(file), format!("{sha256}  {name}\n"))
}

/// The recorded SHA-256 of a file.
pub fn read_checksum(file: &Path) -> Option<String> {
    let text = fs::read_to_string(checksum_file(file)).ok()?;
    Some(text.split_whitespace().next()?.to_owned())
}

/// Shows the error of a path and its cause.
pub fn with_cause(path: &Path) -> impl FnOnce(std::io::Error) -> Error {
    move |cause| {
        let message = format!("cannot use {}: {cause}", path.display());
        Error::context(message)(cause)
    }
}

/// Whether `path` still names this open file.
fn is_at(file: &File, path: &Path) -> bool {
    let identity = |metadata: fs::Metadata| (metadata.dev(), metadata.ino());
    let (open, named) = (file.metadata(), fs::metadata(path));
    open.is_ok_and(|open| named.is_ok_and(|named| identity(open) == identity(named)))
}

fn checksum_file(file: &Path) -> PathBuf {
    append(file, CHECKSUM)
}

fn append(file: &Path, ending: &str) -> PathBuf {
    let mut path = file.to_owned().into_os_string();
    path.push(ending);
    path.into()
}

fn cached(dir: &Path, repo: &str, files: &[String]) -> CachedModel {
    CachedModel {
        reference: HubReference::of_file(repo, &files[0]),
        files: files.iter().map(|file| dir.join(file)).collect(),
    }
}

/// Names of the directories in a directory, sorted.
fn directories(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    let entries = entries.filter(|entry| entry.path().is_dir());
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    let mut names: Vec<_> = names.filter(|name| is_safe_path(name)).collect();
    names.sort();
    names
}

/// Paths of all files in a repository's directory, relative to it and sorted.
fn files(dir: &Path) -> Vec<String> {
    fn collect(dir: &Path, before: &str, depth: usize, found: &mut Vec<String>) {
        for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
            let Ok(name) = entry.file_name().into_string() else {
                continue;
            };
            let path = format!("{before}{name}");
            match entry.path().is_dir() {
                true if depth > 0 => {
                    collect(&entry.path(), &format!("{path}/"), depth - 1, found);
                }
                true => {}
                false => found.push(path),
            }
        }
    }
    let mut found = Vec::new();
    collect(dir, "", MAX_DEPTH, &mut found);
    found.sort();
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_stay_in_their_repository() {
        let dir = tempfile::tempdir().expect("a directory");
        let cache = ModelCache {
            dir: dir.path().join("models"),
        };
        let locked = cache.lock("a/b", |_| {}).expect("locked");
        let inside = locked.path("q/x.gguf").expect("a safe path");
        assert_eq!(inside, cache.dir.join("a/b/q/x.gguf"));
        for bad in ["../x.gguf", "/x.gguf", "a/../../x.gguf", "a\0.gguf", ""] {
            let error = locked.path(bad).expect_err(bad).message(false);
            assert!(error.contains("relative path"), "{error}");
        }
    }

    #[test]
    fn removed_repository_is_locked_anew() {
        let dir = tempfile::tempdir().expect("a directory");
        let cache = ModelCache {
            dir: dir.path().to_owned(),
        };
        let removed = cache.lock("a/b", |_| {}).expect("locked");
        fs::write(removed.path("q/x.gguf").expect("a path"), "x").expect("written");
        let (sender, waits) = std::sync::mpsc::channel();
        std::thread::scope(|scope| {
            let wait = || {
                let sender = sender.clone();
                let locked = cache.lock("a/b", move |_| sender.send(()).expect("received"));
                let locked = locked.expect("locked");
                assert!(is_at(&locked._lock, &dir.path().join("a/b/.lock")));
            };
            scope.spawn(wait);
            scope.spawn(wait);
            for _ in 0..2 {
                waits.recv_timeout(LOCK_TIMEOUT).expect("it waits");
            }
            removed.remove_all().expect("removed");
        });
        assert!(!dir.path().join("a/b/q").exists());
    }

    #[test]
    fn replaced_lock_is_another_file() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join(LOCK);
        let lock = File::create(&path).expect("created");
        assert!(is_at(&lock, &path));
        fs::remove_file(&path).expect("removed");
        assert!(!is_at(&lock, &path));
        let _other = File::create(&path).expect("created");
        assert!(!is_at(&lock, &path));
    }

    #[test]
    fn incomplete_files_belong_to_one_file() {
        let dir = tempfile::tempdir().expect("a directory");
        let file = dir.path().join("m.gguf");
        let part = part_file(&file, "W/\"a-b.c\"");
        assert_eq!(part, dir.path().join("m.gguf.Wabc.part"));
        let other = part_file(&dir.path().join("m.ggufx"), "a");
        for path in [&part, &other, &file] {
            fs::write(path, "x").expect("written");
        }
        assert_eq!(part_files(&file), [part]);
    }
}
