//! `wasmcloud:messaging/consumer`: messages to other deployments.

use super::bindings::wasmcloud::messaging::consumer::{Host, HostWithStore};
use super::bindings::wasmcloud::messaging::types::{self, BrokerMessage, Error};
use crate::logs::LogLevel;
use crate::message_subject::Subject;
use crate::messages::{MAX_DEPTH, Message, PublishError, Publishing};
use crate::state::State;
use wasmtime::component::{Accessor, HasSelf};

impl types::Host for State {}

impl Host for State {}

impl HostWithStore<State> for HasSelf<State> {
    async fn request(
        _: &Accessor<State, Self>,
        _subject: String,
        _body: Vec<u8>,
        _timeout_ms: u32,
    ) -> wasmtime::Result<Result<BrokerMessage, Error>> {
        let text = "this host has no requests that wait for an answer; use 'publish' with a 'reply-to' to which the \
                    deployment subscribes";
        Ok(Err(Error::Other(text.to_owned())))
    }

    async fn publish(
        store: &Accessor<State, Self>,
        message: BrokerMessage,
    ) -> wasmtime::Result<Result<(), Error>> {
        let publishing = store.with(|mut access| access.get().publish(message));
        Ok(match publishing {
            Ok(publishing) => publishing.await.map_err(Error::from),
            Err(error) => Err(error),
        })
    }
}

impl State {
    /// Checks a message, and passes it to the server.
    fn publish(&mut self, message: BrokerMessage) -> Result<Publishing, Error> {
        let subject = |text: String| text.parse::<Subject>().map_err(|_| Error::SubjectInvalid);
        let message = Message {
            subject: subject(message.subject)?,
            reply_to: message.reply_to.map(subject).transpose()?,
            body: message.body.into(),
        };
        let grants = self.grants.messages.as_ref();
        let granted = grants.filter(|grants| grants.allow(&message.subject));
        let Some(grants) = granted.cloned() else {
            self.warn_not_granted(&message.subject);
            return Err(Error::AccessDenied);
        };
        let (Some(lookup), Some(sender)) = (grants.deployment_lookup.get(), &self.message_sender)
        else {
            return Err(Error::BrokerUnavailable);
        };
        if sender.depth > MAX_DEPTH {
            return Err(Error::Other(format!(
                "the message would be the last of more than {MAX_DEPTH}, each published while the one before was handled; \
                 check for a loop"
            )));
        }
        Ok(lookup.publish(message, sender.clone()))
    }

    /// Logs which grant is missing: the error has no text.
    fn warn_not_granted(&mut self, subject: &Subject) {
        let text = format!(
            "refused to publish to '{subject}': it needs a grant; add the subject to 'grants.messages' in the manifest if \
             the deployment may publish to it"
        );
        self.log_line(LogLevel::Warn, &text);
    }
}

impl From<PublishError> for Error {
    fn from(error: PublishError) -> Self {
        match error {
            PublishError::TooLarge => Self::MessageTooLarge,
            PublishError::Full => Self::QuotaExceeded,
            PublishError::Unavailable => Self::BrokerUnavailable,
            PublishError::Other(text) => Self::Other(text),
        }
    }
}
