//! `sequence` of `inference`: the host's sequence, and a copy of its tokens.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use serde::de::DeserializeOwned;
use session_protocol::{Call, Handle, Kind, ModelInfo};

use crate::bindings::exports::corral::inference::inference::{self, GuestSequence, Sequence};
use crate::bindings::exports::corral::inference::models::ModelBorrow;
use crate::bindings::exports::corral::inference::types::{ContextLimit, Error, Token};
use crate::models::RemoteModel;
use crate::options::RemoteOptions;
use crate::session::{OwnedHandle, call_about, check, post};
use crate::{OriginGuard, Remote};

pub(crate) struct RemoteSequence {
    pub(crate) state: Rc<SequenceState>,
    _handle: OwnedHandle,
    _origin: OriginGuard,
}

/// What a sequence shares with its generation, which may outlive it.
pub(crate) struct SequenceState {
    pub(crate) number: Handle,
    info: Rc<ModelInfo>,
    tokens: RefCell<Vec<Token>>,
    /// Whether a generation is in progress.
    pub(crate) busy: Cell<bool>,
}

impl RemoteSequence {
    pub(crate) fn new(handle: OwnedHandle, info: &Rc<ModelInfo>, tokens: Vec<Token>) -> Self {
        let state = SequenceState {
            number: handle.number,
            info: Rc::clone(info),
            tokens: RefCell::new(tokens),
            busy: Cell::new(false),
        };
        RemoteSequence {
            state: Rc::new(state),
            _handle: handle,
            _origin: OriginGuard::new(),
        }
    }
}

impl SequenceState {
    /// Checks that no generation is in progress and that the host has refused nothing.
    pub(crate) fn check(&self) -> Result<(), Error> {
        if self.busy.get() {
            return Err(Error::Invalid(
                "a generation runs on this sequence: wait for its end or drop its stream".into(),
            ));
        }
        check(Kind::Sequence, self.number)
    }

    fn check_can_fork(&self) -> Result<(), Error> {
        match self.info.can_fork {
            true => Ok(()),
            false => Err(Error::Invalid(format!(
                "the state of the model {} can be neither forked nor truncated; compute the tokens again in a new sequence",
                self.info.name
            ))),
        }
    }

    fn post(&self, call: Call) -> Result<(), Error> {
        post(Kind::Sequence, self.number, call)
    }

    /// Sends a command about the sequence and waits for its value.
    pub(crate) fn call<T: DeserializeOwned>(&self, call: Call) -> Result<T, Error> {
        call_about(Kind::Sequence, self.number, call)
    }

    pub(crate) fn length(&self) -> u32 {
        u32::try_from(self.tokens.borrow().len()).unwrap_or(u32::MAX)
    }

    /// Appends tokens that the plugin has read from a generation.
    pub(crate) fn append_generated(&self, tokens: &[Token]) {
        self.tokens.borrow_mut().extend(tokens);
    }

    /// Ends a generation that the plugin dropped. The host's sequence also has the tokens that the plugin did not read,
    /// `unread`.
    pub(crate) fn end_cancelled(&self, unread: &[Token]) {
        self.busy.set(false);
        if unread.is_empty() {
            return;
        }
        match self.info.can_fork {
            // Without a session, the next call fails.
            true => drop(self.post(Call::Truncate {
                sequence: self.number,
                length: self.length(),
            })),
            false => self.append_generated(unread),
        }
    }
}

impl inference::Guest for Remote {
    type Options = RemoteOptions;
    type Sequence = RemoteSequence;
}

impl GuestSequence for RemoteSequence {
    fn create(model: ModelBorrow<'_>) -> Result<Sequence, Error> {
        let model = model.get::<RemoteModel>();
        let sequence = RemoteSequence::new(OwnedHandle::new_sequence()?, &model.info, Vec::new());
        sequence.state.post(Call::CreateSequence {
            sequence: sequence.state.number,
            model: model.handle.number,
        })?;
        Ok(Sequence::new(sequence))
    }

    fn append(&self, tokens: Vec<Token>) -> Result<(), Error> {
        let state = &self.state;
        state.check()?;
        let vocabulary = state.info.vocabulary;
        if let Some(token) = tokens.iter().find(|&&token| token >= vocabulary) {
            return Err(Error::Invalid(format!(
                "token {token} is not in the vocabulary, which has the tokens 0 to {}",
                vocabulary - 1
            )));
        }
        let limit = state.info.context;
        let needed = state.tokens.borrow().len() + tokens.len();
        if needed > limit as usize {
            let needed = u32::try_from(needed).unwrap_or(u32::MAX);
            return Err(Error::ContextFull(ContextLimit { needed, limit }));
        }
        state.post(Call::Append {
            sequence: state.number,
            tokens: tokens.clone(),
        })?;
        state.append_generated(&tokens);
        Ok(())
    }

    fn truncate(&self, length: u32) -> Result<(), Error> {
        let state = &self.state;
        state.check()?;
        state.check_can_fork()?;
        state.post(Call::Truncate {
            sequence: state.number,
            length,
        })?;
        state.tokens.borrow_mut().truncate(length as usize);
        Ok(())
    }

    fn fork(&self) -> Result<Sequence, Error> {
        let state = &self.state;
        state.check()?;
        state.check_can_fork()?;
        let tokens = state.tokens.borrow().clone();
        let fork = RemoteSequence::new(OwnedHandle::new_sequence()?, &state.info, tokens);
        fork.state.post(Call::ForkSequence {
            sequence: fork.state.number,
            from: state.number,
        })?;
        Ok(Sequence::new(fork))
    }

    fn set_adapter(&self, adapter: Option<String>) -> Result<(), Error> {
        let state = &self.state;
        state.check()?;
        if let Some(name) = &adapter
            && !state.info.adapters.contains(name)
        {
            return Err(Error::Invalid(format!(
                "there is no adapter {name:?} of this model; there is: {}",
                state.info.adapters.join(", ")
            )));
        }
        state.post(Call::SetAdapter {
            sequence: state.number,
            adapter,
        })
    }

    fn length(&self) -> u32 {
        self.state.length()
    }

    fn tokens(&self, start: u32) -> Vec<Token> {
        let tokens = self.state.tokens.borrow();
        tokens.get(start as usize..).unwrap_or_default().to_vec()
    }
}
