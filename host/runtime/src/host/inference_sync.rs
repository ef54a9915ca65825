//! `corral:inference/inference-sync`: the functions that wait, for guests that cannot await.
//!
//! They behave like the async functions; only a generation has another form. They block their own instance
//! and no other. The call's limits and the client's disconnect end them as well.

use super::bindings::corral::inference::constraints::Grammar;
use super::bindings::corral::inference::inference::{
    Chunk, Distribution, NextTokenRequest, Outcome,
};
use super::bindings::corral::inference::inference_sync::{Host, HostGeneration, Token};
use super::bindings::corral::inference::models::Pooling;
use super::generation::GenerationChunks;
use super::waiting_functions::waiting_functions;
use super::{
    GuestConstraint, GuestModel, GuestOptions, GuestSequence, HostResult, constraints, images,
    models, next_token, sampling, snapshots, take_handle, wit,
};
use crate::counters::ResourceKind;
use crate::state::State;
use wasmtime::component::Resource;

/// A generation that a guest without `await` holds. Dropping it cancels the generation.
pub struct SyncGeneration(GenerationChunks);

impl Host for State {
    waiting_functions!(self, (&mut self));

    async fn append_image(
        &mut self,
        sequence: Resource<GuestSequence>,
        file: Vec<u8>,
    ) -> HostResult<u32> {
        images::append(self, sequence, file).await
    }

    fn generate(
        &mut self,
        sequence: Resource<GuestSequence>,
        options: Resource<GuestOptions>,
    ) -> HostResult<Resource<SyncGeneration>> {
        take_handle(&mut self.handles, ResourceKind::Generations, "generations")?;
        let generation = self.start_generation(&sequence, &options);
        let generation =
            generation.inspect_err(|_| self.handles.counts.remove(ResourceKind::Generations, 1))?;
        Ok(self.table.push(SyncGeneration(generation.chunks()))?)
    }
}

impl HostGeneration for State {
    async fn read(
        &mut self,
        generation: Resource<SyncGeneration>,
    ) -> wasmtime::Result<Option<Chunk>> {
        Ok(self.table.get(&generation)?.0.next().await)
    }

    async fn collect(&mut self, generation: Resource<SyncGeneration>) -> wasmtime::Result<Chunk> {
        Ok(self.table.get(&generation)?.0.rest().await)
    }

    async fn outcome(&mut self, generation: Resource<SyncGeneration>) -> HostResult<Outcome> {
        Ok(self.table.get(&generation)?.0.outcome().await?)
    }

    fn drop(&mut self, generation: Resource<SyncGeneration>) -> wasmtime::Result<()> {
        self.table.delete(generation)?;
        self.handles.counts.remove(ResourceKind::Generations, 1);
        Ok(())
    }
}
