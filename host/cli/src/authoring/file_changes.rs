//! The state of a project's files, to notice when one is saved.
//!
//! Polling works on every file system, also on those of containers and networks, which report no changes. A project
//! has some hundred files, whose metadata takes a millisecond to read.

use crate::Error;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

const POLL_INTERVAL: Duration = Duration::from_millis(100);
/// Longest wait for files to settle; a program may write to one without end.
const MAX_SETTLE: Duration = Duration::from_secs(2);
const MAX_FILES: usize = 10_000;
/// Deepest directory that is watched.
const MAX_DEPTH: usize = 32;

/// Modification time and size of each file of a project. Excludes build outputs (`target`, directories with a
/// `CACHEDIR.TAG`, components and `Cargo.lock`), `node_modules`, and hidden files and directories except `.cargo`.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct FileSnapshot(BTreeMap<PathBuf, (SystemTime, u64)>);

impl FileSnapshot {
    pub(super) fn read(dir: &Path) -> Result<Self, Error> {
        let mut snapshot = Self::default();
        snapshot.add(dir, 0)?;
        if snapshot.0.len() > MAX_FILES {
            return Err(Error::failed(format!(
                "{} has more than {MAX_FILES} files to watch; name the directory of one project",
                dir.display()
            )));
        }
        Ok(snapshot)
    }

    fn add(&mut self, dir: &Path, depth: usize) -> Result<(), Error> {
        let entries = fs::read_dir(dir);
        // A subdirectory may vanish during the scan; the project's own directory must exist.
        let entries = match entries {
            Err(_) if depth > 0 => return Ok(()),
            entries => entries.map_err(Error::context(format!(
                "cannot read the directory {}",
                dir.display()
            )))?,
        };
        for entry in entries.flatten() {
            let (name, path) = (entry.file_name(), entry.path());
            let name = name.to_string_lossy();
            let is_hidden = name.starts_with('.') && name != ".cargo";
            let is_dir = entry.file_type().is_ok_and(|kind| kind.is_dir());
            if is_hidden || self.0.len() > MAX_FILES {
                continue;
            }
            if is_dir {
                let is_output = ["target", "node_modules"].contains(&&*name)
                    || path.join("CACHEDIR.TAG").exists();
                if !is_output && depth < MAX_DEPTH {
                    self.add(&path, depth + 1)?;
                }
                continue;
            }
            let is_output = name.ends_with(".wasm") || name == "Cargo.lock";
            // Follows a link to a file, but not to a directory.
            if let Ok(metadata) = fs::metadata(&path)
                && metadata.is_file()
                && !is_output
            {
                let changed = metadata.modified().unwrap_or(SystemTime::UNIX_EPOCH);
                self.0.insert(path, (changed, metadata.len()));
            }
        }
        Ok(())
    }

    /// Waits until a file differs from this snapshot, and then until the files settle, at most [`MAX_SETTLE`], because
    /// an editor may write several. Returns when the first difference was seen, at most a poll interval after the save.
    pub(super) async fn wait_for_change(&mut self, dir: &Path) -> Result<Instant, Error> {
        let mut last = Self::read(dir)?;
        let mut seen = None;
        loop {
            if last != *self {
                seen.get_or_insert_with(Instant::now);
            }
            tokio::time::sleep(POLL_INTERVAL).await;
            let now = Self::read(dir)?;
            match seen {
                // Returns even if the files are as before: one may have changed back.
                Some(seen) if now == last || seen.elapsed() >= MAX_SETTLE => {
                    *self = now;
                    return Ok(seen);
                }
                _ => last = now,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_that_keep_changing_do_not_stop_builds() {
        let dir = tempfile::tempdir().expect("a directory");
        let file = dir.path().join("log");
        fs::write(&file, "").expect("written");
        let runtime = crate::startup::tokio_runtime(1).map_err(|error| error.message(true));
        let seen = runtime.expect("threads").block_on(async {
            let mut snapshot = FileSnapshot::default();
            let changing = async {
                for length in 1.. {
                    fs::write(&file, "x".repeat(length)).expect("written");
                    tokio::time::sleep(POLL_INTERVAL / 2).await;
                }
            };
            tokio::select! {
                // In this order, so that after a stall a change precedes the next look.
                biased;
                () = changing => unreachable!("it has no end"),
                seen = snapshot.wait_for_change(dir.path()) => seen.map_err(|error| error.message(true)),
            }
        });
        assert!(seen.expect("readable").elapsed() >= MAX_SETTLE);
    }

    #[test]
    fn sources_count_and_outputs_do_not() {
        let dir = tempfile::tempdir().expect("a directory");
        let write = |name: &str, text: &str| {
            super::super::new::write(&dir.path().join(name), text).expect("own directory");
            FileSnapshot::read(dir.path())
                .map_err(|error| error.message(true))
                .expect("readable")
        };
        let mut last = write("src/lib.rs", "a");
        for (name, counts) in [
            ("target/a", false),
            ("node_modules/a.js", false),
            ("other/CACHEDIR.TAG", false),
            ("other/a.rs", false),
            (".git/a", false),
            ("a.wasm", false),
            ("Cargo.lock", false),
            (".cargo/config.toml", true),
            ("corral.toml", true),
            ("src/lib.rs", true),
        ] {
            let now = write(name, "longer");
            assert_eq!(now != last, counts, "{name}");
            last = now;
        }
    }
}
