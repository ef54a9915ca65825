//! Tasks that send spans, log records and metrics, each with its own connection.
//!
//! A message is retried with exponential backoff until its timeout, then dropped and counted. Meanwhile the
//! queue fills, and what does not fit is dropped and counted too. The server logs once that a collector fails, and once
//! that it works again.

use super::counters::TelemetryCounters;
use super::queue::ExportQueue;
use super::settings::Signal;
use super::transport::{SendError, Transport};
use bytes::Bytes;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::{Instant, sleep};

/// The first wait before a message is sent again, and the longest.
const FIRST_WAIT: Duration = Duration::from_millis(500);
const MAX_WAIT: Duration = Duration::from_secs(5);

/// A message and the number of spans, records or data points in it.
pub(super) struct ExportMessage {
    pub(super) bytes: Bytes,
    pub(super) count: u64,
}

/// Sends the messages of one signal.
pub(super) struct Exporter {
    transport: Transport,
    counters: Arc<TelemetryCounters>,
    signal: Signal,
    /// Of all attempts.
    timeout: Duration,
    /// True once the server stops.
    stop: watch::Receiver<bool>,
    is_failing: bool,
}

impl Exporter {
    pub(super) fn new(
        transport: Transport,
        counters: Arc<TelemetryCounters>,
        timeout: Duration,
        stop: watch::Receiver<bool>,
    ) -> Self {
        Exporter {
            signal: transport.destination().signal,
            transport,
            counters,
            timeout,
            stop,
            is_failing: false,
        }
    }

    /// Sends what comes into `queue`. Once the server stops, sends the rest and returns.
    pub(super) async fn send_queue<T>(
        mut self,
        queue: Arc<ExportQueue<T>>,
        delay: Duration,
        encode: impl Fn(Vec<T>) -> ExportMessage,
    ) {
        loop {
            let stops = self.wait_for_stop(queue.wait(delay)).await;
            let batch = queue.take();
            if !batch.is_empty() {
                self.send(encode(batch)).await;
            } else if stops {
                return;
            }
        }
    }

    /// Sends the messages that `collect` returns in each interval, and once more when the server stops.
    pub(super) async fn send_periodically(
        mut self,
        interval: Duration,
        collect: impl Fn() -> Vec<ExportMessage>,
    ) {
        loop {
            let stops = self.wait_for_stop(sleep(interval)).await;
            for message in collect() {
                self.send(message).await;
            }
            if stops {
                return;
            }
        }
    }

    /// Waits for `event`, or that the server stops. Returns whether it stops.
    async fn wait_for_stop(&mut self, event: impl Future<Output = ()>) -> bool {
        tokio::select! {
            biased;
            // An error means that nothing is left that could stop it later.
            _ = self.stop.wait_for(|stops| *stops) => true,
            () = event => false,
        }
    }

    async fn send(&mut self, message: ExportMessage) {
        let deadline = Instant::now() + self.timeout;
        let mut wait = FIRST_WAIT;
        loop {
            let error = match self.transport.send(&message.bytes).await {
                Ok(rejected) => {
                    let lost = rejected.count.min(message.count);
                    self.counters.exported(self.signal, message.count - lost);
                    self.counters.dropped(self.signal, lost);
                    self.works(&rejected.reason);
                    return;
                }
                Err(error) => error,
            };
            self.fails(&error);
            let pause = error.retry_after.unwrap_or(wait);
            let is_last = !error.can_retry || *self.stop.borrow();
            if is_last || Instant::now() + pause >= deadline {
                self.counters.dropped(self.signal, message.count);
                return;
            }
            // After a stop there is one last attempt.
            self.wait_for_stop(sleep(pause)).await;
            wait = (wait * 2).min(MAX_WAIT);
        }
    }

    fn works(&mut self, rejection: &str) {
        let signal = self.signal.name();
        if !rejection.is_empty() {
            tracing::debug!(signal, rejection, "the collector did not take everything");
        }
        if std::mem::take(&mut self.is_failing) {
            tracing::info!(signal, "the collector of telemetry takes {signal} again");
        }
    }

    fn fails(&mut self, error: &SendError) {
        let (signal, reason) = (self.signal.name(), &error.reason);
        if !std::mem::replace(&mut self.is_failing, true) {
            let authority = self.transport.destination().uri.authority();
            let collector = authority.map_or("", |authority| authority.as_str());
            tracing::warn!(
                collector,
                reason,
                "{signal} cannot be sent to the collector; what does not fit into the queue is dropped and counted in \
                 corral_telemetry_dropped_total"
            );
        } else {
            tracing::debug!(signal, reason, "the collector still fails");
        }
    }
}
