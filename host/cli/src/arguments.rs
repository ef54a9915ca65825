//! The command line.

use crate::bench::DeployBench;
use crate::complaint::Complaint;
use crate::deploy::DeployCommand;
use crate::front::FrontArguments;
use crate::keys::KeysCommand;
use crate::memory::Memory;
use crate::residence::Residence;
use crate::top::Top;
use clap::error::ErrorKind;
use clap::{Args, Parser, Subcommand};
use corral_server::{Prefix, Routes};
use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::str::FromStr;
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
            | Command::Deployments(_) => "error",
        }
    }
}

#[derive(Args, Debug)]
pub(crate) struct Serve {
    #[command(flatten)]
    pub(crate) models: Models,
    /// Where plugins are called, HOST:PORT; port 0 picks a free one.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:8080")]
    pub(crate) listen: String,
    /// Where /metrics, what 'corral top' shows and the admin API are, HOST:PORT. Whoever can reach it
    /// from another machine has to send the admin token.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:8081")]
    pub(crate) admin: String,
    /// Folder in which deployments are kept, of this user alone; made if it isn't there. With it
    /// 'corral deploy' works.
    #[arg(long, value_name = "FOLDER")]
    pub(crate) store: Option<PathBuf>,
    /// File with the admin token. Without it the token is that in CORRAL_ADMIN_TOKEN, or one that is
    /// made and written to the file admin-token in the store.
    #[arg(long, value_name = "FILE")]
    pub(crate) admin_token_file: Option<PathBuf>,
    /// A plugin that lasts as long as the process, and the path prefix below which it answers; may be
    /// given several times.
    #[arg(long = "plugin", value_name = "ROUTE=FILE")]
    pub(crate) plugins: Vec<PluginArgument>,
    /// The priority of a route's plugin, 0 unless it is said, up to 255: generations of the higher
    /// one always go first. May be given several times.
    #[arg(long = "priority", value_name = "ROUTE=N")]
    pub(crate) priorities: Vec<PriorityArgument>,
    /// A route whose plugin shares the prefixes of its prompts with all others named so; how quickly a
    /// prompt is read tells them whether another one's began like it. May be given several times.
    #[arg(long = "share-prefixes", value_name = "ROUTE")]
    pub(crate) sharing: Vec<Prefix>,
    #[command(flatten)]
    pub(crate) limits: PluginLimits,
    #[command(flatten)]
    pub(crate) front: FrontArguments,
    /// How long running requests may go on after SIGTERM, in seconds.
    #[arg(long, value_name = "SECONDS", default_value = "10", value_parser = seconds)]
    pub(crate) grace: Duration,
    /// How long after SIGTERM requests are still taken, in seconds: time for whoever sends them here to
    /// see that /readyz says no.
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    pub(crate) drain_delay: Option<Duration>,
}

#[derive(Args, Debug)]
pub(crate) struct Run {
    /// The plugin: a component that exports wasi:cli/run.
    #[arg(value_name = "PLUGIN.wasm")]
    pub(crate) plugin: PathBuf,
    #[command(flatten)]
    pub(crate) models: Models,
    #[command(flatten)]
    pub(crate) limits: PluginLimits,
    /// What the plugin gets as its arguments.
    #[arg(last = true, value_name = "ARGS")]
    pub(crate) arguments: Vec<String>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Bench {
    /// Time from a deploy to the first answer: of a component that was never seen, and of one whose
    /// compiled code is in the cache.
    Deploy(DeployBench),
    /// How far reading long prompts stretches the time between two tokens of those who generate:
    /// with the step-time budget, and beside it as servers do that fill each step with prompts.
    Gap(GapBench),
    /// Writes a model with random weights to measure with: as large and as slow as a real one.
    Model(ModelBench),
    /// Time to the first token of prompts whose beginning another request has computed, beside that of
    /// a sequence that is gone on with; and the time of a fork.
    Prefix(PrefixBench),
    /// Tokens per second by the numbers of compute threads and of workers, which run plugins and
    /// connections: each from 1 to the number of cores, at most 4, and beside them what `corral serve`
    /// takes by itself.
    Threads(ThreadsBench),
}

/// What all benches ask.
#[derive(Args, Debug)]
pub(crate) struct Measuring {
    /// A GGUF file.
    #[arg(long, value_name = "FILE")]
    pub(crate) model: PathBuf,
    /// Rounds; each measures all that is compared.
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = whole(1..=1000))]
    pub(crate) rounds: u64,
    /// Print one JSON object.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args, Debug)]
pub(crate) struct GapBench {
    #[command(flatten)]
    pub(crate) measuring: Measuring,
    /// Sequences that generate all the time.
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = whole(1..=32))]
    pub(crate) streams: u64,
    /// Prompts that come one after the other in a round: every other one is short.
    #[arg(long, value_name = "N", default_value_t = 24, value_parser = whole(2..=10_000))]
    pub(crate) prompts: u64,
    /// Tokens of a long prompt.
    #[arg(long, value_name = "N", default_value_t = 600, value_parser = whole(33..=3000))]
    pub(crate) length: u64,
    /// Compute threads; by default one for each core.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub(crate) threads: Option<u32>,
}

#[derive(Args, Debug)]
pub(crate) struct ModelBench {
    /// Its layers and their sizes.
    #[arg(long, value_enum, default_value_t = ModelShape::Qwen3_0_6b)]
    pub(crate) shape: ModelShape,
    /// The GGUF file whose vocabulary it gets; what the shape has more of stays unused.
    #[arg(long, value_name = "FILE", default_value = "models/tiny/tiny.gguf")]
    pub(crate) vocabulary: PathBuf,
    /// Write it also if the file is there.
    #[arg(long)]
    pub(crate) force: bool,
    /// Where it is written.
    #[arg(value_name = "OUT.gguf")]
    pub(crate) out: PathBuf,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
pub(crate) enum ModelShape {
    /// Those of Qwen3-0.6B: 28 layers, width 1024, 151,936 tokens; 4 bits a weight.
    #[value(name = "qwen3-0.6b")]
    Qwen3_0_6b,
    /// Two layers of width 64.
    Tiny,
}

#[derive(Args, Debug)]
pub(crate) struct PrefixBench {
    #[command(flatten)]
    pub(crate) measuring: Measuring,
    /// Tokens of the shared beginning.
    #[arg(long, value_name = "N", default_value_t = 2048, value_parser = whole(16..=100_000))]
    pub(crate) length: u64,
    /// Compute threads; by default one for each core.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub(crate) threads: Option<u32>,
    /// The plugin `generate`: it is asked through HTTP too, by a server in this process.
    #[arg(long, value_name = "FILE")]
    pub(crate) plugin: Option<PathBuf>,
}

#[derive(Args, Debug)]
pub(crate) struct ThreadsBench {
    #[command(flatten)]
    pub(crate) measuring: Measuring,
    /// Sequences that generate at once.
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = whole(1..=64))]
    pub(crate) streams: u64,
    /// Tokens that each generates in a round.
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = whole(2..=2000))]
    pub(crate) generate: u64,
    /// The plugin `generate`: streams are read through HTTP too, from a server in this process.
    #[arg(long, value_name = "FILE")]
    pub(crate) plugin: Option<PathBuf>,
}

/// What both commands need for models and plugins.
#[derive(Args, Debug)]
pub(crate) struct Models {
    /// A GGUF file, and the name under which plugins find it (by default the file's name without
    /// its ending); may be given several times, the first is the default model. The others are loaded
    /// when they are first asked for.
    #[arg(long = "model", value_name = "[NAME=]FILE", required = true)]
    pub(crate) models: Vec<ModelArgument>,
    /// A LoRA adapter of a model, a GGUF file, and the name under which plugins ask for it; of the first
    /// model unless another one is named. May be given several times, up to 16 for a model.
    #[arg(long = "adapter", value_name = "[MODEL:]NAME=FILE")]
    pub(crate) adapters: Vec<AdapterArgument>,
    /// Positions that a sequence may have; by default what the model was trained on, at most 8192.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) context: Option<u32>,
    /// KV cells that all sequences of a model share; by default 16384, or one context.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) cells: Option<u32>,
    /// Sequences of a model that run at once, at most 64; others wait for their turn.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=64))]
    pub(crate) sequences: Option<u16>,
    #[command(flatten)]
    pub(crate) memory: Memory,
    #[command(flatten)]
    pub(crate) residence: Residence,
    /// Threads that compute, for each model; by default one for each core.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub(crate) threads: Option<u32>,
    /// Threads that run plugins and connections.
    #[arg(long, value_name = "N", value_parser = whole(1..=1024))]
    pub(crate) workers: Option<u64>,
    /// Folder for compiled plugins, of this user alone; by default corral/ in the user's cache.
    #[arg(long, value_name = "FOLDER")]
    pub(crate) cache: Option<PathBuf>,
}

/// What one call of a plugin may use.
#[derive(Args, Debug)]
pub(crate) struct PluginLimits {
    /// Seconds that a call may take; for `serve` 60 unless said otherwise, for `run` a day.
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    pub(crate) time_limit: Option<Duration>,
    /// Seconds that a plugin may compute in a call, waiting not counted; for `serve` 10 unless
    /// said otherwise, for `run` a day.
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    pub(crate) cpu_limit: Option<Duration>,
    /// Memory that a plugin may have in a call.
    #[arg(long, value_name = "MIB", default_value_t = 64, value_parser = whole(1..=4096))]
    pub(crate) memory_limit: u64,
    /// Largest request body, in KiB.
    #[arg(long, value_name = "KIB", default_value_t = 8192, value_parser = whole(1..=4_194_304))]
    pub(crate) body_limit: u64,
    /// Largest response body, in KiB.
    #[arg(long, value_name = "KIB", default_value_t = 262_144, value_parser = whole(1..=4_194_304))]
    pub(crate) response_limit: u64,
    /// Calls of a plugin that run at once.
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = whole(1..=10_000))]
    pub(crate) calls: u64,
    /// Calls of a plugin that wait for their turn; further ones are told to come back.
    #[arg(long, value_name = "N", default_value_t = 256, value_parser = whole(0..=1_000_000))]
    pub(crate) queue: u64,
    /// Seconds that a generation may wait for its turn before it is refused; by default as long as
    /// its call has time.
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    pub(crate) queue_time: Option<Duration>,
}

impl PluginLimits {
    /// For the runtime; calls end after `time` unless the command line says otherwise.
    pub(crate) fn for_calls(&self, time: Duration, cpu: Duration) -> corral_runtime::Limits {
        // All numbers are bounded by their parsers to what fits any usize of 32 bits or more, but
        // for 4 GiB on 32 bits, where less is all there is.
        let size = |number: u64| usize::try_from(number).unwrap_or(usize::MAX);
        corral_runtime::Limits {
            memory: size(self.memory_limit << 20),
            time: self.time_limit.unwrap_or(time),
            cpu: self.cpu_limit.unwrap_or(cpu),
            request_bytes: size(self.body_limit << 10),
            response_bytes: self.response_limit << 10,
            concurrent: size(self.calls),
            queue: size(self.queue),
            queue_time: self.queue_time,
            priority: 0,
            share_prefixes: false,
        }
    }
}

/// `[NAME=]FILE`. The text before the first `=` is a name if it looks like one, so a file whose
/// name holds `=` is written `./a=b.gguf`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ModelArgument {
    pub(crate) name: String,
    pub(crate) file: PathBuf,
}

impl FromStr for ModelArgument {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let named = text
            .split_once('=')
            .filter(|(name, _)| !name.contains(['/', '\\']));
        let (name, file) = match named {
            Some(("", _)) => return Err("the name is empty; write NAME=FILE or FILE".to_owned()),
            Some((name, file)) => (Some(name), file),
            None => (None, text),
        };
        if file.is_empty() {
            return Err("there is no file; write NAME=FILE or FILE".to_owned());
        }
        let stem = Path::new(file).file_stem().and_then(|stem| stem.to_str());
        let name = name.or(stem).unwrap_or_default();
        if name.is_empty() || name.len() > 128 || name.chars().any(char::is_control) {
            return Err(format!(
                "'{}' is no name for a model; write NAME=FILE with a short NAME",
                name.escape_debug()
            ));
        }
        Ok(ModelArgument {
            name: name.to_owned(),
            file: PathBuf::from(file),
        })
    }
}

/// `[MODEL:]NAME=FILE`. The name of an adapter holds no colon, so the last one before the first `=`
/// ends the name of the model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AdapterArgument {
    /// Without one, the first.
    pub(crate) model: Option<String>,
    pub(crate) name: String,
    pub(crate) file: PathBuf,
}

impl FromStr for AdapterArgument {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let expected = "write NAME=FILE or MODEL:NAME=FILE, e.g. polite=polite.gguf";
        let (names, file) = text
            .split_once('=')
            .filter(|(_, file)| !file.is_empty())
            .ok_or_else(|| format!("there is no name or no file; {expected}"))?;
        let (model, name) = match names.rsplit_once(':') {
            Some((model, name)) => (Some(model.to_owned()), name),
            None => (None, names),
        };
        if name.is_empty() || name.len() > 128 || name.chars().any(char::is_control) {
            return Err(format!(
                "'{}' is no name for an adapter; {expected}",
                name.escape_debug()
            ));
        }
        Ok(AdapterArgument {
            model,
            name: name.to_owned(),
            file: PathBuf::from(file),
        })
    }
}

impl Models {
    /// Names and files of the adapters of the model with this place in the order given.
    pub(crate) fn adapters_of(&self, place: usize) -> Vec<(String, PathBuf)> {
        let name = self.models.get(place).map(|model| &model.name);
        let own = |adapter: &&AdapterArgument| match &adapter.model {
            None => place == 0,
            model => model.as_ref() == name,
        };
        let own = self.adapters.iter().filter(own);
        own.map(|adapter| (adapter.name.clone(), adapter.file.clone()))
            .collect()
    }
}

/// `ROUTE=FILE`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PluginArgument {
    pub(crate) route: Prefix,
    pub(crate) file: PathBuf,
}

impl FromStr for PluginArgument {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        // A route may hold `=`, a file too; the first one is the border, as people expect.
        let Some((route, file)) = text.split_once('=') else {
            return Err("there is no route; write ROUTE=FILE, e.g. /generate=generate.wasm".into());
        };
        if file.is_empty() {
            return Err("there is no file; write ROUTE=FILE, e.g. /generate=generate.wasm".into());
        }
        Ok(PluginArgument {
            route: route.parse::<Prefix>().map_err(|error| error.to_string())?,
            file: PathBuf::from(file),
        })
    }
}

/// `ROUTE=N`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PriorityArgument {
    pub(crate) route: Prefix,
    pub(crate) priority: u8,
}

impl FromStr for PriorityArgument {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let expected = || "write ROUTE=N with N from 0 to 255, e.g. /chat=10".to_owned();
        let (route, priority) = text.rsplit_once('=').ok_or_else(expected)?;
        Ok(PriorityArgument {
            route: route.parse::<Prefix>().map_err(|error| error.to_string())?,
            priority: priority.parse().map_err(|_| expected())?,
        })
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
        let models = match &self.command {
            Command::Serve(serve) => &serve.models,
            Command::Run(run) => &run.models,
            Command::Top(_) | Command::Keys(_) | Command::Bench(_) | Command::Deployments(_) => {
                return Ok(());
            }
        };
        models.memory.check()?;
        let mut names = HashSet::new();
        for model in &models.models {
            if !names.insert(&model.name) {
                return Err(Complaint::Usage(format!(
                    "two models are named '{}'; give one another name: --model NAME={}",
                    model.name,
                    model.file.display()
                )));
            }
        }
        for adapter in &models.adapters {
            let named = adapter.model.as_ref();
            if let Some(model) = named.filter(|model| !names.contains(model)) {
                return Err(Complaint::Usage(format!(
                    "--adapter names the model '{model}', which no --model has"
                )));
            }
        }
        if let Command::Serve(serve) = &self.command {
            let mut routes = Routes::default();
            for plugin in &serve.plugins {
                routes
                    .add(plugin.route.clone(), ())
                    .map_err(|taken| Complaint::Usage(taken.to_string()))?;
            }
            let priorities = serve
                .priorities
                .iter()
                .map(|said| ("--priority", &said.route));
            let sharing = serve
                .sharing
                .iter()
                .map(|route| ("--share-prefixes", route));
            let front = serve.front.routes();
            for (option, route) in priorities.chain(sharing).chain(front) {
                if !serve.plugins.iter().any(|plugin| plugin.route == *route) {
                    return Err(Complaint::Usage(format!(
                        "{option} names the route '{route}', which no --plugin has"
                    )));
                }
            }
        }
        Ok(())
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

    fn parse(line: &str) -> Result<CommandLine, String> {
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
    fn adapters_are_of_the_first_model_unless_said_otherwise() {
        let line = "corral serve --model a=1 --model b:c=2 \
                    --adapter x=3 --adapter b:c:y=4 --adapter a:z=k=5";
        let Command::Serve(serve) = parse(line).expect("a good line").command else {
            panic!("it says serve");
        };
        let of = |place| serve.models.adapters_of(place);
        let adapter = |name: &str, file: &str| (name.to_owned(), PathBuf::from(file));
        assert_eq!(of(0), [adapter("x", "3"), adapter("z", "k=5")]);
        assert_eq!(of(1), [adapter("y", "4")]);
        for (wrong, said) in [
            ("x", "no name or no file"),
            ("x=", "no name or no file"),
            ("=x", "is no name"),
            ("a:=x", "is no name"),
            ("q:x=3", "'q'"),
        ] {
            let line = format!("corral serve --model a=1 --adapter {wrong}");
            let complaint = parse(&line).expect_err(wrong);
            assert!(complaint.contains(said), "{wrong}: {complaint}");
        }
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
    fn models_are_named_by_their_files_unless_said_otherwise() {
        for (text, name, file) in [
            ("models/tiny.gguf", "tiny", "models/tiny.gguf"),
            ("chat=models/tiny.gguf", "chat", "models/tiny.gguf"),
            ("a.b=c=d", "a.b", "c=d"),
            ("./a=b.gguf", "a=b", "./a=b.gguf"),
            ("tiny", "tiny", "tiny"),
        ] {
            let expected = ModelArgument {
                name: name.to_owned(),
                file: PathBuf::from(file),
            };
            assert_eq!(text.parse(), Ok(expected), "{text}");
        }
        for text in ["", "=x.gguf", "x=", "..", "a\nb=x.gguf"] {
            let error = text.parse::<ModelArgument>().expect_err(text);
            assert!(error.contains("write NAME=FILE"), "{text:?}: {error}");
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
            ("corral serve --model x.gguf --context 0", "'--context <N>'"),
            ("corral serve --model x.gguf --grace soon", "write seconds"),
            ("corral serve --model x.gguf --grace -1", "'-1'"),
            ("corral run --model x.gguf", "<PLUGIN.wasm>"),
            ("corral top --admin https://a:1", "write http://HOST:PORT"),
            ("corral top --admin a", "write http://HOST:PORT"),
            ("corral top --admin http://a:1/b", "write http://HOST:PORT"),
        ] {
            let error = parse(line).expect_err(line);
            assert!(error.contains(expected), "{line}: {error}");
        }
    }
}
