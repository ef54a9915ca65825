//! Expresses keywords that llguidance lacks by those that it has, where both mean exactly the same.
//!
//! A keyword that cannot be expressed is left out and listed. What is left out only ever accepts more:
//! every keyword that remains stands where accepting more within it accepts more outside.

mod arrays;
mod names;

use super::negate::{self, Context, all_of, any_of, negate};
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
}

/// Whether `patternProperties` has a pattern that is left out.
fn has_ignored_pattern(object: &Map<String, Value>) -> bool {
    let patterns = object.get("patternProperties").and_then(Value::as_object);
    let mut patterns = patterns.into_iter().flat_map(Map::keys);
    patterns.any(|pattern| regex::check(pattern, regex::Anchors::Allowed).is_err())
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
