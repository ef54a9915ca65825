//! Compute threads beside other processes that keep all cores busy.
#![cfg(target_os = "linux")]

use corral_tests::{Corral, distinct_sums};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const LOWERED: &str = "corral_engine_compute_threads_lowered_total";
/// Time limit for the number of threads to change.
const LONGEST: Duration = Duration::from_secs(240);

/// Processes that compute without end.
struct BusyProcesses(Vec<Child>);

impl BusyProcesses {
    fn start(count: usize) -> Self {
        let start = |_| {
            let mut shell = Command::new("sh");
            shell
                .args(["-c", "while :; do :; done"])
                .stdin(Stdio::null());
            shell.spawn().expect("a shell starts")
        };
        Self((0..count).map(start).collect())
    }
}

impl Drop for BusyProcesses {
    fn drop(&mut self) {
        for child in &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

#[test]
fn busy_cores_lower_compute_threads() {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let corral = Corral::start_with(&["--threads", "2"]);
    let busy = BusyProcesses::start(2 * cores);
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
