//! `corral:inference/inference-async`: the functions that wait, for guests that await them.

use super::bindings::corral::inference::constraints::Grammar;
use super::bindings::corral::inference::inference::{
    Chunk, Distribution, NextTokenRequest, Outcome,
};
use super::bindings::corral::inference::inference_async::{Framing, Host, HostWithStore, Token};
use super::bindings::corral::inference::models::Pooling;
use super::{
    GuestConstraint, GuestModel, GuestOptions, GuestSequence, HostResult, constraints, framed_body,
    images, models, next_token, sampling, snapshots, wit,
};
use crate::state::State;
use wasmtime::component::{Access, Accessor, FutureReader, HasSelf, Resource, StreamReader};

type ChunksAndOutcome = (
    StreamReader<Chunk>,
    FutureReader<Result<Outcome, wit::Error>>,
);

impl Host for State {}

impl HostWithStore<State> for HasSelf<State> {
    async fn open_model(
        store: &Accessor<State, Self>,
        name: Option<String>,
    ) -> HostResult<Resource<GuestModel>> {
        models::open(store, name).await
    }

    async fn embed(
        store: &Accessor<State, Self>,
        model: Resource<GuestModel>,
        inputs: Vec<Vec<Token>>,
        pooling: Option<Pooling>,
        normalize: Option<bool>,
    ) -> HostResult<Vec<Vec<f32>>> {
        models::embed(store, model, inputs, pooling, normalize).await
    }

    async fn compile_constraint(
        store: &Accessor<State, Self>,
        model: Resource<GuestModel>,
        grammar: Grammar,
    ) -> HostResult<Resource<GuestConstraint>> {
        constraints::compile(store, model, grammar).await
    }

    async fn sample_with(
        store: &Accessor<State, Self>,
        options: Resource<GuestOptions>,
        name: String,
        settings: String,
    ) -> HostResult<()> {
        sampling::sample_with(store, options, name, settings).await
    }

    fn generate(
        mut store: Access<'_, State, Self>,
        sequence: Resource<GuestSequence>,
        options: Resource<GuestOptions>,
    ) -> HostResult<ChunksAndOutcome> {
        let generation = store.get().start_generation(&sequence, &options)?;
        let stream = StreamReader::new(&mut store, generation.chunks())?;
        let future = FutureReader::new(&mut store, generation.outcome())?;
        Ok((stream, future))
    }

    async fn collect(
        store: &Accessor<State, Self>,
        chunks: StreamReader<Chunk>,
    ) -> HostResult<Chunk> {
        framed_body::collect(store, chunks).await
    }

    fn frame(
        store: Access<'_, State, Self>,
        chunks: StreamReader<Chunk>,
        framing: Framing,
        rest: StreamReader<u8>,
    ) -> HostResult<StreamReader<u8>> {
        framed_body::frame(store, chunks, framing, rest)
    }

    async fn next(
        store: &Accessor<State, Self>,
        sequence: Resource<GuestSequence>,
        request: NextTokenRequest,
    ) -> HostResult<Distribution> {
        next_token::next(store, sequence, request).await
    }

    async fn next_many(
        store: &Accessor<State, Self>,
        requests: Vec<(Resource<GuestSequence>, NextTokenRequest)>,
    ) -> wasmtime::Result<Vec<Result<Distribution, wit::Error>>> {
        next_token::next_many(store, requests).await
    }

    async fn append_image(
        store: &Accessor<State, Self>,
        sequence: Resource<GuestSequence>,
        file: Vec<u8>,
    ) -> HostResult<u32> {
        images::append(store, sequence, file).await
    }

    async fn save_snapshot(
        store: &Accessor<State, Self>,
        sequence: Resource<GuestSequence>,
        name: String,
    ) -> HostResult<()> {
        snapshots::save(store, sequence, name).await
    }

    async fn restore_snapshot(
        store: &Accessor<State, Self>,
        model: Resource<GuestModel>,
        name: String,
    ) -> HostResult<Resource<GuestSequence>> {
        snapshots::restore(store, model, name).await
    }

    async fn delete_snapshot(
        store: &Accessor<State, Self>,
        model: Resource<GuestModel>,
        name: String,
    ) -> HostResult<()> {
        snapshots::delete(store, model, name).await
    }
}
