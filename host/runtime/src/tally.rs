//! What is counted of one deployment, over all its revisions: its calls now, which of its limits
//! stopped how many, and what goes between its plugins and the host.

use corral_engine::{Error, Kind, Metric};
use std::sync::atomic::{AtomicU64, Ordering};

/// What can stop a call, beside the quotas. Tokens and requests per time are [`Limit`](crate::Limit)s.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bound {
    /// [`Limits::memory`](crate::Limits::memory)
    Memory,
    /// [`Limits::cpu`](crate::Limits::cpu)
    Cpu,
    /// [`Limits::time`](crate::Limits::time)
    Time,
    /// [`Limits::request_bytes`](crate::Limits::request_bytes)
    Request,
    /// [`Limits::response_bytes`](crate::Limits::response_bytes)
    Response,
    /// [`Limits::concurrent`](crate::Limits::concurrent): nobody may wait, or the call's time was over
    /// before it had a place.
    Concurrent,
    /// [`Limits::queue`](crate::Limits::queue)
    Queue,
    /// [`Limits::queue_time`](crate::Limits::queue_time)
    QueueTime,
    /// [`Limits::cells_percent`](crate::Limits::cells_percent)
    Cells,
    /// [`Settings::instances`](crate::Settings::instances), which all deployments share.
    Pool,
}

impl Bound {
    /// All of them.
    pub const ALL: [Self; 10] = [
        Self::Memory,
        Self::Cpu,
        Self::Time,
        Self::Request,
        Self::Response,
        Self::Concurrent,
        Self::Queue,
        Self::QueueTime,
        Self::Cells,
        Self::Pool,
    ];

    /// Its name in manifests and metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Memory => "memory-mib",
            Self::Cpu => "cpu-seconds",
            Self::Time => "time-seconds",
            Self::Request => "request-kib",
            Self::Response => "response-kib",
            Self::Concurrent => "concurrent",
            Self::Queue => "queue",
            Self::QueueTime => "queue-seconds",
            Self::Cells => "cells-percent",
            Self::Pool => "pool",
        }
    }
}

/// The counters of one deployment.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    running: AtomicU64,
    waiting: AtomicU64,
    tripped: [AtomicU64; Bound::ALL.len()],
    polls: AtomicU64,
    host_calls: AtomicU64,
    looks: AtomicU64,
    chunks: AtomicU64,
    frames: AtomicU64,
    bytes: AtomicU64,
    growths: AtomicU64,
}

impl Tally {
    /// A call has a place from now on.
    pub(crate) fn run_began(&self) {
        self.running.fetch_add(1, Ordering::Relaxed);
    }

    /// Its place is free again.
    pub(crate) fn run_ended(&self) {
        self.running.fetch_sub(1, Ordering::Relaxed);
    }

    /// A call began to wait for a place.
    pub(crate) fn wait_began(&self) {
        self.waiting.fetch_add(1, Ordering::Relaxed);
    }

    /// A call no longer waits.
    pub(crate) fn wait_ended(&self) {
        self.waiting.fetch_sub(1, Ordering::Relaxed);
    }

    /// A call, or a generation, was stopped by `bound`.
    pub(crate) fn trip(&self, bound: Bound) {
        self.tripped[bound as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// A call was polled: it began, or something woke it, and not in the midst of a short poll (`again.rs`).
    pub(crate) fn polled(&self) {
        self.polls.fetch_add(1, Ordering::Relaxed);
    }

    /// A plugin called a function of `corral:inference`; one that waits may say so several times.
    pub(crate) fn called(&self) {
        self.host_calls.fetch_add(1, Ordering::Relaxed);
    }

    /// It was looked for the next chunk of a generation: a plugin asks, or was woken for it; or a connection, where the
    /// host hands it on.
    pub(crate) fn looked(&self) {
        self.looks.fetch_add(1, Ordering::Relaxed);
    }

    /// There was one.
    pub(crate) fn read(&self) {
        self.chunks.fetch_add(1, Ordering::Relaxed);
    }

    /// A frame of an answer went to its client.
    pub(crate) fn sent(&self, bytes: u64) {
        self.frames.fetch_add(1, Ordering::Relaxed);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// A memory of a plugin became larger than it was made.
    pub(crate) fn grew(&self) {
        self.growths.fetch_add(1, Ordering::Relaxed);
    }

    /// Takes note of what an engine said at once about a sequence that may have so many positions in its
    /// model: where it says fewer, it means the deployment's share.
    pub(crate) fn begun<T>(&self, result: Result<T, Error>, context: u32) -> Result<T, Error> {
        if matches!(result, Err(Error::ContextFull { limit, .. }) if limit < context) {
            self.trip(Bound::Cells);
        }
        result
    }

    /// Takes note of how a wait for an engine ended.
    pub(crate) fn ended<T>(&self, result: Result<T, Error>) -> Result<T, Error> {
        if matches!(result, Err(Error::Overdue { .. })) {
            self.trip(Bound::QueueTime);
        }
        result
    }

    /// How often each bound stopped somebody.
    pub(crate) fn tripped(&self) -> impl Iterator<Item = (Bound, u64)> {
        let counts = Bound::ALL.into_iter().zip(&self.tripped);
        counts.map(|(bound, count)| (bound, count.load(Ordering::Relaxed)))
    }

    /// How many calls there are now.
    pub(crate) fn gauges(&self) -> [Metric; 2] {
        let gauge = |name, help, value| metric(name, help, Kind::Gauge, value);
        [
            gauge(
                "corral_deployment_calls_running",
                "Calls that have a place, by deployment.",
                &self.running,
            ),
            gauge(
                "corral_deployment_calls_waiting",
                "Calls that wait for a place, by deployment.",
                &self.waiting,
            ),
        ]
    }

    /// What went between its plugins and the host. Tests hold it against the tokens that came of it.
    pub(crate) fn counts(&self) -> [Metric; 7] {
        let count = |name, help, value| metric(name, help, Kind::Counter, value);
        [
            count(
                "corral_deployment_guest_polls_total",
                "Times that calls of plugins were woken to go on, by deployment.",
                &self.polls,
            ),
            count(
                "corral_deployment_host_calls_total",
                "Calls of corral:inference by plugins; one that waits may count several times; by deployment.",
                &self.host_calls,
            ),
            count(
                "corral_deployment_generation_polls_total",
                "Times that it was looked for more of a generation: its plugin asked, or was woken for it, or the connection that the host hands it on to; by deployment.",
                &self.looks,
            ),
            count(
                "corral_deployment_generation_chunks_total",
                "Pieces of generations that plugins read or the host handed on, each of a token or several, by deployment.",
                &self.chunks,
            ),
            count(
                "corral_deployment_response_frames_total",
                "Pieces of answers that plugins sent, by deployment.",
                &self.frames,
            ),
            count(
                "corral_deployment_response_bytes_total",
                "Bytes of answers that plugins sent, by deployment.",
                &self.bytes,
            ),
            count(
                "corral_deployment_memory_growths_total",
                "Times that memories of plugins became larger than they were made, which takes the system's help, by deployment.",
                &self.growths,
            ),
        ]
    }
}

fn metric(name: &'static str, help: &'static str, kind: Kind, value: &AtomicU64) -> Metric {
    Metric {
        name,
        help,
        kind,
        labels: Vec::new(),
        #[allow(clippy::cast_precision_loss)]
        value: value.load(Ordering::Relaxed) as f64,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn every_bound_has_a_count_of_its_own() {
        let tally = Tally::default();
        for (times, bound) in Bound::ALL.into_iter().enumerate() {
            (0..times).for_each(|_| tally.trip(bound));
        }
        let expected = Bound::ALL.into_iter().zip(0..);
        assert!(tally.tripped().eq(expected));
    }

    #[test]
    fn what_goes_to_and_fro_is_counted_apart() {
        let tally = Tally::default();
        (0..7).for_each(|_| tally.polled());
        tally.called();
        (0..2).for_each(|_| tally.looked());
        (0..3).for_each(|_| tally.read());
        (0..4).for_each(|_| tally.sent(10));
        (0..5).for_each(|_| tally.grew());
        let counts = tally.counts().map(|metric| metric.value);
        assert_eq!(counts, [7.0, 1.0, 2.0, 3.0, 4.0, 40.0, 5.0]);
    }

    #[test]
    fn who_waited_too_long_is_counted_and_who_was_refused_at_once_is_not() {
        let tally = Tally::default();
        let (reason, retry_after) = (String::new(), Duration::ZERO);
        let refused = Error::Refused {
            reason: reason.clone(),
            retry_after,
        };
        let overdue = Error::Overdue {
            reason,
            retry_after,
        };
        for (result, count) in [
            (Ok(()), 0),
            (Err(Error::Deadline), 0),
            (Err(refused), 0),
            (Err(overdue), 1),
        ] {
            let said = format!("{result:?}");
            let _ = tally.ended(result);
            let sum: u64 = tally.tripped().map(|(_, count)| count).sum();
            assert_eq!(sum, count, "{said}");
        }
    }

    #[test]
    fn a_text_is_too_long_for_its_share_or_for_the_model() {
        let tally = Tally::default();
        let full = |limit| Err::<(), _>(Error::ContextFull { needed: 9, limit });
        let _ = (tally.begun(full(8), 8), tally.begun(Ok(()), 8));
        assert!(tally.tripped().all(|(_, count)| count == 0));
        let _ = tally.begun(full(7), 8);
        let tripped: Vec<_> = tally.tripped().filter(|(_, count)| *count > 0).collect();
        assert_eq!(tripped, [(Bound::Cells, 1)]);
    }
}
