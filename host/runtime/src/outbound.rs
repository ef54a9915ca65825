//! Requests that a plugin wants to send to others: all are refused.
//!
//! This is the one place through which outbound HTTP passes, in both versions of WASI, and so the
//! place where grants will be checked.

use wasmtime_wasi_http::{Error, RequestOptions, WasiBody, WasiHttpHooks};

/// What `wasi:http` asks the host.
#[derive(Debug)]
pub(crate) struct Outbound;

type Sent = wasmtime_wasi_http::Result<(
    http::Response<WasiBody>,
    Box<dyn Future<Output = wasmtime_wasi_http::Result<()>> + Send>,
)>;

impl WasiHttpHooks for Outbound {
    fn send_request(
        &mut self,
        request: http::Request<WasiBody>,
        _options: Option<RequestOptions>,
        _processed: Box<dyn Future<Output = wasmtime_wasi_http::Result<()>> + Send>,
    ) -> Box<dyn Future<Output = Sent> + Send> {
        tracing::warn!(
            to = request.uri().host().unwrap_or(""),
            "refused an outbound request: this deployment is granted none"
        );
        Box::new(async { Err(Error::HttpRequestDenied) })
    }
}
