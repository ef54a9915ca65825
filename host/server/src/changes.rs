//! Whether files have changed since somebody last looked.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

/// How often files are looked at, however often somebody asks.
const OFTEN: Duration = Duration::from_secs(1);

/// What tells two versions of a file apart: a file that is replaced has another number, one that is
/// written has another time or size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Version {
    number: u64,
    size: u64,
    written: Option<SystemTime>,
}

/// Watches files by looking at them.
#[derive(Debug)]
pub(crate) struct Changes {
    paths: Vec<PathBuf>,
    seen: Mutex<Seen>,
}

#[derive(Debug)]
struct Seen {
    at: Instant,
    /// None for a file that can't be looked at.
    versions: Vec<Option<Version>>,
}

impl Changes {
    /// From the files as they are now.
    pub(crate) fn of(paths: &[&Path]) -> Self {
        let paths: Vec<PathBuf> = paths.iter().map(|path| path.to_path_buf()).collect();
        let seen = Mutex::new(Seen {
            at: Instant::now(),
            versions: versions(&paths),
        });
        Changes { paths, seen }
    }

    /// Whether one of them is another than when this was last asked; no more often than once a second.
    pub(crate) fn look(&self) -> bool {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        if seen.at.elapsed() < OFTEN {
            return false;
        }
        let now = versions(&self.paths);
        let changed = now != seen.versions;
        *seen = Seen {
            at: Instant::now(),
            versions: now,
        };
        changed
    }
}

fn versions(paths: &[PathBuf]) -> Vec<Option<Version>> {
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

    #[test]
    fn a_change_is_seen_once() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("file");
        std::fs::write(&path, "one").expect("written");
        let changes = Changes::of(&[&path]);
        let look_later = || {
            let past = Instant::now().checked_sub(OFTEN).expect("a second ago");
            changes.seen.lock().expect("no panic").at = past;
            changes.look()
        };
        assert!(!look_later());
        std::fs::write(&path, "longer").expect("written");
        assert!(!changes.look(), "not a second has passed");
        assert!(look_later());
        assert!(!look_later());
        std::fs::remove_file(&path).expect("removed");
        assert!(look_later());
        assert!(!look_later());
    }
}
