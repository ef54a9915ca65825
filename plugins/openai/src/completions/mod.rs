//! `/v1/completions`.

mod answer;
mod infill;
mod request;
mod scores;
mod stream;

use corral_sdk::fields::Fields;
use corral_sdk::{Error, Response};

use crate::asking::{Choices, check, check_number_of_texts};
use crate::models;

/// Answers a request.
pub async fn answer(fields: Fields) -> Result<Response, Error> {
    let request = request::read(fields)?;
    let model = models::open(request.model.as_deref()).await?;
    let prompts = request::prompts(&request.prompt, request.suffix.as_deref(), &model)?;
    check_number_of_texts(prompts.len(), request.settings.n)?;
    let settings = &request.settings;
    let says = settings.max_tokens != Some(0);
    for prompt in &prompts {
        check(prompt, &model, says.into()).map_err(|error| error.about("prompt"))?;
    }
    let mut echo = match request.echo {
        true => request::echoes(&request.prompt, &prompts, &model)?,
        false => Vec::new(),
    };
    let mut read = Vec::new();
    if request.echo
        && let Some(top) = settings.logprobs
    {
        scores::check(&prompts, top).map_err(|error| error.about("prompt"))?;
        let scored = scores::read(&model, &prompts, top, says).await?;
        for (echo, scored) in echo.iter_mut().zip(scored) {
            echo.tell(scored.likely);
            read.extend(scored.sequence);
        }
    }
    let choices = match (says, read.is_empty()) {
        (false, _) => Choices::silent(&model, &prompts, settings.n),
        (true, false) => Choices::go_on(&model, read, settings)?,
        (true, true) => Choices::begin(&model, "prompt", &prompts, settings, None)?,
    };
    let told = answer::Told {
        likely: settings.logprobs,
        each: settings.n as usize,
        echo,
    };
    match request.stream {
        Some(usage) => Ok(stream::answer(choices.begun().await?, told, usage)),
        None => answer::whole(choices, &told).await,
    }
}
