//! Sequences that are kept under a name, of one deployment each.
//!
//! What blocks on the disk runs on a thread of its own, a few in the whole process at a time, since each
//! may hold all of a sequence's state in memory.

use super::generation::lock;
use super::reach::Reach;
use super::sequence::Sequence;
use super::{Answer, Model, take, wit};
use corral_engine::{Caller, Engine};
use std::sync::Arc;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use wasmtime::component::Resource;

/// Of all instances together that are written, read or removed at a time.
const AT_ONCE: usize = 4;

/// Whose snapshots an instance sees.
#[derive(Clone, Debug)]
pub(crate) struct Snapshots {
    owner: Arc<str>,
    turns: Arc<Semaphore>,
}

/// The turns for [`Snapshots::new`]; one for the process.
pub(crate) fn turns() -> Arc<Semaphore> {
    Arc::new(Semaphore::new(AT_ONCE))
}

impl Snapshots {
    /// Those of a deployment of this name.
    pub(crate) fn new(deployment: &str, turns: Arc<Semaphore>) -> Self {
        Self {
            owner: owner(deployment).into(),
            turns,
        }
    }

    /// Those of no deployment: there are none.
    pub(crate) fn none(&self) -> Self {
        Self {
            owner: Arc::default(),
            turns: Arc::clone(&self.turns),
        }
    }
}

/// A name that a folder can have: names of deployments as they are, others (routes) with what else is in
/// them written as numbers.
fn owner(deployment: &str) -> String {
    let written = |byte: u8| match byte {
        b'-' | b'0'..=b'9' | b'A'..=b'Z' | b'a'..=b'z' => char::from(byte).to_string(),
        _ => format!("_{byte:02x}"),
    };
    deployment.bytes().map(written).collect()
}

/// A turn, for an engine that keeps snapshots.
async fn turn(engine: &Engine, snapshots: &Snapshots) -> Result<OwnedSemaphorePermit, wit::Error> {
    if !engine.keeps_snapshots() {
        let none = "snapshots: this host keeps none; its operator can give a folder for them";
        return Err(wit::Error::NotGranted(none.to_owned()));
    }
    let turn = Arc::clone(&snapshots.turns).acquire_owned().await;
    turn.map_err(|_| wit::Error::Cancelled)
}

pub(super) async fn snapshot(
    mut on: impl Reach,
    sequence: Resource<Sequence>,
    name: String,
) -> Answer<()> {
    let (engine, snapshots, begun) = on.with(|state| {
        let sequence = state.table.get(&sequence)?;
        let engine = sequence.engine().clone();
        Ok::<_, wasmtime::Error>((engine, state.snapshots.clone(), sequence.begin()))
    })?;
    let (text, call) = match begun {
        Ok(begun) => begun,
        Err(error) => return Ok(Err(error)),
    };
    let turn = match turn(&engine, &snapshots).await {
        Ok(turn) => turn,
        Err(error) => return Ok(Err(error)),
    };
    // A copy, which shares the claim on the state: nobody waits for the text's lock.
    let sequence = lock(&text).sequence.clone();
    let written = tokio::task::spawn_blocking(move || {
        let written = sequence.snapshot(&snapshots.owner, &name);
        drop(turn);
        written
    });
    let written = written.await?;
    drop(call);
    Ok(written.map_err(Into::into))
}

/// The model's engine, and whose snapshots there are, and on whose behalf.
fn of_model(
    on: &mut impl Reach,
    model: &Resource<Model>,
) -> wasmtime::Result<(Engine, Snapshots, Caller)> {
    on.with(|state| {
        let engine = state.table.get(model)?.0.clone();
        Ok((engine, state.snapshots.clone(), state.caller))
    })
}

pub(super) async fn restore(
    mut on: impl Reach,
    model: Resource<Model>,
    name: String,
) -> Answer<Resource<Sequence>> {
    let (engine, snapshots, caller) = of_model(&mut on, &model)?;
    let turn = match turn(&engine, &snapshots).await {
        Ok(turn) => turn,
        Err(error) => return Ok(Err(error)),
    };
    let of_engine = engine.clone();
    let read = tokio::task::spawn_blocking(move || {
        let read = corral_engine::Sequence::restore(of_engine, caller, &snapshots.owner, &name);
        drop(turn);
        read
    });
    let sequence = match read.await? {
        Ok(sequence) => sequence,
        Err(error) => return Ok(Err(error.into())),
    };
    let counted = sequence.tokens().len();
    on.with(
        |state| match take(&mut state.handles.sequences, "sequences") {
            Ok(()) => state.give(engine, sequence, counted),
            Err(error) => Ok(Err(error)),
        },
    )
}

pub(super) async fn forget(mut on: impl Reach, model: Resource<Model>, name: String) -> Answer<()> {
    let (engine, snapshots, _) = of_model(&mut on, &model)?;
    let turn = match turn(&engine, &snapshots).await {
        Ok(turn) => turn,
        Err(error) => return Ok(Err(error)),
    };
    let removed = tokio::task::spawn_blocking(move || {
        let removed = corral_engine::Sequence::forget(&engine, &snapshots.owner, &name);
        drop(turn);
        removed
    });
    Ok(removed.await?.map_err(Into::into))
}

#[cfg(test)]
mod tests {
    use super::owner;

    #[test]
    fn no_two_deployments_have_one_folder() {
        assert_eq!(owner("chat-2"), "chat-2");
        assert_eq!(owner("/chat/v1"), "_2fchat_2fv1");
        assert_eq!(owner("/chat_v1"), "_2fchat_5fv1");
        assert_eq!(owner("../x"), "_2e_2e_2fx");
        assert_eq!(owner("ä"), "_c3_a4");
    }
}
