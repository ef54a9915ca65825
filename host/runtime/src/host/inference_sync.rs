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
use super::{
    GuestConstraint, GuestModel, GuestOptions, GuestSequence, HostResult, constraints, images,
    models, next_token, sampling, snapshots, take_handle, wit,
};
use crate::state::State;
use wasmtime::component::Resource;

/// A generation that a guest without `await` holds. Dropping it cancels the generation.
pub struct SyncGeneration(GenerationChunks);

impl Host for State {
    async fn open_model(&mut self, name: Option<String>) -> HostResult<Resource<GuestModel>> {
        models::open(self, name).await
    }

    async fn embed(
        &mut self,
        model: Resource<GuestModel>,
        inputs: Vec<Vec<Token>>,
        pooling: Option<Pooling>,
        normalize: Option<bool>,
    ) -> HostResult<Vec<Vec<f32>>> {
        models::embed(self, model, inputs, pooling, normalize).await
    }

    async fn compile_constraint(
        &mut self,
        model: Resource<GuestModel>,
        grammar: Grammar,
    ) -> HostResult<Resource<GuestConstraint>> {
        constraints::compile(self, model, grammar).await
    }

    async fn sample_with(
        &mut self,
        options: Resource<GuestOptions>,
        name: String,
        settings: String,
    ) -> HostResult<()> {
        sampling::sample_with(self, options, name, settings).await
    }

    async fn next(
        &mut self,
        sequence: Resource<GuestSequence>,
        request: NextTokenRequest,
    ) -> HostResult<Distribution> {
        next_token::next(self, sequence, request).await
    }

    async fn next_many(
        &mut self,
        requests: Vec<(Resource<GuestSequence>, NextTokenRequest)>,
    ) -> wasmtime::Result<Vec<Result<Distribution, wit::Error>>> {
        next_token::next_many(self, requests).await
    }

    async fn append_image(
        &mut self,
        sequence: Resource<GuestSequence>,
        file: Vec<u8>,
    ) -> HostResult<u32> {
        images::append(self, sequence, file).await
    }

    async fn save_snapshot(
        &mut self,
        sequence: Resource<GuestSequence>,
        name: String,
    ) -> HostResult<()> {
        snapshots::save(self, sequence, name).await
    }

    async fn restore_snapshot(
        &mut self,
        model: Resource<GuestModel>,
        name: String,
    ) -> HostResult<Resource<GuestSequence>> {
        snapshots::restore(self, model, name).await
    }

    async fn delete_snapshot(
        &mut self,
        model: Resource<GuestModel>,
        name: String,
    ) -> HostResult<()> {
        snapshots::delete(self, model, name).await
    }

    fn generate(
        &mut self,
        sequence: Resource<GuestSequence>,
        options: Resource<GuestOptions>,
    ) -> HostResult<Resource<SyncGeneration>> {
        take_handle(&mut self.handles.generations, "generations")?;
        let generation = self.start_generation(&sequence, &options);
        let generation = generation.inspect_err(|_| self.handles.generations.remove(1))?;
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
        self.handles.generations.remove(1);
        Ok(())
    }
}
