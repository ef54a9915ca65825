//! Where a fault lies that was found when a schema was compiled.

use super::super::place::split;
use super::pointer;
use llguidance::api::ParserLimits;
use llguidance::{GrammarBuilder, JsonCompileOptions};
use serde_json::{Value, json};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

/// How long the search for a fault may take.
const SEARCH: Duration = Duration::from_millis(500);

/// What `llguidance` found wrong with a schema that passed [`read`], and where: it is compiled in
/// parts, from the outside in, and the innermost one that fails is named.
pub fn explain(schema: &Value, message: &str) -> String {
    let until = Instant::now() + SEARCH;
    // Only what the schema is at fault for is found again without the lexer.
    let Some(mut what) = fault(schema, &[]) else {
        return words(message);
    };
    let mut path: Vec<String> = Vec::new();
    let mut place = schema;
    // Where references led, so that none is followed in circles.
    let mut seen: Vec<Vec<String>> = Vec::new();
    'deeper: while Instant::now() < until {
        for (steps, inner) in children(place) {
            let mut candidate = path.clone();
            candidate.extend(steps);
            if Instant::now() >= until {
                break;
            }
            if let Some(found) = fault(schema, &candidate) {
                what = found;
                path = candidate;
                place = inner;
                if let Some((target, defined)) = referred(schema, place)
                    && !seen.contains(&target)
                    && let Some(found) = fault(schema, &target)
                {
                    seen.push(target.clone());
                    what = found;
                    path = target;
                    place = defined;
                }
                continue 'deeper;
            }
        }
        break;
    }
    format!("at {}: {}", pointer(&path), words(&what))
}

/// Where a schema's reference leads.
fn referred<'a>(root: &'a Value, schema: &Value) -> Option<(Vec<String>, &'a Value)> {
    let path = schema.get("$ref")?.as_str()?.strip_prefix('#')?;
    let steps = path.split('/').skip(1).map(str::to_owned).collect();
    Some((steps, root.pointer(path)?))
}

/// The schemas right inside of a schema, each with the steps that lead there.
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
    // An unused definition does no harm.
    found.retain(|(_, inner)| inner.is_object());
    found
}

/// What is wrong with the schema at a path alone, if anything is.
fn fault(schema: &Value, path: &[String]) -> Option<String> {
    let mut part = schema;
    for step in path {
        part = match part {
            Value::Array(items) => items.get(step.parse::<usize>().ok()?)?,
            other => other.get(step)?,
        };
    }
    // References go on meaning what they mean in the whole schema, which stands beside.
    let mut alone = moved(part);
    alone.as_object_mut()?.insert(WHOLE.into(), moved(schema));
    let builder = GrammarBuilder::new(None, ParserLimits::default());
    catch_unwind(AssertUnwindSafe(|| {
        JsonCompileOptions::default().json_to_llg(builder, alone)
    }))
    .ok()?
    .err()
    .map(|error| error.to_string())
}

/// Where the whole schema stands while a part of it is compiled; no keyword, so nothing is made of it.
const WHOLE: &str = "whole-schema";

/// A schema with its references turned to where the whole schema stands.
fn moved(schema: &Value) -> Value {
    match schema {
        Value::Array(items) => items.iter().map(moved).collect(),
        Value::Object(object) => {
            let turned = object.iter().map(|(key, value)| {
                let turned = match value {
                    Value::String(text) if key == "$ref" => match text.strip_prefix('#') {
                        Some(rest) => json!(format!("#/{WHOLE}{}", rest.trim_end_matches('/'))),
                        None => value.clone(),
                    },
                    other => moved(other),
                };
                (key.clone(), turned)
            });
            Value::Object(turned.collect())
        }
        other => other.clone(),
    }
}

/// A message of `llguidance` in words that mean something to who wrote the schema.
fn words(message: &str) -> String {
    let what = split(message).1;
    if what.starts_with("oneOf constraints are not supported") {
        return "oneOf is supported only where its options differ in type, in a constant or in a \
                required property with a constant; use anyOf"
            .into();
    }
    if let Some(rest) = what.strip_prefix("Unsatisfiable schema: ") {
        return format!("no value can fit: {rest}");
    }
    what.into()
}
