//! Implements `inference-sync` by commands of the session. Its functions wait for the replies; dropping a generation cancels
//! it.

use std::cell::RefCell;
use std::rc::Rc;

use session_protocol::{Bytes, Call, Floats, Handle, Kind, ModelInfo, NextResult};

use crate::bindings::exports::corral::inference::constraints::{Constraint, Grammar};
use crate::bindings::exports::corral::inference::inference::{
    Chunk, Distribution, NextTokenRequest, OptionsBorrow, Outcome, Sequence, SequenceBorrow,
};
use crate::bindings::exports::corral::inference::inference_sync::{
    Generation, Guest, GuestGeneration,
};
use crate::bindings::exports::corral::inference::models::{Model, ModelBorrow, Pooling};
use crate::bindings::exports::corral::inference::types::{Error, Token};
use crate::collect::collect;
use crate::models::{RemoteConstraint, RemoteMatcher, RemoteModel};
use crate::options::RemoteOptions;
use crate::sequences::{RemoteSequence, SequenceState};
use crate::session::{self, HandleGuard, OwnedHandle, call, check, new_number, settle};
use crate::{OriginGuard, Remote, convert};

impl Guest for Remote {
    type Generation = RemoteGeneration;

    fn open_model(name: Option<String>) -> Result<Model, Error> {
        let handle = OwnedHandle::new(Kind::Model);
        let info: ModelInfo = call(Call::OpenModel {
            model: handle.number,
            name,
        })?;
        Ok(Model::new(RemoteModel {
            handle,
            info: Rc::new(info),
            _origin: OriginGuard::new(),
        }))
    }

    fn embed(
        model: ModelBorrow<'_>,
        inputs: Vec<Vec<Token>>,
        pooling: Option<Pooling>,
        normalize: Option<bool>,
    ) -> Result<Vec<Vec<f32>>, Error> {
        let vectors: Vec<Floats> = call(Call::Embed {
            model: model.get::<RemoteModel>().handle.number,
            inputs,
            pooling: pooling.map(convert::pooling),
            normalize,
        })?;
        Ok(vectors.into_iter().map(|Floats(vector)| vector).collect())
    }

    fn compile_constraint(model: ModelBorrow<'_>, grammar: Grammar) -> Result<Constraint, Error> {
        let handle = OwnedHandle::new(Kind::Constraint);
        let ignored = call(Call::CompileConstraint {
            constraint: handle.number,
            model: model.get::<RemoteModel>().handle.number,
            grammar: convert::grammar(grammar),
        })?;
        Ok(Constraint::new(RemoteConstraint { handle, ignored }))
    }

    fn sample_with(
        options: OptionsBorrow<'_>,
        name: String,
        settings: String,
    ) -> Result<(), Error> {
        let options = options.get::<RemoteOptions>().0.number;
        call(Call::SampleWith {
            options,
            name,
            settings,
        })
    }

    fn generate(
        sequence: SequenceBorrow<'_>,
        options: OptionsBorrow<'_>,
    ) -> Result<Generation, Error> {
        let sequence = &sequence.get::<RemoteSequence>().state;
        sequence.check()?;
        let options = options.get::<RemoteOptions>().0.number;
        check(Kind::Options, options)?;
        let number = new_number();
        let started = session::generate(Call::Generate {
            generation: number,
            sequence: sequence.number,
            options,
        });
        let generation = started.map(|id| {
            sequence.busy.set(true);
            RemoteGeneration {
                number,
                id,
                sequence: Rc::clone(sequence),
                outcome: RefCell::new(None),
                _guard: HandleGuard::new(),
            }
        });
        // Without what an earlier command should have set, it generates something else: dropping it cancels it.
        settle(Kind::Sequence, sequence.number)
            .and_then(|()| settle(Kind::Options, options))
            .and(generation)
            .map(Generation::new)
    }

    fn next(
        sequence: SequenceBorrow<'_>,
        request: NextTokenRequest<'_>,
    ) -> Result<Distribution, Error> {
        let sequence = &sequence.get::<RemoteSequence>().state;
        sequence.check()?;
        let next = sequence.call(Call::Next {
            sequence: sequence.number,
            request: wire_request(request),
        });
        next.map(convert::distribution)
    }

    fn next_many(
        requests: Vec<(SequenceBorrow<'_>, NextTokenRequest<'_>)>,
    ) -> Vec<Result<Distribution, Error>> {
        // The host gets only those of idle sequences.
        let mut results = Vec::new();
        let mut sent = Vec::new();
        for (sequence, request) in requests {
            let sequence = &sequence.get::<RemoteSequence>().state;
            let idle = sequence.check();
            if idle.is_ok() {
                sent.push((sequence.number, wire_request(request)));
            }
            results.push(idle.map(|()| sequence.number));
        }
        let called = match sent.is_empty() {
            true => Ok(Vec::new()),
            false => call::<Vec<NextResult>>(Call::NextMany { requests: sent }),
        };
        let mut answers = called.map(Vec::into_iter);
        let results = results.into_iter().map(|idle| {
            let sequence = idle?;
            let result = match &mut answers {
                Ok(answers) => match answers.next() {
                    Some(NextResult::Ok(next)) => Ok(convert::distribution(next)),
                    Some(NextResult::Error(error)) => Err(convert::error(error)),
                    None => Err(Error::Failed("the Corral host sent too few results".into())),
                },
                Err(error) => Err(error.clone()),
            };
            settle(Kind::Sequence, sequence)?;
            result
        });
        results.collect()
    }

    fn append_image(sequence: SequenceBorrow<'_>, file: Vec<u8>) -> Result<u32, Error> {
        let state = &sequence.get::<RemoteSequence>().state;
        state.check()?;
        let file = Bytes(file);
        let sequence = state.number;
        let tokens: Vec<Token> = state.call(Call::AppendImage { sequence, file })?;
        state.append_generated(&tokens);
        Ok(u32::try_from(tokens.len()).unwrap_or(u32::MAX))
    }

    fn save_snapshot(sequence: SequenceBorrow<'_>, name: String) -> Result<(), Error> {
        let state = &sequence.get::<RemoteSequence>().state;
        state.check()?;
        let sequence = state.number;
        state.call(Call::SaveSnapshot { sequence, name })
    }

    fn restore_snapshot(model: ModelBorrow<'_>, name: String) -> Result<Sequence, Error> {
        let model = model.get::<RemoteModel>();
        let handle = OwnedHandle::new_sequence()?;
        let tokens = call(Call::RestoreSnapshot {
            sequence: handle.number,
            model: model.handle.number,
            name,
        })?;
        let sequence = RemoteSequence::new(handle, &model.info, tokens);
        Ok(Sequence::new(sequence))
    }

    fn delete_snapshot(model: ModelBorrow<'_>, name: String) -> Result<(), Error> {
        let model = model.get::<RemoteModel>().handle.number;
        call(Call::DeleteSnapshot { model, name })
    }
}

fn wire_request(request: NextTokenRequest<'_>) -> session_protocol::NextTokenRequest {
    let matcher = request.matcher.as_ref();
    session_protocol::NextTokenRequest {
        part: convert::part(request.part),
        statistics: request.statistics,
        matcher: matcher.map(|matcher| matcher.get::<RemoteMatcher>().0.number),
    }
}

pub(crate) struct RemoteGeneration {
    number: Handle,
    id: u64,
    sequence: Rc<SequenceState>,
    outcome: RefCell<Option<Result<Outcome, Error>>>,
    _guard: HandleGuard,
}

impl GuestGeneration for RemoteGeneration {
    fn read(&self) -> Option<Chunk> {
        if self.outcome.borrow().is_some() {
            return None;
        }
        let outcome = match session::next_chunk(self.id) {
            Ok(Some(chunk)) => {
                self.sequence.append_generated(&chunk.tokens);
                return Some(convert::chunk(chunk));
            }
            Ok(None) => session::take_outcome(self.id).map(convert::outcome),
            Err(error) => Err(error),
        };
        self.sequence.busy.set(false);
        self.outcome.replace(Some(outcome));
        None
    }

    fn collect(&self) -> Chunk {
        collect(None, || self.read())
    }

    fn outcome(&self) -> Result<Outcome, Error> {
        while self.read().is_some() {}
        let outcome = self.outcome.borrow().clone();
        outcome.unwrap_or(Err(Error::Cancelled))
    }
}

impl Drop for RemoteGeneration {
    fn drop(&mut self) {
        if self.outcome.borrow().is_some() {
            return;
        }
        let unread: Result<Vec<Token>, _> = call(Call::Cancel {
            generation: self.number,
            sequence: self.sequence.number,
            start: self.sequence.length(),
        });
        let _ = session::take_outcome(self.id);
        self.sequence.end_cancelled(&unread.unwrap_or_default());
    }
}
