//! `corral bench boundary`: what the way between the engine and a plugin costs.
//!
//! The plugin `measure` is called in this process, without HTTP. In each round every way is taken, by one
//! sequence alone and by several at once, so what is compared is measured within seconds; every second
//! round takes them from the last to the first, so that a machine that gets slower or faster favours none. A way's
//! ratio is its speed by that of the host's own loop in the same round.

use super::load::{check_room, config};
use super::rounds::Rounds;
use super::table::{Column, Unit, tell};
use super::{median, median_and_ends, quantile};
use crate::arguments::BoundaryBench;
use crate::complaint::Complaint;
use crate::house;
use corral_engine::{Engine, Models};
use corral_runtime::{Limits, Links, Plugin, Runtime, Source, Terms};
use http_body_util::BodyExt;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};
use tokio::task::JoinSet;

/// Tokens of each prompt, at most.
const PROMPT: u64 = 32;
/// Calls of the host in a request, and requests that do nothing, of which the times are told.
const CALLS: u64 = 100_000;
const STARTS: u64 = 500;

/// A way to get tokens.
struct Way {
    /// As the plugin knows it, and in words.
    name: &'static str,
    title: &'static str,
    streams: u64,
    /// Seconds of each round.
    seconds: Vec<f64>,
}

const WAYS: [(&str, &str); 4] = [
    ("generate", "generate: the host's loop"),
    ("sampler", "generate with a sampling plugin"),
    ("top", "next: the 64 likeliest"),
    ("logits", "next: whole rows of logits"),
];

const COLUMNS: [Column; 7] = [
    ("way", "way", Unit::Plain),
    ("at once", "streams", Unit::Plain),
    ("tok/s", "tokens_per_second", Unit::Whole),
    ("ratio to generate", "ratio", Unit::Thousandths),
    ("least", "ratio_min", Unit::Thousandths),
    ("most", "ratio_max", Unit::Thousandths),
    ("µs a token over next", "over_next_s", Unit::Microseconds),
];

/// Measures and prints.
pub(super) async fn measure(arguments: &BoundaryBench) -> Result<(), Complaint> {
    let count = arguments.generate;
    let cells = arguments.streams * (PROMPT + count);
    let measuring = &arguments.measuring;
    let mut config = config(measuring, None, cells)?;
    // A loop goes on with what is there. So does a prompt of the round before, in every way.
    config.prefix_cache = true;
    let engine = Engine::load(config)?;
    check_room(engine.info().context, "--generate", count, PROMPT)?;
    let models = Models::loaded(vec![engine.clone()]);
    let runtime = house::runtime(None, &models)?;
    let plugin = load(&runtime, arguments).await?;
    let mut streams = vec![1, arguments.streams];
    streams.dedup();
    let mut ways: Vec<_> = streams
        .into_iter()
        .flat_map(|streams| {
            WAYS.map(|(name, title)| Way {
                name,
                title,
                streams,
                seconds: Vec::new(),
            })
        })
        .collect();
    let mut rounds = Rounds::after_one(measuring.rounds);
    for round in rounds.by_ref() {
        if round > 1 {
            ways.reverse();
        }
        for way in &mut ways {
            let began = Instant::now();
            at_once(&plugin, way.name, way.streams, count).await?;
            if round > 0 {
                way.seconds.push(began.elapsed().as_secs_f64());
            }
        }
    }
    let rounds = rounds.measured();
    ways.sort_by_key(|way| {
        (
            way.streams,
            WAYS.iter().position(|(name, _)| *name == way.name),
        )
    });
    let rows: Vec<_> = ways.iter().map(|way| report(way, &ways, count)).collect();
    let call = call(&plugin).await?;
    let (mut requests, mut starts) = requests(&plugin, &runtime).await?;
    let vocabulary = engine.info().vocabulary;
    engine.shutdown();
    let times = json!({
        "call_s": call,
        "request_p50_s": quantile(&mut requests, 0.5),
        "request_p99_s": quantile(&mut requests, 0.99),
        "instance_p50_s": quantile(&mut starts, 0.5),
        "instance_p99_s": quantile(&mut starts, 0.99),
    });
    let micros = |key: &str| 1e6 * times[key].as_f64().unwrap_or(0.0);
    let title = format!(
        "{count} tokens each, greedy, {vocabulary} tokens of vocabulary; medians of {rounds} rounds\n\
         a call of the host: {:.2} µs; a request that does nothing, in this process: {:.0} µs \
         (p99 {:.0}), of which a new instance takes {:.0} (p99 {:.0})",
        micros("call_s"),
        micros("request_p50_s"),
        micros("request_p99_s"),
        micros("instance_p50_s"),
        micros("instance_p99_s"),
    );
    let mut setup = json!({
        "bench": "boundary",
        "generate": count,
        "rounds": rounds,
        "vocabulary": vocabulary,
    });
    setup["times"] = times;
    tell(arguments.measuring.json, setup, &title, &COLUMNS, &rows);
    Ok(())
}

async fn load(runtime: &Runtime, arguments: &BoundaryBench) -> Result<Plugin, Complaint> {
    // Nobody is cut off: a large model takes minutes.
    let forever = Duration::from_secs(86_400);
    let terms = Terms {
        limits: Limits {
            time: forever,
            cpu: forever,
            ..Limits::default()
        },
        links: Links {
            sampling: BTreeMap::from([(
                "sampler".to_owned(),
                Source::from(arguments.sampler.as_path()),
            )]),
            ..Links::default()
        },
        ..Terms::default()
    };
    let account = runtime.account();
    let plugin = arguments.plugin.as_path();
    Ok(runtime
        .plugin_for(&account, "measure", plugin, terms)
        .await?)
}

/// Lets so many sequences go one way, each for `count` tokens.
async fn at_once(plugin: &Plugin, way: &str, streams: u64, count: u64) -> Result<(), Complaint> {
    let mut all = JoinSet::new();
    for number in 0..streams {
        let (plugin, way) = (plugin.clone(), way.to_owned());
        // Digits, one less than tokens: some models put one before a text.
        all.spawn(async move { ask(&plugin, &way, count, format!("{number:031}")).await });
    }
    while let Some(asked) = all.join_next().await {
        asked.map_err(Complaint::telling("a request crashed"))??;
    }
    Ok(())
}

/// Lets the plugin do something `count` times.
pub(super) async fn ask(
    plugin: &Plugin,
    way: &str,
    count: u64,
    prompt: String,
) -> Result<(), Complaint> {
    let request = http::Request::post(format!("/measure/{way}?count={count}"))
        .body(prompt)
        .map_err(Complaint::telling("no request could be made"))?;
    let answer = plugin.handle(request).await?;
    let status = answer.status();
    let body = answer
        .into_body()
        .collect()
        .await
        .map_err(Complaint::telling(
            "the plugin ended in the midst of its answer",
        ))?;
    let text = String::from_utf8_lossy(&body.to_bytes()).into_owned();
    if status.is_success() && text == count.to_string() {
        return Ok(());
    }
    let text: String = text.chars().take(400).collect();
    Err(Complaint::Failed(
        format!("the plugin did not do '{way}' {count} times; is it 'measure'? It said: {text}")
            .into(),
    ))
}

/// Seconds for a call of the host.
async fn call(plugin: &Plugin) -> Result<f64, Complaint> {
    let mut times = Vec::new();
    for _ in 0..5 {
        let began = Instant::now();
        ask(plugin, "call", CALLS, "1".to_owned()).await?;
        #[allow(clippy::cast_precision_loss)]
        times.push(began.elapsed().as_secs_f64() / CALLS as f64);
    }
    Ok(median(times.into_iter()))
}

/// Seconds of each of many requests in which nothing is done, one after the other, and of each one's new instance.
async fn requests(plugin: &Plugin, runtime: &Runtime) -> Result<(Vec<f64>, Vec<f64>), Complaint> {
    let (mut times, mut starts) = (Vec::new(), Vec::new());
    for _ in 0..STARTS {
        let (before, began) = (starting(runtime), Instant::now());
        ask(plugin, "none", 1, String::new()).await?;
        times.push(began.elapsed().as_secs_f64());
        starts.push(starting(runtime) - before);
    }
    Ok((times, starts))
}

/// Seconds that all instances took to start until now.
fn starting(runtime: &Runtime) -> f64 {
    let counters = runtime.counters();
    let found = counters
        .iter()
        .find(|metric| metric.name == "corral_plugin_instance_start_seconds_total");
    found.map_or(0.0, |metric| metric.value)
}

/// A way beside the host's loop and the plugin's, with as many sequences at once.
fn report(way: &Way, all: &[Way], count: u64) -> Value {
    let beside = |name| {
        all.iter()
            .find(|other| other.name == name && other.streams == way.streams)
    };
    let pairs = |name| {
        let other = beside(name).into_iter().flat_map(|other| &other.seconds);
        way.seconds.iter().zip(other)
    };
    #[allow(clippy::cast_precision_loss)]
    let tokens = (way.streams * count) as f64;
    let ratios: Vec<_> = pairs("generate").map(|(own, other)| other / own).collect();
    let [ratio, least, most] = median_and_ends(&ratios);
    let over = pairs("top").map(|(own, other)| (own - other) / tokens);
    json!({
        "way": way.title,
        "streams": way.streams,
        "tokens_per_second": tokens / median(way.seconds.iter().copied()),
        "ratio": ratio,
        "ratio_min": least,
        "ratio_max": most,
        "over_next_s": median(over),
    })
}
