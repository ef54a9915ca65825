//! What `corral bench` takes.

mod rounds;
mod step;

pub(crate) use rounds::Rounds;
pub(crate) use step::StepBench;

use super::{Url, seconds, whole};
use crate::complaint::Complaint;
use crate::offload::Offloading;
use clap::{Args, Subcommand};
use rounds::Within;
use std::path::PathBuf;
use std::time::Duration;

/// Most tokens that the answers of a run of `corral bench load` have together, as far as that was asked for,
/// and most requests of `corral bench http`: the time of each is kept.
const MOST_TOKENS: u64 = 50_000_000;

#[derive(Debug, Subcommand)]
pub(crate) enum Bench {
    /// The benches that have a target, one after the other, and each target with its figure: takes less than an hour on
    /// two cores, and where those are slow measures fewer rounds.
    All(AllBench),
    /// What the way between the engine and a plugin costs: tokens by the host's loop beside those of loops in
    /// the plugin and of a sampling plugin, whole rows of logits, calls of the host, and new instances.
    Boundary(BoundaryBench),
    /// Time from a deploy to the first answer: of a component that was never seen, and of one whose
    /// compiled code is in the cache.
    Deploy(DeployBench),
    /// Whether requests get slower with those before them: one-token requests in a row, the slope of their
    /// time in the engine, and the same once more beside an idle sequence in high cells.
    Flat(FlatBench),
    /// How far reading long prompts stretches the time between two tokens of those who generate:
    /// with the step-time budget, and beside it as servers do that fill each step with prompts.
    #[command(visible_alias = "gaps")]
    Gap(GapBench),
    /// Requests a second and their latency, by the number of connections, of a plugin that answers without a
    /// model; and beside it those of another server, somebody's who started it.
    Http(HttpBench),
    /// Tokens a second, and the times to the first one and between them, of any endpoint of OpenAI's API, by
    /// clients that wait for their answers or by requests that come at a rate. Several endpoints take turns
    /// and are compared.
    Load(LoadBench),
    /// Writes a model with random weights to measure with: as large and as slow as a real one.
    Model(ModelBench),
    /// Time to the first token of prompts whose beginning another request has computed, beside that of
    /// a sequence that is gone on with; and the time of a fork.
    #[command(visible_alias = "fork")]
    Prefix(PrefixBench),
    /// Requests through ever more of Corral, from llama.cpp alone to events over TCP: tokens a second beside a raw
    /// loop, and processor time for each token.
    Stages(StagesBench),
    /// How long one llama_decode takes, by how many rows generate and how many prompt tokens are read beside
    /// them: steps that no scheduler plans.
    Step(StepBench),
    /// Tokens per second by the numbers of compute threads and of workers, which run plugins and
    /// connections: each from 1 to the number of cores, at most 4, and beside them what `corral serve`
    /// takes by itself.
    Threads(ThreadsBench),
}

impl Bench {
    /// What can be known to be wrong without touching a file.
    pub(super) fn check(&self) -> Result<(), Complaint> {
        match self {
            Bench::All(all) => one_model(&all.offloading),
            Bench::Boundary(boundary) => one_model(&boundary.measuring.offloading),
            Bench::Deploy(deploy) => one_model(&deploy.measuring.offloading),
            Bench::Flat(flat) => one_model(&flat.offloading),
            Bench::Gap(gap) => one_model(&gap.measuring.offloading),
            Bench::Http(http) => http.check(),
            Bench::Load(load) => load.check(),
            Bench::Prefix(prefix) => one_model(&prefix.measuring.offloading),
            Bench::Stages(stages) => one_model(&stages.measuring.offloading),
            Bench::Step(step) => {
                one_model(&step.measuring.offloading)?;
                step.check()
            }
            Bench::Threads(threads) => one_model(&threads.measuring.offloading),
            Bench::Model(_) => Ok(()),
        }
    }
}

/// A bench has no names for models.
fn one_model(offloading: &Offloading) -> Result<(), Complaint> {
    match offloading.models().first() {
        None => Ok(()),
        Some((option, model)) => Err(Complaint::Usage(format!(
            "{option} names a model, and a bench has one alone; leave '{model}=' away"
        ))),
    }
}

/// What all benches ask.
#[derive(Args, Debug)]
pub(crate) struct Measuring {
    /// A GGUF file.
    #[arg(long, value_name = "FILE")]
    pub(crate) model: PathBuf,
    #[command(flatten)]
    pub(crate) rounds: Rounds,
    #[command(flatten)]
    pub(crate) offloading: Offloading,
    /// Print one JSON object.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args, Debug)]
pub(crate) struct AllBench {
    /// What `corral bench model` wrote.
    #[arg(long, value_name = "FILE")]
    pub(crate) model: PathBuf,
    /// The demo model.
    #[arg(long, value_name = "FILE", default_value = "models/tiny/tiny.gguf")]
    pub(crate) small: PathBuf,
    /// What `corral bench model --shape wide` wrote.
    #[arg(long, value_name = "FILE")]
    pub(crate) wide: PathBuf,
    /// The folder with the components that `make plugins` builds.
    #[arg(long, value_name = "FOLDER")]
    pub(crate) plugins: PathBuf,
    /// A server that has classic.wasm, http://HOST:PORT, to compare HTTP with: see BENCHMARKS.md.
    #[arg(long, value_name = "URL")]
    pub(crate) vs: Option<Url>,
    /// A server with OpenAI's API and the same model file, http://HOST:PORT, to compare tokens a second with.
    #[arg(long, value_name = "URL")]
    pub(crate) vs_openai: Option<Url>,
    /// Rounds of each bench at most: 1 for a quick look. [default: 5, and 12 of the boundary with the larger model]
    #[arg(long, value_name = "N", value_parser = whole(1..=12))]
    pub(crate) rounds: Option<u64>,
    #[command(flatten)]
    pub(crate) offloading: Offloading,
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
pub(crate) struct FlatBench {
    /// A GGUF file.
    #[arg(long, value_name = "FILE")]
    pub(crate) model: PathBuf,
    /// Requests in a row.
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = whole(10..=4000))]
    pub(crate) requests: u64,
    /// Digits of each prompt: about as many tokens. From 16 on prompts are kept when they have ended.
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = whole(4..=2000))]
    pub(crate) prompt: u64,
    /// Cells below the idle sequence.
    #[arg(long, value_name = "N", default_value_t = 2048, value_parser = whole(256..=100_000))]
    pub(crate) high: u64,
    /// Compute threads; by default one for each core.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub(crate) threads: Option<u32>,
    /// The plugin `generate`: it is asked through HTTP too, by a server in this process.
    #[arg(long, value_name = "FILE")]
    pub(crate) plugin: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) offloading: Offloading,
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
pub(crate) struct HttpBench {
    /// A component that answers without a model.
    #[arg(long, value_name = "FILE")]
    pub(crate) plugin: PathBuf,
    /// The path that is asked for.
    #[arg(long, value_name = "PATH", default_value = "/", value_parser = path)]
    pub(crate) path: String,
    /// A server that has the same component, http://HOST:PORT, to be measured in turns with Corral's.
    #[arg(long, value_name = "URL")]
    pub(crate) vs: Option<Url>,
    /// Connections at once; each sends its next request when it has its answer.
    #[arg(
        long,
        value_name = "N,N",
        value_delimiter = ',',
        default_values_t = [1_u64, 8, 64],
        value_parser = whole(1..=256)
    )]
    pub(crate) connections: Vec<u64>,
    /// Requests of each turn.
    #[arg(long, value_name = "N", default_value_t = 5000, value_parser = whole(1..=1_000_000))]
    pub(crate) requests: u64,
    /// Threads of Corral's that turn connections and plugins; by default as many as 'corral serve' has.
    #[arg(long, value_name = "N", value_parser = whole(1..=1024))]
    pub(crate) workers: Option<u64>,
    #[command(flatten)]
    pub(crate) rounds: Rounds,
    /// Print one JSON object.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args, Debug)]
pub(crate) struct LoadBench {
    /// The endpoints, http://HOST:PORT or http://HOST:PORT/v1; others are compared with the first.
    #[arg(value_name = "URL", required = true, num_args = 1..=8)]
    pub(crate) urls: Vec<Url>,
    /// Clients; each sends its next request when it has its answer.
    #[arg(
        long,
        value_name = "N",
        default_value_t = 8,
        value_parser = whole(1..=4096),
        conflicts_with = "rate"
    )]
    pub(crate) concurrency: u64,
    /// In place of such clients: requests that come at random times, so many a second on average, whether the
    /// server keeps up or not. Times count from when they were to be sent.
    #[arg(long, value_name = "R", value_parser = rate)]
    pub(crate) rate: Option<f64>,
    /// With --rate: requests that may be under way; those that come then are not sent, and counted as refused
    /// by the client. 256 unless it is said.
    #[arg(long, value_name = "N", requires = "rate", value_parser = whole(1..=16_384))]
    pub(crate) under_way: Option<u64>,
    /// Requests of each round.
    #[arg(long, value_name = "N", default_value_t = 40, value_parser = whole(1..=1_000_000))]
    pub(crate) requests: u64,
    /// Words of each prompt, about as many tokens for most models. They differ from request to request.
    #[arg(
        long,
        value_name = "N",
        default_value_t = 32,
        value_parser = whole(1..=200_000),
        conflicts_with = "prompt_file"
    )]
    pub(crate) prompt: u64,
    /// A text file in place of such prompts: each line is one, and they are taken in turn.
    #[arg(long, value_name = "FILE")]
    pub(crate) prompt_file: Option<PathBuf>,
    /// Tokens that each answer has.
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = whole(1..=100_000))]
    pub(crate) generate: u64,
    /// Draw the words and tokens of each request, from half of what is said to one and a half.
    #[arg(long)]
    pub(crate) mixed: bool,
    /// Ask /v1/chat/completions, and not /v1/completions.
    #[arg(long)]
    pub(crate) chat: bool,
    /// Ask for whole answers, and not for streams.
    #[arg(long)]
    pub(crate) no_stream: bool,
    /// Leave `ignore_eos` away, which some servers don't know: answers may end by themselves then.
    #[arg(long)]
    pub(crate) no_ignore_eos: bool,
    /// The name of the model; left away unless it is said. One for all URLs, or given again for each.
    #[arg(long = "model", value_name = "NAME")]
    pub(crate) models: Vec<String>,
    /// The API key. One for all URLs, or given again for each.
    #[arg(long = "key", value_name = "KEY")]
    pub(crate) keys: Vec<String>,
    /// How long an answer is waited for, in seconds.
    #[arg(long, value_name = "SECONDS", default_value = "600", value_parser = seconds)]
    pub(crate) timeout: Duration,
    /// Rounds, in which the URLs take turns: 5 for several of them, 1 for one, unless it is said.
    #[arg(long, value_name = "N", value_parser = whole(1..=1000))]
    rounds: Option<u64>,
    #[command(flatten)]
    within: Within,
    /// Print one JSON object.
    #[arg(long)]
    pub(crate) json: bool,
}

impl HttpBench {
    fn check(&self) -> Result<(), Complaint> {
        let turns = self
            .rounds
            .most
            .saturating_mul(self.connections.len() as u64);
        let times = self.requests.saturating_mul(turns);
        if times > MOST_TOKENS {
            return Err(Complaint::Usage(format!(
                "{times} requests would be measured, and at most {MOST_TOKENS} are; \
                 give less for --requests, --connections or --rounds"
            )));
        }
        let twice = |(at, count): (usize, &u64)| self.connections[..at].contains(count);
        if self.connections.iter().enumerate().any(twice) {
            let text = "--connections names a number twice; give each once";
            return Err(Complaint::Usage(text.into()));
        }
        Ok(())
    }
}

impl LoadBench {
    fn check(&self) -> Result<(), Complaint> {
        for (option, count) in [("--model", self.models.len()), ("--key", self.keys.len())] {
            if count > 1 && count != self.urls.len() {
                return Err(Complaint::Usage(format!(
                    "{option} is given {count} times, for {} URLs; give it once, or once for each of them",
                    self.urls.len()
                )));
            }
        }
        let answers = self.requests.saturating_mul(self.rounds().most);
        let tokens = answers.saturating_mul(self.urls.len() as u64 * self.generate);
        if tokens > MOST_TOKENS {
            return Err(Complaint::Usage(format!(
                "the answers would have {tokens} tokens, and at most {MOST_TOKENS} are measured; \
                 give less for --requests, --generate or --rounds"
            )));
        }
        Ok(())
    }

    /// How often each URL has its turn.
    pub(crate) fn rounds(&self) -> Rounds {
        let usual = if self.urls.len() > 1 { 5 } else { 1 };
        Rounds {
            most: self.rounds.unwrap_or(usual),
            within: self.within,
        }
    }
}

/// One of the values that were given once, or once for each URL.
pub(crate) fn for_url(values: &[String], url: usize) -> Option<&str> {
    values.get(url).or(values.first()).map(String::as_str)
}

/// How many requests come in a second.
fn rate(text: &str) -> Result<f64, String> {
    let rate = text.parse::<f64>().ok();
    let rate = rate.filter(|rate| (0.001..=1e6).contains(rate));
    rate.ok_or_else(|| "it is no rate; write requests a second, e.g. 10 or 0.5".to_owned())
}

/// A path, with a query if need be.
fn path(text: &str) -> Result<String, String> {
    let path = text.parse::<http::uri::PathAndQuery>();
    match path {
        Ok(path) if text.starts_with('/') => Ok(path.to_string()),
        _ => Err("it is no path; write one that begins with '/'".to_owned()),
    }
}

#[derive(Args, Debug)]
pub(crate) struct ModelBench {
    /// Its layers and their sizes.
    #[arg(long, value_enum, default_value_t = ModelShape::Qwen3_0_6b)]
    pub(crate) shape: ModelShape,
    /// What llama.cpp quantises its weights to.
    #[arg(long, value_enum, default_value_t = ModelQuant::Q4Km)]
    pub(crate) quant: ModelQuant,
    /// Make it also where another file is, or the same.
    #[arg(long)]
    pub(crate) force: bool,
    /// Print one JSON object.
    #[arg(long)]
    pub(crate) json: bool,
    /// Where it is made; nothing is done if it is there as asked for.
    #[arg(value_name = "OUT.gguf")]
    pub(crate) out: PathBuf,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
pub(crate) enum ModelShape {
    /// Those of Qwen3-0.6B: 28 layers, width 1024, 151,936 tokens.
    #[value(name = "qwen3-0.6b")]
    Qwen3_0_6b,
    /// Two layers of width 64, 4096 tokens.
    Tiny,
    /// Two layers of width 64, 151,936 tokens: short steps with long rows of logits.
    Wide,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
pub(crate) enum ModelQuant {
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
    /// Read each prompt as soon as it comes, however long those that generate wait for it: what the bound on
    /// their wait costs is the difference.
    #[arg(long)]
    pub(crate) slot_order: bool,
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

#[cfg(test)]
mod tests {
    use super::super::tests::parse;
    use super::super::{Bench, Command, CommandLine};

    fn bench(line: &str) -> Bench {
        let CommandLine {
            command: Command::Bench(bench),
            ..
        } = parse(line).expect("a good line")
        else {
            panic!("no bench");
        };
        bench
    }

    #[test]
    fn the_gap_has_the_name_that_the_issue_gives_it_too() {
        for name in ["gap", "gaps"] {
            let bench = bench(&format!("corral bench {name} --model x.gguf"));
            assert!(matches!(bench, Bench::Gap(_)), "{name}");
        }
    }
}
