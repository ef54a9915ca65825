//! `corral-bench all`: every bench with a target, and each target with its figure.
//!
//! Each bench runs in a process of its own and prints a JSON object, so that no bench finds the memory, the threads or
//! the caches of another. A bench that fails or takes too long loses its own figures only.

mod bench_list;
mod bench_run;
mod server;
mod targets;

use crate::args::check_devices;
use bench_run::{BenchRun, Kind, TimeBudget};
use clap::Args;
use corral_cli::Error;
use corral_cli::args::{DeviceArgs, whole};
use corral_cli::bench::url::Url;
use serde_json::{Value, json};
use server::Server;
use std::io::Read;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use targets::Figure;

/// How often to check whether a bench has ended.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

#[derive(Args, Debug)]
pub(crate) struct AllArgs {
    /// Output of 'corral-bench model'
    #[arg(long, value_name = "FILE")]
    model: PathBuf,
    /// The demo model
    #[arg(long, value_name = "FILE", default_value = "models/tiny/tiny.gguf")]
    small: PathBuf,
    /// Output of 'corral-bench model --shape wide'
    #[arg(long, value_name = "FILE")]
    wide: PathBuf,
    /// Directory of the components that 'make plugins' builds
    #[arg(long, value_name = "DIR")]
    plugins: PathBuf,
    /// Server with wasi-p2-handler.wasm to compare HTTP with, http://HOST:PORT; see BENCHMARKS.md
    #[arg(long, value_name = "URL")]
    peer: Option<Url>,
    /// Server with OpenAI's API and the same model to compare throughput with, http://HOST:PORT
    #[arg(long, value_name = "URL")]
    openai_peer: Option<Url>,
    /// llama.cpp's `llama-bench`, built from the same sources, which computes prompts of the same model file
    #[arg(long, value_name = "FILE")]
    llama_bench: Option<PathBuf>,
    /// Most rounds of each bench; 1 for a quick look [default: 5, or 12 for plugin-overhead with the larger model]
    #[arg(long, value_name = "N", value_parser = whole(1..=12))]
    rounds: Option<u64>,
    #[command(flatten)]
    devices: DeviceArgs,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// The binaries that run benches and servers.
struct Programs {
    /// This program.
    bench: PathBuf,
    /// The program `corral` in the same directory. It serves, and puts load on peers.
    corral: PathBuf,
}

impl Programs {
    fn find() -> Result<Self, Error> {
        let bench = std::env::current_exe()
            .map_err(Error::context("cannot find the file of this program"))?;
        let corral = bench.with_file_name(format!("corral{}", std::env::consts::EXE_SUFFIX));
        Ok(Self { bench, corral })
    }

    /// The command of a bench, without `--json`.
    fn command(&self, arguments: &[String]) -> Command {
        // The load on peers is the only bench of the released binary.
        let is_load = arguments.first().is_some_and(|bench| bench == "load");
        let mut command = Command::new(if is_load { &self.corral } else { &self.bench });
        if is_load {
            command.arg("bench");
        }
        command.args(arguments);
        command
    }
}

/// Runs every bench and prints the figures.
pub(crate) fn measure(args: &AllArgs) -> Result<(), Error> {
    check_devices(&args.devices)?;
    let programs = Programs::find()?;
    let files = bench_list::files(args).into_iter();
    for file in files.chain([programs.corral.clone()]) {
        if !file.is_file() {
            return Err(Error::failed(format!(
                "there is no {}; `make bench` builds and writes all files",
                file.display()
            )));
        }
    }
    let start = Instant::now();
    let (mut results, mut figures, mut shortened) = (Vec::new(), Vec::new(), Vec::new());
    let mut shares = Duration::ZERO;
    for bench in bench_list::all(args) {
        if matches!(bench.kind, Kind::Skipped) {
            let targets = bench.targets.iter();
            figures.extend(targets.map(|target| target.figure(&Value::Null)));
            continue;
        }
        let elapsed = start.elapsed();
        let budget = bench.time_budget(shares, elapsed);
        shares += bench.share;
        let minutes = elapsed.as_secs_f64() / 60.0;
        let line = bench.arguments_within(budget).join(" ");
        eprintln!("{minutes:.0} min: {line}");
        let (value, problem) = match run(&programs, &bench, budget) {
            Ok(value) => (value, None),
            Err(problem) => {
                eprintln!("{}: {problem}", bench.arguments[0]);
                (Value::Null, Some(problem))
            }
        };
        figures.extend(bench.targets.iter().map(|target| target.figure(&value)));
        shortened.extend(bench.missing_rounds(&value));
        results.push(json!({
            "bench": bench.arguments,
            "rounds_asked": bench.rounds,
            "problem": problem,
            "found": value,
        }));
    }
    let minutes = start.elapsed().as_secs_f64() / 60.0;
    if args.json {
        let targets: Vec<_> = figures.iter().map(Figure::json).collect();
        let report = json!({
            "bench": "all",
            "model": args.model.file_name().unwrap_or_default().to_string_lossy(),
            "minutes": minutes,
            "targets": targets,
            "benches": results,
        });
        println!("{report}");
    } else {
        print!("{}", targets::table(&figures));
        for rounds in shortened {
            println!("out of time: {rounds}");
        }
        println!("{minutes:.0} min in total");
    }
    let failed = results.iter().filter(|result| !result["problem"].is_null());
    match failed.count() {
        0 => Ok(()),
        failed => Err(Error::failed(format!(
            "{failed} of {} benches failed",
            results.len()
        ))),
    }
}

/// Runs one bench within its time; returns its JSON object.
fn run(programs: &Programs, bench: &BenchRun, budget: TimeBudget) -> Result<Value, String> {
    // Removed with everything that a killed bench leaves.
    let dir = tempfile::tempdir().map_err(|error| format!("no temporary directory: {error}"))?;
    let dir = dir.path();
    let mut arguments = bench.arguments_within(budget);
    // The server stops at the end of this function, unless a signal kills this process.
    let server = match &bench.kind {
        Kind::AgainstServer(serve) => {
            let mut command = server::command(&programs.corral, serve, dir);
            Some(Server::start(&mut command, server::START_TIMEOUT)?)
        }
        Kind::Alone | Kind::Skipped => None,
    };
    arguments.extend(server.iter().map(|server| server.url().to_owned()));
    let mut command = programs.command(&arguments);
    command.arg("--json").env("TMPDIR", dir);
    let result = json_output(&mut command, budget.limit)?;
    check_requests(&result)?;
    Ok(result)
}

/// Fails if requests failed, since these may have cost nothing.
fn check_requests(result: &Value) -> Result<(), String> {
    let rows = result["rows"].as_array().into_iter().flatten();
    let failed: u64 = rows.filter_map(|row| row["failed"].as_u64()).sum();
    match failed {
        0 => Ok(()),
        failed => Err(format!("{failed} requests failed: {result}")),
    }
}

/// Runs a command for at most `limit`; returns the JSON object on its last line.
fn json_output(command: &mut Command, limit: Duration) -> Result<Value, String> {
    let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn();
    let mut child = child.map_err(|error| format!("cannot start it: {error}"))?;
    let mut stdout = child.stdout.take();
    // The output is larger than a pipe, so a thread reads it meanwhile.
    let reader = std::thread::spawn(move || {
        let mut text = String::new();
        if let Some(stdout) = &mut stdout {
            stdout.read_to_string(&mut text).ok();
        }
        text
    });
    let start = Instant::now();
    let status = loop {
        match child.try_wait() {
            Ok(Some(status)) => break status,
            Ok(None) if start.elapsed() < limit => std::thread::sleep(POLL_INTERVAL),
            outcome => {
                // Fails only if it has just ended.
                child.kill().ok();
                child.wait().ok();
                return Err(match outcome {
                    Err(error) => format!("cannot wait for its end: {error}"),
                    Ok(_) => format!("stopped after {} min", limit.as_secs() / 60),
                });
            }
        }
    };
    let text = reader.join().unwrap_or_default();
    if !status.success() {
        return Err(format!("it ended with {status}"));
    }
    let last = text.lines().last().unwrap_or_default();
    serde_json::from_str(last).map_err(|error| format!("it printed no JSON object: {error}"))
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;
    use std::path::Path;

    /// Runs `/bin/NAME ARGUMENTS --json` as a bench.
    fn run_program(name: &str, arguments: &str) -> Result<Value, String> {
        let program = Path::new("/bin").join(name);
        let programs = Programs {
            bench: program.clone(),
            corral: program,
        };
        let bench = BenchRun::new(arguments, &[]);
        let budget = bench.time_budget(Duration::ZERO, Duration::ZERO);
        run(&programs, &bench, budget)
    }

    #[test]
    fn last_line_is_the_object() {
        let error = run_program("echo", "words").unwrap_err();
        assert!(error.contains("no JSON object"), "{error}");
        let error = run_program("false", "").unwrap_err();
        assert!(error.contains("ended with"), "{error}");
        let mut shell = Command::new("/bin/sh");
        let command = shell.args(["-c", "echo words; echo '{\"a\": 1}'"]);
        let minute = Duration::from_secs(60);
        assert_eq!(json_output(command, minute).unwrap()["a"], 1);
    }

    #[test]
    fn load_runs_in_the_released_binary() {
        let programs = Programs {
            bench: "bench".into(),
            corral: "corral".into(),
        };
        let line = |arguments: &str| {
            let arguments: Vec<_> = arguments.split(' ').map(str::to_owned).collect();
            format!("{:?}", programs.command(&arguments))
        };
        let expected = r#""corral" "bench" "load" "http://a""#;
        assert_eq!(line("load http://a"), expected);
        assert_eq!(line("http --json"), r#""bench" "http" "--json""#);
    }

    #[test]
    fn endless_bench_is_stopped() {
        let mut endless = Command::new("/bin/sleep");
        let error = json_output(endless.arg("600"), Duration::ZERO).unwrap_err();
        assert!(error.contains("stopped"), "{error}");
    }

    #[test]
    fn failed_requests_are_an_error() {
        let result = |failed: u64| json!({"rows": [{"failed": failed}, {"failed": 0}]});
        assert!(check_requests(&result(0)).is_ok());
        assert!(check_requests(&result(1)).is_err());
        assert!(check_requests(&json!({"rows": [{"ratio": 1.0}]})).is_ok());
    }
}
