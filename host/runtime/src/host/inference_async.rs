//! `corral:inference/inference-async`: the asynchronous functions, for plugins of WASI 0.3.

use super::bindings::corral::inference::constraints::Grammar;
use super::bindings::corral::inference::inference::{
    Chunk, Distribution, NextTokenRequest, Outcome,
};
use super::bindings::corral::inference::inference_async::{Framing, Host, HostWithStore, Token};
use super::bindings::corral::inference::models::Pooling;
use super::waiting_functions::waiting_functions;
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
    waiting_functions!(store, (store: &Accessor<State, Self>));

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

    async fn append_image(
        store: &Accessor<State, Self>,
        sequence: Resource<GuestSequence>,
        file: Vec<u8>,
    ) -> HostResult<u32> {
        images::append(store, sequence, file).await
    }
}
