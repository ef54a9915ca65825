//! CPU time of the process without the threads that are not measured.
//!
//! Compute threads and clients are recognized by name.

use crate::cpu_clock::cpu_seconds;
use corral_cli::Error;
use rustix::time::ClockId;
use std::fs;
use std::time::{Duration, Instant};

/// The names of llama.cpp's compute threads begin so, except that of the one that calls it.
const COMPUTE_THREAD: &str = "compute-";
/// The name of the clients' threads.
pub(super) const CLIENT_THREAD: &str = "bench-client";

/// Compute threads spin for some milliseconds after a step, and the system counts a thread's time when the thread
/// leaves its core.
const SETTLE_TIME: Duration = Duration::from_millis(50);

/// The figures of a load.
#[derive(Clone, Copy, Debug)]
pub(super) struct Measurement {
    /// Generated tokens.
    pub(super) tokens: u64,
    /// Calls of `llama_decode`.
    pub(super) steps: u64,
    pub(super) seconds: f64,
    /// Seconds of CPU time without llama.cpp and clients, where the system reports threads.
    pub(super) cpu: Option<f64>,
}

/// The outcome of a load, before its CPU time is known.
pub(super) struct LoadOutcome {
    /// Generated tokens.
    pub(super) tokens: u64,
    /// Calls of `llama_decode`.
    pub(super) steps: u64,
    /// CPU seconds of the calling thread inside of llama_decode.
    pub(super) decode_cpu: f64,
}

/// Runs and measures a load.
pub(super) fn measure(
    load: impl FnOnce() -> Result<LoadOutcome, Error>,
) -> Result<Measurement, Error> {
    let before = CpuSeconds::settled();
    let start = Instant::now();
    let outcome = load()?;
    let seconds = start.elapsed().as_secs_f64();
    let cpu = before.zip(CpuSeconds::settled());
    Ok(Measurement {
        tokens: outcome.tokens,
        steps: outcome.steps,
        seconds,
        // The clocks differ slightly, so the difference may be negative.
        cpu: cpu.map(|(before, after)| (after.since(before) - outcome.decode_cpu).max(0.0)),
    })
}

/// CPU time so far.
#[derive(Clone, Copy, Debug)]
struct CpuSeconds {
    process: f64,
    /// Of compute threads and clients.
    excluded: f64,
}

impl CpuSeconds {
    /// Reads the clocks after all threads have gone to sleep.
    fn settled() -> Option<Self> {
        std::thread::sleep(SETTLE_TIME);
        let excluded = threads()?
            .iter()
            .filter(|(name, _)| name.starts_with(COMPUTE_THREAD) || name == CLIENT_THREAD)
            .map(|(_, seconds)| seconds)
            .sum();
        let process = cpu_seconds(ClockId::ProcessCPUTime);
        Some(Self { process, excluded })
    }

    /// CPU time of all other threads since `before`.
    fn since(self, before: Self) -> f64 {
        (self.process - before.process) - (self.excluded - before.excluded)
    }
}

/// The name and the CPU seconds of each thread, on Linux.
fn threads() -> Option<Vec<(String, f64)>> {
    let mut threads = Vec::new();
    for task in fs::read_dir("/proc/self/task").ok()? {
        let dir = task.ok()?.path();
        // A thread that has ended meanwhile is not one of these.
        let (Ok(name), Ok(times)) = (
            fs::read_to_string(dir.join("comm")),
            fs::read_to_string(dir.join("schedstat")),
        ) else {
            continue;
        };
        threads.push((name.trim_end().to_owned(), on_core_seconds(&times)?));
    }
    (!threads.is_empty()).then_some(threads)
}

/// The first number of a `schedstat`, which is nanoseconds on a core.
fn on_core_seconds(schedstat: &str) -> Option<f64> {
    let nanos: f64 = schedstat.split_whitespace().next()?.parse().ok()?;
    Some(nanos / 1e9)
}

/// Runs `work` in a thread of this name and waits for it.
pub(super) fn in_thread<T: Send>(name: &str, work: impl FnOnce() -> T + Send) -> Result<T, Error> {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new()
            .name(name.to_owned())
            .spawn_scoped(scope, work)?;
        let crashed = |_| Error::failed(format!("the thread {name} crashed"));
        thread.join().map_err(crashed)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_and_compute_threads_are_excluded() {
        let cpu = |process, excluded| CpuSeconds { process, excluded };
        let since = cpu(9.0, 4.0).since(cpu(2.0, 1.0));
        assert!((since - 4.0).abs() < 1e-9, "{since}");
        assert_eq!(on_core_seconds("2500000000 17 3\n"), Some(2.5));
        assert_eq!(on_core_seconds(""), None);
        assert_eq!(on_core_seconds("no number"), None);
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn threads_are_found_by_name() {
        let threads = in_thread(CLIENT_THREAD, threads).expect("no panic");
        let exists = |name| threads.iter().flatten().any(|(found, _)| found == name);
        assert!(exists(CLIENT_THREAD));
        assert!(!exists("no-such-thread"));
    }
}
