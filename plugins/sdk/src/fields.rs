//! A JSON object that is read member by member, and every way in which a member can be wrong.
//!
//! `null` counts as absent. A problem names the member with its whole path, such as
//! `samplers[2].dry.base` ([`Error::member`]), and its code is `wrong-type`, `out-of-range`,
//! `missing-field` or `unknown-field`.
//!
//! ```
//! use corral_sdk::fields::{Fields, SHARE};
//!
//! let body = serde_json::json!({"top_p": 1.5, "seed": null});
//! let mut fields = Fields::of_body(body.as_object().cloned().unwrap());
//! assert_eq!(fields.integer("seed", 0..=9_u32), Ok(None));
//! let error = fields.number("top_p", &SHARE).unwrap_err();
//! assert_eq!(error.to_string(), "`top_p` is 1.5; expected a number from 0 to 1");
//! assert_eq!(error.member(), Some("top_p"));
//! ```

use std::fmt::Display;
use std::ops::RangeInclusive;

use serde_json::{Map, Value};

use crate::Error;

/// The members of an object that were not read yet.
pub struct Fields {
    /// The object's own path; empty for the body.
    path: String,
    members: Map<String, Value>,
}

/// Which finite numbers a member may have.
pub struct Numbers {
    /// In words, after "expected".
    pub expected: &'static str,
    /// Whether a number is one of them.
    pub fits: fn(f32) -> bool,
}

/// Any.
pub const FINITE: Numbers = Numbers {
    expected: "a number",
    fits: |_| true,
};
/// From 0.
pub const NOT_NEGATIVE: Numbers = Numbers {
    expected: "a number of at least 0",
    fits: |value| value >= 0.0,
};
/// Above 0.
pub const POSITIVE: Numbers = Numbers {
    expected: "a number over 0",
    fits: |value| value > 0.0,
};
/// From 1.
pub const FROM_ONE: Numbers = Numbers {
    expected: "a number of at least 1",
    fits: |value| value >= 1.0,
};
/// From 0 to 1.
pub const SHARE: Numbers = Numbers {
    expected: "a number from 0 to 1",
    fits: |value| (0.0..=1.0).contains(&value),
};

impl Fields {
    /// Of the body itself.
    pub fn of_body(members: Map<String, Value>) -> Self {
        Fields {
            path: String::new(),
            members,
        }
    }

    /// Of what stands at `path`, which has to be an object.
    pub fn of(path: String, value: Value) -> Result<Self, Error> {
        match value {
            Value::Object(members) => Ok(Fields { path, members }),
            other => Err(wrong_type(&path, "an object", &other)),
        }
    }

    /// The object of a body in JSON text.
    pub fn parse(body: &[u8]) -> Result<Self, Error> {
        let value: Value = serde_json::from_slice(body).map_err(|error| {
            // serde_json's text ends with "at line L column C".
            Error::bad_request("invalid-json", format!("the body is not JSON: {error}"))
        })?;
        match value {
            Value::Object(members) => Ok(Self::of_body(members)),
            other => Err(Error::wrong_type("the body", "an object", &other)),
        }
    }

    /// What was not read yet, as an object.
    pub fn into_value(self) -> Value {
        Value::Object(self.members)
    }

    /// The path of a member.
    pub fn path(&self, name: &str) -> String {
        if self.path.is_empty() {
            name.to_owned()
        } else {
            format!("{}.{name}", self.path)
        }
    }

    /// A problem that names all members that were not read and are none of these.
    pub fn refuse_unknown(&self, known: &[&str]) -> Result<(), Error> {
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
                "{} {} not known here; known are {}",
                unknown.join(", "),
                if unknown.len() == 1 { "is" } else { "are" },
                known.join(", ")
            ),
        )
        .about(&first))
    }

    /// The one member that is there, by name; a problem unless it is exactly one, and one of `known`.
    pub fn only(mut self, known: &[&str]) -> Result<(String, Value), Error> {
        self.refuse_unknown(known)?;
        self.members.retain(|_, value| !value.is_null());
        let count = self.members.len();
        let mut members = self.members.into_iter();
        match (members.next(), members.next()) {
            (Some(only), None) => Ok(only),
            _ => {
                let known: Vec<_> = known.iter().map(|name| format!("`{name}`")).collect();
                Err(Error::bad_request(
                    "not-one-member",
                    format!(
                        "`{}` has {count} members; expected exactly one of {}",
                        self.path,
                        known.join(", ")
                    ),
                )
                .about(&self.path))
            }
        }
    }

    /// Whatever the member is, and it stays to be read.
    pub fn peek(&self, name: &str) -> Option<&Value> {
        self.members.get(name).filter(|value| !value.is_null())
    }

    /// Whatever the member is.
    pub fn take(&mut self, name: &str) -> Option<Value> {
        self.members.remove(name).filter(|value| !value.is_null())
    }

    /// Text.
    pub fn text(&mut self, name: &str) -> Result<Option<String>, Error> {
        match self.take(name) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(other) => Err(self.wrong(name, "a string", &other)),
        }
    }

    /// A list.
    pub fn list(&mut self, name: &str) -> Result<Option<Vec<Value>>, Error> {
        match self.take(name) {
            None => Ok(None),
            Some(Value::Array(list)) => Ok(Some(list)),
            Some(other) => Err(self.wrong(name, "a list", &other)),
        }
    }

    /// An object.
    pub fn object(&mut self, name: &str) -> Result<Option<Fields>, Error> {
        let value = self.take(name);
        value
            .map(|value| Fields::of(self.path(name), value))
            .transpose()
    }

    /// True or false; false if it is not there.
    pub fn flag(&mut self, name: &str) -> Result<bool, Error> {
        Ok(self.choice(name)?.unwrap_or(false))
    }

    /// True or false.
    pub fn choice(&mut self, name: &str) -> Result<Option<bool>, Error> {
        match self.take(name) {
            None => Ok(None),
            Some(Value::Bool(flag)) => Ok(Some(flag)),
            Some(other) => Err(self.wrong(name, "true or false", &other)),
        }
    }

    /// An integer within the range.
    pub fn integer<T>(&mut self, name: &str, range: RangeInclusive<T>) -> Result<Option<T>, Error>
    where
        T: TryFrom<u64> + PartialOrd + Display,
    {
        let value = self.take(name);
        value
            .map(|value| integer(&self.path(name), &value, range))
            .transpose()
    }

    /// A number of those.
    pub fn number(&mut self, name: &str, numbers: &Numbers) -> Result<Option<f32>, Error> {
        let value = self.take(name);
        value
            .map(|value| number(&self.path(name), &value, numbers))
            .transpose()
    }

    /// The same for a member that has to be there.
    pub fn needed_number(&mut self, name: &str, numbers: &Numbers) -> Result<f32, Error> {
        self.number(name, numbers)?
            .ok_or_else(|| self.missing(name, numbers.expected))
    }

    /// The problem that a member is not given that has to be.
    pub fn missing(&self, name: &str, expected: &str) -> Error {
        let path = self.path(name);
        Error::bad_request(
            "missing-field",
            format!("`{path}` is not given; expected {expected}"),
        )
        .about(&path)
    }

    fn wrong(&self, name: &str, expected: &str, found: &Value) -> Error {
        wrong_type(&self.path(name), expected, found)
    }
}

/// The problem that the member at `path` has another type than it should.
pub fn wrong_type(path: &str, expected: &str, found: &Value) -> Error {
    Error::wrong_type(&format!("`{path}`"), expected, found).about(path)
}

/// The integer at `path`.
pub fn integer<T>(path: &str, value: &Value, range: RangeInclusive<T>) -> Result<T, Error>
where
    T: TryFrom<u64> + PartialOrd + Display,
{
    let Value::Number(number) = value else {
        return Err(wrong_type(path, "an integer", value));
    };
    number
        .as_u64()
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

/// The number at `path`.
pub fn number(path: &str, value: &Value, numbers: &Numbers) -> Result<f32, Error> {
    let Value::Number(number) = value else {
        return Err(wrong_type(path, "a number", value));
    };
    number
        .as_f64()
        .map(|value| value as f32)
        .filter(|value| value.is_finite() && (numbers.fits)(*value))
        .ok_or_else(|| out_of_range(path, value, numbers.expected))
}

/// The problem that the value at `path` is none of those that it may be.
pub fn out_of_range(path: &str, value: &Value, expected: &str) -> Error {
    Error::bad_request(
        "out-of-range",
        format!("`{path}` is {value}; expected {expected}"),
    )
    .about(path)
}
