//! The answer: a JSON object, or the same as events with the text in pieces.

use serde_json::{Map, Value, json};

use crate::problem::Problem;

/// Why a generation ended.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Finish {
    End,
    Stop,
    Length,
}

/// How a generation went.
#[derive(Debug, Clone, PartialEq)]
pub struct Report {
    pub model: String,
    pub finish: Finish,
    pub prompt_tokens: u32,
    pub cached_tokens: u32,
    pub generated_tokens: u32,
    /// The phases, in nanoseconds.
    pub queue_time: u64,
    pub prefill_time: u64,
    pub decode_time: u64,
}

impl Report {
    /// The whole answer to a request that is not streamed, and the last event with text in one
    /// that is.
    pub fn to_json(&self, text: &str) -> String {
        let busy_seconds = (self.prefill_time + self.decode_time) as f64 / 1e9;
        let rate = if busy_seconds > 0.0 {
            f64::from(self.generated_tokens) / busy_seconds
        } else {
            0.0
        };
        let finish = match self.finish {
            Finish::End => "end",
            Finish::Stop => "stop",
            Finish::Length => "length",
        };
        json!({
            "text": text,
            "tokens": self.generated_tokens,
            "prompt_tokens": self.prompt_tokens,
            "cached_tokens": self.cached_tokens,
            "tokens_per_second": thousandths(rate),
            "finish_reason": finish,
            "model": self.model,
            "queue_ms": thousandths(self.queue_time as f64 / 1e6),
            "prefill_ms": thousandths(self.prefill_time as f64 / 1e6),
            "decode_ms": thousandths(self.decode_time as f64 / 1e6),
        })
        .to_string()
    }
}

fn thousandths(value: f64) -> f64 {
    (value * 1000.0).round() / 1000.0
}

/// What follows the last event of a stream that went well.
pub const DONE_EVENT: &str = "data: [DONE]\n\n";

/// An event with a piece of the text.
pub fn text_event(text: &str) -> String {
    let mut members = Map::new();
    members.insert("text".to_owned(), Value::from(text));
    data_event(&Value::Object(members).to_string())
}

/// The event that ends a stream whose generation failed: nothing follows it.
pub fn error_event(problem: &Problem) -> String {
    format!("event: error\n{}", data_event(&problem.to_json()))
}

/// An event with JSON, which serde_json writes without line breaks.
pub fn data_event(json: &str) -> String {
    format!("data: {json}\n\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report() -> Report {
        Report {
            model: "tiny".to_owned(),
            finish: Finish::Stop,
            prompt_tokens: 5,
            cached_tokens: 4,
            generated_tokens: 10,
            queue_time: 1_234_567,
            prefill_time: 20_000_000,
            decode_time: 80_000_000,
        }
    }

    #[test]
    fn the_answer_has_its_members_in_order() {
        assert_eq!(
            report().to_json("a\n\"b\""),
            r#"{"text":"a\n\"b\"","tokens":10,"prompt_tokens":5,"cached_tokens":4,"tokens_per_second":100.0,"finish_reason":"stop","model":"tiny","queue_ms":1.235,"prefill_ms":20.0,"decode_ms":80.0}"#
        );
    }

    #[test]
    fn no_time_is_no_rate() {
        let report = Report {
            prefill_time: 0,
            decode_time: 0,
            ..report()
        };
        assert!(report.to_json("").contains(r#""tokens_per_second":0.0"#));
    }

    #[test]
    fn an_event_is_one_line_whatever_the_text() {
        for text in ["", "a", "a\nb\r\nc", "\u{2028}", "data: x\n\n"] {
            let event = text_event(text);
            let line = event.strip_suffix("\n\n").unwrap();
            assert!(!line.contains(['\n', '\r']), "{event:?}");
            let value: Value = serde_json::from_str(line.strip_prefix("data: ").unwrap()).unwrap();
            assert_eq!(value["text"], text);
        }
        assert_eq!(
            error_event(&Problem::new(500, "failed", "x"))
                .lines()
                .next(),
            Some("event: error")
        );
    }
}
