//! `wasi:logging`: lines with a level in the deployment's log. They are bounded as standard output is, which every plugin
//! has too, so they need no grant.

use super::bindings::wasi::logging::logging::{Host, Level};
use crate::logs::LogLevel;
use crate::state::State;
use std::io::Write;

impl From<Level> for LogLevel {
    fn from(level: Level) -> Self {
        match level {
            Level::Trace => Self::Trace,
            Level::Debug => Self::Debug,
            Level::Info => Self::Info,
            Level::Warn => Self::Warn,
            Level::Error => Self::Error,
            Level::Critical => Self::Critical,
        }
    }
}

impl Host for State {
    fn log(&mut self, level: Level, context: String, message: String) -> wasmtime::Result<()> {
        let level = LogLevel::from(level);
        let text = match context.is_empty() {
            true => message,
            false => format!("{context}: {message}"),
        };
        match self.log_output() {
            Some(output) => output.log(level, &text),
            // A command has this process's standard error. If nobody reads it, the command goes on.
            None => {
                let line = format!("{}: {}\n", level.name(), text.escape_debug());
                let _ = std::io::stderr().write_all(line.as_bytes());
            }
        }
        Ok(())
    }
}
