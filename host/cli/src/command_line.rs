//! The command line of `corral`: its commands, and errors in it as one line.

mod config_file;

use crate::Error;
use crate::args::{RunArgs, ServeArgs};
use crate::authoring::{BuildArgs, NewArgs, WatchArgs, WitArgs};
use crate::bench::BenchCommand;
use crate::completions::{CompletionsArgs, ManPagesArgs};
use crate::compose::ComposeArgs;
use crate::config::{ConfigCommand, ConfigSource};
use crate::deploy::DeployCommand;
use crate::doctor::DoctorArgs;
use crate::keys::KeysCommand;
use crate::model::ModelCommand;
use crate::registry::{PullArgs, PushArgs};
use crate::top::TopArgs;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{CommandFactory, Parser, Subcommand};
use std::ffi::OsString;

/// Serve language models to sandboxed WebAssembly plugins
#[derive(Debug, Parser)]
#[command(name = "corral", bin_name = "corral", version)]
pub struct CommandLine {
    #[command(subcommand)]
    pub command: Command,
    /// Show the causes of errors, and llama.cpp's log; RUST_LOG sets levels by target
    #[arg(long, short, global = true)]
    pub verbose: bool,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Serve plugins over HTTP until SIGTERM or Ctrl-C
    Serve(Box<ServeArgs>),
    /// Run a command-line plugin once, without a server
    Run(Box<RunArgs>),
    /// Show the requests and the memory of a server's models
    #[command(visible_alias = "ps")]
    Top(TopArgs),
    /// Manage API keys for `corral serve --keys`
    #[command(subcommand)]
    Keys(KeysCommand),
    /// Download models from a hub, and manage the downloaded ones
    #[command(subcommand)]
    Model(ModelCommand),
    /// Help with the file of `corral serve --config`
    #[command(subcommand)]
    Config(ConfigCommand),
    /// Measure endpoints
    #[command(subcommand)]
    Bench(BenchCommand),
    /// List the devices and backends of this machine, why some are not used, and what authors of plugins lack
    Doctor(DoctorArgs),
    /// Create the project of a plugin
    New(NewArgs),
    /// Build a project's components
    Build(BuildArgs),
    /// Build and deploy a project after each save, until Ctrl-C
    Watch(WatchArgs),
    /// Write the interface of plugins as WIT, with WASI, for tools of any language
    Wit(WitArgs),
    /// Make a program of a plugin that any WebAssembly runtime runs, with models of a Corral host or a script
    Compose(ComposeArgs),
    #[command(flatten)]
    Deployments(DeployCommand),
    /// Push a plugin to an OCI registry as one artifact: a corral.toml with its components, or a component alone
    Push(Box<PushArgs>),
    /// Pull the artifact of a plugin from an OCI registry
    Pull(PullArgs),
    /// Print a shell's completions for `corral`
    Completions(CompletionsArgs),
    /// Write the man pages of `corral`
    #[command(hide = true)]
    ManPages(ManPagesArgs),
}

/// Parses the process's arguments. Returns nothing after printing help or the version.
pub fn parse<T: Parser>() -> Result<Option<T>, Error> {
    parse_from(&Vec::from_iter(std::env::args_os()))
}

fn parse_from<T: Parser>(arguments: &[OsString]) -> Result<Option<T>, Error> {
    match T::try_parse_from(arguments) {
        Ok(command_line) => Ok(Some(command_line)),
        Err(error) => match error.kind() {
            ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
                // Fails only if nothing reads stdout.
                let _ = error.print();
                Ok(None)
            }
            _ => {
                let command = command_path(&T::command(), arguments.iter().skip(1).cloned());
                Err(Error::Usage(usage_message(&error, &command)))
            }
        },
    }
}

impl CommandLine {
    /// Reads and checks the process's arguments, and the file that they name with `--config`. Returns nothing after
    /// printing help or the version.
    pub(crate) fn read() -> Result<Option<Self>, Error> {
        let arguments = Vec::from_iter(std::env::args_os());
        match ConfigSource::find(&arguments)? {
            Some(source) => source.parse(),
            None => Self::from_arguments(&arguments),
        }
    }

    /// Like [`CommandLine::read`], from these arguments alone.
    pub(crate) fn from_arguments(arguments: &[OsString]) -> Result<Option<Self>, Error> {
        let command_line: Option<Self> = parse_from(arguments)?;
        if let Some(command_line) = &command_line {
            command_line.check()?;
        }
        Ok(command_line)
    }

    /// `corral serve`, with the options that all commands have.
    pub(crate) fn serve_command() -> clap::Command {
        let mut command = Self::command();
        command.build();
        command
            .find_subcommand("serve")
            .cloned()
            .unwrap_or_default()
    }

    /// Finds errors that need no file access.
    fn check(&self) -> Result<(), Error> {
        match &self.command {
            Command::Serve(serve) => serve.check(),
            Command::Run(run) => run.check(),
            Command::Bench(BenchCommand::Load(load)) => load.check(),
            _ => Ok(()),
        }
    }
}

/// clap's error as one line: what is wrong, what was probably meant, and where the command's help is.
fn usage_message(error: &clap::Error, command: &str) -> String {
    if matches!(
        error.kind(),
        ErrorKind::MissingSubcommand | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand
    ) {
        return format!("no command was given; see '{command} --help'");
    }
    let text = error.render().to_string();
    let first = text.split("\n\n").next().unwrap_or(&text).trim();
    let message = first.strip_prefix("error: ").unwrap_or(first);
    match (error.kind(), suggestion(error)) {
        // Value parsers of this crate say what to write.
        (ErrorKind::ValueValidation, _) => message.to_owned(),
        (_, Some(meant)) => {
            format!("{message}; did you mean '{meant}'? See '{command} --help'")
        }
        (_, None) => format!("{message}; see '{command} --help'"),
    }
}

/// What the user probably meant.
fn suggestion(error: &clap::Error) -> Option<&str> {
    let kinds = [
        ContextKind::SuggestedSubcommand,
        ContextKind::SuggestedArg,
        ContextKind::SuggestedValue,
    ];
    kinds.iter().find_map(|kind| match error.get(*kind)? {
        ContextValue::String(text) => Some(text.as_str()),
        // The best one is the last.
        ContextValue::Strings(texts) => texts.last().map(String::as_str),
        _ => None,
    })
}

/// The command that these arguments call, such as `corral keys new`.
fn command_path(mut command: &clap::Command, arguments: impl Iterator<Item = OsString>) -> String {
    let mut path = command.get_name().to_owned();
    // No option before a subcommand takes a value.
    let is_option = |argument: &OsString| argument.as_encoded_bytes().starts_with(b"-");
    for argument in arguments.skip_while(is_option) {
        let Some(next) = command.find_subcommand(argument) else {
            break;
        };
        command = next;
        path = format!("{path} {}", command.get_name());
    }
    path
}

#[cfg(test)]
mod tests {
    use super::*;
    use corral_engine::Latency;
    use std::path::PathBuf;
    use std::time::Duration;

    fn parse(line: &str) -> Result<CommandLine, String> {
        let command_line = CommandLine::try_parse_from(line.split(' ')).map_err(|error| {
            let arguments = line.split(' ').skip(1).map(OsString::from);
            let command = command_path(&CommandLine::command(), arguments);
            usage_message(&error, &command)
        })?;
        match command_line.check() {
            Ok(()) => Ok(command_line),
            Err(Error::Usage(message)) => Err(message),
            Err(error) => panic!("{error:?}"),
        }
    }

    fn parse_serve(line: &str) -> ServeArgs {
        let command_line = parse(line).unwrap_or_else(|error| panic!("{line}: {error}"));
        match command_line.command {
            Command::Serve(serve) => *serve,
            other => panic!("not serve: {other:?}"),
        }
    }

    #[test]
    fn argument_definitions_are_consistent() {
        CommandLine::command().debug_assert();
    }

    #[test]
    fn help_of_each_argument_is_one_line() {
        fn check(command: &clap::Command) {
            for arg in command.get_arguments() {
                let help = arg.get_help().map(ToString::to_string).unwrap_or_default();
                let fits = !help.is_empty() && help.chars().count() <= 110 && !help.ends_with('.');
                assert!(fits, "{} {}: {help}", command.get_name(), arg.get_id());
                assert!(arg.get_long_help().is_none(), "{}: {help}", arg.get_id());
            }
            command.get_subcommands().for_each(check);
        }
        check(&CommandLine::command());
    }

    #[test]
    fn serve_and_run_parse() {
        let serve = parse_serve(
            "corral serve --model a=x.gguf --model y.gguf --listen 127.0.0.1:0 \
             --plugin /g=g.wasm --plugin /=h.wasm --context 512 --time-limit 0.5 --priority /=7 \
             --latency stream --latency /g=2,3,500",
        );
        assert_eq!(serve.models.models[1].name, "y");
        assert_eq!(serve.models.context, Some(512));
        assert_eq!(serve.listen, "127.0.0.1:0");
        assert_eq!(serve.admin, "127.0.0.1:8081");
        assert_eq!(serve.plugins[1].route.as_str(), "/");
        assert_eq!(serve.limits.time_limit, Some(Duration::from_millis(500)));
        assert_eq!(serve.priority(&serve.plugins[1].route), 7);
        assert_eq!(serve.priority(&serve.plugins[0].route), 0);
        assert_eq!(serve.latency(None), Some(Latency::STREAM));
        assert_eq!(
            serve.latency(Some(&serve.plugins[0].route)),
            "2,3,500".parse().ok()
        );
        assert_eq!(serve.latency(Some(&serve.plugins[1].route)), None);
        let line = "corral run p.wasm --model x.gguf -- --model 1+1=";
        let Command::Run(run) = parse(line).expect("a valid line").command else {
            panic!("not run");
        };
        assert_eq!(run.plugin, PathBuf::from("p.wasm"));
        assert_eq!(run.arguments, ["--model", "1+1="]);
    }

    #[test]
    fn usage_errors_say_what_to_do() {
        for (line, expected) in [
            ("corral", "see 'corral --help'"),
            ("corral -v keys", "see 'corral keys --help'"),
            (
                "corral fly",
                "unrecognized subcommand 'fly'; see 'corral --help'",
            ),
            ("corral sevre", "did you mean 'serve'? See 'corral --help'"),
            (
                "corral keys mew",
                "did you mean 'new'? See 'corral keys --help'",
            ),
            (
                "corral serve --model x.gguf --plugn /g=g.wasm",
                "did you mean '--plugin'? See 'corral serve --help'",
            ),
            (
                "corral serve --model x.gguf --preload frist",
                "did you mean 'first'? See 'corral serve --help'",
            ),
            (
                "corral deploy --rote /x",
                "did you mean '--route'? See 'corral deploy --help'",
            ),
            ("corral keys new --tenat a", "See 'corral keys new --help'"),
            ("corral serve", "--model <[NAME=]FILE>"),
            ("corral serve --model x.gguf --fast", "'--fast'"),
            (
                "corral serve --model x.gguf --plugin g.wasm",
                "write ROUTE=FILE",
            ),
            (
                "corral serve --model x.gguf --plugin g=g.wasm",
                "write '/g'",
            ),
            (
                "corral serve --model x.gguf --plugin /g=g.wasm --priority /h=1",
                "'/h', which no --plugin has",
            ),
            (
                "corral serve --model x.gguf --plugin /g=g.wasm --latency /h=stream",
                "--latency names the route '/h', which no --plugin has",
            ),
            (
                "corral serve --model x.gguf --latency fast",
                "expected 'stream', 'balanced', 'throughput', or three numbers",
            ),
            (
                "corral serve --model x.gguf --latency 1,2,2000",
                "a gap must be from 1.5 to 1000 decode steps",
            ),
            (
                "corral serve --model x.gguf --plugin /g=g.wasm --share-prefixes /h",
                "--share-prefixes names the route '/h', which no --plugin has",
            ),
            (
                "corral serve --model x.gguf --plugin /g=g.wasm --quota /h=concurrent-requests:1",
                "--quota names the route '/h', which no --plugin has",
            ),
            (
                "corral serve --model x.gguf --plugin /g=g.wasm --error-format /h=openai",
                "--error-format names the route '/h', which no --plugin has",
            ),
            (
                "corral serve --model x.gguf --plugin /g=g.wasm --cors /h=https://a",
                "--cors names the route '/h', which no --plugin has",
            ),
            (
                "corral serve --model x.gguf --log-level loud",
                "write error, warn, info, debug or trace",
            ),
            (
                "corral serve --model x.gguf --plugin /g=g.wasm --open-route /g",
                "--keys <FILE>",
            ),
            (
                "corral serve --model x.gguf --tls-cert x",
                "--tls-key <FILE>",
            ),
            (
                "corral serve --model x.gguf --tls-key x",
                "--tls-cert <FILE>",
            ),
            (
                "corral serve --model hf:one",
                "write hf:ORG/REPO, hf:ORG/REPO:QUANT or hf:ORG/REPO/FILE.gguf",
            ),
            (
                "corral serve --model https://a/b.gguf",
                "'https' is not a known scheme",
            ),
            ("corral model pull a/b", "write hf:ORG/REPO"),
            ("corral keys new", "--tenant <TENANT>"),
            ("corral keys new --tenant a/b", "use 1 to 64 letters"),
            (
                "corral serve --model x.gguf --swap-memory 0 --swap-dir x",
                "give some memory",
            ),
            (
                "corral serve --model x.gguf --prefix-offload-memory 0 --prefix-dir x",
                "give some memory",
            ),
            (
                "corral serve --model x.gguf --prefix-disk 5",
                "--prefix-dir <DIR>",
            ),
            (
                "corral serve --model x.gguf --no-prefix-cache --prefix-dir x",
                "cannot be used with",
            ),
            (
                "corral serve --model x.gguf --swap-disk 5",
                "--swap-dir <DIR>",
            ),
            (
                "corral serve --model x.gguf --priority /g=300",
                "N from 0 to 255",
            ),
            (
                "corral serve --model x.gguf --plugin /g/=g.wasm",
                "ends with '/'",
            ),
            (
                "corral serve --model x.gguf --plugin /g=a.wasm --plugin /g=b.wasm",
                "two plugins have the route '/g'",
            ),
            (
                "corral serve --model a/x.gguf --model b/x.gguf",
                "two models are named 'x'",
            ),
            (
                "corral serve --model x.gguf --admin unix:x --admin-token-file y",
                "remove one of them",
            ),
            ("corral serve --model x.gguf --context 0", "'--context <N>'"),
            (
                "corral serve --model x.gguf --gpu-layers x",
                "write auto or a number",
            ),
            (
                "corral serve --model x.gguf --kv-type q4_0",
                "write f16 or q8_0",
            ),
            (
                "corral serve --model x.gguf --device a,a",
                "'a' is named twice",
            ),
            (
                "corral serve --model x.gguf --device y=cpu",
                "--device names the model 'y', which no --model has",
            ),
            (
                "corral serve --model x.gguf --grace-period soon",
                "write seconds",
            ),
            ("corral serve --model x.gguf --grace-period -1", "'-1'"),
            ("corral run --model x.gguf", "<PLUGIN.wasm>"),
            (
                "corral run p.wasm --model x.gguf --linked a=b",
                "write templating=FILE or sampling.NAME=FILE",
            ),
            (
                "corral run p.wasm --model x.gguf --linked templating=a --linked templating=b",
                "--linked names templating twice",
            ),
            ("corral new", "<NAME>"),
            ("corral new a/b", "write a name, not a path"),
            ("corral new A", "lower-case letters"),
            ("corral new fn", "choose another"),
            (
                "corral new a --template x",
                "handler, chat, sampler, templater, middleware, job",
            ),
            (
                "corral new a --lang cobol",
                "no templates in cobol yet; write rust, python, javascript, c or go",
            ),
            ("corral top --admin https://a", "write http://HOST:PORT"),
            ("corral bench load", "<URL>"),
            ("corral bench load a", "write http://HOST:PORT"),
            ("corral bench load https://a", "do not support TLS"),
            (
                "corral bench load http://a --rate 0",
                "write requests a second",
            ),
            (
                "corral bench load http://a --rate 1 --concurrency 2",
                "cannot be used with",
            ),
            ("corral bench load http://a --max-in-flight 2", "--rate <R>"),
            (
                "corral bench load http://a http://b http://c --api-key x --api-key y",
                "--api-key is given 2 times for 3 URLs",
            ),
            (
                "corral bench load http://a --requests 1000000 --output-tokens 1000",
                "1000000000 tokens",
            ),
            ("corral top --admin a", "write http://HOST:PORT"),
            ("corral top --admin http://a:1/b", "write http://HOST:PORT"),
        ] {
            let error = parse(line).expect_err(line);
            assert!(error.contains(expected), "{line}: {error}");
        }
    }
}
