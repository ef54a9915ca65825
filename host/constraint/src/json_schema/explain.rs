//! Finds the part of a schema that an error of `llguidance` is about.

use crate::llguidance_message::split_position;
use llguidance::api::ParserLimits;
use llguidance::{GrammarBuilder, JsonCompileOptions};
use serde_json::{Value, json};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

const MAX_SEARCH_TIME: Duration = Duration::from_millis(500);

const UNSATISFIABLE: &str = "Unsatisfiable schema: ";

/// Where the whole schema stands while a part of it is compiled. No keyword, so it has no effect.
const WHOLE: &str = "whole-schema";

/// Finds the innermost part of a schema that `llguidance` refuses, and its message. Compiles parts of the
/// schema, from the outside in. `None` if it does not refuse the whole; errors that depend on the lexer
/// do not occur here.
pub fn locate(schema: &Value) -> Option<(Vec<String>, String)> {
    let deadline = Instant::now() + MAX_SEARCH_TIME;
    let mut what = compile_error(schema, &[])?;
    let mut path: Vec<String> = Vec::new();
    let mut part = schema;
    // The targets of references so far, so that none is followed in a cycle.
    let mut seen: Vec<Vec<String>> = Vec::new();
    'deeper: while Instant::now() < deadline {
        for (steps, inner) in children(part) {
            let mut candidate = path.clone();
            candidate.extend(steps);
            if Instant::now() >= deadline {
                break;
            }
            if let Some(found) = compile_error(schema, &candidate) {
                what = found;
                path = candidate;
                part = inner;
                if let Some((target, definition)) = reference(schema, part)
                    && !seen.contains(&target)
                    && let Some(found) = compile_error(schema, &target)
                {
                    seen.push(target.clone());
                    what = found;
                    path = target;
                    part = definition;
                }
                continue 'deeper;
            }
        }
        break;
    }
    Some((path, what))
}

/// The keywords that a message of `llguidance` refuses, though they are valid.
pub fn refused_keywords(what: &str) -> &'static [&'static str] {
    const REFUSED: [(&str, &[&str]); 4] = [
        ("oneOf constraints are not supported", &["oneOf"]),
        ("patternProperty regexes", &["patternProperties"]),
        (
            "min/maxProperties only supported",
            &["minProperties", "maxProperties"],
        ),
        ("circular references with sibling keys", &["$ref"]),
    ];
    let found = REFUSED.iter().find(|(words, _)| what.contains(words));
    found.map_or(&[], |(_, keywords)| keywords)
}

/// Whether a message of `llguidance` says that no value matches.
pub fn is_unsatisfiable(what: &str) -> bool {
    split_position(what).1.starts_with(UNSATISFIABLE)
}

/// The target of a schema's reference.
fn reference<'a>(root: &'a Value, schema: &Value) -> Option<(Vec<String>, &'a Value)> {
    let path = schema.get("$ref")?.as_str()?.strip_prefix('#')?;
    let steps = path.split('/').skip(1).map(str::to_owned).collect();
    Some((steps, root.pointer(path)?))
}

/// The schemas directly within a schema, each with the steps that lead there.
fn children(schema: &Value) -> Vec<(Vec<String>, &Value)> {
    let mut found = Vec::new();
    for (keyword, value) in schema.as_object().into_iter().flatten() {
        match keyword.as_str() {
            "properties" | "patternProperties" | "$defs" | "definitions" => {
                for (name, inner) in value.as_object().into_iter().flatten() {
                    found.push((vec![keyword.clone(), name.clone()], inner));
                }
            }
            "prefixItems" | "anyOf" | "oneOf" | "allOf" | "items" if value.is_array() => {
                for (index, inner) in value.as_array().into_iter().flatten().enumerate() {
                    found.push((vec![keyword.clone(), index.to_string()], inner));
                }
            }
            "items" | "additionalProperties" | "additionalItems" => {
                found.push((vec![keyword.clone()], value));
            }
            _ => {}
        }
    }
    found.retain(|(_, inner)| inner.is_object());
    found
}

/// The error of the part of a schema at a path, if compiling it alone fails.
pub fn compile_error(schema: &Value, path: &[String]) -> Option<String> {
    let mut part = schema;
    for step in path {
        part = match part {
            Value::Array(items) => items.get(step.parse::<usize>().ok()?)?,
            other => other.get(step)?,
        };
    }
    let mut alone = redirect(part);
    alone
        .as_object_mut()?
        .insert(WHOLE.into(), redirect(schema));
    let builder = GrammarBuilder::new(None, ParserLimits::default());
    catch_unwind(AssertUnwindSafe(|| {
        JsonCompileOptions::default().json_to_llg(builder, alone)
    }))
    .ok()?
    .err()
    .map(|error| error.to_string())
}

/// A schema with its references redirected into [`WHOLE`].
fn redirect(schema: &Value) -> Value {
    match schema {
        Value::Array(items) => items.iter().map(redirect).collect(),
        Value::Object(object) => {
            let redirected = object.iter().map(|(key, value)| {
                let value = match value {
                    Value::String(text) if key == "$ref" => match text.strip_prefix('#') {
                        Some(rest) => json!(format!("#/{WHOLE}{}", rest.trim_end_matches('/'))),
                        None => value.clone(),
                    },
                    other => redirect(other),
                };
                (key.clone(), value)
            });
            Value::Object(redirected.collect())
        }
        other => other.clone(),
    }
}

/// A message of `llguidance` in words that mean something to the author of a schema.
pub fn rephrase(message: &str) -> String {
    let what = split_position(message).1;
    if what.starts_with("oneOf constraints are not supported") {
        return "oneOf is supported only if its options differ in type, in a constant or in a \
                required property with a constant; use anyOf"
            .into();
    }
    if let Some(rest) = what.strip_prefix(UNSATISFIABLE) {
        return format!("no value matches: {rest}");
    }
    what.into()
}
