//! Answers, at once and as events.

use corral_sdk::{Error, Events, Response};
use serde_json::{Map, Value, json};

use super::items::Items;
use crate::asking::Usage;
use crate::error::event;
use crate::identity::{now, unique};
use crate::talk::{Answers, Finish};

/// What is known of an answer before it begins.
pub struct Head {
    id: String,
    created: u64,
    model: String,
    /// What of the request is shown in the answer.
    shown: Map<String, Value>,
}

impl Head {
    pub fn new(answers: &Answers, shown: Map<String, Value>) -> Self {
        Head {
            id: unique("resp_"),
            created: now(),
            model: answers.model().name().to_owned(),
            shown,
        }
    }

    /// The answer so far, or as it ended.
    fn response(&self, output: &[Value], end: Option<(Finish, Usage)>) -> Value {
        let (status, details) = match end {
            None => ("in_progress", Value::Null),
            Some((Finish::Length, _)) => ("incomplete", json!({"reason": "max_output_tokens"})),
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
            "previous_response_id": null,
            "store": false,
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
        if let Value::Object(members) = &mut response {
            members.extend(self.shown.clone());
        }
        response
    }
}

fn status(finish: Finish) -> &'static str {
    match finish {
        Finish::Length => "incomplete",
        Finish::End | Finish::Stop | Finish::Calls => "completed",
    }
}

/// Waits for all of it.
pub async fn whole(mut answers: Answers, head: Head) -> Result<Response, Error> {
    let mut items = Items::default();
    let mut finish = Finish::End;
    while let Some(said) = answers.next().await? {
        for part in said.parts {
            items.part(part, || answers.name_for_call());
        }
        finish = said.finish.unwrap_or(finish);
    }
    items.end(status(finish));
    let usage = answers.usage()?;
    Ok(Response::json(
        &head.response(&items.done, Some((finish, usage))),
    ))
}

/// Tells it as it comes.
pub fn stream(answers: Answers, head: Head) -> Response {
    Response::events(async move |events| {
        let mut events = Numbered { events, next: 0 };
        match tell(answers, head, &mut events).await {
            Ok(()) => Ok(()),
            Err(error) => events.send(event(&error)).await,
        }
    })
}

/// Events with their numbers and names.
struct Numbered<'a> {
    events: &'a mut Events,
    next: u64,
}

impl Numbered<'_> {
    async fn send(&mut self, mut event: Value) -> Result<(), Error> {
        event["sequence_number"] = self.next.into();
        self.next += 1;
        let name = event["type"].as_str().unwrap_or_default().to_owned();
        self.events.named(&name, &event.to_string()).await
    }
}

async fn tell(mut answers: Answers, head: Head, events: &mut Numbered<'_>) -> Result<(), Error> {
    let begun = head.response(&[], None);
    for kind in ["response.created", "response.in_progress"] {
        events
            .send(json!({"type": kind, "response": begun}))
            .await?;
    }
    let mut items = Items::default();
    let mut finish = Finish::End;
    while let Some(said) = answers.next().await? {
        for part in said.parts {
            for event in items.part(part, || answers.name_for_call()) {
                events.send(event).await?;
            }
        }
        finish = said.finish.unwrap_or(finish);
    }
    for event in items.end(status(finish)) {
        events.send(event).await?;
    }
    let kind = format!("response.{}", status(finish));
    let response = head.response(&items.done, Some((finish, answers.usage()?)));
    events
        .send(json!({"type": kind, "response": response}))
        .await
}
