//! Compute threads beside other processes that keep all cores busy.
#![cfg(target_os = "linux")]

use corral_tests::{Corral, KilledOnDrop, distinct_sums};
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
