//! Checks JSON against the part of JSON Schema that Corral's own documents use. Panics at any other keyword, so
//! that nothing is left unchecked. (The crate `jsonschema` does not build beside the workspace's own `ahash`.)

use serde_json::Value;

/// Checks a value against a schema of the document `root`, in which references are found. The error says where the
/// value, whose path is `at`, does not match.
pub fn matches(root: &Value, schema: &Value, value: &Value, at: &str) -> Result<(), String> {
    let keywords = match schema {
        Value::Bool(true) => return Ok(()),
        Value::Object(keywords) => keywords,
        other => panic!("no schema: {other}"),
    };
    for (keyword, wanted) in keywords {
        keyword_matches(root, keywords, (keyword, wanted), value, at)?;
    }
    Ok(())
}

fn keyword_matches(
    root: &Value,
    schema: &serde_json::Map<String, Value>,
    (keyword, wanted): (&str, &Value),
    value: &Value,
    at: &str,
) -> Result<(), String> {
    let fail = |what: &str| Err(format!("{at}: {what} {wanted}"));
    let list = || wanted.as_array().expect("a list");
    let number = || wanted.as_f64().expect("a number");
    let items = || value.as_array().map(|items| items.len() as f64);
    match keyword {
        "description" | "title" | "default" | "format" | "$schema" | "$defs" => {}
        "$ref" => {
            let path = wanted.as_str().and_then(|path| path.strip_prefix('#'));
            let found = root.pointer(path.expect("a reference within the document"));
            matches(root, found.expect("a definition"), value, at)?;
        }
        "type" => {
            let kinds = match wanted {
                Value::Array(kinds) => kinds.iter().collect(),
                kind => vec![kind],
            };
            if !kinds
                .iter()
                .any(|kind| is_of(value, kind.as_str().expect("a kind")))
            {
                return fail("is not of the type");
            }
        }
        "const" if value != wanted => return fail("is not"),
        "enum" if !list().contains(value) => return fail("is none of"),
        "const" | "enum" => {}
        "minimum" if value.as_f64().is_some_and(|value| value < number()) => return fail(keyword),
        "maximum" if value.as_f64().is_some_and(|value| value > number()) => return fail(keyword),
        "minItems" if items().is_some_and(|items| items < number()) => return fail(keyword),
        "maxItems" if items().is_some_and(|items| items > number()) => return fail(keyword),
        "minimum" | "maximum" | "minItems" | "maxItems" => {}
        "pattern" => {
            let fits = pattern(wanted.as_str().expect("a pattern"));
            if value.as_str().is_some_and(|text| !fits(text)) {
                return fail("does not fit");
            }
        }
        "required" => {
            for name in list() {
                let name = name.as_str().expect("a name");
                if value.is_object() && value.get(name).is_none() {
                    return Err(format!("{at}: '{name}' is missing"));
                }
            }
        }
        "properties" => {
            for (name, schema) in wanted.as_object().expect("schemas by name") {
                if let Some(value) = value.get(name) {
                    matches(root, schema, value, &format!("{at}.{name}"))?;
                }
            }
        }
        "additionalProperties" => {
            let known = schema.get("properties").and_then(Value::as_object);
            let known = |name: &String| known.is_some_and(|known| known.contains_key(name));
            let others = value.as_object().into_iter().flatten();
            for (name, value) in others.filter(|(name, _)| !known(name)) {
                if *wanted == Value::Bool(false) {
                    return Err(format!("{at}: '{name}' is unknown"));
                }
                matches(root, wanted, value, &format!("{at}.{name}"))?;
            }
        }
        "items" => {
            for (index, item) in value.as_array().into_iter().flatten().enumerate() {
                matches(root, wanted, item, &format!("{at}[{index}]"))?;
            }
        }
        "oneOf" | "anyOf" => {
            let fitting = list()
                .iter()
                .filter(|schema| matches(root, schema, value, at).is_ok())
                .count();
            if fitting == 0 || (keyword == "oneOf" && fitting > 1) {
                return Err(format!("{at}: {fitting} of {wanted} fit"));
            }
        }
        other => panic!("the keyword '{other}' is not known to this test"),
    }
    Ok(())
}

fn is_of(value: &Value, kind: &str) -> bool {
    match kind {
        "null" => value.is_null(),
        "boolean" => value.is_boolean(),
        "string" => value.is_string(),
        "integer" => value.is_i64() || value.is_u64(),
        "number" => value.is_number(),
        "array" => value.is_array(),
        "object" => value.is_object(),
        other => panic!("no type: {other}"),
    }
}

/// The patterns of Corral's documents.
fn pattern(pattern: &str) -> fn(&str) -> bool {
    match pattern {
        "^sha256:[0-9a-f]{64}$" => |text| {
            let digits = text.strip_prefix("sha256:");
            digits.is_some_and(|digits| {
                digits.len() == 64 && digits.chars().all(|c| matches!(c, '0'..='9' | 'a'..='f'))
            })
        },
        "^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$" => |text| {
            let fits = |c: char| matches!(c, 'a'..='z' | '0'..='9' | '-');
            (1..=63).contains(&text.len())
                && text.chars().all(fits)
                && !text.starts_with('-')
                && !text.ends_with('-')
        },
        other => panic!("the pattern {other} is not known to this test"),
    }
}
