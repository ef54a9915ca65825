//! What `corral bench` takes.

use super::whole;
use clap::{Args, Subcommand};
use std::path::PathBuf;

#[derive(Debug, Subcommand)]
pub(crate) enum Bench {
    /// What the way between the engine and a plugin costs: tokens by the host's loop beside those of loops in
    /// the plugin and of a sampling plugin, whole rows of logits, calls of the host, and new instances.
    Boundary(BoundaryBench),
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
    /// Requests through ever more of Corral, from llama.cpp alone to events over TCP: tokens a second beside a raw
    /// loop, and processor time for each token.
    Stages(StagesBench),
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
pub(crate) struct BoundaryBench {
    #[command(flatten)]
    pub(crate) measuring: Measuring,
    /// The plugin `measure`.
    #[arg(long, value_name = "FILE")]
    pub(crate) plugin: PathBuf,
    /// The sampling plugin `min-p`.
    #[arg(long, value_name = "FILE")]
    pub(crate) sampler: PathBuf,
    /// Sequences at once; one alone is measured too.
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = whole(1..=32))]
    pub(crate) streams: u64,
    /// Tokens that each generates.
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = whole(2..=2000))]
    pub(crate) generate: u64,
}

#[derive(Args, Debug)]
pub(crate) struct DeployBench {
    #[command(flatten)]
    pub(crate) measuring: Measuring,
    /// The plugin `generate`.
    #[arg(long, value_name = "FILE")]
    pub(crate) plugin: PathBuf,
    /// Where the store and the cache lie meanwhile, in a folder of their own that is removed at the end;
    /// by default among the system's temporary files. What a deploy takes depends on that disk.
    #[arg(long, value_name = "FOLDER")]
    pub(crate) folder: Option<PathBuf>,
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
pub(crate) struct StagesBench {
    #[command(flatten)]
    pub(crate) measuring: Measuring,
    /// Requests of each stage in a round.
    #[arg(long, value_name = "N", default_value_t = 40, value_parser = whole(1..=3000))]
    pub(crate) requests: u64,
    /// Requests at once.
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = whole(1..=64))]
    pub(crate) concurrency: u64,
    /// Tokens of each prompt.
    #[arg(long, value_name = "N", default_value_t = 32, value_parser = whole(4..=2000))]
    pub(crate) prompt: u64,
    /// Tokens that each generates.
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = whole(2..=2000))]
    pub(crate) generate: u64,
    /// Stages by their numbers, and stage 0 in any case; by default all, or 0 to 3 without plugins.
    #[arg(
        long,
        value_name = "N,N",
        value_delimiter = ',',
        value_parser = clap::value_parser!(u8).range(0..=9)
    )]
    pub(crate) stages: Vec<u8>,
    /// A folder with measure.wasm, generate.wasm and openai.wasm: what stages 4 to 9 need.
    #[arg(long, value_name = "FOLDER")]
    pub(crate) plugins: Option<PathBuf>,
    /// Compute threads; by default one for each core.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub(crate) threads: Option<u32>,
    /// Draw a chart of the ratios, too.
    #[arg(long, value_name = "FILE.svg")]
    pub(crate) chart: Option<PathBuf>,
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
