//! `corral bench flat`: whether a request gets slower with those that were before it.
//!
//! One-token requests come one after the other, and what is taken of each is the engine's own time from
//! admission to the token; time in the queue is apart. The slope of these times is Theil and Sen's: the
//! median of the slopes between any two of them, which a few requests that were held up do not move. Told
//! is the slope times the number of requests, as a part of the median time: by how much the last request
//! is slower than the first.
//!
//! Then the same once more beside an idle sequence that lies in high cells: attention runs over all cells
//! below it, unless the engine moves it down.

use super::load::{check_room, config_of, metric, prompt};
use super::table::{Column, Unit, tell};
use super::{http, median};
use crate::arguments::FlatBench;
use crate::complaint::Complaint;
use corral_engine::{Caller, Engine, Error, Generation, Options, Outcome, Sequence, View};
use corral_server::Server;
use serde_json::{Value, json};
use std::time::{Duration, Instant};

/// Requests before those that count: the cost model, caches, threads.
const WARM: u64 = 32;
/// Requests of which the quickest counts, where the machine's disturbance is left out.
const BLOCK: usize = 10;
/// How long it is looked whether the engine's thread sleeps, and how long it has to have slept before, if it ever does.
const IDLE: Duration = Duration::from_secs(1);
const SETTLE: Duration = Duration::from_millis(100);
/// Tokens of the sequence that lies high.
const SURVIVOR: u64 = 16;

/// One request. Times are in seconds.
struct Asked {
    /// In the queue.
    queue: f64,
    /// From admission to its last token.
    service: f64,
    /// From the call until its end was known.
    whole: f64,
    cached: u64,
}

/// Requests that came one after the other, and what lay in the cells before and after them.
struct Series {
    asked_over: &'static str,
    beside: &'static str,
    requests: Vec<Asked>,
    n_kv: (u32, u32),
    compacted: u64,
}

const COLUMNS: [Column; 12] = [
    ("asked over", "asked_over", Unit::Plain),
    ("beside", "beside", Unit::Plain),
    ("requests", "requests", Unit::Plain),
    ("service", "service_s", Unit::Milliseconds),
    ("slope x N", "growth", Unit::Percent),
    ("least of ten", "growth_of_least", Unit::Percent),
    ("queue", "queue_s", Unit::Milliseconds),
    ("whole", "whole_s", Unit::Milliseconds),
    ("cached", "cached_tokens", Unit::Plain),
    ("n_kv first", "n_kv_before", Unit::Plain),
    ("n_kv last", "n_kv_after", Unit::Plain),
    ("moved down", "compacted", Unit::Plain),
];

/// Measures and prints.
pub(super) async fn measure(arguments: &FlatBench) -> Result<(), Complaint> {
    let cells = arguments.high + SURVIVOR + 2 * (arguments.prompt + 2);
    let (model, offloading) = (&arguments.model, &arguments.offloading);
    let mut config = config_of(model, offloading, arguments.threads, cells)?;
    // As hosts do it: what stays of the requests before is what could make one slow.
    config.prefix_cache = true;
    let engine = Engine::load(config)?;
    let context = engine.info().context;
    check_room(context, "--prompt", arguments.prompt, 2)?;
    check_room(context, "--high", arguments.high, 1)?;
    let server = match &arguments.plugin {
        Some(plugin) => Some(http::start(&engine, plugin).await?),
        None => None,
    };
    let bench = Bench {
        engine,
        server,
        length: usize::try_from(arguments.prompt).unwrap_or(usize::MAX),
    };
    let mut all = bench.ways("nothing", arguments.requests).await?;
    let survivor = bench.lie_high(arguments.high).await?;
    all.extend(bench.ways("a high one", arguments.requests).await?);
    drop(survivor);
    let idle = bench.idle().await?;
    bench.engine.shutdown();
    let rows: Vec<_> = all.iter().map(Series::report).collect();
    let setup = json!({
        "bench": "flat",
        "requests": arguments.requests,
        "prompt": arguments.prompt,
        "high": arguments.high,
        "idle_wake_ups_per_second": idle,
    });
    let title = format!(
        "{} one-token requests one after the other, prompts of {} digits; medians, ms; slope x N: what the \
         last one takes more than the first, as a part of the median",
        arguments.requests, arguments.prompt
    );
    tell(arguments.json, setup, &title, &COLUMNS, &rows);
    if !arguments.json {
        println!("then, with nothing to do: {idle} wake-ups of the engine's thread a second");
    }
    Ok(())
}

struct Bench {
    engine: Engine,
    server: Option<Server>,
    /// Digits of a prompt.
    length: usize,
}

impl Bench {
    /// A series from the engine, and one over HTTP if there is a server.
    async fn ways(&self, beside: &'static str, requests: u64) -> Result<Vec<Series>, Complaint> {
        let mut all = vec![self.series(None, beside, requests).await?];
        if let Some(server) = &self.server {
            all.push(self.series(Some(server), beside, requests).await?);
        }
        Ok(all)
    }

    async fn series(
        &self,
        server: Option<&Server>,
        beside: &'static str,
        requests: u64,
    ) -> Result<Series, Complaint> {
        let asked_over = server.map_or("engine", |_| "HTTP");
        eprintln!("{requests} requests, {asked_over}, beside {beside}");
        let before = self.look().await?;
        let mut asked = Vec::new();
        for number in 0..WARM + requests {
            let one = self.ask(server, &digits(number, self.length)).await?;
            if number >= WARM {
                asked.push(one);
            }
        }
        let after = self.look().await?;
        Ok(Series {
            asked_over,
            beside,
            requests: asked,
            n_kv: (before.n_kv, after.n_kv),
            compacted: after.tally.compacted - before.tally.compacted,
        })
    }

    /// Asks for one token.
    async fn ask(&self, server: Option<&Server>, prompt: &str) -> Result<Asked, Complaint> {
        let began = Instant::now();
        if let Some(server) = server {
            let answer = http::complete(server.public_address(), prompt).await?;
            let whole = began.elapsed().as_secs_f64();
            let seconds = |key: &str| answer[key].as_f64().unwrap_or(0.0) / 1e3;
            return Ok(Asked {
                queue: seconds("queue_ms"),
                service: seconds("prefill_ms") + seconds("decode_ms"),
                whole,
                cached: answer["cached_tokens"].as_u64().unwrap_or(0),
            });
        }
        let tokens = self.engine.tokenize(prompt, true)?;
        let outcome = read(self.engine.generate(tokens, one(), Caller::default())?).await?;
        Ok(Asked {
            queue: outcome.queue_time.as_secs_f64(),
            service: (outcome.prefill_time + outcome.decode_time).as_secs_f64(),
            whole: began.elapsed().as_secs_f64(),
            cached: outcome.cached_tokens.into(),
        })
    }

    /// Wake-ups of the engine's thread a second where nothing is to be done.
    async fn idle(&self) -> Result<f64, Complaint> {
        let wake_ups = || metric(&self.engine, "corral_engine_wakeups_total");
        // The end of what was before it, which a busy machine is late with.
        self.look().await?;
        let mut before = wake_ups();
        for _ in 0..50 {
            tokio::time::sleep(SETTLE).await;
            let now = wake_ups();
            if now <= before {
                break;
            }
            before = now;
        }
        if before <= 0.0 {
            let never = "the engine's thread did all that without a wake-up; its counter is wrong";
            return Err(Complaint::Failed(never.into()));
        }
        tokio::time::sleep(IDLE).await;
        Ok((wake_ups() - before) / IDLE.as_secs_f64())
    }

    /// A sequence behind `high` cells that held another one and are free now.
    async fn lie_high(&self, high: u64) -> Result<Sequence, Complaint> {
        self.engine.clear_cache()?;
        // Other texts, so that they share nothing.
        let below = self.hold(0, high).await?;
        let survivor = self.hold(1, SURVIVOR).await?;
        drop(below);
        self.engine.clear_cache()?;
        let n_kv = self.look().await?.n_kv;
        if u64::from(n_kv) < high {
            let low = format!(
                "attention runs over {n_kv} cells beside a sequence that was put behind {high}; \
                 was the model's memory too small for both? give --high less"
            );
            return Err(Complaint::Failed(low.into()));
        }
        Ok(survivor)
    }

    /// An idle sequence whose text is in the cells.
    async fn hold(&self, number: u64, length: u64) -> Result<Sequence, Error> {
        let mut sequence = Sequence::new(self.engine.clone(), Caller::default());
        sequence.append(&prompt(&self.engine, number, length))?;
        read(sequence.generate(one())?).await?;
        Ok(sequence)
    }

    /// What is in the cells, after everything that was asked before.
    async fn look(&self) -> Result<View, Error> {
        let (tell, told) = tokio::sync::oneshot::channel();
        // Fails only when nobody listens any more.
        self.engine.view(move |view| drop(tell.send(view)))?;
        told.await
            .map_err(|_| Error::Failed("the engine thread has ended".into()))
    }
}

impl Series {
    fn report(&self) -> Value {
        let of = |value: fn(&Asked) -> f64| median(self.requests.iter().map(value));
        let services: Vec<_> = self.requests.iter().map(|asked| asked.service).collect();
        let least: Vec<_> = services
            .chunks(BLOCK)
            .map(|block| block.iter().copied().fold(f64::INFINITY, f64::min))
            .collect();
        json!({
            "asked_over": self.asked_over,
            "beside": self.beside,
            "requests": services.len(),
            "service_s": of(|asked| asked.service),
            "growth": growth(&services),
            "growth_of_least": growth(&least),
            "queue_s": of(|asked| asked.queue),
            "whole_s": of(|asked| asked.whole),
            "cached_tokens": self.requests.iter().map(|asked| asked.cached).sum::<u64>(),
            "n_kv_before": self.n_kv.0,
            "n_kv_after": self.n_kv.1,
            "compacted": self.compacted,
        })
    }
}

fn one() -> Options {
    Options {
        max_tokens: 1,
        ignore_end: true,
        ..Options::default()
    }
}

async fn read(mut generation: Generation) -> Result<Outcome, Error> {
    while generation.next().await.is_some() {}
    generation.outcome().unwrap_or(Err(Error::Cancelled))
}

/// A number of so many digits, the last of them first: so that no two prompts begin alike for long.
fn digits(number: u64, length: usize) -> String {
    format!("{number:0>length$}").chars().rev().collect()
}

/// The Theil–Sen slope of values that were taken one after the other, times their number, as a part of
/// their median. 0 for fewer than two values.
#[allow(clippy::cast_precision_loss)]
fn growth(values: &[f64]) -> f64 {
    let middle = median(values.iter().copied());
    let mut slopes = Vec::with_capacity(values.len() * values.len() / 2);
    for (first, one) in values.iter().enumerate() {
        for (apart, other) in values[first..].iter().enumerate().skip(1) {
            slopes.push((other - one) / apart as f64);
        }
    }
    if slopes.is_empty() || middle <= 0.0 {
        return 0.0;
    }
    median(slopes.into_iter()) * values.len() as f64 / middle
}

#[cfg(test)]
mod tests {
    use super::{digits, growth};

    #[test]
    fn the_slope_is_that_of_most_values_whatever_the_others_are() {
        // From 10 to 12: a fifth more, of which the median is 11.
        let mut values: Vec<f64> = (0..=200).map(|n| 10.0 + f64::from(n) / 100.0).collect();
        let expected = 201.0 / 100.0 / 11.0;
        assert!((growth(&values) - expected).abs() < 1e-9);
        for held_up in [3, 50, 51, 120, 199] {
            values[held_up] = 500.0;
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
    fn prompts_differ_from_their_beginning_on() {
        assert_eq!(digits(1203, 8), "30210000");
        assert_eq!(digits(7, 1), "7");
    }
}
