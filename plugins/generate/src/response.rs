//! The response: one JSON object, or server-sent events with the text in chunks.

use corral_sdk::{Finish, Outcome};
use serde_json::{Value, json};

/// A part of the generated output.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ResponseChunk {
    /// Can be empty while the host withholds a possible prefix of a stop string.
    pub text: String,
    /// One entry for each token if the request has `logprobs`; otherwise empty.
    pub logprobs: Vec<Value>,
}

impl ResponseChunk {
    pub fn is_empty(&self) -> bool {
        self.text.is_empty() && self.logprobs.is_empty()
    }
}

/// The shortest number that reads back as the same `f32`; `null` for minus infinity.
pub fn shortest(value: f32) -> Value {
    value
        .to_string()
        .parse::<f64>()
        .map_or(Value::Null, Value::from)
}

/// The result of a generation.
#[derive(Debug, Clone)]
pub struct Report {
    pub model: String,
    /// Whether the request has `logprobs`.
    pub logprobs: bool,
    pub outcome: Outcome,
}

impl Report {
    /// The response to a request that is not streamed.
    pub fn to_json(&self, output: &ResponseChunk) -> String {
        let mut body = self.body(&output.text);
        if self.logprobs {
            body["logprobs"] = output.logprobs.as_slice().into();
        }
        body.to_string()
    }

    /// The event after those with the text.
    pub fn last_event(&self) -> String {
        self.body("").to_string()
    }

    fn body(&self, text: &str) -> Value {
        let outcome = &self.outcome;
        let compute_seconds = (outcome.prefill_time + outcome.decode_time) as f64 / 1e9;
        let rate = if compute_seconds > 0.0 {
            f64::from(outcome.generated_tokens) / compute_seconds
        } else {
            0.0
        };
        let finish = match outcome.finish {
            Finish::End => "end",
            Finish::Stop => "stop",
            Finish::Length => "length",
        };
        json!({
            "text": text,
            "tokens": outcome.generated_tokens,
            "prompt_tokens": outcome.prompt_tokens,
            "cached_tokens": outcome.cached_tokens,
            "tokens_per_second": round_to_thousandths(rate),
            "finish_reason": finish,
            "model": self.model,
            "queue_ms": round_to_thousandths(outcome.queue_time as f64 / 1e6),
            "prefill_ms": round_to_thousandths(outcome.prefill_time as f64 / 1e6),
            "decode_ms": round_to_thousandths(outcome.decode_time as f64 / 1e6),
        })
    }
}

fn round_to_thousandths(value: f64) -> f64 {
    (value * 1000.0).round() / 1000.0
}

/// The last event of a stream that succeeded.
pub const DONE: &str = "[DONE]";

/// The event of a chunk.
pub fn chunk_event(chunk: &ResponseChunk) -> String {
    let mut event = json!({"text": chunk.text});
    if !chunk.logprobs.is_empty() {
        event["logprobs"] = chunk.logprobs.as_slice().into();
    }
    event.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report() -> Report {
        Report {
            model: "tiny".to_owned(),
            logprobs: false,
            outcome: Outcome {
                finish: Finish::Stop,
                prompt_tokens: 5,
                cached_tokens: 4,
                generated_tokens: 10,
                queue_time: 1_234_567,
                prefill_time: 20_000_000,
                decode_time: 80_000_000,
            },
        }
    }

    fn text(text: &str) -> ResponseChunk {
        ResponseChunk {
            text: text.to_owned(),
            ..ResponseChunk::default()
        }
    }

    #[test]
    fn response_and_events_have_logprobs() {
        let output = ResponseChunk {
            text: "ab".to_owned(),
            logprobs: vec![json!({"token": 97}), json!({"token": 1})],
        };
        let expected = r#""logprobs":[{"token":97},{"token":1}]"#;
        let found = chunk_event(&output);
        assert_eq!(found, format!("{{\"text\":\"ab\",{expected}}}"));
        assert!(!report().to_json(&output).contains("logprobs"));
        let report = Report {
            logprobs: true,
            ..report()
        };
        let body = report.to_json(&output);
        assert!(body.ends_with(&format!(",{expected}}}")), "{body}");
        let body = report.to_json(&text(""));
        assert!(body.ends_with(r#","logprobs":[]}"#), "{body}");
        assert!(!report.last_event().contains("logprobs"));
    }

    #[test]
    fn logprob_is_the_shortest_number() {
        assert_eq!(shortest(-0.1).to_string(), "-0.1");
        assert_eq!(shortest(f32::NEG_INFINITY), Value::Null);
    }

    #[test]
    fn response_fields_are_in_order() {
        assert_eq!(
            report().to_json(&text("a\n\"b\"")),
            r#"{"text":"a\n\"b\"","tokens":10,"prompt_tokens":5,"cached_tokens":4,"tokens_per_second":100.0,"finish_reason":"stop","model":"tiny","queue_ms":1.235,"prefill_ms":20.0,"decode_ms":80.0}"#
        );
    }

    #[test]
    fn zero_time_gives_zero_rate() {
        let mut report = report();
        report.outcome.prefill_time = 0;
        report.outcome.decode_time = 0;
        let found = report.to_json(&text(""));
        assert!(found.contains(r#""tokens_per_second":0.0"#));
    }
}
