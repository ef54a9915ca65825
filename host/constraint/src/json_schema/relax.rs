//! Removes keywords that llguidance refuses.

use serde_json::Value;

/// The part of a schema at a path.
pub fn at_mut<'v>(schema: &'v mut Value, path: &[String]) -> Option<&'v mut Value> {
    path.iter().try_fold(schema, |part, step| match part {
        Value::Array(items) => items.get_mut(step.parse::<usize>().ok()?),
        other => other.get_mut(step.as_str()),
    })
}

/// Removes keywords from a schema, or from the first one within it for the same value that has one;
/// `oneOf` becomes `anyOf`. Returns the removed ones.
pub fn remove(schema: &mut Value, keywords: &[&'static str]) -> Vec<&'static str> {
    let Value::Object(object) = schema else {
        return Vec::new();
    };
    let found = keywords.iter().copied();
    let found: Vec<_> = found
        .filter(|keyword| object.contains_key(*keyword))
        .collect();
    for &keyword in &found {
        let removed = object.shift_remove(keyword);
        match (keyword, removed) {
            ("oneOf", Some(options)) => {
                object.entry("anyOf").or_insert(options);
            }
            // Without the patterns, it would refuse what they accept.
            ("patternProperties", _) => {
                object.shift_remove("additionalProperties");
            }
            _ => {}
        }
    }
    if !found.is_empty() {
        return found;
    }
    for keyword in ["allOf", "anyOf", "oneOf"] {
        let parts = object.get_mut(keyword).and_then(Value::as_array_mut);
        for part in parts.into_iter().flatten() {
            let removed = remove(part, keywords);
            if !removed.is_empty() {
                return removed;
            }
        }
    }
    Vec::new()
}
