//! `corral-bench latency-drift`: whether requests get slower as more requests have run before them.
//!
//! One-token requests run one after the other. The measured time is the engine's, from admission to the token; the
//! time in the queue is separate. The slope is the Theil–Sen estimator, the median of the slopes between any two
//! requests, which a few delayed requests do not move. The growth is the slope times the number of requests, as a
//! fraction of the median time. A second series runs beside an idle sequence in high cells: attention covers all
//! cells below it until the engine compacts it.

use crate::args::EngineArgs;
use crate::local_server;
use crate::workload::{check_context, config, exactly, finish, metric, prompt, status};
use clap::Args;
use corral_cli::Error;
use corral_cli::args::whole;
use corral_cli::bench::stats::median;
use corral_cli::bench::table::{self, Column, Unit};
use corral_engine::{Caller, Engine, Sequence};
use corral_server::Server;
use serde_json::{Value, json};
use std::path::PathBuf;
use std::time::{Duration, Instant};

#[derive(Args, Debug)]
pub(crate) struct LatencyDriftArgs {
    #[command(flatten)]
    engine: EngineArgs,
    /// The plugin `generate`
    #[arg(long, value_name = "FILE")]
    plugin: PathBuf,
    /// Requests in a row
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = whole(10..=4000))]
    requests: u64,
    /// Digits of each prompt, about as many tokens; the prefix cache keeps prompts of 16 or more
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = whole(4..=2000))]
    prompt_tokens: u64,
    /// KV cells below the idle sequence of the second series
    #[arg(long, value_name = "N", default_value_t = 2048, value_parser = whole(256..=100_000))]
    low_cells: u64,
}

/// Requests before the measured ones: for the cost model, caches and threads.
const WARMUP_REQUESTS: u64 = 32;
/// Requests of a block, of which the fastest counts, which leaves out most disturbances.
const BLOCK: usize = 10;
/// How long the idle engine is observed.
const IDLE_TIME: Duration = Duration::from_secs(1);
/// How long the engine must sleep before it counts as idle.
const SETTLE_TIME: Duration = Duration::from_millis(100);
/// Tokens of the sequence in high cells.
const HIGH_TOKENS: u64 = 16;

/// Times of a request, in seconds.
struct RequestTimes {
    queue: f64,
    /// From admission to the last token.
    service: f64,
    /// From the call to its end.
    total: f64,
    cached_tokens: u64,
}

/// Requests one after the other, and the state of the cells before and after.
struct Series {
    interface: &'static str,
    beside: &'static str,
    requests: Vec<RequestTimes>,
    n_kv: (u32, u32),
    compacted: u64,
}

const COLUMNS: [Column; 12] = [
    ("interface", "interface", Unit::Plain),
    ("beside", "beside", Unit::Plain),
    ("requests", "requests", Unit::Plain),
    ("service", "service_s", Unit::Milliseconds),
    ("slope x N", "growth", Unit::Percent),
    ("min of ten", "growth_of_block_min", Unit::Percent),
    ("queue", "queue_s", Unit::Milliseconds),
    ("total", "total_s", Unit::Milliseconds),
    ("cached", "cached_tokens", Unit::Plain),
    ("n_kv first", "n_kv_before", Unit::Plain),
    ("n_kv last", "n_kv_after", Unit::Plain),
    ("compacted", "compacted", Unit::Plain),
];

/// Measures and prints the figures.
pub(crate) async fn measure(args: &LatencyDriftArgs) -> Result<(), Error> {
    let cells = args.low_cells + HIGH_TOKENS + 2 * (args.prompt_tokens + 2);
    let mut config = config(&args.engine, cells)?;
    // As in production: cached prefixes of earlier requests could slow down later ones.
    config.prefix_cache = true;
    let engine = Engine::load(config)?;
    let context = engine.info().context;
    check_context(context, "--prompt-tokens", args.prompt_tokens, 2)?;
    check_context(context, "--low-cells", args.low_cells, 1)?;
    let bench = Bench {
        server: local_server::start(&engine, &args.plugin).await?,
        engine,
        digits: usize::try_from(args.prompt_tokens).unwrap_or(usize::MAX),
    };
    let alone = bench.both_series("nothing", args.requests).await?;
    let high_sequence = bench.create_high_sequence(args.low_cells).await?;
    let beside = bench.both_series("a high one", args.requests).await?;
    drop(high_sequence);
    let idle = bench.idle_wakeups_per_second().await?;
    bench.engine.shutdown();
    let series = alone.iter().chain(&beside);
    let rows: Vec<_> = series.map(Series::report).collect();
    let setup = json!({
        "bench": "latency-drift",
        "requests": args.requests,
        "prompt_tokens": args.prompt_tokens,
        "low_cells": args.low_cells,
        "idle_wakeups_per_second": idle,
    });
    let title = format!(
        "{} one-token requests one after the other, prompts of {} digits; medians, ms; slope x N: by how much the \
         last one is slower than the first, as a fraction of the median",
        args.requests, args.prompt_tokens
    );
    table::print(args.engine.json, setup, &title, &COLUMNS, &rows);
    if !args.engine.json {
        println!("idle: {idle} wake-ups of the engine's thread a second");
    }
    Ok(())
}

struct Bench {
    engine: Engine,
    server: Server,
    /// Digits of a prompt.
    digits: usize,
}

impl Bench {
    /// A series through the engine's interface, and one over HTTP.
    async fn both_series(&self, beside: &'static str, requests: u64) -> Result<[Series; 2], Error> {
        Ok([
            self.series(None, beside, requests).await?,
            self.series(Some(&self.server), beside, requests).await?,
        ])
    }

    async fn series(
        &self,
        server: Option<&Server>,
        beside: &'static str,
        requests: u64,
    ) -> Result<Series, Error> {
        let interface = server.map_or("engine", |_| "HTTP");
        eprintln!("{requests} requests, {interface}, beside {beside}");
        let before = status(&self.engine).await?;
        let mut times = Vec::new();
        for number in 0..WARMUP_REQUESTS + requests {
            let request = self.ask(server, &digits(number, self.digits)).await?;
            if number >= WARMUP_REQUESTS {
                times.push(request);
            }
        }
        let after = status(&self.engine).await?;
        Ok(Series {
            interface,
            beside,
            requests: times,
            n_kv: (before.attention_cells, after.attention_cells),
            compacted: after.counters.compacted - before.counters.compacted,
        })
    }

    /// Generates one token.
    async fn ask(&self, server: Option<&Server>, prompt: &str) -> Result<RequestTimes, Error> {
        let start = Instant::now();
        if let Some(server) = server {
            let response = local_server::complete(server.public_address(), prompt).await?;
            let total = start.elapsed().as_secs_f64();
            let seconds = |key: &str| response[key].as_f64().unwrap_or(0.0) / 1e3;
            return Ok(RequestTimes {
                queue: seconds("queue_ms"),
                service: seconds("prefill_ms") + seconds("decode_ms"),
                total,
                cached_tokens: response["cached_tokens"].as_u64().unwrap_or(0),
            });
        }
        let tokens = self.engine.tokenize(prompt, true)?;
        let generation = self
            .engine
            .generate(tokens, exactly(1), Caller::default())?;
        let (_, outcome) = finish(generation).await?;
        Ok(RequestTimes {
            queue: outcome.queue_time.as_secs_f64(),
            service: (outcome.prefill_time + outcome.decode_time).as_secs_f64(),
            total: start.elapsed().as_secs_f64(),
            cached_tokens: outcome.cached_tokens.into(),
        })
    }

    /// Wake-ups of the idle engine's thread.
    async fn idle_wakeups_per_second(&self) -> Result<f64, Error> {
        let wakeups = || metric(&self.engine, "corral_engine_wakeups_total");
        // On a busy machine the thread finishes earlier work late.
        status(&self.engine).await?;
        let mut before = wakeups();
        for _ in 0..50 {
            tokio::time::sleep(SETTLE_TIME).await;
            let now = wakeups();
            if now <= before {
                break;
            }
            before = now;
        }
        if before <= 0.0 {
            return Err(Error::failed(
                "the engine's thread ran without a wake-up; its counter is wrong",
            ));
        }
        tokio::time::sleep(IDLE_TIME).await;
        Ok((wakeups() - before) / IDLE_TIME.as_secs_f64())
    }

    /// An idle sequence above `low_cells` cells that another one held and are free now.
    async fn create_high_sequence(&self, low_cells: u64) -> Result<Sequence, Error> {
        self.engine.clear_prefix_cache()?;
        // The texts share no prefix.
        let low = self.create_sequence(0, low_cells).await?;
        let high = self.create_sequence(1, HIGH_TOKENS).await?;
        drop(low);
        self.engine.clear_prefix_cache()?;
        let n_kv = status(&self.engine).await?.attention_cells;
        if u64::from(n_kv) < low_cells {
            return Err(Error::failed(format!(
                "attention covers {n_kv} cells beside a sequence above {low_cells}; both may not fit; \
                 lower --low-cells"
            )));
        }
        Ok(high)
    }

    /// An idle sequence with its tokens in the cells.
    async fn create_sequence(&self, number: u64, length: u64) -> Result<Sequence, Error> {
        let mut sequence = Sequence::new(self.engine.clone(), Caller::default());
        sequence.append(&prompt(&self.engine, number, length))?;
        finish(sequence.generate(exactly(1))?).await?;
        Ok(sequence)
    }
}

impl Series {
    fn report(&self) -> Value {
        let of = |value: fn(&RequestTimes) -> f64| median(self.requests.iter().map(value));
        let services: Vec<_> = self.requests.iter().map(|times| times.service).collect();
        let block_min: Vec<_> = services
            .chunks(BLOCK)
            .map(|block| block.iter().copied().fold(f64::INFINITY, f64::min))
            .collect();
        json!({
            "interface": self.interface,
            "beside": self.beside,
            "requests": services.len(),
            "service_s": of(|times| times.service),
            "growth": growth(&services),
            "growth_of_block_min": growth(&block_min),
            "queue_s": of(|times| times.queue),
            "total_s": of(|times| times.total),
            "cached_tokens": self.requests.iter().map(|times| times.cached_tokens).sum::<u64>(),
            "n_kv_before": self.n_kv.0,
            "n_kv_after": self.n_kv.1,
            "compacted": self.compacted,
        })
    }
}

/// The number with its last digit first, so that no two prompts share a long prefix.
fn digits(number: u64, length: usize) -> String {
    format!("{number:0>length$}").chars().rev().collect()
}

/// The Theil–Sen slope of consecutive values, times their number, as a fraction of their median; 0 for fewer than two.
#[allow(clippy::cast_precision_loss)]
fn growth(values: &[f64]) -> f64 {
    let median_value = median(values.iter().copied());
    let mut slopes = Vec::with_capacity(values.len() * values.len() / 2);
    for (index, first) in values.iter().enumerate() {
        for (distance, second) in values[index..].iter().enumerate().skip(1) {
            slopes.push((second - first) / distance as f64);
        }
    }
    if slopes.is_empty() || median_value <= 0.0 {
        return 0.0;
    }
    median(slopes) * values.len() as f64 / median_value
}

#[cfg(test)]
mod tests {
    use super::{digits, growth};

    #[test]
    fn outliers_do_not_move_the_slope() {
        // From 10 to 12, with the median 11.
        let mut values: Vec<f64> = (0..=200).map(|n| 10.0 + f64::from(n) / 100.0).collect();
        let expected = 201.0 / 100.0 / 11.0;
        assert!((growth(&values) - expected).abs() < 1e-9);
        for delayed in [3, 50, 51, 120, 199] {
            values[delayed] = 500.0;
        }
        assert!((growth(&values) - expected).abs() < 0.02);
        let flat: Vec<f64> = (0..200).map(|n| 10.0 + f64::from(n % 7)).collect();
        assert!(growth(&flat).abs() < 0.02);
    }

    #[test]
    fn too_few_values_have_no_slope() {
        assert_eq!(growth(&[]), 0.0);
        assert_eq!(growth(&[3.0]), 0.0);
        assert_eq!(growth(&[0.0, 0.0]), 0.0);
    }

    #[test]
    fn prompts_differ_in_their_first_digits() {
        assert_eq!(digits(1203, 8), "30210000");
        assert_eq!(digits(7, 1), "7");
    }
}
