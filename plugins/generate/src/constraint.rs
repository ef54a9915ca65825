//! The field `constraint`.

use serde_json::Value;

use corral_sdk::fields::Fields;
use corral_sdk::{Error, Grammar};

const KINDS: [&str; 5] = ["json_schema", "json_object", "regex", "lark", "gbnf"];

/// Reads the field. The host validates the grammar when it compiles it. A JSON schema keeps the order
/// of the client's fields, which determines the order in the answer.
pub fn constraint(fields: &mut Fields) -> Result<Option<Grammar>, Error> {
    let Some(value) = fields.take("constraint") else {
        return Ok(None);
    };
    let (kind, value) = Fields::at("constraint".to_owned(), value)?.single(&KINDS)?;
    let make = match (kind.as_str(), &value) {
        ("json_schema", Value::Object(_) | Value::Bool(_)) => {
            return Ok(Some(Grammar::JsonSchema(value.to_string())));
        }
        ("json_schema", _) => {
            return Err(wrong_type(
                &kind,
                "a JSON schema: an object or a boolean",
                &value,
            ));
        }
        ("json_object", Value::Bool(true)) => return Ok(Some(Grammar::JsonObject)),
        ("json_object", Value::Bool(false)) => {
            return Err(Error::bad_request(
                "out-of-range",
                "`constraint.json_object` is false; expected true, or no `constraint`",
            ));
        }
        ("json_object", _) => return Err(wrong_type(&kind, "true", &value)),
        ("regex", _) => Grammar::Regex,
        ("lark", _) => Grammar::Lark,
        _ => Grammar::Gbnf,
    };
    match value {
        Value::String(text) => Ok(Some(make(text))),
        other => Err(wrong_type(&kind, "a string", &other)),
    }
}

fn wrong_type(kind: &str, expected: &str, found: &Value) -> Error {
    Error::wrong_type(&format!("`constraint.{kind}`"), expected, found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn read(value: Value) -> Result<Option<Grammar>, Error> {
        let Value::Object(members) = json!({"constraint": value}) else {
            panic!("an object")
        };
        constraint(&mut Fields::from_map(members))
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

    #[test]
    fn errors_name_the_field() {
        for (value, code, detail) in [
            (json!("x"), "wrong-type", "`constraint` is a string"),
            (json!({}), "not-one-member", "has 0 fields"),
            (json!({"regex": null}), "not-one-member", "has 0 fields"),
            (
                json!({"regex": "a", "lark": "b"}),
                "not-one-member",
                "exactly one of `json_schema`",
            ),
            (
                json!({"schema": {}}),
                "unknown-field",
                "`constraint.schema` is unknown; expected `json_schema`",
            ),
            (
                json!({"json_schema": "{}"}),
                "wrong-type",
                "`constraint.json_schema` is a string; expected a JSON schema",
            ),
            (
                json!({"json_object": {}}),
                "wrong-type",
                "`constraint.json_object` is an object; expected true",
            ),
            (
                json!({"json_object": false}),
                "out-of-range",
                "`constraint.json_object` is false",
            ),
            (
                json!({"regex": 1}),
                "wrong-type",
                "`constraint.regex` is a number; expected a string",
            ),
            (
                json!({"gbnf": ["a"]}),
                "wrong-type",
                "`constraint.gbnf` is a list",
            ),
        ] {
            let problem = read(value.clone()).unwrap_err();
            assert_eq!((problem.status(), problem.code()), (400, code), "{value}");
            assert!(problem.to_string().contains(detail), "{value}: {}", problem);
        }
    }
}
