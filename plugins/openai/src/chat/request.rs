//! The body of a request.

use corral_sdk::Error;
use corral_sdk::fields::{Fields, out_of_range};
use corral_sdk::template::Chat;
use serde_json::Value;

use super::messages;
use crate::asking::{Settings, settings};
use crate::error::unsupported;
use crate::talk::{Arguments, Ask, Format, Tools};

/// As many likeliest tokens as the host tells.
const LOGPROBS_LIMIT: u8 = 20;

/// Members of the API that can't be honoured, and why.
const REFUSED: [(&str, &str); 6] = [
    ("audio", "models here write text"),
    ("functions", "it was replaced by `tools`"),
    ("function_call", "it was replaced by `tool_choice`"),
    ("prediction", "what will be said can't be told beforehand"),
    ("verbosity", "models here have no such setting"),
    ("web_search_options", "there is no search here"),
];

/// Members that tell the operator of the API something, and change no answer.
const IGNORED: [&str; 5] = [
    "user",
    "metadata",
    "safety_identifier",
    "prompt_cache_key",
    "prompt_cache_retention",
];

const MEMBERS: [&str; 16] = [
    "model",
    "messages",
    "tools",
    "tool_choice",
    "parallel_tool_calls",
    "response_format",
    "reasoning_effort",
    "chat_template_kwargs",
    "max_tokens",
    "max_completion_tokens",
    "logprobs",
    "top_logprobs",
    "stream",
    "stream_options",
    "service_tier",
    "modalities",
];

/// A request.
pub struct Request {
    pub ask: Ask,
    /// Whether the answer is a stream, and then whether it ends with what it took.
    pub stream: Option<bool>,
}

pub fn read(mut fields: Fields) -> Result<Request, Error> {
    refuse(&mut fields, &REFUSED)?;
    for_the_operator(&mut fields)?;
    let text = Value::from(vec!["text"]);
    refuse_other(&mut fields, "modalities", &[text], "models here write text")?;

    let model = fields.text("model")?;
    let messages = fields.list("messages")?;
    let messages = messages.ok_or_else(|| fields.missing("messages", "a list of messages"))?;
    let tools = Tools::read(&mut fields)?;
    let format = match fields.object("response_format")? {
        Some(format) => response_format(format)?,
        None => Format::Text,
    };
    let effort = fields.text("reasoning_effort")?;
    let arguments = Arguments::read(&mut fields, effort.as_deref(), "reasoning_effort")?;
    let mut settings = Settings::read(&mut fields)?;
    settings.max_tokens = length(&mut fields)?;
    settings.logprobs = logprobs(&mut fields)?;
    let stream = stream(&mut fields)?;
    fields.refuse_unknown(&[&MEMBERS[..], &settings::MEMBERS].concat())?;

    let chat = Chat {
        messages: messages::read(messages)?,
        ..Chat::default()
    };
    Ok(Request {
        ask: Ask {
            model,
            chat,
            arguments,
            tools,
            format,
            settings,
            format_member: "response_format",
        },
        stream,
    })
}

/// Leaves out what tells the operator of the API something; an error, where that would ask for more than
/// there is.
pub fn for_the_operator(fields: &mut Fields) -> Result<(), Error> {
    ignore(fields, &IGNORED);
    let kept = "nothing is kept of answers";
    refuse_other(fields, "store", &[false.into()], kept)?;
    let tiers = ["auto".into(), "default".into()];
    refuse_other(fields, "service_tier", &tiers, "there is one tier")
}

/// An error, if one of these is given.
pub fn refuse(fields: &mut Fields, refused: &[(&str, &str)]) -> Result<(), Error> {
    match refused.iter().find(|(name, _)| fields.take(name).is_some()) {
        Some((name, why)) => Err(unsupported(&fields.path(name), why)),
        None => Ok(()),
    }
}

/// An error, if a member is given that is none of these values.
pub fn refuse_other(
    fields: &mut Fields,
    name: &str,
    allowed: &[Value],
    why: &str,
) -> Result<(), Error> {
    match fields.take(name) {
        Some(value) if !allowed.contains(&value) => {
            Err(unsupported(name, &format!("{why}, and it is {value}")))
        }
        _ => Ok(()),
    }
}

/// Leaves out what changes no answer.
pub fn ignore(fields: &mut Fields, names: &[&str]) {
    for name in names {
        fields.take(name);
    }
}

fn response_format(mut fields: Fields) -> Result<Format, Error> {
    let kind = fields.text("type")?;
    if kind.as_deref() != Some("json_schema") {
        let why = "without the type `json_schema`";
        refuse(&mut fields, &[("json_schema", why)])?;
    }
    let format = match kind.as_deref() {
        Some("text") => Format::Text,
        Some("json_object") => Format::JsonObject,
        Some("json_schema") => {
            let schema = fields.object("json_schema")?;
            schema_format(schema.ok_or_else(|| fields.missing("json_schema", "an object"))?)?
        }
        _ => {
            let expected = "text, json_object or json_schema";
            return Err(out_of_range(&fields.path("type"), &kind.into(), expected));
        }
    };
    fields.refuse_unknown(&["type", "json_schema"])?;
    Ok(format)
}

/// A schema with its name. An answer always fits it, strict or not; name and description are the
/// client's own.
pub fn schema_format(mut fields: Fields) -> Result<Format, Error> {
    let schema = fields.take("schema");
    let schema = schema.ok_or_else(|| fields.missing("schema", "a JSON schema"))?;
    fields.text("name")?;
    fields.text("description")?;
    fields.choice("strict")?;
    fields.refuse_unknown(&["name", "description", "schema", "strict"])?;
    match schema {
        Value::Object(_) | Value::Bool(_) => Ok(Format::Schema(schema)),
        other => Err(corral_sdk::fields::wrong_type(
            &fields.path("schema"),
            "a JSON schema",
            &other,
        )),
    }
}

/// The older and the newer name of one thing.
fn length(fields: &mut Fields) -> Result<Option<u32>, Error> {
    let old = fields.integer("max_tokens", 1..=u32::MAX)?;
    let new = fields.integer("max_completion_tokens", 1..=u32::MAX)?;
    match (old, new) {
        (Some(old), Some(new)) if old != new => {
            let why = "it is another name of `max_completion_tokens`, which is given too";
            Err(unsupported("max_tokens", why))
        }
        _ => Ok(new.or(old)),
    }
}

fn logprobs(fields: &mut Fields) -> Result<Option<u8>, Error> {
    let wanted = fields.flag("logprobs")?;
    let top = fields.integer("top_logprobs", 0..=LOGPROBS_LIMIT)?;
    match (wanted, top) {
        (false, Some(_)) => Err(unsupported("top_logprobs", "without `logprobs` being true")),
        (false, None) => Ok(None),
        (true, top) => Ok(Some(top.unwrap_or(0))),
    }
}

/// Whether the answer is a stream, and then whether it ends with what it took.
pub fn stream(fields: &mut Fields) -> Result<Option<bool>, Error> {
    let stream = fields.flag("stream")?;
    let Some(mut options) = fields.object("stream_options")? else {
        return Ok(stream.then_some(false));
    };
    if !stream {
        return Err(unsupported("stream_options", "without `stream` being true"));
    }
    let usage = options.flag("include_usage")?;
    // Padding against those who listen on the way; there is none.
    let path = options.path("include_obfuscation");
    if options.flag("include_obfuscation")? {
        return Err(unsupported(&path, "events are not padded"));
    }
    options.refuse_unknown(&["include_usage", "include_obfuscation"])?;
    Ok(Some(usage))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn with(members: Value) -> Result<Request, Error> {
        let mut body = json!({"messages": [{"role": "user", "content": "Hi"}]});
        body.as_object_mut()
            .unwrap()
            .extend(members.as_object().unwrap().clone());
        read(Fields::of(String::new(), body).unwrap())
    }

    #[test]
    fn what_can_not_be_honoured_is_named() {
        let tool = |name: &str| json!({"type": "function", "function": {"name": name}});
        for (members, member, detail) in [
            (json!({"audio": {}}), "audio", "write text"),
            (json!({"functions": []}), "functions", "`tools`"),
            (json!({"prediction": {}}), "prediction", "beforehand"),
            (json!({"store": true}), "store", "nothing is kept"),
            (json!({"service_tier": "flex"}), "service_tier", "one tier"),
            (json!({"modalities": ["audio"]}), "modalities", "write text"),
            (json!({"nope": 1}), "nope", "not known here"),
            (json!({"messages": 1}), "messages", "a number"),
            (json!({"messages": null}), "messages", "not given"),
            (json!({"max_tokens": 0}), "max_tokens", "from 1"),
            (
                json!({"max_tokens": 1, "max_completion_tokens": 2}),
                "max_tokens",
                "another name",
            ),
            (json!({"top_logprobs": 2}), "top_logprobs", "`logprobs`"),
            (
                json!({"logprobs": true, "top_logprobs": 21}),
                "top_logprobs",
                "to 20",
            ),
            (json!({"stream_options": {}}), "stream_options", "`stream`"),
            (
                json!({"stream": true, "stream_options": {"include_obfuscation": true}}),
                "stream_options.include_obfuscation",
                "not padded",
            ),
            (
                json!({"response_format": {"type": "xml"}}),
                "response_format.type",
                "json_schema",
            ),
            (
                json!({"response_format": {"type": "json_schema", "json_schema": {}}}),
                "response_format.json_schema.schema",
                "not given",
            ),
            (
                json!({"response_format": {"type": "json_object", "json_schema": {"schema": {}}}}),
                "response_format.json_schema",
                "the type `json_schema`",
            ),
            (
                json!({"tools": [{"type": "custom"}]}),
                "tools[0].type",
                "function",
            ),
            (
                json!({"tools": [tool("a b")]}),
                "tools[0].function.name",
                "letters",
            ),
            (
                json!({"tool_choice": "required"}),
                "tool_choice",
                "not in `tools`",
            ),
            (json!({"tool_choice": "maybe"}), "tool_choice", "maybe"),
            (
                json!({"tools": [tool("f")], "tool_choice": tool("g")}),
                "tool_choice",
                "[\"f\"]",
            ),
            (
                json!({"tool_choice": {"type": "allowed_tools"}}),
                "tool_choice",
                "allowed_tools",
            ),
        ] {
            let error = with(members.clone()).err().unwrap();
            assert_eq!(
                (error.status(), error.member()),
                (400, Some(member)),
                "{members}: {error}"
            );
            assert!(error.to_string().contains(detail), "{members}: {error}");
        }
    }

    #[test]
    fn what_changes_nothing_is_taken() {
        for members in [
            json!({"user": "x", "metadata": {"a": "b"}, "safety_identifier": "x"}),
            json!({"store": false, "service_tier": "auto", "modalities": ["text"]}),
            json!({"prompt_cache_key": "x", "audio": null, "tool_choice": "auto"}),
            json!({"max_tokens": 5, "max_completion_tokens": 5}),
            json!({"tool_choice": "none", "tools": [], "parallel_tool_calls": false}),
            json!({"stream": true, "stream_options": {"include_usage": true}}),
        ] {
            assert!(with(members.clone()).is_ok(), "{members}");
        }
    }
}
