//! `corral-bench plugin-overhead`: what plugins add to the work of the engine.
//!
//! It calls the plugin `measure` in this process, without HTTP. Each round runs every variant, with one sequence and
//! with several, so that compared figures are seconds apart; every second round runs them in reverse order. The ratio
//! of a variant is its throughput to that of the host's loop in the same round.

use crate::args::EngineArgs;
use crate::local_server::no_time_limits;
use crate::workload::{check_context, config, value};
use clap::Args;
use corral_cli::args::whole;
use corral_cli::bench::rounds::{RoundArgs, Rounds};
use corral_cli::bench::stats::{Quantiles, float, median, set_range};
use corral_cli::bench::table::{self, Column, Unit};
use corral_cli::{Error, startup};
use corral_engine::{Engine, ModelPool};
use corral_runtime::{
    CallOptions, ComponentSource, LinkedComponents, Plugin, PluginConfig, Runtime,
};
use http_body_util::BodyExt;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Instant;
use tokio::task::JoinSet;

#[derive(Args, Debug)]
pub(crate) struct PluginOverheadArgs {
    #[command(flatten)]
    engine: EngineArgs,
    #[command(flatten)]
    rounds: RoundArgs,
    /// The plugin `measure`
    #[arg(long, value_name = "FILE")]
    plugin: PathBuf,
    /// The sampling plugin `min-p`
    #[arg(long, value_name = "FILE")]
    sampler: PathBuf,
    /// Sequences at once; one alone is measured too
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = whole(1..=32))]
    streams: u64,
    /// Tokens that each sequence generates
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = whole(2..=2000))]
    output_tokens: u64,
}

/// Most tokens of a prompt.
const PROMPT_TOKENS: u64 = 32;
/// Host calls of one request.
const HOST_CALLS: u64 = 100_000;
/// Empty requests whose times are measured.
const EMPTY_REQUESTS: u64 = 500;

/// A way to generate tokens.
struct Variant {
    /// The plugin's name for it.
    name: &'static str,
    title: &'static str,
    streams: u64,
    /// Seconds of each round.
    seconds: Vec<f64>,
}

const VARIANTS: [(&str, &str); 4] = [
    ("generate", "generate: the host's loop"),
    ("sampler", "generate with a sampling plugin"),
    ("top", "next: the 64 likeliest"),
    ("logits", "next: whole rows of logits"),
];

const COLUMNS: [Column; 7] = [
    ("variant", "variant", Unit::Plain),
    ("streams", "streams", Unit::Plain),
    ("tok/s", "tokens_per_second", Unit::Whole),
    ("ratio to generate", "ratio", Unit::Thousandths),
    ("min", "ratio_min", Unit::Thousandths),
    ("max", "ratio_max", Unit::Thousandths),
    ("µs a token over next", "over_next_s", Unit::Microseconds),
];

/// Measures and prints the figures.
pub(crate) async fn measure(args: &PluginOverheadArgs) -> Result<(), Error> {
    let tokens = args.output_tokens;
    let cells = args.streams * (PROMPT_TOKENS + tokens);
    let mut config = config(&args.engine, cells)?;
    // A plugin's loop continues the cached sequence. All variants reuse the prompts of earlier rounds.
    config.prefix_cache = true;
    let engine = Engine::load(config)?;
    check_context(
        engine.info().context,
        "--output-tokens",
        tokens,
        PROMPT_TOKENS,
    )?;
    let models = ModelPool::loaded(vec![engine.clone()]);
    let runtime = startup::runtime(None, &models)?;
    let plugin = load(&runtime, args).await?;
    let mut variants = variants(args.streams);
    let mut rounds = Rounds::with_warmup(args.rounds);
    for round in rounds.by_ref() {
        if round > 1 {
            variants.reverse();
        }
        for variant in &mut variants {
            let start = Instant::now();
            run_streams(&plugin, variant.name, variant.streams, tokens).await?;
            if round > 0 {
                variant.seconds.push(start.elapsed().as_secs_f64());
            }
        }
    }
    let rounds = rounds.measured();
    variants.sort_by_key(|variant| {
        let position = VARIANTS.iter().position(|(name, _)| *name == variant.name);
        (variant.streams, position)
    });
    let rows: Vec<_> = variants
        .iter()
        .map(|variant| report(variant, &variants, tokens))
        .collect();
    let call = host_call_seconds(&plugin).await?;
    let (requests, starts) = empty_requests(&plugin, &runtime).await?;
    let vocabulary = engine.info().vocabulary;
    engine.shutdown();
    let times = json!({
        "call_s": call,
        "request_p50_s": requests.at(0.5),
        "request_p99_s": requests.at(0.99),
        "instance_p50_s": starts.at(0.5),
        "instance_p99_s": starts.at(0.99),
    });
    let micros = |key: &str| 1e6 * times[key].as_f64().unwrap_or(0.0);
    let title = format!(
        "{tokens} tokens each, greedy, vocabulary {vocabulary}; medians of {rounds} rounds\n\
         a host call: {:.2} µs; an empty request in this process: {:.0} µs (p99 {:.0}), \
         of which the new instance takes {:.0} (p99 {:.0})",
        micros("call_s"),
        micros("request_p50_s"),
        micros("request_p99_s"),
        micros("instance_p50_s"),
        micros("instance_p99_s"),
    );
    let mut setup = json!({
        "bench": "plugin-overhead",
        "output_tokens": tokens,
        "rounds": rounds,
        "vocabulary": vocabulary,
    });
    setup["times"] = times;
    table::print(args.engine.json, setup, &title, &COLUMNS, &rows);
    Ok(())
}

/// All variants, with one stream and with `streams`.
fn variants(streams: u64) -> Vec<Variant> {
    let mut counts = vec![1, streams];
    counts.dedup();
    let of_count = |streams| {
        VARIANTS.map(|(name, title)| Variant {
            name,
            title,
            streams,
            seconds: Vec::new(),
        })
    };
    counts.into_iter().flat_map(of_count).collect()
}

async fn load(runtime: &Runtime, args: &PluginOverheadArgs) -> Result<Plugin, Error> {
    let sampler = ComponentSource::from(args.sampler.as_path());
    let config = PluginConfig {
        limits: no_time_limits(),
        linked: LinkedComponents {
            sampling: BTreeMap::from([("sampler".to_owned(), sampler)]),
            ..LinkedComponents::default()
        },
        ..PluginConfig::default()
    };
    let deployment = runtime.new_deployment();
    let plugin = args.plugin.as_path();
    Ok(runtime
        .load_plugin_into(&deployment, "measure", plugin, config)
        .await?)
}

/// Runs a variant in this many requests at once, each of `tokens` tokens.
async fn run_streams(
    plugin: &Plugin,
    variant: &str,
    streams: u64,
    tokens: u64,
) -> Result<(), Error> {
    let mut tasks = JoinSet::new();
    for number in 0..streams {
        let (plugin, variant) = (plugin.clone(), variant.to_owned());
        // One digit less than tokens: some models put a token before a text.
        let prompt = format!("{number:031}");
        tasks.spawn(async move { call(&plugin, &variant, tokens, prompt).await });
    }
    while let Some(finished) = tasks.join_next().await {
        finished.map_err(Error::context("a request crashed"))??;
    }
    Ok(())
}

/// Calls the plugin `measure` for `count` repetitions of an operation.
pub(crate) async fn call(
    plugin: &Plugin,
    operation: &str,
    count: u64,
    prompt: String,
) -> Result<(), Error> {
    let request = http::Request::post(format!(
        "http://localhost/measure/{operation}?count={count}"
    ))
    .body(prompt)
    .map_err(Error::context("cannot build a request"))?;
    let response = plugin.handle(request, CallOptions::default()).await?;
    let status = response.status();
    let body = response.into_body().collect().await;
    let body = body.map_err(Error::context("the plugin ended within its response"))?;
    let text = String::from_utf8_lossy(&body.to_bytes()).into_owned();
    if status.is_success() && text == count.to_string() {
        return Ok(());
    }
    let text: String = text.chars().take(400).collect();
    Err(Error::failed(format!(
        "the plugin did not do '{operation}' {count} times; is it 'measure'? its response: {text}"
    )))
}

/// Seconds of one host call.
async fn host_call_seconds(plugin: &Plugin) -> Result<f64, Error> {
    let mut times = Vec::new();
    for _ in 0..5 {
        let start = Instant::now();
        call(plugin, "call", HOST_CALLS, "1".to_owned()).await?;
        times.push(start.elapsed().as_secs_f64() / float(HOST_CALLS));
    }
    Ok(median(times))
}

/// Seconds of empty requests one after the other, and of the instance of each.
async fn empty_requests(
    plugin: &Plugin,
    runtime: &Runtime,
) -> Result<(Quantiles, Quantiles), Error> {
    let (mut requests, mut starts) = (Quantiles::default(), Quantiles::default());
    for _ in 0..EMPTY_REQUESTS {
        let (before, start) = (instance_start_seconds(runtime), Instant::now());
        call(plugin, "none", 1, String::new()).await?;
        requests.add(start.elapsed().as_secs_f64());
        starts.add(instance_start_seconds(runtime) - before);
    }
    Ok((requests, starts))
}

/// Seconds that the starts of all instances have taken.
fn instance_start_seconds(runtime: &Runtime) -> f64 {
    value(
        &runtime.metrics(),
        "corral_plugin_instance_start_seconds_total",
    )
}

/// The figures of a variant beside those of `generate` and `top` with as many streams.
fn report(variant: &Variant, all: &[Variant], tokens: u64) -> Value {
    let pairs = |name| {
        let other = all
            .iter()
            .find(|other| other.name == name && other.streams == variant.streams);
        let seconds = other.into_iter().flat_map(|other| &other.seconds);
        variant.seconds.iter().zip(seconds)
    };
    let tokens = float(variant.streams * tokens);
    let ratios: Vec<_> = pairs("generate").map(|(own, other)| other / own).collect();
    let over_next = pairs("top").map(|(own, other)| (own - other) / tokens);
    let mut row = json!({
        "variant": variant.title,
        "streams": variant.streams,
        "tokens_per_second": tokens / median(variant.seconds.iter().copied()),
        "over_next_s": median(over_next),
    });
    set_range(&mut row, "ratio", &ratios);
    row
}
