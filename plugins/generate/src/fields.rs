//! A JSON object that is read member by member, and every way in which a member can be wrong.
//!
//! `null` counts as absent. A problem names the member with its whole path, such as
//! `samplers[2].dry.base`.

use std::fmt::Display;
use std::ops::RangeInclusive;

use serde_json::{Map, Value};

use corral_sdk::Error;

/// The members of an object that were not read yet.
pub struct Fields {
    /// The object's own path; empty for the body.
    path: String,
    members: Map<String, Value>,
}

/// Which finite numbers a member may have.
pub struct Numbers {
    expected: &'static str,
    fits: fn(f32) -> bool,
}

pub const FINITE: Numbers = Numbers {
    expected: "a number",
    fits: |_| true,
};
pub const NOT_NEGATIVE: Numbers = Numbers {
    expected: "a number of at least 0",
    fits: |value| value >= 0.0,
};
pub const POSITIVE: Numbers = Numbers {
    expected: "a number over 0",
    fits: |value| value > 0.0,
};
pub const FROM_ONE: Numbers = Numbers {
    expected: "a number of at least 1",
    fits: |value| value >= 1.0,
};
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
            other => Err(Error::wrong_type(&format!("`{path}`"), "an object", &other)),
        }
    }

    /// The path of a member.
    pub fn path(&self, name: &str) -> String {
        if self.path.is_empty() {
            name.to_owned()
        } else {
            format!("{}.{name}", self.path)
        }
    }

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
        let known: Vec<_> = known.iter().map(|name| format!("`{name}`")).collect();
        Err(Error::bad_request(
            "unknown-field",
            format!(
                "{} {} not known here; known are {}",
                unknown.join(", "),
                if unknown.len() == 1 { "is" } else { "are" },
                known.join(", ")
            ),
        ))
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
                ))
            }
        }
    }

    pub fn take(&mut self, name: &str) -> Option<Value> {
        self.members.remove(name).filter(|value| !value.is_null())
    }

    pub fn text(&mut self, name: &str) -> Result<Option<String>, Error> {
        match self.take(name) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(other) => Err(self.wrong(name, "a string", &other)),
        }
    }

    pub fn list(&mut self, name: &str) -> Result<Option<Vec<Value>>, Error> {
        match self.take(name) {
            None => Ok(None),
            Some(Value::Array(list)) => Ok(Some(list)),
            Some(other) => Err(self.wrong(name, "a list", &other)),
        }
    }

    pub fn flag(&mut self, name: &str) -> Result<bool, Error> {
        match self.take(name) {
            None => Ok(false),
            Some(Value::Bool(flag)) => Ok(flag),
            Some(other) => Err(self.wrong(name, "true or false", &other)),
        }
    }

    pub fn integer<T>(&mut self, name: &str, range: RangeInclusive<T>) -> Result<Option<T>, Error>
    where
        T: TryFrom<u64> + PartialOrd + Display,
    {
        let value = self.take(name);
        value
            .map(|value| integer(&self.path(name), &value, range))
            .transpose()
    }

    pub fn number(&mut self, name: &str, numbers: &Numbers) -> Result<Option<f32>, Error> {
        let value = self.take(name);
        value
            .map(|value| number(&self.path(name), &value, numbers))
            .transpose()
    }

    /// The same for a member that has to be there.
    pub fn needed_number(&mut self, name: &str, numbers: &Numbers) -> Result<f32, Error> {
        self.number(name, numbers)?.ok_or_else(|| {
            Error::bad_request(
                "missing-field",
                format!(
                    "`{}` is not given; expected {}",
                    self.path(name),
                    numbers.expected
                ),
            )
        })
    }

    fn wrong(&self, name: &str, expected: &str, found: &Value) -> Error {
        Error::wrong_type(&format!("`{}`", self.path(name)), expected, found)
    }
}

/// The integer at `path`.
pub fn integer<T>(path: &str, value: &Value, range: RangeInclusive<T>) -> Result<T, Error>
where
    T: TryFrom<u64> + PartialOrd + Display,
{
    let Value::Number(number) = value else {
        return Err(Error::wrong_type(&format!("`{path}`"), "an integer", value));
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
        return Err(Error::wrong_type(&format!("`{path}`"), "a number", value));
    };
    number
        .as_f64()
        .map(|value| value as f32)
        .filter(|value| value.is_finite() && (numbers.fits)(*value))
        .ok_or_else(|| out_of_range(path, value, numbers.expected))
}

fn out_of_range(path: &str, value: &Value, expected: &str) -> Error {
    Error::bad_request(
        "out-of-range",
        format!("`{path}` is {value}; expected {expected}"),
    )
}
