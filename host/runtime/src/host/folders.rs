//! Functions of `wasi:filesystem` with bounds, linked in place of those of `wasmtime-wasi`.
//!
//! - `get-directories` answers the granted folders, which stay open in the host: an instance opens nothing of its own for them.
//! - `open-at` needs a permit, which the file keeps while a descriptor or a stream of it exists. It opens regular files and
//!   directories only: to open a pipe would block a thread until somebody writes to it.
//! - `read-directory` is bounded, see `listing.rs`.
//! - `read-via-stream` of WASI 0.2, whose streams buffer in the host, counts the instance's streams. Those of WASI 0.3 buffer 8 KiB
//!   each, and the instance's table bounds their number.
//!
//! An operation that exceeds a bound fails with `busy`.

mod listing;

use crate::folders::{FilePermit, MAX_LISTINGS};
use crate::state::State;
use listing::{Listing, check_length};
use std::sync::Arc;
use tokio::sync::oneshot;
use wasmtime::StoreContextMut;
use wasmtime::component::{Accessor, FutureReader, Linker, Resource, StreamReader};
use wasmtime_wasi::filesystem::{Descriptor, WasiFilesystem, WasiFilesystemView};
use wasmtime_wasi::p2::bindings::filesystem::types as p2;
use wasmtime_wasi::p2::{DynInputStream, FsError};
use wasmtime_wasi::p3::bindings::filesystem::types as p3;
use wasmtime_wasi::p3::filesystem::FilesystemError;

/// Input streams of WASI 0.2 that an instance may hold when it opens one of a file. Each buffers up to 64 KiB.
const MAX_STREAMS: usize = 128;

type Store<'a> = StoreContextMut<'a, State>;

impl State {
    /// Handles of the granted folders with their paths, for `get-directories`.
    fn preopened_folders(&mut self) -> wasmtime::Result<Vec<(Resource<Descriptor>, String)>> {
        let Some(access) = self.grants.folders.clone() else {
            return Ok(Vec::new());
        };
        let preopens = access
            .preopens()
            .map(|(dir, path)| Ok((self.table.push(Descriptor::Dir(dir))?, path)));
        preopens.collect()
    }

    /// A permit to open a file.
    fn file_permit(&mut self) -> Option<FilePermit> {
        let access = self.grants.folders.clone()?;
        self.open_files.permit(&access)
    }

    /// Counts a file that was opened with a permit.
    fn file_opened(
        &mut self,
        descriptor: &Resource<Descriptor>,
        permit: FilePermit,
    ) -> wasmtime::Result<()> {
        let descriptor = self.table.get(descriptor)?;
        self.open_files.add(descriptor, permit);
        Ok(())
    }
}

pub(super) fn link_p2(linker: &mut Linker<State>) -> wasmtime::Result<()> {
    let mut preopens = linker.instance("wasi:filesystem/preopens@0.2.12")?;
    preopens.func_wrap("get-directories", |mut store: Store<'_>, (): ()| {
        Ok((store.data_mut().preopened_folders()?,))
    })?;
    let mut types = linker.instance("wasi:filesystem/types@0.2.12")?;
    types.func_wrap_async(
        "[method]descriptor.open-at",
        |mut store: Store<'_>,
         arguments: (
            Resource<Descriptor>,
            p2::PathFlags,
            String,
            p2::OpenFlags,
            p2::DescriptorFlags,
        )| {
            Box::new(async move {
                let opened = open_p2(store.data_mut(), arguments).await;
                Ok((opened.map(Ok).or_else(|error| error.downcast().map(Err))?,))
            })
        },
    )?;
    types.func_wrap_async(
        "[method]descriptor.read-directory",
        |mut store: Store<'_>, (dir,): (Resource<Descriptor>,)| {
            Box::new(async move {
                let listing = list_p2(store.data_mut(), dir).await;
                Ok((listing.map(Ok).or_else(|error| error.downcast().map(Err))?,))
            })
        },
    )?;
    types.func_wrap(
        "[method]descriptor.read-via-stream",
        |mut store: Store<'_>, (file, offset): (Resource<Descriptor>, u64)| {
            let state = store.data_mut();
            let streams = state.table.iter_mut();
            let streams = streams.filter(|entry| entry.is::<DynInputStream>());
            if streams.count() >= MAX_STREAMS {
                return Ok((Err(p2::ErrorCode::Busy),));
            }
            let stream = p2::HostDescriptor::read_via_stream(&mut state.filesystem(), file, offset);
            Ok((stream.map(Ok).or_else(|error| error.downcast().map(Err))?,))
        },
    )
}

async fn open_p2(
    state: &mut State,
    (dir, path_flags, path, open_flags, flags): (
        Resource<Descriptor>,
        p2::PathFlags,
        String,
        p2::OpenFlags,
        p2::DescriptorFlags,
    ),
) -> Result<Resource<Descriptor>, FsError> {
    use p2::{DescriptorType, ErrorCode, HostDescriptor, OpenFlags};
    let permit = state.file_permit().ok_or(ErrorCode::Busy)?;
    // A new file has no type. It is refused, since folders are read-only.
    if !open_flags.contains(OpenFlags::CREATE) {
        let dir = Resource::new_borrow(dir.rep());
        let mut filesystem = state.filesystem();
        let stat = HostDescriptor::stat_at(&mut filesystem, dir, path_flags, path.clone());
        match stat.await?.type_ {
            DescriptorType::RegularFile
            | DescriptorType::Directory
            | DescriptorType::SymbolicLink => {}
            _ => return Err(ErrorCode::NotPermitted.into()),
        }
    }
    let mut filesystem = state.filesystem();
    let opened = HostDescriptor::open_at(&mut filesystem, dir, path_flags, path, open_flags, flags);
    let opened = opened.await?;
    state.file_opened(&opened, permit).map_err(FsError::trap)?;
    Ok(opened)
}

async fn list_p2(
    state: &mut State,
    dir: Resource<Descriptor>,
) -> Result<Resource<p2::DirectoryEntryStream>, FsError> {
    let listings = state.table.iter_mut();
    let listings = listings.filter(|entry| entry.is::<p2::DirectoryEntryStream>());
    if listings.count() >= MAX_LISTINGS {
        return Err(p2::ErrorCode::Busy.into());
    }
    if let Descriptor::Dir(dir) = state.table.get(&dir)? {
        let dir = Arc::clone(&dir.dir);
        let checked = tokio::task::spawn_blocking(move || check_length(&dir)).await;
        checked.map_err(|error| FsError::trap(wasmtime::Error::from(error)))??;
    }
    p2::HostDescriptor::read_directory(&mut state.filesystem(), dir).await
}

pub(super) fn link_p3(linker: &mut Linker<State>) -> wasmtime::Result<()> {
    let mut preopens = linker.instance("wasi:filesystem/preopens@0.3.0")?;
    preopens.func_wrap("get-directories", |mut store: Store<'_>, (): ()| {
        Ok((store.data_mut().preopened_folders()?,))
    })?;
    let mut types = linker.instance("wasi:filesystem/types@0.3.0")?;
    types.func_wrap_concurrent(
        "[method]descriptor.open-at",
        |store: &Accessor<State>,
         arguments: (
            Resource<Descriptor>,
            p3::PathFlags,
            String,
            p3::OpenFlags,
            p3::DescriptorFlags,
        )| {
            Box::pin(async move {
                let opened = open_p3(store, arguments).await;
                Ok((opened.map(Ok).or_else(|error| error.downcast().map(Err))?,))
            })
        },
    )?;
    types.func_wrap(
        "[method]descriptor.read-directory",
        |mut store: Store<'_>, (dir,): (Resource<Descriptor>,)| {
            let state = store.data();
            let listings = &state.open_files.listings;
            let listing = match state.table.get(&dir)? {
                Descriptor::File(_) => Err(p3::ErrorCode::NotDirectory),
                Descriptor::Dir(_) if listings.get() >= MAX_LISTINGS => Err(p3::ErrorCode::Busy),
                Descriptor::Dir(dir) => Ok((Arc::clone(&dir.dir), listings.guard())),
            };
            let (ended, result) = oneshot::channel();
            let entries = match listing {
                Ok((dir, counted)) => {
                    StreamReader::new(&mut store, Listing::start(dir, counted, ended))?
                }
                Err(error) => {
                    // The receiver is here.
                    let _ = ended.send(Err(error));
                    StreamReader::new(&mut store, std::iter::empty::<p3::DirectoryEntry>())?
                }
            };
            let result = FutureReader::new(&mut store, result)?;
            Ok(((entries, result),))
        },
    )
}

async fn open_p3(
    store: &Accessor<State>,
    (dir, path_flags, path, open_flags, flags): (
        Resource<Descriptor>,
        p3::PathFlags,
        String,
        p3::OpenFlags,
        p3::DescriptorFlags,
    ),
) -> Result<Resource<Descriptor>, FilesystemError> {
    use p3::{DescriptorType, ErrorCode, HostDescriptorWithStore, OpenFlags};
    let permit = store.with(|mut access| access.data_mut().file_permit());
    let permit = permit.ok_or(ErrorCode::Busy)?;
    let filesystem = store.with_getter::<WasiFilesystem>(State::filesystem);
    if !open_flags.contains(OpenFlags::CREATE) {
        let dir = Resource::new_borrow(dir.rep());
        let stat = WasiFilesystem::stat_at(&filesystem, dir, path_flags, path.clone());
        match stat.await?.type_ {
            DescriptorType::RegularFile
            | DescriptorType::Directory
            | DescriptorType::SymbolicLink => {}
            _ => return Err(ErrorCode::NotPermitted.into()),
        }
    }
    let opened = WasiFilesystem::open_at(&filesystem, dir, path_flags, path, open_flags, flags);
    let opened = opened.await?;
    store
        .with(|mut access| access.data_mut().file_opened(&opened, permit))
        .map_err(FilesystemError::trap)?;
    Ok(opened)
}
