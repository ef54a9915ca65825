//! `corral bench all`: every bench, one after the other, and what is promised beside what was found.
//!
//! Each bench is a process of its own, so that none finds the memory, the threads or the caches of
//! another; it prints its object here, and a bench that fails or takes too long costs its own figures only.

mod parts;
mod peer;
mod server;
mod targets;

use crate::arguments::AllBench;
use crate::complaint::Complaint;
use parts::{Part, Way};
use serde_json::{Value, json};
use server::Server;
use std::io::Read;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use targets::Figure;

/// How often it is looked whether a bench is through.
const LOOK: Duration = Duration::from_millis(100);

/// Runs every bench, and prints each target with its figure.
pub(super) fn measure(arguments: &AllBench) -> Result<(), Complaint> {
    let corral = std::env::current_exe()
        .map_err(Complaint::telling("this program's own file can't be found"))?;
    for file in parts::files(arguments) {
        if !file.is_file() {
            let text = format!(
                "there is no {}; `make bench` builds and writes what is measured with",
                file.display()
            );
            return Err(Complaint::Failed(text.into()));
        }
    }
    let began = Instant::now();
    let (mut found, mut figures) = (Vec::new(), Vec::new());
    for part in parts::all(arguments) {
        if matches!(part.way, Way::Not) {
            figures.extend(
                part.targets
                    .iter()
                    .map(|target| target.figure(&Value::Null)),
            );
            continue;
        }
        eprintln!(
            "{:.0} min: corral bench {}",
            began.elapsed().as_secs_f64() / 60.0,
            part.words.join(" ")
        );
        let (value, problem) = match run(&corral, &part) {
            Ok(value) => {
                if let Some(failed) = peer::failed(&value) {
                    eprintln!("corral bench {}: {failed}", part.words[0]);
                }
                (value, None)
            }
            Err(problem) => {
                eprintln!("corral bench {}: {problem}", part.words[0]);
                (Value::Null, Some(problem))
            }
        };
        figures.extend(part.targets.iter().map(|target| target.figure(&value)));
        found.push(json!({"bench": part.words, "problem": problem, "found": value}));
    }
    let minutes = began.elapsed().as_secs_f64() / 60.0;
    if arguments.json {
        let targets: Vec<_> = figures.iter().map(Figure::json).collect();
        println!(
            "{}",
            json!({"minutes": minutes, "targets": targets, "benches": found})
        );
    } else {
        println!("{}", targets::table(&figures));
        println!("{minutes:.0} min in all");
    }
    let failed = found.iter().filter(|one| !one["problem"].is_null()).count();
    if failed == 0 {
        return Ok(());
    }
    let text = format!("{failed} of {} benches gave no figures", found.len());
    Err(Complaint::Failed(text.into()))
}

/// Runs one bench to its end, or for as long as it may take; what it printed, or what went wrong.
fn run(corral: &Path, part: &Part) -> Result<Value, String> {
    // What it leaves if it has to be stopped goes with this folder.
    let folder = std::env::temp_dir().join(format!("corral-bench-all-{}", std::process::id()));
    std::fs::create_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let found = run_within(&folder, corral, part);
    std::fs::remove_dir_all(&folder).ok();
    found
}

/// [`run`] with a folder for temporary files.
fn run_within(folder: &Path, corral: &Path, part: &Part) -> Result<Value, String> {
    let mut words = part.words.clone();
    // It is stopped at the end of this function, whatever becomes of the bench; but not where this process is killed.
    let server = match &part.way {
        Way::Against(serve) => {
            let mut command = server::command(corral, serve, folder);
            Some(Server::start(&mut command, server::PATIENCE)?)
        }
        Way::Alone | Way::Not => None,
    };
    if let Some(server) = &server {
        words = peer::urls(words, server.url());
    }
    let mut command = Command::new(corral);
    let command = command.arg("bench").args(&words).arg("--json");
    output_of(command.env("TMPDIR", folder), part)
}

fn output_of(command: &mut Command, part: &Part) -> Result<Value, String> {
    let mut bench = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|error| format!("it could not be started: {error}"))?;
    let mut output = bench.stdout.take();
    // It says everything at its end, and more than a pipe holds: somebody has to read meanwhile.
    let reader = std::thread::spawn(move || {
        let mut text = String::new();
        if let Some(output) = &mut output {
            output.read_to_string(&mut text).ok();
        }
        text
    });
    let began = Instant::now();
    let status = loop {
        match bench.try_wait() {
            Ok(Some(status)) => break status,
            Ok(None) if began.elapsed() < part.limit => std::thread::sleep(LOOK),
            Ok(None) => {
                // Fails only if it has just ended.
                bench.kill().ok();
                bench.wait().ok();
                let minutes = part.limit.as_secs() / 60;
                return Err(format!("it was stopped after {minutes} min"));
            }
            Err(error) => {
                bench.kill().ok();
                bench.wait().ok();
                return Err(format!("nothing is known of its end: {error}"));
            }
        }
    };
    let text = reader.join().unwrap_or_default();
    if !status.success() {
        return Err(format!("it ended with {status}"));
    }
    let last = text.lines().last().unwrap_or_default();
    serde_json::from_str(last).map_err(|error| format!("it printed no object: {error}"))
}

#[cfg(all(test, unix))]
mod tests {
    use super::{Part, Way, run};
    use std::path::Path;
    use std::time::Duration;

    /// What `/bin/NAME bench WORDS --json` does.
    fn ran(name: &str, words: &[&str], limit: Duration) -> Result<serde_json::Value, String> {
        let part = Part {
            words: words.iter().copied().map(str::to_owned).collect(),
            limit,
            way: Way::Alone,
            targets: Vec::new(),
        };
        run(&Path::new("/bin").join(name), &part)
    }

    #[test]
    fn what_a_bench_prints_last_is_its_object() {
        let minute = Duration::from_secs(60);
        let none = ran("echo", &["words"], minute).unwrap_err();
        assert!(none.contains("no object"), "{none}");
        let failed = ran("false", &[], minute).unwrap_err();
        assert!(failed.contains("ended with"), "{failed}");
        let part = Part {
            words: Vec::new(),
            limit: minute,
            way: Way::Alone,
            targets: Vec::new(),
        };
        let mut shell = std::process::Command::new("/bin/sh");
        let talks = shell.args(["-c", "echo words; echo '{\"a\": 1}'"]);
        assert_eq!(super::output_of(talks, &part).unwrap()["a"], 1);
    }

    #[test]
    fn a_bench_that_does_not_end_is_stopped() {
        let part = Part {
            words: Vec::new(),
            limit: Duration::ZERO,
            way: Way::Alone,
            targets: Vec::new(),
        };
        let mut endless = std::process::Command::new("/bin/sleep");
        let stopped = super::output_of(endless.arg("600"), &part).unwrap_err();
        assert!(stopped.contains("stopped"), "{stopped}");
    }
}
