//! Recent log lines of a deployment's plugins.
//!
//! A ring of at most [`MAX_LINES`] lines and [`MAX_BYTES`] of text; the oldest lines are dropped first.
//! Readers keep no state in it. Each remembers the number of the last line it read, and a gap in the
//! numbers shows how many lines a slow reader missed.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};
use tokio::sync::watch;

/// Most lines in the ring.
const MAX_LINES: usize = 1000;
/// Most bytes of text in the ring.
const MAX_BYTES: usize = 1 << 20;

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
    /// `stdout` or `stderr`.
    pub stream: &'static str,
    /// The line without its end.
    pub text: String,
}

/// Recent log lines of a deployment.
#[derive(Debug)]
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

impl Default for Logs {
    fn default() -> Self {
        Self {
            ring: Mutex::default(),
            latest: watch::Sender::new(0),
        }
    }
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
        text: String,
    ) {
        #[expect(clippy::disallowed_methods, reason = "for people who read it")]
        let time = SystemTime::now().duration_since(UNIX_EPOCH);
        let mut ring = self.lock();
        ring.latest += 1;
        let number = ring.latest;
        ring.bytes += text.len();
        ring.lines.push_back(LogLine {
            number,
            time_ms: time.map_or(0, |time| u64::try_from(time.as_millis()).unwrap_or(0)),
            revision,
            call: Arc::clone(call),
            stream,
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

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(lines: &[LogLine]) -> Vec<u64> {
        lines.iter().map(|line| line.number).collect()
    }

    #[test]
    fn ring_keeps_recent_lines_within_bounds() {
        let logs = Logs::default();
        let call: Arc<str> = "7".into();
        let watch = logs.watch();
        for number in 1..=1005 {
            logs.add(Some(1), &call, "stdout", format!("line {number}"));
        }
        assert_eq!(*watch.borrow(), 1005);
        let first = logs.after(0, 2);
        assert_eq!(numbers(&first), [6, 7], "the oldest lines are dropped");
        assert_eq!(first[0].text, "line 6");
        assert_eq!(numbers(&logs.after(1003, 10)), [1004, 1005]);
        assert_eq!(logs.after(1005, 10), []);
        for _ in 0..300 {
            logs.add(None, &call, "stderr", "x".repeat(4096));
        }
        let ring = logs.lock();
        assert!(
            ring.bytes <= MAX_BYTES && ring.lines.len() == 256,
            "{}",
            ring.bytes
        );
    }
}
