//! One response: its events, and when they arrived.

use crate::bench::sse::{EventReader, EventTooLong};
use http_body_util::{BodyExt, Limited};
use hyper::body::Incoming;
use serde_json::Value;
use std::fmt;
use std::time::Instant;
use strum::IntoStaticStr;

/// Most bytes of a response that is not streamed.
const MAX_BODY_BYTES: usize = 64 << 20;
/// Most characters kept of an error message of a server.
const MAX_MESSAGE_CHARS: usize = 400;

/// Times of a complete response, in seconds.
#[derive(Debug, Default)]
pub(super) struct ResponseTimes {
    /// To the first event with text, if there is one.
    pub(super) first_token: Option<f64>,
    /// Between consecutive events with text.
    pub(super) gaps: Vec<f64>,
    /// To the end.
    pub(super) total: f64,
    /// Events with text.
    pub(super) events: u64,
    /// Tokens as the server counts them.
    pub(super) usage: Option<TokenUsage>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TokenUsage {
    pub(super) prompt: u64,
    /// Those of the prompt from the server's cache, if it reports them.
    pub(super) cached: Option<u64>,
    pub(super) generated: u64,
}

/// Why a response does not count.
#[derive(Debug)]
pub(super) struct Failure {
    pub(super) kind: FailureKind,
    /// From the server or the client.
    pub(super) message: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, IntoStaticStr)]
#[strum(serialize_all = "lowercase")]
pub(super) enum FailureKind {
    /// Nothing accepted the connection.
    Connect,
    /// The connection broke before the response's head.
    Lost,
    /// The response is an error.
    Status(u16),
    /// The response took longer than the timeout.
    Timeout,
    /// The response ended early.
    Cut,
    /// The stream contains an error.
    Error,
    /// The response is not one of OpenAI's API.
    Invalid,
    /// The stream is longer than the request allows.
    Endless,
}

impl FailureKind {
    /// The key in JSON.
    pub(super) fn key(self) -> String {
        match self {
            FailureKind::Status(status) => format!("status_{status}"),
            kind => <&str>::from(kind).to_owned(),
        }
    }
}

impl fmt::Display for FailureKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FailureKind::Connect => f.write_str("nothing answered"),
            FailureKind::Lost => f.write_str("the connection broke"),
            FailureKind::Status(status) => write!(f, "the server answered with {status}"),
            FailureKind::Timeout => f.write_str("the response took too long"),
            FailureKind::Cut => f.write_str("the response ended early"),
            FailureKind::Error => f.write_str("the stream contains an error"),
            FailureKind::Invalid => f.write_str("the response is not one of OpenAI's API"),
            FailureKind::Endless => f.write_str("the response is longer than requested"),
        }
    }
}

impl Failure {
    pub(super) fn new(kind: FailureKind, message: &str) -> Self {
        Failure {
            kind,
            message: message.chars().take(MAX_MESSAGE_CHARS).collect(),
        }
    }

    /// An error response with this body.
    pub(super) fn status(status: u16, body: &[u8]) -> Self {
        let text = String::from_utf8_lossy(body);
        let value = serde_json::from_slice::<Value>(body).unwrap_or_default();
        // The forms of OpenAI's API, of RFC 9457, and of other servers.
        let message = value["error"]["message"].as_str();
        let message = message
            .or(value["detail"].as_str())
            .or(value["error"].as_str());
        Failure::new(FailureKind::Status(status), message.unwrap_or(&text))
    }
}

impl From<EventTooLong> for Failure {
    fn from(_: EventTooLong) -> Self {
        Failure::new(FailureKind::Invalid, "an event is larger than 1 MiB")
    }
}

/// Reads a stream of events for a request of `max_tokens` that started at `start`.
pub(super) async fn read_stream(
    mut body: Incoming,
    start: Instant,
    max_tokens: u64,
) -> Result<ResponseTimes, Failure> {
    let (mut reader, mut stream) = (EventReader::default(), StreamTimes::default());
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| Failure::new(FailureKind::Cut, &error.to_string()))?;
        let now = start.elapsed().as_secs_f64();
        let Some(bytes) = frame.data_ref() else {
            continue;
        };
        for data in reader.push(bytes)? {
            stream.take(&data, now, max_tokens)?;
        }
    }
    stream.finish(start.elapsed().as_secs_f64())
}

/// Reads a response that is not streamed.
pub(super) async fn read_whole(body: Incoming, start: Instant) -> Result<ResponseTimes, Failure> {
    let body = Limited::new(body, MAX_BODY_BYTES).collect().await;
    let body = body.map_err(|error| Failure::new(FailureKind::Cut, &error.to_string()))?;
    let value = serde_json::from_slice(&body.to_bytes());
    let value = value.map_err(|error| Failure::new(FailureKind::Invalid, &error.to_string()))?;
    check(&value)?;
    Ok(ResponseTimes {
        total: start.elapsed().as_secs_f64(),
        usage: usage(&value),
        ..ResponseTimes::default()
    })
}

/// A stream while it is read.
#[derive(Default)]
struct StreamTimes {
    times: ResponseTimes,
    /// When the last event with text arrived.
    last: f64,
    /// Whether `[DONE]` has arrived.
    is_done: bool,
}

impl StreamTimes {
    /// Takes the data of an event that arrived `now`.
    fn take(&mut self, data: &str, now: f64, max_tokens: u64) -> Result<(), Failure> {
        if data == "[DONE]" {
            self.is_done = true;
            return Ok(());
        }
        let value = serde_json::from_str(data).map_err(|_| {
            let message = format!("an event is not JSON: {data}");
            Failure::new(FailureKind::Invalid, &message)
        })?;
        check(&value)?;
        self.times.usage = usage(&value).or(self.times.usage);
        if !has_text(&value) {
            return Ok(());
        }
        match self.times.first_token {
            None => self.times.first_token = Some(now),
            Some(_) => self.times.gaps.push(now - self.last),
        }
        self.last = now;
        self.times.events += 1;
        // Some servers send more events than tokens.
        match self.times.events > 2 * max_tokens + 16 {
            true => {
                let events = self.times.events;
                let message = format!("{events} events for {max_tokens} tokens");
                Err(Failure::new(FailureKind::Endless, &message))
            }
            false => Ok(()),
        }
    }

    /// Ends the stream `now`.
    fn finish(self, now: f64) -> Result<ResponseTimes, Failure> {
        match self.is_done {
            true => Ok(ResponseTimes {
                total: now,
                ..self.times
            }),
            false => Err(Failure::new(
                FailureKind::Cut,
                "the stream ended without [DONE]",
            )),
        }
    }
}

/// Refuses a value that is not part of a completion.
fn check(value: &Value) -> Result<(), Failure> {
    let error = &value["error"];
    if !error.is_null() {
        let message = error["message"].as_str();
        let message = message.map_or_else(|| error.to_string(), str::to_owned);
        return Err(Failure::new(FailureKind::Error, &message));
    }
    match value["choices"].is_array() {
        true => Ok(()),
        false => {
            let message = format!("it has no 'choices': {value}");
            Err(Failure::new(FailureKind::Invalid, &message))
        }
    }
}

/// Whether an event contains generated output: text, reasoning, or a tool call.
fn has_text(value: &Value) -> bool {
    let is_text = |value: &Value| value.as_str().is_some_and(|text| !text.is_empty());
    let has_output = |choice: &Value| {
        let delta = &choice["delta"];
        let texts = [
            &choice["text"],
            &delta["content"],
            &delta["reasoning_content"],
            &delta["reasoning"],
        ];
        texts.into_iter().any(is_text) || delta["tool_calls"].is_array()
    };
    let choices = value["choices"].as_array();
    choices.is_some_and(|choices| choices.iter().any(has_output))
}

fn usage(value: &Value) -> Option<TokenUsage> {
    let usage = &value["usage"];
    Some(TokenUsage {
        prompt: usage["prompt_tokens"].as_u64()?,
        cached: usage["prompt_tokens_details"]["cached_tokens"].as_u64(),
        generated: usage["completion_tokens"].as_u64()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(events: &[(&str, f64)]) -> Result<ResponseTimes, Failure> {
        let mut stream = StreamTimes::default();
        for (data, now) in events {
            stream.take(data, *now, 4)?;
        }
        stream.finish(9.0)
    }

    #[test]
    fn only_events_with_text_are_timed() {
        let times = read(&[
            (
                r#"{"choices":[{"delta":{"role":"assistant","content":""}}]}"#,
                1.0,
            ),
            (
                r#"{"choices":[{"delta":{"content":"a"}}],"usage":null}"#,
                2.0,
            ),
            (r#"{"choices":[{"delta":{"reasoning_content":"b"}}]}"#, 2.5),
            (r#"{"choices":[{"text":"c"}]}"#, 4.5),
            (
                r#"{"choices":[{"delta":{},"finish_reason":"length"}]}"#,
                5.0,
            ),
            (
                r#"{"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":4,
                    "prompt_tokens_details":{"cached_tokens":2}}}"#,
                6.0,
            ),
            ("[DONE]", 7.0),
        ])
        .expect("a complete response");
        assert_eq!(times.first_token, Some(2.0));
        assert_eq!(times.gaps, [0.5, 2.0]);
        assert_eq!((times.total, times.events), (9.0, 3));
        let usage = TokenUsage {
            prompt: 7,
            cached: Some(2),
            generated: 4,
        };
        assert_eq!(times.usage, Some(usage));
    }

    #[test]
    fn incomplete_streams_fail_by_kind() {
        const TEXT: (&str, f64) = (r#"{"choices":[{"text":"a"}]}"#, 1.0);
        for (events, kind) in [
            (vec![TEXT], FailureKind::Cut),
            (vec![], FailureKind::Cut),
            (vec![TEXT, ("{", 2.0)], FailureKind::Invalid),
            (vec![(r#"{"content":"a"}"#, 1.0)], FailureKind::Invalid),
            (
                vec![TEXT, (r#"{"error":{"message":"no room"}}"#, 2.0)],
                FailureKind::Error,
            ),
            (vec![TEXT; 25], FailureKind::Endless),
        ] {
            let failure = read(&events).expect_err("an incomplete response");
            assert_eq!(failure.kind, kind, "{failure:?}");
        }
    }

    #[test]
    fn error_message_comes_from_the_server() {
        for (body, message) in [
            (r#"{"error":{"message":"no model"}}"#, "no model"),
            (r#"{"detail":"no model"}"#, "no model"),
            (r#"{"error":"no model"}"#, "no model"),
            ("no model", "no model"),
        ] {
            let failure = Failure::status(500, body.as_bytes());
            let expected = (FailureKind::Status(500), message);
            assert_eq!((failure.kind, &*failure.message), expected);
            assert_eq!(failure.kind.key(), "status_500");
        }
    }
}
