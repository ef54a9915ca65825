//! Parsers of values that several arguments share.

use std::time::Duration;

/// Parses a whole number in a range.
pub fn whole(range: std::ops::RangeInclusive<u64>) -> clap::builder::RangedU64ValueParser<u64> {
    clap::value_parser!(u64).range(range)
}

/// Parses seconds, with a fraction if needed, up to a month.
pub fn seconds(text: &str) -> Result<Duration, String> {
    match text.parse::<f64>() {
        Ok(number) if (0.001..=2_678_400.0).contains(&number) => {
            Ok(Duration::from_secs_f64(number))
        }
        _ => Err("write seconds, e.g. 30 or 0.5".to_owned()),
    }
}
