//! `corral-bench console`: tokens a second of streams while nobody reads the server's events, and while consoles do.
//!
//! A console is a client of `GET /events`, which sends a snapshot of the server every second. Each round measures both, in
//! turns, and the ratio within a round counts.

use crate::args::EngineArgs;
use crate::local_server;
use crate::workload::config;
use clap::Args;
use corral_cli::Error;
use corral_cli::args::whole;
use corral_cli::bench::rounds::{RoundArgs, Rounds};
use corral_cli::bench::stats::{float, median, set_range};
use corral_cli::bench::table::{self, Column, Unit};
use corral_engine::Engine;
use corral_server::Server;
use serde_json::json;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

#[derive(Args, Debug)]
pub(crate) struct ConsoleArgs {
    #[command(flatten)]
    engine: EngineArgs,
    #[command(flatten)]
    rounds: RoundArgs,
    /// The plugin `generate`
    #[arg(long, value_name = "FILE")]
    plugin: PathBuf,
    /// Consoles that are open
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = whole(1..=16))]
    consoles: u64,
    /// Streams at once
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = whole(1..=64))]
    concurrency: u64,
    /// Tokens of a stream
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = whole(1..=2000))]
    output_tokens: u64,
    /// Seconds of a measurement
    #[arg(long, value_name = "SECONDS", default_value_t = 4, value_parser = whole(1..=600))]
    seconds: u64,
}

const COLUMNS: [Column; 4] = [
    ("consoles", "consoles", Unit::Plain),
    ("tokens/s", "tokens_per_second", Unit::Plain),
    ("to none", "ratio", Unit::Ratio),
    ("snapshots", "snapshots", Unit::Plain),
];

/// Measures and prints the figures.
pub(crate) async fn measure(args: &ConsoleArgs) -> Result<(), Error> {
    let engine = Engine::load(config(&args.engine, 0)?)?;
    let server = local_server::start(&engine, &args.plugin).await?;
    let mut rounds = Rounds::with_warmup(args.rounds);
    let (mut closed, mut open, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    let mut snapshots = 0;
    for round in rounds.by_ref() {
        let mut speeds = [0.0; 2];
        let order = if round % 2 == 0 { [1, 0] } else { [0, 1] };
        for with_consoles in order {
            let consoles = if with_consoles == 1 { args.consoles } else { 0 };
            let (speed, read) = measure_beside(args, &server, consoles).await?;
            speeds[with_consoles] = speed;
            snapshots += read;
        }
        if round == 0 {
            snapshots = 0;
            continue;
        }
        closed.push(speeds[0]);
        open.push(speeds[1]);
        ratios.push(speeds[1] / speeds[0]);
    }
    if snapshots == 0 {
        return Err(Error::failed("the consoles read no snapshot"));
    }
    let rounds = rounds.measured();
    server.stop(std::future::ready(())).await;
    engine.shutdown();
    let mut rows = [
        json!({"consoles": 0, "tokens_per_second": median(closed).round()}),
        json!({
            "consoles": args.consoles,
            "tokens_per_second": median(open).round(),
            "snapshots": snapshots,
        }),
    ];
    set_range(&mut rows[1], "ratio", &ratios);
    let setup = json!({
        "bench": "console",
        "concurrency": args.concurrency,
        "output_tokens": args.output_tokens,
        "rounds": rounds,
    });
    let title = format!(
        "{} streams at once while consoles are open; medians of {rounds} rounds of {} s",
        args.concurrency, args.seconds
    );
    table::print(args.engine.json, setup, &title, &COLUMNS, &rows);
    Ok(())
}

/// Tokens a second of the streams beside `consoles`, and the snapshots that these read.
async fn measure_beside(
    args: &ConsoleArgs,
    server: &Server,
    consoles: u64,
) -> Result<(f64, usize), Error> {
    let admin = server.admin_socket_address();
    let admin = admin.ok_or_else(|| Error::failed("the admin listener has no address"))?;
    let time = Duration::from_secs(args.seconds);
    let mut reading = JoinSet::new();
    for _ in 0..consoles {
        reading.spawn(read_events(admin, time));
    }
    let (address, tokens) = (server.public_address(), args.output_tokens);
    let started = Instant::now();
    let mut streams = JoinSet::new();
    for client in 0..args.concurrency {
        streams.spawn(async move {
            let mut count = 0;
            while started.elapsed() < time {
                let prompt = format!("{}+{}=", 10 + client, 11 + count);
                local_server::stream(address, &prompt, tokens).await?;
                count += 1;
            }
            Ok::<u64, Error>(count)
        });
    }
    let mut count = 0;
    while let Some(stream) = streams.join_next().await {
        count += stream.map_err(Error::context("a client failed"))??;
    }
    let speed = float(count * tokens) / started.elapsed().as_secs_f64();
    let mut snapshots = 0;
    while let Some(read) = reading.join_next().await {
        snapshots += read.map_err(Error::context("a console failed"))??;
    }
    Ok((speed, snapshots))
}

/// Reads events for this time. Returns how many came.
async fn read_events(admin: SocketAddr, time: Duration) -> Result<usize, Error> {
    let mut connection = TcpStream::connect(admin).await?;
    let head = format!("GET /events HTTP/1.1\r\nHost: {admin}\r\n\r\n");
    connection.write_all(head.as_bytes()).await?;
    let mut events = Vec::new();
    // The stream has no end.
    let _ = tokio::time::timeout(time, connection.read_to_end(&mut events)).await;
    let text = String::from_utf8_lossy(&events);
    Ok(text.matches("\ndata: ").count())
}
