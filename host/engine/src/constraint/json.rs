//! JSON schemas: what is checked before they are compiled, so that a fault is named with its place.

mod fault;

pub use fault::explain;

use super::place::Place;
use super::{limits, regex};
use serde_json::{Map, Value, json};

/// What may stand between the parts of a value: a space, or a line break with an indentation. Not
/// more, so that a model can't fill its answer with blanks.
const BETWEEN: &str = r" |\r?\n[ \t]{0,64}";

/// Keywords that say something about values and are not supported; left unsaid they would be broken
/// in silence.
const UNSUPPORTED: [&str; 18] = [
    "not",
    "if",
    "then",
    "else",
    "contains",
    "minContains",
    "maxContains",
    "uniqueItems",
    "propertyNames",
    "dependencies",
    "dependentRequired",
    "dependentSchemas",
    "unevaluatedItems",
    "unevaluatedProperties",
    "$dynamicRef",
    "$dynamicAnchor",
    "$recursiveRef",
    "$recursiveAnchor",
];

/// Formats that llguidance knows.
const FORMATS: [&str; 11] = [
    "date-time",
    "time",
    "date",
    "duration",
    "email",
    "hostname",
    "ipv4",
    "ipv6",
    "uuid",
    "uri",
    "unknown",
];

const TYPES: [&str; 7] = [
    "null", "boolean", "integer", "number", "string", "array", "object",
];

/// The schema of any object.
pub fn any_object() -> Value {
    prepare(&json!({ "type": "object" }))
}

/// Adds to a checked schema how its values are written.
pub fn prepare(schema: &Value) -> Value {
    let mut object = match schema {
        Value::Object(object) => object.clone(),
        // `read` lets nothing through but an object and `true`.
        _ => Map::new(),
    };
    object.insert(
        "x-guidance".into(),
        json!({ "whitespace_pattern": BETWEEN }),
    );
    Value::Object(object)
}

/// Parses a schema and checks what can be checked without compiling it; the error says where.
pub fn read(text: &str) -> Result<Value, String> {
    let schema: Value = serde_json::from_str(text).map_err(|error| {
        let place = Place::at(error.line(), error.column());
        let message = error.to_string();
        let what = message.split(" at line ").next().unwrap_or(&message);
        format!("{place}: {what}")
    })?;
    match &schema {
        Value::Object(object) if object.contains_key("x-guidance") => {
            return Err("at /x-guidance: options of the grammar can't be given".into());
        }
        Value::Object(_) | Value::Bool(true) => {}
        Value::Bool(false) => return Err("at /: false allows no value at all".into()),
        other => {
            return Err(format!(
                "at /: it is {}; a schema is an object",
                kind(other)
            ));
        }
    }
    let mut check = Check {
        root: &schema,
        path: Vec::new(),
    };
    check.schema(&schema, 1)?;
    Ok(schema)
}

/// What a value is, in words.
fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "an array",
        Value::Object(_) => "an object",
    }
}

/// A step of a JSON pointer, escaped (RFC 6901).
fn escape(step: &str) -> String {
    step.replace('~', "~0").replace('/', "~1")
}

fn pointer(path: &[String]) -> String {
    if path.is_empty() {
        return "/".into();
    }
    path.iter()
        .map(|step| format!("/{}", escape(step)))
        .collect()
}

/// A walk over every schema in a schema.
struct Check<'a> {
    root: &'a Value,
    path: Vec<String>,
}

impl<'a> Check<'a> {
    fn wrong<T>(&self, what: impl std::fmt::Display) -> Result<T, String> {
        Err(format!("at {}: {what}", pointer(&self.path)))
    }

    /// Looks at something one step further down.
    fn within<T>(
        &mut self,
        step: impl Into<String>,
        look: impl FnOnce(&mut Self) -> Result<T, String>,
    ) -> Result<T, String> {
        self.path.push(step.into());
        let looked = look(self)?;
        self.path.pop();
        Ok(looked)
    }

    fn schema(&mut self, schema: &'a Value, count: u64) -> Result<(), String> {
        let Value::Object(object) = schema else {
            return match schema {
                Value::Bool(_) => Ok(()),
                other => self.wrong(format!(
                    "it is {}; a schema is an object or a boolean",
                    kind(other)
                )),
            };
        };
        let items = match object.get("maxItems").or(object.get("minItems")) {
            Some(value) => value.as_u64().unwrap_or(1).max(1),
            None => 1,
        };
        for (keyword, value) in object {
            self.within(keyword, |check| check.keyword(keyword, value, count, items))?;
        }
        Ok(())
    }

    fn keyword(
        &mut self,
        keyword: &str,
        value: &'a Value,
        count: u64,
        items: u64,
    ) -> Result<(), String> {
        if UNSUPPORTED.contains(&keyword) {
            return self.wrong(format!("the keyword {keyword} is not supported"));
        }
        match keyword {
            "type" => self.types(value),
            "properties" | "patternProperties" | "$defs" | "definitions" => {
                let Value::Object(schemas) = value else {
                    return self.wrong(format!("it is {}; it must be an object", kind(value)));
                };
                for (name, schema) in schemas {
                    self.within(name, |check| {
                        if keyword == "patternProperties" {
                            check.pattern(name)?;
                        }
                        check.schema(schema, count)
                    })?;
                }
                Ok(())
            }
            "items" if value.is_array() => self.schemas(value, count),
            "items" => self.schema(value, count.saturating_mul(items)),
            "additionalProperties" | "additionalItems" => self.schema(value, count),
            "prefixItems" | "anyOf" | "oneOf" | "allOf" => self.schemas(value, count),
            "required" => self.names(value),
            "enum" => match value {
                Value::Array(values) if !values.is_empty() => Ok(()),
                Value::Array(_) => self.wrong("it is empty, so nothing is allowed"),
                other => self.wrong(format!("it is {}; it must be an array", kind(other))),
            },
            "minLength" | "maxLength" | "minItems" | "maxItems" | "minProperties"
            | "maxProperties" => self.count(value, count),
            "minimum" | "maximum" | "multipleOf" if !value.is_number() => {
                self.wrong(format!("it is {}; it must be a number", kind(value)))
            }
            "exclusiveMinimum" | "exclusiveMaximum"
                if !value.is_number() && !value.is_boolean() =>
            {
                self.wrong(format!("it is {}; it must be a number", kind(value)))
            }
            "pattern" => match value {
                Value::String(pattern) => self.pattern(pattern),
                other => self.wrong(format!("it is {}; it must be a string", kind(other))),
            },
            "format" => match value.as_str() {
                Some(format) if FORMATS.contains(&format) => Ok(()),
                Some(format) => self.wrong(format!(
                    "the format {format:?} is not known; known are {}",
                    FORMATS.join(", ")
                )),
                None => self.wrong(format!("it is {}; it must be a string", kind(value))),
            },
            "$ref" => match value {
                Value::String(reference) => self.reference(reference),
                other => self.wrong(format!("it is {}; it must be a string", kind(other))),
            },
            _ => Ok(()),
        }
    }

    fn types(&mut self, value: &Value) -> Result<(), String> {
        let given: Vec<&Value> = match value {
            Value::Array(types) => types.iter().collect(),
            one => vec![one],
        };
        match given
            .into_iter()
            .find(|one| !one.as_str().is_some_and(|one| TYPES.contains(&one)))
        {
            Some(unknown) => self.wrong(format!(
                "{} is no type; types are {}",
                clip(unknown),
                TYPES.join(", ")
            )),
            None => Ok(()),
        }
    }

    fn schemas(&mut self, value: &'a Value, count: u64) -> Result<(), String> {
        let Value::Array(schemas) = value else {
            return self.wrong(format!(
                "it is {}; it must be an array of schemas",
                kind(value)
            ));
        };
        for (index, schema) in schemas.iter().enumerate() {
            self.within(index.to_string(), |check| check.schema(schema, count))?;
        }
        Ok(())
    }

    fn names(&mut self, value: &Value) -> Result<(), String> {
        let names = value.as_array();
        if names.is_some_and(|names| names.iter().all(Value::is_string)) {
            return Ok(());
        }
        self.wrong("it must be an array of names")
    }

    fn count(&mut self, value: &Value, around: u64) -> Result<(), String> {
        let Some(count) = value.as_u64() else {
            return self.wrong(format!(
                "{} is no count: a whole number from 0",
                clip(value)
            ));
        };
        let together = around.saturating_mul(count.max(1));
        if together > limits::MAX_COUNT {
            return self.wrong(format!(
                "with what is around it, it counts {together}; at most {} are taken",
                limits::MAX_COUNT
            ));
        }
        Ok(())
    }

    fn pattern(&mut self, pattern: &str) -> Result<(), String> {
        regex::check(pattern, regex::Anchors::Allowed).or_else(|(offset, what)| {
            self.wrong(format!(
                "in the pattern, {}: {what}",
                Place::of(pattern, offset)
            ))
        })
    }

    fn reference(&mut self, reference: &str) -> Result<(), String> {
        let Some(path) = reference.strip_prefix('#') else {
            return self.wrong(format!(
                "{reference:?} lies outside of the schema; only references that begin with # are supported"
            ));
        };
        if path.contains(['~', '%']) {
            return self.wrong(format!(
                "{reference:?}: names with escaped characters can't be referred to"
            ));
        }
        // As llguidance reads it: "#/" is the whole schema too.
        if !path.is_empty() && path != "/" && self.root.pointer(path).is_none() {
            return self.wrong(format!("there is nothing at {reference:?}"));
        }
        Ok(())
    }
}

/// A value as JSON, not longer than a line.
fn clip(value: &Value) -> String {
    let text = value.to_string();
    match text.char_indices().nth(60) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}
