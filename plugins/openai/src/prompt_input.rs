//! Prompts and inputs as llama.cpp's server takes them: text, tokens, both in one list, objects with
//! text, or a list of these.

use corral_sdk::fields::{Fields, integer, wrong_type};
use corral_sdk::{Error, Model, Token};
use serde_json::Value;

use conversation::unsupported;

pub const EXPECTED: &str =
    "a string, a list of tokens and strings, an object with `prompt_string`, or a list of these";

/// Whether the value is a list of prompts instead of one.
pub fn is_list(value: &Value) -> bool {
    value
        .as_array()
        .is_some_and(|list| !list.iter().any(Value::is_number) && !list.is_empty())
}

/// The number of prompts.
pub fn count(value: &Value) -> usize {
    match value {
        Value::Array(list) if is_list(value) => list.len(),
        _ => 1,
    }
}

/// How to read the texts of prompts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Texts {
    /// Control tokens are read.
    Trusted,
    /// Control tokens are plain characters.
    Plain,
}

/// Reads one prompt or a list, each as tokens. `path`: the path of the value, for errors.
pub fn read_all(
    path: &str,
    value: &Value,
    texts: Texts,
    model: &Model,
) -> Result<Vec<Vec<Token>>, Error> {
    match value {
        Value::Array(list) if is_list(value) => {
            let list = list.iter().enumerate();
            list.map(|(index, value)| read_one(&format!("{path}[{index}]"), value, texts, model))
                .collect()
        }
        value => Ok(vec![read_one(path, value, texts, model)?]),
    }
}

/// Reads one prompt. A text begins with the model's beginning-of-sequence token, if it expects one.
pub fn read_one(
    path: &str,
    value: &Value,
    texts: Texts,
    model: &Model,
) -> Result<Vec<Token>, Error> {
    let tokenize = |text: &str| match texts {
        Texts::Trusted => model.tokenize_trusted(text),
        Texts::Plain => model.tokenize(text),
    };
    let mut tokens = match value {
        Value::String(text) => tokenize(text)?,
        Value::Object(_) => tokenize(&text_of(path, value)?)?,
        Value::Array(parts) => {
            let last = model.info().vocabulary.saturating_sub(1);
            let mut tokens = Vec::new();
            for (index, part) in parts.iter().enumerate() {
                match part {
                    Value::String(text) => tokens.extend(tokenize(text)?),
                    part => tokens.push(integer(&format!("{path}[{index}]"), part, 0..=last)?),
                }
            }
            if !parts.first().is_some_and(Value::is_string) {
                return Ok(tokens);
            }
            tokens
        }
        other => return Err(wrong_type(path, EXPECTED, other)),
    };
    model.add_begin_token(&mut tokens);
    Ok(tokens)
}

/// The text of an object: `prompt_string`, or `content` with parts of text.
pub fn text_of(path: &str, value: &Value) -> Result<String, Error> {
    let mut fields = Fields::at(path.to_owned(), value.clone())?;
    if let Some(media) = fields.take("multimodal_data")
        && media.as_array().is_none_or(|list| !list.is_empty())
    {
        let path = fields.path("multimodal_data");
        return Err(unsupported(&path, "models take text only"));
    }
    if let Some(text) = fields.text("prompt_string")? {
        return Ok(text);
    }
    let path = fields.path("content");
    let parts = fields.required_list("content", "a list of parts, or `prompt_string`")?;
    let mut text = String::new();
    for (index, part) in parts.into_iter().enumerate() {
        let mut part = Fields::at(format!("{path}[{index}]"), part)?;
        match part.text("type")?.as_deref() {
            Some("text") => text += &part.required_text("text")?,
            _ => {
                let path = part.path("type");
                return Err(unsupported(
                    &path,
                    "models take parts of the type `text` only",
                ));
            }
        }
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use corral_sdk::testing::Script;
    use serde_json::json;

    fn read(value: &Value) -> Result<Vec<Vec<Token>>, Error> {
        let script = Script::new().control_token("<s>").begin_token("<s>");
        script.run(async {
            let model = Model::open_default().await?;
            read_all("prompt", value, Texts::Trusted, &model)
        })
    }

    #[test]
    fn prompt_has_many_forms() {
        let a = || vec![259, 97];
        for (value, expected) in [
            (json!("a"), vec![a()]),
            (json!(["a", "b"]), vec![a(), vec![259, 98]]),
            (json!([97, 98]), vec![vec![97, 98]]),
            (json!([97, "bc", 98]), vec![vec![97, 98, 99, 98]]),
            (json!(["a", 98]), vec![vec![259, 97, 98]]),
            (
                json!([[97], "a", {"prompt_string": "a"}]),
                vec![vec![97], a(), a()],
            ),
            (
                json!({"content": [{"type": "text", "text": "a"}]}),
                vec![a()],
            ),
            (
                json!({"prompt_string": "a", "multimodal_data": []}),
                vec![a()],
            ),
        ] {
            assert_eq!(read(&value), Ok(expected), "{value}");
        }
    }

    #[test]
    fn errors_name_the_part() {
        for (value, path) in [
            (json!(1), "prompt"),
            (json!([97, 999]), "prompt[1]"),
            (json!(["a", true]), "prompt[1]"),
            (json!({}), "prompt.content"),
            (
                json!([{"content": [{"type": "image_url"}]}]),
                "prompt[0].content[0].type",
            ),
            (
                json!({"prompt_string": "a", "multimodal_data": ["x"]}),
                "prompt.multimodal_data",
            ),
        ] {
            assert_eq!(read(&value).unwrap_err().field(), Some(path), "{value}");
        }
    }
}
