//! Where a component comes from.

use bytes::Bytes;
use std::path::{Path, PathBuf};

/// Where a component comes from.
#[derive(Clone, Debug)]
pub enum ComponentSource {
    /// A file.
    File(PathBuf),
    /// The component itself.
    Bytes(Bytes),
}

impl From<PathBuf> for ComponentSource {
    fn from(path: PathBuf) -> Self {
        Self::File(path)
    }
}

impl From<&Path> for ComponentSource {
    fn from(path: &Path) -> Self {
        Self::File(path.to_owned())
    }
}

impl From<Bytes> for ComponentSource {
    fn from(bytes: Bytes) -> Self {
        Self::Bytes(bytes)
    }
}

impl From<Vec<u8>> for ComponentSource {
    fn from(bytes: Vec<u8>) -> Self {
        Self::Bytes(bytes.into())
    }
}
