//! Handles and publishes messages.
//!
//! A message is logged as `handled SUBJECT BODY REPLY-TO`. Its body selects what happens then:
//!
//! | body | behavior |
//! |---|---|
//! | `when ready` | fails with `broker-unavailable` unless the environment has `READY` |
//! | `refuse` | fails with `access-denied` |
//! | `trap` | traps |
//! | `loop` | publishes the message again, and fails if that does |
//! | else | succeeds; publishes the body to the subject for an answer, if there is one |
//!
//! An HTTP request has a JSON body with `subject`, `body` and `reply_to`, which it publishes, or with `wait`, which makes it
//! wait for an answer. The response is `published`, or the error.
// Not `forbid`: the generated bindings contain unsafe code.
#![deny(unsafe_code)]

use serde_json::Value;
use wasip3::http::types::{ErrorCode, Fields, Request, Response};
use wasip3::{spawn_local, wit_future, wit_stream};

use bindings::wasmcloud::messaging::consumer;
use bindings::wasmcloud::messaging::types::{BrokerMessage, Error};

#[allow(unsafe_code)]
mod bindings {
    wit_bindgen::generate!({
        world: "corral:inference/message-handler",
        path: "../../../wit",
        generate_all,
    });
}

struct Messages;

#[allow(unsafe_code)]
mod exports {
    use super::Messages;
    use super::bindings;
    wasip3::http::service::export!(Messages);
    bindings::export!(Messages with_types_in bindings);
}

impl bindings::exports::wasmcloud::messaging::handler::Guest for Messages {
    async fn handle_message(message: BrokerMessage) -> Result<(), Error> {
        let body = String::from_utf8_lossy(&message.body).into_owned();
        let reply_to = message.reply_to.clone().unwrap_or_default();
        println!("handled {} {body} {reply_to}", message.subject);
        match &*body {
            "when ready" if std::env::var_os("READY").is_none() => Err(Error::BrokerUnavailable),
            "refuse" => Err(Error::AccessDenied),
            "trap" => panic!("the plugin traps"),
            "loop" => consumer::publish(message).await,
            _ => match message.reply_to {
                Some(subject) => publish(subject, &body, None).await,
                None => Ok(()),
            },
        }
    }
}

async fn publish(subject: String, body: &str, reply_to: Option<String>) -> Result<(), Error> {
    let body = body.as_bytes().to_vec();
    consumer::publish(BrokerMessage {
        subject,
        body,
        reply_to,
    })
    .await
}

impl wasip3::exports::http::handler::Guest for Messages {
    async fn handle(request: Request) -> Result<Response, ErrorCode> {
        let (_, done) = wit_future::new(|| Ok(()));
        let (body, end) = Request::consume_body(request, done);
        let body = body.collect().await;
        end.await?;
        let wanted: Value = serde_json::from_slice(&body)
            .map_err(|error| ErrorCode::InternalError(Some(error.to_string())))?;
        let text = |name: &str| wanted[name].as_str().map(str::to_owned);
        let subject = text("subject").unwrap_or_default();
        let body = text("body").unwrap_or_default();
        let published = match wanted["wait"].as_bool() {
            Some(true) => {
                let answer = consumer::request(subject, body.into_bytes(), 1000).await;
                answer.map(|_| ())
            }
            _ => publish(subject, &body, text("reply_to")).await,
        };
        let answer = match published {
            Ok(()) => "published".to_owned(),
            Err(error) => format!("{error:?}"),
        };
        let (mut writer, reader) = wit_stream::new();
        spawn_local(async move { writer.write_all(answer.into_bytes()).await });
        let (_, trailers) = wit_future::new(|| Ok(None));
        Ok(Response::new(Fields::new(), Some(reader), trailers).0)
    }
}
