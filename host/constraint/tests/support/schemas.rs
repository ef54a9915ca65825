//! Random JSON schemas of bounded size, and a validator that is independent of grammars.
#![allow(dead_code)]

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use regex_lite::Regex;
use serde_json::{Map, Value, json};

/// The schema of a seed. Matching values have a bounded size, except for a linked list in some schemas.
pub fn schema(seed: u64) -> Value {
    let mut make = SchemaGenerator {
        rng: ChaCha8Rng::seed_from_u64(seed),
        defined: Vec::new(),
    };
    let mut definitions = Map::new();
    for number in 0..make.rng.random_range(0..3) {
        let name = format!("part{number}");
        let made = make.any(2);
        definitions.insert(name.clone(), made);
        make.defined.push(name);
    }
    if make.chance(0.2) {
        let value = make.any(3);
        let list = json!({
            "type": "object",
            "properties": {
                "value": value,
                "next": { "anyOf": [{ "type": "null" }, { "$ref": "#/$defs/list" }] }
            },
            "required": ["value", "next"],
            "additionalProperties": false
        });
        definitions.insert("list".into(), list);
        make.defined.push("list".into());
    }
    let mut root = match make.any(0) {
        Value::Object(root) => root,
        other => unreachable!("schemas are objects, not {other}"),
    };
    if !definitions.is_empty() {
        root.insert("$defs".into(), definitions.into());
    }
    root.into()
}

struct SchemaGenerator {
    rng: ChaCha8Rng,
    /// Names of definitions.
    defined: Vec<String>,
}

impl SchemaGenerator {
    fn chance(&mut self, probability: f64) -> bool {
        self.rng.random::<f64>() < probability
    }

    fn below(&mut self, end: usize) -> usize {
        self.rng.random_range(0..end)
    }

    /// A random schema, simpler at greater depth.
    fn any(&mut self, depth: u32) -> Value {
        let kinds = if depth == 0 {
            // A whole schema is mostly an object.
            [0, 0, 0, 1, 2, 3, 4, 5, 6, 0, 0, 0]
        } else if depth < 3 {
            [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 9, 10]
        } else {
            [4, 4, 5, 5, 6, 6, 7, 7, 8, 8, 9, 9]
        };
        match kinds[self.below(kinds.len())] {
            0 => self.object(depth),
            1 => self.array(depth),
            2 => {
                let options: Vec<Value> = (0..2 + self.below(2))
                    .map(|_| self.any(depth + 1))
                    .collect();
                json!({ "anyOf": options })
            }
            3 => self.tuple(depth),
            4 => self.integer(),
            5 => self.number(),
            6 => self.string(),
            7 => json!({ "type": "boolean" }),
            8 => json!({ "type": ["null", "boolean"] }),
            9 => {
                if self.chance(0.5) {
                    json!({ "const": self.constant(2) })
                } else {
                    let values: Vec<Value> =
                        (0..1 + self.below(4)).map(|_| self.constant(1)).collect();
                    json!({ "enum": values })
                }
            }
            _ if self.defined.is_empty() => json!({ "type": "null" }),
            _ => {
                let at = self.below(self.defined.len());
                json!({ "$ref": format!("#/$defs/{}", self.defined[at]) })
            }
        }
    }

    fn name(&mut self) -> String {
        const NAMES: [&str; 12] = [
            "name",
            "count",
            "value",
            "items",
            "a",
            "b b",
            "größe",
            "日本",
            "x\"y",
            "back\\slash",
            "",
            "next",
        ];
        NAMES[self.below(NAMES.len())].into()
    }

    fn object(&mut self, depth: u32) -> Value {
        let mut properties = Map::new();
        for _ in 0..self.below(5) {
            let name = self.name();
            let schema = self.any(depth + 1);
            properties.insert(name, schema);
        }
        let names: Vec<String> = properties.keys().cloned().collect();
        let required: Vec<String> = names.into_iter().filter(|_| self.chance(0.6)).collect();
        json!({
            "type": "object",
            "properties": properties,
            "required": required,
            "additionalProperties": false
        })
    }

    fn array(&mut self, depth: u32) -> Value {
        let least = self.below(3);
        let most = least + self.below(3);
        json!({
            "type": "array",
            "items": self.any(depth + 1),
            "minItems": least,
            "maxItems": most
        })
    }

    fn tuple(&mut self, depth: u32) -> Value {
        let items: Vec<Value> = (0..1 + self.below(3))
            .map(|_| self.any(depth + 1))
            .collect();
        json!({
            "type": "array",
            "minItems": items.len(),
            "prefixItems": items,
            "items": false
        })
    }

    fn integer(&mut self) -> Value {
        let low = self.rng.random_range(-2_000..2_000_i64);
        let high = low + self.rng.random_range(0..3_000);
        if self.chance(0.2) {
            json!({ "type": "integer", "exclusiveMinimum": low - 1, "exclusiveMaximum": high + 1 })
        } else {
            json!({ "type": "integer", "minimum": low, "maximum": high })
        }
    }

    fn number(&mut self) -> Value {
        let low = f64::from(self.rng.random_range(-400..400)) / 8.0;
        let high = low + f64::from(self.rng.random_range(1..400)) / 8.0;
        json!({ "type": "number", "minimum": low, "maximum": high })
    }

    fn string(&mut self) -> Value {
        const PATTERNS: [&str; 6] = [
            "^[a-c]{2,4}$",
            "^[A-Z][a-z]{0,6}$",
            "^[0-9]{3}-[0-9]{4}$",
            "^x[0-9a-f]{1,8}$",
            "^[ab][bc][cd]$",
            "^[é-ü]{1,3}![0-9]{1,2}$",
        ];
        if self.chance(0.4) {
            return json!({ "type": "string", "pattern": PATTERNS[self.below(PATTERNS.len())] });
        }
        let least = self.below(4);
        let most = least + self.below(8);
        json!({ "type": "string", "minLength": least, "maxLength": most })
    }

    fn constant(&mut self, depth: u32) -> Value {
        match self.below(if depth == 0 { 5 } else { 7 }) {
            0 => Value::Null,
            1 => json!(self.chance(0.5)),
            2 => json!(self.rng.random_range(-500..500)),
            3 => json!(f64::from(self.rng.random_range(-400..400)) / 8.0),
            4 => json!(self.name()),
            5 => (0..self.below(3))
                .map(|_| self.constant(depth - 1))
                .collect(),
            _ => {
                let members = 0..self.below(3);
                let members: Map<String, Value> = members
                    .map(|_| (self.name(), self.constant(depth - 1)))
                    .collect();
                members.into()
            }
        }
    }
}

/// Validates a value against a schema made by [`schema`]; the error says where it fails.
pub fn validate(schema: &Value, value: &Value) -> Result<(), String> {
    fits(schema, schema, value, "")
}

fn fits(root: &Value, schema: &Value, value: &Value, at: &str) -> Result<(), String> {
    let wrong = |why: String| Err(format!("at {at:?}: {value} {why}"));
    let object = match schema {
        Value::Bool(true) => return Ok(()),
        Value::Object(object) => object,
        _ => return wrong("may not be here".into()),
    };
    members(root, object, value, at)?;
    for (keyword, wanted) in object {
        let fine = match keyword.as_str() {
            "$defs"
            | "properties"
            | "required"
            | "additionalProperties"
            | "patternProperties"
            | "prefixItems"
            | "then"
            | "else"
            | "title"
            | "x" => true,
            "not" => fits(root, wanted, value, at).is_err(),
            "allOf" => {
                for part in wanted.as_array().expect("an array") {
                    fits(root, part, value, at)?;
                }
                true
            }
            "oneOf" => {
                let options = wanted.as_array().expect("an array").iter();
                options
                    .filter(|option| fits(root, option, value, at).is_ok())
                    .count()
                    == 1
            }
            "if" => {
                let is_true = fits(root, wanted, value, at).is_ok();
                let branch = if is_true { "then" } else { "else" };
                if let Some(branch) = object.get(branch) {
                    fits(root, branch, value, at)?;
                }
                true
            }
            "contains" => value.as_array().is_none_or(|items| {
                items
                    .iter()
                    .any(|item| fits(root, wanted, item, at).is_ok())
            }),
            "uniqueItems" => value.as_array().is_none_or(|items| {
                let mut before = items.iter().enumerate();
                !before.any(|(index, item)| items[..index].iter().any(|one| equal(one, item)))
            }),
            "propertyNames" => {
                for name in value.as_object().into_iter().flat_map(Map::keys) {
                    fits(root, wanted, &json!(name), at)?;
                }
                true
            }
            "dependentRequired" | "dependentSchemas" => {
                for (name, then) in wanted.as_object().expect("an object") {
                    if value.get(name).is_none() {
                        continue;
                    }
                    let then = match then {
                        Value::Array(_) => &json!({ "type": "object", "required": then }),
                        schema => schema,
                    };
                    fits(root, then, value, at)?;
                }
                true
            }
            "format" => text_of_format(wanted, value),
            "$ref" => {
                let path = wanted.as_str().expect("a string").trim_start_matches('#');
                fits(root, root.pointer(path).expect("it is defined"), value, at)?;
                true
            }
            "anyOf" => {
                let options = wanted.as_array().expect("an array");
                options
                    .iter()
                    .any(|option| fits(root, option, value, at).is_ok())
            }
            "const" => equal(wanted, value),
            "enum" => {
                let values = wanted.as_array().expect("an array");
                values.iter().any(|wanted| equal(wanted, value))
            }
            "type" => match wanted {
                Value::Array(types) => types.iter().any(|wanted| is(wanted, value)),
                wanted => is(wanted, value),
            },
            "items" => {
                elements(root, object, value, at)?;
                true
            }
            "minItems" => value
                .as_array()
                .is_none_or(|items| items.len() >= number(wanted) as usize),
            "maxItems" => value
                .as_array()
                .is_none_or(|items| items.len() <= number(wanted) as usize),
            "minLength" => length(value).is_none_or(|length| length >= number(wanted) as usize),
            "maxLength" => length(value).is_none_or(|length| length <= number(wanted) as usize),
            "minimum" => value.as_f64().is_none_or(|value| value >= number(wanted)),
            "maximum" => value.as_f64().is_none_or(|value| value <= number(wanted)),
            "exclusiveMinimum" => value.as_f64().is_none_or(|value| value > number(wanted)),
            "exclusiveMaximum" => value.as_f64().is_none_or(|value| value < number(wanted)),
            "pattern" => value
                .as_str()
                .is_none_or(|text| pattern(wanted).is_match(text)),
            other => unreachable!("no schema has {other}"),
        };
        if !fine {
            return wrong(format!("breaks {keyword}: {wanted}"));
        }
    }
    Ok(())
}

/// Whether a text is a JSON pointer; no test has other formats.
fn text_of_format(wanted: &Value, value: &Value) -> bool {
    assert_eq!(wanted, "json-pointer");
    value.as_str().is_none_or(|text| {
        let escapes = text.split('~').skip(1);
        (text.is_empty() || text.starts_with('/'))
            && escapes.into_iter().all(|rest| rest.starts_with(['0', '1']))
    })
}

fn pattern(wanted: &Value) -> Regex {
    Regex::new(wanted.as_str().expect("a string")).expect("a valid pattern")
}

fn number(value: &Value) -> f64 {
    value.as_f64().expect("a number")
}

fn length(value: &Value) -> Option<usize> {
    value.as_str().map(|text| text.chars().count())
}

fn is(wanted: &Value, value: &Value) -> bool {
    match wanted.as_str().expect("a type") {
        "null" => value.is_null(),
        "boolean" => value.is_boolean(),
        "integer" => value.as_f64().is_some_and(|value| value.fract() == 0.0),
        "number" => value.is_number(),
        "string" => value.is_string(),
        "array" => value.is_array(),
        "object" => value.is_object(),
        other => unreachable!("{other} is no type"),
    }
}

fn members(
    root: &Value,
    schema: &Map<String, Value>,
    value: &Value,
    at: &str,
) -> Result<(), String> {
    let Value::Object(value) = value else {
        return Ok(());
    };
    let schemas = |keyword| {
        schema
            .get(keyword)
            .and_then(Value::as_object)
            .into_iter()
            .flatten()
    };
    for (name, member) in value {
        let mut is_known = false;
        for (property, schema) in schemas("properties").filter(|(property, _)| *property == name) {
            is_known = true;
            fits(root, schema, member, &format!("{at}/{property}"))?;
        }
        for (text, schema) in schemas("patternProperties") {
            if pattern(&json!(text)).is_match(name) {
                is_known = true;
                fits(root, schema, member, &format!("{at}/{name}"))?;
            }
        }
        if let (false, Some(schema)) = (is_known, schema.get("additionalProperties")) {
            fits(root, schema, member, &format!("{at}/{name}"))?;
        }
    }
    let required = schema.get("required").and_then(Value::as_array);
    for name in required.into_iter().flatten().filter_map(Value::as_str) {
        if !value.contains_key(name) {
            return Err(format!("at {at:?}: no member {name:?}"));
        }
    }
    Ok(())
}

fn elements(
    root: &Value,
    schema: &Map<String, Value>,
    value: &Value,
    at: &str,
) -> Result<(), String> {
    let Value::Array(value) = value else {
        return Ok(());
    };
    let first = schema.get("prefixItems").and_then(Value::as_array);
    let first = first.map_or(&[][..], Vec::as_slice);
    for (index, element) in value.iter().enumerate() {
        let schema = first.get(index).unwrap_or(&schema["items"]);
        fits(root, schema, element, &format!("{at}/{index}"))?;
    }
    Ok(())
}

/// Whether two values are equal as JSON; numbers compare by value.
fn equal(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Number(a), Value::Number(b)) => a.as_f64() == b.as_f64(),
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
