//! A cache of the headers of model files, so that a start reads each header once: a vocabulary takes tens of milliseconds.

use super::Metadata;
use crate::error::LoadError;
use crate::file_identity::FileIdentity;
use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

/// Most headers that are kept; the oldest goes first.
const MAX_HEADERS: usize = 64;

static HEADERS: Mutex<VecDeque<CachedHeader>> = Mutex::new(VecDeque::new());

struct CachedHeader {
    path: PathBuf,
    identity: FileIdentity,
    metadata: Arc<Metadata>,
}

/// The metadata of a file, read with `read` unless the file is known and has not changed.
pub(super) fn metadata(
    path: &Path,
    read: impl FnOnce() -> Result<Metadata, LoadError>,
) -> Result<Arc<Metadata>, LoadError> {
    let headers = || HEADERS.lock().unwrap_or_else(PoisonError::into_inner);
    let identity = FileIdentity::of(path).ok();
    let known = headers()
        .iter()
        .find(|header| header.path == path && Some(header.identity) == identity)
        .map(|header| header.metadata.clone());
    if let Some(metadata) = known {
        return Ok(metadata);
    }
    let metadata = Arc::new(read()?);
    if let Some(identity) = identity {
        let mut headers = headers();
        headers.retain(|header| header.path != path);
        headers.push_back(CachedHeader {
            path: path.to_owned(),
            identity,
            metadata: metadata.clone(),
        });
        let surplus = headers.len().saturating_sub(MAX_HEADERS);
        headers.drain(..surplus);
    }
    Ok(metadata)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    #[test]
    fn header_is_read_until_file_changes() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("a.gguf");
        let reads = Cell::new(0);
        let read = || {
            let read = || {
                reads.set(reads.get() + 1);
                Ok(Metadata::new(Vec::new()))
            };
            metadata(&file, read).unwrap();
            reads.get()
        };
        std::fs::write(&file, "a").unwrap();
        assert_eq!((read(), read()), (1, 1));
        std::fs::write(&file, "ab").unwrap();
        assert_eq!((read(), read()), (2, 2));
    }

    #[test]
    fn failed_read_is_repeated() {
        let missing = Path::new("/nowhere/a.gguf");
        for _ in 0..2 {
            let refused = metadata(missing, || Err(LoadError::Config("no".to_owned())));
            assert!(refused.is_err());
        }
    }
}
