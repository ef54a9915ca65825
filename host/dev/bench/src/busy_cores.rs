//! `corral-bench busy-cores`: the time of short requests beside processes that keep the cores busy, with all compute
//! threads and with adaptive threads.

use crate::args::EngineArgs;
use crate::local_server::{self, client_runtime};
use crate::workload::{config, metric};
use clap::Args;
use corral_cli::Error;
use corral_cli::args::whole;
use corral_cli::bench::stats::Quantiles;
use corral_cli::bench::table::{self, Column, Unit};
use corral_engine::Engine;
use corral_server::Server;
use rustix::process::{Pid, setpriority_process};
use serde_json::{Value, json};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tokio::runtime::Runtime;

#[derive(Args, Debug)]
pub(crate) struct BusyCoresArgs {
    #[command(flatten)]
    engine: EngineArgs,
    /// The plugin `generate`
    #[arg(long, value_name = "FILE")]
    plugin: PathBuf,
    /// Busy processes, from none to this many
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = whole(0..=256))]
    processes: u64,
    /// Requests for each number of processes
    #[arg(long, value_name = "N", default_value_t = 300, value_parser = whole(1..=100_000))]
    requests: u64,
    /// Start each busy process in a session of its own, as a service has it, instead of the bench's
    #[arg(long)]
    own_sessions: bool,
}

/// Tokens that a request generates, as many as a sum of two numbers.
const OUTPUT_TOKENS: u64 = 3;
/// A measurement ends after this time, also with fewer requests.
const LONGEST: Duration = Duration::from_secs(15);
/// From the start of the processes to the first request.
const SETTLE_TIME: Duration = Duration::from_millis(500);

const COLUMNS: [Column; 8] = [
    ("busy processes", "processes", Unit::Plain),
    ("compute threads", "threads", Unit::Plain),
    ("at the end", "threads_at_end", Unit::Plain),
    ("requests", "requests", Unit::Plain),
    ("median", "median_s", Unit::Milliseconds),
    ("p99", "p99_s", Unit::Milliseconds),
    ("max", "max_s", Unit::Milliseconds),
    ("median / quiet", "ratio_to_quiet", Unit::Ratio),
];

/// Processes that compute until they are dropped.
struct BusyProcesses(Vec<Child>);

impl BusyProcesses {
    /// `own_sessions`: see [`BusyCoresArgs`].
    fn start(count: u64, own_sessions: bool) -> Result<Self, Error> {
        let mut processes = Self(Vec::new());
        // Ctrl-C does not reach other sessions: the kernel ends these processes with the bench.
        let programs = ["setpriv", "--pdeathsig", "KILL", "setsid", "sh"];
        let programs = &programs[if own_sessions { 0 } else { 4 }..];
        for _ in 0..count {
            // Each program replaces the one before it, so the child is the busy process.
            let mut command = Command::new(programs[0]);
            command
                .args(&programs[1..])
                .args(["-c", "while :; do :; done"])
                .stdin(Stdio::null());
            let child = command.spawn()?;
            // It inherited the bench's priority.
            setpriority_process(Some(Pid::from_child(&child)), 0)?;
            processes.0.push(child);
        }
        Ok(processes)
    }
}

impl Drop for BusyProcesses {
    fn drop(&mut self) {
        for process in &mut self.0 {
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}

/// Measures and prints the figures.
pub(crate) fn measure(args: &BusyCoresArgs, workers: &Runtime) -> Result<(), Error> {
    let clients = client_runtime()?;
    let mut rows = Vec::new();
    for adaptive in [false, true] {
        let mut config = config(&args.engine, 0)?;
        config.adaptive_threads = adaptive;
        let engine = Engine::load(config)?;
        let server = workers.block_on(local_server::start(&engine, &args.plugin))?;
        // The first requests warm up.
        clients.block_on(ask(&server, args.requests))?;
        let mut quiet = None;
        for processes in 0..=args.processes {
            eprintln!("{processes} busy processes, adaptive threads: {adaptive}");
            let busy = BusyProcesses::start(processes, args.own_sessions)?;
            std::thread::sleep(SETTLE_TIME);
            let times = clients.block_on(ask(&server, args.requests))?;
            let at_end = metric(&engine, "corral_engine_compute_threads");
            drop(busy);
            let median = quantiles(&times).at(0.5);
            let ratio = median / *quiet.get_or_insert(median);
            rows.push(report(processes, adaptive, at_end, &times, ratio));
        }
        engine.shutdown();
    }
    let own_sessions = args.own_sessions;
    let setup = json!({"bench": "busy-cores", "output_tokens": OUTPUT_TOKENS, "own_sessions": own_sessions});
    let title = format!(
        "requests of {OUTPUT_TOKENS} tokens over HTTP, one after the other, beside busy processes; ms"
    );
    table::print(args.engine.json, setup, &title, &COLUMNS, &rows);
    Ok(())
}

/// The seconds of each request.
async fn ask(server: &Server, requests: u64) -> Result<Vec<f64>, Error> {
    let started = Instant::now();
    let mut times = Vec::new();
    for number in 0..requests {
        let prompt = format!("{}+{}=", 10 + number % 83, 10 + number % 71);
        let start = Instant::now();
        local_server::stream(server.public_address(), &prompt, OUTPUT_TOKENS).await?;
        times.push(start.elapsed().as_secs_f64());
        if started.elapsed() > LONGEST {
            break;
        }
    }
    Ok(times)
}

fn quantiles(times: &[f64]) -> Quantiles {
    times.iter().copied().collect()
}

fn report(processes: u64, adaptive: bool, at_end: f64, times: &[f64], ratio: f64) -> Value {
    let quantiles = quantiles(times);
    json!({
        "processes": processes,
        "threads": if adaptive { "adaptive" } else { "all" },
        "threads_at_end": at_end,
        "requests": times.len(),
        "median_s": quantiles.at(0.5),
        "p99_s": quantiles.at(0.99),
        "max_s": quantiles.at(1.0),
        "ratio_to_quiet": ratio,
    })
}
