//! The request body of a completion.

use corral_sdk::fields::{Fields, out_of_range, wrong_type};
use corral_sdk::{Error, Model, Token};
use serde_json::Value;

use super::prompt_logprobs::Echo;
use crate::constraint_fields;
use crate::prompt_input::{self, EXPECTED, Texts};
use crate::shared_fields::{
    STREAM_FIELDS, StreamOptions, length, reject_fields_of_other_servers, stream_options,
};
use conversation::generation::Settings;
use conversation::generation::settings::{self, CHOICE_LIMIT, LOGPROBS_LIMIT};
use conversation::{Format, infill, silently_ignored, unsupported};

/// The default of OpenAI's API.
const MAX_TOKENS: u32 = 16;

const FIELDS: [&str; 8] = [
    "model",
    "prompt",
    "suffix",
    "max_tokens",
    "logprobs",
    "echo",
    "best_of",
    "n_predict",
];

/// A completion request.
pub struct CompletionRequest {
    pub model: Option<String>,
    pub prompt: Vec<Prompt>,
    /// The text after the completion.
    pub suffix: Option<String>,
    pub settings: Settings,
    /// Whether the text begins with the prompt.
    pub echo: bool,
    /// The format of the text, and the field that has it.
    pub format: Format,
    pub format_field: &'static str,
    /// The choices to generate for each prompt, of which the best `settings.n` are returned.
    pub best_of: Option<u32>,
    /// `None` if not streamed.
    pub stream: Option<StreamOptions>,
}

/// A prompt.
#[derive(Debug, Clone, PartialEq)]
pub enum Prompt {
    /// Text, in which control tokens are read.
    Text(String),
    /// Tokens, with their path in the request.
    Tokens(String, Value),
}

pub fn read(mut fields: Fields) -> Result<CompletionRequest, Error> {
    silently_ignored::drop(&mut fields, &silently_ignored::OF_REQUEST);
    let model = fields.text("model")?;
    let prompt = prompt_list(fields.required("prompt", EXPECTED)?)?;
    let suffix = fields.text("suffix")?;
    let echo = fields.flag("echo")?;
    let mut settings = Settings::read(&mut fields)?;
    let (format, format_field) = constraint_fields::read(&mut fields)?;
    let length = length(&mut fields, &["max_tokens", "n_predict"], 0)?;
    settings.max_tokens = length.unwrap_or(Some(MAX_TOKENS));
    if fields.peek("logprobs") == Some(&Value::Bool(false)) {
        fields.take("logprobs");
    }
    settings.logprobs = fields.integer("logprobs", 0..=LOGPROBS_LIMIT)?;
    let best_of = fields.integer("best_of", 1..=CHOICE_LIMIT)?;
    let best_of = best_of.filter(|best_of| *best_of != settings.n);
    let stream = stream_options(&mut fields)?;
    if let Some(best_of) = best_of {
        if best_of < settings.n {
            let expected = format!("an integer of at least `n`, which is {}", settings.n);
            return Err(out_of_range("best_of", &best_of.into(), &expected));
        }
        if stream.is_some() {
            let why = "the best choices are known at the end; omit `stream`";
            return Err(unsupported("best_of", why));
        }
    }
    reject_fields_of_other_servers(&mut fields)?;
    let known = [
        &FIELDS[..],
        &settings::FIELDS,
        &constraint_fields::FIELDS,
        &STREAM_FIELDS,
    ];
    fields.ignore_unknown(&known.concat())?;
    if echo && settings.logprobs.is_some() && format != Format::Text {
        let why = "it can't be combined with `echo` and `logprobs`";
        return Err(unsupported(format_field, why));
    }
    if echo && suffix.is_some() {
        return Err(unsupported("echo", "it can't be combined with `suffix`"));
    }
    if echo && settings.logprobs.is_some() && settings.adapter.is_some() {
        let why = "prompts are scored without adapters; expected no `echo` or no `logprobs`";
        return Err(unsupported("lora", why));
    }
    Ok(CompletionRequest {
        model,
        prompt,
        suffix,
        settings,
        echo,
        format,
        format_field,
        best_of,
        stream,
    })
}

/// Reads one prompt or several, each as text or tokens.
fn prompt_list(value: Value) -> Result<Vec<Prompt>, Error> {
    match value {
        Value::Array(list) if list.is_empty() => {
            let text = format!("`prompt` is empty; expected {EXPECTED}");
            Err(Error::bad_request("empty-prompt", text).with_field("prompt"))
        }
        Value::Array(list) if list.iter().all(|one| !one.is_number()) => {
            let list = list.into_iter().enumerate();
            list.map(|(index, value)| prompt(format!("prompt[{index}]"), value))
                .collect()
        }
        value => Ok(vec![prompt("prompt".to_owned(), value)?]),
    }
}

fn prompt(path: String, value: Value) -> Result<Prompt, Error> {
    match value {
        Value::String(text) => Ok(Prompt::Text(text)),
        // Also with texts among the tokens.
        Value::Array(_) => Ok(Prompt::Tokens(path, value)),
        Value::Object(_) => Ok(Prompt::Text(prompt_input::text_of(&path, &value)?)),
        other => Err(wrong_type(&path, EXPECTED, &other)),
    }
}

/// Tokenizes all prompts.
pub fn prompts(
    prompts: &[Prompt],
    suffix: Option<&str>,
    model: &Model,
) -> Result<Vec<Vec<Token>>, Error> {
    let prompts = prompts.iter();
    prompts
        .map(|prompt| {
            let mut tokens = match (prompt, suffix) {
                (Prompt::Text(text), Some(suffix)) => infill::tokens(text, suffix, model)?,
                // As in llama.cpp's server: clients send prompts that they rendered with a
                // template.
                (Prompt::Text(text), None) => model.tokenize_trusted(text)?,
                (Prompt::Tokens(..), Some(_)) => {
                    return Err(unsupported("suffix", "it requires a prompt as text"));
                }
                (Prompt::Tokens(path, tokens), None) => {
                    return prompt_input::read_one(path, tokens, Texts::Trusted, model);
                }
            };
            model.add_begin_token(&mut tokens);
            Ok(tokens)
        })
        .collect()
}

/// The echoed text of each prompt.
pub fn echoes(
    prompts: &[Prompt],
    tokens: &[Vec<Token>],
    model: &Model,
) -> Result<Vec<Echo>, Error> {
    let both = prompts.iter().zip(tokens);
    both.map(|(prompt, tokens)| match prompt {
        Prompt::Text(text) => Ok(Echo::new(text.clone())),
        Prompt::Tokens(..) => Ok(Echo::new(model.detokenize_with_control(tokens)?)),
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::merged;
    use corral_sdk::testing::Script;
    use corral_sdk::testing::check_field_errors;
    use serde_json::json;

    fn with(request_fields: Value) -> Result<CompletionRequest, Error> {
        let body = merged(json!({"prompt": "x"}), &request_fields);
        read(Fields::at(String::new(), body)?)
    }

    /// Fields of a request, and the field and text of the error.
    const ERRORS: &str = r#"
{"prompt": null} => prompt: is missing
{"prompt": []} => prompt: empty
{"prompt": 1} => prompt: a number
{"prompt": ["a", true]} => prompt[1]: a boolean
{"n": 3, "best_of": 2} => best_of: at least `n`
{"best_of": 2, "stream": true} => best_of: omit `stream`
{"echo": true, "logprobs": 1, "regex": "a"} => regex: `echo`
{"echo": true, "suffix": "x"} => echo: `suffix`
{"echo": true, "logprobs": 1, "lora": [{"id": 0, "scale": 1}]} => lora: without adapters
{"logprobs": 21} => logprobs: to 20
{"max_tokens": -2} => max_tokens: from 0
{"max_tokens": 1, "n_predict": 2} => n_predict: another name
{"prompt_logprobs": 1} => prompt_logprobs: `echo`
"#;

    #[test]
    fn errors_name_the_field() {
        check_field_errors(ERRORS, with);
        let request = with(json!({"n": 2, "best_of": 2, "user": "me"})).unwrap();
        assert_eq!(request.settings.max_tokens, Some(16));
        let request = with(json!({"max_tokens": -1, "logprobs": false})).unwrap();
        assert_eq!(request.settings.max_tokens, None);
        assert_eq!(request.settings.logprobs, None);
    }

    #[test]
    fn prompt_is_text_or_tokens_or_a_list() {
        let script = Script::new().control_token("<s>").begin_token("<s>");
        for (prompt, expected) in [
            (json!("a<|im_end|>"), vec![vec![259, 97, 258]]),
            (json!(["a", "<s>b"]), vec![vec![259, 97], vec![259, 98]]),
            (json!([97, 98]), vec![vec![97, 98]]),
            (
                json!([[97], "b", [258]]),
                vec![vec![97], vec![259, 98], vec![258]],
            ),
        ] {
            let request = with(json!({"prompt": prompt})).unwrap();
            let tokens =
                script.run(async { prompts(&request.prompt, None, &Model::open_default().await?) });
            assert_eq!(tokens, Ok(expected), "{prompt}");
        }
        let request = with(json!({"prompt": [[97, 260]]})).unwrap();
        let error =
            script.run(async { prompts(&request.prompt, None, &Model::open_default().await?) });
        assert_eq!(error.unwrap_err().field(), Some("prompt[0][1]"));
    }
}
