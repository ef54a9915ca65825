//! The limit of open files, and the part of it that connections may take.

use crate::Error;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// The smallest limit of open files with which the server starts.
const MIN_OPEN_FILES: u64 = 64;
/// Files kept for models, stores, swapped states, child processes and devices: half of a small limit, at most
/// this many.
const MAX_RESERVED: u64 = 256;
/// The admin listener gets one part in this many of the limit, at most [`MAX_ADMIN`].
const ADMIN_PART: u64 = 8;
const MAX_ADMIN: u64 = 64;

/// Files in folders get one part in this many of the limit, at most [`MAX_FOLDER_FILES`], if there are folders.
const FOLDER_PART: u64 = 8;
const MAX_FOLDER_FILES: u64 = 1024;

/// Connections and files that the limit of open files allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OpenFileShares {
    /// The limit of open files.
    pub(crate) open_files: u64,
    /// Connections of the public listener.
    pub(crate) public: u64,
    /// Connections of the admin listener.
    pub(crate) admin: u64,
    /// Connections of plugins to other servers, from the reserved files.
    pub(crate) outbound: u64,
    /// Files in folders that plugins read.
    pub(crate) folder_files: u64,
}

impl OpenFileShares {
    /// Raises the soft limit to the hard limit, and divides it. Folders of plugins take their part from the public listener.
    ///
    /// # Errors
    /// If the hard limit is too small for a server.
    pub(crate) fn raise_limit(has_folders: bool) -> Result<Self, Error> {
        let limit = getrlimit(Resource::Nofile);
        let raised = Rlimit {
            current: limit.maximum,
            maximum: limit.maximum,
        };
        let limit = match setrlimit(Resource::Nofile, raised) {
            Ok(()) => limit.maximum,
            // Some systems report a hard limit that they refuse.
            Err(_) => limit.current,
        };
        Self::divide(limit.unwrap_or(u64::MAX), has_folders)
    }

    fn divide(open_files: u64, has_folders: bool) -> Result<Self, Error> {
        if open_files < MIN_OPEN_FILES {
            return Err(Error::failed(format!(
                "the limit of open files is {open_files}, and a server needs at least {MIN_OPEN_FILES}; raise \
                 it, e.g. with 'ulimit -n 65536' or LimitNOFILE= of systemd"
            )));
        }
        let admin = (open_files / ADMIN_PART).min(MAX_ADMIN);
        let reserved = (open_files / 2).min(MAX_RESERVED);
        let folder_files = match has_folders {
            true => (open_files / FOLDER_PART).min(MAX_FOLDER_FILES),
            false => 0,
        };
        Ok(OpenFileShares {
            open_files,
            public: open_files - reserved - admin - folder_files,
            admin,
            outbound: reserved / 2,
            folder_files,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_leave_files_for_models_and_stores() {
        for (open_files, public, admin, outbound) in [
            (64, 24, 8, 16),
            (256, 96, 32, 64),
            (1024, 704, 64, 128),
            (65_536, 65_216, 64, 128),
        ] {
            let shares = OpenFileShares::divide(open_files, false).expect("enough");
            assert_eq!(
                (shares.public, shares.admin, shares.outbound),
                (public, admin, outbound),
                "{open_files}"
            );
        }
        for (open_files, public, folder_files) in
            [(64, 16, 8), (1024, 576, 128), (65_536, 64_192, 1024)]
        {
            let shares = OpenFileShares::divide(open_files, true).expect("enough");
            assert_eq!((shares.public, shares.folder_files), (public, folder_files));
        }
        assert!(OpenFileShares::divide(u64::MAX, true).is_ok(), "unlimited");
        let error = OpenFileShares::divide(63, false).expect_err("too few");
        assert!(format!("{error:?}").contains("at least 64"), "{error:?}");
    }
}
