//! Generations: their settings and their output.

use crate::error::Error;
use crate::grammar::Constraint;
use crate::handle::OwnedHandle;
use crate::sequence::{Activity, Sequence, SequenceState};
use crate::session::{Pending, Shared};
use session_protocol::{Call, Chunk, Handle, Kind, Outcome, Setting};
use std::sync::Arc;
use tokio::sync::mpsc;

/// Settings of a generation. Without samplers it takes the most likely token each time.
#[derive(Clone)]
pub struct GenerateOptions {
    max_tokens: u32,
    settings: Vec<Setting>,
    constraint: Option<Constraint>,
    sampling_plugin: Option<(String, String)>,
}

impl GenerateOptions {
    /// Generates at most this many tokens.
    pub fn new(max_tokens: u32) -> Self {
        GenerateOptions {
            max_tokens,
            settings: Vec::new(),
            constraint: None,
            sampling_plugin: None,
        }
    }

    /// Adds a setting. Samplers apply in the order of the calls.
    pub fn set(mut self, setting: Setting) -> Self {
        self.settings.push(setting);
        self
    }

    /// Constrains the text.
    pub fn constrain(mut self, constraint: &Constraint) -> Self {
        self.constraint = Some(constraint.clone());
        self
    }

    /// Samples with a sampling plugin of the deployment, in place of the samplers.
    pub fn sample_with(mut self, name: &str, settings: &str) -> Self {
        self.sampling_plugin = Some((name.to_owned(), settings.to_owned()));
        self
    }

    /// Makes the host's options.
    async fn send(&self, session: &Arc<Shared>) -> Result<OwnedHandle, Error> {
        let made = OwnedHandle::new(session, Kind::Options);
        let options = made.number;
        made.post(Call::CreateOptions {
            options,
            max_tokens: self.max_tokens,
        })
        .await?;
        for setting in &self.settings {
            let setting = setting.clone();
            made.post(Call::Set { options, setting }).await?;
        }
        if let Some(constraint) = &self.constraint {
            let constraint = constraint.handle().number;
            made.post(Call::Constrain {
                options,
                constraint,
            })
            .await?;
        }
        if let Some((name, settings)) = &self.sampling_plugin {
            let call = Call::SampleWith {
                options,
                name: name.clone(),
                settings: settings.clone(),
            };
            // A generation that begins before it has ended would not use it.
            let () = session.call(call).await?;
        }
        Ok(made)
    }
}

/// What arrives of a generation.
pub(crate) enum Event {
    Chunk(Chunk),
    End(Result<Outcome, Error>),
}

/// A generation. Dropping it cancels it. Its output waits until it is read; the model's context bounds that.
pub struct Generation {
    session: Arc<Shared>,
    number: Handle,
    sequence: Arc<SequenceState>,
    events: mpsc::UnboundedReceiver<Event>,
    /// Until the generation has started: an error of these is the generation's.
    options: Option<OwnedHandle>,
    outcome: Option<Result<Outcome, Error>>,
}

impl Generation {
    pub(crate) async fn start(
        sequence: &Sequence,
        options: &GenerateOptions,
    ) -> Result<Self, Error> {
        sequence.idle().await?;
        let session = sequence.session();
        let options = options.send(session).await?;
        let number = session.new_number();
        let (sender, events) = mpsc::unbounded_channel();
        let call = Call::Generate {
            generation: number,
            sequence: sequence.state.number,
            options: options.number,
        };
        session.send(call, Pending::Generation(sender)).await?;
        sequence.state.set_activity(Activity::Generating);
        Ok(Generation {
            session: Arc::clone(session),
            number,
            sequence: Arc::clone(&sequence.state),
            events,
            options: Some(options),
            outcome: None,
        })
    }

    /// The next part of the output; `None` at the end of a generation that succeeded.
    pub async fn next(&mut self) -> Result<Option<Chunk>, Error> {
        loop {
            if let Some(outcome) = &self.outcome {
                return outcome.clone().map(|_| None);
            }
            let event = self.session.bounded(self.events.recv()).await?;
            // The replies to the commands before have come.
            let is_first = self.options.is_some();
            let late = match self.options.take() {
                Some(options) => self.sequence.late.check().and(options.late.check()),
                None => Ok(()),
            };
            match (late, event) {
                (Err(error), Some(Event::Chunk(_))) => {
                    self.sequence.cancel(&self.session, self.number);
                    self.outcome = Some(Err(error));
                }
                (Err(error), _) => self.end(Err(error)),
                // The first chunk is empty.
                (Ok(()), Some(Event::Chunk(_))) if is_first => {}
                (Ok(()), Some(Event::Chunk(chunk))) => {
                    self.sequence.tokens().extend(&chunk.tokens);
                    return Ok(Some(chunk));
                }
                (Ok(()), Some(Event::End(outcome))) => self.end(outcome),
                (Ok(()), None) => {
                    self.end(Err(Error::Disconnected("the session is closed".into())));
                }
            }
        }
    }

    fn end(&mut self, outcome: Result<Outcome, Error>) {
        self.sequence.set_activity(Activity::Idle);
        self.outcome = Some(outcome);
    }

    /// Waits for the end, and returns the remaining output as one chunk.
    pub async fn rest(&mut self) -> Result<Chunk, Error> {
        let mut all = Chunk::default();
        while let Some(chunk) = self.next().await? {
            all.tokens.extend(chunk.tokens);
            all.text += &chunk.text;
            all.logprobs.extend(chunk.logprobs);
        }
        Ok(all)
    }

    /// Waits for the end, and returns the remaining text.
    pub async fn text(mut self) -> Result<String, Error> {
        Ok(self.rest().await?.text)
    }

    /// Waits for the end, whose output is left out, and returns why and with how many tokens it ended.
    pub async fn outcome(&mut self) -> Result<Outcome, Error> {
        self.rest().await?;
        let outcome = self.outcome.clone();
        outcome.unwrap_or_else(|| Err(Error::Disconnected("the session is closed".into())))
    }
}

impl Drop for Generation {
    fn drop(&mut self) {
        if self.outcome.is_none() {
            self.sequence.cancel(&self.session, self.number);
        }
    }
}
