//! Random JSON schemas of bounded size.

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
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
