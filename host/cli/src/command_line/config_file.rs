//! A command line with `--config`: the file's values in front of its arguments.

use super::{Command, CommandLine};
use crate::Error;
use crate::config::fields::{fields, variables};
use crate::config::{ConfigEntry, ConfigSource, file};
use clap::Arg;
use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

const SUBCOMMAND: &str = "serve";
const OPTION: &str = "--config";
/// Arguments that print help or the version. No file is read with them.
const HELP: [&str; 4] = ["--help", "-h", "--version", "-V"];
/// Most values that are left out, one at a time, to find the one that causes an error.
const MAX_TRIES: usize = 512;

impl ConfigSource {
    /// Reads the file that `--config` of `corral serve` names. Returns `None` without this option, or if the option
    /// lacks a value, which clap reports.
    pub(crate) fn find(arguments: &[OsString]) -> Result<Option<Self>, Error> {
        let Some((position, path)) = find_option(arguments) else {
            return Ok(None);
        };
        Self::read(arguments, position, path, |name| {
            std::env::var_os(name).is_some_and(|value| !value.is_empty())
        })
        .map(Some)
    }

    fn read(
        arguments: &[OsString],
        position: usize,
        path: PathBuf,
        is_set: impl Fn(&OsStr) -> bool,
    ) -> Result<Self, Error> {
        let command = CommandLine::serve_command();
        let mut entries = file::read(&path, &command)?;
        let replaced = fields(&command).filter(|(key, option)| {
            is_given(arguments, key, option) || variables(key, option).any(|name| is_set(&name))
        });
        let replaced = BTreeSet::from_iter(replaced.map(|(key, _)| key));
        entries.retain(|entry| !replaced.contains(entry.key.as_str()));
        Ok(Self {
            arguments: arguments.to_vec(),
            position,
            path,
            entries,
        })
    }

    /// Reads the file again, for the same command line.
    pub(crate) fn reread(&self) -> Result<Option<CommandLine>, Error> {
        match Self::find(&self.arguments)? {
            Some(source) => source.parse(),
            None => Ok(None),
        }
    }

    /// Parses and checks the command line with the file's values. An error names the line and the field that cause it.
    pub(crate) fn parse(self) -> Result<Option<CommandLine>, Error> {
        let parsed = CommandLine::from_arguments(&self.line(&self.entries));
        match parsed {
            Ok(Some(mut command_line)) => {
                if let Command::Serve(serve) = &mut command_line.command {
                    serve.source = Some(Box::new(self));
                }
                Ok(Some(command_line))
            }
            Ok(None) => Ok(None),
            Err(Error::Usage(message)) => Err(Error::Usage(self.with_place(message))),
            Err(error) => Err(error),
        }
    }

    /// Puts the place of the value that causes the message before it. The value is one of an option that the message
    /// names, if leaving it out changes the message; otherwise any value without which there is no error. If the
    /// command line alone causes the message, it stays as it is.
    fn with_place(&self, message: String) -> String {
        let parse_without = |entry: &ConfigEntry| {
            let is_same =
                |other: &&ConfigEntry| (&other.key, &other.value) == (&entry.key, &entry.value);
            let others = self.entries.iter().filter(|other| !is_same(other));
            CommandLine::from_arguments(&self.line(others))
        };
        let is_named = |entry: &&ConfigEntry| names_option(&message, &entry.key);
        let changes = |entry: &&ConfigEntry| {
            let parsed = parse_without(entry);
            !matches!(parsed, Err(Error::Usage(other)) if other == message)
        };
        let prevents = |entry: &&ConfigEntry| parse_without(entry).is_ok();
        // Of two values that exclude each other, the later one.
        let mut named = self.entries.iter().rev().filter(is_named).take(MAX_TRIES);
        let mut latest = self.entries.iter().rev().take(MAX_TRIES);
        match named.find(changes).or_else(|| latest.find(prevents)) {
            Some(entry) => self.place(entry) + &message,
            None => message,
        }
    }
}

/// Whether a message names the option of this key.
fn names_option(message: &str, key: &str) -> bool {
    let option = format!("--{key}");
    message.match_indices(option.as_str()).any(|(at, _)| {
        let rest = &message[at + option.len()..];
        !rest.starts_with(|next: char| next.is_ascii_alphanumeric() || next == '-')
    })
}

/// The index after `serve`, and the value of the `--config` that follows.
fn find_option(arguments: &[OsString]) -> Option<(usize, PathBuf)> {
    let is_option = |argument: &OsString| argument.as_bytes().starts_with(b"-");
    // No option before a subcommand takes a value.
    let serve = 1 + arguments
        .iter()
        .skip(1)
        .position(|argument| !is_option(argument))?;
    let asks_help = arguments
        .iter()
        .any(|argument| HELP.iter().any(|help| argument == help));
    if arguments[serve] != SUBCOMMAND || asks_help {
        return None;
    }
    let rest = &arguments[serve + 1..];
    let value = rest.iter().enumerate().find_map(|(index, argument)| {
        if argument == OPTION {
            return rest.get(index + 1).filter(|next| !is_option(next)).cloned();
        }
        let value = argument.as_bytes().strip_prefix(OPTION.as_bytes())?;
        let value = value.strip_prefix(b"=").filter(|value| !value.is_empty())?;
        Some(OsStr::from_bytes(value).to_owned())
    });
    Some((serve + 1, value?.into()))
}

/// Whether the command line has this option. No value of another option begins with `-`.
fn is_given(arguments: &[OsString], key: &str, option: &Arg) -> bool {
    arguments.iter().skip(1).any(|argument| {
        let bytes = argument.as_bytes();
        match bytes.strip_prefix(b"--") {
            Some(name) => {
                let rest = name.strip_prefix(key.as_bytes());
                rest.is_some_and(|rest| rest.is_empty() || rest[0] == b'=')
            }
            None => {
                let short = option
                    .get_short()
                    .and_then(|short| u8::try_from(short).ok());
                bytes.starts_with(b"-") && short.is_some_and(|short| bytes[1..].contains(&short))
            }
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::ServeArgs;
    use std::time::Duration;

    /// Parses `corral serve --config FILE` with this file and these arguments.
    fn parse(text: &str, arguments: &[&str]) -> Result<ServeArgs, String> {
        parse_with(text, arguments, &[])
    }

    fn parse_with(text: &str, arguments: &[&str], variables: &[&str]) -> Result<ServeArgs, String> {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("server.toml");
        std::fs::write(&path, text).expect("written");
        let line = ["corral", "serve", OPTION].map(OsString::from);
        let mut line = Vec::from(line);
        line.push(path.clone().into());
        line.extend(arguments.iter().map(OsString::from));
        let (position, found) = find_option(&line).expect("it has a file");
        let is_set = |name: &OsStr| variables.iter().any(|set| name == *set);
        let source = ConfigSource::read(&line, position, found, is_set);
        let parsed = source.and_then(ConfigSource::parse);
        let parsed = parsed.map_err(|error| {
            let message = error.message(false);
            message.replace(&dir.path().display().to_string(), "DIR")
        })?;
        match parsed.expect("no help").command {
            Command::Serve(serve) => Ok(*serve),
            other => panic!("not serve: {other:?}"),
        }
    }

    const MODEL: &str = "model = ['x.gguf']\n";

    #[test]
    fn flag_precedes_file_precedes_default() {
        let text = "model = ['a=x.gguf', 'b=y.gguf']\nkv-cells = 64\ngrace-period = 3\nlisten = 'h:1'\nverbose = true\n";
        let serve = parse(text, &["--kv-cells", "128", "--listen=h:2"]).expect("valid");
        assert_eq!(serve.models.memory.kv_cells, Some(128));
        assert_eq!((&*serve.listen, &*serve.admin), ("h:2", "127.0.0.1:8081"));
        assert_eq!(serve.grace_period, Duration::from_secs(3));
        assert!(serve.models.models[1].file.is_absolute());
        // A list is replaced as a whole.
        let serve = parse(text, &["--model", "c=z.gguf", "-v"]).expect("valid");
        let names = Vec::from_iter(serve.models.models.iter().map(|model| &*model.name));
        assert_eq!(names, ["c"]);
        // Flags and keys complete each other.
        let text = "model = ['x.gguf']\ntls-cert = 'cert'\n";
        let serve = parse(text, &["--tls-key", "key"]).expect("a pair");
        assert_eq!(serve.public.tls_key, Some(PathBuf::from("key")));
    }

    #[test]
    fn variable_precedes_file_but_not_flag() {
        let text = format!("{MODEL}admin-token-file = '/file'\n");
        let file = |arguments: &[&str], variables: &[&str]| {
            let serve = parse_with(&text, arguments, variables).expect("valid");
            serve.admin_token_file
        };
        assert_eq!(file(&[], &[]), Some("/file".into()));
        assert_eq!(file(&[], &["CORRAL_ADMIN_TOKEN"]), None);
        let flag = ["--admin-token-file", "/flag"];
        assert_eq!(file(&flag, &["CORRAL_ADMIN_TOKEN"]), Some("/flag".into()));
        let text = format!("{MODEL}log-level = 'warn'\n");
        let level = |variables: &[&str]| {
            let serve = parse_with(&text, &[], variables).expect("valid");
            serve.log.log_level
        };
        assert!(level(&[]).is_some());
        assert!(level(&["RUST_LOG"]).is_none());
    }

    #[test]
    fn errors_are_those_of_flags_with_place() {
        let clap = |arguments: &str| {
            let line = format!("corral serve --model x.gguf {arguments}");
            let line = Vec::from_iter(line.split(' ').map(OsString::from));
            let error = CommandLine::from_arguments(&line).expect_err(arguments);
            error.message(false)
        };
        for (text, arguments, place) in [
            ("kv-cells = 0", "--kv-cells=0", "2: kv-cells"),
            ("grace-period = -1", "--grace-period=-1", "2: grace-period"),
            ("preload = 'frist'", "--preload=frist", "2: preload"),
            ("quota = [\n'/a=b']", "--quota=/a=b", "3: quota"),
            (
                "kv-type = ['f16',\n'q3']",
                "--kv-type=f16 --kv-type=q3",
                "3: kv-type",
            ),
            (
                "tls-cert = '/c'\nmmap = true",
                "--tls-cert=/c --mmap",
                "2: tls-cert",
            ),
            ("priority = ['/h=1']", "--priority=/h=1", "2: priority"),
            (
                "swap-memory = 0\nswap-dir = '/x'",
                "--swap-memory=0 --swap-dir=/x",
                "3: swap-dir",
            ),
            (
                "plugin = ['/g=/a.wasm',\n'/g=/b.wasm']",
                "--plugin=/g=/a.wasm --plugin=/g=/b.wasm",
                "3: plugin",
            ),
        ] {
            let error = parse(&format!("{MODEL}{text}\n"), &[]).expect_err(text);
            let expected = format!("DIR/server.toml:{place}: {}", clap(arguments));
            assert_eq!(error, expected);
        }
    }

    #[test]
    fn errors_of_command_line_have_no_place() {
        for (text, arguments, expected) in [
            (MODEL, &["--kv-cells", "0"][..], "invalid value '0'"),
            (MODEL, &["--colour"], "unexpected argument '--colour'"),
            (
                "",
                &[],
                "the following required arguments were not provided",
            ),
        ] {
            let error = parse(text, arguments).expect_err(expected);
            assert!(error.starts_with(expected), "{error}");
        }
    }

    #[test]
    fn line_of_named_option_precedes_others() {
        // Without a model there is another error.
        let text = "quota = ['/a=b']\nmodel = ['x.gguf']\n";
        let error = parse(text, &[]).expect_err("no quota");
        assert!(error.starts_with("DIR/server.toml:1: quota: "), "{error}");
        let text = format!("{MODEL}plugin = ['/h=/h.wasm']\n");
        let quota = ["--quota", "/nowhere=concurrent-requests:1"];
        let error = parse(&text, &quota).expect_err("no such route");
        assert!(error.starts_with("--quota names the route"), "{error}");
        assert!(names_option("'--model <FILE>'", "model"));
        assert!(!names_option("--model-cache", "model"));
    }

    #[test]
    fn flag_that_excludes_key_names_its_line() {
        let text = format!("{MODEL}swap-dir = '/x'\n");
        let error = parse(&text, &["--swap-memory", "0"]).expect_err("without effect");
        let expected = "DIR/server.toml:2: swap-dir: --swap-dir has no effect with --swap-memory 0";
        assert!(error.starts_with(expected), "{error}");
    }

    #[test]
    fn packaged_file_and_its_examples_are_valid() {
        let text = include_str!("../../../../packaging/server.toml");
        let serve = parse(text, &[]).expect("valid");
        let routes = serve.plugins.iter().map(|plugin| plugin.route.as_str());
        assert!(routes.eq(["/", "/api"]));
        let is_key = |line: &str| line.starts_with(|first: char| first.is_ascii_lowercase());
        let example = |line| match str::strip_prefix(line, "#").filter(|rest| is_key(rest)) {
            Some(example) => example,
            None => line,
        };
        let all = Vec::from_iter(text.lines().map(example)).join("\n");
        let serve = parse(&all, &[]).expect("valid");
        assert!(serve.models.mmap && serve.public.keys.is_some(), "{all}");
    }

    #[test]
    fn option_is_found_after_serve_only() {
        let find = |line: &str| {
            let line = Vec::from_iter(line.split(' ').map(OsString::from));
            find_option(&line).map(|(at, path)| (at, path.display().to_string()))
        };
        let found = |at: usize| Some((at, "f".to_owned()));
        assert_eq!(find("corral serve --config f"), found(2));
        assert_eq!(find("corral -v serve --mmap --config=f"), found(3));
        for line in [
            "corral run p --config f",
            "corral serve --config",
            "corral serve --config --mmap",
            "corral serve --config=",
            "corral serve --config f --help",
            "corral --version serve --config f",
            "corral -v",
        ] {
            assert_eq!(find(line), None, "{line}");
        }
    }

    #[test]
    fn changes_name_keys_and_values() {
        let source = |text: &str| {
            let serve = parse(text, &["--model", "x.gguf", "--listen", "h:1"]);
            serve.expect(text).source.expect("from a file")
        };
        let old = source("mmap = true\nkv-cells = 1\nkv-type = ['f16', 'x=q8_0']");
        let new = source("kv-cells = 2\nkv-type = ['x=q8_0', 'f16']\nlisten = 'h:2'");
        let changes = old.changes(&new);
        let shown = changes.iter().map(ToString::to_string);
        let expected = [
            "kv-cells changed from '1' to '2'",
            "kv-type changed from 'f16, x=q8_0' to 'x=q8_0, f16'",
            "mmap changed from 'true' to nothing",
        ];
        assert_eq!(Vec::from_iter(shown), expected);
        assert!(new.changes(&new).is_empty());
    }
}
