//! One answer: what its events say, and when they came.

use super::sse::{Events, TooLong};
use http_body_util::{BodyExt, Limited};
use hyper::body::Incoming;
use serde_json::Value;
use std::fmt;
use std::time::Instant;

/// Most bytes of an answer that is not streamed.
const MOST: usize = 64 << 20;
/// Most characters that are kept of what a server says is wrong.
const SAID: usize = 400;

/// An answer that came whole. Times are in seconds.
#[derive(Debug, Default)]
pub(super) struct Answer {
    /// To the first event with text; nothing where the answer was not streamed, or had none.
    pub(super) first: Option<f64>,
    /// Between one event with text and the next.
    pub(super) gaps: Vec<f64>,
    /// To the end.
    pub(super) whole: f64,
    /// Events with text.
    pub(super) events: u64,
    /// What the server says that it took.
    pub(super) usage: Option<Usage>,
}

/// Tokens, as the server counts them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Usage {
    pub(super) prompt: u64,
    /// Of these, in the server's cache; not every server says it.
    pub(super) cached: Option<u64>,
    pub(super) generated: u64,
}

/// Why an answer does not count.
#[derive(Debug)]
pub(super) struct Failure {
    pub(super) kind: Kind,
    /// In the server's words, or the client's.
    pub(super) said: String,
}

/// In what way an answer failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Nothing answered there.
    Connect,
    /// The connection broke before the answer's head was there.
    Lost,
    /// The answer is no success.
    Status(u16),
    /// It took longer than is waited.
    Timeout,
    /// It ended early.
    Cut,
    /// The stream told of an error.
    Error,
    /// It is no answer of OpenAI's API.
    Odd,
    /// There was more of it than was asked for.
    Endless,
}

impl Kind {
    /// As programs are told.
    pub(super) fn key(self) -> String {
        match self {
            Kind::Connect => "connect".to_owned(),
            Kind::Lost => "lost".to_owned(),
            Kind::Status(status) => format!("status_{status}"),
            Kind::Timeout => "timeout".to_owned(),
            Kind::Cut => "cut".to_owned(),
            Kind::Error => "error".to_owned(),
            Kind::Odd => "odd".to_owned(),
            Kind::Endless => "endless".to_owned(),
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Kind::Connect => f.write_str("nothing answered"),
            Kind::Lost => f.write_str("the connection broke"),
            Kind::Status(status) => write!(f, "answered with {status}"),
            Kind::Timeout => f.write_str("took too long"),
            Kind::Cut => f.write_str("the answer ended early"),
            Kind::Error => f.write_str("an error within the stream"),
            Kind::Odd => f.write_str("no answer of OpenAI's API"),
            Kind::Endless => f.write_str("more than was asked for"),
        }
    }
}

impl Failure {
    pub(super) fn new(kind: Kind, said: &str) -> Self {
        Failure {
            kind,
            said: said.chars().take(SAID).collect(),
        }
    }

    /// An answer that is no success, with this body.
    pub(super) fn refused(status: u16, body: &[u8]) -> Self {
        let text = String::from_utf8_lossy(body);
        let value = serde_json::from_slice::<Value>(body).unwrap_or_default();
        // As OpenAI's API says it, as problems of RFC 9457 do, and as others.
        let told = value["error"]["message"].as_str();
        let told = told
            .or(value["detail"].as_str())
            .or(value["error"].as_str());
        Failure::new(Kind::Status(status), told.unwrap_or(&text))
    }
}

impl From<TooLong> for Failure {
    fn from(_: TooLong) -> Self {
        Failure::new(Kind::Odd, "one event is larger than any should be")
    }
}

/// Reads an answer that comes in events. `most` tokens were asked for; times count from `from`.
pub(super) async fn streamed(
    mut body: Incoming,
    from: Instant,
    most: u64,
) -> Result<Answer, Failure> {
    let (mut events, mut reading) = (Events::default(), Reading::default());
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| Failure::new(Kind::Cut, &error.to_string()))?;
        let now = from.elapsed().as_secs_f64();
        for data in frame
            .data_ref()
            .map_or(Ok(Vec::new()), |data| events.push(data))?
        {
            reading.take(&data, now, most)?;
        }
    }
    reading.end(from.elapsed().as_secs_f64())
}

/// Reads an answer that comes at once.
pub(super) async fn at_once(body: Incoming, from: Instant) -> Result<Answer, Failure> {
    let body = Limited::new(body, MOST).collect().await;
    let body = body.map_err(|error| Failure::new(Kind::Cut, &error.to_string()))?;
    let value = serde_json::from_slice(&body.to_bytes());
    let value = value.map_err(|error| Failure::new(Kind::Odd, &error.to_string()))?;
    check(&value)?;
    Ok(Answer {
        whole: from.elapsed().as_secs_f64(),
        usage: usage(&value),
        ..Answer::default()
    })
}

/// A stream that is being read.
#[derive(Default)]
struct Reading {
    answer: Answer,
    /// When the last event with text came.
    last: f64,
    /// The event came that says that there are no more.
    ended: bool,
}

impl Reading {
    /// Takes an event's data, which came `now`.
    fn take(&mut self, data: &str, now: f64, most: u64) -> Result<(), Failure> {
        if data == "[DONE]" {
            self.ended = true;
            return Ok(());
        }
        let value = serde_json::from_str(data)
            .map_err(|_| Failure::new(Kind::Odd, &format!("an event is no JSON: {data}")))?;
        check(&value)?;
        self.answer.usage = usage(&value).or(self.answer.usage);
        if !has_text(&value) {
            return Ok(());
        }
        match self.answer.first {
            None => self.answer.first = Some(now),
            Some(_) => self.answer.gaps.push(now - self.last),
        }
        self.last = now;
        self.answer.events += 1;
        // Some servers send what comes after the last token, too.
        match self.answer.events > 2 * most + 16 {
            true => Err(Failure::new(
                Kind::Endless,
                &format!(
                    "{} events, and {most} tokens were asked for",
                    self.answer.events
                ),
            )),
            false => Ok(()),
        }
    }

    /// The stream ended `now`.
    fn end(self, now: f64) -> Result<Answer, Failure> {
        match self.ended {
            true => Ok(Answer {
                whole: now,
                ..self.answer
            }),
            false => Err(Failure::new(Kind::Cut, "the stream ended without [DONE]")),
        }
    }
}

/// Refuses what is no part of an answer.
fn check(value: &Value) -> Result<(), Failure> {
    let error = &value["error"];
    if !error.is_null() {
        let message = error["message"].as_str();
        let said = message.map_or_else(|| error.to_string(), str::to_owned);
        return Err(Failure::new(Kind::Error, &said));
    }
    match value["choices"].is_array() {
        true => Ok(()),
        false => {
            let said = format!("it has no 'choices': {value}");
            Err(Failure::new(Kind::Odd, &said))
        }
    }
}

/// Whether an event brings something of what was generated: text, reasoning, or a call of a tool.
fn has_text(value: &Value) -> bool {
    let is_text = |value: &Value| value.as_str().is_some_and(|text| !text.is_empty());
    let brings = |choice: &Value| {
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
    choices.is_some_and(|choices| choices.iter().any(brings))
}

/// What a whole answer, or the last event of one, says that it took.
fn usage(value: &Value) -> Option<Usage> {
    let usage = &value["usage"];
    Some(Usage {
        prompt: usage["prompt_tokens"].as_u64()?,
        cached: usage["prompt_tokens_details"]["cached_tokens"].as_u64(),
        generated: usage["completion_tokens"].as_u64()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(events: &[(&str, f64)]) -> Result<Answer, Failure> {
        let mut reading = Reading::default();
        for (data, now) in events {
            reading.take(data, *now, 4)?;
        }
        reading.end(9.0)
    }

    #[test]
    fn events_with_text_are_timed_and_others_are_not() {
        let answer = read(&[
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
        .expect("a whole answer");
        assert_eq!(answer.first, Some(2.0));
        assert_eq!(answer.gaps, [0.5, 2.0]);
        assert_eq!((answer.whole, answer.events), (9.0, 3));
        let usage = Usage {
            prompt: 7,
            cached: Some(2),
            generated: 4,
        };
        assert_eq!(answer.usage, Some(usage));
    }

    #[test]
    fn what_is_no_whole_answer_fails_in_its_own_way() {
        const TEXT: (&str, f64) = (r#"{"choices":[{"text":"a"}]}"#, 1.0);
        for (events, kind) in [
            (vec![TEXT], Kind::Cut),
            (vec![], Kind::Cut),
            (vec![TEXT, ("{", 2.0)], Kind::Odd),
            (vec![(r#"{"content":"a"}"#, 1.0)], Kind::Odd),
            (
                vec![TEXT, (r#"{"error":{"message":"no room"}}"#, 2.0)],
                Kind::Error,
            ),
            (vec![TEXT; 25], Kind::Endless),
        ] {
            let failure = read(&events).expect_err("no whole answer");
            assert_eq!(failure.kind, kind, "{failure:?}");
        }
    }

    #[test]
    fn what_a_server_refuses_is_told_in_its_words() {
        for (body, said) in [
            (r#"{"error":{"message":"no model"}}"#, "no model"),
            (r#"{"detail":"no model"}"#, "no model"),
            (r#"{"error":"no model"}"#, "no model"),
            ("no model", "no model"),
        ] {
            let failure = Failure::refused(500, body.as_bytes());
            assert_eq!((failure.kind, &*failure.said), (Kind::Status(500), said));
            assert_eq!(failure.kind.key(), "status_500");
        }
    }
}
