//! `logit_bias` in the forms of OpenAI, vLLM and llama.cpp.

use std::collections::BTreeMap;

use corral_sdk::fields::{Fields, NumberRange, number, out_of_range, wrong_type};
use corral_sdk::{Error, Model, Token};
use serde_json::Value;

/// The host's limit for biased tokens.
const BIAS_LIMIT: usize = 1024;
/// Longest text of a bias, in bytes.
const TEXT_LIMIT: usize = 256;

const BIAS: NumberRange = NumberRange {
    expected: "a number from -100 to 100",
    contains: |value| (-100.0..=100.0).contains(&value),
};

/// Biases of tokens, and of all tokens of texts.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct LogitBias(Vec<(Biased, f32)>);

#[derive(Debug, Clone, PartialEq)]
enum Biased {
    Token(Token),
    Text(String),
}

impl LogitBias {
    /// Reads an object from token ids or texts to biases, or a list of pairs of both. The bias `false`
    /// excludes a token.
    pub fn read(fields: &mut Fields) -> Result<Self, Error> {
        let path = fields.path("logit_bias");
        let is_object = matches!(fields.peek("logit_bias"), Some(Value::Object(_)));
        let entries: Vec<_> = match fields.take("logit_bias") {
            None => return Ok(Self::default()),
            Some(Value::Object(biases)) => {
                let biases = biases.into_iter();
                biases
                    .map(|(name, bias)| (format!("{path}.{name}"), Value::from(name), bias))
                    .collect()
            }
            Some(Value::Array(pairs)) => {
                let pairs = pairs.into_iter().enumerate();
                pairs
                    .map(|(index, pair)| read_pair(format!("{path}[{index}]"), pair))
                    .collect::<Result<_, _>>()?
            }
            Some(other) => {
                return Err(wrong_type(&path, "an object or a list of pairs", &other));
            }
        };
        check_count(entries.len())?;
        let entries = entries.into_iter();
        let entries = entries.map(|(path, biased, bias)| {
            let bias = match bias {
                Value::Bool(false) => f32::NEG_INFINITY,
                bias => number(&path, &bias, &BIAS)?,
            };
            Ok((read_biased(&path, biased, is_object)?, bias))
        });
        entries.collect::<Result<_, _>>().map(LogitBias)
    }

    /// The bias of each token; the sum, if a token has several.
    pub fn tokens(&self, model: &Model) -> Result<Vec<(Token, f32)>, Error> {
        let count = model.info().vocabulary;
        let mut sums = BTreeMap::new();
        for (biased, bias) in &self.0 {
            let tokens = match biased {
                Biased::Token(token) if *token >= count => {
                    let expected = format!("a token id below {count}");
                    return Err(out_of_range("logit_bias", &(*token).into(), &expected));
                }
                Biased::Token(token) => vec![*token],
                Biased::Text(text) => model.tokenize(text)?,
            };
            for token in tokens {
                *sums.entry(token).or_insert(0.0) += bias;
            }
        }
        check_count(sums.len())?;
        Ok(sums.into_iter().collect())
    }
}

fn check_count(count: usize) -> Result<(), Error> {
    if count <= BIAS_LIMIT {
        return Ok(());
    }
    let text = format!("`logit_bias` has {count} tokens; expected at most {BIAS_LIMIT}");
    Err(Error::bad_request("out-of-range", text).with_field("logit_bias"))
}

/// The path of a pair, and its fields.
fn read_pair(path: String, pair: Value) -> Result<(String, Value, Value), Error> {
    const EXPECTED: &str = "a token id or text, and its bias";
    match pair {
        Value::Array(mut pair) if pair.len() == 2 => {
            let bias = pair.pop().unwrap_or_default();
            Ok((path, pair.pop().unwrap_or_default(), bias))
        }
        Value::Array(_) => Err(out_of_range(&path, &pair, EXPECTED)),
        other => Err(wrong_type(&path, EXPECTED, &other)),
    }
}

/// Reads a token id, which is a string of digits as the `name` of a field, or a text.
fn read_biased(path: &str, value: Value, is_name: bool) -> Result<Biased, Error> {
    let expected = format!("a token id or a text of 1 to {TEXT_LIMIT} bytes");
    let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    let biased = match &value {
        Value::Number(token) => {
            let token = token.as_u64().and_then(|token| token.try_into().ok());
            token.map(Biased::Token)
        }
        Value::String(text) if !(1..=TEXT_LIMIT).contains(&text.len()) => None,
        Value::String(text) if is_name && digits(text) => text.parse().ok().map(Biased::Token),
        Value::String(text) => Some(Biased::Text(text.clone())),
        other => return Err(wrong_type(path, &expected, other)),
    };
    biased.ok_or_else(|| out_of_range(path, &value, &expected))
}

#[cfg(test)]
mod tests {
    use super::*;
    use corral_sdk::testing::{Script, check_field_errors};
    use serde_json::json;

    fn tokens(value: Value) -> Result<Vec<(Token, f32)>, Error> {
        let mut fields = Fields::at(String::new(), json!({"logit_bias": value}))?;
        let bias = LogitBias::read(&mut fields)?;
        Script::new().run(async { bias.tokens(&Model::open_default().await?) })
    }

    #[test]
    fn tokens_are_ids_or_texts() {
        for (value, expected) in [
            (json!(null), vec![]),
            (
                json!({"98": -100, "97": 0.5}),
                vec![(97, 0.5), (98, -100.0)],
            ),
            (json!({"ba": 1}), vec![(97, 1.0), (98, 1.0)]),
            (
                json!([[97, 1], ["9", 2], ["c", 3]]),
                vec![(57, 2.0), (97, 1.0), (99, 3.0)],
            ),
            (json!([[97, false]]), vec![(97, f32::NEG_INFINITY)]),
            (json!([["ab", 1], [97, 2]]), vec![(97, 3.0), (98, 1.0)]),
        ] {
            assert_eq!(tokens(value.clone()), Ok(expected), "{value}");
        }
    }

    /// Biases, and the field and text of their error.
    const ERRORS: &str = r#"
1 => logit_bias: a list of pairs
[1] => logit_bias[0]: a token id or text
[[1]] => logit_bias[0]: a token id or text
[[-1, 1]] => logit_bias[0]: a token id
[[null, 1]] => logit_bias[0]: a token id
[["", 1]] => logit_bias[0]: of 1 to 256 bytes
{"": 1} => logit_bias.: of 1 to 256 bytes
{"99999999999": 1} => logit_bias.99999999999: a token id
{"5": 101} => logit_bias.5: -100 to 100
{"5": true} => logit_bias.5: a number
{"259": 1} => logit_bias: below 259
"#;

    #[test]
    fn errors_name_the_field() {
        check_field_errors(ERRORS, tokens);
        let long = "x".repeat(257);
        assert!(tokens(json!({long: 1})).is_err());
        let many: Vec<_> = (0..1025).map(|_| json!([1, 1])).collect();
        let error = tokens(many.into()).unwrap_err();
        assert!(error.to_string().contains("1025 tokens"), "{error}");
    }
}
