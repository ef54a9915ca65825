//! Fields that constrain an answer: OpenAI's `response_format`, and those of llama.cpp's server, vLLM
//! and SGLang.

use conversation::{Format, unsupported};
use corral_sdk::Error;
use corral_sdk::fields::{Fields, out_of_range};
use serde_json::Value;

use crate::shared_fields::{ignore_without_effect, reject, schema_format, schema_of};

/// Most choices of `guided_choice`.
const CHOICE_LIMIT: usize = 1024;

/// The fields that [`read`] reads.
pub const FIELDS: [&str; 12] = [
    "response_format",
    "grammar",
    "json_schema",
    "regex",
    "ebnf",
    "guided_json",
    "guided_regex",
    "guided_choice",
    "guided_grammar",
    "guided_decoding_backend",
    "guided_whitespace_pattern",
    "structured_outputs",
];

/// Reads the format of the answer and the path of the field that has it. An error if several fields
/// have one.
pub fn read(fields: &mut Fields) -> Result<(Format, &'static str), Error> {
    let mut formats = Vec::new();
    if let Some(format) = fields.object("response_format")? {
        formats.push((response_format(format)?, "response_format"));
    }
    // llama.cpp's clients send an empty grammar for none.
    if let Some(text) = fields.text("grammar")?.filter(|text| !text.is_empty()) {
        formats.push((grammar(text), "grammar"));
    }
    if let Some(value) = fields.take("json_schema").filter(|value| !is_empty(value)) {
        formats.push((schema("json_schema", value)?, "json_schema"));
    }
    for (name, kind) in [
        ("regex", Kind::Regex),
        ("ebnf", Kind::Grammar),
        ("guided_json", Kind::Json),
        ("guided_regex", Kind::Regex),
        ("guided_choice", Kind::Choice),
        ("guided_grammar", Kind::Grammar),
    ] {
        if let Some(format) = kind.read(fields, name)? {
            formats.push((format, name));
        }
    }
    if fields.peek("structured_outputs").is_some_and(is_empty) {
        fields.take("structured_outputs");
    }
    if let Some(outputs) = fields.object("structured_outputs")? {
        formats.push((structured_outputs(outputs)?, "structured_outputs"));
    }
    let why = "the host compiles all grammars alike";
    ignore_without_effect(
        fields,
        &[
            ("guided_decoding_backend", why),
            ("guided_whitespace_pattern", why),
        ],
    )?;
    formats.retain(|(format, _)| *format != Format::Text);
    if let [(_, first), (_, second), ..] = formats[..] {
        let why = format!("`{first}` is present as well, and an answer has one format");
        return Err(unsupported(second, &why));
    }
    Ok(formats.pop().unwrap_or((Format::Text, "response_format")))
}

/// The kinds of fields of vLLM and SGLang.
#[derive(Clone, Copy)]
enum Kind {
    Json,
    Regex,
    Choice,
    Grammar,
}

impl Kind {
    fn read(self, fields: &mut Fields, name: &str) -> Result<Option<Format>, Error> {
        let path = fields.path(name);
        Ok(match self {
            Kind::Json => match fields.take(name) {
                Some(value) => Some(schema(&path, value)?),
                None => None,
            },
            Kind::Regex => fields.text(name)?.map(Format::Regex),
            Kind::Grammar => fields.text(name)?.map(grammar),
            Kind::Choice => match fields.text_list(name)? {
                Some(texts) => Some(choice(&path, &texts)?),
                None => None,
            },
        })
    }
}

/// Reads `response_format`.
pub fn response_format(mut fields: Fields) -> Result<Format, Error> {
    let kind = fields.text("type")?;
    if kind.as_deref() != Some("json_schema") {
        let why = "it requires the type `json_schema`";
        reject(&mut fields, &[("json_schema", why)])?;
    }
    // llama.cpp's server takes a schema here.
    let own = match fields.take("schema") {
        Some(value) => Some(schema(&fields.path("schema"), value)?),
        None => None,
    };
    let format = match (kind.as_deref(), own) {
        (Some("text"), None) => Format::Text,
        (Some("json_object"), own) => own.unwrap_or(Format::JsonObject),
        (Some("json_schema"), Some(own)) if fields.peek("json_schema").is_none() => own,
        (Some("json_schema"), None) => schema_format(fields.required_object("json_schema")?)?,
        (Some("text" | "json_schema"), Some(_)) => {
            let why =
                "it requires the type `json_object`, or `json_schema` without a field of this name";
            return Err(unsupported(&fields.path("schema"), why));
        }
        _ => {
            let expected = "text, json_object or json_schema";
            return Err(out_of_range(&fields.path("type"), &kind.into(), expected));
        }
    };
    fields.ignore_unknown(&["type", "json_schema", "schema"])?;
    Ok(format)
}

/// Reads vLLM's `structured_outputs`.
fn structured_outputs(mut fields: Fields) -> Result<Format, Error> {
    let why = "expected one of `json`, `regex`, `choice`, `grammar` and `json_object`";
    reject(&mut fields, &[("structural_tag", why)])?;
    let mut formats = Vec::new();
    for (name, kind) in [
        ("json", Kind::Json),
        ("regex", Kind::Regex),
        ("choice", Kind::Choice),
        ("grammar", Kind::Grammar),
    ] {
        formats.extend(kind.read(&mut fields, name)?);
    }
    if fields.flag("json_object")? {
        formats.push(Format::JsonObject);
    }
    fields.ignore_unknown(&["json", "regex", "choice", "grammar", "json_object"])?;
    match (formats.pop(), formats.is_empty()) {
        (Some(only), true) => Ok(only),
        _ => {
            let text = format!("`structured_outputs` has none or several formats; {why}");
            let error = Error::bad_request("not-one-field", text);
            Err(error.with_field("structured_outputs"))
        }
    }
}

/// A grammar's notation shows in its text: Lark with llama.cpp's prefix or without any `::=`, otherwise
/// GBNF.
fn grammar(text: String) -> Format {
    match text.strip_prefix("%llguidance") {
        Some(_) => Format::Lark(text),
        None if text.contains("::=") => Format::Gbnf(text),
        // A wrong GBNF grammar is more common than Lark without a start rule.
        None if text.contains("start:") => Format::Lark(text),
        None => Format::Gbnf(text),
    }
}

/// A schema as JSON, or as a string with JSON. Keywords that cannot be enforced are ignored.
fn schema(path: &str, value: Value) -> Result<Format, Error> {
    let value = match value {
        Value::String(text) => serde_json::from_str(&text).unwrap_or(Value::String(text)),
        value => value,
    };
    schema_of(path, value, false)
}

/// An empty object is no constraint: clients send it for none.
fn is_empty(value: &Value) -> bool {
    value.as_object().is_some_and(serde_json::Map::is_empty)
}

/// One of these texts.
fn choice(path: &str, texts: &[String]) -> Result<Format, Error> {
    if !(1..=CHOICE_LIMIT).contains(&texts.len()) {
        let text = format!(
            "`{path}` has {} strings; expected 1 to {CHOICE_LIMIT}",
            texts.len()
        );
        return Err(Error::bad_request("out-of-range", text).with_field(path));
    }
    let texts: Vec<_> = texts.iter().map(|text| escaped(text)).collect();
    Ok(Format::Regex(format!("(?:{})", texts.join("|"))))
}

/// A regular expression that matches this text alone.
fn escaped(text: &str) -> String {
    let mut expression = String::new();
    for letter in text.chars() {
        match letter {
            '\n' => expression.push_str("\\n"),
            '\r' => expression.push_str("\\r"),
            letter => {
                if r"\.+*?()|[]{}^$#&-~/".contains(letter) {
                    expression.push('\\');
                }
                expression.push(letter);
            }
        }
    }
    expression
}

#[cfg(test)]
mod tests {
    use super::*;
    use corral_sdk::testing::check_field_errors;
    use serde_json::json;

    fn with(request_fields: Value) -> Result<(Format, &'static str), Error> {
        read(&mut Fields::at(String::new(), request_fields)?)
    }

    #[test]
    fn members_of_other_servers_are_formats() {
        let schema = json!({"const": 1});
        let of_schema = || Format::Schema {
            schema: schema.clone(),
            strict: false,
        };
        let regex = |text: &str| Format::Regex(text.to_owned());
        for (request_fields, format, field) in [
            (json!({}), Format::Text, "response_format"),
            (
                json!({"grammar": "", "json_schema": {}, "structured_outputs": {}}),
                Format::Text,
                "response_format",
            ),
            (
                json!({"response_format": {"type": "json_object", "schema": schema}}),
                of_schema(),
                "response_format",
            ),
            (
                json!({"response_format": {"type": "text"}, "regex": "a+"}),
                regex("a+"),
                "regex",
            ),
            (json!({"json_schema": schema}), of_schema(), "json_schema"),
            (
                json!({"guided_json": schema.to_string()}),
                of_schema(),
                "guided_json",
            ),
            (
                json!({"guided_choice": ["a.", "b\n"]}),
                regex("(?:a\\.|b\\n)"),
                "guided_choice",
            ),
            (
                json!({"structured_outputs": {"regex": "a"}}),
                regex("a"),
                "structured_outputs",
            ),
            (
                json!({"grammar": "root ::= \"a\""}),
                Format::Gbnf("root ::= \"a\"".to_owned()),
                "grammar",
            ),
            (
                json!({"guided_grammar": "start: \"a\""}),
                Format::Lark("start: \"a\"".to_owned()),
                "guided_grammar",
            ),
            (
                json!({"structured_outputs": {"json_object": true}}),
                Format::JsonObject,
                "structured_outputs",
            ),
        ] {
            assert_eq!(
                with(request_fields.clone()),
                Ok((format, field)),
                "{request_fields}"
            );
        }
    }

    /// Requests, and the field and text of the error.
    const ERRORS: &str = r#"
{"regex": "a", "grammar": "root ::= \"a\""} => regex: `grammar`
{"guided_json": 1} => guided_json: a JSON schema
{"guided_json": "{"} => guided_json: a JSON schema
{"guided_choice": []} => guided_choice: 0 strings
{"guided_choice": [1]} => guided_choice[0]: a number
{"structured_outputs": {"json_object": false}} => structured_outputs: none or several
{"structured_outputs": {"regex": "a", "json": {}}} => structured_outputs: none or several
{"structured_outputs": {"structural_tag": "x"}} => structured_outputs.structural_tag: expected one of
{"response_format": {"type": "json_object", "schema": 123}} => response_format.schema: a JSON schema
{"response_format": {"type": "text", "schema": {}}} => response_format.schema: json_object
{"response_format": {"type": "xml"}} => response_format.type: json_schema
"#;

    #[test]
    fn errors_name_the_field() {
        check_field_errors(ERRORS, with);
    }
}
