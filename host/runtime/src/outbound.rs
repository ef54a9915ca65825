//! Refuses outbound HTTP requests of plugins.
//!
//! All outbound HTTP passes through here, in both versions of WASI. Grants for outbound requests would be
//! checked here.

use wasmtime_wasi_http::{Error, RequestOptions, WasiBody, WasiHttpHooks};

/// The host's side of `wasi:http` requests.
#[derive(Debug)]
pub(crate) struct Outbound;

type SendResult = wasmtime_wasi_http::Result<(
    http::Response<WasiBody>,
    Box<dyn Future<Output = wasmtime_wasi_http::Result<()>> + Send>,
)>;

impl WasiHttpHooks for Outbound {
    fn send_request(
        &mut self,
        request: http::Request<WasiBody>,
        _options: Option<RequestOptions>,
        _processed: Box<dyn Future<Output = wasmtime_wasi_http::Result<()>> + Send>,
    ) -> Box<dyn Future<Output = SendResult> + Send> {
        tracing::warn!(
            to = request.uri().host().unwrap_or(""),
            "refused an outbound request: the deployment has no grant for any"
        );
        Box::new(async { Err(Error::HttpRequestDenied) })
    }
}
