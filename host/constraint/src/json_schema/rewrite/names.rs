//! `propertyNames` and `unevaluatedProperties`, expressed by the names and patterns of properties.

use super::super::negate::{Context, listed_values, resolve};
use super::{CONDITIONAL, Outcome, Rewriter};
use crate::regex;
use serde_json::{Map, Value, json};

impl Rewriter<'_> {
    pub(super) fn property_names(&mut self, names: &Value, context: &Context<'_>) -> Outcome {
        // llguidance needs patterns that exclude each other.
        let has_patterns = context
            .iter()
            .any(|schema| schema.contains_key("patternProperties"));
        let part = match has_patterns {
            true => None,
            false => allowed_names(self.root, names),
        };
        self.express(part, context, || {
            "the keyword propertyNames is supported only with one of enum, const, pattern and lengths, \
             and without patternProperties"
                .into()
        })
    }

    /// The properties and patterns that a schema evaluates whatever the value is.
    pub(super) fn evaluated(
        &mut self,
        object: &Map<String, Value>,
        references: usize,
    ) -> Option<(Map<String, Value>, Map<String, Value>)> {
        let is_conditional =
            |keyword: &str| CONDITIONAL.contains(&keyword) || keyword == "additionalProperties";
        let names = ["properties", "patternProperties"].map(|keyword| object.get(keyword));
        let names = names.into_iter().flatten().filter_map(Value::as_object);
        let work = names.map(|names| 1 + names.len()).sum::<usize>() + 1;
        self.work = self.work.saturating_sub(work);
        if self.work == 0 || references > 8 || object.keys().any(|keyword| is_conditional(keyword))
        {
            return None;
        }
        let all = |keyword| {
            let names = object.get(keyword).and_then(Value::as_object);
            let names = names.into_iter().flat_map(Map::keys);
            names
                .map(|name| (name.clone(), Value::Bool(true)))
                .collect()
        };
        let (mut names, mut patterns): (Map<_, _>, Map<_, _>) =
            (all("properties"), all("patternProperties"));
        let parts = object.get("allOf").and_then(Value::as_array);
        let target = match object.get("$ref") {
            Some(reference) => Some(resolve(self.root, reference)?),
            None => None,
        };
        for part in parts.into_iter().flatten().chain(target) {
            let Some(part) = part.as_object() else {
                continue;
            };
            let (more, more_patterns) = self.evaluated(part, references + 1)?;
            names.extend(more);
            patterns.extend(more_patterns);
        }
        Some((names, patterns))
    }
}

/// A schema of objects whose names satisfy a schema.
fn allowed_names(root: &Value, names: &Value) -> Option<Value> {
    let object = match names {
        Value::Bool(true) => return Some(Value::Bool(true)),
        Value::Bool(false) => return Some(json!({ "additionalProperties": false })),
        other => other.as_object()?,
    };
    if let (1, Some(reference)) = (object.len(), object.get("$ref")) {
        let target = resolve(root, reference)?;
        return match target.get("$ref") {
            None => allowed_names(root, target),
            Some(_) => None,
        };
    }
    const ANNOTATIONS: [&str; 5] = ["title", "description", "$comment", "examples", "default"];
    let mut constraints = object
        .iter()
        .filter(|(keyword, _)| !ANNOTATIONS.contains(&keyword.as_str()))
        .filter(|(keyword, value)| *keyword != "type" || *value != "string");
    let lengths = |keyword: &str| keyword == "minLength" || keyword == "maxLength";
    let pattern = match constraints.clone().count() {
        0 => return Some(Value::Bool(true)),
        _ if constraints.clone().all(|(keyword, _)| lengths(keyword)) => {
            let length = |keyword| object.get(keyword).and_then(Value::as_u64);
            let least = length("minLength").unwrap_or(0);
            let most = length("maxLength").map_or(String::new(), |most| most.to_string());
            format!("^(?s:.{{{least},{most}}})$")
        }
        1 => match constraints.next()? {
            (keyword, Value::String(pattern)) if keyword == "pattern" => pattern.clone(),
            (keyword, _) if keyword == "const" || keyword == "enum" => {
                let names = listed_values(object)?.into_iter().filter_map(Value::as_str);
                let names = names.map(|name| (name.to_owned(), Value::Bool(true)));
                let names = Value::Object(names.collect());
                return Some(json!({ "properties": names, "additionalProperties": false }));
            }
            _ => return None,
        },
        _ => return None,
    };
    regex::check(&pattern, regex::Anchors::Allowed).ok()?;
    Some(json!({ "patternProperties": { pattern: true }, "additionalProperties": false }))
}
