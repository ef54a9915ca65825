//! Reads the file into values of options, each with its line.

use super::ConfigEntry;
use super::fields::{self, ValueKind, field};
use crate::{Error, text_file};
use clap::error::{ContextKind, ContextValue};
use clap::{Arg, Command};
use std::ffi::OsString;
use std::path::Path;
use toml::de::{DeTable, DeValue};

/// Largest file.
const MAX_BYTES: u64 = 1 << 20;

/// Reads a file. The command defines the keys.
pub(crate) fn read(path: &Path, command: &Command) -> Result<Vec<ConfigEntry>, Error> {
    let text = text_file::read(path, MAX_BYTES + 1).map_err(|error| {
        Error::usage(format!(
            "cannot read the configuration {}: {error}; name a TOML file that this user can read",
            path.display()
        ))
    })?;
    if text.len() as u64 > MAX_BYTES {
        return Err(Error::usage(format!(
            "{} is larger than {MAX_BYTES} bytes, so it is no configuration; name another file",
            path.display()
        )));
    }
    // Absolute, so that neither the directory's name nor a change of the working directory alters a value.
    let dir = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let dir = dir.parent().unwrap_or(Path::new("/"));
    parse(&text, dir, command)
        .map_err(|(line, problem)| Error::usage(format!("{}:{line}: {problem}", path.display())))
}

/// The values in the order of the file, or the line of the first mistake and its description.
fn parse(text: &str, dir: &Path, command: &Command) -> Result<Vec<ConfigEntry>, (usize, String)> {
    let line_of = |offset: usize| {
        1 + text
            .bytes()
            .take(offset)
            .filter(|byte| *byte == b'\n')
            .count()
    };
    let document = DeTable::parse(text).map_err(|error| {
        let offset = error.span().map_or(0, |span| span.start);
        (line_of(offset), error.message().to_owned())
    })?;
    let mut entries = Vec::new();
    for (name, value) in document.get_ref() {
        let (key, at) = (name.get_ref(), name.span().start);
        let Some(option) = field(command, key) else {
            let is_table = matches!(value.get_ref(), DeValue::Table(_));
            return Err((line_of(at), unknown(command, key, is_table)));
        };
        let mut add = |value: Option<OsString>, offset: usize| {
            let entry = ConfigEntry {
                key: key.to_string(),
                value,
                line: line_of(offset),
            };
            entries.push((offset, entry));
        };
        let kind = ValueKind::of(option);
        let wrong = |found: &DeValue, offset: usize| {
            let (expected, found) = (kind.expected(), describe(found));
            let problem = format!("{key}: expected {expected}, found {found}");
            (line_of(offset), problem)
        };
        let offset = value.span().start;
        match (kind, value.get_ref()) {
            (ValueKind::Switch, DeValue::Boolean(true)) => add(None, at),
            (ValueKind::Switch, DeValue::Boolean(false)) => {}
            (ValueKind::List, DeValue::Array(items)) => {
                for item in items.iter() {
                    let offset = item.span().start;
                    let DeValue::String(text) = item.get_ref() else {
                        return Err(wrong(item.get_ref(), offset));
                    };
                    add(Some(fields::resolve_path(option, text, dir)), offset);
                }
            }
            (kind, value) => match scalar(kind, value, option, dir) {
                Some(value) => add(Some(value), offset),
                None => return Err(wrong(value, offset)),
            },
        }
    }
    // The parsed table is sorted by key.
    entries.sort_by_key(|(offset, _)| *offset);
    Ok(entries.into_iter().map(|(_, entry)| entry).collect())
}

/// A single value as a command-line argument; `None` if it is of another type.
fn scalar(kind: ValueKind, value: &DeValue, option: &Arg, dir: &Path) -> Option<OsString> {
    match (kind, value) {
        (ValueKind::Text, DeValue::String(text)) => Some(fields::resolve_path(option, text, dir)),
        (ValueKind::Integer | ValueKind::Number, DeValue::Integer(number)) => {
            match number.radix() {
                10 => Some(number.as_str().into()),
                // A number beyond 64 bits stays as written; the option's parser refuses it.
                radix => match i64::from_str_radix(number.as_str(), radix) {
                    Ok(number) => Some(number.to_string().into()),
                    Err(_) => Some(number.to_string().into()),
                },
            }
        }
        (ValueKind::Number, DeValue::Float(number)) => Some(number.as_str().into()),
        _ => None,
    }
}

fn describe(value: &DeValue) -> &'static str {
    match value {
        DeValue::String(_) => "a string",
        DeValue::Integer(_) => "an integer",
        DeValue::Float(_) => "a number with a fraction",
        DeValue::Boolean(_) => "true or false",
        DeValue::Datetime(_) => "a date",
        DeValue::Array(_) => "an array",
        DeValue::Table(_) => "a table",
    }
}

/// The message about an unknown key, with the key that was probably meant.
fn unknown(command: &Command, key: &str, is_table: bool) -> String {
    let shown = key.escape_debug();
    let flag = format!("--{key}");
    // clap suggests the most similar option.
    let error = command.clone().try_get_matches_from(["serve", &flag]);
    let meant = error.err().and_then(|error| {
        let Some(ContextValue::String(flag)) = error.get(ContextKind::SuggestedArg) else {
            return None;
        };
        Some(flag.trim_start_matches('-').to_owned())
    });
    match meant.filter(|meant| !is_table && field(command, meant).is_some()) {
        Some(meant) => format!("unknown field '{shown}'; did you mean '{meant}'?"),
        None => format!(
            "unknown field '{shown}'; the fields are the options of 'corral serve --help' without '--', and there are \
             no tables"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command_line::CommandLine;

    fn parse(text: &str) -> Result<Vec<ConfigEntry>, (usize, String)> {
        super::parse(text, Path::new("/d"), &CommandLine::serve_command())
    }

    #[test]
    fn values_of_all_types_become_arguments() {
        let text = "# c\nmodel = [\n  \"a=x.gguf\",\n  '/y.gguf',\n]\nmmap = true\nno-prefix-cache = false\n\
                    kv-cells = 4_096\nthreads = 0x10\ngrace-period = 0.5\ndrain-delay = 3\nlisten = 'h:1'\n";
        let entries = parse(text).expect("valid");
        let arguments = entries.iter().map(|entry| (entry.line, entry.argument()));
        let expected = [
            (3, "--model=a=/d/x.gguf"),
            (4, "--model=/y.gguf"),
            (6, "--mmap"),
            (8, "--kv-cells=4096"),
            (9, "--threads=16"),
            (10, "--grace-period=0.5"),
            (11, "--drain-delay=3"),
            (12, "--listen=h:1"),
        ];
        let expected = expected.map(|(line, argument)| (line, OsString::from(argument)));
        assert_eq!(Vec::from_iter(arguments), expected);
        assert_eq!(parse(""), Ok(Vec::new()));
    }

    #[test]
    fn mistakes_name_line_and_field() {
        for (text, line, expected) in [
            (
                "mmap = true\nkv-cell = 1",
                2,
                "'kv-cell'; did you mean 'kv-cells'?",
            ),
            ("\nkv_cells = 1", 2, "'kv_cells'; did you mean 'kv-cells'?"),
            ("check = true", 1, "unknown field 'check'"),
            ("help = true", 1, "unknown field 'help'"),
            ("'' = 1", 1, "unknown field ''"),
            ("[limits]\ntime-limit = 1", 1, "there are no tables"),
            (
                "kv-cells = '1'",
                1,
                "kv-cells: expected an integer, e.g. 64, found a string",
            ),
            ("kv-cells = 1.5", 1, "found a number with a fraction"),
            ("grace-period = true", 1, "grace-period: expected a number"),
            (
                "mmap = 1",
                1,
                "mmap: expected true or false, found an integer",
            ),
            ("listen = 8080", 1, "listen: expected a string, in quotes"),
            ("model = 'x.gguf'", 1, "model: expected an array of strings"),
            (
                "model = [\n'a',\n1]",
                3,
                "model: expected an array of strings",
            ),
            ("keys = 2020-01-01", 1, "found a date"),
            (
                "keys.a = 1",
                1,
                "keys: expected a string, in quotes, found a table",
            ),
            ("mmap = true\nmmap = true", 2, "duplicate"),
            ("a\nb = ", 1, ""),
        ] {
            let (found, problem) = parse(text).expect_err(text);
            assert_eq!(found, line, "{text}: {problem}");
            assert!(problem.contains(expected), "{text}: {problem}");
        }
    }
}
