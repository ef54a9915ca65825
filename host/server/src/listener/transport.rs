//! The byte stream of a connection, encrypted or not.

use super::write_timeout::WriteTimeout;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, AsyncWrite, DuplexStream, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::server::TlsStream;

/// One type for all kinds, so that the code above it is compiled once. The write timeout is below TLS: it
/// observes the socket.
pub(super) enum Transport {
    Tcp(WriteTimeout<TcpStream>),
    Unix(WriteTimeout<UnixStream>),
    Memory(WriteTimeout<DuplexStream>),
    /// Boxed for its size.
    Tls(Box<TlsStream<WriteTimeout<TcpStream>>>),
}

trait Stream: AsyncRead + AsyncWrite + Unpin {}

impl<S: AsyncRead + AsyncWrite + Unpin> Stream for S {}

impl Transport {
    fn stream(self: Pin<&mut Self>) -> Pin<&mut dyn Stream> {
        match self.get_mut() {
            Transport::Tcp(stream) => Pin::new(stream),
            Transport::Unix(stream) => Pin::new(stream),
            Transport::Memory(stream) => Pin::new(stream),
            Transport::Tls(stream) => Pin::new(stream),
        }
    }
}

impl AsyncRead for Transport {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.stream().poll_read(cx, buffer)
    }
}

impl AsyncWrite for Transport {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.stream().poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.stream().poll_write_vectored(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        match self {
            Transport::Tcp(stream) => stream.is_write_vectored(),
            Transport::Unix(stream) => stream.is_write_vectored(),
            Transport::Memory(stream) => stream.is_write_vectored(),
            Transport::Tls(stream) => stream.is_write_vectored(),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.stream().poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.stream().poll_shutdown(cx)
    }
}
