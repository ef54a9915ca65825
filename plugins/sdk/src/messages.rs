//! Messages of other deployments and clients, and to other deployments.
//!
//! A deployment gets the messages to whose subjects its `corral.toml` subscribes. [`message_handler!`](crate::message_handler!)
//! exports an async function that handles one of them; [`publish`] sends one.
//!
//! ```standalone_crate
//! use corral_sdk::messages::{self, Message};
//! use corral_sdk::{Error, testing::Script};
//!
//! async fn double(message: Message) -> Result<(), Error> {
//!     let number: u32 = message.json()?;
//!     messages::publish(Message::new("numbers.doubled", format!("{}", 2 * number))).await
//! }
//!
//! corral_sdk::message_handler!(double);
//!
//! # fn main() {
//! let script = Script::new().grants_messages(&["numbers.*"]);
//! script.run(double(Message::new("numbers.new", "21"))).unwrap();
//! assert_eq!(script.published(), [Message::new("numbers.doubled", "42")]);
//! let error = script.run(double(Message::new("numbers.new", "x"))).unwrap_err();
//! assert_eq!(error.status(), 400);
//! # }
//! ```

use std::time::Duration;

use serde::de::DeserializeOwned;

use crate::backend;
#[doc(hidden)]
pub use crate::bindings::messages::wasmcloud::messaging::types::{
    BrokerMessage as HostMessage, Error as HostError,
};
use crate::error::Error;

/// How the text of an error begins that another attempt would repeat.
const PERMANENT: &str = "permanent: ";
/// Suggested wait after a full queue or quota, for which the host gives none.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// A message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    /// Tokens with dots between them, such as `orders.new`.
    pub subject: String,
    /// Any bytes.
    pub body: Vec<u8>,
    /// Subject for an answer, if its publisher wants one.
    pub reply_to: Option<String>,
}

impl Message {
    /// Creates a message without a subject for an answer.
    pub fn new(subject: impl Into<String>, body: impl Into<Vec<u8>>) -> Self {
        Message {
            subject: subject.into(),
            body: body.into(),
            reply_to: None,
        }
    }

    /// Asks for an answer, as a message to this subject.
    pub fn with_reply_to(mut self, subject: impl Into<String>) -> Self {
        self.reply_to = Some(subject.into());
        self
    }

    /// The body as text. An error with status 400 if it is not UTF-8.
    pub fn text(&self) -> Result<&str, Error> {
        std::str::from_utf8(&self.body)
            .map_err(|_| Error::bad_request("invalid-text", "the message is not UTF-8"))
    }

    /// Reads the body as JSON. An error with status 400 if it does not match.
    pub fn json<T: DeserializeOwned>(&self) -> Result<T, Error> {
        serde_json::from_slice(&self.body).map_err(|error| {
            Error::bad_request(
                "invalid-json",
                format!("the message does not match: {error}"),
            )
        })
    }
}

/// Publishes a message. Success means that the server has stored it for each deployment that subscribes to its subject; there
/// may be none.
///
/// [`Error::NotGranted`] if `grants.messages` does not name the subject, [`Error::Refused`] if a queue or the store is full; then
/// no deployment gets it.
pub async fn publish(message: Message) -> Result<(), Error> {
    let (subject, bytes) = (message.subject.clone(), message.body.len());
    let published = backend::publish(message.into()).await;
    published.map_err(|error| match error {
        HostError::SubjectInvalid => Error::Invalid(format!(
            "'{subject}' or the subject for its answer is invalid; write letters, digits, '-' and '_', with dots between them"
        )),
        HostError::AccessDenied => Error::NotGranted(format!(
            "the deployment may not publish to '{subject}'; its operator can add the subject to `grants.messages`"
        )),
        HostError::MessageTooLarge => Error::new(
            413,
            "message-too-large",
            format!("a subscriber to '{subject}' does not take a message of {bytes} bytes; send less"),
        ),
        HostError::QuotaExceeded => Error::Refused {
            reason: format!("a queue of a subscriber to '{subject}', or the store, is full"),
            retry_after: RETRY_AFTER,
        },
        HostError::BrokerUnavailable => {
            Error::Failed("the store of messages is busy or has failed; try again".to_owned())
        }
        HostError::Timeout => Error::Deadline,
        HostError::Other(text) => Error::Failed(text),
    })
}

impl From<HostMessage> for Message {
    fn from(message: HostMessage) -> Self {
        Message {
            subject: message.subject,
            body: message.body,
            reply_to: message.reply_to,
        }
    }
}

impl From<Message> for HostMessage {
    fn from(message: Message) -> Self {
        HostMessage {
            subject: message.subject,
            body: message.body,
            reply_to: message.reply_to,
        }
    }
}

/// Passes a message to the function that [`message_handler!`](crate::message_handler!) exports.
#[doc(hidden)]
pub async fn serve<E: Into<Error>>(
    message: HostMessage,
    handle: impl AsyncFnOnce(Message) -> Result<(), E>,
) -> Result<(), HostError> {
    handle(message.into())
        .await
        .map_err(|error| host_error(&error.into()))
}

/// The host's form of a handler's error. As for a request, a status from 400 on is permanent, except where the cause may pass.
fn host_error(error: &Error) -> HostError {
    let permanent = match error.status() {
        408 | 429 | 499 | 500.. => "",
        _ => PERMANENT,
    };
    HostError::Other(format!("{permanent}{error}"))
}

/// Exports an async function that handles messages: `wasmcloud:messaging/handler`. A plugin has at most one, and may have a
/// [`handler!`](crate::handler!) of HTTP requests, too.
///
/// The function takes a [`Message`](crate::messages::Message) and returns a `Result` of `()` and an error that converts into
/// [`Error`](crate::Error). An error with a status of 408, 429, 499, or 500 and above lets the host try again, as often as the
/// deployment's `attempts` say. Any other ends the message as a dead letter at once.
#[macro_export]
macro_rules! message_handler {
    ($handle:path) => {
        #[allow(unsafe_code)]
        const _: () = {
            struct Exported;

            impl $crate::bindings::messages::exports::wasmcloud::messaging::handler::Guest
                for Exported
            {
                async fn handle_message(
                    message: $crate::messages::HostMessage,
                ) -> ::core::result::Result<(), $crate::messages::HostError> {
                    $crate::messages::serve(message, $handle).await
                }
            }

            $crate::bindings::messages::export!(
                Exported with_types_in $crate::bindings::messages
            );
        };
    };
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Script;

    #[test]
    fn errors_that_last_are_marked_permanent() {
        for (error, text) in [
            (Error::bad_request("a", "no number"), "permanent: no number"),
            (Error::NotGranted("no".to_owned()), "permanent: no"),
            (Error::Failed("the disk".to_owned()), "the disk"),
            (Error::Cancelled, "the request was cancelled"),
        ] {
            let script = Script::new();
            let message = Message::new("a", "b").into();
            let handled = script.run(serve(message, async |_| Err::<(), _>(error)));
            assert!(
                matches!(&handled, Err(HostError::Other(other)) if other == text),
                "{handled:?}"
            );
        }
    }

    #[test]
    fn refused_message_names_the_grant() {
        let script = Script::new().grants_messages(&["orders.*"]);
        let publish = |subject: &str| script.run(publish(Message::new(subject, "x")));
        assert_eq!(publish("orders.new"), Ok(()));
        let error = publish("audit.new").unwrap_err();
        assert_eq!(error.code(), "not-granted");
        let text = error.to_string();
        assert!(text.contains("'audit.new'"), "{text}");
        assert!(text.contains("`grants.messages`"), "{text}");
        assert_eq!(publish("orders..new").unwrap_err().code(), "invalid");
        assert_eq!(script.published().len(), 1);
    }
}
