//! `strftime_now` of chat templates: the UTC date in C's and Python's notation.

use chrono::DateTime;
use minijinja::{Error, ErrorKind};
use std::fmt::Write;

/// Formats `seconds` since 1970. An unknown directive is an error: a wrong date in a prompt would go
/// unnoticed.
pub fn strftime(format: &str, seconds: u64) -> Result<String, Error> {
    let mut text = String::new();
    i64::try_from(seconds)
        .ok()
        .and_then(|seconds| DateTime::from_timestamp(seconds, 0))
        .and_then(|now| write!(text, "{}", now.format(format)).ok())
        .map(|()| text)
        .ok_or_else(|| {
            let detail = format!("strftime_now cannot apply the format {format:?}");
            Error::new(ErrorKind::InvalidOperation, detail)
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_equal_those_of_date_u() {
        // `date -u -d @SECONDS +FORMAT`
        for (seconds, format, expected) in [
            (0, "%Y-%m-%d %H:%M:%S", "1970-01-01 00:00:00"),
            (0, "%A %j", "Thursday 001"),
            (951_782_400, "%d %b %Y, day %j", "29 Feb 2000, day 060"),
            (
                1_735_689_599,
                "%d %B %Y %I:%M %p, %a, %j",
                "31 December 2024 11:59 PM, Tue, 366",
            ),
            (
                1_767_225_600,
                "%-d/%-m/%y %F %T %Z",
                "1/1/26 2026-01-01 00:00:00 UTC",
            ),
            (4_107_542_400, "%e %B %Y %%", " 1 March 2100 %"),
        ] {
            assert_eq!(strftime(format, seconds).unwrap(), expected);
        }
    }

    #[test]
    fn unknown_directive_is_an_error() {
        for format in ["%K", "%", "%-", "abc %é"] {
            assert!(strftime(format, 0).is_err(), "{format}");
        }
    }
}
