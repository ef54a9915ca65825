//! `corral bench all`: every bench, one after the other, and what is promised beside what was found.
//!
//! Each bench is a process of its own, so that none finds the memory, the threads or the caches of
//! another; it prints its object here, and a bench that fails or takes too long costs its own figures only.

mod parts;
mod targets;

use crate::arguments::AllBench;
use crate::complaint::Complaint;
use parts::Part;
use serde_json::{Value, json};
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
        eprintln!(
            "{:.0} min: corral bench {}",
            began.elapsed().as_secs_f64() / 60.0,
            part.words.join(" ")
        );
        let (value, problem) = match run(&corral, &part) {
            Ok(value) => (value, None),
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
    Ok(())
}

/// Runs one bench to its end, or for as long as it may take; what it printed, or what went wrong.
fn run(corral: &Path, part: &Part) -> Result<Value, String> {
    let mut bench = Command::new(corral)
        .arg("bench")
        .args(&part.words)
        .arg("--json")
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
            Err(error) => return Err(format!("nothing is known of its end: {error}")),
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
    use std::os::unix::fs::PermissionsExt;
    use std::path::PathBuf;
    use std::time::Duration;

    /// A program that stands for a bench, and a part that runs it.
    fn part(name: &str, script: &str, limit: Duration) -> (PathBuf, Part) {
        let file = std::env::temp_dir().join(format!("corral-{name}-{}", std::process::id()));
        std::fs::write(&file, format!("#!/bin/sh\n{script}\n")).unwrap();
        std::fs::set_permissions(&file, PermissionsExt::from_mode(0o700)).unwrap();
        let part = Part {
            words: vec![name.to_owned()],
            limit,
            targets: Vec::new(),
        };
        (file, part)
    }

    #[test]
    fn what_a_bench_prints_last_is_its_object() {
        let minute = Duration::from_secs(60);
        let (file, good) = part("good", "echo words; echo '{\"a\": 1}'", minute);
        assert_eq!(run(&file, &good).unwrap()["a"], 1);
        std::fs::remove_file(file).unwrap();
        let (file, bad) = part("bad", "echo '{}'; exit 3", minute);
        assert!(run(&file, &bad).unwrap_err().contains('3'));
        std::fs::remove_file(file).unwrap();
        let (file, empty) = part("empty", "true", minute);
        assert!(run(&file, &empty).unwrap_err().contains("no object"));
        std::fs::remove_file(file).unwrap();
    }

    #[test]
    fn a_bench_that_does_not_end_is_stopped() {
        let (file, long) = part("long", "exec sleep 600", Duration::ZERO);
        assert!(run(&file, &long).unwrap_err().contains("stopped"));
        std::fs::remove_file(file).unwrap();
    }
}
