//! Compute threads beside other processes that keep all cores busy.
#![cfg(target_os = "linux")]

use corral_tests::{Corral, KilledOnDrop, distinct_sums};
use std::fs;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const LOWERED: &str = "corral_engine_compute_threads_lowered_total";
/// Time limit for the number of threads to change.
const LONGEST: Duration = Duration::from_secs(240);

/// A process that computes without end.
fn start_busy_process(_: usize) -> KilledOnDrop {
    let mut shell = Command::new("sh");
    shell.args(["-c", "while :; do :; done"]);
    let shell = shell.stdin(Stdio::null()).spawn();
    KilledOnDrop(shell.expect("a shell starts"))
}

#[test]
fn busy_cores_lower_compute_threads() {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let corral = Corral::start_with(&["--threads", "2"]);
    let busy = Vec::from_iter((0..2 * cores).map(start_busy_process));
    let started = Instant::now();
    for sum in distinct_sums(20).iter().cycle() {
        assert_eq!(corral.text(&sum.question()), sum.answer(), "{sum:?}");
        if corral.metrics().get(LOWERED) > 0.0 {
            break;
        }
        assert!(started.elapsed() < LONGEST, "all threads compute");
    }
    drop(busy);
    let metrics = corral.wait_until_idle();
    assert_eq!(metrics.get("corral_engine_steps_failed_total"), 0.0);
}

/// The niceness of a process (field 19 of `stat`; the second field is the program's name in parentheses).
fn niceness(pid: u32) -> i32 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).expect("it runs");
    let (_, fields) = stat.rsplit_once(')').expect("a name");
    let niceness = fields.split_whitespace().nth(16).expect("field 19");
    niceness.parse().expect("a number")
}

#[test]
fn server_raises_only_normal_priority() {
    // Without the right to a higher priority, `nice` runs the program at normal priority.
    let allowed = Command::new("nice").args(["-n", "-5", "nice"]).output();
    let allowed = allowed.expect("nice is there").stdout;
    let own = niceness(std::process::id());
    let expected = match own {
        0 => String::from_utf8_lossy(&allowed).trim().parse(),
        _ => Ok(own),
    };
    let corral = Corral::start();
    assert_eq!(Ok(niceness(corral.pid())), expected);
    let corral = Corral::start_after("renice -n 7 -p $$ >/dev/null", None, &[]);
    assert_eq!(niceness(corral.pid()), 7);
}
