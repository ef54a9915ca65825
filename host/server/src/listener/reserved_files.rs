//! Files that the process holds open, so that the admin listener still gets descriptors when none is free.

use std::fs::File;
use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// `EMFILE` (too many open files in the process) and `ENFILE` (on the machine).
const TOO_MANY_FILES: [i32; 2] = [24, 23];

/// Open files that are closed when the process has no free descriptor.
#[derive(Debug)]
pub(crate) struct ReservedFiles {
    files: Mutex<Vec<File>>,
    target: usize,
}

impl ReservedFiles {
    /// Opens `target` files, or as many as the limit allows.
    pub(crate) fn new(target: usize) -> Self {
        let files = Mutex::default();
        let reserved = ReservedFiles { files, target };
        reserved.refill();
        reserved
    }

    /// Closes one reserved file if `error` means that no descriptor is free. Returns whether it closed one.
    pub(super) fn release(&self, error: &io::Error) -> bool {
        let too_many = error
            .raw_os_error()
            .is_some_and(|code| TOO_MANY_FILES.contains(&code));
        too_many && self.lock().pop().is_some()
    }

    /// Opens the missing files, as far as the limit allows. Returns whether none is missing.
    pub(super) fn refill(&self) -> bool {
        let mut files = self.lock();
        while files.len() < self.target {
            let Ok(file) = File::open("/dev/null") else {
                return false;
            };
            files.push(file);
        }
        true
    }

    fn lock(&self) -> MutexGuard<'_, Vec<File>> {
        self.files.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_descriptor_releases_reserved_file() {
        let reserved = ReservedFiles::new(2);
        let full = io::Error::from_raw_os_error(24);
        assert!(!reserved.release(&io::ErrorKind::ConnectionAborted.into()));
        assert!(reserved.release(&full) && reserved.release(&full));
        assert!(!reserved.release(&full), "none is left");
        assert!(reserved.refill());
        assert_eq!(reserved.lock().len(), 2);
    }
}
