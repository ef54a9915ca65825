//! Waits for suites of other languages.

use std::process::{Child, ExitStatus};
use std::time::{Duration, Instant};

/// The exit status of a suite; `None` if it had to be killed at its time limit.
pub fn wait_for_suite(mut child: Child, limit: Duration) -> Option<ExitStatus> {
    let started = Instant::now();
    while started.elapsed() < limit {
        if let Some(status) = child.try_wait().expect("a child process") {
            return Some(status);
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    child.kill().expect("a child process");
    child.wait().expect("a child process");
    None
}
