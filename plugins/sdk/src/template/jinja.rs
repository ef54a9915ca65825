//! Renders the Jinja chat template of a model file as Hugging Face's `transformers` does.
//!
//! Templates rely on Python: methods of `str` and `dict`, `tojson` in the format of `json.dumps`,
//! `raise_exception`, `strftime_now`, loop controls, and blocks without surrounding white space.

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Serde, Value};
use minijinja::{Environment, Error, ErrorKind, context};
use minijinja_contrib::pycompat::unknown_method_callback;
use serde::Serialize;
use serde_json::ser::{Formatter, PrettyFormatter, Serializer};
use serde_json::{Map, Value as Json};

use super::Chat;
use super::strftime::strftime;
use crate::Error as Failure;

/// Template variables that do not come from the chat.
#[derive(Debug, Clone, Copy)]
pub struct TemplateContext<'a> {
    /// Text of the beginning-of-sequence token; empty if the model has none.
    pub bos_token: &'a str,
    /// Text of an end-of-generation token; empty if the model has none.
    pub eos_token: &'a str,
    /// Seconds since 1970, UTC.
    pub now: u64,
}

/// Renders `template` for `chat`.
pub fn render(template: &str, chat: &Chat, context: TemplateContext) -> Result<String, Failure> {
    let mut environment = environment(context.now).map_err(|error| problem(&error))?;
    environment
        .add_template("chat template", template)
        .map_err(|error| problem(&error))?;
    let tools = (!chat.tools.is_empty()).then_some(&chat.tools);
    let own = context! {
        messages => Serde(&chat.messages),
        // Templates test for `none` in several ways; an absent list must be `none`.
        tools => Serde(&tools),
        add_generation_prompt => chat.add_generation_prompt,
        bos_token => context.bos_token,
        eos_token => context.eos_token,
    };
    let variables = Value::from(Serde(&chat.variables));
    environment
        .get_template("chat template")
        .and_then(|template| template.render(context! { ..own, ..variables }))
        .map_err(|error| problem(&error))
}

fn environment(now: u64) -> Result<Environment<'static>, Error> {
    let mut environment = Environment::new();
    environment.set_syntax(
        SyntaxConfig::builder()
            .trim_blocks(true)
            .lstrip_blocks(true)
            .build()?,
    );
    environment.set_unknown_method_callback(unknown_method_callback);
    environment.add_filter("tojson", tojson);
    environment.add_function(
        "raise_exception",
        |message: String| -> Result<Value, Error> {
            Err(Error::new(ErrorKind::InvalidOperation, message))
        },
    );
    environment.add_function("strftime_now", move |format: String| strftime(&format, now));
    Ok(environment)
}

fn problem(error: &Error) -> Failure {
    // The innermost error is the cause; the outer ones give the position.
    let mut text = error.to_string();
    let mut source = std::error::Error::source(error);
    while let Some(inner) = source {
        text = format!("{text}: {inner}");
        source = inner.source();
    }
    Failure::bad_request(
        "template-error",
        format!("the model's chat template rejects this conversation: {text}"),
    )
}

/// `json.dumps(value, ensure_ascii=…, indent=…, sort_keys=…)` with the defaults of `transformers`.
fn tojson(value: Value, options: Kwargs) -> Result<String, Error> {
    let refused = |error: serde_json::Error| {
        Error::new(ErrorKind::InvalidOperation, "the value has no JSON form").with_source(error)
    };
    let ensure_ascii = options
        .get::<Option<bool>>("ensure_ascii")?
        .unwrap_or(false);
    let sort_keys = options.get::<Option<bool>>("sort_keys")?.unwrap_or(false);
    let indent = options.get::<Option<usize>>("indent")?;
    let separators = options.get::<Option<Vec<String>>>("separators")?;
    options.assert_all_used()?;

    let mut json = serde_json::to_value(&value).map_err(refused)?;
    if sort_keys {
        json.sort_all_objects();
    }
    let text = match (indent, separators.as_deref()) {
        (Some(indent), None) => {
            let indent = " ".repeat(indent.min(16));
            dump(&json, PrettyFormatter::with_indent(indent.as_bytes()))
        }
        (None, None) => dump(
            &json,
            Separated {
                item: ", ",
                key: ": ",
            },
        ),
        (None, Some([item, key])) => dump(&json, Separated { item, key }),
        _ => {
            return Err(Error::new(
                ErrorKind::InvalidOperation,
                "tojson: expected `separators` to be two strings, without `indent`",
            ));
        }
    }
    .map_err(refused)?;
    Ok(if ensure_ascii { to_ascii(&text) } else { text })
}

fn dump(json: &Json, formatter: impl Formatter) -> Result<String, serde_json::Error> {
    let mut bytes = Vec::new();
    json.serialize(&mut Serializer::with_formatter(&mut bytes, formatter))?;
    String::from_utf8(bytes).map_err(serde::ser::Error::custom)
}

/// JSON on one line with Python's separators.
struct Separated<'a> {
    item: &'a str,
    key: &'a str,
}

impl Separated<'_> {
    /// Writes the separator before an item.
    fn before(
        &self,
        writer: &mut (impl ?Sized + std::io::Write),
        first: bool,
    ) -> std::io::Result<()> {
        let separator = if first { "" } else { self.item };
        writer.write_all(separator.as_bytes())
    }
}

impl Formatter for Separated<'_> {
    fn begin_array_value<W: ?Sized + std::io::Write>(
        &mut self,
        writer: &mut W,
        first: bool,
    ) -> std::io::Result<()> {
        self.before(writer, first)
    }

    fn begin_object_key<W: ?Sized + std::io::Write>(
        &mut self,
        writer: &mut W,
        first: bool,
    ) -> std::io::Result<()> {
        self.before(writer, first)
    }

    fn begin_object_value<W: ?Sized + std::io::Write>(
        &mut self,
        writer: &mut W,
    ) -> std::io::Result<()> {
        writer.write_all(self.key.as_bytes())
    }
}

/// Replaces characters outside ASCII by `\u` escapes. They occur only in strings.
fn to_ascii(json: &str) -> String {
    let mut text = String::with_capacity(json.len());
    for character in json.chars() {
        if character.is_ascii() {
            text.push(character);
        } else {
            for unit in character.encode_utf16(&mut [0; 2]) {
                text += &format!("\\u{unit:04x}");
            }
        }
    }
    text
}

/// Applies `change` to every string that a template may put into the prompt: all of the chat's
/// strings but the roles, which are words (see `Chat::check`).
pub fn map_texts(chat: &Chat, change: &mut impl FnMut(&str) -> String) -> Chat {
    fn map(value: &Json, change: &mut impl FnMut(&str) -> String) -> Json {
        match value {
            Json::String(text) => Json::String(change(text)),
            Json::Array(values) => values.iter().map(|value| map(value, change)).collect(),
            Json::Object(members) => Json::Object(map_members(members, change)),
            other => other.clone(),
        }
    }
    fn map_members(
        members: &Map<String, Json>,
        change: &mut impl FnMut(&str) -> String,
    ) -> Map<String, Json> {
        members
            .iter()
            .map(|(name, value)| (change(name), map(value, change)))
            .collect()
    }
    let messages = chat.messages.iter().map(|message| {
        let mut changed = map(message, change);
        if let (Some(role), Json::Object(members)) = (message.get("role"), &mut changed) {
            members.insert("role".to_owned(), role.clone());
        }
        changed
    });
    Chat {
        messages: messages.collect(),
        tools: chat.tools.iter().map(|tool| map(tool, change)).collect(),
        variables: map_members(&chat.variables, change),
        add_generation_prompt: chat.add_generation_prompt,
        images: chat.images.clone(),
    }
}

#[cfg(test)]
#[path = "jinja_tests.rs"]
mod tests;

#[cfg(test)]
#[path = "model_family_tests.rs"]
mod model_families;
