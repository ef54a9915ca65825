//! `corral-bench prefill`: tokens a second of prompts, over HTTP and by llama.cpp's own `llama-bench`.
//!
//! Each round measures every length with both, one right after the other, so that the ratio compares figures seconds
//! apart. llama-bench computes no logits but those of a batch's last token and starts with empty cells; a request here
//! is one new connection, a prompt without a cached prefix, and one token.

use crate::args::EngineArgs;
use crate::local_server;
use crate::workload::{check_context, config, random_digits};
use clap::Args;
use corral_cli::args::whole;
use corral_cli::bench::rounds::{RoundArgs, Rounds};
use corral_cli::bench::stats::{median, set_range};
use corral_cli::bench::table::{self, Column, Unit};
use corral_cli::{Error, startup};
use corral_engine::Engine;
use corral_server::Server;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

#[derive(Args, Debug)]
pub(crate) struct PrefillArgs {
    #[command(flatten)]
    engine: EngineArgs,
    #[command(flatten)]
    rounds: RoundArgs,
    /// The plugin `generate`
    #[arg(long, value_name = "FILE")]
    plugin: PathBuf,
    /// llama.cpp's `llama-bench`, built from the same sources, to compare with
    #[arg(long, value_name = "FILE")]
    llama_bench: Option<PathBuf>,
    /// Tokens of the prompts
    #[arg(long, value_name = "N,…", value_delimiter = ',', default_values_t = [512, 4096], value_parser = whole(16..=1 << 20))]
    lengths: Vec<u64>,
}

/// Seconds per prompt of each round.
#[derive(Default)]
struct Row {
    length: u64,
    own: Vec<f64>,
    peer: Vec<f64>,
}

const COLUMNS: [Column; 6] = [
    ("prompt tokens", "prompt_tokens", Unit::Plain),
    ("tok/s over HTTP", "tokens_per_second", Unit::Whole),
    ("llama-bench", "peer_tokens_per_second", Unit::Whole),
    ("ratio", "ratio", Unit::Thousandths),
    ("min", "ratio_min", Unit::Thousandths),
    ("max", "ratio_max", Unit::Thousandths),
];

/// Measures and prints the figures.
pub(crate) async fn measure(args: &PrefillArgs) -> Result<(), Error> {
    let longest = args.lengths.iter().copied().max().unwrap_or_default();
    let mut config = config(&args.engine, longest + 16)?;
    config.context = u32::try_from(longest + 16).ok();
    let engine = Engine::load(config)?;
    check_context(engine.info().context, "--lengths", longest, 1)?;
    let server = local_server::start(&engine, &args.plugin).await?;
    let row = |&length: &u64| Row {
        length,
        ..Row::default()
    };
    let mut rows: Vec<_> = args.lengths.iter().map(row).collect();
    let mut prompts = 0;
    let mut rounds = Rounds::with_warmup(args.rounds);
    for round in rounds.by_ref() {
        for row in &mut rows {
            prompts += 1;
            let own = over_http(&engine, &server, prompts, row.length).await?;
            let peer = args.llama_bench.as_deref();
            let peer = peer.map(|program| by_llama_bench(program, args, row.length));
            let peer = peer.transpose()?;
            if round > 0 {
                row.own.push(own);
                row.peer.extend(peer);
            }
        }
    }
    engine.shutdown();
    let model = args.engine.model.file_name().unwrap_or_default();
    let title = format!(
        "{}: prompts, {} threads; medians of {} rounds",
        model.to_string_lossy(),
        threads(args),
        rounds.measured()
    );
    let setup = json!({"bench": "prefill", "model": model.to_string_lossy()});
    let rows: Vec<_> = rows.iter().map(Row::report).collect();
    table::print(args.engine.json, setup, &title, &COLUMNS, &rows);
    Ok(())
}

impl Row {
    fn report(&self) -> Value {
        let speed = |seconds: &[f64]| self.length as f64 / median(seconds.iter().copied());
        let ratios = self.peer.iter().zip(&self.own);
        let ratios: Vec<_> = ratios.map(|(peer, own)| peer / own).collect();
        let mut report = json!({
            "prompt_tokens": self.length,
            "tokens_per_second": speed(&self.own),
        });
        if !ratios.is_empty() {
            report["peer_tokens_per_second"] = json!(speed(&self.peer));
            set_range(&mut report, "ratio", &ratios);
        }
        report
    }
}

/// The seconds of a request for one token after a new prompt of `length` tokens.
async fn over_http(
    engine: &Engine,
    server: &Server,
    number: u64,
    length: u64,
) -> Result<f64, Error> {
    // Some vocabularies have tokens of three digits.
    let mut tokens = engine.tokenize(&random_digits(number, 3 * length), true)?;
    tokens.truncate(usize::try_from(length).unwrap_or(usize::MAX));
    let begins = engine.info().begin.is_some() && tokens.first().copied() == engine.info().begin;
    let text = engine.detokenize(&tokens[usize::from(begins)..], false)?;
    let start = Instant::now();
    let response =
        local_server::complete(server.public_address(), &String::from_utf8_lossy(&text)).await?;
    let seconds = start.elapsed().as_secs_f64();
    // The text may be cut into other tokens than it was made of.
    let counted = response["prompt_tokens"].as_u64().unwrap_or(0);
    if counted.abs_diff(length) * 100 > length || response["cached_tokens"].as_u64() > Some(0) {
        return Err(Error::failed(format!(
            "a prompt of {length} tokens was computed otherwise: {response}"
        )));
    }
    Ok(seconds * length as f64 / counted as f64)
}

/// The seconds that llama-bench takes for a prompt of `length` tokens.
fn by_llama_bench(program: &Path, args: &PrefillArgs, length: u64) -> Result<f64, Error> {
    let context = || format!("cannot run {}", program.display());
    let output = Command::new(program)
        .arg("--model")
        .arg(&args.engine.model)
        .args(["--n-gen", "0", "--repetitions", "1", "--output", "json"])
        .args(["--n-prompt", &length.to_string()])
        .args(["--threads", &threads(args).to_string()])
        .output()
        .map_err(Error::context(context()))?;
    let results: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
    match results[0]["avg_ts"].as_f64() {
        Some(speed) if speed > 0.0 => Ok(length as f64 / speed),
        _ => Err(Error::failed(format!(
            "{}: no figure; it wrote: {}",
            context(),
            String::from_utf8_lossy(&output.stderr)
        ))),
    }
}

/// Compute threads of both.
fn threads(args: &PrefillArgs) -> u64 {
    let cores = || u64::try_from(startup::cores()).unwrap_or(1);
    args.engine.threads.map_or_else(cores, u64::from)
}
