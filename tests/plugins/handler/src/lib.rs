//! A handler that uses a linked template and linked samplers. The last segment of the path selects
//! the operation; request and response bodies are JSON.
//!
//! | segment | body | response |
//! |---|---|---|
//! | `generate` | see below | the host's generation, with a sampling plugin for `?sampler=NAME` |
//! | `chat` | `messages`, `tools`, `settings`, `max_tokens` | the rendered prompt's `pieces` and `stop`, and the host's generation |
//! | `environment` | | its environment variables |
//!
//! `generate` takes `prompt`, `max_tokens`, `ignore_eos`, `seed`, `stop` (a list), `logprobs` (a
//! number), `speculate`, `regex`, and the sampler's `settings`, or `settings_bytes` for settings of
//! this length. `chain` is "before" or "after" to add a host sampler before or after the plugin.
//! `times` is the number of generations with the same options; the response has all `texts`.
//! `leave` drops each generation after the first chunk. `sleep` starts all generations at once and
//! then sleeps.
//!
//! A response has `text`, `tokens` including the end token, `prompt_tokens`, `finish` and
//! `logprobs`. An error is a 400 with `error` (the call `at`, `case` and `text`) and the `tokens`
//! before it.
// Not `forbid`: the generated bindings contain unsafe code.
#![deny(unsafe_code)]

mod chat;
mod error;
mod generate;
mod model;

use serde_json::{Value, json};
use wasip3::http::types::{ErrorCode, Fields, Request, Response};
use wasip3::{spawn_local, wit_future, wit_stream};

use error::GuestError;

#[allow(unsafe_code)]
mod bindings {
    wit_bindgen::generate!({ world: "corral:inference/imports", path: "../../../wit" });
}

#[allow(unsafe_code)]
mod linked {
    wit_bindgen::generate!({ world: "corral:plugin/templated", path: "../../../wit" });
}

struct Handler;

#[allow(unsafe_code)]
mod exports {
    use super::Handler;
    wasip3::http::service::export!(Handler);
}

impl wasip3::exports::http::handler::Guest for Handler {
    async fn handle(request: Request) -> Result<Response, ErrorCode> {
        let path = request.get_path_with_query().unwrap_or_default();
        let (path, query) = path.split_once('?').unwrap_or((&path, ""));
        let body = read(request).await;
        let which = path.rsplit('/').next().unwrap_or_default();
        match answer(which, query.strip_prefix("sampler="), &body).await {
            Ok(answer) => response(200, &answer),
            Err(error) => response(400, &error.to_json()),
        }
    }
}

async fn answer(which: &str, sampler: Option<&str>, body: &str) -> Result<Value, GuestError> {
    let request = serde_json::from_str(body).unwrap_or_default();
    match which {
        "generate" => generate::generate(&request, sampler).await,
        "chat" => chat::chat(&request).await,
        "environment" => Ok(Value::from_iter(std::env::vars())),
        other => Ok(json!({ "nothing": other })),
    }
}

async fn read(request: Request) -> String {
    let (_, processed) = wit_future::new(|| Ok(()));
    let mut body = Request::consume_body(request, processed).0;
    let mut bytes = Vec::new();
    while let Some(byte) = body.next().await {
        bytes.push(byte);
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

fn response(status: u16, answer: &Value) -> Result<Response, ErrorCode> {
    let (mut writer, reader) = wit_stream::new();
    let text = answer.to_string().into_bytes();
    spawn_local(async move { writer.write_all(text).await });
    let (_, trailers) = wit_future::new(|| Ok(None));
    let (response, _) = Response::new(Fields::new(), Some(reader), trailers);
    response
        .set_status_code(status)
        .map_err(|()| ErrorCode::InternalError(None))?;
    Ok(response)
}
