//! Descriptors that a listener keeps for its connections.

use std::fs::File;
use std::io;

/// `EMFILE`: the process has as many open files as it may. `ENFILE`: the machine has.
const TOO_MANY_FILES: [i32; 2] = [24, 23];

/// Open files of no use but to be closed: their descriptors then serve the next connections.
#[derive(Debug)]
pub(super) struct SpareFiles {
    files: Vec<File>,
    wanted: usize,
}

impl SpareFiles {
    /// Opens `wanted` files, or as many as the limit allows.
    pub(super) fn new(wanted: usize) -> Self {
        let files = Vec::new();
        let mut spare = SpareFiles { files, wanted };
        spare.refill();
        spare
    }

    /// Frees a descriptor if `error` says that there is none. Whether it did.
    pub(super) fn release(&mut self, error: &io::Error) -> bool {
        let too_many = error
            .raw_os_error()
            .is_some_and(|code| TOO_MANY_FILES.contains(&code));
        too_many && self.files.pop().is_some()
    }

    /// Opens the files that are missing, as far as the limit allows.
    pub(super) fn refill(&mut self) {
        while self.files.len() < self.wanted
            && let Ok(file) = File::open("/dev/null")
        {
            self.files.push(file);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_descriptor_releases_spare_file() {
        let mut spare = SpareFiles::new(2);
        let full = io::Error::from_raw_os_error(24);
        assert!(!spare.release(&io::ErrorKind::ConnectionAborted.into()));
        assert!(spare.release(&full) && spare.release(&full));
        assert!(!spare.release(&full), "none is left");
        spare.refill();
        assert_eq!(spare.files.len(), 2);
    }
}
