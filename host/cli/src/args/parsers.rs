//! Parsers of values that several arguments share.

use std::ops::RangeInclusive;
use std::time::Duration;

/// Parses a whole number in a range.
pub fn whole(range: RangeInclusive<u64>) -> clap::builder::RangedU64ValueParser<u64> {
    clap::value_parser!(u64).range(range)
}

/// The seconds that [`seconds`] accepts, up to a month.
pub(crate) const SECONDS: RangeInclusive<f64> = 0.001..=2_678_400.0;

/// Parses seconds, with a fraction if needed.
pub fn seconds(text: &str) -> Result<Duration, String> {
    match text.parse::<f64>() {
        Ok(number) if SECONDS.contains(&number) => Ok(Duration::from_secs_f64(number)),
        _ => Err("write seconds, e.g. 30 or 0.5".to_owned()),
    }
}
