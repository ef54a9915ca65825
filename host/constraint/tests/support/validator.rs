//! A validator of JSON Schema that is independent of grammars. It knows the keywords that tests and Corral's documents use,
//! and panics at others, so that nothing is left unchecked. (The crate `jsonschema` does not build beside the workspace's
//! own `ahash`.)

use regex_lite::Regex;
use serde_json::{Map, Value, json};

/// Validates a value against a schema; the error says where it fails.
pub fn validate(schema: &Value, value: &Value) -> Result<(), String> {
    validate_part(schema, schema, value)
}

/// The same with a schema of the document `root`, in which references are found.
pub fn validate_part(root: &Value, schema: &Value, value: &Value) -> Result<(), String> {
    fits(root, schema, value, "")
}

fn fits(root: &Value, schema: &Value, value: &Value, at: &str) -> Result<(), String> {
    let wrong = |why: String| Err(format!("at {at:?}: {value} {why}"));
    let object = match schema {
        Value::Bool(true) => return Ok(()),
        Value::Object(object) => object,
        _ => return wrong("may not be here".into()),
    };
    members(root, object, value, at)?;
    for (keyword, wanted) in object {
        let fine = match keyword.as_str() {
            "$defs"
            | "properties"
            | "required"
            | "additionalProperties"
            | "patternProperties"
            | "prefixItems"
            | "then"
            | "else"
            | "$schema"
            | "default"
            | "description"
            | "title"
            | "x" => true,
            "not" => fits(root, wanted, value, at).is_err(),
            "allOf" => {
                for part in wanted.as_array().expect("an array") {
                    fits(root, part, value, at)?;
                }
                true
            }
            "oneOf" => {
                let options = wanted.as_array().expect("an array").iter();
                options
                    .filter(|option| fits(root, option, value, at).is_ok())
                    .count()
                    == 1
            }
            "if" => {
                let is_true = fits(root, wanted, value, at).is_ok();
                let branch = if is_true { "then" } else { "else" };
                if let Some(branch) = object.get(branch) {
                    fits(root, branch, value, at)?;
                }
                true
            }
            "contains" => value.as_array().is_none_or(|items| {
                items
                    .iter()
                    .any(|item| fits(root, wanted, item, at).is_ok())
            }),
            "uniqueItems" => value.as_array().is_none_or(|items| {
                let mut before = items.iter().enumerate();
                !before.any(|(index, item)| items[..index].iter().any(|one| equal(one, item)))
            }),
            "propertyNames" => {
                for name in value.as_object().into_iter().flat_map(Map::keys) {
                    fits(root, wanted, &json!(name), at)?;
                }
                true
            }
            "dependentRequired" | "dependentSchemas" => {
                for (name, then) in wanted.as_object().expect("an object") {
                    if value.get(name).is_none() {
                        continue;
                    }
                    let then = match then {
                        Value::Array(_) => &json!({ "type": "object", "required": then }),
                        schema => schema,
                    };
                    fits(root, then, value, at)?;
                }
                true
            }
            "format" => text_of_format(wanted, value),
            "$ref" => {
                let path = wanted.as_str().expect("a string").trim_start_matches('#');
                fits(root, root.pointer(path).expect("it is defined"), value, at)?;
                true
            }
            "anyOf" => {
                let options = wanted.as_array().expect("an array");
                options
                    .iter()
                    .any(|option| fits(root, option, value, at).is_ok())
            }
            "const" => equal(wanted, value),
            "enum" => {
                let values = wanted.as_array().expect("an array");
                values.iter().any(|wanted| equal(wanted, value))
            }
            "type" => match wanted {
                Value::Array(types) => types.iter().any(|wanted| is(wanted, value)),
                wanted => is(wanted, value),
            },
            "items" => {
                elements(root, object, value, at)?;
                true
            }
            "minItems" => value
                .as_array()
                .is_none_or(|items| items.len() >= number(wanted) as usize),
            "maxItems" => value
                .as_array()
                .is_none_or(|items| items.len() <= number(wanted) as usize),
            "minLength" => length(value).is_none_or(|length| length >= number(wanted) as usize),
            "maxLength" => length(value).is_none_or(|length| length <= number(wanted) as usize),
            "minimum" => value.as_f64().is_none_or(|value| value >= number(wanted)),
            "maximum" => value.as_f64().is_none_or(|value| value <= number(wanted)),
            "exclusiveMinimum" => value.as_f64().is_none_or(|value| value > number(wanted)),
            "exclusiveMaximum" => value.as_f64().is_none_or(|value| value < number(wanted)),
            "pattern" => value
                .as_str()
                .is_none_or(|text| pattern(wanted).is_match(text)),
            other => unreachable!("no schema has {other}"),
        };
        if !fine {
            return wrong(format!("breaks {keyword}: {wanted}"));
        }
    }
    Ok(())
}

/// Whether a text is a JSON pointer. No test has other formats, except those of numbers, which restrict nothing.
fn text_of_format(wanted: &Value, value: &Value) -> bool {
    if wanted.as_str().is_some_and(|name| name.starts_with("uint")) {
        return true;
    }
    assert_eq!(wanted, "json-pointer");
    value.as_str().is_none_or(|text| {
        let escapes = text.split('~').skip(1);
        (text.is_empty() || text.starts_with('/'))
            && escapes.into_iter().all(|rest| rest.starts_with(['0', '1']))
    })
}

fn pattern(wanted: &Value) -> Regex {
    Regex::new(wanted.as_str().expect("a string")).expect("a valid pattern")
}

fn number(value: &Value) -> f64 {
    value.as_f64().expect("a number")
}

fn length(value: &Value) -> Option<usize> {
    value.as_str().map(|text| text.chars().count())
}

fn is(wanted: &Value, value: &Value) -> bool {
    match wanted.as_str().expect("a type") {
        "null" => value.is_null(),
        "boolean" => value.is_boolean(),
        "integer" => value.as_f64().is_some_and(|value| value.fract() == 0.0),
        "number" => value.is_number(),
        "string" => value.is_string(),
        "array" => value.is_array(),
        "object" => value.is_object(),
        other => unreachable!("{other} is no type"),
    }
}

fn members(
    root: &Value,
    schema: &Map<String, Value>,
    value: &Value,
    at: &str,
) -> Result<(), String> {
    let Value::Object(value) = value else {
        return Ok(());
    };
    let schemas = |keyword| {
        schema
            .get(keyword)
            .and_then(Value::as_object)
            .into_iter()
            .flatten()
    };
    for (name, member) in value {
        let mut is_known = false;
        for (property, schema) in schemas("properties").filter(|(property, _)| *property == name) {
            is_known = true;
            fits(root, schema, member, &format!("{at}/{property}"))?;
        }
        for (text, schema) in schemas("patternProperties") {
            if pattern(&json!(text)).is_match(name) {
                is_known = true;
                fits(root, schema, member, &format!("{at}/{name}"))?;
            }
        }
        if let (false, Some(schema)) = (is_known, schema.get("additionalProperties")) {
            fits(root, schema, member, &format!("{at}/{name}"))?;
        }
    }
    let required = schema.get("required").and_then(Value::as_array);
    for name in required.into_iter().flatten().filter_map(Value::as_str) {
        if !value.contains_key(name) {
            return Err(format!("at {at:?}: no member {name:?}"));
        }
    }
    Ok(())
}

fn elements(
    root: &Value,
    schema: &Map<String, Value>,
    value: &Value,
    at: &str,
) -> Result<(), String> {
    let Value::Array(value) = value else {
        return Ok(());
    };
    let first = schema.get("prefixItems").and_then(Value::as_array);
    let first = first.map_or(&[][..], Vec::as_slice);
    for (index, element) in value.iter().enumerate() {
        let schema = first.get(index).unwrap_or(&schema["items"]);
        fits(root, schema, element, &format!("{at}/{index}"))?;
    }
    Ok(())
}

/// Whether two values are equal as JSON; numbers compare by value.
fn equal(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Number(a), Value::Number(b)) => a.as_f64() == b.as_f64(),
        (Value::Array(a), Value::Array(b)) => {
            a.len() == b.len() && a.iter().zip(b).all(|(a, b)| equal(a, b))
        }
        (Value::Object(a), Value::Object(b)) => {
            a.len() == b.len()
                && a.iter()
                    .all(|(name, a)| b.get(name).is_some_and(|b| equal(a, b)))
        }
        (a, b) => a == b,
    }
}
