//! Expresses keywords that llguidance lacks by those that it has, where both mean exactly the same.
//!
//! A keyword that cannot be expressed is left out and listed. What is left out only ever accepts more:
//! every keyword that remains stands where accepting more within it accepts more outside.

use super::negate::{self, Context, all_of, any_of, listed_values, negate, resolve};
use super::{check, pattern};
use crate::{limits, regex};
use serde_json::{Map, Value, json};

/// Formats that llguidance supports.
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

/// Formats that are patterns.
const PATTERN_FORMATS: [(&str, &str); 2] = [
    ("json-pointer", "^(?:/(?:[^~/]|~[01])*)*$"),
    (
        "relative-json-pointer",
        "^(?:0|[1-9][0-9]*)(?:#|(?:/(?:[^~/]|~[01])*)*)$",
    ),
];

/// Keywords beside which it depends on the value which properties and items are evaluated.
const CONDITIONAL: [&str; 9] = [
    "anyOf",
    "oneOf",
    "if",
    "then",
    "else",
    "dependencies",
    "dependentSchemas",
    "$dynamicRef",
    "$recursiveRef",
];

/// A keyword that the grammar does not enforce.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ignored {
    pub path: Vec<String>,
    pub why: String,
}

/// A schema that llguidance can compile.
pub struct Rewritten {
    pub schema: Value,
    pub ignored: Vec<Ignored>,
}

/// Rewrites a checked schema. Without `express`, keywords that llguidance lacks are only left out.
pub fn rewrite(schema: &Value, express: bool) -> Rewritten {
    let mut rewriter = Rewriter {
        root: schema,
        path: Vec::new(),
        expressed: 0,
        ignored: Vec::new(),
        bytes: if express {
            limits::MAX_EXPRESSED_BYTES
        } else {
            0
        },
        work: if express {
            limits::MAX_EXPRESSION_WORK
        } else {
            0
        },
        alternatives: 1,
    };
    let schema = rewriter.schema(schema, &[]);
    Rewritten {
        schema,
        ignored: rewriter.ignored,
    }
}

/// What becomes of a keyword.
enum Outcome {
    Keep(Value),
    /// A schema that must hold as well stands in its place.
    Express(Value),
    /// It has no effect.
    Omit,
    /// It cannot be enforced, for this reason.
    Ignore(String),
}

struct Rewriter<'a> {
    root: &'a Value,
    path: Vec<String>,
    /// How many schemas in place of keywords are around; the path stays that of the outermost keyword.
    expressed: usize,
    ignored: Vec<Ignored>,
    /// Bytes that schemas in place of keywords may still have.
    bytes: usize,
    /// Steps that making them may still take.
    work: usize,
    /// The alternatives of the value, all `anyOf` in place of keywords multiplied.
    alternatives: usize,
}

impl Rewriter<'_> {
    fn within<T>(&mut self, step: &str, work: impl FnOnce(&mut Self) -> T) -> T {
        if self.expressed > 0 {
            return work(self);
        }
        self.path.push(step.to_owned());
        let result = work(self);
        self.path.pop();
        result
    }

    /// Rewrites a schema for another value than that of the schemas around.
    fn inner(&mut self, schema: &Value) -> Value {
        let alternatives = std::mem::replace(&mut self.alternatives, 1);
        let rewritten = self.schema(schema, &[]);
        self.alternatives = alternatives;
        rewritten
    }

    fn inner_map(&mut self, schemas: &Value) -> Value {
        let schemas = schemas.as_object().into_iter().flatten();
        let schemas = schemas
            .map(|(name, schema)| (name.clone(), self.within(name, |this| this.inner(schema))));
        Value::Object(schemas.collect())
    }

    fn schema(&mut self, schema: &Value, outer: &Context<'_>) -> Value {
        let Value::Object(object) = schema else {
            return schema.clone();
        };
        let context = negate::extend(self.root, outer, object);
        let mut kept = Map::new();
        let mut parts = Vec::new();
        for (keyword, value) in object {
            self.within(keyword, |this| {
                match this.keyword(object, keyword, value, &context) {
                    Outcome::Keep(value) => {
                        kept.insert(keyword.clone(), value);
                    }
                    Outcome::Express(part) => {
                        this.expressed += 1;
                        parts.push(this.schema(&part, &context));
                        this.expressed -= 1;
                    }
                    Outcome::Omit => {}
                    Outcome::Ignore(why) => {
                        let path = this.path.clone();
                        // Within a schema in place of a keyword, all have its path.
                        if this.ignored.last().is_none_or(|last| last.path != path) {
                            this.ignored.push(Ignored { path, why });
                        }
                    }
                }
            });
        }
        if !parts.is_empty() {
            match kept.entry("allOf").or_insert_with(|| json!([])) {
                Value::Array(all) => all.extend(parts),
                // The check refused others.
                other => *other = parts.into(),
            }
        }
        kept.into()
    }

    /// Rewrites the schemas of `allOf` and its like, which are for the same value.
    fn same_value(&mut self, schemas: &Value, context: &Context<'_>) -> Value {
        let schemas = schemas.as_array().into_iter().flatten().enumerate();
        let schemas = schemas.map(|(index, schema)| {
            self.within(&index.to_string(), |this| this.schema(schema, context))
        });
        Value::Array(schemas.collect())
    }

    fn keyword(
        &mut self,
        object: &Map<String, Value>,
        keyword: &str,
        value: &Value,
        context: &Context<'_>,
    ) -> Outcome {
        let why = || format!("the keyword {keyword} is not supported");
        let except =
            |condition: &str| format!("the keyword {keyword} is not supported {condition}");
        match keyword {
            "properties" | "$defs" | "definitions" => Outcome::Keep(self.inner_map(value)),
            "items" | "prefixItems" if value.is_array() => {
                let schemas = value.as_array().into_iter().flatten().enumerate();
                let schemas = schemas.map(|(index, schema)| {
                    self.within(&index.to_string(), |this| this.inner(schema))
                });
                Outcome::Keep(Value::Array(schemas.collect()))
            }
            "additionalProperties" | "unevaluatedProperties" if has_ignored_pattern(object) => {
                Outcome::Ignore(except("beside a pattern that is not supported"))
            }
            "items" | "additionalItems" | "additionalProperties" => {
                Outcome::Keep(self.inner(value))
            }
            "allOf" | "anyOf" | "oneOf" => Outcome::Keep(self.same_value(value, context)),
            "patternProperties" => Outcome::Keep(self.pattern_properties(value)),
            "pattern" => self.pattern(value, context),
            "format" => self.format(value, context),
            "not" => {
                let other = negate(self.root, value, context, &mut self.work);
                self.express(other, context, || {
                    except(
                        "here; it is for types, constants, bounds, lengths and the presence of \
                         properties, and combinations of these",
                    )
                })
            }
            "if" => self.condition(object, value, context),
            // They have no effect without `if`, which is rewritten with them.
            "then" | "else" => Outcome::Omit,
            "dependentRequired" | "dependentSchemas" | "dependencies" => {
                let parts = value.as_object().into_iter().flatten();
                let parts = parts.map(|(name, then)| {
                    let then = match then {
                        Value::Array(names) => json!({ "required": names }),
                        schema => schema.clone(),
                    };
                    any_of(vec![json!({ "properties": { name: false } }), then])
                });
                self.express(Some(all_of(parts.collect())), context, why)
            }
            "contains" => self.contains(object, value, context),
            "minContains" | "maxContains" if !object.contains_key("contains") => Outcome::Omit,
            // As `contains` says.
            "minContains" if value.as_u64() <= Some(1) => Outcome::Omit,
            "uniqueItems" if *value == Value::Bool(false) => Outcome::Omit,
            "uniqueItems" => self.unique_items(object, context),
            "propertyNames" => self.property_names(value, context),
            "unevaluatedProperties" => {
                let part = self.evaluated(object, 0).map(|(names, patterns)| {
                    json!({
                        "properties": names,
                        "patternProperties": patterns,
                        "additionalProperties": value,
                    })
                });
                self.express(part, context, || {
                    except("beside keywords that evaluate properties conditionally")
                })
            }
            "unevaluatedItems" => {
                let depends = |keyword: &str| {
                    CONDITIONAL.contains(&keyword)
                        || ["allOf", "$ref", "contains"].contains(&keyword)
                };
                let part = match object.get("items") {
                    _ if object.keys().any(|keyword| depends(keyword)) => None,
                    Some(Value::Array(items)) => Some(vec![true; items.len()]),
                    Some(_) => return Outcome::Omit,
                    None => {
                        let first = object.get("prefixItems").and_then(Value::as_array);
                        Some(vec![true; first.map_or(0, Vec::len)])
                    }
                };
                let part = part.map(|first| json!({ "items": first, "additionalItems": value }));
                self.express(part, context, || {
                    except("beside keywords that evaluate items")
                })
            }
            "$dynamicAnchor" | "$recursiveAnchor" => Outcome::Omit,
            "minContains" | "maxContains" | "$dynamicRef" | "$recursiveRef" => {
                Outcome::Ignore(why())
            }
            _ => Outcome::Keep(value.clone()),
        }
    }

    /// Puts a schema in the place of a keyword, unless that takes too much.
    fn express(
        &mut self,
        part: Option<Value>,
        context: &Context<'_>,
        why: impl FnOnce() -> String,
    ) -> Outcome {
        let Some(part) = part else {
            return Outcome::Ignore(why());
        };
        if part == Value::Bool(true) {
            return Outcome::Omit;
        }
        let alternatives = self.alternatives.saturating_mul(alternatives(&part));
        let bytes = size(&part);
        let properties = context.iter().filter_map(|schema| schema.get("properties"));
        let properties = properties.filter_map(Value::as_object).map(Map::len);
        let properties = properties.sum::<usize>().saturating_mul(alternatives);
        if alternatives > limits::MAX_ALTERNATIVES
            || alternatives > 1 && properties > limits::MAX_PROPERTIES
            || bytes > self.bytes
        {
            return Outcome::Ignore(why());
        }
        self.alternatives = alternatives;
        self.bytes -= bytes;
        Outcome::Express(part)
    }

    fn pattern_properties(&mut self, value: &Value) -> Value {
        let mut kept = Map::new();
        for (pattern, schema) in value.as_object().into_iter().flatten() {
            self.within(pattern, |this| {
                match regex::check(pattern, regex::Anchors::Allowed) {
                    Ok(()) => {
                        kept.insert(pattern.clone(), this.inner(schema));
                    }
                    Err(error) => this.ignored.push(Ignored {
                        path: this.path.clone(),
                        why: check::describe(pattern, &error),
                    }),
                }
            });
        }
        kept.into()
    }

    fn pattern(&mut self, value: &Value, context: &Context<'_>) -> Outcome {
        let pattern = value.as_str().unwrap_or_default();
        let Err(error) = regex::check(pattern, regex::Anchors::Allowed) else {
            return Outcome::Keep(value.clone());
        };
        let parts = pattern::without_look_ahead(pattern).map(|patterns| {
            let parts = patterns.iter().map(|part| json!({ "pattern": part }));
            json!({ "allOf": Vec::from_iter(parts) })
        });
        self.express(parts, context, || check::describe(pattern, &error))
    }

    fn format(&mut self, value: &Value, context: &Context<'_>) -> Outcome {
        let format = value.as_str().unwrap_or_default();
        if FORMATS.contains(&format) {
            return Outcome::Keep(value.clone());
        }
        let found = PATTERN_FORMATS.iter().find(|(name, _)| *name == format);
        let part = found.map(|(_, pattern)| json!({ "pattern": pattern }));
        self.express(part, context, || {
            let names = PATTERN_FORMATS.iter().map(|(name, _)| *name);
            let names: Vec<_> = FORMATS.into_iter().chain(names).collect();
            format!(
                "the format {format:?} is unknown; known formats are {}",
                names.join(", ")
            )
        })
    }

    fn condition(
        &mut self,
        object: &Map<String, Value>,
        condition: &Value,
        context: &Context<'_>,
    ) -> Outcome {
        let otherwise = negate(self.root, condition, context, &mut self.work);
        let branch = |keyword| object.get(keyword).cloned().unwrap_or(Value::Bool(true));
        let (then, other) = (branch("then"), branch("else"));
        let part = match otherwise {
            _ if then == Value::Bool(true) && other == Value::Bool(true) => {
                return Outcome::Omit;
            }
            // It must hold, or `else` must.
            None if then == Value::Bool(true) => Some(any_of(vec![condition.clone(), other])),
            None => None,
            Some(otherwise) => Some(any_of(vec![
                all_of(vec![condition.clone(), then]),
                all_of(vec![otherwise, other]),
            ])),
        };
        self.express(part, context, || {
            "the keyword if is not supported with this condition; it is for types, constants, bounds, \
             lengths and the presence of properties, and combinations of these"
                .into()
        })
    }

    fn contains(
        &mut self,
        object: &Map<String, Value>,
        value: &Value,
        context: &Context<'_>,
    ) -> Outcome {
        let least = object
            .get("minContains")
            .and_then(Value::as_u64)
            .unwrap_or(1);
        if least == 0 {
            return Outcome::Omit;
        }
        let items = most_items(context).filter(|&items| {
            let bytes = size(value).saturating_mul(items as usize);
            least == 1 && bytes <= self.bytes && items <= limits::MAX_ALTERNATIVES as u64
        });
        let part = items.map(|items| {
            let mut options = not_arrays(context);
            options.extend((0..items as usize).map(|before| {
                let mut first = vec![Value::Bool(true); before];
                first.push(value.clone());
                json!({ "type": "array", "items": first, "minItems": before + 1 })
            }));
            any_of(options)
        });
        self.express(part, context, || {
            "the keyword contains is supported only with a small maxItems and without minContains"
                .into()
        })
    }

    fn unique_items(&mut self, object: &Map<String, Value>, context: &Context<'_>) -> Outcome {
        let most = most_items(context);
        if most.is_some_and(|most| most <= 1) {
            return Outcome::Omit;
        }
        let is_plain = !["prefixItems", "additionalItems"]
            .iter()
            .any(|keyword| object.contains_key(*keyword));
        let values = object.get("items").filter(|_| is_plain);
        let values = values.and_then(|items| few_values(self.root, items));
        let part = values.and_then(|values| {
            let most = most.map_or(values.len(), |most| values.len().min(most as usize));
            let mut options = not_arrays(context);
            for items in arrangements(&values, most)? {
                options.push(json!({ "type": "array", "items": items, "additionalItems": false }));
            }
            Some(any_of(options))
        });
        // The alternatives are small, and no others are multiplied with them often.
        let around = self.alternatives;
        self.alternatives = 1;
        let outcome = match part {
            Some(part) if size(&part) <= self.bytes && around == 1 => {
                self.bytes -= size(&part);
                Outcome::Express(part)
            }
            _ => Outcome::Ignore(
                "the keyword uniqueItems is supported only for items of a few constants, or with \
                 maxItems of at most 1"
                    .into(),
            ),
        };
        self.alternatives = around;
        outcome
    }

    fn property_names(&mut self, names: &Value, context: &Context<'_>) -> Outcome {
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
    fn evaluated(
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

/// Whether `patternProperties` has a pattern that is left out.
fn has_ignored_pattern(object: &Map<String, Value>) -> bool {
    let patterns = object.get("patternProperties").and_then(Value::as_object);
    let mut patterns = patterns.into_iter().flat_map(Map::keys);
    patterns.any(|pattern| regex::check(pattern, regex::Anchors::Allowed).is_err())
}

/// The types other than arrays, if the value may have one.
fn not_arrays(context: &Context<'_>) -> Vec<Value> {
    let mut others = negate::types(context).unwrap_or(negate::TYPES.to_vec());
    others.retain(|one| *one != "array");
    match others.is_empty() {
        true => Vec::new(),
        false => vec![json!({ "type": others })],
    }
}

fn most_items(context: &Context<'_>) -> Option<u64> {
    let limits = context.iter().filter_map(|schema| schema.get("maxItems"));
    limits.filter_map(Value::as_u64).min()
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

/// The values of a schema that lists them; perhaps some more that the schema refuses.
fn few_values(root: &Value, schema: &Value) -> Option<Vec<Value>> {
    let object = schema.as_object()?;
    let context = negate::extend(root, &[], object);
    let listed = context.iter().find_map(|schema| listed_values(schema));
    let mut values = Vec::new();
    if let Some(listed) = listed {
        if listed.len() > limits::MAX_ALTERNATIVES {
            return None;
        }
        for value in listed {
            if !values.iter().any(|known| negate::equal(known, value)) {
                values.push(value.clone());
            }
        }
        return Some(values);
    }
    for one in negate::types(&context)? {
        match one {
            "null" => values.push(Value::Null),
            "boolean" => values.extend([true, false].map(Value::Bool)),
            _ => return None,
        }
    }
    Some(values)
}

/// All sequences of this many different values; `None` if they are too many.
fn arrangements(values: &[Value], length: usize) -> Option<Vec<Vec<Value>>> {
    let count = (values.len() - length + 1..=values.len()).try_fold(length, usize::checked_mul);
    if count? > limits::MAX_ARRANGED_ITEMS {
        return None;
    }
    let mut found: Vec<Vec<usize>> = vec![Vec::new()];
    for _ in 0..length {
        let longer = found.iter().flat_map(|start| {
            let unused = (0..values.len()).filter(|index| !start.contains(index));
            unused.map(|index| [&start[..], &[index]].concat())
        });
        found = longer.collect();
    }
    let found = found.into_iter().map(|order| {
        order
            .into_iter()
            .map(|index| json!({ "const": values[index] }))
            .collect()
    });
    Some(found.collect())
}

/// How many alternatives of a value a schema has.
fn alternatives(schema: &Value) -> usize {
    let list = |keyword| schema.get(keyword).and_then(Value::as_array);
    let options = list("anyOf").or(list("oneOf"));
    let options = options.map_or(1, |options| {
        options
            .iter()
            .map(alternatives)
            .fold(0, usize::saturating_add)
    });
    let parts = list("allOf").into_iter().flatten().map(alternatives);
    parts.fold(options.max(1), usize::saturating_mul)
}

/// Bytes of a schema's text.
fn size(schema: &Value) -> usize {
    /// Counts instead of writing.
    struct Count(usize);
    impl std::io::Write for Count {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0 += bytes.len();
            Ok(bytes.len())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let mut count = Count(0);
    match serde_json::to_writer(&mut count, schema) {
        Ok(()) => count.0,
        Err(_) => usize::MAX,
    }
}
