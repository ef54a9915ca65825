//! Child processes that end with their owner, and clients of their servers.

use crate::TIMEOUT;
use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command};
use std::time::Instant;

/// A child process. Dropping it kills the process.
pub struct KilledOnDrop(pub Child);

impl Drop for KilledOnDrop {
    fn drop(&mut self) {
        // Both fail only if it has ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Sends a signal to a process, by its name without `SIG`.
pub fn signal(process: u32, name: &str) {
    let status = Command::new("kill")
        .arg(format!("-{name}"))
        .arg(process.to_string())
        .status();
    assert!(status.expect("kill is there").success(), "kill -{name}");
}

/// Reads a program's output until `find` finds something in a line, and the rest on a thread that ends with the program.
pub(crate) fn find_in_output<T>(
    output: impl Read + Send + 'static,
    mut find: impl FnMut(&str) -> Option<T>,
) -> T {
    let mut output = BufReader::new(output);
    let started = Instant::now();
    let mut read = String::new();
    loop {
        let mut line = String::new();
        let count = output.read_line(&mut line).expect("readable");
        read += &line;
        assert!(count > 0 && started.elapsed() < TIMEOUT, "{read}");
        if let Some(found) = find(&line) {
            std::thread::spawn(move || std::io::copy(&mut output, &mut std::io::sink()));
            return found;
        }
    }
}

/// A client that takes error statuses for responses and uses no proxy.
pub fn http_agent() -> ureq::Agent {
    let config = ureq::Agent::config_builder().http_status_as_error(false);
    let config = config.proxy(None).timeout_global(Some(TIMEOUT));
    let config = config.max_idle_connections(64);
    config.max_idle_connections_per_host(64).build().into()
}
