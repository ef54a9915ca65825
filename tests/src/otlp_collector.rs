//! An OpenTelemetry collector that keeps what it gets. Over gRPC it is the service that `tonic` generates from
//! OpenTelemetry's own definitions.

use crate::upstream::listen;
use crate::{Identity, wait_for};
use bytes::Bytes;
use http::{HeaderMap, Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use opentelemetry_proto::tonic::collector::logs::v1::logs_service_server::{
    LogsService, LogsServiceServer,
};
use opentelemetry_proto::tonic::collector::logs::v1::{
    ExportLogsServiceRequest, ExportLogsServiceResponse,
};
use opentelemetry_proto::tonic::collector::metrics::v1::metrics_service_server::{
    MetricsService, MetricsServiceServer,
};
use opentelemetry_proto::tonic::collector::metrics::v1::{
    ExportMetricsServiceRequest, ExportMetricsServiceResponse,
};
use opentelemetry_proto::tonic::collector::trace::v1::trace_service_server::{
    TraceService, TraceServiceServer,
};
use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTraceServiceRequest, ExportTraceServiceResponse,
};
use opentelemetry_proto::tonic::common::v1::KeyValue;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::logs::v1::LogRecord;
use opentelemetry_proto::tonic::metrics::v1::Metric;
use opentelemetry_proto::tonic::trace::v1::Span;
use prost::Message;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::TlsAcceptor;
use tonic::codegen::Service;
use tonic::{Response as GrpcResponse, Status};

/// A collector on a free port of 127.0.0.1. Its thread ends with the process.
pub struct Collector {
    address: SocketAddr,
    scheme: &'static str,
    is_grpc: bool,
    received: Arc<Received>,
}

/// What a collector got.
#[derive(Default)]
struct Received {
    spans: Mutex<Vec<Span>>,
    metrics: Mutex<Vec<Metric>>,
    logs: Mutex<Vec<LogRecord>>,
    /// Headers of all messages.
    headers: Mutex<Vec<HeaderMap>>,
    /// Attributes of the resource of all messages.
    resources: Mutex<Vec<Vec<KeyValue>>>,
}

fn lock<T>(kept: &Mutex<T>) -> MutexGuard<'_, T> {
    kept.lock().expect("no panic while held")
}

impl Received {
    fn add_traces(&self, request: ExportTraceServiceRequest) {
        for of_resource in request.resource_spans {
            let resource = of_resource.resource.expect("a resource");
            lock(&self.resources).push(resource.attributes);
            let scopes = of_resource.scope_spans.into_iter();
            lock(&self.spans).extend(scopes.flat_map(|scope| scope.spans));
        }
    }

    fn add_metrics(&self, request: ExportMetricsServiceRequest) {
        for of_resource in request.resource_metrics {
            let scopes = of_resource.scope_metrics.into_iter();
            lock(&self.metrics).extend(scopes.flat_map(|scope| scope.metrics));
        }
    }

    fn add_logs(&self, request: ExportLogsServiceRequest) {
        for of_resource in request.resource_logs {
            let scopes = of_resource.scope_logs.into_iter();
            lock(&self.logs).extend(scopes.flat_map(|scope| scope.log_records));
        }
    }
}

struct Grpc(Arc<Received>);

#[tonic::async_trait]
impl TraceService for Grpc {
    async fn export(
        &self,
        request: tonic::Request<ExportTraceServiceRequest>,
    ) -> Result<GrpcResponse<ExportTraceServiceResponse>, Status> {
        self.0.add_traces(request.into_inner());
        Ok(GrpcResponse::new(ExportTraceServiceResponse::default()))
    }
}

#[tonic::async_trait]
impl MetricsService for Grpc {
    async fn export(
        &self,
        request: tonic::Request<ExportMetricsServiceRequest>,
    ) -> Result<GrpcResponse<ExportMetricsServiceResponse>, Status> {
        self.0.add_metrics(request.into_inner());
        Ok(GrpcResponse::new(ExportMetricsServiceResponse::default()))
    }
}

#[tonic::async_trait]
impl LogsService for Grpc {
    async fn export(
        &self,
        request: tonic::Request<ExportLogsServiceRequest>,
    ) -> Result<GrpcResponse<ExportLogsServiceResponse>, Status> {
        self.0.add_logs(request.into_inner());
        Ok(GrpcResponse::new(ExportLogsServiceResponse::default()))
    }
}

impl Collector {
    /// Starts a collector that speaks gRPC.
    pub fn start_grpc() -> Self {
        Self::start(true, None)
    }

    /// Starts a collector that speaks HTTP with protobuf.
    pub fn start_http() -> Self {
        Self::start(false, None)
    }

    /// Starts a collector that speaks gRPC over TLS.
    pub fn start_grpc_tls(identity: &Identity) -> Self {
        Self::start(true, Some(identity.acceptor(&[b"h2"])))
    }

    fn start(is_grpc: bool, tls: Option<TlsAcceptor>) -> Self {
        let scheme = if tls.is_some() { "https" } else { "http" };
        let received = Arc::<Received>::default();
        let shared = Arc::clone(&received);
        let address = listen(move |stream| {
            let (tls, received) = (tls.clone(), Arc::clone(&shared));
            async move {
                match tls {
                    None => serve(stream, is_grpc, received).await,
                    Some(tls) => {
                        if let Ok(stream) = tls.accept(stream).await {
                            serve(stream, is_grpc, received).await;
                        }
                    }
                }
            }
        });
        Collector {
            address,
            scheme,
            is_grpc,
            received,
        }
    }

    /// Whether it speaks gRPC.
    pub fn is_grpc(&self) -> bool {
        self.is_grpc
    }

    /// Its URL.
    pub fn url(&self) -> String {
        format!("{}://localhost:{}", self.scheme, self.address.port())
    }

    /// All spans so far.
    pub fn spans(&self) -> Vec<Span> {
        lock(&self.received.spans).clone()
    }

    /// Waits for the spans of a trace (hexadecimal digits), which arrive in one message.
    pub fn wait_for_trace(&self, id: &str) -> Vec<Span> {
        wait_for("a trace", || {
            let mut spans = self.spans();
            spans.retain(|span| hex(&span.trace_id) == id);
            (!spans.is_empty()).then_some(spans)
        })
    }

    /// All metrics so far, in the order of their arrival.
    pub fn metrics(&self) -> Vec<Metric> {
        lock(&self.received.metrics).clone()
    }

    /// All log records so far.
    pub fn logs(&self) -> Vec<LogRecord> {
        lock(&self.received.logs).clone()
    }

    /// The headers of all messages so far.
    pub fn headers(&self) -> Vec<HeaderMap> {
        lock(&self.received.headers).clone()
    }

    /// The attributes of the resource of each message with spans.
    pub fn resources(&self) -> Vec<Vec<KeyValue>> {
        lock(&self.received.resources).clone()
    }
}

async fn serve(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    is_grpc: bool,
    received: Arc<Received>,
) {
    let stream = TokioIo::new(stream);
    // A client that goes away is no failure.
    if is_grpc {
        let service = service_fn(move |request: Request<Incoming>| {
            let received = Arc::clone(&received);
            async move {
                lock(&received.headers).push(request.headers().clone());
                let service = Grpc(Arc::clone(&received));
                let path = request.uri().path().to_owned();
                match path
                    .rsplit('/')
                    .nth(1)
                    .and_then(|name| name.rsplit('.').next())
                {
                    Some("TraceService") => TraceServiceServer::new(service).call(request).await,
                    Some("MetricsService") => {
                        MetricsServiceServer::new(service).call(request).await
                    }
                    _ => LogsServiceServer::new(service).call(request).await,
                }
            }
        });
        let builder = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
        let _ = builder.serve_connection(stream, service).await;
    } else {
        let service = service_fn(move |request| answer(request, Arc::clone(&received)));
        let builder = hyper::server::conn::http1::Builder::new();
        let _ = builder.serve_connection(stream, service).await;
    }
}

async fn answer(
    request: Request<Incoming>,
    received: Arc<Received>,
) -> Result<Response<Full<Bytes>>, Infallible> {
    lock(&received.headers).push(request.headers().clone());
    let path = request.uri().path().to_owned();
    let content_type = request.headers()["content-type"].clone();
    assert_eq!(content_type, "application/x-protobuf");
    let body = request
        .into_body()
        .collect()
        .await
        .expect("a body")
        .to_bytes();
    let answer = match &*path {
        "/v1/traces" => {
            received.add_traces(Message::decode(body).expect("spans"));
            ExportTraceServiceResponse::default().encode_to_vec()
        }
        "/v1/metrics" => {
            received.add_metrics(Message::decode(body).expect("metrics"));
            ExportMetricsServiceResponse::default().encode_to_vec()
        }
        "/v1/logs" => {
            received.add_logs(Message::decode(body).expect("log records"));
            ExportLogsServiceResponse::default().encode_to_vec()
        }
        _ => panic!("{path}"),
    };
    let response = Response::builder().header("content-type", content_type);
    Ok(response.body(Full::from(answer)).expect("a response"))
}

/// Hexadecimal digits.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The value of an attribute as text; a list's values with commas.
pub fn attribute(attributes: &[KeyValue], name: &str) -> Option<String> {
    let attribute = attributes.iter().find(|attribute| attribute.key == name)?;
    attribute.value.as_ref()?.value.as_ref().map(show)
}

fn show(value: &Value) -> String {
    match value {
        Value::StringValue(text) => text.clone(),
        Value::IntValue(number) => number.to_string(),
        Value::DoubleValue(number) => number.to_string(),
        Value::BoolValue(bool) => bool.to_string(),
        Value::ArrayValue(list) => {
            let values = list.values.iter().filter_map(|one| one.value.as_ref());
            values.map(show).collect::<Vec<_>>().join(",")
        }
        other => panic!("{other:?}"),
    }
}
