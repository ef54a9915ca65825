//! The completions of llama.cpp's server in its own format: `/completion`, `/completions`, `/infill`.

mod infill;
mod request;
mod response;
mod settings_json;
mod stream;

use corral_sdk::fields::Fields;
use corral_sdk::{Error, Model, Response, Token};
use serde_json::Value;

use crate::configuration::Configuration;
use crate::prompt_input::{self, Texts};
use conversation::context_limit::check_prompt;
use conversation::generation::{Choices, check_choice_count};
use request::NativeRequest;
use response::NativeResponseShape;

/// `/completion` and `/completions`.
pub async fn completion(mut fields: Fields) -> Result<Response, Error> {
    let prompt = fields.required("prompt", prompt_input::EXPECTED)?;
    let request = request::read(fields)?;
    let model = Model::open_requested(request.model.as_deref()).await?;
    check_choice_count(prompt_input::count(&prompt), request.settings.n, "n")?;
    let prompts = prompt_input::read_all("prompt", &prompt, Texts::Trusted, &model)?;
    respond(request, model, prompts).await
}

/// `/infill`.
pub async fn infill(mut fields: Fields) -> Result<Response, Error> {
    let input = infill::read(&mut fields)?;
    let request = request::read(fields)?;
    let model = Model::open_requested(request.model.as_deref()).await?;
    check_choice_count(1, request.settings.n, "n")?;
    let prompt = input.tokens(&model)?;
    respond(request, model, vec![prompt]).await
}

async fn respond(
    request: NativeRequest,
    model: Model,
    prompts: Vec<Vec<Token>>,
) -> Result<Response, Error> {
    let settings = &request.settings;
    let generates = settings.max_tokens != Some(0);
    for prompt in &prompts {
        check_prompt(&model, prompt, generates.into(), "prompt")?;
    }
    let constraint = request
        .format
        .constraint(&model, request.format_field)
        .await?;
    let choices = match generates {
        true => Choices::start(&model, "prompt", &prompts, settings, constraint.as_ref())?,
        false => Choices::empty(&model, &prompts, settings.n),
    };
    let stream = request.stream;
    let shape = NativeResponseShape::new(request, &model, &prompts)?;
    match stream {
        true => Ok(stream::respond(choices, shape)),
        false => response::respond(choices, &shape).await,
    }
}

/// The settings of a request without any, in the names of llama.cpp's server.
pub fn default_settings(configuration: &Configuration) -> Result<Value, Error> {
    let request = request::read(Fields::from_map(configuration.defaults.clone()))?;
    settings_json::json(&request.settings, &request.format, None)
}
