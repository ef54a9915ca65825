//! The answer: a JSON object, or the same as events with the text in pieces.

use serde_json::{Map, Value, json};

/// A piece of an answer.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Piece {
    /// May be empty, as when it could be the beginning of a stop string.
    pub text: String,
    /// One for each token, if the request asked for them; otherwise empty.
    pub logprobs: Vec<TokenLogprobs>,
}

impl Piece {
    /// Whether there is anything to tell.
    pub fn is_empty(&self) -> bool {
        self.text.is_empty() && self.logprobs.is_empty()
    }
}

/// How likely the model found a token that was generated, and the likeliest ones in its place.
#[derive(Debug, Clone, PartialEq)]
pub struct TokenLogprobs {
    pub token: LikelyToken,
    /// Falling.
    pub top: Vec<LikelyToken>,
}

/// A token and the natural logarithm of its probability.
#[derive(Debug, Clone, PartialEq)]
pub struct LikelyToken {
    pub id: u32,
    /// Control tokens by their names; U+FFFD stands for what is part of a character.
    pub text: String,
    pub logprob: f32,
}

impl LikelyToken {
    fn members(&self) -> Map<String, Value> {
        let mut members = Map::new();
        members.insert("token".to_owned(), self.id.into());
        members.insert("text".to_owned(), self.text.as_str().into());
        members.insert("logprob".to_owned(), logarithm(self.logprob));
        members
    }
}

fn logprobs_json(logprobs: &[TokenLogprobs]) -> Value {
    let entries = logprobs.iter().map(|entry| {
        let top = entry.top.iter().map(LikelyToken::members);
        let mut members = entry.token.members();
        members.insert("top".to_owned(), top.collect());
        members
    });
    entries.collect()
}

/// As short as it can be written without being another `f32`; `null` for minus infinity, which JSON
/// does not have.
fn logarithm(value: f32) -> Value {
    value
        .to_string()
        .parse::<f64>()
        .map_or(Value::Null, Value::from)
}

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
    /// Whether the request asked for probabilities.
    pub logprobs: bool,
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
    /// The whole answer to a request that is not streamed.
    pub fn to_json(&self, whole: &Piece) -> String {
        let mut members = self.members(&whole.text);
        if self.logprobs {
            members["logprobs"] = logprobs_json(&whole.logprobs);
        }
        members.to_string()
    }

    /// The last event but one of a stream, after those with the pieces.
    pub fn last_json(&self) -> String {
        self.members("").to_string()
    }

    fn members(&self, text: &str) -> Value {
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
    }
}

fn thousandths(value: f64) -> f64 {
    (value * 1000.0).round() / 1000.0
}

/// What follows the last event of a stream that went well.
pub const DONE: &str = "[DONE]";

/// An event with a piece.
pub fn piece_json(piece: &Piece) -> String {
    let mut members = Map::new();
    members.insert("text".to_owned(), piece.text.as_str().into());
    if !piece.logprobs.is_empty() {
        members.insert("logprobs".to_owned(), logprobs_json(&piece.logprobs));
    }
    Value::Object(members).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report() -> Report {
        Report {
            model: "tiny".to_owned(),
            logprobs: false,
            finish: Finish::Stop,
            prompt_tokens: 5,
            cached_tokens: 4,
            generated_tokens: 10,
            queue_time: 1_234_567,
            prefill_time: 20_000_000,
            decode_time: 80_000_000,
        }
    }

    fn text(text: &str) -> Piece {
        Piece {
            text: text.to_owned(),
            ..Piece::default()
        }
    }

    fn likely(id: u32, text: &str, logprob: f32) -> LikelyToken {
        LikelyToken {
            id,
            text: text.to_owned(),
            logprob,
        }
    }

    #[test]
    fn probabilities_stand_in_the_answer_and_in_the_events() {
        let whole = Piece {
            text: "ab".to_owned(),
            logprobs: vec![
                TokenLogprobs {
                    token: likely(97, "a", -0.1),
                    top: vec![likely(97, "a", -0.1), likely(98, "b", -2.5)],
                },
                TokenLogprobs {
                    token: likely(1, "<e>", f32::NEG_INFINITY),
                    top: vec![],
                },
            ],
        };
        let expected = r#""logprobs":[{"token":97,"text":"a","logprob":-0.1,"top":[{"token":97,"text":"a","logprob":-0.1},{"token":98,"text":"b","logprob":-2.5}]},{"token":1,"text":"<e>","logprob":null,"top":[]}]"#;
        assert_eq!(
            piece_json(&whole),
            format!("{{\"text\":\"ab\",{expected}}}")
        );
        assert!(!report().to_json(&whole).contains("logprobs"));
        let asked = Report {
            logprobs: true,
            ..report()
        };
        assert!(asked.to_json(&whole).ends_with(&format!(",{expected}}}")));
        assert!(asked.to_json(&text("")).ends_with(r#","logprobs":[]}"#));
        assert!(!asked.last_json().contains("logprobs"));
    }

    #[test]
    fn the_answer_has_its_members_in_order() {
        assert_eq!(
            report().to_json(&text("a\n\"b\"")),
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
        assert!(
            report
                .to_json(&text(""))
                .contains(r#""tokens_per_second":0.0"#)
        );
    }
}
