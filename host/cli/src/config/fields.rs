//! The keys of the file: which options it can set, the types of their values, and the paths in them.

use crate::admin_token;
use crate::args::{AdapterArg, FolderArg, ModelArg, ModelFileArg, PluginArg, SecretArg};
use clap::{Arg, ArgAction, Command};
use std::any::TypeId;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Options that a file cannot set: they name or check the file itself, or print help.
const EXCLUDED: [&str; 3] = ["config", "check", "help"];

/// Environment variables that take precedence over a key, by key. Those that clap reads are not listed here.
const VARIABLES: [(&str, &str); 2] = [
    ("admin-token-file", admin_token::VARIABLE),
    ("log-level", "RUST_LOG"),
];

/// Start of the address of a Unix domain socket.
const UNIX: &str = "unix:";

/// The type of a key's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ValueKind {
    /// A flag without a value.
    Switch,
    Integer,
    /// Seconds, with a fraction or without.
    Number,
    Text,
    /// The values of an option that can be repeated.
    List,
}

/// The options of `command` that a file can set, by their keys.
pub(crate) fn fields(command: &Command) -> impl Iterator<Item = (&str, &Arg)> {
    let options = command.get_arguments();
    let named = options.filter_map(|option| Some((option.get_long()?, option)));
    named.filter(|(key, _)| !EXCLUDED.contains(key))
}

/// The option of a key.
pub(super) fn field<'a>(command: &'a Command, key: &str) -> Option<&'a Arg> {
    let mut fields = fields(command);
    fields.find_map(|(known, option)| (known == key).then_some(option))
}

impl ValueKind {
    pub(super) fn of(option: &Arg) -> Self {
        let value = option.get_value_parser().type_id();
        let integers = [
            TypeId::of::<u8>(),
            TypeId::of::<u16>(),
            TypeId::of::<u32>(),
            TypeId::of::<u64>(),
        ];
        match option.get_action() {
            ArgAction::SetTrue => ValueKind::Switch,
            ArgAction::Append => ValueKind::List,
            _ if integers.iter().any(|integer| value == *integer) => ValueKind::Integer,
            _ if value == TypeId::of::<Duration>() => ValueKind::Number,
            _ => ValueKind::Text,
        }
    }

    /// What to write, for a message.
    pub(super) fn expected(self) -> &'static str {
        match self {
            ValueKind::Switch => "true or false",
            ValueKind::Integer => "an integer, e.g. 64",
            ValueKind::Number => "a number, e.g. 30 or 0.5",
            ValueKind::Text => "a string, in quotes",
            ValueKind::List => "an array of strings, e.g. [\"a\", \"b\"]",
        }
    }
}

/// The environment variables that take precedence over a key.
pub(crate) fn variables(key: &str, option: &Arg) -> impl Iterator<Item = OsString> {
    let others = VARIABLES.iter().filter(move |(of, _)| *of == key);
    let others = others.map(|(_, variable)| OsString::from(variable));
    let own = option.get_env().map(OsString::from);
    own.into_iter().chain(others)
}

/// The path at the end of a value of this option, if the value has one.
pub(super) fn path_in(option: &Arg, value: &str) -> Option<PathBuf> {
    let parser = option.get_value_parser().type_id();
    if parser == TypeId::of::<PathBuf>() {
        Some(value.into())
    } else if parser == TypeId::of::<ModelArg>() {
        let model = value.parse::<ModelArg>().ok();
        model
            .filter(|model| model.hub.is_none())
            .map(|model| model.file)
    } else if parser == TypeId::of::<AdapterArg>() {
        value.parse::<AdapterArg>().ok().map(|adapter| adapter.file)
    } else if parser == TypeId::of::<ModelFileArg>() {
        value.parse::<ModelFileArg>().ok().map(|file| file.file)
    } else if parser == TypeId::of::<PluginArg>() {
        value.parse::<PluginArg>().ok().map(|plugin| plugin.file)
    } else if parser == TypeId::of::<FolderArg>() {
        value.parse::<FolderArg>().ok().map(|folder| folder.dir)
    } else if parser == TypeId::of::<SecretArg>() {
        let secret = value.parse::<SecretArg>().ok();
        secret.and_then(|secret| secret.file().map(Path::to_owned))
    } else if parser == TypeId::of::<String>() {
        value.strip_prefix(UNIX).map(PathBuf::from)
    } else {
        None
    }
}

/// The value with its path, if it has one, relative to the working directory instead of to `dir`.
pub(super) fn resolve_path(option: &Arg, value: &str, dir: &Path) -> OsString {
    let path = path_in(option, value).filter(|path| !path.as_os_str().is_empty());
    let Some(path) = path else {
        return value.into();
    };
    // An invalid value stays as it is, so that its error quotes it.
    let Some(front) = path.to_str().and_then(|path| value.strip_suffix(path)) else {
        return value.into();
    };
    let mut resolved = OsString::from(front);
    resolved.push(dir.join(&path));
    resolved
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command_line::CommandLine;

    #[test]
    fn every_option_has_a_key_of_known_type() {
        let command = CommandLine::serve_command();
        let mut keys = 0;
        for option in command.get_arguments() {
            let key = option.get_long().expect("options have long names");
            if EXCLUDED.contains(&key) {
                continue;
            }
            keys += 1;
            assert!(field(&command, key).is_some(), "{key}");
            let is_known = matches!(
                option.get_action(),
                ArgAction::Set | ArgAction::SetTrue | ArgAction::Append
            );
            assert!(is_known, "the file cannot say {key}: {option:?}");
        }
        assert_eq!(keys, fields(&command).count());
        assert!(
            field(&command, "verbose").is_some(),
            "a flag of all commands"
        );
        for excluded in EXCLUDED {
            assert!(field(&command, excluded).is_none(), "{excluded}");
        }
    }

    #[test]
    fn options_with_files_resolve_paths() {
        let command = CommandLine::serve_command();
        let mut with_path = 0;
        for (key, option) in fields(&command) {
            let names = option.get_value_names().unwrap_or_default();
            let form = names.iter().map(|name| name.as_str()).collect::<String>();
            if !form.contains("FILE") && !form.contains("DIR") {
                continue;
            }
            with_path += 1;
            let value = match form.as_str() {
                "FILE" | "DIR" | "[NAME=]FILE" | "[MODEL=]FILE" => "x/y",
                "[MODEL:]NAME=FILE" => "a:b=x/y",
                "ROUTE=FILE" => "/r=x/y",
                "NAME=DIR" => "docs=x/y",
                other => panic!("say how {key} is written: {other}"),
            };
            let resolved = resolve_path(option, value, Path::new("/etc/a=b"));
            let front = value.strip_suffix("x/y").expect("it ends so");
            assert_eq!(resolved, *format!("{front}/etc/a=b/x/y"), "{key}");
        }
        assert!(with_path >= 10, "{with_path}");
    }

    #[test]
    fn only_paths_are_resolved() {
        let command = CommandLine::serve_command();
        for (key, value, expected) in [
            ("model", "tiny.gguf", "/d/tiny.gguf"),
            ("model", "a=b/tiny.gguf", "a=/d/b/tiny.gguf"),
            ("model", "./a=b.gguf", "/d/./a=b.gguf"),
            ("model", "a=/b/tiny.gguf", "a=/b/tiny.gguf"),
            ("model", "q=hf:org/repo:Q4_0", "q=hf:org/repo:Q4_0"),
            ("plugin", "/a=b=c.wasm", "/a=/d/b=c.wasm"),
            ("plugin", "wrong", "wrong"),
            ("admin", "unix:run/admin.sock", "unix:/d/run/admin.sock"),
            ("admin", "127.0.0.1:8081", "127.0.0.1:8081"),
            ("listen", "localhost:1", "localhost:1"),
            ("keys", "../keys.toml", "/d/../keys.toml"),
            ("keys", "", ""),
            ("open-route", "/a", "/a"),
        ] {
            let option = field(&command, key).expect(key);
            let resolved = resolve_path(option, value, Path::new("/d"));
            assert_eq!(resolved, *expected, "{key}: {value}");
        }
    }
}
