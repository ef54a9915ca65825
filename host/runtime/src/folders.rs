//! Folders of the operator that a deployment's plugins read through `wasi:filesystem`, if it is granted them.
//!
//! A granted folder is the preopened directory `/NAME`, read-only. `wasmtime-wasi` resolves paths below it and refuses those that
//! leave it, by `..`, by an absolute path or by a symbolic link, and everything that writes. This module bounds what a plugin holds
//! of the host: open files ([`FolderFiles`], over all plugins), listings of directories and buffers of streams (`host/folders.rs`).
//! Without a grant a plugin has no preopened directory, so it cannot open anything.

use crate::deployment_share::deployment_share;
use crate::named_values::{Named, check_name};
use crate::use_count::UseCount;
use rustix::fs::{Mode, OFlags};
use std::fmt;
use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::{Arc, Weak};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use wasmtime_wasi::filesystem::{Descriptor, Dir};
use wasmtime_wasi::{FsPerms, OpenMode};

/// Most folders of a server.
pub const MAX_FOLDERS: usize = 64;
/// Listings of directories that an instance holds at once: the levels of a recursive walk.
pub(crate) const MAX_LISTINGS: usize = 16;

/// A directory that plugins may read. Open from its creation until no plugin uses it any more.
#[derive(Clone)]
pub struct Folder(Dir);

/// The folders of a server. New instances see replaced ones.
pub type Folders = Named<Folder>;

/// Files in folders that all plugins together may have open.
#[derive(Clone, Debug)]
pub(crate) struct FolderFiles {
    permits: Arc<Semaphore>,
    max: usize,
}

/// The folders of a deployment that is granted some.
pub(crate) struct FolderAccess {
    names: Vec<String>,
    folders: Folders,
    /// Permits of the deployment, and of the process.
    permits: [Arc<Semaphore>; 2],
}

/// Files and directories that an instance has open, and its listings of WASI 0.3.
#[derive(Default)]
pub(crate) struct OpenFiles {
    files: Vec<OpenFile>,
    pub(crate) listings: UseCount,
}

struct OpenFile {
    /// Shared by its descriptors and their streams.
    file: Weak<File>,
    _permit: FilePermit,
}

/// A file counts until this is dropped.
pub(crate) struct FilePermit {
    _permits: [OwnedSemaphorePermit; 2],
}

impl Folder {
    /// Opens a directory.
    ///
    /// # Errors
    /// If it does not exist, is no directory, or may not be read.
    pub fn open(path: &Path) -> io::Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let dir = rustix::fs::open(path, flags, Mode::empty())?;
        Ok(Folder(Dir::new(
            dir.into(),
            FsPerms::ReadOnly,
            OpenMode::READ,
            false,
        )))
    }
}

impl fmt::Debug for Folder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Folder").field(&self.0.dir).finish()
    }
}

/// Checks the name of a folder.
///
/// # Errors
/// A message to append to the name.
pub fn check_folder_name(name: &str) -> Result<(), String> {
    check_name(name, "folder")
}

impl FolderFiles {
    /// All plugins together may have `max` files open.
    pub(crate) fn new(max: usize) -> Self {
        let max = max.clamp(1, Semaphore::MAX_PERMITS);
        FolderFiles {
            permits: Arc::new(Semaphore::new(max)),
            max,
        }
    }

    /// Permits of a new deployment.
    pub(crate) fn deployment_permits(&self) -> Arc<Semaphore> {
        deployment_share(self.max)
    }
}

impl FolderAccess {
    /// Access of a deployment with these permits to the folders of these names; none if there are no names.
    pub(crate) fn new(
        names: Vec<String>,
        folders: Folders,
        deployment: &Arc<Semaphore>,
        files: &FolderFiles,
    ) -> Option<Arc<Self>> {
        if names.is_empty() {
            return None;
        }
        Some(Arc::new(Self {
            names,
            folders,
            permits: [Arc::clone(deployment), Arc::clone(&files.permits)],
        }))
    }

    /// The preopened directories: the granted folders that the operator still gives.
    pub(crate) fn preopens(&self) -> impl Iterator<Item = (Dir, String)> {
        let folder = |name: &String| Some((self.folders.get(name)?.0, format!("/{name}")));
        self.names.iter().filter_map(folder)
    }

    fn permit(&self) -> Option<FilePermit> {
        let [deployment, process] = &self.permits;
        let permits = [
            Arc::clone(deployment).try_acquire_owned().ok()?,
            Arc::clone(process).try_acquire_owned().ok()?,
        ];
        Some(FilePermit { _permits: permits })
    }
}

impl OpenFiles {
    /// A permit for another file, unless too many are open.
    pub(crate) fn permit(&mut self, access: &FolderAccess) -> Option<FilePermit> {
        self.files.retain(|open| open.file.strong_count() > 0);
        access.permit()
    }

    /// Counts a file until its descriptors and streams are gone.
    pub(crate) fn add(&mut self, descriptor: &Descriptor, permit: FilePermit) {
        let file = match descriptor {
            Descriptor::File(file) => &file.file,
            Descriptor::Dir(dir) => &dir.dir,
        };
        self.files.push(OpenFile {
            file: Arc::downgrade(file),
            _permit: permit,
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;
    use wasmtime_wasi::filesystem::File as WasiFile;

    fn file() -> Descriptor {
        let file = tempfile::tempfile().unwrap();
        Descriptor::File(WasiFile::new(
            file,
            FsPerms::ReadOnly,
            OpenMode::READ,
            false,
        ))
    }

    #[test]
    fn files_count_until_their_last_stream_ends() {
        let files = FolderFiles::new(8);
        let deployment = files.deployment_permits();
        let names = vec!["docs".to_owned()];
        let access = FolderAccess::new(names, Folders::default(), &deployment, &files).unwrap();
        let mut open = OpenFiles::default();
        let descriptors = [file(), file()];
        for descriptor in &descriptors {
            let permit = open.permit(&access).unwrap();
            open.add(descriptor, permit);
        }
        assert!(open.permit(&access).is_none(), "a quarter of 8");
        // A stream that outlives its descriptor.
        let stream = descriptors[0].clone();
        drop(descriptors);
        let permit = open.permit(&access).unwrap();
        assert!(open.permit(&access).is_none());
        drop((stream, permit));
        drop(open);
        assert_eq!(deployment.available_permits(), 2);
        assert_eq!(files.permits.available_permits(), 8);
    }

    #[test]
    fn deployment_leaves_files_for_others() {
        let files = FolderFiles::new(8);
        let access = || {
            let names = vec!["docs".to_owned()];
            let deployment = files.deployment_permits();
            FolderAccess::new(names, Folders::default(), &deployment, &files).unwrap()
        };
        let (one, other) = (access(), access());
        let held = Vec::from_iter(std::iter::from_fn(|| one.permit()));
        assert_eq!(held.len(), 2);
        assert!(other.permit().is_some());
    }

    #[test]
    fn only_directories_are_folders() {
        let dir = tempfile::tempdir().unwrap();
        assert!(Folder::open(dir.path()).is_ok());
        let file = dir.path().join("file");
        std::fs::write(&file, "").unwrap();
        assert!(Folder::open(&file).is_err());
        assert!(Folder::open(&dir.path().join("none")).is_err());
    }

    #[test]
    fn removed_folders_are_not_preopened() {
        let dir = tempfile::tempdir().unwrap();
        let folders = Folders::default();
        let folder = Folder::open(dir.path()).unwrap();
        folders.replace(BTreeMap::from([("docs".to_owned(), folder)]));
        let files = FolderFiles::new(8);
        let names = ["docs", "gone"].map(str::to_owned).to_vec();
        let deployment = files.deployment_permits();
        let access = FolderAccess::new(names, folders.clone(), &deployment, &files).unwrap();
        let paths = || Vec::from_iter(access.preopens().map(|(_, path)| path));
        assert_eq!(paths(), ["/docs"]);
        folders.replace(BTreeMap::new());
        assert!(paths().is_empty());
        assert!(FolderAccess::new(Vec::new(), folders, &deployment, &files).is_none());
    }
}
