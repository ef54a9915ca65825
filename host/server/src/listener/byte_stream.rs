//! The byte stream of a connection, encrypted or not.

use std::pin::Pin;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_io_timeout::TimeoutWriter;

pub(super) trait Stream: AsyncRead + AsyncWrite + Send {}

impl<S: AsyncRead + AsyncWrite + Send> Stream for S {}

/// One type for all kinds, so that the code above it is compiled once.
pub(super) type ByteStream = Pin<Box<dyn Stream>>;

/// A stream whose writes fail with `TimedOut` after waiting for `limit`.
///
/// hyper polls a response's body only when its write buffer has room, so neither hyper nor the plugin's
/// deadline notices a client that keeps the connection open and reads nothing. The timeout is below TLS: it
/// observes the socket.
pub(super) fn with_write_timeout(stream: impl Stream + 'static, limit: Duration) -> ByteStream {
    let mut stream = TimeoutWriter::new(stream);
    stream.set_timeout(Some(limit));
    Box::pin(stream)
}
