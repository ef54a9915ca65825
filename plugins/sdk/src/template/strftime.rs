//! `strftime_now` of the chat templates: the date in UTC, in C's and Python's notation.

use minijinja::{Error, ErrorKind};

const DAYS: [&str; 7] = [
    "Sunday",
    "Monday",
    "Tuesday",
    "Wednesday",
    "Thursday",
    "Friday",
    "Saturday",
];
const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];

/// Writes `seconds` since 1970 as `format` says. A letter that is not known is an error, since a
/// wrong date in a prompt would not be noticed.
pub fn strftime(format: &str, seconds: u64) -> Result<String, Error> {
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    let (year, month, day) = civil(days);
    let weekday = DAYS[((days + 4) % 7) as usize];
    let month_name = MONTHS[month as usize - 1];
    let (hour, minute) = (second / 3600, second / 60 % 60);

    let mut text = String::new();
    let mut characters = format.chars();
    while let Some(character) = characters.next() {
        if character != '%' {
            text.push(character);
            continue;
        }
        let mut letter = characters.next();
        // glibc's way to leave out the padding.
        let bare = letter == Some('-');
        if bare {
            letter = characters.next();
        }
        let padded = |value: u64| {
            if bare {
                format!("{value}")
            } else {
                format!("{value:02}")
            }
        };
        text += &match letter {
            Some('Y') => year.to_string(),
            Some('y') => padded(year % 100),
            Some('m') => padded(month),
            Some('d') => padded(day),
            Some('e') => format!("{day:2}"),
            Some('B') => month_name.to_owned(),
            Some('b' | 'h') => month_name[..3].to_owned(),
            Some('A') => weekday.to_owned(),
            Some('a') => weekday[..3].to_owned(),
            Some('H') => padded(hour),
            Some('I') => padded((hour + 11) % 12 + 1),
            Some('p') => (if hour < 12 { "AM" } else { "PM" }).to_owned(),
            Some('M') => padded(minute),
            Some('S') => padded(second % 60),
            Some('j') => format!("{:03}", days - days_from_civil(year) + 1),
            Some('F') => format!("{year}-{month:02}-{day:02}"),
            Some('T') => format!("{hour:02}:{minute:02}:{:02}", second % 60),
            Some('Z') => "UTC".to_owned(),
            Some('z') => "+0000".to_owned(),
            Some('%') => "%".to_owned(),
            _ => {
                return Err(Error::new(
                    ErrorKind::InvalidOperation,
                    format!("strftime_now does not know all of the format {format:?}"),
                ));
            }
        };
    }
    Ok(text)
}

/// Year, month and day of a day counted from 1970-01-01: Howard Hinnant's `civil_from_days`, for
/// days that are not before 1970.
fn civil(days: u64) -> (u64, u64, u64) {
    let shifted = days + 719_468;
    let era = shifted / 146_097;
    let of_era = shifted % 146_097;
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let march_month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * march_month + 2) / 5 + 1;
    let month = if march_month < 10 {
        march_month + 3
    } else {
        march_month - 9
    };
    (year_of_era + era * 400 + u64::from(month <= 2), month, day)
}

/// Day number of January 1st of `year`.
fn days_from_civil(year: u64) -> u64 {
    let before = year - 1;
    365 * (year - 1970) + (before / 4 - before / 100 + before / 400) - 477
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_those_of_date_u() {
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
    fn an_unknown_letter_is_an_error() {
        for format in ["%Q", "%", "%-", "abc %é"] {
            assert!(strftime(format, 0).is_err(), "{format}");
        }
    }
}
