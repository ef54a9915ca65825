//! The response of a chat completion that is not streamed.

use std::borrow::Cow;

use corral_sdk::{Error, Response, Token};
use serde::ser::SerializeStruct;
use serde::{Serialize, Serializer};
use serde_json::{Map, Value, json};

use crate::serialize::{self, CompletionResponse, JsonArray};
use crate::timings::{self, SYSTEM_FINGERPRINT};
use conversation::generation::{LogprobEntry, TokenLogprob};
use conversation::ids::{now, unique_id};
use conversation::{Answer, AnswerStream, FinishReason};

#[derive(Serialize)]
struct Choice {
    index: usize,
    message: Map<String, Value>,
    logprobs: Option<Logprobs<Vec<LogprobEntry>>>,
    finish_reason: Option<&'static str>,
}

/// Waits for the end and builds the response.
pub async fn respond(
    answers: &mut AnswerStream,
    logprobs: bool,
    prompt: Option<String>,
) -> Result<Response, Error> {
    let all = answers.collect().await?.into_iter().enumerate();
    let choices = all.map(|(index, answer)| choice(index, answer, logprobs));
    serialize::respond(&CompletionResponse {
        id: unique_id("chatcmpl-"),
        object: "chat.completion",
        created: now(),
        model: answers.model().name(),
        system_fingerprint: SYSTEM_FINGERPRINT,
        choices: choices.collect(),
        usage: answers.usage()?.to_json(),
        timings: timings::of_outcome(&answers.outcome(0)?),
        verbose: prompt.map(|prompt| json!({"prompt": prompt})),
    })
}

fn choice(index: usize, answer: Answer, logprobs: bool) -> Choice {
    let mut message = Map::new();
    message.insert("role".to_owned(), "assistant".into());
    let only_calls = answer.content.is_empty() && !answer.calls.is_empty();
    let content = (!only_calls).then_some(answer.content);
    message.insert("content".to_owned(), content.into());
    message.insert("refusal".to_owned(), Value::Null);
    if !answer.reasoning.is_empty() {
        message.insert("reasoning_content".to_owned(), answer.reasoning.into());
    }
    if !answer.calls.is_empty() {
        let calls = answer.calls.into_iter().map(|call| {
            json!({
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            })
        });
        message.insert("tool_calls".to_owned(), calls.collect());
    }
    Choice {
        index,
        message,
        logprobs: logprobs.then_some(Logprobs(answer.logprobs)),
        finish_reason: answer.finish.map(finish_reason),
    }
}

/// The API's name of a finish reason.
pub fn finish_reason(finish: FinishReason) -> &'static str {
    match finish {
        FinishReason::End | FinishReason::Stop => "stop",
        FinishReason::Length => "length",
        FinishReason::ToolCalls => "tool_calls",
    }
}

/// The list of these entries. Serialized entry by entry, since they are most of a long response.
pub fn logprob_list(entries: &[LogprobEntry]) -> impl Serialize {
    JsonArray(move || entries.iter().map(Entry::new))
}

/// The log probabilities of a choice.
pub struct Logprobs<L>(pub L);

impl<L: AsRef<[LogprobEntry]>> Serialize for Logprobs<L> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut fields = serializer.serialize_struct("logprobs", 2)?;
        fields.serialize_field("content", &logprob_list(self.0.as_ref()))?;
        fields.serialize_field("refusal", &Value::Null)?;
        fields.end()
    }
}

#[derive(Serialize)]
struct Entry<'a> {
    /// The token's number, as in llama.cpp's server.
    id: Token,
    token: Cow<'a, str>,
    logprob: Option<f64>,
    bytes: &'a [u8],
    /// `None` for the entries of `top_logprobs` themselves.
    #[serde(skip_serializing_if = "Option::is_none")]
    top_logprobs: Option<Vec<Entry<'a>>>,
}

impl<'a> Entry<'a> {
    fn new(entry: &'a LogprobEntry) -> Self {
        let top = entry.top.iter().map(Self::without_top);
        Entry {
            top_logprobs: Some(top.collect()),
            ..Self::without_top(&entry.token)
        }
    }

    fn without_top(token: &'a TokenLogprob) -> Self {
        Entry {
            id: token.id,
            token: token.text(),
            logprob: token.json_logprob(),
            bytes: &token.bytes,
            top_logprobs: None,
        }
    }
}
