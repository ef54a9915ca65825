//! An answer that is told at once.

use corral_sdk::{Error, Response};
use serde_json::{Map, Value, json};

use crate::asking::{Likely, Token};
use crate::identity::{now, unique};
use crate::talk::{Answer, Answers, Finish};

/// Waits for all of it.
pub async fn whole(answers: &mut Answers, likely: bool) -> Result<Response, Error> {
    let all = answers.whole().await?.into_iter().enumerate();
    let choices = all.map(|(index, answer)| choice(index, answer, likely));
    Ok(Response::json(&json!({
        "id": unique("chatcmpl-"),
        "object": "chat.completion",
        "created": now(),
        "model": answers.model().name(),
        "choices": choices.collect::<Vec<_>>(),
        "usage": answers.usage()?.to_json(),
    })))
}

fn choice(index: usize, answer: Answer, likely: bool) -> Value {
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
    json!({
        "index": index,
        "message": message,
        "logprobs": likely.then(|| logprobs(&answer.likely)),
        "finish_reason": answer.finish.map(reason),
    })
}

/// Why an answer ended, in the API's words.
pub fn reason(finish: Finish) -> &'static str {
    match finish {
        Finish::End | Finish::Stop => "stop",
        Finish::Length => "length",
        Finish::Calls => "tool_calls",
    }
}

/// How likely tokens were.
pub fn logprobs(likely: &[Likely]) -> Value {
    let content = likely.iter().map(|likely| {
        let mut members = token(&likely.token);
        let top = likely.top.iter().map(token);
        members.insert("top_logprobs".to_owned(), top.collect());
        members
    });
    json!({"content": content.collect::<Vec<_>>(), "refusal": null})
}

fn token(token: &Token) -> Map<String, Value> {
    let mut members = Map::new();
    members.insert("token".to_owned(), token.text().into());
    members.insert("logprob".to_owned(), logarithm(token.logprob));
    members.insert("bytes".to_owned(), token.bytes.clone().into());
    members
}

/// As short as it can be written without being another `f32`. JSON has no minus infinity; OpenAI's API
/// writes -9999 for what is as good as impossible.
pub fn logarithm(value: f32) -> Value {
    let value = value
        .to_string()
        .parse::<f64>()
        .unwrap_or(f64::NEG_INFINITY);
    value.max(-9999.0).into()
}
