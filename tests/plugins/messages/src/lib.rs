//! Handles and publishes messages.
//!
//! A message is logged as `handled SUBJECT BODY REPLY-TO`. Its body selects what happens then:
//!
//! | body | behavior |
//! |---|---|
//! | `when ready` | fails unless the environment has `READY` |
//! | `refuse` | fails, and would again |
//! | `trap` | traps |
//! | `loop` | publishes the message again, and fails if that does |
//! | else | succeeds; publishes the body to the subject for an answer, if there is one |
//!
//! An HTTP request has a JSON body with `subject`, `body` and `reply_to`, which it publishes, or with `wait`, which makes it
//! wait for an answer. The response is `published`, or the code and the text of the error.

use corral_sdk::bindings::messages::wasmcloud::messaging::consumer;
use corral_sdk::messages::{Message, publish};
use corral_sdk::{Error, Request, Response};
use serde_json::Value;

corral_sdk::message_handler!(handle_message);
corral_sdk::handler!(handle_request);

async fn handle_message(message: Message) -> Result<(), Error> {
    let body = message.text()?;
    let reply_to = message.reply_to.as_deref().unwrap_or_default();
    println!("handled {} {body} {reply_to}", message.subject);
    match body {
        "when ready" if std::env::var_os("READY").is_none() => {
            Err(Error::Failed("it is not ready".to_owned()))
        }
        "refuse" => Err(Error::NotGranted("it is refused on request".to_owned())),
        "trap" => panic!("the plugin traps"),
        "loop" => publish(message).await,
        _ => match message.reply_to {
            Some(subject) => publish(Message::new(subject, message.body)).await,
            None => Ok(()),
        },
    }
}

async fn handle_request(request: Request) -> Result<Response, Error> {
    let wanted: Value = request.with_body_limit(2 << 20).json().await?;
    let text = |name: &str| wanted[name].as_str().map(str::to_owned);
    let subject = text("subject").unwrap_or_default();
    let mut message = Message::new(subject, text("body").unwrap_or_default());
    message.reply_to = text("reply_to");
    let published = match wanted["wait"].as_bool() {
        Some(true) => {
            let answer = consumer::request(message.subject, message.body, 1000).await;
            answer
                .map(|_| ())
                .map_err(|error| Error::Failed(format!("{error:?}")))
        }
        _ => publish(message).await,
    };
    Ok(Response::text(match published {
        Ok(()) => "published".to_owned(),
        Err(error) => format!("{}: {error}", error.code()),
    }))
}
