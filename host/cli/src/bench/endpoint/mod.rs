//! `corral bench load`: load on any endpoint of OpenAI's API, so that Corral and its peers are measured by the
//! same client.
//!
//! In the closed loop each client waits for its answer before it asks again: a slow server is asked less. In the
//! open loop requests come whether the server keeps up or not, and times count from when a request was to be
//! sent, so that what a slow server does to those that come after is in them. What is asked follows from a
//! fixed seed. Where several endpoints are compared they take turns, are asked the same in a turn, and ratios
//! are taken turn by turn.

mod answer;
mod arrivals;
mod drive;
mod sse;
mod tally;
mod target;
#[cfg(test)]
mod tests;
mod work;

use super::rounds::Rounds;
use super::table::{Column, Unit, tell};
use crate::admin::harmless;
use crate::arguments::{LoadBench, for_url};
use crate::complaint::Complaint;
use drive::{Pace, round};
use serde_json::{Value, json};
use std::sync::Arc;
use tally::{COMPARED, Tally};
use target::Target;
use work::Work;

/// What the arrivals of the open loop follow from; each round has others.
const SEED: u64 = 1;
/// Requests that may be under way in the open loop.
const UNDER_WAY: u64 = 256;

const COLUMNS: [Column; 11] = [
    ("endpoint", "url", Unit::Plain),
    ("done", "done", Unit::Plain),
    ("failed", "failed", Unit::Plain),
    ("not sent", "refused_by_client", Unit::Plain),
    ("tok/s", "tokens_per_second", Unit::Whole),
    ("least", "tokens_per_second_least", Unit::Whole),
    ("most", "tokens_per_second_most", Unit::Whole),
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
    ("longest", "max", Unit::Milliseconds),
];

const RATIOS: [Column; 5] = [
    ("endpoint", "url", Unit::Plain),
    ("of", "of", Unit::Plain),
    ("to the first", "median", Unit::Thousandths),
    ("least", "least", Unit::Thousandths),
    ("most", "most", Unit::Thousandths),
];

/// Measures and prints.
pub(super) async fn measure(arguments: &LoadBench) -> Result<(), Complaint> {
    let work = Arc::new(Work::new(arguments)?);
    let mut targets = Vec::new();
    for (at, url) in arguments.urls.iter().enumerate() {
        let model = for_url(&arguments.models, at);
        let key = for_url(&arguments.keys, at);
        let target = Target::new(url, &work, model, key, arguments.timeout)?;
        target.look().await?;
        targets.push((Arc::new(target), Tally::default()));
    }
    let pace = pace(arguments);
    // Who begins finds the machine as the round before left it: each in its turn.
    let mut order: Vec<_> = (0..targets.len()).collect();
    let mut rounds = Rounds::of_several(arguments.rounds());
    for (at, number) in (0..).zip(rounds.by_ref()) {
        for &turn in &order {
            let (target, tally) = &mut targets[turn];
            let first = at * arguments.requests;
            let numbers = first..first + arguments.requests;
            let found = round(target, pace, numbers, SEED + at).await?;
            if number > 0 {
                tally.add(found);
            }
        }
        order.rotate_left(1);
    }
    tell_all(arguments, rounds.measured(), &mut targets);
    match targets.iter().find(|(_, tally)| tally.done == 0) {
        None => Ok(()),
        Some((target, _)) => {
            let nothing = format!("no request to {} was answered", target.url);
            Err(Complaint::Failed(nothing.into()))
        }
    }
}

fn pace(arguments: &LoadBench) -> Pace {
    match arguments.rate {
        None => Pace::Closed {
            clients: arguments.concurrency,
        },
        Some(rate) => {
            let most = arguments.under_way.unwrap_or(UNDER_WAY);
            Pace::Open {
                rate,
                most: usize::try_from(most).unwrap_or(usize::MAX),
            }
        }
    }
}

fn tell_all(arguments: &LoadBench, rounds: u64, targets: &mut [(Arc<Target>, Tally)]) {
    let mut rows = Vec::new();
    let mut rest = targets.iter_mut();
    if let Some((target, first)) = rest.next() {
        let others: Vec<_> = rest
            .map(|(target, tally)| tally.report(&target.url.to_string(), Some(&*first)))
            .collect();
        rows.push(first.report(&target.url.to_string(), None));
        rows.extend(others);
    }
    if arguments.json {
        tell_failures(targets, |line| eprintln!("{line}"));
        let setup = json!({
            "bench": "load",
            "rounds": rounds,
            "requests": arguments.requests,
            "concurrency": arguments.rate.is_none().then_some(arguments.concurrency),
            "rate": arguments.rate,
            "prompt_words": arguments.prompt_file.is_none().then_some(arguments.prompt),
            "generate": arguments.generate,
            "mixed": arguments.mixed,
            "chat": arguments.chat,
            "stream": !arguments.no_stream,
        });
        return tell(true, setup, "", &COLUMNS, &rows);
    }
    tell(false, json!({}), &title(arguments, rounds), &COLUMNS, &rows);
    tell(
        false,
        json!({}),
        "\ntimes of all answers, ms",
        &TIMES,
        &times(&rows),
    );
    if rows.len() > 1 {
        let title = format!(
            "\nratios to the first endpoint in the same round: medians of {rounds} (of times that of the \
             median of a round: below 1 is sooner)"
        );
        tell(false, json!({}), &title, &RATIOS, &ratios(&rows));
    }
    tell_failures(targets, |line| println!("{line}"));
    for row in rows.iter().filter(|_| arguments.rate.is_some()) {
        let late = 1e3 * row["latest_start_s"].as_f64().unwrap_or(0.0);
        println!(
            "{}: no request was sent more than {late:.1} ms later than intended",
            row["url"].as_str().unwrap_or_default()
        );
    }
}

/// A line for each kind of failure of each endpoint.
fn tell_failures(targets: &[(Arc<Target>, Tally)], line: impl Fn(String)) {
    for (target, tally) in targets {
        for (count, said) in tally.failures.values() {
            line(format!(
                "{}: {count} failed: {}",
                target.url,
                harmless(said)
            ));
        }
    }
}

fn title(arguments: &LoadBench, rounds: u64) -> String {
    let pace = match arguments.rate {
        None => format!("{} at once", arguments.concurrency),
        Some(rate) => format!("{rate} a second"),
    };
    let prompt = match &arguments.prompt_file {
        None => format!("{} words", arguments.prompt),
        Some(file) => format!("a line of {}", file.display()),
    };
    let mixed = match arguments.mixed {
        true => ", lengths from half to one and a half",
        false => "",
    };
    format!(
        "{} requests, {pace}, of {prompt}, for {} tokens{mixed}; tok/s and requests/s are medians of {rounds} rounds",
        arguments.requests, arguments.generate
    )
}

/// A row for each time of each endpoint.
fn times(rows: &[Value]) -> Vec<Value> {
    let mut times = Vec::new();
    for row in rows {
        for (key, name) in COMPARED {
            // Those that are no times are spread over nothing.
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

/// A row for each thing that is compared of each endpoint but the first.
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
