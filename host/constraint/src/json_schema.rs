//! JSON schemas: checked, so that errors have a position, and rewritten for llguidance.

mod check;
mod explain;
mod negate;
mod pattern;
mod relax;
mod rewrite;

use crate::limits;
use crate::llguidance_message::TextPosition;
use rewrite::Ignored;
use serde_json::{Map, Value, json};

/// Whitespace between the parts of a value: a space, or a line break with its indentation. More would
/// let a model fill its output with blanks.
const WHITESPACE: &str = r" |\r?\n[ \t]{0,64}";

/// llguidance's options in a schema. `lenient`, which it has as well, is handled here.
pub const OPTIONS: &str = "x-guidance";

/// The schema of any object.
pub fn any_object() -> Value {
    json!({ "type": "object", OPTIONS: { "whitespace_pattern": WHITESPACE } })
}

/// A checked schema in the form in which llguidance compiles it.
pub struct JsonSchema {
    original: Value,
    rewritten: Value,
    options: Map<String, Value>,
    /// Whether keywords that cannot be enforced are ignored; otherwise they are errors.
    is_lenient: bool,
    ignored: Vec<Ignored>,
    /// Whether keywords that llguidance lacks are expressed by others where possible.
    expresses: bool,
    /// Keywords that llguidance refused and that are ignored since.
    relaxed: usize,
}

impl JsonSchema {
    /// Parses and checks a schema; the error says where it is invalid.
    pub fn parse(text: &str, is_lenient: bool) -> Result<Self, String> {
        let schema: Value = serde_json::from_str(text).map_err(|error| {
            let position = TextPosition::at(error.line(), error.column());
            let message = error.to_string();
            let what = message.split(" at line ").next().unwrap_or(&message);
            format!("{position}: {what}")
        })?;
        if schema.get(OPTIONS).is_some() {
            return Err(format!(
                "at /{OPTIONS}: grammar options are not supported; remove it"
            ));
        }
        let mut options = Map::new();
        options.insert("whitespace_pattern".into(), WHITESPACE.into());
        Self::new(schema, options, is_lenient)
    }

    /// Checks a schema of a Lark grammar, which may have llguidance's options.
    pub fn in_lark(mut schema: Value) -> Result<Self, String> {
        let options = schema
            .as_object_mut()
            .and_then(|object| object.shift_remove(OPTIONS));
        let mut options = match options {
            None => Map::new(),
            Some(Value::Object(options)) => options,
            Some(other) => {
                return Err(format!(
                    "at /{OPTIONS}: it is {}; it must be an object",
                    kind(&other)
                ));
            }
        };
        let is_lenient = options.shift_remove("lenient") == Some(Value::Bool(true));
        Self::new(schema, options, is_lenient)
    }

    fn new(original: Value, options: Map<String, Value>, is_lenient: bool) -> Result<Self, String> {
        match &original {
            Value::Object(_) | Value::Bool(true) => {}
            Value::Bool(false) => return Err("at /: false allows no value".into()),
            other => {
                return Err(format!(
                    "at /: it is {}; a schema is an object",
                    kind(other)
                ));
            }
        }
        check::check(&original)?;
        let mut schema = Self {
            rewritten: Value::Null,
            original,
            options,
            is_lenient,
            ignored: Vec::new(),
            expresses: true,
            relaxed: 0,
        };
        schema.rewrite()?;
        Ok(schema)
    }

    fn rewrite(&mut self) -> Result<(), String> {
        let rewritten = rewrite::rewrite(&self.original, self.expresses);
        self.rewritten = rewritten.schema;
        self.ignored = rewritten.ignored;
        if let (false, Some(Ignored { path, why })) = (self.is_lenient, self.ignored.first()) {
            return Err(format!("at {}: {why}", pointer(path)));
        }
        // What takes the place of keywords counts towards the limits.
        match check::check(&self.rewritten) {
            Err(_) if self.is_lenient && self.expresses => self.rewrite_unexpressed(),
            other => other,
        }
    }

    /// Rewrites the schema again, without expressing keywords by others.
    fn rewrite_unexpressed(&mut self) -> Result<(), String> {
        self.expresses = false;
        self.relaxed = 0;
        self.rewrite()
    }

    /// The schema with llguidance's options.
    pub fn compilable(&self) -> Value {
        let mut object = match &self.rewritten {
            Value::Object(object) => object.clone(),
            // The others are `true`.
            _ => Map::new(),
        };
        if !self.options.is_empty() {
            object.insert(OPTIONS.into(), self.options.clone().into());
        }
        Value::Object(object)
    }

    /// Whether llguidance refuses the schema by itself.
    pub fn is_refused(&self) -> bool {
        explain::compile_error(&self.rewritten, &[]).is_some()
    }

    /// Ignores more, after llguidance refused the schema with this message. The error explains the
    /// message, if nothing can be ignored.
    pub fn relax(&mut self, message: &str) -> Result<(), String> {
        let Some((mut path, what)) = explain::locate(&self.rewritten) else {
            // The whole is refused, for its size perhaps.
            if self.is_lenient && self.expresses && message != limits::TOO_MUCH_WORK {
                return self.rewrite_unexpressed();
            }
            return Err(explain::rephrase(message));
        };
        let is_impossible = explain::is_unsatisfiable(&what);
        if self.is_lenient && self.relaxed < limits::MAX_RELAXED_KEYWORDS {
            let refused = explain::refused_keywords(&what);
            // Without what takes the place of keywords, the part may be fine.
            if !refused.is_empty()
                && self.expresses
                && (refused == ["$ref"] || !self.has_original(&path, refused))
            {
                return self.rewrite_unexpressed();
            }
            let part = relax::at_mut(&mut self.rewritten, &path);
            let removed = part
                .map(|part| relax::remove(part, refused))
                .unwrap_or_default();
            if !removed.is_empty() {
                self.relaxed += 1;
                for keyword in removed {
                    let mut path = self.original_path(&path);
                    if self.has_original(&path, &[keyword]) {
                        path.push(keyword.to_owned());
                    }
                    let why = explain::rephrase(&what);
                    self.ignored.push(Ignored { path, why });
                }
                return Ok(());
            }
        }
        if self.is_lenient && self.expresses && !is_impossible {
            return self.rewrite_unexpressed();
        }
        path = self.original_path(&path);
        Err(format!(
            "at {}: {}",
            pointer(&path),
            explain::rephrase(&what)
        ))
    }

    /// Whether the original schema has one of these keywords at a path.
    fn has_original(&self, path: &[String], keywords: &[&str]) -> bool {
        let part = match path {
            [] => Some(&self.original),
            path => self.original.pointer(&pointer(path)),
        };
        keywords
            .iter()
            .any(|keyword| part.is_some_and(|part| part.get(keyword).is_some()))
    }

    /// The part of a path in the rewritten schema that the original has.
    fn original_path(&self, path: &[String]) -> Vec<String> {
        let mut part = Some(&self.original);
        let known = path.iter().take_while(|step| {
            part = part.and_then(|part| match part {
                Value::Array(items) => items.get(step.parse::<usize>().ok()?),
                other => other.get(step.as_str()),
            });
            part.is_some()
        });
        known.cloned().collect()
    }

    /// JSON pointers of the keywords that the grammar does not enforce, with `prefix`.
    pub fn ignored(&self, prefix: &str) -> impl Iterator<Item = String> {
        self.ignored.iter().map(move |ignored| {
            let mut path = format!("{prefix}{}", pointer(&ignored.path));
            if path.len() > limits::MAX_IGNORED_BYTES {
                path.truncate(path.floor_char_boundary(limits::MAX_IGNORED_BYTES));
                path.push('…');
            }
            path
        })
    }
}

/// The type of a value, for an error.
fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "an array",
        Value::Object(_) => "an object",
    }
}

/// Escapes a step of a JSON pointer (RFC 6901).
fn escape(step: &str) -> String {
    step.replace('~', "~0").replace('/', "~1")
}

fn pointer(path: &[String]) -> String {
    if path.is_empty() {
        return "/".into();
    }
    path.iter()
        .map(|step| format!("/{}", escape(step)))
        .collect()
}
