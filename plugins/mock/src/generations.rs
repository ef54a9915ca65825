//! Implements `inference-sync` with the scripted backend, whose futures never wait.

use std::cell::RefCell;

use corral_sdk::testing::{block_on, host};

use crate::bindings::exports::corral::inference::constraints::{Constraint, Grammar};
use crate::bindings::exports::corral::inference::inference::{
    Chunk, Distribution, NextTokenRequest, OptionsBorrow, Outcome, Sequence, SequenceBorrow,
};
use crate::bindings::exports::corral::inference::inference_sync::{
    Generation, Guest, GuestGeneration,
};
use crate::bindings::exports::corral::inference::models::{Model, ModelBorrow, Pooling};
use crate::bindings::exports::corral::inference::types::{Error, Token};
use crate::models::{MockConstraint, MockMatcher, MockModel};
use crate::options::MockOptions;
use crate::sequences::MockSequence;
use crate::{Mock, OriginGuard, convert};
use provider::collect::collect;

impl Guest for Mock {
    type Generation = MockGeneration;

    fn open_model(name: Option<String>) -> Result<Model, Error> {
        Mock::start();
        let model = block_on(host::open_model(name)).map_err(convert::error)?;
        Ok(Model::new(MockModel(model, OriginGuard::new())))
    }

    fn embed(
        model: ModelBorrow<'_>,
        inputs: Vec<Vec<Token>>,
        pooling: Option<Pooling>,
        normalize: Option<bool>,
    ) -> Result<Vec<Vec<f32>>, Error> {
        let model = &model.get::<MockModel>().0;
        let pooling = pooling.map(convert::pooling);
        block_on(host::embed(model, inputs, pooling, normalize)).map_err(convert::error)
    }

    fn compile_constraint(model: ModelBorrow<'_>, grammar: Grammar) -> Result<Constraint, Error> {
        let model = &model.get::<MockModel>().0;
        let compiled = block_on(host::compile_constraint(model, convert::grammar(grammar)));
        Ok(Constraint::new(MockConstraint(
            compiled.map_err(convert::error)?,
        )))
    }

    fn sample_with(
        options: OptionsBorrow<'_>,
        name: String,
        settings: String,
    ) -> Result<(), Error> {
        let options = &options.get::<MockOptions>().0;
        block_on(host::sample_with(options, name, settings)).map_err(convert::error)
    }

    fn generate(
        sequence: SequenceBorrow<'_>,
        options: OptionsBorrow<'_>,
    ) -> Result<Generation, Error> {
        let sequence = &sequence.get::<MockSequence>().0;
        let started = host::generate(sequence, &options.get::<MockOptions>().0);
        let (chunks, outcome) = started.map_err(convert::error)?;
        let outcome = block_on(outcome);
        Ok(Generation::new(MockGeneration {
            chunks: RefCell::new(Some(chunks)),
            outcome: outcome.map(convert::outcome).map_err(convert::error),
        }))
    }

    fn next(
        sequence: SequenceBorrow<'_>,
        request: NextTokenRequest<'_>,
    ) -> Result<Distribution, Error> {
        let request = host::NextTokenRequest {
            part: convert::part(request.part),
            statistics: request.statistics,
            matcher: request
                .matcher
                .as_ref()
                .map(|matcher| &matcher.get::<MockMatcher>().0),
        };
        let next = host::next(&sequence.get::<MockSequence>().0, request);
        block_on(next)
            .map(convert::distribution)
            .map_err(convert::error)
    }

    fn next_many(
        requests: Vec<(SequenceBorrow<'_>, NextTokenRequest<'_>)>,
    ) -> Vec<Result<Distribution, Error>> {
        let requests = requests.into_iter();
        requests
            .map(|(sequence, request)| Self::next(sequence, request))
            .collect()
    }

    fn append_image(sequence: SequenceBorrow<'_>, file: Vec<u8>) -> Result<u32, Error> {
        let sequence = &sequence.get::<MockSequence>().0;
        block_on(host::append_image(sequence, file)).map_err(convert::error)
    }

    fn save_snapshot(sequence: SequenceBorrow<'_>, name: String) -> Result<(), Error> {
        let sequence = &sequence.get::<MockSequence>().0;
        block_on(host::save_snapshot(sequence, name)).map_err(convert::error)
    }

    fn restore_snapshot(model: ModelBorrow<'_>, name: String) -> Result<Sequence, Error> {
        let model = &model.get::<MockModel>().0;
        let restored = block_on(host::restore_snapshot(model, name));
        let sequence = restored.map_err(convert::error)?;
        Ok(Sequence::new(MockSequence::new(sequence)))
    }

    fn delete_snapshot(model: ModelBorrow<'_>, name: String) -> Result<(), Error> {
        let model = &model.get::<MockModel>().0;
        block_on(host::delete_snapshot(model, name)).map_err(convert::error)
    }
}

pub(crate) struct MockGeneration {
    /// `None` after the end.
    chunks: RefCell<Option<host::ChunkStream>>,
    outcome: Result<Outcome, Error>,
}

impl GuestGeneration for MockGeneration {
    fn read(&self) -> Option<Chunk> {
        let mut chunks = self.chunks.borrow_mut();
        let chunk = block_on(chunks.as_mut()?.next());
        if chunk.is_none() {
            *chunks = None;
        }
        chunk.map(convert::chunk)
    }

    fn collect(&self) -> Chunk {
        collect(None, || self.read())
    }

    fn outcome(&self) -> Result<Outcome, Error> {
        while self.read().is_some() {}
        self.outcome.clone()
    }
}
