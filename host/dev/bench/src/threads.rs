//! `corral-bench threads`: how many threads should compute, and how many should do everything else.
//!
//! Every compute thread takes a core from the workers, which deliver tokens and run plugins and connections; and when
//! one compute thread loses its core, all others wait for it at the next barrier. The streams are read from the engine
//! by tasks on the workers, or over HTTP by one more thread for all clients.

use crate::args::EngineArgs;
use crate::local_server::{self, client_runtime};
use crate::workload::{check_context, config, generate, metric, prompt};
use clap::Args;
use corral_cli::args::whole;
use corral_cli::bench::rounds::{RoundArgs, Rounds};
use corral_cli::bench::stats::{float, median, median_min_max};
use corral_cli::bench::table::{self, Column, Unit};
use corral_cli::{Error, startup};
use corral_engine::Engine;
use corral_server::Server;
use serde_json::{Value, json};
use std::path::PathBuf;
use std::time::Instant;
use tokio::runtime::Runtime;
use tokio::task::JoinSet;

#[derive(Args, Debug)]
#[command(mut_arg("threads", |arg| arg.help("Most threads of a kind [default: the number of cores, at most 4]")))]
pub(crate) struct ThreadsArgs {
    #[command(flatten)]
    engine: EngineArgs,
    #[command(flatten)]
    rounds: RoundArgs,
    /// The plugin `generate`
    #[arg(long, value_name = "FILE")]
    plugin: PathBuf,
    /// Sequences that generate at once
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = whole(1..=64))]
    streams: u64,
    /// Tokens that each sequence generates in a round
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = whole(2..=2000))]
    output_tokens: u64,
}

/// Most tokens of each prompt.
const PROMPT_TOKENS: u64 = 32;
/// Most threads of a kind by default; more take long to measure.
const MAX_THREADS: usize = 4;

/// A setting, an interface, and the figures.
struct Row {
    threads: usize,
    workers: usize,
    engine: Engine,
    runtime: Runtime,
    /// The server for HTTP; nothing for the engine's interface.
    server: Option<Server>,
    /// Tokens a second of all streams in each round.
    throughput: Vec<f64>,
    /// Seconds in steps, and in sampling and delivery after them.
    step: f64,
    sampling: f64,
}

const COLUMNS: [Column; 8] = [
    ("compute threads", "threads", Unit::Plain),
    ("workers", "workers", Unit::Plain),
    ("interface", "interface", Unit::Plain),
    ("tok/s", "tokens_per_second", Unit::Whole),
    ("min", "tokens_per_second_min", Unit::Whole),
    ("max", "tokens_per_second_max", Unit::Whole),
    ("ratio to default", "ratio_to_default", Unit::Ratio),
    (
        "sampling and delivery",
        "sampling_and_delivery_share",
        Unit::Percent,
    ),
];

/// Measures and prints the figures.
pub(crate) fn measure(args: &ThreadsArgs) -> Result<(), Error> {
    let cores = startup::cores();
    let default = (cores, startup::workers(None));
    let max = args
        .engine
        .threads
        .map_or(cores.min(MAX_THREADS), |max| max as usize);
    let mut settings: Vec<_> = (1..=max)
        .flat_map(|threads| (1..=max).map(move |workers| (threads, workers)))
        .collect();
    if !settings.contains(&default) {
        settings.push(default);
    }
    let clients = client_runtime()?;
    let mut rows = rows(args, &settings)?;
    let mut rounds = Rounds::with_warmup(args.rounds);
    for round in rounds.by_ref() {
        for row in &mut rows {
            row.round(args, &clients, round > 0)?;
        }
    }
    let rounds = rounds.measured();
    let reports: Vec<_> = rows.iter().map(|row| row.report(&rows, default)).collect();
    for row in rows {
        row.runtime.shutdown_background();
        row.engine.shutdown();
    }
    let setup = json!({
        "bench": "threads",
        "cores": cores,
        "streams": args.streams,
        "output_tokens": args.output_tokens,
        "rounds": rounds,
        "default": {"threads": default.0, "workers": default.1},
    });
    let title = format!(
        "{} sequences, {} tokens each, greedy; medians of {rounds} rounds on {cores} cores; at most {max} \
         threads of a kind; default: {} compute threads, {} workers",
        args.streams, args.output_tokens, default.0, default.1
    );
    table::print(args.engine.json, setup, &title, &COLUMNS, &reports);
    Ok(())
}

/// A row for each setting and interface; rows with as many compute threads share an engine.
fn rows(args: &ThreadsArgs, settings: &[(usize, usize)]) -> Result<Vec<Row>, Error> {
    let cells = args.streams * (PROMPT_TOKENS + args.output_tokens);
    let mut rows: Vec<Row> = Vec::new();
    for &(threads, workers) in settings {
        let engine = match rows.iter().find(|row| row.threads == threads) {
            Some(row) => row.engine.clone(),
            None => {
                let mut config = config(&args.engine, cells)?;
                config.threads = u32::try_from(threads).ok();
                config.adaptive_threads = false;
                let engine = Engine::load(config)?;
                let context = engine.info().context;
                check_context(
                    context,
                    "--output-tokens",
                    args.output_tokens,
                    PROMPT_TOKENS,
                )?;
                engine
            }
        };
        for plugin in [None, Some(&args.plugin)] {
            let runtime = startup::tokio_runtime(workers)?;
            let server = plugin
                .map(|plugin| runtime.block_on(local_server::start(&engine, plugin)))
                .transpose()?;
            rows.push(Row {
                threads,
                workers,
                engine: engine.clone(),
                runtime,
                server,
                throughput: Vec::new(),
                step: 0.0,
                sampling: 0.0,
            });
        }
    }
    Ok(rows)
}

impl Row {
    /// Runs all streams once; records the figures if the round counts.
    fn round(&mut self, args: &ThreadsArgs, clients: &Runtime, counts: bool) -> Result<(), Error> {
        let seconds = |name| metric(&self.engine, &format!("corral_engine_{name}_seconds_total"));
        let (step, sampling) = (seconds("compute"), seconds("sampling"));
        let tokens = args.output_tokens;
        let address = self.server.as_ref().map(Server::public_address);
        let start = Instant::now();
        let streams = async {
            let mut tasks = JoinSet::new();
            for number in 0..args.streams {
                let engine = self.engine.clone();
                tasks.spawn(async move {
                    match address {
                        Some(address) => {
                            // One digit less than tokens: some models put a token before a text.
                            let prompt = format!("{number:031}");
                            local_server::stream(address, &prompt, tokens).await
                        }
                        None => {
                            let prompt = prompt(&engine, number, PROMPT_TOKENS);
                            generate(&engine, prompt, tokens).await.map(drop)
                        }
                    }
                });
            }
            while let Some(finished) = tasks.join_next().await {
                finished.map_err(Error::context("a stream crashed"))??;
            }
            Ok::<_, Error>(())
        };
        match address {
            Some(_) => clients.block_on(streams)?,
            None => self.runtime.block_on(streams)?,
        }
        if counts {
            let throughput = float(args.streams * tokens) / start.elapsed().as_secs_f64();
            let (step, sampling) = (seconds("compute") - step, seconds("sampling") - sampling);
            self.throughput.push(throughput);
            self.step += step;
            self.sampling += sampling;
        }
        Ok(())
    }

    /// The figures, with ratios to the row of the `default` setting and the same interface.
    fn report(&self, all: &[Row], default: (usize, usize)) -> Value {
        let default = all.iter().find(|row| {
            (row.threads, row.workers) == default && row.server.is_some() == self.server.is_some()
        });
        let ratios = default.iter().flat_map(|row| {
            let pairs = self.throughput.iter().zip(&row.throughput);
            pairs.map(|(own, default)| own / default)
        });
        let [throughput, min, max] = median_min_max(&self.throughput);
        json!({
            "threads": self.threads,
            "workers": self.workers,
            "interface": if self.server.is_some() { "HTTP" } else { "engine" },
            "tokens_per_second": throughput,
            "tokens_per_second_min": min,
            "tokens_per_second_max": max,
            "ratio_to_default": median(ratios),
            "sampling_and_delivery_share": self.sampling / (self.step + self.sampling),
        })
    }
}
