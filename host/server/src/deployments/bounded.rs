//! Numbers of a manifest that know their own range, so that one outside it is refused where it stands.

use serde::{Deserialize, Deserializer, Serialize, de};
use std::time::Duration;

/// A whole number from `MIN` to `MAX`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct Whole<const MIN: u64, const MAX: u64>(u64);

impl<const MIN: u64, const MAX: u64> Whole<MIN, MAX> {
    /// The number; nothing if it is out of range.
    pub fn new(number: u64) -> Option<Self> {
        (MIN..=MAX).contains(&number).then_some(Self(number))
    }

    /// The number.
    pub fn get(self) -> u64 {
        self.0
    }

    /// The number as a size in memory, `unit` bytes each, as far as addresses go.
    pub fn times(self, unit: u64) -> usize {
        usize::try_from(self.0.saturating_mul(unit)).unwrap_or(usize::MAX)
    }
}

impl<'de, const MIN: u64, const MAX: u64> Deserialize<'de> for Whole<MIN, MAX> {
    fn deserialize<D: Deserializer<'de>>(input: D) -> Result<Self, D::Error> {
        let number = i64::deserialize(input)?;
        u64::try_from(number)
            .ok()
            .and_then(Self::new)
            .ok_or_else(|| {
                de::Error::custom(format!(
                    "{number} is out of range; give a whole number from {MIN} to {MAX}"
                ))
            })
    }
}

/// Seconds, a fraction allowed, from a millisecond to 31 days.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(transparent)]
pub struct Seconds(f64);

impl Seconds {
    const RANGE: std::ops::RangeInclusive<f64> = 0.001..=2_678_400.0;

    /// As a duration.
    pub fn duration(self) -> Duration {
        Duration::from_secs_f64(self.0)
    }
}

impl From<Duration> for Seconds {
    fn from(time: Duration) -> Self {
        Seconds(
            time.as_secs_f64()
                .clamp(*Self::RANGE.start(), *Self::RANGE.end()),
        )
    }
}

impl<'de> Deserialize<'de> for Seconds {
    fn deserialize<D: Deserializer<'de>>(input: D) -> Result<Self, D::Error> {
        let number = f64::deserialize(input)?;
        if Self::RANGE.contains(&number) {
            return Ok(Seconds(number));
        }
        Err(de::Error::custom(format!(
            "{number} is out of range; give seconds from {} to {}",
            Self::RANGE.start(),
            Self::RANGE.end()
        )))
    }
}

#[cfg(test)]
impl<const MIN: u64, const MAX: u64> schemars::JsonSchema for Whole<MIN, MAX> {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> std::borrow::Cow<'static, str> {
        format!("Whole{MIN}To{MAX}").into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({"type": "integer", "minimum": MIN, "maximum": MAX})
    }
}

#[cfg(test)]
impl schemars::JsonSchema for Seconds {
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
