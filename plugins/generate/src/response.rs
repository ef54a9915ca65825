//! The response: one JSON object, or server-sent events with the text in chunks.

use corral_sdk::{Finish, Outcome};
use serde_json::{Map, Value, json};

/// A part of the generated output.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ResponseChunk {
    /// Can be empty while the host withholds a possible prefix of a stop string.
    pub text: String,
    /// One entry for each token if the request has `logprobs`; otherwise empty.
    pub logprobs: Vec<PositionLogprobs>,
}

impl ResponseChunk {
    pub fn is_empty(&self) -> bool {
        self.text.is_empty() && self.logprobs.is_empty()
    }
}

/// Log probabilities of the generated token and of the most likely tokens at its position.
#[derive(Debug, Clone, PartialEq)]
pub struct PositionLogprobs {
    pub token: TokenLogprob,
    /// In descending order.
    pub top: Vec<TokenLogprob>,
}

/// A token and the natural logarithm of its probability.
#[derive(Debug, Clone, PartialEq)]
pub struct TokenLogprob {
    pub id: u32,
    /// Control tokens by name; U+FFFD for a part of a character.
    pub text: String,
    pub logprob: f32,
}

impl TokenLogprob {
    fn fields(&self) -> Map<String, Value> {
        let mut fields = Map::new();
        fields.insert("token".to_owned(), self.id.into());
        fields.insert("text".to_owned(), self.text.as_str().into());
        fields.insert("logprob".to_owned(), logprob_json(self.logprob));
        fields
    }
}

fn logprobs_json(logprobs: &[PositionLogprobs]) -> Value {
    let entries = logprobs.iter().map(|entry| {
        let top = entry.top.iter().map(TokenLogprob::fields);
        let mut fields = entry.token.fields();
        fields.insert("top".to_owned(), top.collect());
        fields
    });
    entries.collect()
}

/// Writes the shortest number that reads back as the same `f32`; `null` for minus infinity.
fn logprob_json(value: f32) -> Value {
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
            body["logprobs"] = logprobs_json(&output.logprobs);
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
    let mut fields = Map::new();
    fields.insert("text".to_owned(), chunk.text.as_str().into());
    if !chunk.logprobs.is_empty() {
        fields.insert("logprobs".to_owned(), logprobs_json(&chunk.logprobs));
    }
    Value::Object(fields).to_string()
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

    fn logprob(id: u32, text: &str, logprob: f32) -> TokenLogprob {
        TokenLogprob {
            id,
            text: text.to_owned(),
            logprob,
        }
    }

    #[test]
    fn response_and_events_have_logprobs() {
        let output = ResponseChunk {
            text: "ab".to_owned(),
            logprobs: vec![
                PositionLogprobs {
                    token: logprob(97, "a", -0.1),
                    top: vec![logprob(97, "a", -0.1), logprob(98, "b", -2.5)],
                },
                PositionLogprobs {
                    token: logprob(1, "<e>", f32::NEG_INFINITY),
                    top: vec![],
                },
            ],
        };
        let expected = r#""logprobs":[{"token":97,"text":"a","logprob":-0.1,"top":[{"token":97,"text":"a","logprob":-0.1},{"token":98,"text":"b","logprob":-2.5}]},{"token":1,"text":"<e>","logprob":null,"top":[]}]"#;
        assert_eq!(
            chunk_event(&output),
            format!("{{\"text\":\"ab\",{expected}}}")
        );
        assert!(!report().to_json(&output).contains("logprobs"));
        let with_logprobs = Report {
            logprobs: true,
            ..report()
        };
        assert!(
            with_logprobs
                .to_json(&output)
                .ends_with(&format!(",{expected}}}"))
        );
        assert!(
            with_logprobs
                .to_json(&text(""))
                .ends_with(r#","logprobs":[]}"#)
        );
        assert!(!with_logprobs.last_event().contains("logprobs"));
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
        assert!(
            report
                .to_json(&text(""))
                .contains(r#""tokens_per_second":0.0"#)
        );
    }
}
