//! `wasi:logging/logging` of the scripted host.

use super::installed::script;
use crate::bindings::logging::wasi::logging::logging::Level;

pub(crate) fn log(level: Level, context: &str, message: &str) {
    let line = (level, context.to_owned(), message.to_owned());
    script().logs.borrow_mut().push(line);
}
