//! Checks the form of JSON schemas before they are compiled, so that errors have a position.

use super::{kind, pointer};
use crate::llguidance_message::TextPosition;
use crate::{limits, regex};
use serde_json::{Map, Value};

const TYPES: [&str; 7] = [
    "null", "boolean", "integer", "number", "string", "array", "object",
];

/// Checks a schema's form and its limits.
pub fn check(schema: &Value) -> Result<(), String> {
    let mut check = SchemaCheck {
        root: schema,
        path: Vec::new(),
        properties: 0,
    };
    check.check_schema(schema, 1)
}

/// A visitor of every schema in a schema.
struct SchemaCheck<'a> {
    root: &'a Value,
    path: Vec<String>,
    /// Number of properties so far.
    properties: usize,
}

impl<'a> SchemaCheck<'a> {
    fn error<T>(&self, what: impl std::fmt::Display) -> Result<T, String> {
        Err(format!("at {}: {what}", pointer(&self.path)))
    }

    /// Checks something one step further down.
    fn within(
        &mut self,
        step: impl Into<String>,
        check: impl FnOnce(&mut Self) -> Result<(), String>,
    ) -> Result<(), String> {
        self.path.push(step.into());
        check(self)?;
        self.path.pop();
        Ok(())
    }

    /// Checks a schema whose value may be repeated this many times by the counts around it.
    fn check_schema(&mut self, schema: &'a Value, repetitions: u64) -> Result<(), String> {
        let Value::Object(object) = schema else {
            return match schema {
                Value::Bool(_) => Ok(()),
                other => self.error(format!(
                    "it is {}; a schema is an object or a boolean",
                    kind(other)
                )),
            };
        };
        let own_repetitions = match object.get("maxItems").or(object.get("minItems")) {
            Some(value) => value.as_u64().unwrap_or(1).max(1),
            None => 1,
        };
        self.check_optional_properties(object)?;
        for (keyword, value) in object {
            self.within(keyword, |check| {
                check.check_keyword(keyword, value, repetitions, own_repetitions)
            })?;
        }
        Ok(())
    }

    /// Checks a keyword of such a schema. `own_repetitions`: how often its `items` may be repeated.
    fn check_keyword(
        &mut self,
        keyword: &str,
        value: &'a Value,
        repetitions: u64,
        own_repetitions: u64,
    ) -> Result<(), String> {
        match keyword {
            "type" => self.check_types(value),
            "properties" | "patternProperties" | "$defs" | "definitions" | "dependentSchemas"
            | "dependencies" => {
                let Value::Object(schemas) = value else {
                    return self.error(format!("it is {}; it must be an object", kind(value)));
                };
                match keyword {
                    "properties" => self.properties += schemas.len(),
                    "patternProperties" => {
                        self.check_limit(
                            schemas.len(),
                            "patterns",
                            limits::MAX_PATTERN_PROPERTIES,
                        )?;
                    }
                    _ => {}
                }
                self.check_limit(
                    self.properties,
                    "properties with the objects before",
                    limits::MAX_PROPERTIES,
                )?;
                for (name, schema) in schemas {
                    self.within(name, |check| {
                        if keyword == "patternProperties" {
                            check.check_pattern(name)?;
                        }
                        if keyword == "dependencies" && schema.is_array() {
                            return check.check_names(schema);
                        }
                        check.check_schema(schema, repetitions)
                    })?;
                }
                Ok(())
            }
            "items" if value.is_array() => self.check_schemas(value, repetitions),
            "items" => self.check_schema(value, repetitions.saturating_mul(own_repetitions)),
            "additionalProperties"
            | "additionalItems"
            | "not"
            | "if"
            | "then"
            | "else"
            | "propertyNames"
            | "unevaluatedItems"
            | "unevaluatedProperties" => self.check_schema(value, repetitions),
            "uniqueItems" if !value.is_boolean() => {
                self.error(format!("it is {}; it must be a boolean", kind(value)))
            }
            "dependentRequired" => {
                let Value::Object(lists) = value else {
                    return self.error(format!("it is {}; it must be an object", kind(value)));
                };
                for (name, names) in lists {
                    self.within(name, |check| check.check_names(names))?;
                }
                Ok(())
            }
            "prefixItems" | "anyOf" | "oneOf" | "allOf" => self.check_schemas(value, repetitions),
            "required" => self.check_names(value),
            "enum" => match value {
                Value::Array(values) if !values.is_empty() => Ok(()),
                Value::Array(_) => self.error("it is empty, so it allows nothing"),
                other => self.error(format!("it is {}; it must be an array", kind(other))),
            },
            "minLength" | "maxLength" | "minItems" | "maxItems" | "minProperties"
            | "maxProperties" | "minContains" | "maxContains" => {
                self.check_count(value, repetitions)
            }
            "minimum" | "maximum" | "multipleOf" if !value.is_number() => {
                self.error(format!("it is {}; it must be a number", kind(value)))
            }
            "multipleOf" => self.check_multiple_of(value),
            "exclusiveMinimum" | "exclusiveMaximum"
                if !value.is_number() && !value.is_boolean() =>
            {
                self.error(format!("it is {}; it must be a number", kind(value)))
            }
            "pattern" => match value {
                Value::String(pattern) => self.check_pattern(pattern),
                other => self.error(format!("it is {}; it must be a string", kind(other))),
            },
            "format" if !value.is_string() => {
                self.error(format!("it is {}; it must be a string", kind(value)))
            }
            "$ref" => match value {
                Value::String(reference) => self.check_reference(reference),
                other => self.error(format!("it is {}; it must be a string", kind(other))),
            },
            _ => Ok(()),
        }
    }

    /// Refuses a number of things above a limit.
    fn check_limit(&self, number: usize, things: &str, max: usize) -> Result<(), String> {
        if number > max {
            return self.error(format!("it has {number} {things}; the maximum is {max}"));
        }
        Ok(())
    }

    fn check_optional_properties(&self, object: &Map<String, Value>) -> Result<(), String> {
        let length = |keyword| match object.get(keyword) {
            Some(Value::Object(properties)) => properties.len(),
            Some(Value::Array(names)) => names.len(),
            _ => 0,
        };
        if !object.contains_key("minProperties") {
            return Ok(());
        }
        self.check_limit(
            length("properties").saturating_sub(length("required")),
            "optional properties beside minProperties",
            limits::MAX_COUNTED_PROPERTIES,
        )
    }

    fn check_multiple_of(&self, value: &Value) -> Result<(), String> {
        // llguidance counts in 32 bits with all digits of the number.
        let mut digits = value.as_f64().unwrap_or(0.0).abs();
        let mut decimals = 0;
        while digits.fract() != 0.0 && decimals < limits::MAX_MULTIPLE_OF_DECIMALS {
            digits *= 10.0;
            decimals += 1;
        }
        if digits.fract() != 0.0 || digits > limits::MAX_MULTIPLE_OF {
            return self.error(format!(
                "{value} has too many digits; it may have at most {} decimals, and be at most {} \
                 without the point",
                limits::MAX_MULTIPLE_OF_DECIMALS,
                limits::MAX_MULTIPLE_OF
            ));
        }
        Ok(())
    }

    fn check_types(&mut self, value: &Value) -> Result<(), String> {
        let given: Vec<&Value> = match value {
            Value::Array(types) => types.iter().collect(),
            one => vec![one],
        };
        match given
            .into_iter()
            .find(|one| !one.as_str().is_some_and(|one| TYPES.contains(&one)))
        {
            Some(unknown) => self.error(format!(
                "{} is not a type; types are {}",
                clip(unknown),
                TYPES.join(", ")
            )),
            None => Ok(()),
        }
    }

    fn check_schemas(&mut self, value: &'a Value, repetitions: u64) -> Result<(), String> {
        let Value::Array(schemas) = value else {
            return self.error(format!(
                "it is {}; it must be an array of schemas",
                kind(value)
            ));
        };
        for (index, schema) in schemas.iter().enumerate() {
            self.within(index.to_string(), |check| {
                check.check_schema(schema, repetitions)
            })?;
        }
        Ok(())
    }

    fn check_names(&mut self, value: &Value) -> Result<(), String> {
        let names = value.as_array();
        if names.is_some_and(|names| names.iter().all(Value::is_string)) {
            return Ok(());
        }
        self.error("it must be an array of names")
    }

    fn check_count(&mut self, value: &Value, repetitions: u64) -> Result<(), String> {
        let Some(count) = value.as_u64() else {
            return self.error(format!(
                "{} is not a count; it must be an integer of 0 or more",
                clip(value)
            ));
        };
        let together = repetitions.saturating_mul(count.max(1));
        if together > limits::MAX_COUNT {
            return self.error(format!(
                "multiplied by the counts around it, it is {together}; the maximum is {}",
                limits::MAX_COUNT
            ));
        }
        Ok(())
    }

    fn check_pattern(&mut self, pattern: &str) -> Result<(), String> {
        match regex::check(pattern, regex::Anchors::Allowed) {
            Err(error) if !regex::is_valid_elsewhere(pattern) => {
                self.error(describe(pattern, &error))
            }
            _ => Ok(()),
        }
    }

    fn check_reference(&mut self, reference: &str) -> Result<(), String> {
        let Some(path) = reference.strip_prefix('#') else {
            return self.error(format!(
                "{reference:?} is outside the schema; only references that begin with # are supported"
            ));
        };
        if path.contains(['~', '%']) {
            return self.error(format!(
                "{reference:?}: references to names with escaped characters are not supported"
            ));
        }
        // As in llguidance, "#/" is the whole schema too.
        if !path.is_empty() && path != "/" && self.root.pointer(path).is_none() {
            return self.error(format!("the schema has nothing at {reference:?}"));
        }
        Ok(())
    }
}

/// An error in a pattern.
pub fn describe(pattern: &str, (offset, what): &regex::RegexError) -> String {
    let position = TextPosition::of(pattern, *offset);
    format!("in the pattern, {position}: {what}")
}

/// A value as JSON, truncated to a line.
fn clip(value: &Value) -> String {
    let text = value.to_string();
    match text.char_indices().nth(60) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}
