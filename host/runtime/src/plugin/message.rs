//! Calls of plugins that export `wasmcloud:messaging/handler`: one message each, in an instance of its own.

use super::{Plugin, Roles};
use crate::call_error::CallError;
use crate::call_trace::CallTrace;
use crate::messages::bindings::exports::wasmcloud::messaging::handler::{BrokerMessage, Error};
use crate::messages::{Message, MessageError};
use crate::runtime_config::CallOptions;
use crate::store::store;
use crate::truncate;
use std::future::poll_fn;
use tokio::time::Instant;
use tracing::Instrument;

/// How the text of `other` begins if another attempt would fail, too.
const PERMANENT: &str = "permanent: ";

impl Plugin {
    /// Lets a fresh instance handle a message. Dropping this future stops the plugin. Must run in a tokio runtime.
    ///
    /// # Errors
    /// Why the call failed, or else what the plugin answered.
    pub async fn handle_message(
        &self,
        message: Message,
        options: CallOptions,
    ) -> Result<Result<(), MessageError>, CallError> {
        let plugin = &*self.0;
        let trace = options.trace.as_deref().map(CallTrace::id);
        let (outcome, span, id) = self.begin(options.id.clone(), trace);
        let Some(pre) = &plugin.messages else {
            return Err(outcome.fail(self.missing_export(Roles::MESSAGES)));
        };
        let call = match self.admit(&outcome, &options).await {
            Ok(call) => call,
            Err(error) => return Err(outcome.fail(error)),
        };
        let began = Instant::now();
        let context = self.context(&call, options, id);
        let mut store = store(&plugin.engine, self.handler_state(&call, &context));
        store.data_mut().begin_call(context);
        let message = BrokerMessage {
            subject: message.subject.to_string(),
            body: message.body.into(),
            reply_to: message.reply_to.map(|subject| subject.to_string()),
        };
        let work = async {
            let instance = pre.instantiate_async(&mut store).await?;
            call.instance_started(began);
            store
                .run_concurrent(async |accessor| {
                    let handler = instance.wasmcloud_messaging_handler();
                    let handled = handler.call_handle_message(accessor, message).await?;
                    poll_fn(|cx| accessor.poll_no_interesting_tasks(cx)).await;
                    Ok(handled)
                })
                .await
                .flatten()
        };
        let handled = call.run(work).instrument(span).await?;
        Ok(handled.map_err(MessageError::from))
    }
}

impl From<Error> for MessageError {
    fn from(error: Error) -> Self {
        let (text, can_retry) = match error {
            Error::SubjectInvalid => ("subject-invalid".to_owned(), false),
            Error::AccessDenied => ("access-denied".to_owned(), false),
            Error::MessageTooLarge => ("message-too-large".to_owned(), false),
            Error::Timeout => ("timeout".to_owned(), true),
            Error::BrokerUnavailable => ("broker-unavailable".to_owned(), true),
            Error::QuotaExceeded => ("quota-exceeded".to_owned(), true),
            Error::Other(text) => match text.strip_prefix(PERMANENT) {
                Some(text) => (text.to_owned(), false),
                None => (text, true),
            },
        };
        Self {
            message: truncate::reason(&text),
            can_retry,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_that_last_are_not_retried() {
        let other = |text: &str| Error::Other(text.to_owned());
        for (error, message, can_retry) in [
            (Error::AccessDenied, "access-denied", false),
            (Error::SubjectInvalid, "subject-invalid", false),
            (Error::MessageTooLarge, "message-too-large", false),
            (Error::BrokerUnavailable, "broker-unavailable", true),
            (Error::QuotaExceeded, "quota-exceeded", true),
            (Error::Timeout, "timeout", true),
            (other("no room"), "no room", true),
            (other("permanent: no number"), "no number", false),
        ] {
            let expected = MessageError {
                message: message.to_owned(),
                can_retry,
            };
            assert_eq!(MessageError::from(error), expected);
        }
    }
}
