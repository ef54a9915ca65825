//! Numbers with a range, so that deserializing a manifest reports an invalid one with its position.

use serde::{Deserialize, Deserializer, Serialize, de};
use std::time::Duration;

/// An integer from `MIN` to `MAX`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct BoundedInteger<const MIN: u64, const MAX: u64>(u64);

impl<const MIN: u64, const MAX: u64> BoundedInteger<MIN, MAX> {
    /// Creates the number. `None` if it is out of range.
    pub fn new(number: u64) -> Option<Self> {
        (MIN..=MAX).contains(&number).then_some(Self(number))
    }

    /// The value.
    pub fn get(self) -> u64 {
        self.0
    }

    /// The value times `unit`, saturated.
    pub fn times(self, unit: u64) -> usize {
        usize::try_from(self.0.saturating_mul(unit)).unwrap_or(usize::MAX)
    }
}

impl<'de, const MIN: u64, const MAX: u64> Deserialize<'de> for BoundedInteger<MIN, MAX> {
    fn deserialize<D: Deserializer<'de>>(input: D) -> Result<Self, D::Error> {
        let number = i64::deserialize(input)?;
        u64::try_from(number)
            .ok()
            .and_then(Self::new)
            .ok_or_else(|| {
                de::Error::custom(format!(
                    "{number} is out of range; give an integer from {MIN} to {MAX}"
                ))
            })
    }
}

/// Seconds, with fractions, from a millisecond to 31 days.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(transparent)]
pub struct BoundedSeconds(f64);

impl BoundedSeconds {
    const RANGE: std::ops::RangeInclusive<f64> = 0.001..=2_678_400.0;

    /// The value as a duration.
    pub fn duration(self) -> Duration {
        Duration::from_secs_f64(self.0)
    }
}

impl From<Duration> for BoundedSeconds {
    fn from(time: Duration) -> Self {
        BoundedSeconds(
            time.as_secs_f64()
                .clamp(*Self::RANGE.start(), *Self::RANGE.end()),
        )
    }
}

impl<'de> Deserialize<'de> for BoundedSeconds {
    fn deserialize<D: Deserializer<'de>>(input: D) -> Result<Self, D::Error> {
        let number = f64::deserialize(input)?;
        if Self::RANGE.contains(&number) {
            return Ok(BoundedSeconds(number));
        }
        Err(de::Error::custom(format!(
            "{number} is out of range; give seconds from {} to {}",
            Self::RANGE.start(),
            Self::RANGE.end()
        )))
    }
}

#[cfg(test)]
impl<const MIN: u64, const MAX: u64> schemars::JsonSchema for BoundedInteger<MIN, MAX> {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> std::borrow::Cow<'static, str> {
        format!("Integer{MIN}To{MAX}").into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({"type": "integer", "minimum": MIN, "maximum": MAX})
    }
}

#[cfg(test)]
impl schemars::JsonSchema for BoundedSeconds {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Seconds".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({
            "type": "number",
            "minimum": Self::RANGE.start(),
            "maximum": Self::RANGE.end(),
        })
    }
}
