//! Reloads files when they change.
//!
//! A task of each owner compares the files with the loaded versions once a second. Checks and reloads run on a
//! blocking thread, because a disk may be slow. Readers never wait: they use the content that is loaded.
//!
//! A file that changed just now may still be incomplete. A change therefore counts once it is a second
//! old, or once two checks in a row see the same version.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};
use tokio::task::spawn_blocking;

/// Time between checks, and the age at which a change counts.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// Identifies a version of a file: replacing a file changes its inode, writing it its time or size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Version {
    inode: u64,
    size: u64,
    modified: Option<SystemTime>,
}

/// An owner of watched files.
pub(crate) trait Reloadable: Send + Sync + 'static {
    fn watcher(&self) -> &FileWatcher;

    /// Reads the changed files again and logs the outcome. May block.
    fn reload_and_log(&self);
}

/// Reloads the files of `owner` when they change, until it is dropped. Must be called in a tokio runtime.
pub(crate) fn watch<F: Reloadable>(owner: &Arc<F>) {
    let owner = Arc::downgrade(owner);
    tokio::spawn(async move {
        loop {
            tokio::time::sleep(CHECK_INTERVAL).await;
            let Some(owner) = owner.upgrade() else {
                return;
            };
            let check = spawn_blocking(move || {
                #[expect(clippy::disallowed_methods, reason = "files have dates")]
                let now = SystemTime::now();
                if owner.watcher().has_changed(now) {
                    owner.reload_and_log();
                }
            });
            if let Err(error) = check.await {
                tracing::error!(%error, "files could not be checked for changes");
            }
        }
    });
}

/// Detects changes of files.
#[derive(Debug)]
pub(crate) struct FileWatcher(Mutex<WatchedFiles>);

/// The version of each file; `None` for a file that cannot be read.
type Versions = Vec<Option<Version>>;

#[derive(Debug)]
struct WatchedFiles {
    paths: Vec<PathBuf>,
    /// Versions that were loaded, or failed to load.
    loaded: Versions,
    /// Versions of the last check.
    last: Versions,
}

impl FileWatcher {
    /// Watches for changes from the current versions.
    pub(crate) fn new(paths: &[&Path]) -> Self {
        let paths: Vec<PathBuf> = paths.iter().map(|path| path.to_path_buf()).collect();
        let loaded = versions(&paths);
        FileWatcher(Mutex::new(WatchedFiles {
            paths,
            last: loaded.clone(),
            loaded,
        }))
    }

    /// Watches the files of `other` instead.
    pub(crate) fn replace(&self, other: FileWatcher) {
        *self.lock() = other.0.into_inner().unwrap_or_else(PoisonError::into_inner);
    }

    /// Whether the files differ from the loaded versions and have stopped changing. Counts them as loaded
    /// from then on. Blocks on the disk.
    fn has_changed(&self, now: SystemTime) -> bool {
        let paths = self.lock().paths.clone();
        let current = versions(&paths);
        let mut seen = self.lock();
        if seen.paths != paths {
            return false;
        }
        let is_stable = current == seen.last || current.iter().all(|file| is_settled(file, now));
        seen.last.clone_from(&current);
        let changed = is_stable && current != seen.loaded;
        if changed {
            seen.loaded = current;
        }
        changed
    }

    fn lock(&self) -> MutexGuard<'_, WatchedFiles> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether a file was last modified at least [`CHECK_INTERVAL`] ago.
fn is_settled(version: &Option<Version>, now: SystemTime) -> bool {
    let modified = version.and_then(|version| version.modified);
    let age = modified.and_then(|modified| now.duration_since(modified).ok());
    age.is_some_and(|age| age >= CHECK_INTERVAL)
}

fn versions(paths: &[PathBuf]) -> Versions {
    let version = |path: &PathBuf| {
        let metadata = std::fs::metadata(path).ok()?;
        Some(Version {
            inode: metadata.ino(),
            size: metadata.len(),
            modified: metadata.modified().ok(),
        })
    };
    paths.iter().map(version).collect()
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "files have dates")]
mod tests {
    use super::*;

    /// Writes a file with a modification time `age` before `now`.
    fn write(path: &Path, text: &str, now: SystemTime, age: Duration) {
        std::fs::write(path, text).expect("written");
        let file = std::fs::File::options().write(true).open(path);
        let modified = file.expect("exists").set_modified(now - age);
        modified.expect("a file has a time");
    }

    #[test]
    fn change_counts_once_and_when_stable() {
        let (old, now) = (2 * CHECK_INTERVAL, SystemTime::now());
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("file");
        write(&path, "one", now, old);
        let watcher = FileWatcher::new(&[&path]);
        assert!(!watcher.has_changed(now));
        write(&path, "longer", now, old);
        assert!(watcher.has_changed(now), "it was written two intervals ago");
        assert!(!watcher.has_changed(now));
        // Written in two pieces.
        write(&path, "a ha", now, Duration::ZERO);
        assert!(!watcher.has_changed(now), "the file may be incomplete");
        write(&path, "a half and the rest", now, Duration::ZERO);
        assert!(!watcher.has_changed(now), "the file has changed since");
        assert!(
            watcher.has_changed(now),
            "the last check saw the same version"
        );
        assert!(!watcher.has_changed(now));
        std::fs::remove_file(&path).expect("removed");
        assert!(!watcher.has_changed(now), "another file may replace it");
        assert!(watcher.has_changed(now));
        assert!(!watcher.has_changed(now));
        let other = dir.path().join("other");
        write(&other, "one", now, old);
        watcher.replace(FileWatcher::new(&[&other]));
        write(&path, "no longer watched", now, old);
        assert!(!watcher.has_changed(now));
        write(&other, "longer", now, old);
        assert!(watcher.has_changed(now));
    }

    #[test]
    fn clock_change_delays_reload_by_one_check() {
        let (day, now) = (Duration::from_secs(86_400), SystemTime::now());
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("file");
        write(&path, "one", now, Duration::ZERO);
        let watcher = FileWatcher::new(&[&path]);
        for (text, now) in [("set back", now - day), ("set forward", now + day)] {
            write(&path, text, SystemTime::now(), Duration::ZERO);
            assert!(
                watcher.has_changed(now) || watcher.has_changed(now),
                "{text}"
            );
            assert!(!watcher.has_changed(now), "{text}");
        }
    }
}
