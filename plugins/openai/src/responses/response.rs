//! Responses of the Responses API, whole and streamed.

use corral_sdk::{Error, EventWriter, Response};
use serde_json::{Map, Value, json};

use super::items::{ItemOptions, Items};
use super::store::{Storing, new_id};
use crate::error::{responses_error, responses_event};
use crate::serialize;
use crate::shared_fields::StreamOptions;
use crate::timings::{self, Stopwatch};
use conversation::generation::Usage;
use conversation::ids::now;
use conversation::{AnswerStream, FinishReason};

/// The fields of a response that are known at the start.
pub struct Head {
    id: String,
    created: u64,
    model: String,
    /// Fields of the request that the response repeats.
    repeated: Map<String, Value>,
    items: ItemOptions,
    storing: Storing,
}

impl Head {
    pub fn new(
        answers: &AnswerStream,
        repeated: Map<String, Value>,
        items: ItemOptions,
        storing: Storing,
    ) -> Self {
        Head {
            id: new_id(),
            created: now(),
            model: answers.model().name().to_owned(),
            repeated,
            items,
            storing,
        }
    }

    /// The response at its end, stored if it is to be.
    fn end(&self, items: &Items, finish: FinishReason, usage: Usage) -> Value {
        let mut response = self.response(&items.completed, Some((finish, usage)));
        let stored = self.storing.save(&self.id, &items.with_logprobs(&response));
        response["store"] = stored.into();
        response
    }

    /// The response after an error, which is not stored.
    fn failed(&self, output: &[Value], error: &Error) -> Value {
        let mut response = self.response(output, None);
        response["store"] = false.into();
        response["status"] = "failed".into();
        response["error"] = responses_error(error);
        response
    }

    /// The response in progress, or at its end.
    fn response(&self, output: &[Value], end: Option<(FinishReason, Usage)>) -> Value {
        let (status, details) = match end {
            None => ("in_progress", Value::Null),
            Some((FinishReason::Length, _)) => {
                ("incomplete", json!({"reason": "max_output_tokens"}))
            }
            Some(_) => ("completed", Value::Null),
        };
        let mut response = json!({
            "id": self.id,
            "object": "response",
            "created_at": self.created,
            "status": status,
            "background": false,
            "error": null,
            "incomplete_details": details,
            "model": self.model,
            "output": output,
            "previous_response_id": self.storing.previous,
            "store": self.storing.is_on(),
            "tool_choice": "auto",
            "tools": [],
            "metadata": {},
            "truncation": "disabled",
            "usage": end.map(|(_, usage)| json!({
                "input_tokens": usage.prompt,
                "input_tokens_details": {"cached_tokens": usage.cached},
                "output_tokens": usage.generated,
                "output_tokens_details": {"reasoning_tokens": usage.reasoning},
                "total_tokens": usage.prompt + usage.generated,
            })),
        });
        if let Value::Object(fields) = &mut response {
            fields.extend(self.repeated.clone());
        }
        response
    }
}

fn status(finish: FinishReason) -> &'static str {
    match finish {
        FinishReason::Length => "incomplete",
        FinishReason::End | FinishReason::Stop | FinishReason::ToolCalls => "completed",
    }
}

/// Waits for the end and builds the response.
pub async fn respond(mut answers: AnswerStream, head: Head) -> Result<Response, Error> {
    let mut items = Items::new(head.items.clone());
    let mut finish = FinishReason::End;
    while let Some(delta) = answers.next().await? {
        items.add_logprobs(delta.logprobs);
        for part in delta.parts {
            items.add(part, || answers.new_call_id());
        }
        finish = delta.finish.unwrap_or(finish);
    }
    items.end(status(finish));
    let usage = answers.usage()?;
    let response = head.end(&items, finish, usage);
    serialize::respond(&items.with_logprobs(&response))
}

/// Streams the events.
pub fn stream(answers: AnswerStream, head: Head, options: StreamOptions) -> Response {
    Response::events(async move |events| {
        let mut events = SequencedEvents { events, next: 0 };
        let mut items = Items::new(head.items.clone());
        let Err(error) = write(answers, &head, options, &mut items, &mut events).await else {
            return Ok(());
        };
        events.send(responses_event(&error), &items).await?;
        let response = head.failed(&items.completed, &error);
        let failed = json!({"type": "response.failed", "response": response});
        events.send(failed, &items).await
    })
}

/// Writes events with sequence numbers and names.
struct SequencedEvents<'a> {
    events: &'a mut EventWriter,
    next: u64,
}

impl SequencedEvents<'_> {
    async fn send(&mut self, mut event: Value, items: &Items) -> Result<(), Error> {
        event["sequence_number"] = self.next.into();
        self.next += 1;
        let name = event["type"].as_str().unwrap_or_default().to_owned();
        let text = serde_json::to_string(&items.with_logprobs(&event))
            .map_err(|error| Error::Failed(format!("an event has no JSON form: {error}")))?;
        self.events.named(&name, &text).await
    }
}

async fn write(
    mut answers: AnswerStream,
    head: &Head,
    options: StreamOptions,
    items: &mut Items,
    events: &mut SequencedEvents<'_>,
) -> Result<(), Error> {
    let initial = head.response(&[], None);
    for kind in ["response.created", "response.in_progress"] {
        let event = json!({"type": kind, "response": initial});
        events.send(event, items).await?;
    }
    let mut stopwatch = Stopwatch::start(answers.prompt_tokens());
    let mut progress = options.progress;
    let mut finish = FinishReason::End;
    while let Some(delta) = answers.next().await? {
        if std::mem::take(&mut progress) {
            let mut event = json!({"type": "response.in_progress", "response": initial});
            event["prompt_progress"] = stopwatch.progress();
            events.send(event, items).await?;
        }
        let timings = options
            .timings
            .then(|| stopwatch.at(answers.generated_tokens(0)));
        items.add_logprobs(delta.logprobs);
        for part in delta.parts {
            for mut event in items.add(part, || answers.new_call_id()) {
                if let Some(timings) = &timings {
                    event["timings"] = timings.clone();
                }
                events.send(event, items).await?;
            }
        }
        finish = delta.finish.unwrap_or(finish);
    }
    for event in items.end(status(finish)) {
        events.send(event, items).await?;
    }
    let kind = format!("response.{}", status(finish));
    let response = head.end(items, finish, answers.usage()?);
    let timings = timings::of_outcome(&answers.outcome(0)?);
    let last = json!({"type": kind, "response": response, "timings": timings});
    events.send(last, items).await
}
