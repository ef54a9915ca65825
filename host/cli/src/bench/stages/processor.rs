//! Processor time: of the whole process, and of the threads that are no part of what is measured.
//!
//! Compute threads are told from others by their name: ggml names none, so they are called like the thread
//! that made them. That one is therefore started for it and ends at once.

use super::clients::Answered;
use super::visits::Visit;
use crate::complaint::Complaint;
use rustix::time::{ClockId, clock_gettime};
use std::fs;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The name of llama.cpp's compute threads, but for the one that calls it.
pub(super) const COMPUTE: &str = "bench-compute";
/// The name of the threads that stand for clients.
pub(super) const CLIENTS: &str = "bench-client";

/// Compute threads spin for some milliseconds after the last step before they sleep, and the system counts
/// a thread's time when it leaves its core.
const SETTLE: Duration = Duration::from_millis(50);

/// What a load took.
#[derive(Clone, Debug)]
pub(super) struct Took {
    /// Tokens that were generated.
    pub(super) tokens: u64,
    /// Calls of `llama_decode`.
    pub(super) steps: u64,
    pub(super) seconds: f64,
    /// Seconds of processor time beside llama.cpp and clients; none where the system does not tell.
    pub(super) processor: Option<f64>,
    /// Each request, where clients ask.
    pub(super) visits: Arc<[Visit]>,
}

/// What a load has done.
pub(super) struct Done {
    pub(super) answered: Answered,
    /// Calls of `llama_decode`.
    pub(super) steps: u64,
    /// Seconds of processor time that the thread that calls llama.cpp spent in there.
    pub(super) decoding: f64,
}

/// Measures a load.
pub(super) fn timed(load: impl FnOnce() -> Result<Done, Complaint>) -> Result<Took, Complaint> {
    let before = Spent::settled();
    let began = Instant::now();
    let done = load()?;
    let seconds = began.elapsed().as_secs_f64();
    let spent = before.zip(Spent::settled());
    Ok(Took {
        tokens: done.answered.tokens,
        steps: done.steps,
        seconds,
        // Clocks of different kinds differ a little.
        processor: spent.map(|(before, after)| (after.beside(before) - done.decoding).max(0.0)),
        visits: done.answered.visits.into(),
    })
}

/// Seconds of processor time so far.
#[derive(Clone, Copy, Debug)]
struct Spent {
    process: f64,
    /// Of threads that compute or are clients.
    aside: f64,
}

impl Spent {
    /// Once nothing goes on any more.
    fn settled() -> Option<Self> {
        std::thread::sleep(SETTLE);
        let aside = threads()?
            .iter()
            .filter(|(name, _)| name == COMPUTE || name == CLIENTS)
            .map(|(_, seconds)| seconds)
            .sum();
        let time = clock_gettime(ClockId::ProcessCPUTime);
        #[allow(clippy::cast_precision_loss)]
        let process = time.tv_sec as f64 + time.tv_nsec as f64 / 1e9;
        Some(Self { process, aside })
    }

    /// What others took since then.
    fn beside(self, before: Self) -> f64 {
        (self.process - before.process) - (self.aside - before.aside)
    }
}

/// The name of each thread, with its seconds of processor time, where Linux tells them.
fn threads() -> Option<Vec<(String, f64)>> {
    let mut found = Vec::new();
    for task in fs::read_dir("/proc/self/task").ok()? {
        let folder = task.ok()?.path();
        // One that ends meanwhile is none of ours.
        let (Ok(name), Ok(times)) = (
            fs::read_to_string(folder.join("comm")),
            fs::read_to_string(folder.join("schedstat")),
        ) else {
            continue;
        };
        found.push((name.trim_end().to_owned(), on_core(&times)?));
    }
    (!found.is_empty()).then_some(found)
}

/// The first number of a `schedstat`: nanoseconds on a core.
fn on_core(schedstat: &str) -> Option<f64> {
    let nanos: f64 = schedstat.split_whitespace().next()?.parse().ok()?;
    Some(nanos / 1e9)
}

/// Does something in a thread of this name, and waits for it.
pub(super) fn in_thread<T: Send>(
    name: &str,
    work: impl FnOnce() -> T + Send,
) -> Result<T, Complaint> {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new()
            .name(name.to_owned())
            .spawn_scoped(scope, work)?;
        thread
            .join()
            .map_err(|_| Complaint::Failed(format!("the thread {name} crashed").into()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_clients_and_compute_threads_took_is_left_out() {
        let spent = |process, aside| Spent { process, aside };
        let beside = spent(9.0, 4.0).beside(spent(2.0, 1.0));
        assert!((beside - 4.0).abs() < 1e-9, "{beside}");
        assert_eq!(on_core("2500000000 17 3\n"), Some(2.5));
        assert_eq!(on_core(""), None);
        assert_eq!(on_core("no number"), None);
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn a_thread_is_found_by_its_name() {
        let found = in_thread(CLIENTS, threads).expect("it ends well");
        let named = |name| found.iter().flatten().any(|(found, _)| found == name);
        assert!(named(CLIENTS));
        assert!(!named("nobody-is-called"));
    }
}
