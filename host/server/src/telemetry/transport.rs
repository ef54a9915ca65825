//! A connection to a collector: OTLP over gRPC, or over HTTP with protobuf.
//!
//! OTLP needs one unary call of gRPC: a POST over HTTP/2 whose body is the message behind five bytes, and a status in the
//! trailers. <https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md>,
//! <https://opentelemetry.io/docs/specs/otlp/>

use super::settings::{Destination, Protocol};
use bytes::{BufMut, Bytes, BytesMut};
use http::header::{CONTENT_TYPE, HOST, RETRY_AFTER, TE, USER_AGENT};
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response, StatusCode, Uri};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceResponse;
use percent_encoding::percent_decode_str;
use prost::Message;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use std::fmt::Display;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

/// Makes the configuration of TLS. Trusts the certificates in the file, else those of the system.
pub type CollectorTls = fn(Option<&Path>) -> io::Result<ClientConfig>;

/// Most bytes of a response.
const RESPONSE_BYTES: usize = 64 << 10;
/// Most characters of a collector's message in the log.
const MESSAGE_CHARS: usize = 200;
/// Longest wait that a collector can ask for.
const MAX_RETRY_AFTER: Duration = Duration::from_secs(60);

const GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");
const GRPC_MESSAGE: HeaderName = HeaderName::from_static("grpc-message");
const GRPC_TIMEOUT: HeaderName = HeaderName::from_static("grpc-timeout");

/// Why a message was not accepted.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct SendError {
    pub(super) reason: String,
    pub(super) can_retry: bool,
    /// The collector's `Retry-After`.
    pub(super) retry_after: Option<Duration>,
}

impl SendError {
    /// The collector cannot be reached, or the connection broke.
    fn connection(error: impl Display) -> Self {
        SendError {
            reason: error.to_string(),
            can_retry: true,
            retry_after: None,
        }
    }
}

/// Partial success: items that the collector rejected in a message that it accepted.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Rejected {
    pub(super) count: u64,
    pub(super) reason: String,
}

enum Connection {
    Http1(http1::SendRequest<Full<Bytes>>),
    Http2(http2::SendRequest<Full<Bytes>>),
}

/// Sends messages of one signal, one at a time.
pub(super) struct Transport {
    destination: Destination,
    tls: CollectorTls,
    connection: Option<Connection>,
}

impl Transport {
    pub(super) fn new(destination: Destination, tls: CollectorTls) -> Self {
        Transport {
            destination,
            tls,
            connection: None,
        }
    }

    pub(super) fn destination(&self) -> &Destination {
        &self.destination
    }

    /// Sends a message and waits for the answer, no longer than the destination's timeout.
    pub(super) async fn send(&mut self, message: &Bytes) -> Result<Rejected, SendError> {
        let timeout = self.destination.timeout;
        let sent = tokio::time::timeout(timeout, self.send_and_read(message)).await;
        let sent = sent.unwrap_or_else(|_| {
            let seconds = timeout.as_secs_f64();
            Err(SendError::connection(format!(
                "no answer within {seconds} s"
            )))
        });
        if sent.is_err() {
            self.connection = None;
        }
        sent
    }

    async fn send_and_read(&mut self, message: &Bytes) -> Result<Rejected, SendError> {
        let response = match self.send_on_open_connection(message).await {
            Some(response) => response,
            None => {
                let mut connection = connect(&self.destination, self.tls).await?;
                let response = connection.send(request(&self.destination, message)?).await;
                self.connection = Some(connection);
                response.map_err(SendError::connection)?
            }
        };
        match self.destination.protocol {
            Protocol::Grpc => read_grpc(response).await,
            Protocol::HttpProtobuf => read_http(response).await,
        }
    }

    /// `None` without an open connection: the collector may have closed it meanwhile.
    async fn send_on_open_connection(&mut self, message: &Bytes) -> Option<Response<Incoming>> {
        let mut connection = self.connection.take()?;
        let request = request(&self.destination, message).ok()?;
        let response = connection.send(request).await.ok()?;
        self.connection = Some(connection);
        Some(response)
    }
}

impl Connection {
    async fn send(&mut self, request: Request<Full<Bytes>>) -> hyper::Result<Response<Incoming>> {
        match self {
            Self::Http1(sender) => {
                sender.ready().await?;
                sender.send_request(request).await
            }
            Self::Http2(sender) => {
                sender.ready().await?;
                sender.send_request(request).await
            }
        }
    }
}

async fn connect(destination: &Destination, tls: CollectorTls) -> Result<Connection, SendError> {
    let (uri, protocol) = (&destination.uri, destination.protocol);
    let is_tls = uri.scheme_str() == Some("https");
    let host = uri.host().unwrap_or_default();
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let port = uri.port_u16().unwrap_or(if is_tls { 443 } else { 80 });
    let stream = TcpStream::connect((host, port)).await;
    let stream = stream.map_err(SendError::connection)?;
    // A message is written at once.
    let _ = stream.set_nodelay(true);
    if !is_tls {
        return handshake(stream, protocol).await;
    }
    let file = destination.certificate.clone();
    let config = tokio::task::spawn_blocking(move || tls(file.as_deref())).await;
    let config = config.map_err(io::Error::other).and_then(|config| config);
    let mut config = config.map_err(SendError::connection)?;
    config.alpn_protocols = match protocol {
        Protocol::Grpc => vec![b"h2".to_vec()],
        Protocol::HttpProtobuf => vec![b"http/1.1".to_vec()],
    };
    let name = ServerName::try_from(host.to_owned()).map_err(SendError::connection)?;
    let connector = TlsConnector::from(Arc::new(config));
    let stream = connector.connect(name, stream).await;
    handshake(stream.map_err(SendError::connection)?, protocol).await
}

async fn handshake(
    stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
    protocol: Protocol,
) -> Result<Connection, SendError> {
    let stream = TokioIo::new(stream);
    Ok(match protocol {
        Protocol::HttpProtobuf => {
            let (sender, driver) = http1::handshake(stream)
                .await
                .map_err(SendError::connection)?;
            // It ends with its sender; the sender sees its errors.
            drop(tokio::spawn(driver));
            Connection::Http1(sender)
        }
        Protocol::Grpc => {
            let shaking = http2::handshake(TokioExecutor::new(), stream);
            let (sender, driver) = shaking.await.map_err(SendError::connection)?;
            drop(tokio::spawn(driver));
            Connection::Http2(sender)
        }
    })
}

fn request(destination: &Destination, message: &Bytes) -> Result<Request<Full<Bytes>>, SendError> {
    let uri = &destination.uri;
    let agent = concat!("corral/", env!("CARGO_PKG_VERSION"));
    let builder = Request::post(uri.clone()).header(USER_AGENT, agent);
    let request = match destination.protocol {
        Protocol::Grpc => {
            let mut body = BytesMut::with_capacity(5 + message.len());
            // Not compressed.
            body.put_u8(0);
            body.put_u32(u32::try_from(message.len()).unwrap_or(u32::MAX));
            body.put_slice(message);
            let millis = destination.timeout.as_millis();
            builder
                .header(CONTENT_TYPE, "application/grpc")
                .header(TE, "trailers")
                .header(GRPC_TIMEOUT, format!("{millis}m"))
                .body(Full::new(body.freeze()))
        }
        Protocol::HttpProtobuf => {
            let path = uri.path_and_query().map_or("/", |path| path.as_str());
            let host = uri.authority().map_or("", |authority| authority.as_str());
            builder
                .uri(path.parse::<Uri>().unwrap_or_default())
                .header(HOST, host)
                .header(CONTENT_TYPE, "application/x-protobuf")
                .body(Full::new(message.clone()))
        }
    };
    let mut request = request.map_err(SendError::connection)?;
    for (name, value) in &destination.headers {
        request.headers_mut().insert(name, value.clone());
    }
    Ok(request)
}

async fn read_http(response: Response<Incoming>) -> Result<Rejected, SendError> {
    let (head, body) = response.into_parts();
    let body = Limited::new(body, RESPONSE_BYTES).collect().await;
    let body = body.map_err(SendError::connection)?.to_bytes();
    if head.status.is_success() {
        return Ok(rejected(&body));
    }
    // The body of an error is a google.rpc.Status, whose second field is a text; many proxies answer with text.
    Err(SendError {
        reason: format!("the collector answered {}", head.status),
        can_retry: matches!(
            head.status,
            StatusCode::TOO_MANY_REQUESTS
                | StatusCode::BAD_GATEWAY
                | StatusCode::SERVICE_UNAVAILABLE
                | StatusCode::GATEWAY_TIMEOUT
        ),
        retry_after: retry_after(&head.headers),
    })
}

fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let seconds = headers.get(RETRY_AFTER)?.to_str().ok()?.parse().ok()?;
    Some(Duration::from_secs(seconds).min(MAX_RETRY_AFTER))
}

async fn read_grpc(response: Response<Incoming>) -> Result<Rejected, SendError> {
    let (head, body) = response.into_parts();
    if !head.status.is_success() {
        return Err(SendError::connection(format!(
            "the collector answered {} and speaks no gRPC at this address",
            head.status
        )));
    }
    let body = Limited::new(body, RESPONSE_BYTES).collect().await;
    let body = body.map_err(SendError::connection)?;
    let trailers = body.trailers().cloned().unwrap_or_default();
    let of_call = |name: &HeaderName| -> Option<HeaderValue> {
        trailers
            .get(name)
            .or_else(|| head.headers.get(name))
            .cloned()
    };
    let status = of_call(&GRPC_STATUS);
    let status = status.and_then(|status| status.to_str().ok()?.parse::<u32>().ok());
    let message = body.to_bytes();
    match status {
        Some(0) => Ok(rejected(message.get(5..).unwrap_or_default())),
        Some(status) => {
            let text = of_call(&GRPC_MESSAGE);
            let text = text.as_ref().and_then(|text| text.to_str().ok());
            let text = percent_decode_str(text.unwrap_or_default()).decode_utf8_lossy();
            let text: String = text.chars().take(MESSAGE_CHARS).collect();
            Err(SendError {
                reason: format!("the collector answered with gRPC status {status}: {text:?}"),
                // Canceled, deadline exceeded, aborted, out of range, unavailable, data loss.
                can_retry: matches!(status, 1 | 4 | 10 | 11 | 14 | 15),
                retry_after: None,
            })
        }
        None => Err(SendError::connection(
            "the collector's answer has no gRPC status",
        )),
    }
}

/// What a response says was not taken. The responses of all signals have the same fields.
fn rejected(response: &[u8]) -> Rejected {
    let response = ExportTraceServiceResponse::decode(response).unwrap_or_default();
    let partial = response.partial_success.unwrap_or_default();
    Rejected {
        count: u64::try_from(partial.rejected_spans).unwrap_or(0),
        reason: partial.error_message.chars().take(MESSAGE_CHARS).collect(),
    }
}
