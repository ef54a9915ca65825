//! Recent log lines of a deployment's plugins.
//!
//! A ring of at most [`MAX_LINES`] lines and [`MAX_BYTES`] of text; the oldest lines are dropped first.
//! Readers keep no state in it. Each remembers the number of the last line it read, and a gap in the
//! numbers shows how many lines a slow reader missed.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use strum::{EnumString, IntoStaticStr, VariantNames};
use tokio::sync::watch;

/// Most lines in the ring.
const MAX_LINES: usize = 1000;
/// Most bytes of text in the ring.
const MAX_BYTES: usize = 1 << 20;

/// The level of a log line, as in `wasi:logging`.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, EnumString, IntoStaticStr, VariantNames,
)]
#[strum(serialize_all = "lowercase")]
pub enum LogLevel {
    /// Values of variables and the flow of control.
    Trace,
    /// For somebody who debugs the plugin.
    Debug,
    /// For somebody who monitors it.
    Info,
    /// A hazardous situation.
    Warn,
    /// A serious error.
    Error,
    /// A fatal error.
    Critical,
}

impl LogLevel {
    /// The names of all levels, the lowest first.
    pub const NAMES: &'static [&'static str] = Self::VARIANTS;

    /// Its name in logs and queries.
    pub fn name(self) -> &'static str {
        self.into()
    }
}

/// A log line of a plugin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogLine {
    /// Number of the line within the deployment, from 1.
    pub number: u64,
    /// Time of writing, in milliseconds since 1970.
    pub time_ms: u64,
    /// The plugin's revision, if it has a number.
    pub revision: Option<u64>,
    /// The id of the call, or its number.
    pub call: Arc<str>,
    /// `stdout`, `stderr`, or `log` for `wasi:logging`.
    pub stream: &'static str,
    /// Its level: that of `wasi:logging`, `info` on standard output, and none on standard error.
    pub level: Option<LogLevel>,
    /// The line without its end.
    pub text: String,
}

impl LogLine {
    /// Whether its level is at least `least`. Standard error has no level, and all its lines pass: they may be of a crash.
    pub fn passes(&self, least: Option<LogLevel>) -> bool {
        self.level >= least || self.level.is_none()
    }
}

/// Recent log lines of a deployment.
#[derive(Debug, Default)]
pub struct Logs {
    ring: Mutex<Ring>,
    /// Number of the latest line.
    latest: watch::Sender<u64>,
}

#[derive(Debug, Default)]
struct Ring {
    lines: VecDeque<LogLine>,
    bytes: usize,
    latest: u64,
}

impl Logs {
    /// Bytes of text in the ring.
    pub(crate) fn bytes(&self) -> usize {
        self.lock().bytes
    }

    /// Adds a line.
    pub(crate) fn add(
        &self,
        revision: Option<u64>,
        call: &Arc<str>,
        stream: &'static str,
        level: Option<LogLevel>,
        text: String,
    ) {
        let time_ms = now_ms();
        let mut ring = self.lock();
        ring.latest += 1;
        let number = ring.latest;
        ring.bytes += text.len();
        ring.lines.push_back(LogLine {
            number,
            time_ms,
            revision,
            call: Arc::clone(call),
            stream,
            level,
            text,
        });
        while ring.lines.len() > MAX_LINES || ring.bytes > MAX_BYTES {
            let Some(oldest) = ring.lines.pop_front() else {
                break;
            };
            ring.bytes -= oldest.text.len();
        }
        drop(ring);
        self.latest.send_replace(number);
    }

    /// The number after which to read to get the last `tail` lines that pass `least`, and only lines no older than `since`.
    /// 0 without either; the higher number with both.
    pub fn start(
        &self,
        tail: Option<u64>,
        least: Option<LogLevel>,
        since: Option<Duration>,
    ) -> u64 {
        let oldest = since.map(|since| {
            let since = u64::try_from(since.as_millis()).unwrap_or(u64::MAX);
            now_ms().saturating_sub(since)
        });
        let ring = self.lock();
        let tail = match tail {
            None => 0,
            Some(0) => ring.latest,
            Some(tail) => {
                let mut passing = ring.lines.iter().rev().filter(|line| line.passes(least));
                let first = passing.nth(usize::try_from(tail - 1).unwrap_or(usize::MAX));
                first.map_or(0, |line| line.number - 1)
            }
        };
        let since = oldest.map_or(0, |oldest| {
            // The clock may have been set back between two lines.
            let mut lines = ring.lines.iter();
            let first = lines.find(|line| line.time_ms >= oldest);
            first.map_or(ring.latest, |line| line.number - 1)
        });
        tail.max(since)
    }

    /// Up to `max` lines with numbers above `after`, oldest first. Dropped lines are missing.
    pub fn after(&self, after: u64, max: usize) -> Vec<LogLine> {
        let ring = self.lock();
        let from = ring.lines.partition_point(|line| line.number <= after);
        ring.lines.range(from..).take(max).cloned().collect()
    }

    /// Watches the number of the latest line.
    pub fn watch(&self) -> watch::Receiver<u64> {
        self.latest.subscribe()
    }

    fn lock(&self) -> MutexGuard<'_, Ring> {
        self.ring.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Milliseconds since 1970.
fn now_ms() -> u64 {
    #[expect(clippy::disallowed_methods, reason = "for people who read it")]
    let time = SystemTime::now().duration_since(UNIX_EPOCH);
    time.map_or(0, |time| u64::try_from(time.as_millis()).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(lines: &[LogLine]) -> Vec<u64> {
        lines.iter().map(|line| line.number).collect()
    }

    #[test]
    fn start_is_before_last_lines_and_times() {
        let logs = Logs::default();
        assert_eq!(logs.start(Some(5), None, Some(Duration::from_secs(5))), 0);
        for text in ["a", "b", "c"] {
            logs.add(None, &"7".into(), "stdout", None, text.to_owned());
        }
        let hour = Duration::from_secs(3600);
        for (line, age) in [3, 2, 1].into_iter().enumerate() {
            logs.lock().lines[line].time_ms -= age * 3_600_000;
        }
        assert_eq!(logs.start(None, None, None), 0);
        assert_eq!(logs.start(Some(2), None, None), 1);
        assert_eq!(logs.start(Some(9), None, None), 0);
        assert_eq!(logs.start(Some(0), None, None), 3);
        assert_eq!(logs.start(None, None, Some(hour / 2)), 3);
        assert_eq!(logs.start(None, None, Some(hour * 5 / 2)), 1);
        assert_eq!(logs.start(Some(1), None, Some(hour * 5 / 2)), 2);
        assert_eq!(logs.start(Some(3), None, Some(hour * 3 / 2)), 2);
    }

    #[test]
    fn level_selects_lines_and_their_tail() {
        let logs = Logs::default();
        let add = |stream, level| logs.add(None, &"7".into(), stream, level, String::new());
        add("log", Some(LogLevel::Warn));
        add("stderr", None);
        add("log", Some(LogLevel::Critical));
        add("stdout", Some(LogLevel::Info));
        let selected = |least| {
            let lines = logs.after(0, 9).into_iter();
            Vec::from_iter(lines.filter(|line| line.passes(least)))
        };
        assert_eq!(numbers(&selected(None)), [1, 2, 3, 4]);
        assert_eq!(numbers(&selected(Some(LogLevel::Info))), [1, 2, 3, 4]);
        assert_eq!(numbers(&selected(Some(LogLevel::Warn))), [1, 2, 3]);
        assert_eq!(numbers(&selected(Some(LogLevel::Error))), [2, 3]);
        let start = |tail| logs.start(Some(tail), Some(LogLevel::Error), None);
        assert_eq!([start(0), start(1), start(2), start(3)], [4, 2, 1, 0]);
        for name in LogLevel::NAMES {
            assert_eq!(name.parse::<LogLevel>().map(LogLevel::name), Ok(*name));
        }
        assert!("loud".parse::<LogLevel>().is_err());
    }

    #[test]
    fn ring_keeps_recent_lines_within_bounds() {
        let logs = Logs::default();
        let call: Arc<str> = "7".into();
        let watch = logs.watch();
        for number in 1..=1005 {
            logs.add(Some(1), &call, "stdout", None, format!("line {number}"));
        }
        assert_eq!(*watch.borrow(), 1005);
        let first = logs.after(0, 2);
        assert_eq!(numbers(&first), [6, 7], "the oldest lines are dropped");
        assert_eq!(first[0].text, "line 6");
        assert_eq!(numbers(&logs.after(1003, 10)), [1004, 1005]);
        assert_eq!(logs.after(1005, 10), []);
        for _ in 0..300 {
            logs.add(None, &call, "stderr", None, "x".repeat(4096));
        }
        let ring = logs.lock();
        assert!(
            ring.bytes <= MAX_BYTES && ring.lines.len() == 256,
            "{}",
            ring.bytes
        );
    }
}
