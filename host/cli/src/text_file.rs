//! Reading of text files that should be small.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

/// The first `limit` bytes of a file.
pub(crate) fn read(path: &Path, limit: u64) -> io::Result<String> {
    io::read_to_string(File::open(path)?.take(limit))
}
