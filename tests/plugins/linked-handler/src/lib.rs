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

use corral_sdk::{Error, Request, Response};
use serde_json::{Value, json};

use error::GuestError;

#[allow(unsafe_code)]
mod bindings {
    wit_bindgen::generate!({ world: "corral:inference/imports", path: "../../../wit" });
}

#[allow(unsafe_code)]
mod linked {
    wit_bindgen::generate!({ world: "corral:plugin/templated", path: "../../../wit" });
}

corral_sdk::handler!(handle);

async fn handle(mut request: Request) -> Result<Response, Error> {
    let body = request.text().await?;
    let which = request.path().rsplit('/').next().unwrap_or_default();
    let sampler = request.query_parameter("sampler");
    Ok(match answer(which, sampler.as_deref(), &body).await {
        Ok(answer) => Response::json(&answer),
        Err(error) => Response::json(&error.to_json()).with_status(400),
    })
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
