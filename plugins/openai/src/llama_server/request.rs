//! The fields of a completion request in the format of llama.cpp's server.

use corral_sdk::Error;
use corral_sdk::fields::{Fields, out_of_range, wrong_type};
use serde_json::{Value, json};

use crate::constraint_fields;
use crate::shared_fields::{ignore_without_effect, reject_fields_of_other_servers};
use conversation::generation::Settings;
use conversation::generation::settings::{self, LlamaSamplers};
use conversation::{Format, silently_ignored, unsupported};

/// The host's limit for log probabilities.
const PROBS_LIMIT: u8 = 20;

/// The defaults of llama.cpp's server.
const DEFAULTS: [(&str, f64); 4] = [
    ("temperature", 0.8),
    ("top_k", 40.0),
    ("top_p", 0.95),
    ("min_p", 0.05),
];

const FIELDS: [&str; 12] = [
    "model",
    "n_predict",
    "max_tokens",
    "n_cmpl",
    "n_probs",
    "seed",
    "stream",
    "return_tokens",
    "timings_per_token",
    "return_progress",
    "response_fields",
    "post_sampling_probs",
];

/// A completion request.
pub struct NativeRequest {
    pub model: Option<String>,
    pub settings: Settings,
    pub format: Format,
    /// The field that has the format.
    pub format_field: &'static str,
    pub stream: bool,
    pub return_tokens: bool,
    pub timings_per_token: bool,
    pub return_progress: bool,
    /// Paths of the fields to return; all if empty.
    pub response_fields: Vec<String>,
}

/// Reads the fields of a request but its prompt.
pub fn read(mut fields: Fields) -> Result<NativeRequest, Error> {
    let model = fields.text("model")?;
    let (format, format_field) = constraint_fields::read(&mut fields)?;
    let mut request_fields = fields.into_map();
    for (name, value) in DEFAULTS {
        let field = request_fields.entry(name).or_insert(Value::Null);
        if field.is_null() {
            *field = match name {
                "top_k" => json!(value as u32),
                _ => json!(value),
            };
        }
    }
    for (name, off) in [("top_k", 0.0), ("repeat_last_n", f64::from(u16::MAX) + 1.0)] {
        // Negative: all tokens, and the whole context.
        if request_fields
            .get(name)
            .and_then(Value::as_f64)
            .is_some_and(|value| value < 0.0)
        {
            request_fields.insert(name.to_owned(), json!(off as u32));
        }
    }
    // -1 lets the server choose.
    if request_fields.get("seed").and_then(Value::as_i64) == Some(-1) {
        request_fields.remove("seed");
    }
    // Another name of `n`.
    if let Some(count) = request_fields.remove("n_cmpl") {
        request_fields.entry("n").or_insert(count);
    }
    let mut fields = Fields::from_map(request_fields);
    let max_tokens = length(&mut fields)?;
    let mut settings = Settings::read(&mut fields)?;
    settings.max_tokens = max_tokens;
    if settings.llama_samplers.is_none() {
        // The order of the samplers, too, is that of llama.cpp's server.
        settings.llama_samplers = Some(LlamaSamplers::off()?);
    }
    settings.logprobs = fields
        .integer("n_probs", 0..=PROBS_LIMIT)?
        .filter(|count| *count > 0);
    if fields.flag("post_sampling_probs")? && settings.logprobs.is_some() {
        let why = "the host reports probabilities before sampling";
        return Err(unsupported("post_sampling_probs", why));
    }
    let request = NativeRequest {
        model,
        settings,
        format,
        format_field,
        stream: fields.flag("stream")?,
        return_tokens: fields.flag("return_tokens")?,
        timings_per_token: fields.flag("timings_per_token")?,
        return_progress: fields.flag("return_progress")?,
        response_fields: fields.text_list("response_fields")?.unwrap_or_default(),
    };
    silently_ignored::drop(&mut fields, &silently_ignored::OF_REQUEST);
    reject_fields_of_other_servers(&mut fields)?;
    ignore_without_effect(&mut fields, &[("n_keep", "a full context ends the text")])?;
    fields
        .ignore_unknown(&[&FIELDS[..], &settings::FIELDS, &constraint_fields::FIELDS].concat())?;
    Ok(request)
}

/// The most tokens to generate; negative or absent: the remaining context.
fn length(fields: &mut Fields) -> Result<Option<u32>, Error> {
    let mut found = None;
    for name in ["max_tokens", "n_predict"] {
        let Some(value) = fields.take(name) else {
            continue;
        };
        let length = value.as_i64();
        let length = length.ok_or_else(|| wrong_type(name, "an integer", &value))?;
        found = match u32::try_from(length) {
            Ok(length) => Some(length),
            Err(_) if length < 0 => None,
            Err(_) => return Err(out_of_range(name, &value, "an integer up to 4294967295")),
        };
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use corral_sdk::testing::check_field_errors;

    fn with(request_fields: Value) -> Result<NativeRequest, Error> {
        read(Fields::at(String::new(), request_fields)?)
    }

    #[test]
    fn defaults_are_those_of_llama_server() {
        let settings = with(json!({"seed": -1, "n_predict": -1})).unwrap().settings;
        assert_eq!(
            settings,
            Settings {
                temperature: 0.8,
                top_k: Some(40),
                top_p: Some(0.95),
                min_p: Some(0.05),
                llama_samplers: Some(LlamaSamplers::off().unwrap()),
                ..Settings::default()
            }
        );
        let settings = with(json!({"n_predict": 3, "n_cmpl": 2, "top_k": -1, "temperature": null}));
        let settings = settings.unwrap().settings;
        assert_eq!((settings.max_tokens, settings.n), (Some(3), 2));
        assert_eq!((settings.top_k, settings.temperature), (Some(0), 0.8));
    }

    /// Requests, and the field and text of the error.
    const ERRORS: &str = r#"
{"n_predict": "1"} => n_predict: a string
{"n_probs": 21} => n_probs: to 20
{"n_probs": 1, "post_sampling_probs": true} => post_sampling_probs: before sampling
{"logit_bias": 1} => logit_bias: a number
{"logit_bias": [[1, "x"]]} => logit_bias[0]: a string
{"min_tokens": 5} => min_tokens: least length
{"grammar": 1} => grammar: a number
"#;

    #[test]
    fn errors_name_the_field() {
        check_field_errors(ERRORS, with);
    }
}
