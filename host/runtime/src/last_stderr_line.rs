//! The last line that a call wrote to standard error. It mostly says why the call failed.

use std::sync::{Mutex, PoisonError};

/// What a Rust program adds to each panic.
const RUST_NOTE: &str = "note: ";

/// The last line of a call on standard error that says something: blank lines, indented lines, such as frames of a stack
/// trace, and notes of Rust's panics do not count.
#[derive(Debug, Default)]
pub struct LastLine(Mutex<Option<String>>);

impl LastLine {
    /// The line so far.
    pub fn get(&self) -> Option<String> {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Takes the next line, without its end.
    pub fn record(&self, line: &str) {
        let says_something = line.starts_with(|first: char| !first.is_whitespace());
        if says_something && !line.starts_with(RUST_NOTE) {
            *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(line.to_owned());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stack_traces_and_notes_do_not_count() {
        let last = LastLine::default();
        assert_eq!(last.get(), None);
        for line in [
            "thread 'main' panicked at src/lib.rs:3:5:",
            "no such key",
            "    at handle (app.js:3)",
            "",
            "note: run with `RUST_BACKTRACE=1` environment variable to display a backtrace",
        ] {
            last.record(line);
        }
        assert_eq!(last.get().as_deref(), Some("no such key"));
    }
}
