//! `corral:inference/blocking`: the waiting functions, for guests that cannot await.
//!
//! They behave like the async functions; only a generation has another form. They block their own instance
//! and no other. The call's limits and the client's disconnect end them as well.

use super::bindings::corral::inference::blocking::{Host, HostGeneration, Token};
use super::bindings::corral::inference::constraints::Grammar;
use super::bindings::corral::inference::inference::{
    Chunk, Distribution, Look as DistributionQuery, Outcome,
};
use super::bindings::corral::inference::models::Pooling;
use super::generation::GenerationChunks;
use super::{
    GuestConstraint, GuestModel, GuestOptions, GuestSequence, HostResult, constraints, models,
    next_token, sampling, snapshots, take_handle, wit,
};
use crate::state::State;
use wasmtime::component::Resource;

/// A generation that a blocking guest holds. Dropping it cancels the generation.
pub struct BlockingGeneration(GenerationChunks);

impl Host for State {
    async fn open(&mut self, name: Option<String>) -> HostResult<Resource<GuestModel>> {
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

    async fn compile(
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
        query: DistributionQuery,
    ) -> HostResult<Distribution> {
        next_token::next(self, sequence, query).await
    }

    async fn next_many(
        &mut self,
        requests: Vec<(Resource<GuestSequence>, DistributionQuery)>,
    ) -> wasmtime::Result<Vec<Result<Distribution, wit::Error>>> {
        next_token::next_many(self, requests).await
    }

    async fn snapshot(
        &mut self,
        sequence: Resource<GuestSequence>,
        name: String,
    ) -> HostResult<()> {
        snapshots::snapshot(self, sequence, name).await
    }

    async fn restore(
        &mut self,
        model: Resource<GuestModel>,
        name: String,
    ) -> HostResult<Resource<GuestSequence>> {
        snapshots::restore(self, model, name).await
    }

    async fn forget(&mut self, model: Resource<GuestModel>, name: String) -> HostResult<()> {
        snapshots::forget(self, model, name).await
    }
}

impl HostGeneration for State {
    fn start(
        &mut self,
        sequence: Resource<GuestSequence>,
        options: Resource<GuestOptions>,
    ) -> HostResult<Resource<BlockingGeneration>> {
        take_handle(&mut self.handles.generations, "generations")?;
        let generation = self.generate(&sequence, &options);
        let generation = generation.inspect_err(|_| self.handles.generations.remove(1))?;
        Ok(self.table.push(BlockingGeneration(generation.chunks()))?)
    }

    async fn read(
        &mut self,
        generation: Resource<BlockingGeneration>,
    ) -> wasmtime::Result<Option<Chunk>> {
        Ok(self.table.get(&generation)?.0.next().await)
    }

    async fn rest(&mut self, generation: Resource<BlockingGeneration>) -> wasmtime::Result<Chunk> {
        Ok(self.table.get(&generation)?.0.rest().await)
    }

    async fn outcome(&mut self, generation: Resource<BlockingGeneration>) -> HostResult<Outcome> {
        Ok(self.table.get(&generation)?.0.outcome().await?)
    }

    fn drop(&mut self, generation: Resource<BlockingGeneration>) -> wasmtime::Result<()> {
        self.table.delete(generation)?;
        self.handles.generations.remove(1);
        Ok(())
    }
}
