//! The body of a request: what is read from it, and every way in which it can be wrong.
//!
//! Nothing is dropped in silence: a field that is not known is an error which names it, and so is
//! a value that could not be honoured as it stands. `null` counts as absent.

use std::fmt::Display;
use std::ops::RangeInclusive;

use serde_json::{Map, Value};

use crate::problem::Problem;

/// A longer body is answered by 413.
pub const BODY_LIMIT: usize = 1024 * 1024;
/// What `max_tokens` is when the request does not say.
pub const DEFAULT_MAX_TOKENS: u32 = 128;
/// As many stop strings, and as long ones, as the host takes.
const STOP_COUNT_LIMIT: usize = 16;
const STOP_LENGTH_LIMIT: usize = 256;

const FIELDS: [&str; 14] = [
    "prompt",
    "messages",
    "tools",
    "model",
    "max_tokens",
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "seed",
    "stop",
    "ignore_end",
    "stream",
    "template_arguments",
];

/// A request that can be tried.
#[derive(Debug, PartialEq)]
pub struct Request {
    /// The model by name, or the deployment's default.
    pub model: Option<String>,
    pub input: Input,
    pub settings: Settings,
    /// Whether the answer is a stream of events.
    pub stream: bool,
}

/// What the model is to continue.
#[derive(Debug, PartialEq)]
pub enum Input {
    /// Text, taken as it stands; control tokens that are written in it are control tokens.
    Prompt(String),
    /// A conversation, for the model's chat template.
    Chat(Chat),
}

/// A conversation. The messages and tools are objects, given to the template as they came.
#[derive(Debug, Default, PartialEq)]
pub struct Chat {
    pub messages: Vec<Value>,
    pub tools: Vec<Value>,
    /// More variables for the template, as `enable_thinking` is for some models.
    pub arguments: Map<String, Value>,
}

/// How to generate. Without any of temperature, `top_k`, `top_p` and `min_p` it is greedy.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    pub max_tokens: u32,
    pub temperature: Option<f32>,
    pub top_k: Option<u32>,
    pub top_p: Option<f32>,
    pub min_p: Option<f32>,
    pub seed: Option<u64>,
    pub stop: Vec<String>,
    pub ignore_end: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            max_tokens: DEFAULT_MAX_TOKENS,
            temperature: None,
            top_k: None,
            top_p: None,
            min_p: None,
            seed: None,
            stop: Vec::new(),
            ignore_end: false,
        }
    }
}

/// Reads a request from the JSON text of its body.
pub fn parse(body: &[u8]) -> Result<Request, Problem> {
    let value: Value = serde_json::from_slice(body).map_err(|error| {
        // serde_json's text ends with "at line L column C".
        Problem::bad_request("invalid-json", format!("the body is not JSON: {error}"))
    })?;
    let Value::Object(fields) = value else {
        return Err(wrong_type("the body", "an object", &value));
    };
    let mut fields = Fields(fields);
    fields.refuse_unknown()?;

    let input = input(&mut fields)?;
    let settings = Settings {
        max_tokens: fields
            .integer("max_tokens", 1..=u32::MAX)?
            .unwrap_or(DEFAULT_MAX_TOKENS),
        temperature: fields.number("temperature", 0.0..=f32::MAX)?,
        top_k: fields.integer("top_k", 0..=u32::MAX)?,
        top_p: fields.number("top_p", 0.0..=1.0)?,
        min_p: fields.number("min_p", 0.0..=1.0)?,
        seed: fields.integer("seed", 0..=u64::MAX)?,
        stop: stop(&mut fields)?,
        ignore_end: fields.flag("ignore_end")?,
    };
    Ok(Request {
        model: fields.text("model")?,
        input,
        settings,
        stream: fields.flag("stream")?,
    })
}

fn input(fields: &mut Fields) -> Result<Input, Problem> {
    let prompt = fields.text("prompt")?;
    let messages = fields.list("messages")?;
    let tools = fields.list("tools")?;
    let arguments = match fields.take("template_arguments") {
        None => None,
        Some(Value::Object(map)) => Some(map),
        Some(other) => return Err(wrong_type("`template_arguments`", "an object", &other)),
    };
    match (prompt, messages) {
        (Some(_), Some(_)) => Err(Problem::bad_request(
            "ambiguous-input",
            "both `prompt` and `messages` are given; expected exactly one of the two",
        )),
        (None, None) => Err(Problem::bad_request(
            "missing-input",
            "neither `prompt` nor `messages` is given; expected exactly one of the two",
        )),
        (Some(prompt), None) => {
            for (name, given) in [
                ("tools", tools.is_some()),
                ("template_arguments", arguments.is_some()),
            ] {
                if given {
                    return Err(Problem::bad_request(
                        "ambiguous-input",
                        format!(
                            "`{name}` needs a chat template, so it goes with `messages`, not with `prompt`"
                        ),
                    ));
                }
            }
            if prompt.is_empty() {
                return Err(Problem::bad_request(
                    "empty-prompt",
                    "`prompt` is empty; expected at least one character",
                ));
            }
            Ok(Input::Prompt(prompt))
        }
        (None, Some(messages)) => {
            if messages.is_empty() {
                return Err(Problem::bad_request(
                    "empty-prompt",
                    "`messages` is empty; expected at least one message",
                ));
            }
            for (index, message) in messages.iter().enumerate() {
                check_message(index, message)?;
            }
            let tools = tools.unwrap_or_default();
            for (index, tool) in tools.iter().enumerate() {
                if !tool.is_object() {
                    return Err(wrong_type(&format!("`tools[{index}]`"), "an object", tool));
                }
            }
            Ok(Input::Chat(Chat {
                messages,
                tools,
                arguments: arguments.unwrap_or_default(),
            }))
        }
    }
}

/// A message has a role and either a text or calls of tools; what else it has is the template's.
fn check_message(index: usize, message: &Value) -> Result<(), Problem> {
    let at = |member: &str| format!("`messages[{index}]{member}`");
    let Value::Object(members) = message else {
        return Err(wrong_type(&at(""), "an object", message));
    };
    match members.get("role") {
        // Templates build control tokens from the role, so it is a word and nothing else.
        Some(Value::String(role))
            if !role.is_empty()
                && role.len() <= 64
                && role
                    .bytes()
                    .all(|b| b.is_ascii_alphanumeric() || b"_-".contains(&b)) => {}
        Some(Value::String(role)) => {
            return Err(Problem::bad_request(
                "invalid-messages",
                format!(
                    "{} is {role:?}; expected a word such as system, user, assistant or tool",
                    at(".role")
                ),
            ));
        }
        Some(other) => return Err(wrong_type(&at(".role"), "a string", other)),
        None => {
            return Err(Problem::bad_request(
                "invalid-messages",
                format!(
                    "{} has no `role`; expected one such as system, user, assistant or tool",
                    at("")
                ),
            ));
        }
    }
    match members.get("content") {
        Some(Value::String(_)) => Ok(()),
        None | Some(Value::Null) if members.get("tool_calls").is_some_and(Value::is_array) => {
            Ok(())
        }
        None | Some(Value::Null) => Err(Problem::bad_request(
            "invalid-messages",
            format!(
                "{} has no `content`, which only a message with `tool_calls` may leave out",
                at("")
            ),
        )),
        Some(other) => Err(wrong_type(&at(".content"), "a string", other)),
    }
}

fn stop(fields: &mut Fields) -> Result<Vec<String>, Problem> {
    let texts = match fields.take("stop") {
        None => Vec::new(),
        Some(Value::String(text)) => vec![text],
        Some(Value::Array(values)) => values
            .into_iter()
            .map(|value| match value {
                Value::String(text) => Ok(text),
                other => Err(wrong_type("an entry of `stop`", "a string", &other)),
            })
            .collect::<Result<_, _>>()?,
        Some(other) => {
            return Err(wrong_type(
                "`stop`",
                "a string or a list of strings",
                &other,
            ));
        }
    };
    if texts.len() > STOP_COUNT_LIMIT {
        return Err(Problem::bad_request(
            "invalid-stop",
            format!(
                "`stop` has {} strings; expected at most {STOP_COUNT_LIMIT}",
                texts.len()
            ),
        ));
    }
    for text in &texts {
        if text.is_empty() || text.len() > STOP_LENGTH_LIMIT {
            return Err(Problem::bad_request(
                "invalid-stop",
                format!(
                    "a string in `stop` has {} bytes; expected 1 to {STOP_LENGTH_LIMIT}",
                    text.len()
                ),
            ));
        }
    }
    Ok(texts)
}

/// The members of the body that were not read yet.
struct Fields(Map<String, Value>);

impl Fields {
    fn refuse_unknown(&self) -> Result<(), Problem> {
        let unknown: Vec<_> = self
            .0
            .keys()
            .filter(|name| !FIELDS.contains(&name.as_str()))
            .map(|name| format!("`{name}`"))
            .collect();
        if unknown.is_empty() {
            return Ok(());
        }
        Err(Problem::bad_request(
            "unknown-field",
            format!(
                "{} {} not known here; known are {}",
                unknown.join(", "),
                if unknown.len() == 1 { "is" } else { "are" },
                FIELDS.map(|name| format!("`{name}`")).join(", ")
            ),
        ))
    }

    fn take(&mut self, name: &str) -> Option<Value> {
        self.0.remove(name).filter(|value| !value.is_null())
    }

    fn text(&mut self, name: &str) -> Result<Option<String>, Problem> {
        match self.take(name) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(other) => Err(wrong_type(&format!("`{name}`"), "a string", &other)),
        }
    }

    fn list(&mut self, name: &str) -> Result<Option<Vec<Value>>, Problem> {
        match self.take(name) {
            None => Ok(None),
            Some(Value::Array(list)) => Ok(Some(list)),
            Some(other) => Err(wrong_type(&format!("`{name}`"), "a list", &other)),
        }
    }

    fn flag(&mut self, name: &str) -> Result<bool, Problem> {
        match self.take(name) {
            None => Ok(false),
            Some(Value::Bool(flag)) => Ok(flag),
            Some(other) => Err(wrong_type(&format!("`{name}`"), "true or false", &other)),
        }
    }

    fn integer<T>(&mut self, name: &str, range: RangeInclusive<T>) -> Result<Option<T>, Problem>
    where
        T: TryFrom<u64> + PartialOrd + Display,
    {
        let number = match self.take(name) {
            None => return Ok(None),
            Some(Value::Number(number)) => number,
            Some(other) => return Err(wrong_type(&format!("`{name}`"), "an integer", &other)),
        };
        number
            .as_u64()
            .and_then(|value| T::try_from(value).ok())
            .filter(|value| range.contains(value))
            .map(Some)
            .ok_or_else(|| {
                Problem::bad_request(
                    "out-of-range",
                    format!(
                        "`{name}` is {number}; expected an integer from {} to {}",
                        range.start(),
                        range.end()
                    ),
                )
            })
    }

    fn number(&mut self, name: &str, range: RangeInclusive<f32>) -> Result<Option<f32>, Problem> {
        let number = match self.take(name) {
            None => return Ok(None),
            Some(Value::Number(number)) => number,
            Some(other) => return Err(wrong_type(&format!("`{name}`"), "a number", &other)),
        };
        number
            .as_f64()
            .map(|value| value as f32)
            .filter(|value| value.is_finite() && range.contains(value))
            .map(Some)
            .ok_or_else(|| {
                let expected = if *range.end() == f32::MAX {
                    format!("a number of at least {}", range.start())
                } else {
                    format!("a number from {} to {}", range.start(), range.end())
                };
                Problem::bad_request(
                    "out-of-range",
                    format!("`{name}` is {number}; expected {expected}"),
                )
            })
    }
}

fn wrong_type(what: &str, expected: &str, found: &Value) -> Problem {
    let found = match found {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    };
    Problem::bad_request(
        "wrong-type",
        format!("{what} is {found}; expected {expected}"),
    )
}

#[cfg(test)]
#[path = "request_tests.rs"]
mod tests;
