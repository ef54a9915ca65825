//! `corral-bench programs`: programs around a model, as plugins and as clients.
//!
//! Each program is an example of this repository, called over HTTP, and a client here that does the same with requests to
//! `/completion`: of this server and of llama.cpp's, which has the same model file. The client has what that API offers: `n`
//! for several answers to a prompt, log probabilities, biases, cached prompts, and prompts as tokens.
//!
//! The weights are random, so nothing may depend on what the model writes: no answer ends before its length, labels and
//! results of puzzles are forced, and a search goes on until it has used its steps. Then plugin and client take the same way,
//! which the number of their steps confirms. Every run has a prompt of its own.
//!
//! The plugins return whole answers, so their deployments have the latency policy `throughput`: prompts of a program need not
//! wait so that the tokens of its other branches come evenly. OpenAI's API serves other clients as well and keeps the default.
//!
//! A client may send independent requests at once or one after the other. At once they share the steps of the model; one
//! after the other they find the common part of their prompts in a slot of llama.cpp's server. How many slots are best depends
//! on the program too. Round 0 tries both orders with each peer, and the fastest choice counts.

mod batch_map;
mod beam_search;
mod classifier;
mod client;
mod input;
mod program;
mod react_agent;
mod report;
mod sampling;
mod skeleton_of_thought;
mod tree_of_thought;

use crate::args::{EngineArgs, check_distinct};
use crate::local_server::{NO_TIME_LIMIT, client_runtime, no_time_limits, open};
use crate::workload::{check_context, config, count, metric, status};
use clap::{Args, ValueEnum};
use client::{Endpoint, Order, ProgramClient};
use corral_cli::args::whole;
use corral_cli::bench::rounds::{RoundArgs, Rounds};
use corral_cli::bench::url::Url;
use corral_cli::{Error, startup};
use corral_engine::{Engine, Latency, ModelPool};
use corral_runtime::Limits;
use corral_server::deployments::Deployments;
use corral_server::{Access, RequestPolicy, Server, ServerOptions};
use input::{Input, Lengths};
use program::Program;
use report::{Choice, ProgramRow, Sample, Side};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::task::JoinSet;

#[derive(Args, Debug)]
pub(crate) struct ProgramsArgs {
    #[command(flatten)]
    engine: EngineArgs,
    #[command(flatten)]
    rounds: RoundArgs,
    /// Directory of the components that 'make plugins' builds
    #[arg(long, value_name = "DIR")]
    plugins: PathBuf,
    /// llama.cpp's server with the same model, http://HOST:PORT; of several, the fastest for each program counts
    #[arg(long, value_name = "URL,URL", value_delimiter = ',')]
    peer: Vec<Url>,
    /// Programs [default: all]
    #[arg(long, value_name = "NAME,NAME", value_delimiter = ',')]
    programs: Vec<Program>,
    /// Runs of a program at once
    #[arg(long, value_name = "N,N", value_delimiter = ',', default_values_t = [1_u64, 8],
          value_parser = whole(1..=64))]
    at_once: Vec<u64>,
    /// Tokens of a prompt that a program shares between its answers
    #[arg(long, value_name = "N", default_value_t = 128, value_parser = whole(16..=100_000))]
    prompt_tokens: u64,
    /// Tokens of an answer
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = whole(2..=10_000))]
    output_tokens: u64,
    /// Latency policy of the plugins
    #[arg(long, value_name = "POLICY", default_value_t = Latency::THROUGHPUT)]
    latency: Latency,
    /// Order of a client's independent requests
    #[arg(long, value_enum, default_value_t = OrderChoice::Faster)]
    order: OrderChoice,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum OrderChoice {
    /// The one that was faster in round 0
    Faster,
    AtOnce,
    InTurn,
}

/// The metric of tokens given to llama_decode.
const COMPUTED_TOKENS: &str = "corral_engine_computed_tokens_total";
/// The metric of steps.
const STEPS: &str = "corral_engine_steps_total";
/// Cells, as many as the peer has in BENCHMARKS.md.
const CELLS: u64 = 16_384;
/// Tokens of the largest program besides prompts and answers: the agent's tools and questions.
const OTHER_TOKENS: u64 = 800;
/// Before each run: until the server of the last one has noticed the end of its requests, and its compute threads spin no
/// more.
const SETTLE_TIME: Duration = Duration::from_millis(500);

/// The end of a user's turn and the begin of the answer.
const TURN_END: &str = "<|im_end|>\n<|im_start|>assistant\n";
/// The begin of a user's turn after an answer that ended at its limit.
const TURN_AFTER_LIMIT: &str = "<|im_end|>\n<|im_start|>user\n";

/// The names of the components that the bench needs, besides `openai`.
pub(crate) fn names() -> impl Iterator<Item = &'static str> {
    Program::value_variants().iter().map(|one| one.name())
}

/// Measures and prints the figures.
pub(crate) fn measure(args: &ProgramsArgs) -> Result<(), Error> {
    check_distinct("--at-once", &args.at_once)?;
    check_distinct("--programs", &args.programs)?;
    let mut config = config(&args.engine, CELLS)?;
    config.prefix_cache = true;
    let engine = Engine::load(config)?;
    let context = engine.info().context;
    let answers = 8 * args.output_tokens;
    check_context(
        context,
        "--prompt-tokens",
        args.prompt_tokens,
        answers + OTHER_TOKENS,
    )?;
    let programs = match args.programs.as_slice() {
        [] => Program::value_variants().to_vec(),
        chosen => chosen.to_vec(),
    };
    let workers = startup::tokio_runtime(startup::workers(None))?;
    let server = workers.block_on(start(&engine, args, &programs))?;
    let url = format!("http://{}", server.public_address());
    let own = Arc::new(Endpoint::new(&url.parse().map_err(Error::failed)?));
    let peers = args.peer.iter().map(|url| Arc::new(Endpoint::new(url)));
    let peers: Vec<_> = peers.collect();
    let mut sides = vec![
        (Side::Plugin, vec![Arc::clone(&own)]),
        (Side::Client, vec![Arc::clone(&own)]),
    ];
    if !peers.is_empty() {
        sides.push((Side::Peer, peers));
    }
    let mut bench = Bench {
        engine,
        own,
        lengths: Lengths {
            prompt: args.prompt_tokens,
            output: args.output_tokens,
        },
        runs: 0,
    };
    let mut rows: Vec<_> = programs
        .iter()
        .flat_map(|&program| {
            args.at_once
                .iter()
                .map(move |&count| ProgramRow::new(program, count))
        })
        .collect();
    let clients = client_runtime()?;
    let mut rounds = Rounds::with_warmup(args.rounds);
    for round in rounds.by_ref() {
        for row in &mut rows {
            for (side, endpoints) in &sides {
                let run = match round {
                    0 => clients.block_on(bench.warm_up(row, *side, endpoints, args.order)),
                    _ => clients.block_on(bench.measure(row, *side)),
                };
                let program = row.program.name();
                run.map_err(|error| {
                    let reason = error.message(false);
                    Error::failed(format!("the program {program}: {reason}"))
                })?;
            }
        }
        sides.rotate_left(1);
    }
    workers.block_on(server.stop(std::future::ready(())));
    bench.engine.shutdown();
    report::print(args, &rows, rounds.measured());
    Ok(())
}

/// Starts a server with the programs at their names, and OpenAI's API, with that of llama.cpp's server, at all other paths.
async fn start(
    engine: &Engine,
    args: &ProgramsArgs,
    programs: &[Program],
) -> Result<Server, Error> {
    let limits = no_time_limits();
    let models = ModelPool::loaded(vec![engine.clone()]);
    let runtime = startup::runtime(None, &models)?;
    let deployments = Deployments::new(runtime.clone(), None, limits.clone(), Access::Open);
    let of_programs = Limits {
        latency: args.latency,
        ..limits.clone()
    };
    let routes = programs
        .iter()
        .map(|program| (program.path(), program.name(), &of_programs));
    for (route, name, limits) in routes.chain([("/".to_owned(), "openai", &limits)]) {
        let file = args.plugins.join(format!("{name}.wasm"));
        let plugin = runtime.load_plugin(name, file, limits.clone()).await?;
        deployments.add_static(route.parse()?, plugin, RequestPolicy::default())?;
    }
    open(models, runtime, deployments, None, ServerOptions::default()).await
}

struct Bench {
    engine: Engine,
    /// This server, which renders prompts for the clients of all servers.
    own: Arc<Endpoint>,
    lengths: Lengths,
    /// Runs so far, each of which has its own input.
    runs: u64,
}

impl Bench {
    /// Runs a program without recording it, with each order and endpoint, to choose the fastest.
    async fn warm_up(
        &mut self,
        row: &mut ProgramRow,
        side: Side,
        endpoints: &[Arc<Endpoint>],
        order: OrderChoice,
    ) -> Result<(), Error> {
        let mut orders = match order {
            OrderChoice::Faster if side != Side::Plugin && row.program.has_branches() => {
                vec![Order::InTurn, Order::AtOnce]
            }
            OrderChoice::Faster | OrderChoice::AtOnce => vec![Order::AtOnce],
            OrderChoice::InTurn => vec![Order::InTurn],
        };
        let mut fastest = NO_TIME_LIMIT;
        for endpoint in endpoints {
            for &order in &orders {
                let choice = Choice {
                    endpoint: Arc::clone(endpoint),
                    order,
                };
                tokio::time::sleep(SETTLE_TIME).await;
                let trial = self.run(row, side, &choice);
                // A slower trial ends with its time, and its requests with it.
                if let Ok(sample) = tokio::time::timeout(fastest, trial).await {
                    fastest = Duration::from_secs_f64(sample?.seconds);
                    row.choose(side, choice);
                }
            }
            // Trials take time: further endpoints are tried with the faster order only.
            orders = row
                .choice(side)
                .map(|choice| choice.order)
                .into_iter()
                .collect();
        }
        Ok(())
    }

    async fn measure(&mut self, row: &mut ProgramRow, side: Side) -> Result<(), Error> {
        let choice = row.choice(side).cloned();
        let choice = choice.ok_or_else(|| Error::failed("there was no round 0"))?;
        tokio::time::sleep(SETTLE_TIME).await;
        let sample = self.run(row, side, &choice).await?;
        row.add(side, sample);
        Ok(())
    }

    /// Runs a program as often at once as the row says.
    async fn run(
        &mut self,
        row: &ProgramRow,
        side: Side,
        choice: &Choice,
    ) -> Result<Sample, Error> {
        let program = row.program;
        let mut inputs = Vec::new();
        for _ in 0..row.at_once {
            self.runs += 1;
            let input = Input::new(&self.engine, self.lengths, self.runs)?;
            inputs.push(program.prepare(input, &self.own).await?);
        }
        let Choice { endpoint, order } = choice;
        let client = ProgramClient::new(endpoint, *order);
        let before = self.computed_tokens().await?;
        let steps_before = self.engine_steps(side, endpoint).await;
        let start = Instant::now();
        let mut tasks = JoinSet::new();
        for input in inputs {
            let (client, endpoint) = (client.clone(), Arc::clone(endpoint));
            tasks.spawn(async move {
                match side {
                    Side::Plugin => {
                        let body = program.request(&input);
                        let response = endpoint.post(&program.path(), &body).await?;
                        program.steps(&response)
                    }
                    Side::Client | Side::Peer => program.run(client, input).await,
                }
            });
        }
        let mut steps = 0;
        while let Some(ended) = tasks.join_next().await {
            steps += ended.map_err(Error::context("a client crashed"))??;
        }
        let seconds = start.elapsed().as_secs_f64();
        let counts = client.take_counts();
        let computed = match side {
            Side::Plugin | Side::Client => self.computed_tokens().await? - before,
            Side::Peer => counts.computed,
        };
        let engine_steps = self.engine_steps(side, endpoint).await;
        Ok(Sample {
            seconds,
            steps,
            engine_steps: engine_steps
                .zip(steps_before)
                .map(|(after, before)| after.saturating_sub(before)),
            computed,
            fewest: counts.fewest(),
        })
    }

    /// Tokens that the engine has computed.
    async fn computed_tokens(&self) -> Result<u64, Error> {
        // The engine has done all earlier commands.
        status(&self.engine).await?;
        Ok(count(metric(&self.engine, COMPUTED_TOKENS)))
    }

    /// Steps that the server of a side has computed; of a peer, if it says so.
    async fn engine_steps(&self, side: Side, endpoint: &Endpoint) -> Option<u64> {
        match side {
            Side::Plugin | Side::Client => Some(count(metric(&self.engine, STEPS))),
            Side::Peer => endpoint.steps().await,
        }
    }
}
