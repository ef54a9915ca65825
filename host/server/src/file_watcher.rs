//! Reloads files when they change.
//!
//! The owner of the files asks for a check whenever it needs them; a [`FileWatcher`] looks at the files
//! at most once a second. Checks and reloads may wait for a slow disk, so a blocking thread runs them,
//! one at a time per owner, and a caller that waits too long continues with the old content.
//!
//! A file that changed just now may still be incomplete. A change therefore counts once it is a second
//! old, or once two checks in a row see the same version.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::spawn_blocking;
use tokio::time::timeout;

/// Shortest time between checks, and the age at which a change counts.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// Longest time that a caller waits for a check and a reload.
const CALLER_TIMEOUT: Duration = Duration::from_secs(1);

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

/// Checks the files of `owner`, if the last check is long enough ago, and reloads them if they have
/// changed. Returns when that is done or takes too long.
pub(crate) async fn reload_if_changed<F: Reloadable>(owner: &Arc<F>) {
    let Some(permit) = owner.watcher().check_permit() else {
        return;
    };
    let owner = Arc::clone(owner);
    let check = spawn_blocking(move || {
        if owner.watcher().has_changed(SystemTime::now()) {
            owner.reload_and_log();
        }
        drop(permit);
    });
    if timeout(CALLER_TIMEOUT, check).await.is_err() {
        tracing::warn!("reloading files takes long; their old content stays in use until then");
    }
}

/// Detects changes of files.
#[derive(Debug)]
pub(crate) struct FileWatcher {
    paths: Vec<PathBuf>,
    /// Time of the next check.
    next_check: Mutex<Instant>,
    /// One check at a time.
    checking: Arc<Semaphore>,
    seen: Mutex<SeenVersions>,
}

/// The version of each file; `None` for a file that cannot be read.
type Versions = Vec<Option<Version>>;

#[derive(Debug)]
struct SeenVersions {
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
        FileWatcher {
            next_check: Mutex::new(Instant::now() + CHECK_INTERVAL),
            checking: Arc::new(Semaphore::new(1)),
            seen: Mutex::new(SeenVersions {
                last: loaded.clone(),
                loaded,
            }),
            paths,
        }
    }

    /// A permit to check, if a check is due and none runs.
    fn check_permit(&self) -> Option<OwnedSemaphorePermit> {
        let mut next = self
            .next_check
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        if now < *next {
            return None;
        }
        let permit = Arc::clone(&self.checking).try_acquire_owned().ok()?;
        *next = now + CHECK_INTERVAL;
        Some(permit)
    }

    /// Whether the files differ from the loaded versions and have stopped changing. Counts them as loaded
    /// from then on. Blocks on the disk.
    fn has_changed(&self, now: SystemTime) -> bool {
        let current = versions(&self.paths);
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let is_stable = current == seen.last || current.iter().all(|file| is_settled(file, now));
        seen.last.clone_from(&current);
        let changed = is_stable && current != seen.loaded;
        if changed {
            seen.loaded = current;
        }
        changed
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
        #[cfg(unix)]
        let inode = std::os::unix::fs::MetadataExt::ino(&metadata);
        #[cfg(not(unix))]
        let inode = 0;
        Some(Version {
            inode,
            size: metadata.len(),
            modified: metadata.modified().ok(),
        })
    };
    paths.iter().map(version).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::mpsc;
    use tokio::sync::Notify;

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
    }

    #[test]
    fn one_check_runs_at_a_time_and_rarely() {
        let watcher = FileWatcher::new(&[]);
        let make_due = || *watcher.next_check.lock().expect("no panic") = Instant::now();
        assert!(
            watcher.check_permit().is_none(),
            "the files were checked just now"
        );
        make_due();
        let permit = watcher.check_permit().expect("a check is due");
        make_due();
        assert!(watcher.check_permit().is_none(), "a check runs");
        drop(permit);
        assert!(watcher.check_permit().is_some());
        assert!(
            watcher.check_permit().is_none(),
            "the last check was just now"
        );
    }

    /// An owner whose reload waits for a message.
    struct SlowReload {
        watcher: FileWatcher,
        proceed: Mutex<mpsc::Receiver<()>>,
        reloads: AtomicUsize,
        done: Notify,
    }

    impl Reloadable for SlowReload {
        fn watcher(&self) -> &FileWatcher {
            &self.watcher
        }

        fn reload_and_log(&self) {
            let proceed = self.proceed.lock().expect("no panic");
            if proceed.recv_timeout(Duration::from_secs(60)).is_ok() {
                self.reloads.fetch_add(1, Ordering::Relaxed);
            }
            self.done.notify_one();
        }
    }

    #[tokio::test]
    async fn slow_reload_does_not_block_callers() {
        let (now, dir) = (SystemTime::now(), tempfile::tempdir().expect("a directory"));
        let path = dir.path().join("file");
        write(&path, "one", now, 2 * CHECK_INTERVAL);
        let (sender, proceed) = mpsc::channel();
        let slow = Arc::new(SlowReload {
            watcher: FileWatcher::new(&[&path]),
            proceed: Mutex::new(proceed),
            reloads: AtomicUsize::new(0),
            done: Notify::new(),
        });
        write(&path, "longer", now, 2 * CHECK_INTERVAL);
        let make_due = || *slow.watcher.next_check.lock().expect("no panic") = Instant::now();
        make_due();
        // The reload waits for the message; the caller times out.
        reload_if_changed(&slow).await;
        make_due();
        // The next caller neither reloads nor waits.
        reload_if_changed(&slow).await;
        assert_eq!(slow.reloads.load(Ordering::Relaxed), 0);
        // This thread sends the message, so another one runs the reload.
        sender.send(()).expect("the reload waits");
        slow.done.notified().await;
        assert_eq!(slow.reloads.load(Ordering::Relaxed), 1);
    }
}
