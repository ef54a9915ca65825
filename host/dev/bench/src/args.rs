//! The command line of `corral-bench`.

mod step;

pub(crate) use step::StepArgs;

use clap::{Args, Parser, Subcommand, ValueEnum};
use corral_cli::Error;
use corral_cli::args::{DeviceArgs, whole};
use corral_cli::bench::MAX_SAMPLES;
use corral_cli::bench::rounds::RoundArgs;
use corral_cli::bench::url::Url;
use std::path::PathBuf;

/// Measure Corral
#[derive(Debug, Parser)]
#[command(name = "corral-bench", version)]
pub(crate) struct CommandLine {
    #[command(subcommand)]
    pub(crate) bench: Bench,
    /// Show the causes of errors, and llama.cpp's log
    #[arg(long, short, global = true)]
    pub(crate) verbose: bool,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Bench {
    /// All benches with a target, and each target with its figure, in less than an hour on two cores
    All(AllArgs),
    /// Cost of the boundary between engine and plugins: loops, sampling plugins, logits, host calls, instances
    Boundary(BoundaryArgs),
    /// Time from a deploy to the first response, with and without compiled code in the cache
    Deploy(DeployArgs),
    /// Whether requests get slower with the number of those before them, and the wake-ups of an idle engine
    Flat(FlatArgs),
    /// Inter-token latency while long prompts are prefilled, with and without the prefill budget
    #[command(visible_alias = "gaps")]
    Gap(GapArgs),
    /// Requests a second and latency of a plugin that needs no model, by connections, beside a peer's
    Http(HttpArgs),
    /// Write a model with random weights, as large and as slow as a real one
    Model(ModelArgs),
    /// Time to first token of prompts with a cached prefix, and the time of a fork
    #[command(visible_alias = "fork")]
    Prefix(PrefixArgs),
    /// Throughput and CPU time from llama.cpp alone to events over TCP, layer by layer
    Stages(StagesArgs),
    /// Time of one llama_decode by decode rows and prompt tokens, without a scheduler
    Step(StepArgs),
    /// Throughput by the numbers of compute threads and workers
    Threads(ThreadsArgs),
}

impl CommandLine {
    /// Reads and checks the process's arguments. Returns nothing after printing help or the version.
    pub(crate) fn read() -> Result<Option<Self>, Error> {
        let command_line: Option<Self> = corral_cli::args::parse()?;
        if let Some(command_line) = &command_line {
            command_line.bench.check()?;
        }
        Ok(command_line)
    }
}

impl Bench {
    /// Finds errors that need no file access.
    fn check(&self) -> Result<(), Error> {
        let devices = match self {
            Bench::All(args) => &args.devices,
            Bench::Boundary(args) => &args.common.devices,
            Bench::Deploy(args) => &args.common.devices,
            Bench::Flat(args) => &args.devices,
            Bench::Gap(args) => &args.common.devices,
            Bench::Http(args) => return args.check(),
            Bench::Model(_) => return Ok(()),
            Bench::Prefix(args) => &args.common.devices,
            Bench::Stages(args) => &args.common.devices,
            Bench::Step(args) => {
                args.check()?;
                &args.common.devices
            }
            Bench::Threads(args) => &args.common.devices,
        };
        match devices.models().first() {
            None => Ok(()),
            Some((option, model)) => Err(Error::usage(format!(
                "{option} names a model, and a bench has only one; remove '{model}='"
            ))),
        }
    }
}

/// Arguments of most benches.
#[derive(Args, Debug)]
pub(crate) struct CommonArgs {
    /// GGUF file
    #[arg(long, value_name = "FILE")]
    pub(crate) model: PathBuf,
    #[command(flatten)]
    pub(crate) rounds: RoundArgs,
    #[command(flatten)]
    pub(crate) devices: DeviceArgs,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args, Debug)]
pub(crate) struct AllArgs {
    /// Output of 'corral-bench model'
    #[arg(long, value_name = "FILE")]
    pub(crate) model: PathBuf,
    /// The demo model
    #[arg(long, value_name = "FILE", default_value = "models/tiny/tiny.gguf")]
    pub(crate) small: PathBuf,
    /// Output of 'corral-bench model --shape wide'
    #[arg(long, value_name = "FILE")]
    pub(crate) wide: PathBuf,
    /// Directory of the components that 'make plugins' builds
    #[arg(long, value_name = "DIR")]
    pub(crate) plugins: PathBuf,
    /// The binary corral, which serves and puts load on peers [default: corral beside this program]
    #[arg(long, value_name = "FILE")]
    pub(crate) corral: Option<PathBuf>,
    /// Server with classic.wasm to compare HTTP with, http://HOST:PORT; see BENCHMARKS.md
    #[arg(long, value_name = "URL")]
    pub(crate) peer: Option<Url>,
    /// Server with OpenAI's API and the same model to compare throughput with, http://HOST:PORT
    #[arg(long, value_name = "URL")]
    pub(crate) openai_peer: Option<Url>,
    /// Most rounds of each bench; 1 for a quick look [default: 5, or 12 for the boundary of the larger model]
    #[arg(long, value_name = "N", value_parser = whole(1..=12))]
    pub(crate) rounds: Option<u64>,
    #[command(flatten)]
    pub(crate) devices: DeviceArgs,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args, Debug)]
pub(crate) struct BoundaryArgs {
    #[command(flatten)]
    pub(crate) common: CommonArgs,
    /// The plugin `measure`
    #[arg(long, value_name = "FILE")]
    pub(crate) plugin: PathBuf,
    /// The sampling plugin `min-p`
    #[arg(long, value_name = "FILE")]
    pub(crate) sampler: PathBuf,
    /// Sequences at once; one alone is measured too
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = whole(1..=32))]
    pub(crate) streams: u64,
    /// Tokens that each sequence generates
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = whole(2..=2000))]
    pub(crate) output_tokens: u64,
}

#[derive(Args, Debug)]
pub(crate) struct DeployArgs {
    #[command(flatten)]
    pub(crate) common: CommonArgs,
    /// The plugin `generate`
    #[arg(long, value_name = "FILE")]
    pub(crate) plugin: PathBuf,
    /// Directory for the temporary store and cache, whose disk matters [default: the system's]
    #[arg(long, value_name = "DIR")]
    pub(crate) dir: Option<PathBuf>,
}

#[derive(Args, Debug)]
pub(crate) struct FlatArgs {
    /// GGUF file
    #[arg(long, value_name = "FILE")]
    pub(crate) model: PathBuf,
    /// Requests in a row
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = whole(10..=4000))]
    pub(crate) requests: u64,
    /// Digits of each prompt, about as many tokens; the prefix cache keeps prompts of 16 or more
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = whole(4..=2000))]
    pub(crate) prompt_tokens: u64,
    /// KV cells below the idle sequence of the second series
    #[arg(long, value_name = "N", default_value_t = 2048, value_parser = whole(256..=100_000))]
    pub(crate) low_cells: u64,
    /// Compute threads [default: one for each core]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub(crate) threads: Option<u32>,
    /// The plugin `generate`, to measure HTTP too
    #[arg(long, value_name = "FILE")]
    pub(crate) plugin: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) devices: DeviceArgs,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args, Debug)]
pub(crate) struct GapArgs {
    #[command(flatten)]
    pub(crate) common: CommonArgs,
    /// Sequences that generate all the time
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = whole(1..=32))]
    pub(crate) streams: u64,
    /// Prompts of a round, one after the other; every other one is short
    #[arg(long, value_name = "N", default_value_t = 24, value_parser = whole(2..=10_000))]
    pub(crate) prompts: u64,
    /// Tokens of a long prompt
    #[arg(long, value_name = "N", default_value_t = 600, value_parser = whole(33..=3000))]
    pub(crate) prompt_tokens: u64,
    /// Compute threads [default: one for each core]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub(crate) threads: Option<u32>,
}

#[derive(Args, Debug)]
pub(crate) struct HttpArgs {
    /// Component that answers without a model
    #[arg(long, value_name = "FILE")]
    pub(crate) plugin: PathBuf,
    /// Path of the requests
    #[arg(long, value_name = "PATH", default_value = "/", value_parser = path)]
    pub(crate) path: String,
    /// Server with the same component, http://HOST:PORT, measured in turns with Corral's
    #[arg(long, value_name = "URL")]
    pub(crate) peer: Option<Url>,
    /// Connections at once; each sends its next request after its response
    #[arg(long, value_name = "N,N", value_delimiter = ',', default_values_t = [1_u64, 8, 64],
          value_parser = whole(1..=256))]
    pub(crate) connections: Vec<u64>,
    /// Requests of each turn
    #[arg(long, value_name = "N", default_value_t = 5000, value_parser = whole(1..=1_000_000))]
    pub(crate) requests: u64,
    /// Threads for connections and plugins [default: as of 'corral serve']
    #[arg(long, value_name = "N", value_parser = whole(1..=1024))]
    pub(crate) workers: Option<u64>,
    #[command(flatten)]
    pub(crate) rounds: RoundArgs,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

impl HttpArgs {
    fn check(&self) -> Result<(), Error> {
        let turns = self
            .rounds
            .count
            .saturating_mul(self.connections.len() as u64);
        let requests = self.requests.saturating_mul(turns);
        if requests > MAX_SAMPLES {
            return Err(Error::usage(format!(
                "{requests} requests would be measured, and at most {MAX_SAMPLES} can be; \
                 lower --requests, --connections or --rounds"
            )));
        }
        check_distinct("--connections", &self.connections)
    }
}

/// Refuses a list that contains a number twice.
fn check_distinct<T: PartialEq>(option: &str, numbers: &[T]) -> Result<(), Error> {
    let is_repeated = |(at, number): (usize, &T)| numbers[..at].contains(number);
    match numbers.iter().enumerate().any(is_repeated) {
        true => Err(Error::usage(format!(
            "{option} names a number twice; give each once"
        ))),
        false => Ok(()),
    }
}

fn path(text: &str) -> Result<String, String> {
    let path = text.parse::<http::uri::PathAndQuery>();
    match path {
        Ok(path) if text.starts_with('/') => Ok(path.to_string()),
        _ => Err("write a path that begins with '/'".to_owned()),
    }
}

#[derive(Args, Debug)]
pub(crate) struct ModelArgs {
    /// Layers and their sizes: those of Qwen3-0.6B; two small ones; or these with 151,936 tokens
    #[arg(long, value_enum, default_value_t = Shape::Qwen3_0_6b)]
    pub(crate) shape: Shape,
    /// Type that llama.cpp quantizes the weights to
    #[arg(long, value_enum, default_value_t = Quantization::Q4Km)]
    pub(crate) quant: Quantization,
    /// Replace an existing file
    #[arg(long)]
    pub(crate) force: bool,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
    /// Output file; kept if it is the requested model already
    #[arg(value_name = "OUT.gguf")]
    pub(crate) out: PathBuf,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum Shape {
    // 28 layers of width 1024, 151,936 tokens.
    #[value(name = "qwen3-0.6b")]
    Qwen3_0_6b,
    // Two layers of width 64, 4096 tokens.
    Tiny,
    // Two layers of width 64, 151,936 tokens: short steps with long rows of logits.
    Wide,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum Quantization {
    #[value(name = "f16")]
    F16,
    #[value(name = "q8_0")]
    Q8_0,
    #[value(name = "q6_k")]
    Q6K,
    #[value(name = "q5_k_m")]
    Q5Km,
    #[value(name = "q4_k_m")]
    Q4Km,
    #[value(name = "q4_0")]
    Q4_0,
}

#[derive(Args, Debug)]
pub(crate) struct PrefixArgs {
    #[command(flatten)]
    pub(crate) common: CommonArgs,
    /// Tokens of the shared prefix
    #[arg(long, value_name = "N", default_value_t = 2048, value_parser = whole(16..=100_000))]
    pub(crate) prefix_tokens: u64,
    /// Compute threads [default: one for each core]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub(crate) threads: Option<u32>,
    /// The plugin `generate`, to measure HTTP too
    #[arg(long, value_name = "FILE")]
    pub(crate) plugin: Option<PathBuf>,
}

#[derive(Args, Debug)]
pub(crate) struct StagesArgs {
    #[command(flatten)]
    pub(crate) common: CommonArgs,
    /// Requests of each stage in a round
    #[arg(long, value_name = "N", default_value_t = 40, value_parser = whole(1..=3000))]
    pub(crate) requests: u64,
    /// Requests at once
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = whole(1..=64))]
    pub(crate) concurrency: u64,
    /// Tokens of each prompt
    #[arg(long, value_name = "N", default_value_t = 32, value_parser = whole(4..=2000))]
    pub(crate) prompt_tokens: u64,
    /// Tokens that each request generates
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = whole(2..=2000))]
    pub(crate) output_tokens: u64,
    /// Stages by number, besides stage 0 [default: all, or 0 to 3 without --plugins]
    #[arg(long, value_name = "N,N", value_delimiter = ',', value_parser = clap::value_parser!(u8).range(0..=9))]
    pub(crate) stages: Vec<u8>,
    /// Directory with measure.wasm, generate.wasm and openai.wasm, for stages 4 to 9
    #[arg(long, value_name = "DIR")]
    pub(crate) plugins: Option<PathBuf>,
    /// Compute threads [default: one for each core]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub(crate) threads: Option<u32>,
    /// Prefill each prompt at once, without the prefill budget
    #[arg(long)]
    pub(crate) slot_order: bool,
    /// Draw a chart of the ratios
    #[arg(long, value_name = "FILE.svg")]
    pub(crate) chart: Option<PathBuf>,
}

#[derive(Args, Debug)]
pub(crate) struct ThreadsArgs {
    #[command(flatten)]
    pub(crate) common: CommonArgs,
    /// Sequences that generate at once
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = whole(1..=64))]
    pub(crate) streams: u64,
    /// Tokens that each sequence generates in a round
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = whole(2..=2000))]
    pub(crate) output_tokens: u64,
    /// The plugin `generate`, to measure HTTP too
    #[arg(long, value_name = "FILE")]
    pub(crate) plugin: Option<PathBuf>,
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Parses and checks a command line without the program's name.
    pub(crate) fn parse(line: &str) -> Result<Bench, String> {
        let words = std::iter::once("corral-bench").chain(line.split_whitespace());
        let line = CommandLine::try_parse_from(words).map_err(|error| error.to_string())?;
        match line.bench.check() {
            Ok(()) => Ok(line.bench),
            Err(error) => Err(error.message(false)),
        }
    }

    #[test]
    fn argument_definitions_are_consistent() {
        use clap::CommandFactory;
        CommandLine::command().debug_assert();
    }

    #[test]
    fn gap_has_an_alias() {
        for name in ["gap", "gaps"] {
            let bench = parse(&format!("{name} --model x.gguf"));
            assert!(matches!(bench, Ok(Bench::Gap(_))), "{name}");
        }
    }

    #[test]
    fn usage_errors_say_what_to_do() {
        for (line, expected) in [
            ("gap --model x.gguf --kv-type y=f16", "remove 'y='"),
            ("http --plugin a --path b", "begins with '/'"),
            ("http --plugin a --connections 1,0", "0 is not in"),
        ] {
            let error = parse(line).expect_err(line);
            assert!(error.contains(expected), "{line}: {error}");
        }
    }
}
