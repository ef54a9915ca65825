//! Sequences: tokens, and the host's state for them.

use crate::error::Error;
use crate::generation::{GenerateOptions, Generation};
use crate::grammar::Matcher;
use crate::handle::{LateError, OwnedHandle};
use crate::model::Model;
use crate::session::{Pending, Replies, Shared};
use serde_json::Value;
use session_protocol::{
    Bytes, Call, Distribution, Handle, Kind, NextResult, NextTokenRequest, Part, Token,
};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::watch;

/// A list of tokens. Forks share the model's state: nothing is copied or computed again. One operation runs at a time.
pub struct Sequence {
    model: Model,
    handle: OwnedHandle,
    pub(crate) state: Arc<SequenceState>,
}

/// What a sequence shares with its generation, which may outlive it.
pub(crate) struct SequenceState {
    pub(crate) number: Handle,
    pub(crate) late: LateError,
    can_fork: bool,
    /// What the program has given or read. The host's sequence is ahead while a generation runs.
    tokens: Mutex<Vec<Token>>,
    activity: watch::Sender<Activity>,
}

#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Activity {
    Idle,
    Generating,
    /// The host has not confirmed yet.
    Cancelling,
}

impl SequenceState {
    pub(crate) fn tokens(&self) -> MutexGuard<'_, Vec<Token>> {
        self.tokens.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn set_activity(&self, activity: Activity) {
        self.activity.send_replace(activity);
    }

    /// Ends a generation of this sequence.
    pub(crate) fn cancel(self: &Arc<Self>, session: &Shared, generation: Handle) {
        self.set_activity(Activity::Cancelling);
        let start = u32::try_from(self.tokens().len()).unwrap_or(u32::MAX);
        let call = Call::Cancel {
            generation,
            sequence: self.number,
            start,
        };
        let pending = Pending::Cancelled(Cancellation(Arc::clone(self)));
        if session.send_now(call, pending).is_err() {
            self.set_activity(Activity::Idle);
        }
    }
}

/// Takes the reply to `cancel`: tokens that the host's sequence has and the program did not read.
pub(crate) struct Cancellation(Arc<SequenceState>);

impl Cancellation {
    pub(crate) fn end(self, result: Result<Value, Error>, replies: &Replies) {
        let Cancellation(state) = self;
        let unread = result.and_then(|value| {
            serde_json::from_value::<Vec<Token>>(value)
                .map_err(|error| Error::invalid(error.to_string()))
        });
        match unread {
            Ok(unread) if !unread.is_empty() && state.can_fork => {
                let length = u32::try_from(state.tokens().len()).unwrap_or(u32::MAX);
                let call = Call::Truncate {
                    sequence: state.number,
                    length,
                };
                // Without a session, the next call fails.
                let _ = replies.send_now(call, Pending::Posted(state.late.clone()));
            }
            Ok(unread) => state.tokens().extend(unread),
            Err(error) => state.late.set(error),
        }
        state.set_activity(Activity::Idle);
    }
}

impl Sequence {
    fn new(model: &Model, tokens: Vec<Token>) -> Self {
        let handle = OwnedHandle::new(&model.0.handle.session, Kind::Sequence);
        let state = SequenceState {
            number: handle.number,
            late: handle.late.clone(),
            can_fork: model.info().can_fork,
            tokens: Mutex::new(tokens),
            activity: watch::Sender::new(Activity::Idle),
        };
        Sequence {
            model: model.clone(),
            handle,
            state: Arc::new(state),
        }
    }

    pub(crate) async fn create(model: &Model) -> Result<Self, Error> {
        let sequence = Self::new(model, Vec::new());
        let call = Call::CreateSequence {
            sequence: sequence.handle.number,
            model: model.0.handle.number,
        };
        sequence.handle.post(call).await?;
        Ok(sequence)
    }

    pub(crate) async fn restore(model: &Model, name: &str) -> Result<Self, Error> {
        let sequence = Self::new(model, Vec::new());
        let call = Call::RestoreSnapshot {
            sequence: sequence.handle.number,
            model: model.0.handle.number,
            name: name.to_owned(),
        };
        let tokens: Vec<Token> = sequence.session().call(call).await?;
        *sequence.state.tokens() = tokens;
        Ok(sequence)
    }

    pub(crate) fn session(&self) -> &Arc<Shared> {
        &self.handle.session
    }

    /// Waits for the end of a canceled generation. Another one is an error, and so is that of an earlier command.
    pub(crate) async fn idle(&self) -> Result<(), Error> {
        let mut activity = self.state.activity.subscribe();
        let settled = activity.wait_for(|&activity| activity != Activity::Cancelling);
        let settled = self.session().bounded(settled).await?;
        if settled.is_ok_and(|activity| *activity == Activity::Generating) {
            return Err(Error::invalid(
                "a generation runs on this sequence: wait for its end, or drop it",
            ));
        }
        self.handle.late.check()
    }

    /// The sequence's model.
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// The number of tokens that the program has given or read.
    pub fn len(&self) -> usize {
        self.state.tokens().len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The tokens that the program has given or read.
    pub fn tokens(&self) -> Vec<Token> {
        self.state.tokens().clone()
    }

    /// Appends text.
    pub async fn append(&self, text: &str) -> Result<(), Error> {
        let tokens = self.model.tokenize(text).await?;
        self.append_tokens(&tokens).await
    }

    /// Appends tokens.
    pub async fn append_tokens(&self, tokens: &[Token]) -> Result<(), Error> {
        self.idle().await?;
        self.model.check_tokens(self.len(), tokens)?;
        if tokens.is_empty() {
            return Ok(());
        }
        let call = Call::Append {
            sequence: self.handle.number,
            tokens: tokens.to_vec(),
        };
        self.handle.post(call).await?;
        self.state.tokens().extend(tokens);
        Ok(())
    }

    /// Appends an image or audio, the bytes of a PNG, JPEG, GIF, WebP or WAV file. Returns the number of positions that it
    /// takes.
    pub async fn append_image(&self, file: Vec<u8>) -> Result<usize, Error> {
        self.idle().await?;
        let call = Call::AppendImage {
            sequence: self.handle.number,
            file: Bytes(file),
        };
        let tokens: Vec<Token> = self.session().call(call).await?;
        self.state.tokens().extend(&tokens);
        Ok(tokens.len())
    }

    /// Shortens the sequence to its first tokens.
    pub async fn truncate(&self, length: usize) -> Result<(), Error> {
        self.idle().await?;
        self.model.check_can_fork()?;
        let call = Call::Truncate {
            sequence: self.handle.number,
            length: u32::try_from(length).unwrap_or(u32::MAX),
        };
        self.handle.post(call).await?;
        self.state.tokens().truncate(length);
        Ok(())
    }

    /// A sequence with the same tokens and state.
    pub async fn fork(&self) -> Result<Self, Error> {
        self.idle().await?;
        self.model.check_can_fork()?;
        let fork = Self::new(&self.model, self.tokens());
        let call = Call::ForkSequence {
            sequence: fork.handle.number,
            from: self.handle.number,
        };
        fork.handle.post(call).await?;
        Ok(fork)
    }

    /// Selects the LoRA adapter for later calls, or none.
    pub async fn set_adapter(&self, adapter: Option<&str>) -> Result<(), Error> {
        self.idle().await?;
        let call = Call::SetAdapter {
            sequence: self.handle.number,
            adapter: adapter.map(str::to_owned),
        };
        self.handle.post(call).await
    }

    /// Starts a generation.
    pub async fn generate(&self, options: &GenerateOptions) -> Result<Generation, Error> {
        Generation::start(self, options).await
    }

    /// The distribution of the next token.
    pub async fn next(&self, part: Part) -> Result<Distribution, Error> {
        self.next_with(part, false, None).await
    }

    /// The distribution of the next token, with its statistics or of the tokens that a matcher allows.
    pub async fn next_with(
        &self,
        part: Part,
        statistics: bool,
        matcher: Option<&Matcher>,
    ) -> Result<Distribution, Error> {
        self.idle().await?;
        let request = NextTokenRequest {
            part,
            statistics,
            matcher: matcher.map(|matcher| matcher.0.number),
        };
        let call = Call::Next {
            sequence: self.handle.number,
            request,
        };
        let next = self.session().call(call).await;
        // The replies to earlier commands have come before.
        self.handle.late.check()?;
        matcher.map_or(Ok(()), |matcher| matcher.0.late.check())?;
        next
    }

    /// Saves the sequence under a name, beyond this session.
    pub async fn save(&self, name: &str) -> Result<(), Error> {
        self.idle().await?;
        let call = Call::SaveSnapshot {
            sequence: self.handle.number,
            name: name.to_owned(),
        };
        let saved = self.session().call(call).await;
        self.handle.late.check()?;
        saved
    }
}

/// [`Sequence::next`] for several sequences of a session, which share a step.
pub async fn next_many(
    sequences: &[&Sequence],
    part: &Part,
) -> Result<Vec<Result<Distribution, Error>>, Error> {
    let Some(first) = sequences.first() else {
        return Ok(Vec::new());
    };
    let mut requests = Vec::new();
    for sequence in sequences {
        if !Arc::ptr_eq(sequence.session(), first.session()) {
            return Err(Error::invalid("the sequences are of several sessions"));
        }
        sequence.idle().await?;
        let request = NextTokenRequest {
            part: part.clone(),
            statistics: false,
            matcher: None,
        };
        requests.push((sequence.handle.number, request));
    }
    let results: Vec<NextResult> = first.session().call(Call::NextMany { requests }).await?;
    let results = results.into_iter().zip(sequences);
    let results = results.map(|(result, sequence)| {
        sequence.handle.late.check()?;
        match result {
            NextResult::Ok(distribution) => Ok(distribution),
            NextResult::Error(error) => Err(Error::Call(error)),
        }
    });
    Ok(results.collect())
}
