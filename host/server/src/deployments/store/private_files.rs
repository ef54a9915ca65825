//! Directories and files that only this user can access.

use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

/// Creates a directory and its missing parents with mode 0700, durably. An existing directory keeps its
/// mode, since it may hold other files.
pub(in crate::deployments) fn create_directory(directory: &Path) -> io::Result<()> {
    if directory.is_dir() {
        return Ok(());
    }
    let parent = match directory.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    create_directory(parent)?;
    match DirBuilder::new().mode(0o700).create(directory) {
        // Another process has created it in the meantime.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && directory.is_dir() => {}
        created => created?,
    }
    sync_directory(parent)
}

/// Syncs the entries of a directory to disk.
pub(in crate::deployments) fn sync_directory(directory: &Path) -> io::Result<()> {
    File::open(directory)?.sync_all()
}

/// Options that create files with mode 0600.
pub(in crate::deployments) fn file_options() -> OpenOptions {
    let mut options = File::options();
    options.write(true).create(true).mode(0o600);
    options
}

/// Sets the mode of an existing file to 0600.
pub(in crate::deployments) fn restrict_to_owner(file: &Path) -> io::Result<()> {
    fs::set_permissions(file, Permissions::from_mode(0o600))
}
