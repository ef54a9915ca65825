//! `corral bench load`: one client for Corral and its peers.
//!
//! In the closed loop each client waits for its response before it sends the next request. In the open loop requests
//! arrive at a rate whether the server keeps up or not, and times count from the intended arrival, so that the
//! delay of later requests is measured too. Requests follow from a fixed seed. Endpoints are compared by ratios
//! within a round: each gets the same requests, and the order rotates.

mod args;
mod arrivals;
mod driver;
mod endpoint;
mod response;
mod summary;
#[cfg(test)]
mod tests;
mod workload;

pub use args::{LoadArgs, MAX_SAMPLES};

use super::rounds::Rounds;
use super::table::{self, Column, Unit};
use crate::Error;
use crate::terminal::printable;
use args::for_url;
use driver::{LoadMode, run_round};
use endpoint::Endpoint;
use serde_json::{Value, json};
use std::sync::Arc;
use summary::{COMPARED, Summary};
use workload::Workload;

/// Seed of the arrival times; each round adds its number.
const SEED: u64 = 1;
/// Default of `--max-in-flight`.
const MAX_IN_FLIGHT: u64 = 256;

const COLUMNS: [Column; 11] = [
    ("endpoint", "url", Unit::Plain),
    ("done", "done", Unit::Plain),
    ("failed", "failed", Unit::Plain),
    ("not sent", "refused_by_client", Unit::Plain),
    ("tok/s", "tokens_per_second", Unit::Whole),
    ("min", "tokens_per_second_least", Unit::Whole),
    ("max", "tokens_per_second_most", Unit::Whole),
    ("requests/s", "requests_per_second", Unit::Ratio),
    ("tokens", "generated_tokens", Unit::Plain),
    ("asked for", "asked_tokens", Unit::Plain),
    ("counted by", "counted_by", Unit::Plain),
];

const TIMES: [Column; 6] = [
    ("endpoint", "url", Unit::Plain),
    ("time", "time", Unit::Plain),
    ("p50", "p50", Unit::Milliseconds),
    ("p90", "p90", Unit::Milliseconds),
    ("p99", "p99", Unit::Milliseconds),
    ("max", "max", Unit::Milliseconds),
];

const RATIOS: [Column; 5] = [
    ("endpoint", "url", Unit::Plain),
    ("of", "of", Unit::Plain),
    ("to the first", "median", Unit::Thousandths),
    ("min", "least", Unit::Thousandths),
    ("max", "most", Unit::Thousandths),
];

/// Measures and prints the figures.
pub(super) async fn measure(args: &LoadArgs) -> Result<(), Error> {
    let workload = Arc::new(Workload::new(args)?);
    let mut endpoints = Vec::new();
    for (at, url) in args.urls.iter().enumerate() {
        let model = for_url(&args.models, at);
        let key = for_url(&args.api_keys, at);
        let endpoint = Endpoint::new(url, &workload, model, key, args.timeout)?;
        endpoint.probe().await?;
        endpoints.push((Arc::new(endpoint), Summary::default()));
    }
    let mode = load_mode(args);
    let mut order: Vec<_> = (0..endpoints.len()).collect();
    let mut rounds = Rounds::with_warmup_if_several(args.rounds());
    for (at, number) in (0..).zip(rounds.by_ref()) {
        for &index in &order {
            let (endpoint, summary) = &mut endpoints[index];
            let first = at * args.requests;
            let numbers = first..first + args.requests;
            let results = run_round(endpoint, mode, numbers, SEED + at).await?;
            if number > 0 {
                summary.add(results);
            }
        }
        order.rotate_left(1);
    }
    print(args, rounds.measured(), &endpoints);
    match endpoints.iter().find(|(_, summary)| summary.done == 0) {
        None => Ok(()),
        Some((endpoint, _)) => Err(Error::failed(format!(
            "no request to {} succeeded",
            endpoint.url
        ))),
    }
}

fn load_mode(args: &LoadArgs) -> LoadMode {
    match args.rate {
        None => LoadMode::Closed {
            clients: args.concurrency,
        },
        Some(rate) => {
            let max = args.max_in_flight.unwrap_or(MAX_IN_FLIGHT);
            LoadMode::Open {
                rate,
                max_in_flight: usize::try_from(max).unwrap_or(usize::MAX),
            }
        }
    }
}

fn print(args: &LoadArgs, rounds: u64, endpoints: &[(Arc<Endpoint>, Summary)]) {
    let first = endpoints.first().map(|(_, summary)| summary);
    let rows: Vec<_> = endpoints
        .iter()
        .enumerate()
        .map(|(at, (endpoint, summary))| {
            let first = first.filter(|_| at > 0);
            summary.report(&endpoint.url.to_string(), first)
        })
        .collect();
    if args.json {
        print_failures(endpoints, |line| eprintln!("{line}"));
        let setup = json!({
            "bench": "load",
            "rounds": rounds,
            "requests": args.requests,
            "concurrency": args.rate.is_none().then_some(args.concurrency),
            "rate": args.rate,
            "prompt_words": args.prompt_file.is_none().then_some(args.prompt_words),
            "output_tokens": args.output_tokens,
            "mixed_lengths": args.mixed_lengths,
            "chat": args.chat,
            "stream": !args.no_stream,
        });
        return table::print(true, setup, "", &COLUMNS, &rows);
    }
    let print_table = |title: &str, columns: &[Column], rows: &[Value]| {
        table::print(false, Value::Null, title, columns, rows);
    };
    print_table(&title(args, rounds), &COLUMNS, &rows);
    print_table("\ntimes of all responses, ms", &TIMES, &times(&rows));
    if rows.len() > 1 {
        let title = format!(
            "\nratios to the first endpoint in the same round, medians of {rounds} rounds; \
             for times, of the medians of a round: below 1 is faster"
        );
        print_table(&title, &RATIOS, &ratios(&rows));
    }
    print_failures(endpoints, |line| println!("{line}"));
    for row in rows.iter().filter(|_| args.rate.is_some()) {
        println!(
            "{}: the client sent the latest request {:.1} ms late",
            row["url"].as_str().unwrap_or_default(),
            1e3 * row["latest_start_s"].as_f64().unwrap_or(0.0)
        );
    }
}

/// Prints a line for each kind of failure of each endpoint.
fn print_failures(endpoints: &[(Arc<Endpoint>, Summary)], print: impl Fn(String)) {
    for (endpoint, summary) in endpoints {
        for (count, example) in summary.failures.values() {
            let example = printable(example);
            print(format!("{}: {count} failed: {example}", endpoint.url));
        }
    }
}

fn title(args: &LoadArgs, rounds: u64) -> String {
    let mode = match args.rate {
        None => format!("{} at once", args.concurrency),
        Some(rate) => format!("{rate} a second"),
    };
    let prompt = match &args.prompt_file {
        None => format!("{} words", args.prompt_words),
        Some(file) => format!("a line of {}", file.display()),
    };
    let mixed = match args.mixed_lengths {
        true => ", lengths from half to one and a half",
        false => "",
    };
    format!(
        "{} requests, {mode}, of {prompt}, for {} tokens{mixed}; tok/s and requests/s are medians of {rounds} rounds",
        args.requests, args.output_tokens
    )
}

/// A row for each time of each endpoint.
fn times(rows: &[Value]) -> Vec<Value> {
    let mut times = Vec::new();
    for row in rows {
        for (key, name) in COMPARED {
            // Throughputs have no quantiles.
            if row[key].is_object() {
                let mut time = row[key].clone();
                time["url"] = row["url"].clone();
                time["time"] = name.into();
                times.push(time);
            }
        }
    }
    times
}

/// A row for each compared figure of each endpoint but the first.
fn ratios(rows: &[Value]) -> Vec<Value> {
    let mut ratios = Vec::new();
    for row in rows {
        for (key, name) in COMPARED {
            let mut ratio = row["ratios"][key].clone();
            if ratio.is_object() {
                ratio["url"] = row["url"].clone();
                ratio["of"] = name.into();
                ratios.push(ratio);
            }
        }
    }
    ratios
}
