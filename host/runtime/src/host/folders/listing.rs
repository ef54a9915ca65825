//! Listings of directories.
//!
//! A listing is in the host's memory until the guest has read it, so a directory with too many entries has none; its files can
//! still be opened. `wasmtime-wasi` would hold a thread for each listing of WASI 0.3 until the guest reads on; [`Listing`] reads the
//! directory at once and waits without one.

use crate::folders::MAX_LISTINGS;
use crate::use_count::UseGuard;
use rustix::fs::{AtFlags, Dir, FileType, statat};
use std::fs::File;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::vec;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use wasmtime::StoreContextMut;
use wasmtime::component::{Destination, StreamProducer, StreamResult};
use wasmtime_wasi::p2::bindings::filesystem::types::ErrorCode as ErrorCodeP2;
use wasmtime_wasi::p3::bindings::filesystem::types::{DescriptorType, DirectoryEntry, ErrorCode};

/// Most entries of a directory that can be listed. With names of 255 bytes, [`MAX_LISTINGS`] listings take some 50 MB.
const MAX_ENTRIES: usize = 10_000;
const _: () = assert!(MAX_LISTINGS * MAX_ENTRIES * 320 <= 52_000_000);

/// Fails if a directory has more entries than can be listed. Blocks.
pub(super) fn check_length(dir: &File) -> Result<(), ErrorCodeP2> {
    let entries = Dir::read_from(dir).map_err(io::Error::from)?;
    // Its own and its parent's entry count, too.
    match entries.take(MAX_ENTRIES + 3).count() {
        count if count > MAX_ENTRIES + 2 => Err(ErrorCodeP2::Overflow),
        _ => Ok(()),
    }
}

/// The entries of a directory. Blocks.
fn entries(dir: &File) -> Result<Vec<DirectoryEntry>, ErrorCode> {
    let mut entries = Vec::new();
    for entry in Dir::read_from(dir).map_err(io::Error::from)? {
        let entry = entry.map_err(io::Error::from)?;
        let name = entry.file_name();
        if [c".", c".."].contains(&name) {
            continue;
        }
        if entries.len() == MAX_ENTRIES {
            return Err(ErrorCode::Overflow);
        }
        let type_ = match entry.file_type() {
            // Some file systems do not say.
            FileType::Unknown => {
                let stat = statat(dir, name, AtFlags::SYMLINK_NOFOLLOW).map_err(io::Error::from)?;
                FileType::from_raw_mode(stat.st_mode)
            }
            known => known,
        };
        entries.push(DirectoryEntry {
            type_: descriptor_type(type_),
            name: name
                .to_str()
                .map_err(|_| ErrorCode::IllegalByteSequence)?
                .to_owned(),
        });
    }
    Ok(entries)
}

fn descriptor_type(file_type: FileType) -> DescriptorType {
    match file_type {
        FileType::RegularFile => DescriptorType::RegularFile,
        FileType::Directory => DescriptorType::Directory,
        FileType::Symlink => DescriptorType::SymbolicLink,
        FileType::Fifo => DescriptorType::Fifo,
        FileType::Socket => DescriptorType::Socket,
        FileType::CharacterDevice => DescriptorType::CharacterDevice,
        FileType::BlockDevice => DescriptorType::BlockDevice,
        FileType::Unknown => DescriptorType::Other(None),
    }
}

/// A stream of a directory's entries.
pub(super) struct Listing {
    /// Reads the entries.
    task: Option<JoinHandle<Result<Vec<DirectoryEntry>, ErrorCode>>>,
    entries: vec::IntoIter<DirectoryEntry>,
    /// Takes the result at the end.
    ended: Option<oneshot::Sender<Result<(), ErrorCode>>>,
    _counted: UseGuard,
}

impl Listing {
    /// Reads the entries in the background.
    pub(super) fn start(
        dir: Arc<File>,
        counted: UseGuard,
        ended: oneshot::Sender<Result<(), ErrorCode>>,
    ) -> Self {
        Listing {
            task: Some(tokio::task::spawn_blocking(move || entries(&dir))),
            entries: Vec::new().into_iter(),
            ended: Some(ended),
            _counted: counted,
        }
    }

    fn end(&mut self, result: Result<(), ErrorCode>) -> StreamResult {
        if let Some(ended) = self.ended.take() {
            // A guest need not read the result.
            let _ = ended.send(result);
        }
        StreamResult::Dropped
    }

    /// The next entry, or the result of the listing.
    fn poll_next(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Result<DirectoryEntry, Result<(), ErrorCode>>> {
        if let Some(task) = &mut self.task {
            let read = ready!(Pin::new(task).poll(context));
            self.task = None;
            match read.unwrap_or(Err(ErrorCode::Io)) {
                Ok(entries) => self.entries = entries.into_iter(),
                Err(error) => return Poll::Ready(Err(Err(error))),
            }
        }
        Poll::Ready(self.entries.next().ok_or(Ok(())))
    }
}

impl Drop for Listing {
    fn drop(&mut self) {
        self.end(Ok(()));
    }
}

impl<D> StreamProducer<D> for Listing {
    type Item = DirectoryEntry;
    type Buffer = Option<DirectoryEntry>;

    fn poll_produce<'a>(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        mut store: StoreContextMut<'a, D>,
        mut destination: Destination<'a, Self::Item, Self::Buffer>,
        finish: bool,
    ) -> Poll<wasmtime::Result<StreamResult>> {
        // A read of no items only asks whether there are some.
        if destination.remaining(&mut store) == Some(0) {
            return Poll::Ready(Ok(StreamResult::Completed));
        }
        let result = match self.poll_next(context) {
            Poll::Pending if finish => StreamResult::Cancelled,
            Poll::Pending => return Poll::Pending,
            Poll::Ready(Ok(entry)) => {
                destination.set_buffer(Some(entry));
                StreamResult::Completed
            }
            Poll::Ready(Err(result)) => self.end(result),
        };
        Poll::Ready(Ok(result))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::use_count::UseCount;
    use std::future::poll_fn;

    async fn list(dir: &std::path::Path) -> (Vec<String>, Result<(), ErrorCode>) {
        let counted = UseCount::default().guard();
        let (ended, result) = oneshot::channel();
        let mut listing = Listing::start(Arc::new(File::open(dir).unwrap()), counted, ended);
        let mut names = Vec::new();
        loop {
            match poll_fn(|context| listing.poll_next(context)).await {
                Ok(entry) => names.push(format!("{:?} {}", entry.type_, entry.name)),
                Err(result) => {
                    listing.end(result);
                    break;
                }
            }
        }
        names.sort();
        (names, result.await.unwrap())
    }

    #[tokio::test]
    async fn listing_has_all_entries_with_types() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("a"), "").unwrap();
        std::fs::create_dir(dir.path().join("b")).unwrap();
        std::os::unix::fs::symlink("a", dir.path().join("c")).unwrap();
        let (names, result) = list(dir.path()).await;
        let expected = [
            "DescriptorType::Directory b",
            "DescriptorType::RegularFile a",
            "DescriptorType::SymbolicLink c",
        ];
        assert_eq!(names, expected);
        assert!(result.is_ok(), "{result:?}");
    }

    #[tokio::test]
    async fn directories_with_too_many_entries_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let file = |index: usize| std::fs::write(dir.path().join(index.to_string()), "").unwrap();
        (0..MAX_ENTRIES).for_each(file);
        let open = || File::open(dir.path()).unwrap();
        assert_eq!(list(dir.path()).await.0.len(), MAX_ENTRIES);
        assert!(check_length(&open()).is_ok());
        file(MAX_ENTRIES);
        let (names, result) = list(dir.path()).await;
        assert!(names.is_empty());
        assert!(matches!(result, Err(ErrorCode::Overflow)), "{result:?}");
        assert_eq!(check_length(&open()), Err(ErrorCodeP2::Overflow));
    }
}
