//! The component files: each complete or absent.
//!
//! A component that no revision references stays while a change holds it, and for the grace period after a
//! client learned that it exists: an upload or a query announces a deploy. Afterwards it is removed when
//! room is needed, the oldest first.

use super::private_files::{create_directory, file_options, sync_directory};
use super::{StoreError, StoreLimits};
use crate::deployments::digest::Digest;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

const DIRECTORY: &str = "components";
const EXTENSION: &str = ".wasm";
/// The file being written; there is at most one.
const PARTIAL: &str = "being-written";

/// The component files in the directory.
#[derive(Debug)]
pub(super) struct ComponentFiles {
    directory: PathBuf,
    files: BTreeMap<Digest, u64>,
    total_bytes: u64,
    /// Components that no revision references, oldest first.
    unreferenced: VecDeque<Digest>,
    /// When a client last learned that a component exists.
    grace: BTreeMap<Digest, GracePeriod>,
    /// Number of changes that hold each component.
    holds: BTreeMap<Digest, usize>,
}

#[derive(Debug)]
struct GracePeriod {
    since: Instant,
    /// A revision has referenced the component since.
    used: bool,
}

impl ComponentFiles {
    /// Number of component files in `store`, referenced or not.
    pub(super) fn count(store: &Path) -> io::Result<usize> {
        let entries = match fs::read_dir(store.join(DIRECTORY)) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(0),
            Err(error) => return Err(error),
        };
        let mut count = 0;
        for entry in entries {
            let name = entry?.file_name();
            count += usize::from(digest_of(&name.to_string_lossy()).is_some());
        }
        Ok(count)
    }

    /// Lists the files in `store`. Removes partial files and those not in `referenced`.
    pub(super) fn open(store: &Path, referenced: &BTreeSet<Digest>) -> io::Result<Self> {
        let directory = store.join(DIRECTORY);
        create_directory(&directory)?;
        let mut components = ComponentFiles {
            directory,
            files: BTreeMap::new(),
            total_bytes: 0,
            unreferenced: VecDeque::new(),
            grace: BTreeMap::new(),
            holds: BTreeMap::new(),
        };
        for entry in fs::read_dir(&components.directory)? {
            let entry = entry?;
            let name = entry.file_name();
            let name = name.to_string_lossy();
            match digest_of(&name) {
                Some(digest) if referenced.contains(&digest) => {
                    let bytes = entry.metadata()?.len();
                    components.files.insert(digest, bytes);
                    components.total_bytes += bytes;
                }
                Some(_) => fs::remove_file(entry.path())?,
                None if name == PARTIAL => fs::remove_file(entry.path())?,
                // Not a file of the store.
                None => {}
            }
        }
        Ok(components)
    }

    /// The file of a component, which may not exist yet.
    pub(super) fn file(&self, digest: Digest) -> ComponentFile {
        ComponentFile {
            directory: self.directory.clone(),
            path: self.directory.join(digest.hex() + EXTENSION),
        }
    }

    pub(super) fn bytes(&self, digest: Digest) -> Option<u64> {
        self.files.get(&digest).copied()
    }

    /// Starts the grace period of an existing component anew.
    pub(super) fn renew_grace(&mut self, digest: Digest, now: Instant) {
        if self.files.contains_key(&digest) {
            let grace = GracePeriod {
                since: now,
                used: false,
            };
            self.grace.insert(digest, grace);
        }
    }

    /// Keeps the component until it is [released](ComponentFiles::release).
    pub(super) fn hold(&mut self, digest: Digest) {
        *self.holds.entry(digest).or_default() += 1;
    }

    pub(super) fn release(&mut self, digest: Digest) {
        if let Some(count) = self.holds.get_mut(&digest) {
            *count -= 1;
            if *count == 0 {
                self.holds.remove(&digest);
            }
        }
    }

    fn grace_end(&self, digest: &Digest, period: Duration) -> Option<Instant> {
        self.grace.get(digest).map(|grace| grace.since + period)
    }

    /// Makes room for one more unreferenced file of `bytes`.
    pub(super) fn make_room(
        &mut self,
        bytes: u64,
        limits: &StoreLimits,
        now: Instant,
    ) -> Result<(), StoreError> {
        loop {
            let too_many = self.unreferenced.len() >= limits.max_unreferenced.max(1);
            if !too_many && self.total_bytes.saturating_add(bytes) <= limits.max_total_bytes {
                return Ok(());
            }
            let awaits_deploy = |digest: &Digest| match self.grace.get(digest) {
                Some(grace) if !grace.used => grace.since + limits.grace_period > now,
                _ => false,
            };
            let removable =
                |digest: &Digest| !self.holds.contains_key(digest) && !awaits_deploy(digest);
            let first = self.unreferenced.iter().copied().find(removable);
            if let Some(digest) = first {
                self.remove(digest);
                continue;
            }
            if !too_many {
                return Err(StoreError::Full {
                    used: self.total_bytes,
                    limit: limits.max_total_bytes,
                });
            }
            let next_end = self
                .unreferenced
                .iter()
                .filter_map(|digest| self.grace_end(digest, limits.grace_period))
                .min();
            return Err(StoreError::TooManyUnreferenced {
                limit: limits.max_unreferenced,
                wait: next_end.map_or(limits.grace_period, |end| {
                    end.saturating_duration_since(now)
                }),
            });
        }
    }

    /// Adds a component whose file has been written.
    pub(super) fn add(&mut self, digest: Digest, size: u64) {
        match self.files.insert(digest, size) {
            Some(before) => self.total_bytes -= before,
            None => self.unreferenced.push_back(digest),
        }
        self.total_bytes += size;
    }

    /// Marks a component as referenced by a revision.
    pub(super) fn mark_referenced(&mut self, digest: Digest) {
        self.unreferenced.retain(|other| *other != digest);
        if let Some(grace) = self.grace.get_mut(&digest) {
            grace.used = true;
        }
    }

    /// Removes components that `referenced` no longer contains. Those that are held or within their grace
    /// period become unreferenced instead.
    pub(super) fn sweep(
        &mut self,
        referenced: &BTreeSet<Digest>,
        grace_period: Duration,
        now: Instant,
    ) {
        let newly_unreferenced: Vec<_> = self
            .files
            .keys()
            .filter(|digest| !referenced.contains(digest) && !self.unreferenced.contains(digest))
            .copied()
            .collect();
        for digest in newly_unreferenced {
            let in_grace = self
                .grace_end(&digest, grace_period)
                .is_some_and(|end| end > now);
            if in_grace || self.holds.contains_key(&digest) {
                self.unreferenced.push_back(digest);
            } else {
                self.remove(digest);
            }
        }
    }

    /// Stops counting a damaged component as stored.
    pub(super) fn mark_missing(&mut self, digest: Digest) {
        if let Some(bytes) = self.files.remove(&digest) {
            self.total_bytes -= bytes;
        }
        self.unreferenced.retain(|other| *other != digest);
        self.grace.remove(&digest);
    }

    fn remove(&mut self, digest: Digest) {
        // A file that cannot be removed now is removed at the next start.
        if let Err(error) = fs::remove_file(self.file(digest).path) {
            tracing::warn!(%digest, %error, "cannot remove a component's file");
        }
        self.mark_missing(digest);
    }
}

/// The digest in the name of a component file.
fn digest_of(name: &str) -> Option<Digest> {
    name.strip_suffix(EXTENSION).and_then(Digest::from_hex)
}

/// The file of one component.
#[derive(Debug)]
pub(super) struct ComponentFile {
    directory: PathBuf,
    path: PathBuf,
}

impl ComponentFile {
    /// Writes the file atomically and durably. Only one write at a time.
    pub(super) fn write(&self, bytes: &[u8]) -> io::Result<()> {
        let partial = self.directory.join(PARTIAL);
        let written = (|| {
            let mut file = file_options().truncate(true).open(&partial)?;
            file.write_all(bytes)?;
            file.sync_all()?;
            fs::rename(&partial, &self.path)?;
            sync_directory(&self.directory)
        })();
        if written.is_err() {
            // If this fails too, the next start removes the file.
            let _ = fs::remove_file(&partial);
        }
        written
    }

    pub(super) fn read(&self) -> io::Result<Vec<u8>> {
        fs::read(&self.path)
    }
}
