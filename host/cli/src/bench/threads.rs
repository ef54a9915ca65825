//! `corral bench threads`: how many threads should compute.
//!
//! Every thread that computes takes a core from those that deliver tokens, run plugins and turn
//! connections; and where a core is taken away from one of them, all others wait for it at the next
//! barrier of the computation.

use super::load::{generate, load, metric, prompt};
use super::quantile;
use crate::arguments::ThreadsBench;
use crate::complaint::Complaint;
use corral_engine::{Engine, Prefill};
use serde_json::json;
use std::time::Instant;
use tokio::task::JoinSet;

/// Tokens of each prompt.
const PROMPT: u64 = 32;

/// Measures and prints.
pub(super) async fn measure(arguments: &ThreadsBench) -> Result<(), Complaint> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let cells = arguments.streams * (PROMPT + arguments.generate);
    let mut found = Vec::new();
    for threads in 1..=u32::try_from(cores).unwrap_or(1) {
        let engine = load(&arguments.model, Some(threads), Prefill::default(), cells).await?;
        found.push((threads, engine, Vec::new()));
    }
    for round in 0..=arguments.rounds {
        for (_, engine, speeds) in &mut found {
            let speed = speed(engine, arguments).await?;
            // The first one warms up.
            if round > 0 {
                speeds.push(speed);
            }
        }
    }
    let most = found
        .last()
        .map(|(_, _, speeds)| speeds.clone())
        .unwrap_or_default();
    let rows: Vec<_> = found
        .iter_mut()
        .map(|(threads, engine, speeds)| {
            let mut ratios: Vec<_> = speeds.iter().zip(&most).map(|(s, m)| s / m).collect();
            let step = metric(engine, "corral_engine_step_seconds_total");
            let sample = metric(engine, "corral_engine_sample_seconds_total");
            engine.shutdown();
            json!({
                "threads": threads,
                "tokens_per_second": quantile(speeds, 0.5),
                "slowest": quantile(speeds, 0.0),
                "fastest": quantile(speeds, 1.0),
                "ratio_to_all_cores": quantile(&mut ratios, 0.5),
                "sampling_and_delivery_share": sample / (step + sample),
            })
        })
        .collect();
    if arguments.json {
        println!(
            "{}",
            json!({"bench": "threads", "cores": cores, "streams": arguments.streams, "generate": arguments.generate, "rounds": arguments.rounds, "threads": rows})
        );
        return Ok(());
    }
    println!(
        "{} sequences, {} tokens each, greedy; medians of {} rounds on {cores} cores",
        arguments.streams, arguments.generate, arguments.rounds
    );
    println!(
        "compute threads   tok/s  (slowest to fastest)  ratio to all cores  sampling and delivery"
    );
    for row in &rows {
        let number = |key: &str| row[key].as_f64().unwrap_or(0.0);
        println!(
            "{:15} {:7.0}  ({:7.0} to {:7.0}) {:19.2} {:20.1} %",
            row["threads"],
            number("tokens_per_second"),
            number("slowest"),
            number("fastest"),
            number("ratio_to_all_cores"),
            100.0 * number("sampling_and_delivery_share"),
        );
    }
    Ok(())
}

/// Tokens per second of all sequences together.
async fn speed(engine: &Engine, arguments: &ThreadsBench) -> Result<f64, Complaint> {
    let began = Instant::now();
    let mut streams = JoinSet::new();
    for number in 0..arguments.streams {
        let (engine, tokens) = (engine.clone(), arguments.generate);
        let prompt = prompt(&engine, number, PROMPT);
        streams.spawn(async move { generate(&engine, prompt, tokens).await });
    }
    let mut tokens = 0;
    while let Some(times) = streams.join_next().await {
        tokens += times
            .map_err(Complaint::telling("a stream crashed"))??
            .len();
    }
    #[allow(clippy::cast_precision_loss)]
    Ok(tokens as f64 / began.elapsed().as_secs_f64())
}
