//! Lines with a level in the deployment's log, as `corral logs` shows it. The bounds of standard output hold for them, too.
//!
//! ```
//! use corral_sdk::{log, testing::Script};
//!
//! let script = Script::new();
//! script.run(async {
//!     log::info("started");
//!     log::warn(format_args!("{} of {} left", 2, 9));
//!     log::log(log::Level::Debug, "cache", "miss");
//! });
//! assert_eq!(script.logs()[1], (log::Level::Warn, String::new(), "2 of 9 left".to_owned()));
//! ```

use std::fmt::Display;

use crate::backend;
pub use crate::bindings::logging::wasi::logging::logging::Level;

/// Logs a line. A context that is not empty stands before the message.
pub fn log(level: Level, context: &str, message: impl Display) {
    backend::log(level, context, &message.to_string());
}

/// Logs values of variables and the flow of control.
pub fn trace(message: impl Display) {
    log(Level::Trace, "", message);
}

/// Logs a line for somebody who debugs the plugin.
pub fn debug(message: impl Display) {
    log(Level::Debug, "", message);
}

/// Logs a line for somebody who monitors the plugin.
pub fn info(message: impl Display) {
    log(Level::Info, "", message);
}

/// Logs a hazardous situation.
pub fn warn(message: impl Display) {
    log(Level::Warn, "", message);
}

/// Logs a serious error.
pub fn error(message: impl Display) {
    log(Level::Error, "", message);
}

/// Logs a fatal error.
pub fn critical(message: impl Display) {
    log(Level::Critical, "", message);
}
