//! `--config` of `corral serve`: its options in a TOML file.
//!
//! The options' definitions for clap are the only source: a key is an option's long name, its type follows from the
//! option's parser, and its values go in front of the command line's arguments, so parsers, conflicts and messages are
//! clap's own. A new option is a new key. Keys are flat, because headings of options only sort the help.
//!
//! A flag takes the place of the file's key, lists included, and so does an environment variable that stands for a
//! flag. Paths are relative to the file's directory.

pub(crate) mod fields;
pub(crate) mod file;
mod schema;
mod source;

pub(crate) use source::{ConfigEntry, ConfigSource, OptionChange};

use crate::Error;
use crate::terminal::print;
use clap::{Command, Subcommand};
use std::process::ExitCode;

#[derive(Debug, Subcommand)]
pub enum ConfigCommand {
    /// Print the JSON Schema of the file of `corral serve --config`
    Schema,
}

/// Runs `corral config`. `serve` is the definition of `corral serve`.
pub(crate) fn config(command: &ConfigCommand, serve: Command) -> Result<ExitCode, Error> {
    match command {
        ConfigCommand::Schema => print(&format!("{:#}\n", schema::schema(serve))),
    }
}
