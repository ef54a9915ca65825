//! Named snapshots of sequences, separate for each deployment.
//!
//! Disk access blocks a thread of its own. Only a few run in the process at a time, since each may hold the
//! whole state of a sequence in memory.

use super::counted_sequence::lock;
use super::store_access::StoreAccess;
use super::{GuestModel, GuestSequence, HostError, HostResult, take_handle, wit};
use corral_engine::{Caller, Engine};
use std::sync::Arc;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use wasmtime::component::Resource;

/// Snapshots that are written, read or removed at a time, over all instances.
const CONCURRENT: usize = 4;

/// The snapshots of one deployment.
#[derive(Clone, Debug)]
pub(crate) struct DeploymentSnapshots {
    /// Name of the deployment's directory. Empty for no deployment.
    dir: Arc<str>,
    permits: Arc<Semaphore>,
}

/// Permits for [`DeploymentSnapshots::new`], shared by the process.
pub(crate) fn snapshot_permits() -> Arc<Semaphore> {
    Arc::new(Semaphore::new(CONCURRENT))
}

impl DeploymentSnapshots {
    /// The snapshots of the named deployment.
    pub(crate) fn new(deployment: &str, permits: Arc<Semaphore>) -> Self {
        Self {
            dir: dir_name(deployment).into(),
            permits,
        }
    }

    /// No snapshots.
    pub(crate) fn none(&self) -> Self {
        Self {
            dir: Arc::default(),
            permits: Arc::clone(&self.permits),
        }
    }

    /// A permit to access the disk, if the engine stores snapshots.
    async fn acquire(&self, engine: &Engine) -> Result<OwnedSemaphorePermit, wit::Error> {
        if !engine.has_snapshots() {
            let none = "snapshots: this host stores none; its operator can configure a directory";
            return Err(wit::Error::NotGranted(none.to_owned()));
        }
        let permit = Arc::clone(&self.permits).acquire_owned().await;
        permit.map_err(|_| wit::Error::Cancelled)
    }
}

/// A directory name for a deployment. Characters of routes that deployment names lack are written as numbers.
fn dir_name(deployment: &str) -> String {
    let encode = |byte: u8| match byte {
        b'-' | b'0'..=b'9' | b'A'..=b'Z' | b'a'..=b'z' => char::from(byte).to_string(),
        _ => format!("_{byte:02x}"),
    };
    deployment.bytes().map(encode).collect()
}

pub(super) async fn snapshot(
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
    let permit = snapshots.acquire(&engine).await?;
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
    let permit = snapshots.acquire(&engine).await?;
    let engine_for_task = engine.clone();
    let read = tokio::task::spawn_blocking(move || {
        let read = corral_engine::Sequence::restore(engine_for_task, caller, &snapshots.dir, &name);
        drop(permit);
        read
    });
    let sequence = read.await??;
    let quota_counted = sequence.tokens().len();
    store.with(|state| {
        take_handle(&mut state.handles.sequences, "sequences")?;
        state.add_sequence(engine, sequence, quota_counted)
    })
}

pub(super) async fn forget(
    mut store: impl StoreAccess,
    model: Resource<GuestModel>,
    name: String,
) -> HostResult<()> {
    let (engine, snapshots, _) = model_and_snapshots(&mut store, &model)?;
    let permit = snapshots.acquire(&engine).await?;
    let removed = tokio::task::spawn_blocking(move || {
        let removed = corral_engine::Sequence::delete_snapshot(&engine, &snapshots.dir, &name);
        drop(permit);
        removed
    });
    Ok(removed.await??)
}

#[cfg(test)]
mod tests {
    use super::dir_name;

    #[test]
    fn deployments_have_different_dirs() {
        assert_eq!(dir_name("chat-2"), "chat-2");
        assert_eq!(dir_name("/chat/v1"), "_2fchat_2fv1");
        assert_eq!(dir_name("/chat_v1"), "_2fchat_5fv1");
        assert_eq!(dir_name("../x"), "_2e_2e_2fx");
        assert_eq!(dir_name("ä"), "_c3_a4");
    }
}
