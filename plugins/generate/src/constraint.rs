//! The field `constraint`.

use serde_json::Value;

use corral_sdk::fields::{Fields, out_of_range, wrong_type};
use corral_sdk::{Error, Grammar};

const KINDS: [&str; 5] = ["json_schema", "json_object", "regex", "lark", "gbnf"];

/// Reads the field. The host validates the grammar when it compiles it. A JSON schema keeps the order
/// of the client's fields, which determines the order in the answer.
pub fn constraint(fields: &mut Fields) -> Result<Option<Grammar>, Error> {
    let Some(constraint) = fields.object("constraint")? else {
        return Ok(None);
    };
    let (kind, value) = constraint.single(&KINDS)?;
    let path = format!("constraint.{kind}");
    let grammar = match (kind.as_str(), value) {
        ("json_schema", schema @ (Value::Object(_) | Value::Bool(_))) => {
            Grammar::JsonSchema(schema.to_string())
        }
        ("json_schema", other) => {
            let expected = "a JSON schema: an object or a boolean";
            return Err(wrong_type(&path, expected, &other));
        }
        ("json_object", Value::Bool(true)) => Grammar::JsonObject,
        ("json_object", value @ Value::Bool(false)) => {
            return Err(out_of_range(&path, &value, "true, or no `constraint`"));
        }
        ("json_object", other) => return Err(wrong_type(&path, "true", &other)),
        ("regex", Value::String(text)) => Grammar::Regex(text),
        ("lark", Value::String(text)) => Grammar::Lark(text),
        (_, Value::String(text)) => Grammar::Gbnf(text),
        (_, other) => return Err(wrong_type(&path, "a string", &other)),
    };
    Ok(Some(grammar))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn read(value: Value) -> Result<Option<Grammar>, Error> {
        constraint(&mut Fields::at(
            String::new(),
            json!({"constraint": value}),
        )?)
    }

    #[test]
    fn every_kind_is_parsed() {
        let text = |text: &str| text.to_owned();
        for (value, grammar) in [
            (
                json!({"json_schema": {"type": "object", "properties": {"b": {}, "a": {}}}}),
                Grammar::JsonSchema(text(r#"{"type":"object","properties":{"b":{},"a":{}}}"#)),
            ),
            (
                json!({"json_schema": true}),
                Grammar::JsonSchema(text("true")),
            ),
            (
                json!({"json_schema": false, "regex": null}),
                Grammar::JsonSchema(text("false")),
            ),
            (json!({"json_object": true}), Grammar::JsonObject),
            (json!({"regex": "[0-9]+"}), Grammar::Regex(text("[0-9]+"))),
            (
                json!({"lark": "start: \"a\""}),
                Grammar::Lark(text("start: \"a\"")),
            ),
            (
                json!({"gbnf": "root ::= \"a\""}),
                Grammar::Gbnf(text("root ::= \"a\"")),
            ),
        ] {
            assert_eq!(read(value.clone()).unwrap(), Some(grammar), "{value}");
        }
        assert_eq!(read(Value::Null).unwrap(), None);
    }

    /// A constraint, and the code and text of its error.
    const ERRORS: &str = r#"
"x" => wrong-type: `constraint` is a string
{} => not-one-field: has 0 fields
{"regex": null} => not-one-field: has 0 fields
{"regex": "a", "lark": "b"} => not-one-field: exactly one of `json_schema`
{"schema": {}} => unknown-field: `constraint.schema` is unknown; expected `json_schema`
{"json_schema": "{}"} => wrong-type: `constraint.json_schema` is a string; expected a JSON schema
{"json_object": {}} => wrong-type: `constraint.json_object` is an object; expected true
{"json_object": false} => out-of-range: `constraint.json_object` is false
{"regex": 1} => wrong-type: `constraint.regex` is a number; expected a string
{"gbnf": ["a"]} => wrong-type: `constraint.gbnf` is a list
"#;

    #[test]
    fn errors_name_the_field() {
        for line in ERRORS.trim().lines() {
            let (constraint, error) = line.split_once(" => ").unwrap();
            let (code, detail) = error.split_once(": ").unwrap();
            let problem = read(serde_json::from_str(constraint).unwrap()).unwrap_err();
            assert_eq!((problem.status(), problem.code()), (400, code), "{line}");
            assert!(problem.to_string().contains(detail), "{line}: {problem}");
        }
    }
}
