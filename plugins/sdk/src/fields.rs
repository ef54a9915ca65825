//! Reads a JSON object field by field and reports invalid fields.
//!
//! `null` counts as absent. An error of a field names its path ([`Error::field`]), such as
//! `samplers[2].dry.base`. Its code is `wrong-type`, `out-of-range`, `missing-field`,
//! `unknown-field`, `not-one-field` or `invalid-stop`.
//!
//! ```
//! use corral_sdk::fields::{Fields, ZERO_TO_ONE};
//!
//! let body = serde_json::json!({"top_p": 1.5, "seed": null});
//! let mut fields = Fields::from_map(body.as_object().cloned().unwrap());
//! assert_eq!(fields.integer("seed", 0..=9_u32), Ok(None));
//! let error = fields.number("top_p", &ZERO_TO_ONE).unwrap_err();
//! assert_eq!(error.to_string(), "`top_p` is 1.5; expected a number from 0 to 1");
//! assert_eq!(error.field(), Some("top_p"));
//! ```

pub mod ignored;

use std::fmt::Display;
use std::ops::RangeInclusive;

use serde_json::{Map, Value};

use crate::Error;

/// A JSON object. Reading a field removes it.
pub struct Fields {
    /// The object's own path; empty for the body.
    path: String,
    members: Map<String, Value>,
}

/// A set of finite numbers that a field may have.
pub struct NumberRange {
    /// The expected value for error texts, after "expected".
    pub expected: &'static str,
    /// Whether a number is in the set.
    pub contains: fn(f32) -> bool,
}

/// Any finite number.
pub const FINITE: NumberRange = NumberRange {
    expected: "a number",
    contains: |_| true,
};
/// Numbers from 0.
pub const NON_NEGATIVE: NumberRange = NumberRange {
    expected: "a number of at least 0",
    contains: |value| value >= 0.0,
};
/// Numbers greater than 0.
pub const POSITIVE: NumberRange = NumberRange {
    expected: "a number greater than 0",
    contains: |value| value > 0.0,
};
/// Numbers from 1.
pub const AT_LEAST_ONE: NumberRange = NumberRange {
    expected: "a number of at least 1",
    contains: |value| value >= 1.0,
};
/// Numbers from 0 to 1.
pub const ZERO_TO_ONE: NumberRange = NumberRange {
    expected: "a number from 0 to 1",
    contains: |value| (0.0..=1.0).contains(&value),
};

/// The values in a request body: a parsed value takes many times the memory of its text.
pub const MAX_VALUES: usize = 200_000;

/// The number of strings, names, arrays, objects and commas of a JSON text.
fn count_values(json: &[u8]) -> usize {
    let mut count = 0;
    let (mut in_string, mut escaped) = (false, false);
    for byte in json {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = in_string,
            b'"' => {
                in_string = !in_string;
                count += usize::from(in_string);
            }
            b'{' | b'[' | b',' if !in_string => count += 1,
            _ => {}
        }
    }
    count
}

impl Fields {
    /// Wraps the body's object.
    pub fn from_map(members: Map<String, Value>) -> Self {
        Fields {
            path: String::new(),
            members,
        }
    }

    /// Wraps the value at `path`, which must be an object.
    pub fn at(path: String, value: Value) -> Result<Self, Error> {
        match value {
            Value::Object(members) => Ok(Fields { path, members }),
            other => Err(wrong_type(&path, "an object", &other)),
        }
    }

    /// Parses a request body, which must be a JSON object of at most [`MAX_VALUES`] values.
    pub fn parse(body: &[u8]) -> Result<Self, Error> {
        if count_values(body) > MAX_VALUES {
            let text = format!("the body has more than {MAX_VALUES} values; ask for less");
            return Err(Error::bad_request("too-many-values", text));
        }
        let value: Value = serde_json::from_slice(body).map_err(|error| {
            // serde_json's text ends with "at line L column C".
            Error::bad_request("invalid-json", format!("the body is not JSON: {error}"))
        })?;
        match value {
            Value::Object(members) => Ok(Self::from_map(members)),
            other => Err(Error::wrong_type("the body", "an object", &other)),
        }
    }

    /// The remaining fields as an object.
    pub fn into_map(self) -> Map<String, Value> {
        self.members
    }

    /// The path of a field.
    pub fn path(&self, name: &str) -> String {
        if self.path.is_empty() {
            name.to_owned()
        } else {
            format!("{}.{name}", self.path)
        }
    }

    /// Returns an error that names every remaining field that is not in `known`.
    pub fn reject_unknown(&self, known: &[&str]) -> Result<(), Error> {
        let unknown: Vec<_> = self
            .members
            .keys()
            .filter(|name| !known.contains(&name.as_str()))
            .map(|name| format!("`{}`", self.path(name)))
            .collect();
        if unknown.is_empty() {
            return Ok(());
        }
        let first = unknown[0].trim_matches('`').to_owned();
        let known: Vec<_> = known.iter().map(|name| format!("`{name}`")).collect();
        Err(Error::bad_request(
            "unknown-field",
            format!(
                "{} {} unknown; expected {}",
                unknown.join(", "),
                if unknown.len() == 1 { "is" } else { "are" },
                known.join(", ")
            ),
        )
        .with_field(&first))
    }

    /// Ignores every remaining field that is not in `known`, and adds its path to [`ignored`]. If the
    /// request is strict ([`ignored::begin`]), calls [`reject_unknown`](Self::reject_unknown) instead.
    pub fn ignore_unknown(&self, known: &[&str]) -> Result<(), Error> {
        if ignored::is_strict() {
            return self.reject_unknown(known);
        }
        for (name, value) in &self.members {
            if !value.is_null() && !known.contains(&name.as_str()) {
                ignored::add(&self.path(name));
            }
        }
        Ok(())
    }

    /// Returns the name and value of the only field. An error unless there is exactly one and it is
    /// in `known`.
    pub fn single(mut self, known: &[&str]) -> Result<(String, Value), Error> {
        self.reject_unknown(known)?;
        self.members.retain(|_, value| !value.is_null());
        let count = self.members.len();
        let mut members = self.members.into_iter();
        match (members.next(), members.next()) {
            (Some(only), None) => Ok(only),
            _ => {
                let known: Vec<_> = known.iter().map(|name| format!("`{name}`")).collect();
                Err(Error::bad_request(
                    "not-one-field",
                    format!(
                        "`{}` has {count} fields; expected exactly one of {}",
                        self.path,
                        known.join(", ")
                    ),
                )
                .with_field(&self.path))
            }
        }
    }

    /// Whether the field is present, also if it is `null`.
    pub fn has(&self, name: &str) -> bool {
        self.members.contains_key(name)
    }

    /// Returns the field without removing it.
    pub fn peek(&self, name: &str) -> Option<&Value> {
        self.members.get(name).filter(|value| !value.is_null())
    }

    /// Removes and returns the field, of any type.
    pub fn take(&mut self, name: &str) -> Option<Value> {
        self.members.remove(name).filter(|value| !value.is_null())
    }

    /// Removes and returns the field; an error if it is absent.
    pub fn required(&mut self, name: &str, expected: &str) -> Result<Value, Error> {
        self.take(name).ok_or_else(|| self.missing(name, expected))
    }

    /// Reads a string.
    pub fn text(&mut self, name: &str) -> Result<Option<String>, Error> {
        match self.take(name) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(other) => Err(self.wrong(name, "a string", &other)),
        }
    }

    /// Reads a string; an error if the field is absent.
    pub fn required_text(&mut self, name: &str) -> Result<String, Error> {
        let text = self.text(name)?;
        text.ok_or_else(|| self.missing(name, "a string"))
    }

    /// Reads a list of strings.
    pub fn text_list(&mut self, name: &str) -> Result<Option<Vec<String>>, Error> {
        let path = self.path(name);
        let Some(list) = self.list(name)? else {
            return Ok(None);
        };
        let list = list.into_iter().enumerate();
        let texts = list.map(|(index, value)| match value {
            Value::String(text) => Ok(text),
            other => Err(wrong_type(&format!("{path}[{index}]"), "a string", &other)),
        });
        texts.collect::<Result<_, _>>().map(Some)
    }

    /// Reads stop strings, one or a list, within the limits of
    /// [`GenerateOptions::stop`](crate::GenerateOptions::stop).
    pub fn stop_strings(&mut self, name: &str) -> Result<Vec<String>, Error> {
        let texts = match self.peek(name) {
            Some(Value::Array(_)) => self.text_list(name)?.unwrap_or_default(),
            Some(Value::String(_)) | None => Vec::from_iter(self.text(name)?),
            Some(other) => return Err(self.wrong(name, "a string or a list of strings", other)),
        };
        let path = self.path(name);
        let lengths = texts.iter().map(String::len);
        let invalid = lengths
            .into_iter()
            .find(|length| !(1..=256).contains(length));
        let detail = match invalid {
            _ if texts.len() > 16 => {
                format!("`{path}` has {} strings; expected at most 16", texts.len())
            }
            Some(length) => format!("a string in `{path}` has {length} bytes; expected 1 to 256"),
            None => return Ok(texts),
        };
        Err(Error::bad_request("invalid-stop", detail).with_field(&path))
    }

    /// Reads an array.
    pub fn list(&mut self, name: &str) -> Result<Option<Vec<Value>>, Error> {
        match self.take(name) {
            None => Ok(None),
            Some(Value::Array(list)) => Ok(Some(list)),
            Some(other) => Err(self.wrong(name, "a list", &other)),
        }
    }

    /// Reads an array; an error if the field is absent.
    pub fn required_list(&mut self, name: &str, expected: &str) -> Result<Vec<Value>, Error> {
        let list = self.list(name)?;
        list.ok_or_else(|| self.missing(name, expected))
    }

    /// Reads an object.
    pub fn object(&mut self, name: &str) -> Result<Option<Fields>, Error> {
        let value = self.take(name);
        value
            .map(|value| Fields::at(self.path(name), value))
            .transpose()
    }

    /// Reads an object; an error if the field is absent.
    pub fn required_object(&mut self, name: &str) -> Result<Fields, Error> {
        let object = self.object(name)?;
        object.ok_or_else(|| self.missing(name, "an object"))
    }

    /// Reads a boolean; `false` if absent.
    pub fn flag(&mut self, name: &str) -> Result<bool, Error> {
        Ok(self.boolean(name)?.unwrap_or(false))
    }

    /// Reads a boolean.
    pub fn boolean(&mut self, name: &str) -> Result<Option<bool>, Error> {
        match self.take(name) {
            None => Ok(None),
            Some(Value::Bool(flag)) => Ok(Some(flag)),
            Some(other) => Err(self.wrong(name, "true or false", &other)),
        }
    }

    /// Reads an integer within the range.
    pub fn integer<T>(&mut self, name: &str, range: RangeInclusive<T>) -> Result<Option<T>, Error>
    where
        T: TryFrom<i128> + PartialOrd + Display,
    {
        let value = self.take(name);
        value
            .map(|value| integer(&self.path(name), &value, range))
            .transpose()
    }

    /// Reads a number of the set.
    pub fn number(&mut self, name: &str, numbers: &NumberRange) -> Result<Option<f32>, Error> {
        let value = self.take(name);
        value
            .map(|value| number(&self.path(name), &value, numbers))
            .transpose()
    }

    /// Reads a number of the set; an error if the field is absent.
    pub fn required_number(&mut self, name: &str, numbers: &NumberRange) -> Result<f32, Error> {
        self.number(name, numbers)?
            .ok_or_else(|| self.missing(name, numbers.expected))
    }

    /// Creates the error for an absent required field.
    pub fn missing(&self, name: &str, expected: &str) -> Error {
        let path = self.path(name);
        Error::bad_request(
            "missing-field",
            format!("`{path}` is missing; expected {expected}"),
        )
        .with_field(&path)
    }

    fn wrong(&self, name: &str, expected: &str, found: &Value) -> Error {
        wrong_type(&self.path(name), expected, found)
    }
}

/// Creates the error for a value of the wrong type at `path`.
pub fn wrong_type(path: &str, expected: &str, found: &Value) -> Error {
    Error::wrong_type(&format!("`{path}`"), expected, found).with_field(path)
}

/// Converts the value at `path` to an integer within the range.
pub fn integer<T>(path: &str, value: &Value, range: RangeInclusive<T>) -> Result<T, Error>
where
    T: TryFrom<i128> + PartialOrd + Display,
{
    let Value::Number(number) = value else {
        return Err(wrong_type(path, "an integer", value));
    };
    let negative = || number.as_i64().map(i128::from);
    let found = number.as_u64().map(i128::from).or_else(negative);
    found
        .and_then(|value| T::try_from(value).ok())
        .filter(|value| range.contains(value))
        .ok_or_else(|| {
            out_of_range(
                path,
                value,
                &format!("an integer from {} to {}", range.start(), range.end()),
            )
        })
}

/// Converts the value at `path` to a number of the set.
pub fn number(path: &str, value: &Value, numbers: &NumberRange) -> Result<f32, Error> {
    let Value::Number(number) = value else {
        return Err(wrong_type(path, "a number", value));
    };
    number
        .as_f64()
        .map(|value| value as f32)
        .filter(|value| value.is_finite() && (numbers.contains)(*value))
        .ok_or_else(|| out_of_range(path, value, numbers.expected))
}

/// Creates the error for a value outside the allowed ones at `path`.
pub fn out_of_range(path: &str, value: &Value, expected: &str) -> Error {
    Error::bad_request(
        "out-of-range",
        format!("`{path}` is {value}; expected {expected}"),
    )
    .with_field(path)
}
