//! `corral bench gap`: the time between two tokens while prompts are read.
//!
//! A few sequences generate without end. Long and short prompts come, one after the other, and every
//! gap between two tokens of the generating sequences is taken. Between two prompts there is a pause,
//! in which they are alone: the median gap of the pauses is the decode step. (Not one taken before:
//! steps get longer as the sequences do.) Both ways of reading prompts are measured in each round.

use super::load::{generate, load, metric, prompt};
use super::quantile;
use crate::arguments::GapBench;
use crate::complaint::Complaint;
use corral_engine::{Caller, Engine, Error, Options, Prefill};
use serde_json::{Value, json};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;
use tokio::task::JoinSet;

/// Tokens of a short prompt, and what follows each prompt.
const SHORT: u64 = 32;
const AFTER: u64 = 16;
/// Tokens of a background sequence; when they are through, the next one begins.
const BACKGROUND: u64 = 1200;
/// Tokens of each background sequence that pass before the first prompt comes, and of a pause.
const ALONE: u64 = 50;
const PAUSE: u32 = 20;

/// One way of reading prompts, and what was found.
struct Way {
    name: &'static str,
    engine: Engine,
    /// Of each round, in seconds. First without prompts: the median and what the machine adds to it.
    decode: Vec<f64>,
    decode_p99: Vec<f64>,
    p50: Vec<f64>,
    p99: Vec<f64>,
    longest: Vec<f64>,
    /// From a long prompt to its first token.
    first: Vec<f64>,
}

/// Measures and prints.
pub(super) async fn measure(arguments: &GapBench) -> Result<(), Complaint> {
    let mut ways = Vec::new();
    for (name, prefill) in [
        ("budgeted", Prefill::default()),
        ("slot order", Prefill::SlotOrder),
    ] {
        let cells = arguments.streams * (SHORT + BACKGROUND) + arguments.length + SHORT + ALONE;
        let engine = load(&arguments.model, arguments.threads, prefill, cells).await?;
        let needed = (arguments.length + AFTER).max(SHORT + BACKGROUND);
        if u64::from(engine.info().context) < needed {
            return Err(Complaint::Failed(
                format!("the model's context is below {needed}; give a smaller --length").into(),
            ));
        }
        ways.push(Way {
            name,
            engine,
            decode: Vec::new(),
            decode_p99: Vec::new(),
            p50: Vec::new(),
            p99: Vec::new(),
            longest: Vec::new(),
            first: Vec::new(),
        });
    }
    for round in 0..=arguments.rounds {
        for way in &mut ways {
            // Large models take minutes: say that it goes on.
            eprintln!("round {round} of {}, {}", arguments.rounds, way.name);
            way.round(arguments).await?;
        }
        if round == 0 {
            // The first one warms up: the cost model, caches, threads.
            for way in &mut ways {
                for values in [
                    &mut way.decode,
                    &mut way.decode_p99,
                    &mut way.p50,
                    &mut way.p99,
                    &mut way.longest,
                    &mut way.first,
                ] {
                    values.clear();
                }
            }
        }
    }
    let found: Vec<_> = ways.iter_mut().map(Way::report).collect();
    for way in ways {
        way.engine.shutdown();
    }
    if arguments.json {
        println!(
            "{}",
            json!({"bench": "gap", "streams": arguments.streams, "length": arguments.length, "rounds": arguments.rounds, "ways": found})
        );
        return Ok(());
    }
    println!(
        "{} sequences generate while prompts of {} and {SHORT} tokens come; medians of {} rounds, ms",
        arguments.streams, arguments.length, arguments.rounds
    );
    println!(
        "prompts read   decode step  its p99      p50      p99  longest   p99/step  longest/step  first token"
    );
    for way in &found {
        let ms = |key: &str| 1e3 * way[key].as_f64().unwrap_or(0.0);
        let ratio = |key: &str| way[key].as_f64().unwrap_or(0.0);
        println!(
            "{:13} {:12.2} {:8.2} {:8.2} {:8.2} {:8.2} {:10.2} {:13.2} {:12.1}",
            way["prompts read"].as_str().unwrap_or(""),
            ms("decode_step_s"),
            ms("decode_p99_s"),
            ms("gap_p50_s"),
            ms("gap_p99_s"),
            ms("gap_max_s"),
            ratio("p99_ratio"),
            ratio("max_ratio"),
            ms("first_token_s"),
        );
    }
    for way in &found {
        println!(
            "{}: {} generating rows skipped; {} prompt tokens in mixed steps, {} allowed",
            way["prompts read"].as_str().unwrap_or(""),
            way["skipped_rows"],
            way["mixed_prefill_tokens"],
            way["mixed_budget_tokens"],
        );
    }
    Ok(())
}

impl Way {
    async fn round(&mut self, arguments: &GapBench) -> Result<(), Complaint> {
        let stop = Arc::new(AtomicBool::new(false));
        let mut streams = JoinSet::new();
        for number in 0..arguments.streams {
            let (engine, stop) = (self.engine.clone(), stop.clone());
            streams.spawn(async move { background(&engine, number, &stop).await });
        }
        let pilot = prompt(&self.engine, 999, SHORT);
        let began = Instant::now();
        let times = generate(&self.engine, pilot, ALONE).await?;
        let steps = u32::try_from(times.len().max(1)).unwrap_or(1);
        let pause = (began.elapsed() / steps) * PAUSE;
        let (mut pauses, mut busy, mut first) = (Vec::new(), Vec::new(), Vec::new());
        for number in 0..arguments.prompts {
            let length = if number % 2 == 0 {
                arguments.length
            } else {
                SHORT
            };
            let sent = Instant::now();
            let times = generate(&self.engine, prompt(&self.engine, number, length), AFTER).await?;
            if let Some(&time) = times.first().filter(|_| length != SHORT) {
                first.push((time - sent).as_secs_f64());
            }
            let read = Instant::now();
            busy.push((sent, read));
            tokio::time::sleep(pause).await;
            pauses.push((read, Instant::now()));
        }
        stop.store(true, Ordering::Relaxed);
        let (mut alone, mut mixed) = (Vec::new(), Vec::new());
        while let Some(times) = streams.join_next().await {
            let times = times.map_err(Complaint::telling("a stream crashed"))??;
            for pair in times.iter().flat_map(|of_one| of_one.windows(2)) {
                let gap = (pair[1] - pair[0]).as_secs_f64();
                let within = |&(from, to): &(Instant, Instant)| pair[0] >= from && pair[1] <= to;
                if pauses.iter().any(within) {
                    alone.push(gap);
                } else if busy
                    .iter()
                    .any(|&(from, to)| pair[1] > from && pair[0] < to)
                {
                    mixed.push(gap);
                }
            }
        }
        self.decode.push(quantile(&mut alone, 0.5));
        self.decode_p99.push(quantile(&mut alone, 0.99));
        self.p50.push(quantile(&mut mixed, 0.5));
        self.p99.push(quantile(&mut mixed, 0.99));
        self.longest.push(quantile(&mut mixed, 1.0));
        self.first.push(quantile(&mut first, 0.5));
        Ok(())
    }

    fn report(&mut self) -> Value {
        let ratio = |values: &[f64], steps: &[f64]| {
            let mut ratios: Vec<_> = values.iter().zip(steps).map(|(v, step)| v / step).collect();
            quantile(&mut ratios, 0.5)
        };
        let (p99, longest) = (
            ratio(&self.p99, &self.decode),
            ratio(&self.longest, &self.decode),
        );
        let count = |name| metric(&self.engine, name);
        json!({
            "prompts read": self.name,
            "p99_ratio": p99,
            "max_ratio": longest,
            "decode_step_s": quantile(&mut self.decode, 0.5),
            "decode_p99_s": quantile(&mut self.decode_p99, 0.5),
            "gap_p50_s": quantile(&mut self.p50, 0.5),
            "gap_p99_s": quantile(&mut self.p99, 0.5),
            "gap_max_s": quantile(&mut self.longest, 0.5),
            "first_token_s": quantile(&mut self.first, 0.5),
            "skipped_rows": count("corral_engine_skipped_rows_total"),
            "mixed_prefill_tokens": count("corral_engine_mixed_prefill_tokens_total"),
            "mixed_budget_tokens": count("corral_engine_mixed_budget_tokens_total"),
        })
    }
}

/// Generates until it is told to stop; a sequence that is through is followed by the next one.
/// Returns the times of each one's tokens.
async fn background(
    engine: &Engine,
    number: u64,
    stop: &AtomicBool,
) -> Result<Vec<Vec<Instant>>, Error> {
    let mut times = vec![Vec::new()];
    let options = Options {
        max_tokens: u32::try_from(BACKGROUND).unwrap_or(u32::MAX),
        ignore_end: true,
        ..Options::default()
    };
    let mut generation = None;
    while !stop.load(Ordering::Relaxed) {
        let running = match &mut generation {
            Some(running) => running,
            none => {
                let prompt = prompt(engine, 1000 + number, SHORT);
                none.insert(engine.generate(prompt, options.clone(), Caller::default())?)
            }
        };
        match running.next().await {
            Some(chunk) => {
                let now = Instant::now();
                if let Some(of_one) = times.last_mut() {
                    of_one.extend(chunk.tokens.iter().map(|_| now));
                }
            }
            None => {
                if let Some(Err(error)) = running.outcome() {
                    return Err(error);
                }
                generation = None;
                times.push(Vec::new());
            }
        }
    }
    Ok(times)
}
