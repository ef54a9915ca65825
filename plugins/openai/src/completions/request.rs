//! The body of a request.

use corral_sdk::fields::{Fields, wrong_type};
use corral_sdk::{Error, Model, Token};
use serde_json::Value;

use super::infill;
use super::scores::Echo;
use crate::asking::{Settings, settings};
use crate::chat::request::{ignore, stream};
use crate::error::unsupported;
use crate::tokenize::read_tokens;

/// What OpenAI's API has, where the request does not say.
const MAX_TOKENS: u32 = 16;
/// As many likeliest tokens as the host tells.
const LOGPROBS_LIMIT: u8 = 20;

const MEMBERS: [&str; 10] = [
    "model",
    "prompt",
    "suffix",
    "max_tokens",
    "logprobs",
    "echo",
    "best_of",
    "stream",
    "stream_options",
    "user",
];

/// A request.
pub struct Request {
    pub model: Option<String>,
    pub prompt: Vec<Prompt>,
    /// What comes after the text.
    pub suffix: Option<String>,
    pub settings: Settings,
    /// Whether the text begins with the prompt.
    pub echo: bool,
    /// Whether the answer is a stream, and then whether it ends with what it took.
    pub stream: Option<bool>,
}

/// What the model is to go on with.
#[derive(Debug, Clone, PartialEq)]
pub enum Prompt {
    /// Text, taken as it stands; control tokens that are written in it are control tokens.
    Text(String),
    /// Tokens, with their place in the request.
    Tokens(String, Vec<Value>),
}

pub fn read(mut fields: Fields) -> Result<Request, Error> {
    ignore(&mut fields, &["user"]);
    let model = fields.text("model")?;
    let prompt = fields.take("prompt");
    let prompt = prompt.ok_or_else(|| fields.missing("prompt", EXPECTED))?;
    let prompt = prompt_list(prompt)?;
    let suffix = fields.text("suffix")?;
    let echo = fields.flag("echo")?;
    let mut settings = Settings::read(&mut fields)?;
    settings.max_tokens = Some(
        fields
            .integer("max_tokens", 0..=u32::MAX)?
            .unwrap_or(MAX_TOKENS),
    );
    settings.logprobs = fields.integer("logprobs", 0..=LOGPROBS_LIMIT)?;
    if let Some(best_of) = fields.integer("best_of", 1..=u32::MAX)?
        && best_of != settings.n
    {
        let why = format!(
            "all texts that are generated are told; expected `n`, which is {}",
            settings.n
        );
        return Err(unsupported("best_of", &why));
    }
    let stream = stream(&mut fields)?;
    fields.refuse_unknown(&[&MEMBERS[..], &settings::MEMBERS].concat())?;
    if echo && suffix.is_some() {
        return Err(unsupported(
            "echo",
            "with `suffix`: the text stands between the two",
        ));
    }
    Ok(Request {
        model,
        prompt,
        suffix,
        settings,
        echo,
        stream,
    })
}

const EXPECTED: &str = "a string, a list of tokens, or a list of either";

/// One prompt or several, each as text or as tokens.
fn prompt_list(value: Value) -> Result<Vec<Prompt>, Error> {
    match value {
        Value::Array(list) if list.is_empty() => {
            let text = format!("`prompt` is empty; expected {EXPECTED}");
            Err(Error::bad_request("empty-prompt", text).about("prompt"))
        }
        Value::Array(list) if !list[0].is_number() => {
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
        Value::Array(tokens) => Ok(Prompt::Tokens(path, tokens)),
        other => Err(wrong_type(&path, EXPECTED, &other)),
    }
}

/// The tokens of all prompts.
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
                // As llama.cpp's server does: people paste prompts that a template made.
                (Prompt::Text(text), None) => model.tokenize_trusted(text)?,
                (Prompt::Tokens(..), Some(_)) => {
                    return Err(unsupported("suffix", "with a prompt of tokens"));
                }
                (Prompt::Tokens(path, tokens), None) => return read_tokens(path, tokens, model),
            };
            if let Some(begin) = model.info().begin
                && tokens.first() != Some(&begin)
            {
                tokens.insert(0, begin);
            }
            Ok(tokens)
        })
        .collect()
}

/// What the texts of all prompts begin with.
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
    use corral_sdk::testing::Script;
    use serde_json::json;

    fn with(members: Value) -> Result<Request, Error> {
        let mut body = json!({"prompt": "x"});
        body.as_object_mut()
            .unwrap()
            .extend(members.as_object().unwrap().clone());
        read(Fields::of(String::new(), body).unwrap())
    }

    #[test]
    fn what_can_not_be_honoured_is_named() {
        for (members, member, detail) in [
            (json!({"prompt": null}), "prompt", "not given"),
            (json!({"prompt": []}), "prompt", "empty"),
            (json!({"prompt": 1}), "prompt", "a number"),
            (json!({"prompt": ["a", 1]}), "prompt[1]", "a number"),
            (json!({"best_of": 2}), "best_of", "expected `n`"),
            (json!({"echo": true, "suffix": "x"}), "echo", "`suffix`"),
            (json!({"logprobs": 21}), "logprobs", "to 20"),
            (json!({"max_tokens": -1}), "max_tokens", "from 0"),
            (json!({"messages": []}), "messages", "not known here"),
        ] {
            let error = with(members.clone()).err().unwrap();
            assert_eq!(
                (error.status(), error.member()),
                (400, Some(member)),
                "{members}: {error}"
            );
            assert!(error.to_string().contains(detail), "{members}: {error}");
        }
        let request = with(json!({"n": 2, "best_of": 2, "user": "me"})).unwrap();
        assert_eq!(request.settings.max_tokens, Some(16));
    }

    #[test]
    fn a_prompt_is_text_or_tokens_or_several() {
        let script = Script::new().control_token("<s>").begins_with("<s>");
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
                script.run(async { prompts(&request.prompt, None, &Model::first().await?) });
            assert_eq!(tokens, Ok(expected), "{prompt}");
        }
        let request = with(json!({"prompt": [[97, 260]]})).unwrap();
        let error = script.run(async { prompts(&request.prompt, None, &Model::first().await?) });
        assert_eq!(error.unwrap_err().member(), Some("prompt[0][1]"));
    }
}
