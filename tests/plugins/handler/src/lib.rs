//! A handler that leaves its work to the plugins that it is linked with: a template, and samplers. The
//! last segment of the path says what it does, and its body is JSON; so are its answers.
//!
//! | segment | body | answer |
//! |---|---|---|
//! | `generate` | see below | what the host generates, by a sampling plugin with `?sampler=NAME` |
//! | `next` | `prompt`, `max_tokens`, `ignore_end` | the same by a loop over the likeliest token |
//! | `many` | `prompts`, `max_tokens`, `ignore_end` | `answers`, by `next-many` |
//! | `chat` | `messages`, `tools`, `settings`, `max_tokens` | the `pieces` of the prompt that the template makes of it, its `stop`, and what the host generates |
//! | `environment` | | its environment variables |
//!
//! `generate` takes `prompt`, `max_tokens`, `ignore_end`, `seed`, `stop` (a list), `logprobs` (how many),
//! `speculate`, `regex`, and for the sampler `settings`, or `settings_bytes` for so many bytes of them.
//! `chain` is "before" or "after" to add a sampler of the host's before or after the plugin; `times` is how
//! often it generates with the same options, of which all `texts` are told; with `leave` it drops each
//! generation after the first chunk, and with `sleep` it starts all of them at once and sleeps for good.
//!
//! An answer has `text`, `tokens` with the one that ends it, `prompt_tokens`, `finish` and `logprobs`. What
//! fails is answered with 400 and `error`: `at` which call, its `case` and `text`; with the `tokens` up to
//! there.
// Not forbid: the bindings are generated, with unsafe code.
#![deny(unsafe_code)]

mod chat;
mod failed;
mod generate;
mod opened;

use serde_json::{Value, json};
use wasip3::http::types::{ErrorCode, Fields, Request, Response};
use wasip3::{spawn_local, wit_future, wit_stream};

use failed::Failed;

#[allow(unsafe_code)]
mod bindings {
    wit_bindgen::generate!({ world: "corral:inference/imports", path: "../../../wit" });
}

#[allow(unsafe_code)]
mod linked {
    wit_bindgen::generate!({ world: "corral:plugin/templated", path: "../../../wit" });
}

struct Roles;

#[allow(unsafe_code)]
mod exports {
    use super::Roles;
    wasip3::http::service::export!(Roles);
}

impl wasip3::exports::http::handler::Guest for Roles {
    async fn handle(request: Request) -> Result<Response, ErrorCode> {
        let path = request.get_path_with_query().unwrap_or_default();
        let (path, query) = path.split_once('?').unwrap_or((&path, ""));
        let body = read(request).await;
        let which = path.rsplit('/').next().unwrap_or_default();
        match answer(which, query.strip_prefix("sampler="), &body).await {
            Ok(answer) => response(200, &answer),
            Err(failed) => response(400, &failed.told()),
        }
    }
}

async fn answer(which: &str, sampler: Option<&str>, body: &str) -> Result<Value, Failed> {
    let asked = serde_json::from_str(body).unwrap_or_default();
    match which {
        "generate" => generate::generate(&asked, sampler).await,
        "next" => generate::next(&asked).await,
        "many" => generate::many(&asked).await,
        "chat" => chat::chat(&asked).await,
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
