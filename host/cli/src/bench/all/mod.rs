//! `corral bench all`: every bench, one after the other, and what is promised beside what was found.
//!
//! Each bench is a process of its own, so that none finds the memory, the threads or the caches of
//! another; it prints its object here, and a bench that fails or takes too long costs its own figures only.

mod part;
mod parts;
mod peer;
mod server;
mod targets;

use crate::arguments::AllBench;
use crate::complaint::Complaint;
use part::{Part, Time, Way};
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
    let (mut found, mut figures, mut fewer) = (Vec::new(), Vec::new(), Vec::new());
    let mut shares = Duration::ZERO;
    for part in parts::all(arguments) {
        if matches!(part.way, Way::Not) {
            figures.extend(
                part.targets
                    .iter()
                    .map(|target| target.figure(&Value::Null)),
            );
            continue;
        }
        let elapsed = began.elapsed();
        let time = part.time(shares, elapsed);
        shares += part.share;
        eprintln!(
            "{:.0} min: corral bench {}",
            elapsed.as_secs_f64() / 60.0,
            part.line(time).join(" ")
        );
        let (value, problem) = match run(&corral, &part, time) {
            Ok(value) => (value, None),
            Err(problem) => {
                eprintln!("corral bench {}: {problem}", part.words[0]);
                (Value::Null, Some(problem))
            }
        };
        figures.extend(part.targets.iter().map(|target| target.figure(&value)));
        fewer.extend(part.fewer(&value));
        found.push(json!({
            "bench": part.words,
            "rounds_asked": part.rounds,
            "problem": problem,
            "found": value,
        }));
    }
    let minutes = began.elapsed().as_secs_f64() / 60.0;
    if arguments.json {
        let targets: Vec<_> = figures.iter().map(Figure::json).collect();
        let all = json!({
            "bench": "all",
            "model": arguments.model.file_name().unwrap_or_default().to_string_lossy(),
            "minutes": minutes,
            "targets": targets,
            "benches": found,
        });
        println!("{all}");
    } else {
        println!("{}", targets::table(&figures));
        for fewer in fewer {
            println!("for want of time {fewer}");
        }
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
fn run(corral: &Path, part: &Part, time: Time) -> Result<Value, String> {
    // What it leaves if it has to be stopped goes with this folder.
    let folder = std::env::temp_dir().join(format!("corral-bench-all-{}", std::process::id()));
    std::fs::create_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let found = run_in(&folder, corral, part, time);
    std::fs::remove_dir_all(&folder).ok();
    found
}

/// [`run`] with a folder for temporary files.
fn run_in(folder: &Path, corral: &Path, part: &Part, time: Time) -> Result<Value, String> {
    let mut words = part.line(time);
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
    output_of(command.env("TMPDIR", folder), time.limit)
}

fn output_of(command: &mut Command, limit: Duration) -> Result<Value, String> {
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
            Ok(None) if began.elapsed() < limit => std::thread::sleep(LOOK),
            Ok(None) => {
                // Fails only if it has just ended.
                bench.kill().ok();
                bench.wait().ok();
                let minutes = limit.as_secs() / 60;
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
    use super::{Part, run};
    use std::path::Path;
    use std::process::Command;
    use std::time::Duration;

    /// What `/bin/NAME bench WORDS --json` does.
    fn ran(name: &str, words: &[&str]) -> Result<serde_json::Value, String> {
        let words = words.iter().copied().map(str::to_owned).collect();
        let part = Part::whole(words, 1);
        let time = part.time(Duration::ZERO, Duration::ZERO);
        run(&Path::new("/bin").join(name), &part, time)
    }

    #[test]
    fn what_a_bench_prints_last_is_its_object() {
        let none = ran("echo", &["words"]).unwrap_err();
        assert!(none.contains("no object"), "{none}");
        let failed = ran("false", &[]).unwrap_err();
        assert!(failed.contains("ended with"), "{failed}");
        let mut shell = Command::new("/bin/sh");
        let talks = shell.args(["-c", "echo words; echo '{\"a\": 1}'"]);
        let minute = Duration::from_secs(60);
        assert_eq!(super::output_of(talks, minute).unwrap()["a"], 1);
    }

    #[test]
    fn a_bench_that_does_not_end_is_stopped() {
        let mut endless = Command::new("/bin/sleep");
        let stopped = super::output_of(endless.arg("600"), Duration::ZERO).unwrap_err();
        assert!(stopped.contains("stopped"), "{stopped}");
    }
}
