//! Schemas for the values that another schema refuses.

use super::pattern;
use serde_json::{Map, Value, json};

/// Schemas that hold for the same value, the innermost last.
pub type Context<'c> = [&'c Map<String, Value>];

pub const TYPES: [&str; 6] = ["null", "boolean", "number", "string", "array", "object"];

/// References followed in a chain.
const MAX_REFERENCES: usize = 8;
/// Numbers that a negated `enum` may list: each splits the range.
const MAX_NUMBERS: usize = 64;
/// Integers up to this one are exact as floating-point numbers.
const MAX_EXACT: f64 = 9_007_199_254_740_991.0;

/// Keywords that constrain values and that no schema without `not` negates.
const NOT_NEGATED: [&str; 28] = [
    "pattern",
    "format",
    "multipleOf",
    "items",
    "prefixItems",
    "additionalItems",
    "uniqueItems",
    "minContains",
    "maxContains",
    "patternProperties",
    "additionalProperties",
    "propertyNames",
    "minProperties",
    "maxProperties",
    "dependencies",
    "dependentRequired",
    "dependentSchemas",
    "unevaluatedItems",
    "unevaluatedProperties",
    "if",
    "then",
    "else",
    "oneOf",
    "$dynamicRef",
    "$dynamicAnchor",
    "$recursiveRef",
    "$recursiveAnchor",
    "x-guidance",
];

/// A schema that accepts what any of some schemas accepts.
pub fn any_of(options: Vec<Value>) -> Value {
    let mut kept: Vec<Value> = options
        .into_iter()
        .filter(|option| *option != Value::Bool(false))
        .collect();
    match kept.len() {
        0 => Value::Bool(false),
        1 => kept.remove(0),
        _ if kept.contains(&Value::Bool(true)) => Value::Bool(true),
        _ => json!({ "anyOf": kept }),
    }
}

/// A schema that accepts what all of some schemas accept.
pub fn all_of(parts: Vec<Value>) -> Value {
    if parts.contains(&Value::Bool(false)) {
        return Value::Bool(false);
    }
    let mut kept: Vec<Value> = parts
        .into_iter()
        .filter(|part| *part != Value::Bool(true))
        .collect();
    match kept.len() {
        0 => Value::Bool(true),
        1 => kept.remove(0),
        _ => json!({ "allOf": kept }),
    }
}

/// The schema that a reference names, through further references.
pub fn resolve<'a>(root: &'a Value, reference: &Value) -> Option<&'a Value> {
    let mut target = root.pointer(target_path(reference)?)?;
    for _ in 0..MAX_REFERENCES {
        match target.as_object() {
            Some(object) if object.len() == 1 && object.contains_key("$ref") => {
                target = root.pointer(target_path(&object["$ref"])?)?;
            }
            _ => return Some(target),
        }
    }
    None
}

fn target_path(reference: &Value) -> Option<&str> {
    let path = reference.as_str()?.strip_prefix('#')?;
    Some(path.trim_end_matches('/'))
}

/// The context of a schema within another: itself and what it refers to.
pub fn extend<'c>(
    root: &'c Value,
    outer: &Context<'c>,
    object: &'c Map<String, Value>,
) -> Vec<&'c Map<String, Value>> {
    let mut context = outer.to_vec();
    context.push(object);
    let target = object.get("$ref");
    let target = target.and_then(|reference| resolve(root, reference));
    context.extend(target.and_then(Value::as_object));
    context
}

/// The types that a value in this context may have, if a schema says so. An integer is a number.
pub fn types(context: &Context<'_>) -> Option<Vec<&'static str>> {
    let given = context.iter().find_map(|schema| schema.get("type"))?;
    Some(listed_types(given))
}

fn listed_types(given: &Value) -> Vec<&'static str> {
    let one = std::slice::from_ref(given);
    let given = given.as_array().map_or(one, Vec::as_slice);
    let is = |wanted: &str| given.iter().any(|one| one.as_str() == Some(wanted));
    TYPES
        .into_iter()
        .filter(|one| is(one) || *one == "number" && is("integer"))
        .collect()
}

/// The values that a schema lists.
pub fn listed_values(schema: &Map<String, Value>) -> Option<Vec<&Value>> {
    match (schema.get("const"), schema.get("enum")) {
        (Some(value), _) => Some(vec![value]),
        (None, Some(values)) => Some(values.as_array()?.iter().collect()),
        (None, None) => None,
    }
}

/// Whether two values are equal as JSON; numbers compare by value.
pub fn equal(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Number(a), Value::Number(b)) => a == b || a.as_f64() == b.as_f64(),
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

/// A schema for the other values of this context; `None` if no schema without `not` has exactly these,
/// or only one that takes more than `work`, from which it subtracts.
pub fn negate(
    root: &Value,
    schema: &Value,
    context: &Context<'_>,
    work: &mut usize,
) -> Option<Value> {
    Negation { root, work }.not(schema, context, 0)
}

struct Negation<'a> {
    root: &'a Value,
    /// Steps that may still be taken.
    work: &'a mut usize,
}

impl Negation<'_> {
    fn take(&mut self, steps: usize) -> Option<()> {
        match self.work.checked_sub(steps) {
            Some(left) => *self.work = left,
            None => {
                *self.work = 0;
                return None;
            }
        }
        Some(())
    }

    /// Takes the steps for comparing each of two lists with each of the other.
    fn take_pairs(&mut self, one: usize, other: usize) -> Option<()> {
        self.take(1 + (one + other) / 8 + one.saturating_mul(other) / 64)
    }

    fn not(&mut self, schema: &Value, context: &Context<'_>, references: usize) -> Option<Value> {
        self.take(1)?;
        let object = match schema {
            Value::Bool(accepts) => return Some(Value::Bool(!accepts)),
            other => other.as_object()?,
        };
        // Another value breaks at least one keyword.
        let mut options = Vec::new();
        for (keyword, value) in object {
            let option = match keyword.as_str() {
                "type" => self.not_types(value, context)?,
                "const" => self.not_values(&[value], context)?,
                "enum" => self.not_values(&Vec::from_iter(value.as_array()?), context)?,
                "minimum" if !object.contains_key("exclusiveMinimum") => {
                    typed("number", json!({ "exclusiveMaximum": value }), context)
                }
                "maximum" if !object.contains_key("exclusiveMaximum") => {
                    typed("number", json!({ "exclusiveMinimum": value }), context)
                }
                "exclusiveMinimum" if value.is_number() && !object.contains_key("minimum") => {
                    typed("number", json!({ "maximum": value }), context)
                }
                "exclusiveMaximum" if value.is_number() && !object.contains_key("maximum") => {
                    typed("number", json!({ "minimum": value }), context)
                }
                "minimum" | "maximum" | "exclusiveMinimum" | "exclusiveMaximum" => return None,
                "minLength" => fewer("string", "maxLength", value, context)?,
                "maxLength" => more("string", "minLength", value, context)?,
                "minItems" => fewer("array", "maxItems", value, context)?,
                "maxItems" => more("array", "minItems", value, context)?,
                "contains" => {
                    let items = self.not(value, &[], references)?;
                    typed("array", json!({ "items": items }), context)
                }
                "required" => {
                    let names = value.as_array()?.iter().filter_map(Value::as_str);
                    let required = context.iter().filter_map(|schema| schema.get("required"));
                    let required = required.filter_map(Value::as_array).flatten();
                    let required = Vec::from_iter(required.filter_map(Value::as_str));
                    self.take_pairs(value.as_array()?.len(), required.len())?;
                    let is_required = |name: &str| required.contains(&name);
                    let absent = names.filter(|name| !is_required(name)).map(|name| {
                        typed("object", json!({ "properties": { name: false } }), context)
                    });
                    any_of(absent.collect())
                }
                "properties" => self.not_properties(value.as_object()?, context, references)?,
                "allOf" => {
                    let parts = value.as_array()?.iter();
                    let parts = parts.map(|part| self.not(part, context, references));
                    any_of(parts.collect::<Option<_>>()?)
                }
                "anyOf" => {
                    let options = value.as_array()?.iter();
                    let options = options.map(|option| self.not(option, context, references));
                    all_of(options.collect::<Option<_>>()?)
                }
                "not" => value.clone(),
                "$ref" if references < MAX_REFERENCES => {
                    let target = resolve(self.root, value)?;
                    self.not(target, context, references + 1)?
                }
                "$ref" => return None,
                other if NOT_NEGATED.contains(&other) => return None,
                // An annotation.
                _ => continue,
            };
            options.push(option);
        }
        Some(any_of(options))
    }

    fn not_types(&self, value: &Value, context: &Context<'_>) -> Option<Value> {
        let refused = listed_types(value);
        let mut rest = TYPES.to_vec();
        if let Some(types) = types(context) {
            rest.retain(|one| types.contains(one));
        }
        // `integer` leaves the other numbers.
        let is_whole = refused.contains(&"number")
            && value != "number"
            && !value
                .as_array()
                .is_some_and(|types| types.iter().any(|one| one == "number"));
        if is_whole && rest.contains(&"number") {
            let given = context.iter().find_map(|schema| schema.get("type"));
            let has_others = given.is_none_or(|types| {
                types == "number"
                    || types
                        .as_array()
                        .is_some_and(|types| types.iter().any(|one| one == "number"))
            });
            if has_others {
                return None;
            }
        }
        rest.retain(|one| !refused.contains(one));
        Some(match rest.len() {
            0 => Value::Bool(false),
            _ => json!({ "type": rest }),
        })
    }

    /// The values other than these.
    fn not_values(&mut self, refused: &[&Value], context: &Context<'_>) -> Option<Value> {
        let allowed = context.iter().find_map(|schema| listed_values(schema));
        self.take_pairs(refused.len(), allowed.as_ref().map_or(0, Vec::len))?;
        if let Some(allowed) = allowed {
            let left = allowed
                .into_iter()
                .filter(|value| !refused.iter().any(|refused| equal(value, refused)));
            let left: Vec<_> = left.collect();
            return Some(match left.len() {
                0 => Value::Bool(false),
                _ => json!({ "enum": left }),
            });
        }
        let mut whole = Vec::new();
        let mut options = Vec::new();
        for one in types(context).unwrap_or(TYPES.to_vec()) {
            let refused = refused.iter().filter(|value| type_of(value) == one);
            let refused: Vec<&Value> = refused.copied().collect();
            match one {
                _ if refused.is_empty() => whole.push(one),
                "null" => {}
                "boolean" => {
                    let left = [false, true].map(Value::Bool).into_iter();
                    let left: Vec<_> = left.filter(|value| !refused.contains(&value)).collect();
                    if !left.is_empty() {
                        options.push(json!({ "enum": left }));
                    }
                }
                "number" => options.extend(not_numbers(&refused)?),
                "string" => {
                    let words: Vec<_> = refused.iter().filter_map(|value| value.as_str()).collect();
                    let pattern = pattern::other_than(&words, &[])?;
                    options.push(json!({ "type": "string", "pattern": pattern }));
                }
                _ => return None,
            }
        }
        if !whole.is_empty() {
            options.push(json!({ "type": whole }));
        }
        Some(any_of(options))
    }

    fn not_properties(
        &mut self,
        properties: &Map<String, Value>,
        context: &Context<'_>,
        references: usize,
    ) -> Option<Value> {
        let mut options = Vec::new();
        for (name, schema) in properties {
            let beside = context.iter().filter_map(|outer| {
                let properties = outer.get("properties")?.as_object()?;
                properties.get(name)?.as_object()
            });
            let beside: Vec<_> = beside.collect();
            let context_of_member: Vec<_> = beside
                .into_iter()
                .flat_map(|schema| extend(self.root, &[], schema))
                .collect();
            let other = self.not(schema, &context_of_member, references)?;
            if other == Value::Bool(false) {
                continue;
            }
            let mut members = Map::new();
            members.insert(name.clone(), other);
            let constraint = json!({ "properties": members, "required": [name] });
            options.push(typed("object", constraint, context));
        }
        Some(any_of(options))
    }
}

/// Adds a type to a constraint, which other types would satisfy.
fn typed(wanted: &str, constraint: Value, context: &Context<'_>) -> Value {
    if types(context).is_some_and(|types| !types.contains(&wanted)) {
        return Value::Bool(false);
    }
    let mut schema = Map::new();
    schema.insert("type".into(), wanted.into());
    schema.extend(constraint.as_object().cloned().unwrap_or_default());
    schema.into()
}

fn fewer(wanted: &str, keyword: &str, least: &Value, context: &Context<'_>) -> Option<Value> {
    Some(match least.as_u64()?.checked_sub(1) {
        Some(most) => typed(wanted, json!({ keyword: most }), context),
        None => Value::Bool(false),
    })
}

fn more(wanted: &str, keyword: &str, most: &Value, context: &Context<'_>) -> Option<Value> {
    let least = most.as_u64()?.checked_add(1)?;
    Some(typed(wanted, json!({ keyword: least }), context))
}

fn type_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

/// The ranges between these numbers.
fn not_numbers(refused: &[&Value]) -> Option<Vec<Value>> {
    let numbers = refused.iter().map(|value| value.as_f64());
    let mut numbers = numbers.collect::<Option<Vec<_>>>()?;
    if numbers.len() > MAX_NUMBERS || numbers.iter().any(|number| number.abs() > MAX_EXACT) {
        return None;
    }
    numbers.sort_by(f64::total_cmp);
    numbers.dedup();
    let low = std::iter::once(None).chain(numbers.iter().map(Some));
    let high = numbers.iter().map(Some).chain(std::iter::once(None));
    let ranges = low.zip(high).map(|(low, high)| {
        let mut range = Map::new();
        range.insert("type".into(), "number".into());
        range.extend(low.map(|low| ("exclusiveMinimum".into(), json!(low))));
        range.extend(high.map(|high| ("exclusiveMaximum".into(), json!(high))));
        range.into()
    });
    Some(ranges.collect())
}
