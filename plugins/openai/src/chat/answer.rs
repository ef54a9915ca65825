//! An answer that is told at once.

use std::borrow::Cow;

use corral_sdk::{Error, Response};
use serde::ser::SerializeStruct;
use serde::{Serialize, Serializer};
use serde_json::{Map, Value, json};

use crate::asking::{Likely, Token};
use crate::identity::{now, unique};
use crate::talk::{Answer, Answers, Finish};
use crate::written::{self, List, Whole};

#[derive(Serialize)]
struct Choice {
    index: usize,
    message: Map<String, Value>,
    logprobs: Option<Logprobs<Vec<Likely>>>,
    finish_reason: Option<&'static str>,
}

/// Waits for all of it.
pub async fn whole(answers: &mut Answers, likely: bool) -> Result<Response, Error> {
    let all = answers.whole().await?.into_iter().enumerate();
    let choices = all.map(|(index, answer)| choice(index, answer, likely));
    written::answer(&Whole {
        id: unique("chatcmpl-"),
        object: "chat.completion",
        created: now(),
        model: answers.model().name(),
        choices: choices.collect(),
        usage: answers.usage()?.to_json(),
    })
}

fn choice(index: usize, answer: Answer, likely: bool) -> Choice {
    let mut message = Map::new();
    message.insert("role".to_owned(), "assistant".into());
    let silent = answer.content.is_empty() && !answer.calls.is_empty();
    let content = (!silent).then_some(answer.content);
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
        logprobs: likely.then_some(Logprobs(answer.likely)),
        finish_reason: answer.finish.map(reason),
    }
}

/// Why an answer ended, in the API's words.
pub fn reason(finish: Finish) -> &'static str {
    match finish {
        Finish::End | Finish::Stop => "stop",
        Finish::Length => "length",
        Finish::Calls => "tool_calls",
    }
}

/// How likely tokens were. Written token by token, since of a long answer it is by far the most.
pub struct Logprobs<L>(pub L);

impl<L: AsRef<[Likely]>> Serialize for Logprobs<L> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let entries = || self.0.as_ref().iter().map(Entry::of);
        let mut members = serializer.serialize_struct("logprobs", 2)?;
        members.serialize_field("content", &List(entries))?;
        members.serialize_field("refusal", &Value::Null)?;
        members.end()
    }
}

#[derive(Serialize)]
struct Entry<'a> {
    token: Cow<'a, str>,
    logprob: Option<f64>,
    bytes: &'a [u8],
    /// Of those that are told themselves, and not in another one's place.
    #[serde(skip_serializing_if = "Option::is_none")]
    top_logprobs: Option<Vec<Entry<'a>>>,
}

impl<'a> Entry<'a> {
    fn of(likely: &'a Likely) -> Self {
        let top = likely.top.iter().map(Self::alone);
        Entry {
            top_logprobs: Some(top.collect()),
            ..Self::alone(&likely.token)
        }
    }

    fn alone(token: &'a Token) -> Self {
        Entry {
            token: token.text(),
            logprob: token.logarithm(),
            bytes: &token.bytes,
            top_logprobs: None,
        }
    }
}
