//! The command line. What is about deployments is with them, in `deploy`.

mod bench;
mod links;
mod models;
mod plugins;
mod serve;
mod url;

pub(crate) use bench::{
    AllBench, Bench, BoundaryBench, DeployBench, FlatBench, GapBench, HttpBench, LoadBench,
    Measuring, ModelBench, ModelQuant, ModelShape, PrefixBench, Rounds, StagesBench, StepBench,
    ThreadsBench, for_url,
};
pub(crate) use links::{ADVICE, LinkArgument, twice};
pub(crate) use models::{ModelArgument, Models};
pub(crate) use plugins::{PluginLimits, Run};
pub(crate) use serve::{PriorityArgument, Serve};
pub(crate) use url::Url;

use crate::complaint::Complaint;
use crate::deploy::DeployCommand;
use crate::doctor::Doctor;
use crate::keys::KeysCommand;
use crate::top::Top;
use clap::error::ErrorKind;
use clap::{Parser, Subcommand};
use std::process::ExitCode;
use std::time::Duration;

/// Serves language models to sandboxed WebAssembly plugins.
#[derive(Debug, Parser)]
#[command(name = "corral", version)]
pub(crate) struct CommandLine {
    #[command(subcommand)]
    pub(crate) command: Command,
    /// Show more: what caused an error, and llama.cpp's log. RUST_LOG says it in detail.
    #[arg(long, short, global = true)]
    pub(crate) verbose: bool,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Serve plugins over HTTP until SIGTERM or Ctrl-C.
    Serve(Box<Serve>),
    /// Run a command-line plugin once, without a server.
    Run(Box<Run>),
    /// Show what goes on in the models of a server: what runs, what is kept, and what that holds.
    Top(Top),
    /// API keys for `corral serve --keys`.
    #[command(subcommand)]
    Keys(KeysCommand),
    /// Measure.
    #[command(subcommand)]
    Bench(Bench),
    /// Show what this program can compute on: the devices that it finds, and why others are not used.
    Doctor(Doctor),
    #[command(flatten)]
    Deployments(DeployCommand),
}

impl Command {
    /// What is logged when nobody says otherwise. `run` belongs to the plugin: its own output and
    /// the one line about its end are all there is to see.
    pub(crate) fn default_logs(&self) -> &'static str {
        match self {
            Command::Serve(_) => "warn,corral::plugin=info",
            Command::Run(_)
            | Command::Top(_)
            | Command::Keys(_)
            | Command::Bench(_)
            | Command::Doctor(_)
            | Command::Deployments(_) => "error",
        }
    }
}

fn whole(range: std::ops::RangeInclusive<u64>) -> clap::builder::RangedU64ValueParser<u64> {
    clap::value_parser!(u64).range(range)
}

/// Seconds, with a fraction if need be; a month is as good as any longer time.
pub(crate) fn seconds(text: &str) -> Result<Duration, String> {
    match text.parse::<f64>() {
        Ok(number) if (0.001..=2_678_400.0).contains(&number) => {
            Ok(Duration::from_secs_f64(number))
        }
        _ => Err("it is no time; write seconds, e.g. 30 or 0.5".to_owned()),
    }
}

impl CommandLine {
    /// Reads the process's arguments. The inner error is for help and version, which are answers
    /// and no complaints: they have been printed.
    pub(crate) fn read() -> Result<Result<Self, ExitCode>, Complaint> {
        match Self::try_parse() {
            Ok(command_line) => {
                command_line.check()?;
                Ok(Ok(command_line))
            }
            Err(error) => match error.kind() {
                ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
                    // Fails only when nobody reads.
                    let _ = error.print();
                    Ok(Err(ExitCode::SUCCESS))
                }
                _ => Err(Complaint::Usage(usage(&error))),
            },
        }
    }

    /// What can be known to be wrong without touching a file.
    fn check(&self) -> Result<(), Complaint> {
        match &self.command {
            Command::Serve(serve) => serve.check(),
            Command::Run(run) => run.check(),
            Command::Bench(bench) => bench.check(),
            Command::Top(_) | Command::Keys(_) | Command::Doctor(_) | Command::Deployments(_) => {
                Ok(())
            }
        }
    }
}

/// clap's error as one line: its first paragraph, and where to read on.
fn usage(error: &clap::Error) -> String {
    if matches!(
        error.kind(),
        ErrorKind::MissingSubcommand | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand
    ) {
        return "no command was given; write 'corral serve' or 'corral run', or see 'corral --help'"
            .to_owned();
    }
    let text = error.render().to_string();
    let first = text.split("\n\n").next().unwrap_or(&text).trim();
    let message = first.strip_prefix("error: ").unwrap_or(first);
    match error.kind() {
        // Our own parsers say what to write.
        ErrorKind::ValueValidation => message.to_owned(),
        _ => format!("{message}; see 'corral --help'"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    pub(super) fn parse(line: &str) -> Result<CommandLine, String> {
        let command_line =
            CommandLine::try_parse_from(line.split(' ')).map_err(|error| usage(&error))?;
        match command_line.check() {
            Ok(()) => Ok(command_line),
            Err(Complaint::Usage(message)) => Err(message),
            Err(Complaint::Failed(error)) => panic!("{error}"),
        }
    }

    #[test]
    fn clap_finds_no_mistake_in_our_definitions() {
        use clap::CommandFactory;
        CommandLine::command().debug_assert();
    }

    #[test]
    fn default_logs_can_be_read() {
        for line in ["corral serve --model x", "corral run p --model x"] {
            let logs = parse(line).expect("a good line").command.default_logs();
            let read = logs.parse::<tracing_subscriber::filter::Targets>();
            assert!(read.is_ok(), "{logs}");
        }
    }

    #[test]
    fn a_full_line_is_read() {
        let line = "corral serve --model a=x.gguf --model y.gguf --listen 127.0.0.1:0 \
                    --plugin /g=g.wasm --plugin /=h.wasm --context 512 --time-limit 0.5 \
                    --priority /=7";
        let CommandLine {
            command: Command::Serve(serve),
            ..
        } = parse(line).expect("a good line")
        else {
            panic!("not serve");
        };
        assert_eq!(serve.models.models[1].name, "y");
        assert_eq!(serve.models.context, Some(512));
        assert_eq!(serve.listen, "127.0.0.1:0");
        assert_eq!(serve.admin, "127.0.0.1:8081");
        assert_eq!(serve.plugins[1].route.as_str(), "/");
        assert_eq!(serve.limits.time_limit, Some(Duration::from_millis(500)));
        let seven = PriorityArgument {
            route: serve.plugins[1].route.clone(),
            priority: 7,
        };
        assert_eq!(serve.priorities, [seven]);
        let line = "corral run p.wasm --model x.gguf -- --model 1+1=";
        let CommandLine {
            command: Command::Run(run),
            ..
        } = parse(line).expect("a good line")
        else {
            panic!("not run");
        };
        assert_eq!(run.plugin, PathBuf::from("p.wasm"));
        assert_eq!(run.arguments, ["--model", "1+1="]);
    }

    #[test]
    fn bad_lines_say_what_to_do() {
        for (line, expected) in [
            ("corral", "write 'corral serve' or 'corral run'"),
            ("corral fly", "unrecognized subcommand 'fly'"),
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
                "corral serve --model x.gguf --plugin /g=g.wasm --share-prefixes /h",
                "--share-prefixes names the route '/h', which no --plugin has",
            ),
            (
                "corral serve --model x.gguf --plugin /g=g.wasm --quota /h=concurrent:1",
                "--quota names the route '/h', which no --plugin has",
            ),
            (
                "corral serve --model x.gguf --plugin /g=g.wasm --error-format /h=openai",
                "--error-format names the route '/h', which no --plugin has",
            ),
            (
                "corral serve --model x.gguf --plugin /g=g.wasm --open /g",
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
            ("corral keys new", "--tenant <TENANT>"),
            ("corral keys new --tenant a/b", "it is no name"),
            (
                "corral serve --model x.gguf --spill-memory 0 --spill-folder x",
                "give some memory",
            ),
            (
                "corral serve --model x.gguf --spill-disk 5",
                "--spill-folder <FOLDER>",
            ),
            (
                "corral serve --model x.gguf --priority /g=300",
                "N from 0 to 255",
            ),
            (
                "corral serve --model x.gguf --plugin /g/=g.wasm",
                "leave the last '/' away",
            ),
            (
                "corral serve --model x.gguf --plugin /g=a.wasm --plugin /g=b.wasm",
                "two plugins are given the route '/g'",
            ),
            (
                "corral serve --model a/x.gguf --model b/x.gguf",
                "two models are named 'x'",
            ),
            (
                "corral serve --model x.gguf --admin unix:x --admin-token-file y",
                "leave one of them away",
            ),
            ("corral serve --model x.gguf --context 0", "'--context <N>'"),
            (
                "corral serve --model x.gguf --gpu-layers x",
                "write auto, or how many",
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
                "corral bench gap --model x.gguf --kv-type y=f16",
                "leave 'y=' away",
            ),
            ("corral serve --model x.gguf --grace soon", "write seconds"),
            ("corral serve --model x.gguf --grace -1", "'-1'"),
            ("corral run --model x.gguf", "<PLUGIN.wasm>"),
            (
                "corral run p.wasm --model x.gguf --link a=b",
                "write templating=FILE or sampling.NAME=FILE",
            ),
            (
                "corral run p.wasm --model x.gguf --link templating=a --link templating=b",
                "--link names templating twice",
            ),
            ("corral top --admin https://a", "write http://HOST:PORT"),
            ("corral bench load", "<URL>"),
            ("corral bench load a", "write http://HOST:PORT"),
            ("corral bench load https://a", "without TLS"),
            (
                "corral bench load http://a --rate 0",
                "write requests a second",
            ),
            (
                "corral bench load http://a --rate 1 --concurrency 2",
                "cannot be used with",
            ),
            ("corral bench load http://a --under-way 2", "--rate <R>"),
            (
                "corral bench load http://a http://b http://c --key x --key y",
                "--key is given 2 times, for 3 URLs",
            ),
            (
                "corral bench load http://a --requests 1000000 --generate 1000",
                "1000000000 tokens",
            ),
            ("corral bench http --plugin a --path b", "begins with '/'"),
            (
                "corral bench http --plugin a --connections 1,0",
                "0 is not in",
            ),
            ("corral top --admin a", "write http://HOST:PORT"),
            ("corral top --admin http://a:1/b", "write http://HOST:PORT"),
        ] {
            let error = parse(line).expect_err(line);
            assert!(error.contains(expected), "{line}: {error}");
        }
    }
}
