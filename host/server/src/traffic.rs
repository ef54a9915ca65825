//! What the server itself counts: connections, requests, answers.

use crate::metrics_text::Families;
use corral_engine::Kind;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Answers have statuses from 100 to 599.
const STATUSES: std::ops::Range<u16> = 100..600;

/// Why the server ended a connection, or a stream of one, that its client would have kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// Its address has too many connections.
    AddressFull,
    /// The TLS handshake failed or took too long.
    Handshake,
    /// The head of a request took too long.
    HeadTime,
    /// The client did not read its answer.
    Stalled,
    /// Nothing went on for a while; HTTP/1 counts that as `HeadTime`.
    Idle,
    /// Too many requests were given up before their answer.
    Resets,
}

impl End {
    const ALL: [End; 6] = [
        End::AddressFull,
        End::Handshake,
        End::HeadTime,
        End::Stalled,
        End::Idle,
        End::Resets,
    ];

    fn name(self) -> &'static str {
        match self {
            End::AddressFull => "address-full",
            End::Handshake => "handshake",
            End::HeadTime => "head-time",
            End::Stalled => "stalled",
            End::Idle => "idle",
            End::Resets => "resets",
        }
    }
}

/// Counters of the public listener. Relaxed: each is a fact of its own, read for display.
#[derive(Debug)]
pub(crate) struct Traffic {
    connections_open: AtomicU64,
    connections: AtomicU64,
    in_flight: AtomicU64,
    cut: AtomicU64,
    ended: [AtomicU64; End::ALL.len()],
    answers: Vec<AtomicU64>,
}

impl Default for Traffic {
    fn default() -> Self {
        Traffic {
            connections_open: AtomicU64::new(0),
            connections: AtomicU64::new(0),
            in_flight: AtomicU64::new(0),
            cut: AtomicU64::new(0),
            ended: Default::default(),
            answers: STATUSES.map(|_| AtomicU64::new(0)).collect(),
        }
    }
}

impl Traffic {
    /// Counts a connection until the guard is dropped.
    pub(crate) fn connection(self: &Arc<Self>) -> Open {
        self.connections.fetch_add(1, Ordering::Relaxed);
        Open::new(self, |traffic| &traffic.connections_open)
    }

    /// Counts a request until the guard is dropped.
    pub(crate) fn request(self: &Arc<Self>) -> Open {
        Open::new(self, |traffic| &traffic.in_flight)
    }

    /// Counts an answer's head.
    pub(crate) fn answered(&self, status: http::StatusCode) {
        let at = status.as_u16().checked_sub(STATUSES.start);
        if let Some(count) = at.and_then(|at| self.answers.get(usize::from(at))) {
            count.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Counts an exchange that did not reach its end: the client went away or the body failed.
    pub(crate) fn cut(&self) {
        self.cut.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a connection that the server ended.
    pub(crate) fn ended(&self, end: End) {
        self.ended[end as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// Writes everything to `families`.
    pub(crate) fn write(&self, families: &mut Families) {
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed) as f64;
        families.sample(
            "corral_http_connections",
            "Open connections of the public listener.",
            Kind::Gauge,
            &[],
            read(&self.connections_open),
        );
        families.sample(
            "corral_http_connections_total",
            "Connections that the public listener accepted.",
            Kind::Counter,
            &[],
            read(&self.connections),
        );
        families.sample(
            "corral_http_requests_in_flight",
            "Requests whose answer has not been sent to its end.",
            Kind::Gauge,
            &[],
            read(&self.in_flight),
        );
        families.sample(
            "corral_http_requests_aborted_total",
            "Requests that ended early: the client went away, or the plugin failed while it answered.",
            Kind::Counter,
            &[],
            read(&self.cut),
        );
        for (end, count) in End::ALL.into_iter().zip(&self.ended) {
            families.sample(
                "corral_http_terminations_total",
                "Connections, and streams of HTTP/2, that the server ended against their client, by reason.",
                Kind::Counter,
                &[("reason", end.name())],
                read(count),
            );
        }
        for (status, count) in STATUSES.zip(&self.answers) {
            let count = read(count);
            if count > 0.0 {
                families.sample(
                    "corral_http_responses_total",
                    "Answers of the public listener by status.",
                    Kind::Counter,
                    &[("status", &status.to_string())],
                    count,
                );
            }
        }
    }
}

/// Something that is counted while it lasts.
#[derive(Debug)]
pub(crate) struct Open {
    traffic: Arc<Traffic>,
    count: fn(&Traffic) -> &AtomicU64,
}

impl Open {
    fn new(traffic: &Arc<Traffic>, count: fn(&Traffic) -> &AtomicU64) -> Self {
        count(traffic).fetch_add(1, Ordering::Relaxed);
        Open {
            traffic: traffic.clone(),
            count,
        }
    }

    /// Whose counter it is.
    pub(crate) fn traffic(&self) -> &Traffic {
        &self.traffic
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        (self.count)(&self.traffic).fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_open_is_counted_while_it_lasts() {
        let traffic = Arc::new(Traffic::default());
        let line = |name: &str| {
            let mut families = Families::default();
            traffic.write(&mut families);
            let text = families.text();
            let value = text
                .lines()
                .find_map(|line| line.strip_prefix(name)?.strip_prefix(' '))
                .map(str::to_owned);
            value.expect(name)
        };
        let one = traffic.request();
        let two = traffic.request();
        assert_eq!(line("corral_http_requests_in_flight"), "2");
        drop((one, two));
        assert_eq!(line("corral_http_requests_in_flight"), "0");
        traffic.answered(http::StatusCode::OK);
        traffic.answered(http::StatusCode::OK);
        assert_eq!(line("corral_http_responses_total{status=\"200\"}"), "2");
        for (at, end) in End::ALL.into_iter().enumerate() {
            assert_eq!(end as usize, at);
        }
        traffic.ended(End::Stalled);
        assert_eq!(
            line("corral_http_terminations_total{reason=\"stalled\"}"),
            "1"
        );
        drop(traffic.connection());
        assert_eq!(line("corral_http_connections"), "0");
        assert_eq!(line("corral_http_connections_total"), "1");
    }
}
