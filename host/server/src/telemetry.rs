//! Telemetry for OpenTelemetry collectors: traces, metrics and logs over OTLP.
//!
//! Off unless an endpoint is set. A request carries an optional [`RequestTrace`]; the runtime and the engine report times
//! to it, and a task makes spans of them ([`spans`]). Metrics are those of `/metrics`. Log lines come from a layer of the
//! log's subscriber. *Invariants*: no request waits for a collector; every queue is bounded, and what is lost is counted;
//! no body, header or query is recorded, so no prompt and no key is.
//!
//! The message types and the sampler are OpenTelemetry's own crates. Its exporter is not used: it cannot send the
//! histograms of an existing registry, counts no losses and reads no certificate.

mod attribute;
mod context;
mod counters;
mod exporter;
mod logs;
mod metrics;
mod queue;
mod request_trace;
mod resource;
mod settings;
mod spans;
mod transport;

pub(crate) use counters::TelemetryCounters;
pub use logs::{LogEvent, LogValue};
pub(crate) use request_trace::{HttpRecord, JobAttempt, RequestTrace, TraceCaller};
pub use settings::{TelemetryOptions, TelemetrySettings, TelemetrySettingsError};
pub use transport::CollectorTls;

use crate::clock::now;
use crate::prometheus::MetricFamilies;
use bytes::Bytes;
use exporter::{ExportMessage, Exporter};
use http::Request;
use opentelemetry_proto::tonic::collector::logs::v1::ExportLogsServiceRequest;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::logs::v1::{ResourceLogs, ScopeLogs};
use opentelemetry_proto::tonic::resource::v1::Resource;
use opentelemetry_proto::tonic::trace::v1::{ResourceSpans, ScopeSpans, Span};
use opentelemetry_sdk::trace::Sampler;
use prost::Message;
use queue::ExportQueue;
use request_trace::FinishedTrace;
use resource::scope;
use settings::Signal;
use spans::nanos;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::JoinSet;
use transport::Transport;

/// Most bytes of log records that wait.
const MAX_LOG_BYTES: usize = 4 << 20;
/// Most bytes that wait for each span that may wait: 8 MiB with the default queue. A usual span has some 500.
const MAX_BYTES_PER_SPAN: usize = 4 << 10;
/// Most bytes of a message, unless a single trace or metric has more. Collectors take 4 MiB over gRPC by default; the rest is for
/// the resource and the lengths of fields.
const MAX_MESSAGE_BYTES: usize = 3 << 20;

/// Collects telemetry, and sends it once it is [started](Telemetry::start).
pub struct Telemetry {
    settings: TelemetrySettings,
    tls: CollectorTls,
    sampler: Sampler,
    counters: Arc<TelemetryCounters>,
    /// `None` if traces are not sent.
    traces: Option<Arc<ExportQueue<FinishedTrace>>>,
    /// `None` if logs are not sent.
    logs: Option<Arc<ExportQueue<LogEvent>>>,
    stop: watch::Sender<bool>,
    tasks: Mutex<JoinSet<()>>,
}

impl fmt::Debug for Telemetry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Telemetry").field(&self.settings).finish()
    }
}

impl Telemetry {
    /// Telemetry that is collected from now on, within its bounds.
    pub fn new(settings: TelemetrySettings, tls: CollectorTls) -> Arc<Self> {
        let (spans, logs) = (settings.spans, settings.logs);
        let is_sent = |signal| settings.destination(signal).is_some();
        let traces = is_sent(Signal::Traces).then(|| {
            ExportQueue::new(
                spans.max_queue,
                spans.max_batch,
                spans.max_queue * MAX_BYTES_PER_SPAN,
                MAX_MESSAGE_BYTES,
            )
        });
        let logs = is_sent(Signal::Logs).then(|| {
            ExportQueue::new(
                logs.max_queue,
                logs.max_batch,
                MAX_LOG_BYTES,
                MAX_MESSAGE_BYTES,
            )
        });
        Arc::new(Telemetry {
            sampler: settings.sampler.clone(),
            counters: Arc::default(),
            traces: traces.map(Arc::new),
            logs: logs.map(Arc::new),
            stop: watch::Sender::new(false),
            tasks: Mutex::default(),
            tls,
            settings,
        })
    }

    /// What is sent, and how.
    pub fn settings(&self) -> &TelemetrySettings {
        &self.settings
    }

    pub(crate) fn counters(&self) -> &Arc<TelemetryCounters> {
        &self.counters
    }

    /// Whether log lines are sent.
    pub fn sends_logs(&self) -> bool {
        self.logs.is_some()
    }

    /// Sends a line of the log.
    pub fn log(&self, event: LogEvent) {
        let Some(logs) = &self.logs else {
            return;
        };
        let bytes = event.bytes();
        if !logs.push(event, 1, bytes) {
            self.counters.dropped(Signal::Logs, 1);
        }
    }

    /// The trace of a request, if traces are sent.
    pub(crate) fn trace_request<B>(
        self: &Arc<Self>,
        request: &Request<B>,
    ) -> Option<Arc<RequestTrace>> {
        self.traces.as_ref()?;
        Some(RequestTrace::of_request(self, request))
    }

    /// The trace of a job's attempt, if traces are sent.
    pub(crate) fn trace_job(
        self: &Arc<Self>,
        job: impl FnOnce() -> JobAttempt,
    ) -> Option<Arc<RequestTrace>> {
        self.traces.as_ref()?;
        Some(RequestTrace::of_job(self, job()))
    }

    fn add_trace(&self, trace: FinishedTrace) {
        let (count, lost) = (trace.span_count(), trace.records.dropped);
        let bytes = trace.byte_count();
        let is_queued = self
            .traces
            .as_ref()
            .is_some_and(|traces| traces.push(trace, count, bytes));
        let lost = if is_queued { lost } else { lost + count as u64 };
        self.counters.dropped(Signal::Traces, lost);
    }

    /// Starts to send; `metrics` returns all metrics. Must be called inside a tokio runtime, once.
    pub(crate) fn start(&self, metrics: impl Fn() -> MetricFamilies + Send + Sync + 'static) {
        let settings = &self.settings;
        let mut tasks = self.tasks.lock().unwrap_or_else(PoisonError::into_inner);
        let resource = settings.resource.clone();
        if let (Some(queue), Some(exporter)) = (
            &self.traces,
            self.exporter(Signal::Traces, settings.spans.timeout),
        ) {
            let resource = resource.clone();
            let encode = move |batch: Vec<FinishedTrace>| encode_traces(batch, &resource);
            tasks.spawn(exporter.send_queue(Arc::clone(queue), settings.spans.delay, encode));
        }
        if let (Some(queue), Some(exporter)) = (
            &self.logs,
            self.exporter(Signal::Logs, settings.logs.timeout),
        ) {
            let resource = resource.clone();
            let encode = move |batch: Vec<LogEvent>| encode_logs(batch, &resource);
            tasks.spawn(exporter.send_queue(Arc::clone(queue), settings.logs.delay, encode));
        }
        if let Some(exporter) = self.exporter(Signal::Metrics, settings.metrics_timeout) {
            let started = nanos(now());
            let collect =
                move || metrics::encode(&metrics(), started, &resource, MAX_MESSAGE_BYTES);
            tasks.spawn(exporter.send_periodically(settings.metrics_interval, collect));
        }
    }

    fn exporter(&self, signal: Signal, timeout: Duration) -> Option<Exporter> {
        let destination = self.settings.destination(signal)?.clone();
        Some(Exporter::new(
            Transport::new(destination, self.tls),
            Arc::clone(&self.counters),
            timeout,
            self.stop.subscribe(),
        ))
    }

    /// Sends what is left, no longer than `time`. Returns whether everything was sent or counted.
    pub async fn shut_down(&self, time: Duration) -> bool {
        self.stop.send_replace(true);
        let mut tasks = {
            let mut tasks = self.tasks.lock().unwrap_or_else(PoisonError::into_inner);
            std::mem::take(&mut *tasks)
        };
        let ended = async { while tasks.join_next().await.is_some() {} };
        tokio::time::timeout(time, ended).await.is_ok()
    }
}

fn encode_traces(batch: Vec<FinishedTrace>, resource: &Resource) -> ExportMessage {
    let spans: Vec<Span> = batch.into_iter().flat_map(FinishedTrace::spans).collect();
    let count = spans.len() as u64;
    let scope_spans = ScopeSpans {
        scope: Some(scope()),
        spans,
        ..ScopeSpans::default()
    };
    let resource_spans = ResourceSpans {
        resource: Some(resource.clone()),
        scope_spans: vec![scope_spans],
        ..ResourceSpans::default()
    };
    message(
        &ExportTraceServiceRequest {
            resource_spans: vec![resource_spans],
        },
        count,
    )
}

fn encode_logs(batch: Vec<LogEvent>, resource: &Resource) -> ExportMessage {
    let count = batch.len() as u64;
    let scope_logs = ScopeLogs {
        scope: Some(scope()),
        log_records: batch.into_iter().map(LogEvent::into_record).collect(),
        ..ScopeLogs::default()
    };
    let resource_logs = ResourceLogs {
        resource: Some(resource.clone()),
        scope_logs: vec![scope_logs],
        ..ResourceLogs::default()
    };
    message(
        &ExportLogsServiceRequest {
            resource_logs: vec![resource_logs],
        },
        count,
    )
}

fn message(message: &impl Message, count: u64) -> ExportMessage {
    ExportMessage {
        bytes: Bytes::from(message.encode_to_vec()),
        count,
    }
}
