//! The files of components: whole or not there.
//!
//! Those that no revision names are *loose*. One of them stays at least as long as a change holds it, and
//! for the grace time after somebody was told that it is there: whoever uploaded it, or asked, means to
//! deploy it. What is over that goes when room is needed, the oldest first.

use super::private::{file_options, make_folder, sync_folder};
use super::{Bounds, StoreError};
use crate::deployments::digest::Digest;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

const FOLDER: &str = "components";
const ENDING: &str = ".wasm";
/// A file that is being written; there is never more than one.
const HALF: &str = "being-written";

/// The files, as they lie in the folder.
#[derive(Debug)]
pub(super) struct Components {
    folder: PathBuf,
    files: BTreeMap<Digest, u64>,
    /// Bytes of all of them.
    total: u64,
    /// Those that no revision names, the oldest first.
    loose: VecDeque<Digest>,
    /// Of those that are there: when somebody was last told so.
    told: BTreeMap<Digest, Told>,
    /// How many changes hold each.
    held: BTreeMap<Digest, usize>,
}

#[derive(Debug)]
struct Told {
    when: Instant,
    /// A revision has named it since.
    used: bool,
}

impl Components {
    /// How many there are in the store at `store`, whoever names them.
    pub(super) fn count(store: &Path) -> io::Result<usize> {
        let entries = match fs::read_dir(store.join(FOLDER)) {
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

    /// Looks at what is there; what is half written, and what is not in `used`, goes.
    pub(super) fn open(store: &Path, used: &BTreeSet<Digest>) -> io::Result<Self> {
        let folder = store.join(FOLDER);
        make_folder(&folder)?;
        let mut components = Components {
            folder,
            files: BTreeMap::new(),
            total: 0,
            loose: VecDeque::new(),
            told: BTreeMap::new(),
            held: BTreeMap::new(),
        };
        for entry in fs::read_dir(&components.folder)? {
            let entry = entry?;
            let name = entry.file_name();
            let name = name.to_string_lossy();
            match digest_of(&name) {
                Some(digest) if used.contains(&digest) => {
                    let bytes = entry.metadata()?.len();
                    components.files.insert(digest, bytes);
                    components.total += bytes;
                }
                Some(_) => fs::remove_file(entry.path())?,
                None if name == HALF => fs::remove_file(entry.path())?,
                // Not ours: left alone.
                None => {}
            }
        }
        Ok(components)
    }

    /// Where a component is, or is to be.
    pub(super) fn file(&self, digest: Digest) -> ComponentFile {
        ComponentFile {
            folder: self.folder.clone(),
            path: self.folder.join(digest.hex() + ENDING),
        }
    }

    pub(super) fn bytes(&self, digest: Digest) -> Option<u64> {
        self.files.get(&digest).copied()
    }

    /// Somebody is told that it is there.
    pub(super) fn told(&mut self, digest: Digest, now: Instant) {
        if self.files.contains_key(&digest) {
            let told = Told {
                when: now,
                used: false,
            };
            self.told.insert(digest, told);
        }
    }

    /// A change needs it until it [releases](Components::release) it.
    pub(super) fn hold(&mut self, digest: Digest) {
        *self.held.entry(digest).or_default() += 1;
    }

    /// A change that held it needs it no more.
    pub(super) fn release(&mut self, digest: Digest) {
        if let Some(count) = self.held.get_mut(&digest) {
            *count -= 1;
            if *count == 0 {
                self.held.remove(&digest);
            }
        }
    }

    /// Until when somebody may rely on it being there, if it is not held.
    fn relied_on(&self, digest: &Digest, grace: Duration) -> Option<Instant> {
        self.told.get(digest).map(|told| told.when + grace)
    }

    /// Makes room for one more file of `bytes` among those that nobody names.
    pub(super) fn make_room(
        &mut self,
        bytes: u64,
        bounds: &Bounds,
        now: Instant,
    ) -> Result<(), StoreError> {
        loop {
            let crowded = self.loose.len() >= bounds.loose.max(1);
            if !crowded && self.total.saturating_add(bytes) <= bounds.total_bytes {
                return Ok(());
            }
            let promised = |digest: &Digest| match self.told.get(digest) {
                Some(told) if !told.used => told.when + bounds.grace > now,
                _ => false,
            };
            let may_go = |digest: &Digest| !self.held.contains_key(digest) && !promised(digest);
            let first = self.loose.iter().copied().find(may_go);
            if let Some(digest) = first {
                self.remove(digest);
                continue;
            }
            if !crowded {
                return Err(StoreError::Full {
                    used: self.total,
                    limit: bounds.total_bytes,
                });
            }
            let first = self
                .loose
                .iter()
                .filter_map(|digest| self.relied_on(digest, bounds.grace))
                .min();
            return Err(StoreError::Crowded {
                limit: bounds.loose,
                wait: first.map_or(bounds.grace, |first| first.saturating_duration_since(now)),
            });
        }
    }

    /// Its file was written.
    pub(super) fn written(&mut self, digest: Digest, size: u64) {
        match self.files.insert(digest, size) {
            Some(before) => self.total -= before,
            None => self.loose.push_back(digest),
        }
        self.total += size;
    }

    /// A revision names it from now on.
    pub(super) fn named(&mut self, digest: Digest) {
        self.loose.retain(|loose| *loose != digest);
        if let Some(told) = self.told.get_mut(&digest) {
            told.used = true;
        }
    }

    /// Drops the files that are not in `used`, but for those that are loose already, and those that
    /// are held or relied on, which are loose from now on.
    pub(super) fn sweep(&mut self, used: &BTreeSet<Digest>, grace: Duration, now: Instant) {
        let left_over: Vec<_> = self
            .files
            .keys()
            .filter(|digest| !used.contains(digest) && !self.loose.contains(digest))
            .copied()
            .collect();
        for digest in left_over {
            let relied_on = self
                .relied_on(&digest, grace)
                .is_some_and(|until| until > now);
            if relied_on || self.held.contains_key(&digest) {
                self.loose.push_back(digest);
            } else {
                self.remove(digest);
            }
        }
    }

    /// It is damaged: no longer taken to be there.
    pub(super) fn forget(&mut self, digest: Digest) {
        if let Some(bytes) = self.files.remove(&digest) {
            self.total -= bytes;
        }
        self.loose.retain(|loose| *loose != digest);
        self.told.remove(&digest);
    }

    fn remove(&mut self, digest: Digest) {
        // What can't be removed now is swept at the next start.
        if let Err(error) = fs::remove_file(self.file(digest).path) {
            tracing::warn!(%digest, %error, "a component's file could not be removed");
        }
        self.forget(digest);
    }
}

/// Whose file this is the name of.
fn digest_of(name: &str) -> Option<Digest> {
    name.strip_suffix(ENDING).and_then(Digest::from_hex)
}

/// A component's file.
#[derive(Debug)]
pub(super) struct ComponentFile {
    folder: PathBuf,
    path: PathBuf,
}

impl ComponentFile {
    /// Writes it so that it is whole or not there, whatever happens. One at a time.
    pub(super) fn write(&self, bytes: &[u8]) -> io::Result<()> {
        let half = self.folder.join(HALF);
        let written = (|| {
            let mut file = file_options().truncate(true).open(&half)?;
            file.write_all(bytes)?;
            file.sync_all()?;
            fs::rename(&half, &self.path)?;
            sync_folder(&self.folder)
        })();
        if written.is_err() {
            // The next start sweeps it if this doesn't.
            let _ = fs::remove_file(&half);
        }
        written
    }

    pub(super) fn read(&self) -> io::Result<Vec<u8>> {
        fs::read(&self.path)
    }
}
