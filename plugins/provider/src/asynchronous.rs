//! `inference-async` on top of `inference-sync`.
//!
//! While a call blocks, no other task of the program runs; the results are the same as on a Corral host.

use wit_bindgen::{FutureReader, StreamReader};

use crate::bindings::exports::corral::inference::constraints::{Constraint, Grammar};
use crate::bindings::exports::corral::inference::inference::{
    Chunk, Distribution, NextTokenRequest, OptionsBorrow, Outcome, Sequence, SequenceBorrow,
};
use crate::bindings::exports::corral::inference::inference_async::{Framing, Guest};
use crate::bindings::exports::corral::inference::inference_sync::Guest as Blocking;
use crate::bindings::exports::corral::inference::models::{Model, ModelBorrow, Pooling};
use crate::bindings::exports::corral::inference::types::{Error, Token};
use crate::stream_writer;

impl<T: Blocking> Guest for T {
    async fn open_model(name: Option<String>) -> Result<Model, Error> {
        stream_writer::start();
        <T as Blocking>::open_model(name)
    }

    async fn embed(
        model: ModelBorrow<'_>,
        inputs: Vec<Vec<Token>>,
        pooling: Option<Pooling>,
        normalize: Option<bool>,
    ) -> Result<Vec<Vec<f32>>, Error> {
        stream_writer::start();
        <T as Blocking>::embed(model, inputs, pooling, normalize)
    }

    async fn compile_constraint(
        model: ModelBorrow<'_>,
        grammar: Grammar,
    ) -> Result<Constraint, Error> {
        stream_writer::start();
        <T as Blocking>::compile_constraint(model, grammar)
    }

    async fn sample_with(
        options: OptionsBorrow<'_>,
        name: String,
        settings: String,
    ) -> Result<(), Error> {
        stream_writer::start();
        <T as Blocking>::sample_with(options, name, settings)
    }

    fn generate(
        sequence: SequenceBorrow<'_>,
        options: OptionsBorrow<'_>,
    ) -> Result<(StreamReader<Chunk>, FutureReader<Result<Outcome, Error>>), Error> {
        stream_writer::generate(|| {
            let generation = <T as Blocking>::generate(sequence, options)?;
            Ok(Box::new(generation.into_inner::<T::Generation>()))
        })
    }

    async fn collect(chunks: StreamReader<Chunk>) -> Result<Chunk, Error> {
        stream_writer::collect(chunks).await
    }

    fn frame(
        chunks: StreamReader<Chunk>,
        framing: Framing,
        rest: StreamReader<u8>,
    ) -> Result<StreamReader<u8>, Error> {
        stream_writer::frame(chunks, framing, rest)
    }

    async fn next(
        sequence: SequenceBorrow<'_>,
        request: NextTokenRequest<'_>,
    ) -> Result<Distribution, Error> {
        stream_writer::start();
        <T as Blocking>::next(sequence, request)
    }

    async fn next_many(
        requests: Vec<(SequenceBorrow<'_>, NextTokenRequest<'_>)>,
    ) -> Vec<Result<Distribution, Error>> {
        stream_writer::start();
        <T as Blocking>::next_many(requests)
    }

    async fn append_image(sequence: SequenceBorrow<'_>, file: Vec<u8>) -> Result<u32, Error> {
        stream_writer::start();
        <T as Blocking>::append_image(sequence, file)
    }

    async fn save_snapshot(sequence: SequenceBorrow<'_>, name: String) -> Result<(), Error> {
        stream_writer::start();
        <T as Blocking>::save_snapshot(sequence, name)
    }

    async fn restore_snapshot(model: ModelBorrow<'_>, name: String) -> Result<Sequence, Error> {
        stream_writer::start();
        <T as Blocking>::restore_snapshot(model, name)
    }

    async fn delete_snapshot(model: ModelBorrow<'_>, name: String) -> Result<(), Error> {
        stream_writer::start();
        <T as Blocking>::delete_snapshot(model, name)
    }
}
