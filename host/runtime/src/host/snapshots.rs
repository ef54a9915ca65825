//! Writes, reads and removes named snapshots of sequences.

use super::counted_sequence::lock;
use super::store_access::StoreAccess;
use super::{GuestModel, GuestSequence, HostError, HostResult, MAX_IMAGES, wit};
use crate::deployment_snapshots::DeploymentSnapshots;
use corral_engine::{Caller, Engine};
use std::sync::Arc;
use tokio::sync::OwnedSemaphorePermit;
use wasmtime::component::Resource;

/// A permit to access the disk, if the engine stores snapshots.
async fn acquire(
    snapshots: &DeploymentSnapshots,
    engine: &Engine,
) -> Result<OwnedSemaphorePermit, wit::Error> {
    if !engine.has_snapshots() {
        let none = "snapshots: this host stores none; its operator can configure a directory";
        return Err(wit::Error::NotGranted(none.to_owned()));
    }
    let permit = Arc::clone(&snapshots.permits).acquire_owned().await;
    permit.map_err(|_| wit::Error::Cancelled)
}

pub(super) async fn save(
    mut store: impl StoreAccess,
    sequence: Resource<GuestSequence>,
    name: String,
) -> HostResult<()> {
    let (engine, snapshots, (sequence, in_use)) = store.with(|state| {
        let sequence = state.table.get(&sequence)?;
        let engine = sequence.engine().clone();
        let snapshots = state.grants.snapshots.clone();
        Ok::<_, HostError>((engine, snapshots, sequence.begin()?))
    })?;
    let permit = acquire(&snapshots, &engine).await?;
    // The clone shares the retained state. The lock is not held while the thread writes.
    let sequence = lock(&sequence).sequence.clone();
    let written = tokio::task::spawn_blocking(move || {
        let written = sequence.snapshot(&snapshots.dir, &name);
        drop(permit);
        written
    });
    let written = written.await?;
    drop(in_use);
    Ok(written?)
}

fn model_and_snapshots(
    store: &mut impl StoreAccess,
    model: &Resource<GuestModel>,
) -> wasmtime::Result<(Engine, DeploymentSnapshots, Caller)> {
    store.with(|state| {
        let engine = state.table.get(model)?.0.clone();
        Ok((engine, state.grants.snapshots.clone(), state.caller))
    })
}

pub(super) async fn restore(
    mut store: impl StoreAccess,
    model: Resource<GuestModel>,
    name: String,
) -> HostResult<Resource<GuestSequence>> {
    let (engine, snapshots, caller) = model_and_snapshots(&mut store, &model)?;
    let permit = acquire(&snapshots, &engine).await?;
    let max_images = store.with(|state| MAX_IMAGES.saturating_sub(state.handles.images));
    let engine_for_task = engine.clone();
    let read = tokio::task::spawn_blocking(move || {
        let (engine, dir) = (engine_for_task, &snapshots.dir);
        let read = corral_engine::Sequence::restore(engine, caller, dir, &name, max_images);
        drop(permit);
        read
    });
    let sequence = read.await??;
    let quota_counted = sequence.tokens().len();
    store.with(|state| {
        // Others may have been appended meanwhile.
        state.take_images(sequence.image_count())?;
        state.take_sequence_handle()?;
        state.add_sequence(engine, sequence, quota_counted)
    })
}

pub(super) async fn delete(
    mut store: impl StoreAccess,
    model: Resource<GuestModel>,
    name: String,
) -> HostResult<()> {
    let (engine, snapshots, _) = model_and_snapshots(&mut store, &model)?;
    let permit = acquire(&snapshots, &engine).await?;
    let removed = tokio::task::spawn_blocking(move || {
        let removed = corral_engine::Sequence::delete_snapshot(&engine, &snapshots.dir, &name);
        drop(permit);
        removed
    });
    Ok(removed.await??)
}
