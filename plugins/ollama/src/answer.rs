//! Answers of chat and generate: one object, or a line of JSON for each part.

use std::borrow::Cow;
use std::time::{Duration, Instant, SystemTime};

use corral_sdk::{Error, EventWriter, Finish, Outcome, Response};
use serde::Serialize;
use serde_json::{Map, Value};

use conversation::generation::{LogprobEntry, TokenLogprob};

use crate::error;

/// The fields that every object of an answer has, and the times that the last one reports.
pub struct Frame {
    /// The client's name of the model.
    name: String,
    start: Instant,
    load: Duration,
}

impl Frame {
    /// `start`: when the request arrived. The model is open now.
    pub fn new(name: String, start: Instant) -> Self {
        Frame {
            name,
            start,
            load: start.elapsed(),
        }
    }

    /// An object with these fields of the part.
    pub fn object(&self, part: Value, done: bool) -> Map<String, Value> {
        let now = humantime::format_rfc3339_nanos(SystemTime::now());
        let mut object = Map::new();
        object.insert("model".to_owned(), self.name.as_str().into());
        object.insert("created_at".to_owned(), now.to_string().into());
        if let Value::Object(part) = part {
            object.extend(part);
        }
        object.insert("done".to_owned(), done.into());
        object
    }

    /// The last object, with the outcome of the generation.
    pub fn last(&self, part: Value, outcome: &Outcome) -> Map<String, Value> {
        let mut object = self.object(part, true);
        let reason = match outcome.finish {
            Finish::Length => "length",
            Finish::End | Finish::Stop => "stop",
        };
        object.insert("done_reason".to_owned(), reason.into());
        for (name, value) in [
            ("total_duration", nanoseconds(self.start.elapsed())),
            ("load_duration", nanoseconds(self.load)),
            ("prompt_eval_count", outcome.prompt_tokens.into()),
            ("prompt_eval_duration", outcome.prefill_time),
            ("eval_count", outcome.generated_tokens.into()),
            ("eval_duration", outcome.decode_time),
        ] {
            object.insert(name.to_owned(), value.into());
        }
        object
    }

    /// The answer to a request without a prompt, which only loads the model.
    pub fn loaded(&self, part: Value) -> Response {
        let mut object = self.object(part, true);
        object.insert("done_reason".to_owned(), "load".into());
        Response::json(&object)
    }
}

/// An object of an answer, with the log probabilities of its tokens if there are any.
pub fn with_logprobs(object: Map<String, Value>, entries: &[LogprobEntry]) -> impl Serialize {
    WithLogprobs {
        object,
        logprobs: entries.iter().map(Logprob::new).collect(),
    }
}

#[derive(Serialize)]
struct WithLogprobs<'a> {
    #[serde(flatten)]
    object: Map<String, Value>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    logprobs: Vec<Logprob<'a>>,
}

/// A token. Not JSON values, which would exceed a plugin's memory if the answer is long.
#[derive(Serialize)]
struct Logprob<'a> {
    token: Cow<'a, str>,
    logprob: Option<f64>,
    bytes: &'a [u8],
    #[serde(skip_serializing_if = "Vec::is_empty")]
    top_logprobs: Vec<Logprob<'a>>,
}

impl<'a> Logprob<'a> {
    fn new(entry: &'a LogprobEntry) -> Self {
        Logprob {
            top_logprobs: entry.top.iter().map(Self::without_top).collect(),
            ..Self::without_top(&entry.token)
        }
    }

    fn without_top(token: &'a TokenLogprob) -> Self {
        Logprob {
            token: token.text(),
            logprob: token.json_logprob(),
            bytes: &token.bytes,
            top_logprobs: Vec::new(),
        }
    }
}

/// A duration as the API writes it.
pub fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// Streams lines. An error becomes the last one.
pub fn lines(send: impl AsyncFnOnce(&mut EventWriter) -> Result<(), Error> + 'static) -> Response {
    Response::json_lines(async move |lines| match send(lines).await {
        Ok(()) => Ok(()),
        Err(error) => lines.json_line(&error::body(&error)).await,
    })
}
