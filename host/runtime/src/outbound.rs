//! Refuses outbound HTTP requests of plugins, and bounds the bytes that the host buffers of a body.
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

/// Longest write to a body that a guest of WASI 0.2 makes.
const P2_CHUNK_BYTES: usize = 64 << 10;
/// Writes that such a body buffers, beside the one that `wasmtime-wasi-http` always allows.
const P2_CHUNKS: usize = 1;
/// Most bytes that the host buffers for such a body.
pub(crate) const P2_BODY_BYTES: usize = (P2_CHUNKS + 1) * P2_CHUNK_BYTES;

impl WasiHttpHooks for Outbound {
    fn p2_outgoing_body_buffer_chunks(&mut self) -> usize {
        P2_CHUNKS
    }

    fn p2_outgoing_body_chunk_size(&mut self) -> usize {
        P2_CHUNK_BYTES
    }

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
