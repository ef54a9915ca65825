//! Tells whether a file is the one that was read before.

use sha2::{Digest, Sha256};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Tells whether a file was replaced or written to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FileIdentity {
    numbers: [u64; 3],
    times: [i64; 4],
}

impl FileIdentity {
    pub fn of(path: &Path) -> std::io::Result<Self> {
        let file = fs::metadata(path)?;
        Ok(Self {
            numbers: [file.dev(), file.ino(), file.size()],
            times: [
                file.mtime(),
                file.mtime_nsec(),
                file.ctime(),
                file.ctime_nsec(),
            ],
        })
    }

    pub fn hash(&self, hasher: &mut Sha256) {
        for number in self.numbers {
            hasher.update(number.to_le_bytes());
        }
        for time in self.times {
            hasher.update(time.to_le_bytes());
        }
    }
}
