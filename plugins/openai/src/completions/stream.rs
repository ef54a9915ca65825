//! The events of a streamed completion.

use corral_sdk::http::EventFormat;
use corral_sdk::{Error, EventWriter, Response};

use super::response::ResponseShape;
use crate::completion_chunks::CompletionChunks;
use crate::error::ApiFormat;
use crate::shared_fields::StreamOptions;
use crate::sse;
use crate::timings::Stopwatch;
use conversation::generation::Choices;

pub fn respond(mut choices: Choices, format: ResponseShape, options: StreamOptions) -> Response {
    let chunks = CompletionChunks::new("cmpl-", "text_completion", choices.model(), options.usage);
    if !options.need_events()
        && format.echo.is_empty()
        && let Some(generation) = choices.take_generation()
    {
        let event = |text: &str| chunks.chunk(&[format.choice(0, text, &[], &[], None)]);
        return sse::text_events(
            ApiFormat::OpenAi,
            generation,
            EventFormat::json(event),
            async move |outcome, events| {
                let outcome = outcome?;
                choices.set_outcome(outcome);
                let last = format.choice(0, "", &[], &[], Some(outcome.finish));
                let last = chunks.chunk(&[last]);
                let usage = choices.usage();
                chunks.close(Some(&last), usage, &outcome, events).await
            },
        );
    }
    sse::events(ApiFormat::OpenAi, async move |events| {
        write(choices, format, chunks, options, events).await
    })
}

async fn write(
    mut choices: Choices,
    format: ResponseShape,
    chunks: CompletionChunks,
    options: StreamOptions,
    events: &mut EventWriter,
) -> Result<(), Error> {
    let mut stopwatch = Stopwatch::start(choices.prompt_tokens());
    let mut started = false;
    for index in 0..choices.count() {
        if let Some(echo) = format.echo_of(index) {
            let choice = format.choice(index, &echo.text, &echo.logprobs, &[], None);
            events.json(&chunks.chunk(&[choice])).await?;
        }
    }
    while let Some(delta) = choices.next().await? {
        let finish = delta.end.map(|end| end.finish);
        if delta.text.is_empty() && delta.logprobs.is_empty() && finish.is_none() {
            continue;
        }
        let choice = format.choice(delta.index, &delta.text, &[], &delta.logprobs, finish);
        let mut event = chunks.chunk(&[choice]);
        if options.progress && !started {
            event["prompt_progress"] = stopwatch.progress();
        }
        started = true;
        if options.timings {
            event["timings"] = stopwatch.at(choices.generated_tokens(delta.index));
        }
        events.json(&event).await?;
    }
    let first = choices.outcome(0)?;
    chunks.close(None, choices.usage(), &first, events).await
}
