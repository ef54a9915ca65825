//! `/v1/completions`.

mod answer;
mod infill;
mod request;
mod stream;

use corral_sdk::fields::Fields;
use corral_sdk::{Error, Response};

use crate::asking::{Choices, check_number_of_texts};
use crate::models;

/// Answers a request.
pub async fn answer(fields: Fields) -> Result<Response, Error> {
    let request = request::read(fields)?;
    let model = models::open(request.model.as_deref()).await?;
    let prompts = request::prompts(&request.prompt, request.suffix.as_deref(), &model)?;
    check_number_of_texts(prompts.len(), request.settings.n)?;
    let echo = match request.echo {
        true => request::written(&request.prompt, &prompts, &model)?,
        false => Vec::new(),
    };
    let choices = Choices::begin(&model, "prompt", &prompts, &request.settings, None)?;
    let told = answer::Told {
        likely: request.settings.logprobs,
        each: request.settings.n as usize,
        echo,
    };
    match request.stream {
        Some(usage) => Ok(stream::answer(choices.begun().await?, told, usage)),
        None => answer::whole(choices, &told).await,
    }
}
