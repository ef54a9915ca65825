//! `corral:inference/blocking`: what waits, for guests that can't await.
//!
//! These are the same functions; only a generation has another form. They hold up their own instance and
//! nobody else: the call's bounds and its client's going away end them as they end the others.

use super::bindings::corral::inference::blocking::{Host, HostGeneration, Token};
use super::bindings::corral::inference::constraints::Grammar;
use super::bindings::corral::inference::inference::{Chunk, Distribution, Look, Outcome};
use super::bindings::corral::inference::models::Pooling;
use super::generation::Chunks;
use super::{Answer, Constraint, Model, Options, Sequence, take, wit};
use super::{constraints, looking, models, sampling, snapshots};
use crate::state::State;
use wasmtime::component::Resource;

/// A generation that a guest holds. Dropping it cancels.
pub struct Generation(Chunks);

impl Host for State {
    async fn open(&mut self, name: Option<String>) -> Answer<Resource<Model>> {
        models::open(self, name).await
    }

    async fn embed(
        &mut self,
        model: Resource<Model>,
        inputs: Vec<Vec<Token>>,
        pooling: Option<Pooling>,
        normalize: Option<bool>,
    ) -> Answer<Vec<Vec<f32>>> {
        models::embed(self, model, inputs, pooling, normalize).await
    }

    async fn compile(
        &mut self,
        model: Resource<Model>,
        grammar: Grammar,
    ) -> Answer<Resource<Constraint>> {
        constraints::compile(self, model, grammar).await
    }

    async fn sample_with(
        &mut self,
        options: Resource<Options>,
        name: String,
        settings: String,
    ) -> Answer<()> {
        sampling::sample_with(self, options, name, settings).await
    }

    async fn next(&mut self, sequence: Resource<Sequence>, look: Look) -> Answer<Distribution> {
        looking::next(self, sequence, look).await
    }

    async fn next_many(
        &mut self,
        asks: Vec<(Resource<Sequence>, Look)>,
    ) -> wasmtime::Result<Vec<Result<Distribution, wit::Error>>> {
        looking::next_many(self, asks).await
    }

    async fn snapshot(&mut self, sequence: Resource<Sequence>, name: String) -> Answer<()> {
        snapshots::snapshot(self, sequence, name).await
    }

    async fn restore(
        &mut self,
        model: Resource<Model>,
        name: String,
    ) -> Answer<Resource<Sequence>> {
        snapshots::restore(self, model, name).await
    }

    async fn forget(&mut self, model: Resource<Model>, name: String) -> Answer<()> {
        snapshots::forget(self, model, name).await
    }
}

impl HostGeneration for State {
    fn start(
        &mut self,
        sequence: Resource<Sequence>,
        options: Resource<Options>,
    ) -> Answer<Resource<Generation>> {
        if let Err(error) = take(&mut self.handles.generations, "generations") {
            return Ok(Err(error));
        }
        match self.generate(&sequence, &options)? {
            Ok(run) => Ok(Ok(self.table.push(Generation(run.chunks()))?)),
            Err(error) => {
                self.handles.generations -= 1;
                Ok(Err(error))
            }
        }
    }

    async fn read(&mut self, generation: Resource<Generation>) -> wasmtime::Result<Option<Chunk>> {
        Ok(self.table.get(&generation)?.0.next().await)
    }

    async fn rest(&mut self, generation: Resource<Generation>) -> wasmtime::Result<Chunk> {
        Ok(self.table.get(&generation)?.0.rest().await)
    }

    async fn outcome(&mut self, generation: Resource<Generation>) -> Answer<Outcome> {
        Ok(self.table.get(&generation)?.0.outcome().await)
    }

    fn drop(&mut self, generation: Resource<Generation>) -> wasmtime::Result<()> {
        self.table.delete(generation)?;
        self.handles.generations -= 1;
        Ok(())
    }
}
