//! Files that are read again when they change.
//!
//! They are looked at when somebody asks, at most once a second. Looking and reading may take their time
//! (a disk that is busy, a file on another machine), so a thread that may wait does it, one for each
//! owner of files; and who asked goes on with what was read last when it takes too long.
//!
//! A file that was written just now may be written on. So a change is taken up when it is a second old,
//! or when the next look finds no other: half of a file is not taken for all of it where the rest comes
//! soon.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::spawn_blocking;
use tokio::time::timeout;

/// How often files are looked at, however often somebody asks; and how old a change has to be.
const OFTEN: Duration = Duration::from_secs(1);
/// How long somebody waits for a look, and for what it leads to.
const PATIENCE: Duration = Duration::from_secs(1);

/// What tells two versions of a file apart: a file that is replaced has another number, one that is
/// written has another time or size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Version {
    number: u64,
    size: u64,
    written: Option<SystemTime>,
}

/// Has files that may change.
pub(crate) trait Follow: Send + Sync + 'static {
    /// What watches them.
    fn changes(&self) -> &Changes;

    /// Reads them again: they have changed. May wait for the disk.
    fn read_again(&self);
}

/// Lets the files of `owner` be looked at, if that was not done lately, and read again if they have
/// changed. Returns when that is done, or takes too long.
pub(crate) async fn follow<F: Follow>(owner: &Arc<F>) {
    let Some(turn) = owner.changes().turn() else {
        return;
    };
    let owner = Arc::clone(owner);
    let looking = spawn_blocking(move || {
        if owner.changes().look(SystemTime::now()) {
            owner.read_again();
        }
        drop(turn);
    });
    if timeout(PATIENCE, looking).await.is_err() {
        tracing::warn!("files that may have changed take long to read; the old ones go on so far");
    }
}

/// Watches files by looking at them.
#[derive(Debug)]
pub(crate) struct Changes {
    paths: Vec<PathBuf>,
    /// When they may be looked at.
    next: Mutex<Instant>,
    /// One look at a time.
    looking: Arc<Semaphore>,
    seen: Mutex<Seen>,
}

/// Each file's version; none for one that can't be looked at.
type Versions = Vec<Option<Version>>;

#[derive(Debug)]
struct Seen {
    /// Those that are read, or were when they were of no use.
    taken: Versions,
    /// Those of the last look.
    last: Versions,
}

impl Changes {
    /// From the files as they are now.
    pub(crate) fn of(paths: &[&Path]) -> Self {
        let paths: Vec<PathBuf> = paths.iter().map(|path| path.to_path_buf()).collect();
        let taken = versions(&paths);
        Changes {
            next: Mutex::new(Instant::now() + OFTEN),
            looking: Arc::new(Semaphore::new(1)),
            seen: Mutex::new(Seen {
                last: taken.clone(),
                taken,
            }),
            paths,
        }
    }

    /// The right to look, if it is time and nobody does.
    fn turn(&self) -> Option<OwnedSemaphorePermit> {
        let mut next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        if now < *next {
            return None;
        }
        let turn = Arc::clone(&self.looking).try_acquire_owned().ok()?;
        *next = now + OFTEN;
        Some(turn)
    }

    /// Whether there are other versions than those that were taken up, and they stay. They count as
    /// taken up from then on. Waits for the disk.
    fn look(&self, now: SystemTime) -> bool {
        let found = versions(&self.paths);
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let stay = found == seen.last || found.iter().all(|version| is_settled(version, now));
        seen.last.clone_from(&found);
        let changed = stay && found != seen.taken;
        if changed {
            seen.taken = found;
        }
        changed
    }
}

/// Whether a file was written some time ago.
fn is_settled(version: &Option<Version>, now: SystemTime) -> bool {
    let written = version.and_then(|version| version.written);
    let age = written.and_then(|written| now.duration_since(written).ok());
    age.is_some_and(|age| age >= OFTEN)
}

fn versions(paths: &[PathBuf]) -> Versions {
    let version = |path: &PathBuf| {
        let metadata = std::fs::metadata(path).ok()?;
        #[cfg(unix)]
        let number = std::os::unix::fs::MetadataExt::ino(&metadata);
        #[cfg(not(unix))]
        let number = 0;
        Some(Version {
            number,
            size: metadata.len(),
            written: metadata.modified().ok(),
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

    /// Writes a file as if that had been `age` before `now`.
    fn write(path: &Path, text: &str, now: SystemTime, age: Duration) {
        std::fs::write(path, text).expect("written");
        let file = std::fs::File::options().write(true).open(path);
        let dated = file.expect("there").set_modified(now - age);
        dated.expect("a file has a time");
    }

    #[test]
    fn a_change_is_taken_up_once_and_when_it_stays() {
        let (old, now) = (2 * OFTEN, SystemTime::now());
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("file");
        write(&path, "one", now, old);
        let changes = Changes::of(&[&path]);
        assert!(!changes.look(now));
        write(&path, "longer", now, old);
        assert!(changes.look(now), "it was written a while ago");
        assert!(!changes.look(now));
        // Written in two pieces.
        write(&path, "a ha", now, Duration::ZERO);
        assert!(!changes.look(now), "it may be half of a file");
        write(&path, "a half and the rest", now, Duration::ZERO);
        assert!(!changes.look(now), "and it was");
        assert!(changes.look(now), "the last look found the same");
        assert!(!changes.look(now));
        std::fs::remove_file(&path).expect("removed");
        assert!(!changes.look(now), "another one may take its place");
        assert!(changes.look(now));
        assert!(!changes.look(now));
    }

    #[test]
    fn one_at_a_time_looks_and_not_too_often() {
        let changes = Changes::of(&[]);
        let is_time = || *changes.next.lock().expect("no panic") = Instant::now();
        assert!(changes.turn().is_none(), "they were looked at just now");
        is_time();
        let turn = changes.turn().expect("it is time");
        is_time();
        assert!(changes.turn().is_none(), "somebody looks");
        drop(turn);
        assert!(changes.turn().is_some());
        assert!(changes.turn().is_none(), "that was just now");
    }

    /// A file whose reading waits for a word.
    struct Slow {
        changes: Changes,
        word: Mutex<mpsc::Receiver<()>>,
        read: AtomicUsize,
        done: Notify,
    }

    impl Follow for Slow {
        fn changes(&self) -> &Changes {
            &self.changes
        }

        fn read_again(&self) {
            let word = self.word.lock().expect("no panic");
            if word.recv_timeout(Duration::from_secs(60)).is_ok() {
                self.read.fetch_add(1, Ordering::Relaxed);
            }
            self.done.notify_one();
        }
    }

    #[tokio::test]
    async fn who_waits_for_the_disk_holds_up_nobody_else() {
        let (now, folder) = (SystemTime::now(), tempfile::tempdir().expect("a folder"));
        let path = folder.path().join("file");
        write(&path, "one", now, 2 * OFTEN);
        let (say, word) = mpsc::channel();
        let slow = Arc::new(Slow {
            changes: Changes::of(&[&path]),
            word: Mutex::new(word),
            read: AtomicUsize::new(0),
            done: Notify::new(),
        });
        write(&path, "longer", now, 2 * OFTEN);
        let is_time = || *slow.changes.next.lock().expect("no panic") = Instant::now();
        is_time();
        // It is read while nobody has said the word, and who asked is let go.
        follow(&slow).await;
        is_time();
        // Nor does the next one begin to read, or wait.
        follow(&slow).await;
        assert_eq!(slow.read.load(Ordering::Relaxed), 0);
        // Only this thread can say it, so it is another one that waits.
        say.send(()).expect("somebody waits");
        slow.done.notified().await;
        assert_eq!(slow.read.load(Ordering::Relaxed), 1);
    }
}
