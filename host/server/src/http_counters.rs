//! Counters of the public listener: connections, requests, responses; and of the requests of each deployment.

use crate::prometheus::MetricFamilies;
use corral_engine::{Histogram, MetricKind, REQUEST_SECONDS, histogram_names};
use http::StatusCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use strum::{IntoStaticStr, VariantArray};

/// Range of HTTP statuses.
const STATUSES: std::ops::Range<u16> = 100..600;

/// Why the server ended a connection or a stream that the client would have kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "kebab-case")]
pub(crate) enum TerminationReason {
    /// The client address has too many connections.
    AddressFull,
    /// The TLS handshake failed or took too long.
    Handshake,
    /// The header of a request took too long. Includes idle HTTP/1 connections.
    HeaderTimeout,
    /// The client did not read its response.
    WriteTimeout,
    /// The HTTP/2 connection was idle.
    Idle,
    /// The client reset too many requests before their response.
    Resets,
}

/// Counts of responses by status.
#[derive(Debug)]
struct StatusCounts(Box<[AtomicU64]>);

impl Default for StatusCounts {
    fn default() -> Self {
        StatusCounts(STATUSES.map(|_| AtomicU64::new(0)).collect())
    }
}

impl StatusCounts {
    fn count(&self, status: StatusCode) {
        let at = status.as_u16().checked_sub(STATUSES.start);
        if let Some(count) = at.and_then(|at| self.0.get(usize::from(at))) {
            count.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// The statuses that were counted, with their counts.
    fn nonzero(&self) -> impl Iterator<Item = (String, f64)> {
        let counts = self.0.iter().map(|count| count.load(Ordering::Relaxed));
        let counts = STATUSES.zip(counts).filter(|(_, count)| *count > 0);
        counts.map(|(status, count)| (status.to_string(), count as f64))
    }
}

/// Counters of one deployment's HTTP requests.
#[derive(Debug)]
pub(crate) struct DeploymentHttpCounters {
    responses: StatusCounts,
    duration: Histogram,
}

impl Default for DeploymentHttpCounters {
    fn default() -> Self {
        DeploymentHttpCounters {
            responses: StatusCounts::default(),
            duration: Histogram::new(&REQUEST_SECONDS),
        }
    }
}

impl DeploymentHttpCounters {
    /// Counts a response.
    pub(crate) fn count_response(&self, status: StatusCode) {
        self.responses.count(status);
    }

    /// Counts a request that ended, `time` after its arrival.
    pub(crate) fn request_ended(&self, time: Duration) {
        self.duration.observe(time.as_secs_f64());
    }

    /// Writes all counters of the deployment `name` to `families`.
    pub(crate) fn write(&self, name: &str, families: &mut MetricFamilies) {
        for (status, count) in self.responses.nonzero() {
            families.sample(
                "corral_deployment_responses_total",
                "Responses, by deployment and status.",
                MetricKind::Counter,
                &[("deployment", name), ("status", &status)],
                count,
            );
        }
        let mut samples = Vec::new();
        self.duration.append_samples(
            histogram_names!("corral_deployment_request_duration_seconds"),
            "Seconds from the head of an HTTP request to the end of its response, by deployment.",
            &mut samples,
        );
        for sample in samples {
            families.metric(&sample, &[("deployment", name)]);
        }
    }
}

/// Counters of the public listener. All use relaxed ordering: each is read on its own, for display.
#[derive(Debug, Default)]
pub(crate) struct HttpCounters {
    connections_open: AtomicU64,
    connections: AtomicU64,
    accept_errors: AtomicU64,
    in_flight: AtomicU64,
    aborted: AtomicU64,
    canceled: AtomicU64,
    unsent_bytes: AtomicU64,
    terminations: [AtomicU64; TerminationReason::VARIANTS.len()],
    responses: StatusCounts,
}

impl HttpCounters {
    /// Counts a connection, as open until the guard is dropped.
    pub(crate) fn count_connection(self: &Arc<Self>) -> CounterGuard {
        self.connections.fetch_add(1, Ordering::Relaxed);
        CounterGuard::new(self, 1, |counters| &counters.connections_open)
    }

    /// Counts a connection that could not be accepted.
    pub(crate) fn count_accept_error(&self) {
        self.accept_errors.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a request as in flight until the guard is dropped.
    pub(crate) fn count_request(self: &Arc<Self>) -> CounterGuard {
        CounterGuard::new(self, 1, |counters| &counters.in_flight)
    }

    /// Counts bytes of a response as unsent until the guard is dropped.
    pub(crate) fn count_unsent(self: &Arc<Self>, bytes: usize) -> CounterGuard {
        CounterGuard::new(self, bytes as u64, |counters| &counters.unsent_bytes)
    }

    /// Counts a response by its status.
    pub(crate) fn count_response(&self, status: StatusCode) {
        self.responses.count(status);
    }

    /// Counts a request whose response was not sent to its end.
    pub(crate) fn count_aborted(&self) {
        self.aborted.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a request that an operator canceled.
    pub(crate) fn count_canceled(&self) {
        self.canceled.fetch_add(1, Ordering::Relaxed);
    }

    /// Requests whose response has not been sent to its end.
    pub(crate) fn in_flight(&self) -> u64 {
        self.in_flight.load(Ordering::Relaxed)
    }

    /// Open connections.
    pub(crate) fn connections_open(&self) -> u64 {
        self.connections_open.load(Ordering::Relaxed)
    }

    /// Responses by status.
    pub(crate) fn responses(&self) -> impl Iterator<Item = (String, f64)> {
        self.responses.nonzero()
    }

    /// Counts a connection or stream that the server ended.
    pub(crate) fn count_termination(&self, reason: TerminationReason) {
        self.terminations[reason as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// Writes all counters to `families`.
    pub(crate) fn write(&self, families: &mut MetricFamilies) {
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed) as f64;
        for (name, help, kind, count) in [
            (
                "corral_http_connections",
                "Open connections of the public listener.",
                MetricKind::Gauge,
                &self.connections_open,
            ),
            (
                "corral_http_connections_total",
                "Connections that the public listener accepted.",
                MetricKind::Counter,
                &self.connections,
            ),
            (
                "corral_http_accept_errors_total",
                "Attempts to accept a connection that failed, usually for too many open files.",
                MetricKind::Counter,
                &self.accept_errors,
            ),
            (
                "corral_http_requests_in_flight",
                "Requests whose response has not been sent to its end.",
                MetricKind::Gauge,
                &self.in_flight,
            ),
            (
                "corral_http_requests_aborted_total",
                "Requests that ended early: the client disconnected, or the plugin failed or was canceled during its response.",
                MetricKind::Counter,
                &self.aborted,
            ),
            (
                "corral_http_requests_canceled_total",
                "Requests that an operator canceled.",
                MetricKind::Counter,
                &self.canceled,
            ),
            (
                "corral_http_unsent_bytes",
                "Bytes of responses that wait in the server until their clients read them.",
                MetricKind::Gauge,
                &self.unsent_bytes,
            ),
        ] {
            families.sample(name, help, kind, &[], read(count));
        }
        let reasons = TerminationReason::VARIANTS.iter();
        for (reason, count) in reasons.zip(&self.terminations) {
            families.sample(
                "corral_http_terminations_total",
                "Connections and HTTP/2 streams that the server terminated, by reason.",
                MetricKind::Counter,
                &[("reason", reason.into())],
                read(count),
            );
        }
        for (status, count) in self.responses.nonzero() {
            families.sample(
                "corral_http_responses_total",
                "Responses of the public listener, by status.",
                MetricKind::Counter,
                &[("status", &status)],
                count,
            );
        }
    }
}

/// Lowers a gauge when dropped, by as much as it raised it.
#[derive(Debug)]
pub(crate) struct CounterGuard {
    counters: Arc<HttpCounters>,
    amount: u64,
    gauge: fn(&HttpCounters) -> &AtomicU64,
}

impl CounterGuard {
    fn new(
        counters: &Arc<HttpCounters>,
        amount: u64,
        gauge: fn(&HttpCounters) -> &AtomicU64,
    ) -> Self {
        gauge(counters).fetch_add(amount, Ordering::Relaxed);
        CounterGuard {
            counters: counters.clone(),
            amount,
            gauge,
        }
    }

    pub(crate) fn counters(&self) -> &HttpCounters {
        &self.counters
    }
}

impl Drop for CounterGuard {
    fn drop(&mut self) {
        (self.gauge)(&self.counters).fetch_sub(self.amount, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gauges_count_until_guard_drops() {
        let counters = Arc::new(HttpCounters::default());
        let line = |name: &str| {
            let mut families = MetricFamilies::default();
            counters.write(&mut families);
            let text = families.text();
            let value = text
                .lines()
                .find_map(|line| line.strip_prefix(name)?.strip_prefix(' '))
                .map(str::to_owned);
            value.expect(name)
        };
        let one = counters.count_request();
        let two = counters.count_request();
        assert_eq!(line("corral_http_requests_in_flight"), "2");
        drop((one, two));
        assert_eq!(line("corral_http_requests_in_flight"), "0");
        let (one, two) = (counters.count_unsent(5), counters.count_unsent(7));
        assert_eq!(line("corral_http_unsent_bytes"), "12");
        drop(one);
        assert_eq!(line("corral_http_unsent_bytes"), "7");
        drop(two);
        assert_eq!(line("corral_http_unsent_bytes"), "0");
        counters.count_response(http::StatusCode::OK);
        counters.count_response(http::StatusCode::OK);
        assert_eq!(line("corral_http_responses_total{status=\"200\"}"), "2");
        for (at, reason) in TerminationReason::VARIANTS.iter().enumerate() {
            assert_eq!(*reason as usize, at);
        }
        counters.count_termination(TerminationReason::WriteTimeout);
        assert_eq!(
            line("corral_http_terminations_total{reason=\"write-timeout\"}"),
            "1"
        );
        drop(counters.count_connection());
        assert_eq!(line("corral_http_connections"), "0");
        assert_eq!(line("corral_http_connections_total"), "1");
    }
}
