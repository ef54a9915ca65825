//! The last lines that the plugins of a deployment wrote, for whoever asks later.
//!
//! A ring: [`LINES`] lines and [`BYTES`] of text, whichever is reached first; the oldest go. Readers hold
//! nothing in it: each knows the number of the last line it saw, and one that is too slow is told how
//! many it missed.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};
use tokio::sync::watch;

/// Most lines that are kept.
const LINES: usize = 1000;
/// Most bytes of text that are kept.
const BYTES: usize = 1 << 20;

/// A line that a plugin wrote.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogLine {
    /// Counts the lines of the deployment, from 1.
    pub number: u64,
    /// When it was written, in milliseconds since 1970.
    pub time_ms: u64,
    /// The revision whose plugin wrote it, where it has a number.
    pub revision: Option<u64>,
    /// The id of the call, or its number.
    pub call: Arc<str>,
    /// `stdout` or `stderr`.
    pub stream: &'static str,
    /// The line without its end.
    pub text: String,
}

/// The last lines of a deployment.
#[derive(Debug)]
pub struct Logs {
    ring: Mutex<Ring>,
    /// The number of the latest line.
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
    pub(crate) fn add(
        &self,
        revision: Option<u64>,
        call: &Arc<str>,
        stream: &'static str,
        text: String,
    ) {
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
        while ring.lines.len() > LINES || ring.bytes > BYTES {
            let Some(oldest) = ring.lines.pop_front() else {
                break;
            };
            ring.bytes -= oldest.text.len();
        }
        drop(ring);
        self.latest.send_replace(number);
    }

    /// At most `most` lines after that of number `after`, the oldest first. Lines that are gone are
    /// left out: there is a gap between `after` and the first number.
    pub fn after(&self, after: u64, most: usize) -> Vec<LogLine> {
        let ring = self.lock();
        let from = ring.lines.partition_point(|line| line.number <= after);
        ring.lines.range(from..).take(most).cloned().collect()
    }

    /// Tells when there are new lines; it holds the number of the latest.
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
    fn the_last_lines_are_kept_within_bounds() {
        let logs = Logs::default();
        let call: Arc<str> = "7".into();
        let watch = logs.watch();
        for number in 1..=1005 {
            logs.add(Some(1), &call, "stdout", format!("line {number}"));
        }
        assert_eq!(*watch.borrow(), 1005);
        let first = logs.after(0, 2);
        assert_eq!(numbers(&first), [6, 7], "the oldest are gone");
        assert_eq!(first[0].text, "line 6");
        assert_eq!(numbers(&logs.after(1003, 10)), [1004, 1005]);
        assert_eq!(logs.after(1005, 10), []);
        for _ in 0..300 {
            logs.add(None, &call, "stderr", "x".repeat(4096));
        }
        let ring = logs.lock();
        assert!(
            ring.bytes <= BYTES && ring.lines.len() == 256,
            "{}",
            ring.bytes
        );
    }
}
