//! A collector of traces that reads messages and keeps nothing.

use crate::cpu_clock::cpu_seconds;
use bytes::Bytes;
use corral_cli::Error;
use corral_server::{Telemetry, TelemetryOptions, TelemetrySettings};
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use rustix::time::ClockId;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::net::TcpListener;

/// A collector on a free port of 127.0.0.1. Its thread ends with the process.
pub(crate) struct TraceCollector {
    endpoint: String,
    read: Arc<Read>,
}

/// What a collector has read.
#[derive(Default)]
struct Read {
    bytes: AtomicU64,
    /// CPU time of its thread, as the bits of seconds.
    cpu: AtomicU64,
}

impl TraceCollector {
    /// Starts to listen. Messages are OTLP over HTTP.
    pub(crate) fn start() -> Result<Self, Error> {
        let failed = Error::context("cannot start the collector");
        let runtime = crate::local_server::client_runtime()?;
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0"));
        let listener = listener.map_err(failed)?;
        let endpoint = format!("http://{}", listener.local_addr()?);
        let read = Arc::<Read>::default();
        let shared = Arc::clone(&read);
        std::thread::spawn(move || runtime.block_on(serve(listener, shared)));
        Ok(TraceCollector { endpoint, read })
    }

    /// Telemetry that sends the trace of each request here.
    pub(crate) fn telemetry(&self) -> Result<Arc<Telemetry>, Error> {
        let options = TelemetryOptions {
            endpoint: Some(self.endpoint.clone()),
            protocol: Some("http/protobuf".to_owned()),
        };
        let settings = TelemetrySettings::read(&options);
        let settings = settings.map_err(|error| Error::usage(error.to_string()))?;
        let settings = settings.ok_or_else(|| {
            Error::usage("OTEL_SDK_DISABLED turns traces off; unset it, or leave --traces out")
        })?;
        Ok(Telemetry::new(settings, |_| {
            Err(io::Error::other("the collector has no TLS"))
        }))
    }

    /// Bytes of all messages so far.
    pub(crate) fn bytes(&self) -> u64 {
        self.read.bytes.load(Ordering::Relaxed)
    }

    /// CPU time of its thread, up to its last message.
    pub(crate) fn cpu_seconds(&self) -> f64 {
        f64::from_bits(self.read.cpu.load(Ordering::Relaxed))
    }
}

async fn serve(listener: TcpListener, read: Arc<Read>) {
    while let Ok((stream, _)) = listener.accept().await {
        let read = Arc::clone(&read);
        let service = service_fn(move |request| answer(request, Arc::clone(&read)));
        tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(stream), service));
    }
}

/// Success, as an empty message.
async fn answer(
    request: Request<Incoming>,
    read: Arc<Read>,
) -> Result<Response<Full<Bytes>>, hyper::Error> {
    let body = request.into_body().collect().await?.to_bytes();
    read.bytes.fetch_add(body.len() as u64, Ordering::Relaxed);
    let cpu = cpu_seconds(ClockId::ThreadCPUTime);
    read.cpu.store(cpu.to_bits(), Ordering::Relaxed);
    Ok(Response::new(Full::new(Bytes::new())))
}
