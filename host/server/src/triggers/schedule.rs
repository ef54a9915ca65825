//! When a schedule runs next. Pure: the caller gives the time, so that tests can move the clock.
//!
//! A time that was missed, because the server was down or its deployment paused or the clock was set forward, is caught up
//! once: of all missed times only the last one runs. A clock that is set back repeats nothing: a run that was handled stays
//! handled.

use super::settings::CronEntry;
use croner::Cron;
use croner::parser::{CronParser, Seconds, Year};
use jiff::tz::TimeZone;
use jiff::{Timestamp, Zoned};

/// A clock that is this much before the last run was wrong then; the schedule begins anew.
const MAX_SET_BACK_MS: u64 = 24 * 3600 * 1000;
/// Most missed times that are counted.
const MAX_MISSED: u64 = 1000;

/// A parsed schedule.
#[derive(Clone, Debug)]
pub(crate) struct Schedule {
    cron: Cron,
    zone: TimeZone,
}

/// What is to do now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Due {
    /// Nothing until this time. `None` if no further time exists.
    At(Option<u64>),
    /// Run for the time `scheduled_ms`; `missed` times before it are skipped.
    Now { scheduled_ms: u64, missed: u64 },
    /// The clock was set back by much: begin anew from now.
    Reset,
}

impl Schedule {
    /// Parses the schedule of an entry.
    ///
    /// # Errors
    /// What is wrong with it.
    pub(crate) fn of(entry: &CronEntry) -> Result<Self, String> {
        let parser = CronParser::builder()
            .seconds(Seconds::Disallowed)
            .year(Year::Disallowed)
            .dom_and_dow(false)
            .build();
        let cron = parser.parse(&entry.schedule).map_err(|error| {
            format!(
                "'{}' is not a schedule ({error}); give minute, hour, day of the month, month and day of the week, e.g. '0 3 * * *'",
                entry.schedule.escape_debug()
            )
        })?;
        let name = entry.time_zone.as_deref().unwrap_or("UTC");
        let zone = TimeZone::get(name).map_err(|_| {
            format!(
                "'{}' is not a time zone; give a name such as 'Europe/Berlin'",
                name.escape_debug()
            )
        })?;
        let schedule = Schedule { cron, zone };
        // Any time will do: a pattern such as the 31st of February has none.
        match schedule.next_after(1_700_000_000_000) {
            Some(_) => Ok(schedule),
            None => Err(format!("'{}' names no time", entry.schedule.escape_debug())),
        }
    }

    /// What is to do at `now_ms`, given the time up to which all runs were handled.
    pub(crate) fn due(&self, handled_ms: u64, now_ms: u64) -> Due {
        if handled_ms > now_ms.saturating_add(MAX_SET_BACK_MS) {
            return Due::Reset;
        }
        let Some(first) = self.next_after(handled_ms) else {
            return Due::At(None);
        };
        if first > now_ms {
            return Due::At(Some(first));
        }
        let (mut last, mut missed) = (first, 0);
        while let Some(next) = self.next_after(last).filter(|next| *next <= now_ms) {
            (last, missed) = (next, missed + 1);
            if missed == MAX_MISSED {
                // Far behind: the last time before now, without counting further.
                last = self.last_until(now_ms).unwrap_or(last);
                break;
            }
        }
        Due::Now {
            scheduled_ms: last,
            missed,
        }
    }

    /// The first time after `after_ms`.
    pub(crate) fn next_after(&self, after_ms: u64) -> Option<u64> {
        let next = self
            .cron
            .find_next_occurrence(&self.zoned(after_ms)?, false);
        milliseconds(&next.ok()?).filter(|next| *next > after_ms)
    }

    fn last_until(&self, until_ms: u64) -> Option<u64> {
        let last = self
            .cron
            .find_previous_occurrence(&self.zoned(until_ms)?, true);
        milliseconds(&last.ok()?)
    }

    fn zoned(&self, time_ms: u64) -> Option<Zoned> {
        let time = Timestamp::from_millisecond(i64::try_from(time_ms).ok()?).ok()?;
        Some(time.to_zoned(self.zone.clone()))
    }
}

fn milliseconds(time: &Zoned) -> Option<u64> {
    u64::try_from(time.timestamp().as_millisecond()).ok()
}

/// A time as RFC 3339.
pub(crate) fn rfc_3339(time_ms: u64) -> String {
    let time = i64::try_from(time_ms).ok();
    let time = time.and_then(|time| Timestamp::from_millisecond(time).ok());
    time.map_or_else(String::new, |time| time.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: u64 = 60_000;
    const HOUR: u64 = 60 * MINUTE;

    fn schedule(text: &str, zone: Option<&str>) -> Schedule {
        let text = format!(
            "schedule = '{text}'\npath = '/a'\n{}",
            zone.map_or_else(String::new, |zone| format!("time-zone = '{zone}'"))
        );
        Schedule::of(&toml::from_str(&text).expect("an entry")).expect("valid")
    }

    fn at(text: &str) -> u64 {
        let time: Timestamp = text.parse().expect("a time");
        u64::try_from(time.as_millisecond()).expect("after 1970")
    }

    /// All times after the first and until the second time, as UTC without seconds.
    fn times(schedule: &Schedule, from: &str, until: &str) -> Vec<String> {
        let (mut now, until) = (at(from), at(until));
        let mut times = Vec::new();
        while let Some(next) = schedule.next_after(now).filter(|next| *next <= until) {
            times.push(rfc_3339(next)[..16].to_owned());
            now = next;
        }
        times
    }

    #[test]
    fn missed_times_run_once() {
        let hourly = schedule("0 * * * *", None);
        let start = at("2026-03-01T00:00:00Z");
        assert_eq!(hourly.due(start, start), Due::At(Some(start + HOUR)));
        let due = |scheduled_ms, missed| Due::Now {
            scheduled_ms,
            missed,
        };
        assert_eq!(hourly.due(start, start + HOUR), due(start + HOUR, 0));
        // Down for five hours and a half.
        let now = start + 5 * HOUR + 30 * MINUTE;
        assert_eq!(hourly.due(start, now), due(start + 5 * HOUR, 4));
        let next = Due::At(Some(start + 6 * HOUR));
        assert_eq!(hourly.due(start + 5 * HOUR, now), next);
        // Down for ten years.
        let now = start + 10 * 365 * 24 * HOUR + MINUTE;
        assert_eq!(hourly.due(start, now), due(now - MINUTE, MAX_MISSED));
    }

    #[test]
    fn clock_set_back_repeats_nothing() {
        let daily = schedule("0 3 * * *", None);
        let handled = at("2026-03-01T03:00:00Z");
        for back in [MINUTE, HOUR, 23 * HOUR] {
            let next = Due::At(Some(handled + 24 * HOUR));
            assert_eq!(daily.due(handled, handled - back), next);
        }
        // A clock that was years ahead must not stop the schedule.
        let now = handled - 25 * HOUR;
        assert_eq!(daily.due(handled, now), Due::Reset);
        // Set forward by two days: one run.
        let now = handled + 48 * HOUR + MINUTE;
        let due = Due::Now {
            scheduled_ms: handled + 48 * HOUR,
            missed: 1,
        };
        assert_eq!(daily.due(handled, now), due);
        assert_eq!(
            daily.due(handled + 48 * HOUR, now),
            Due::At(Some(handled + 72 * HOUR))
        );
    }

    #[test]
    fn daily_run_stays_daily_across_clock_changes() {
        // In Berlin 02:00 to 03:00 is missing on 2026-03-29 and there twice on 2026-10-25.
        let inside = schedule("30 2 * * *", Some("Europe/Berlin"));
        assert_eq!(
            times(&inside, "2026-03-27T12:00:00Z", "2026-03-30T12:00:00Z"),
            ["2026-03-28T01:30", "2026-03-29T01:00", "2026-03-30T00:30"],
            "the missing time runs when the gap ends"
        );
        assert_eq!(
            times(&inside, "2026-10-23T12:00:00Z", "2026-10-26T12:00:00Z"),
            ["2026-10-24T00:30", "2026-10-25T00:30", "2026-10-26T01:30"],
            "the time that is there twice runs once"
        );
        let outside = schedule("0 3 * * *", Some("Europe/Berlin"));
        assert_eq!(
            times(&outside, "2026-03-27T12:00:00Z", "2026-03-30T12:00:00Z"),
            ["2026-03-28T02:00", "2026-03-29T01:00", "2026-03-30T01:00"]
        );
    }

    #[test]
    fn days_of_month_and_week_follow_cron() {
        let either = schedule("0 0 1 * MON", None);
        assert_eq!(
            times(&either, "2026-06-28T00:00:00Z", "2026-07-07T00:00:00Z"),
            ["2026-06-29T00:00", "2026-07-01T00:00", "2026-07-06T00:00"]
        );
        let quarter = schedule("*/15 8 * * *", Some("America/New_York"));
        assert_eq!(
            times(&quarter, "2026-01-05T13:00:00Z", "2026-01-06T00:00:00Z"),
            ["2026-01-05T13:15", "2026-01-05T13:30", "2026-01-05T13:45"]
        );
    }
}
