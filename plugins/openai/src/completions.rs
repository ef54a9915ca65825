//! `/v1/completions`.

mod prompt_logprobs;
mod request;
mod response;
mod stream;

use corral_sdk::fields::Fields;
use corral_sdk::{Error, Model, Response};
use serde_json::{Value, json};

use conversation::context_limit::check_prompt;
use conversation::generation::{Choices, check_choice_count};

pub async fn respond(fields: Fields) -> Result<Response, Error> {
    let mut request = request::read(fields)?;
    let model = Model::open_requested(request.model.as_deref()).await?;
    let (count, field) = match request.best_of {
        Some(best_of) => (best_of, "best_of"),
        None => (request.settings.n, "n"),
    };
    check_choice_count(request.prompt.len(), count, field)?;
    let prompts = request::prompts(&request.prompt, request.suffix.as_deref(), &model)?;
    let constraint = request
        .format
        .constraint(&model, request.format_field)
        .await?;
    let (returned, logprobs) = (request.settings.n, request.settings.logprobs);
    if let Some(best_of) = request.best_of {
        request.settings.n = best_of;
        // The ranking needs them.
        request.settings.logprobs = logprobs.or(Some(0));
    }
    let settings = &request.settings;
    let generates = settings.max_tokens != Some(0);
    for prompt in &prompts {
        check_prompt(&model, prompt, generates.into(), "prompt")?;
    }
    let mut echo = match request.echo {
        true => request::echoes(&request.prompt, &prompts, &model)?,
        false => Vec::new(),
    };
    let mut sequences = Vec::new();
    if request.echo
        && let Some(top) = logprobs
    {
        prompt_logprobs::check(&prompts, top).map_err(|error| error.with_field("prompt"))?;
        let scored = prompt_logprobs::score(&model, &prompts, top, generates).await?;
        for (echo, scored) in echo.iter_mut().zip(scored) {
            echo.set_logprobs(scored.logprobs);
            sequences.extend(scored.sequence);
        }
    }
    let choices = match (generates, sequences.is_empty()) {
        (false, _) => Choices::empty(&model, &prompts, settings.n),
        (true, false) => Choices::continue_from(&model, sequences, settings)?,
        (true, true) => Choices::start(&model, "prompt", &prompts, settings, constraint.as_ref())?,
    };
    let format = response::ResponseShape {
        logprobs,
        returned: returned as usize,
        per_prompt: settings.n as usize,
        echo,
    };
    match request.stream {
        Some(options) => Ok(stream::respond(choices, format, options)),
        None => response::respond(choices, &format).await,
    }
}

/// `/v1/completions/render`: the tokens of each prompt. The limits are those of a completion.
pub async fn render(fields: Fields) -> Result<Response, Error> {
    let request = request::read(fields)?;
    let model = Model::open_requested(request.model.as_deref()).await?;
    check_choice_count(request.prompt.len(), 1, "prompt")?;
    let prompts = request::prompts(&request.prompt, request.suffix.as_deref(), &model)?;
    let generates = request.settings.max_tokens != Some(0);
    for prompt in &prompts {
        check_prompt(&model, prompt, generates.into(), "prompt")?;
    }
    let rendered = prompts.iter().map(|tokens| json!({"token_ids": tokens}));
    Ok(Response::json(&Value::from_iter(rendered)))
}
