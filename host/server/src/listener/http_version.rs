//! Distinguishes HTTP/2 from HTTP/1 by the first bytes of an unencrypted connection.
//!
//! An HTTP/2 client starts with a fixed preface (RFC 9113, 3.4), whose first four bytes start no HTTP/1
//! request. [`Rewind`] replays the bytes that detection has read.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf};

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// A stream that replays its first bytes.
pub(super) struct Rewind<S> {
    stream: S,
    first: [u8; PREFACE.len()],
    /// Part of `first` that has not been replayed.
    left: std::ops::Range<usize>,
}

/// Whether `stream` starts with the HTTP/2 preface. The caller limits the time.
pub(super) async fn detect_http2<S: AsyncRead + Unpin>(
    mut stream: S,
) -> io::Result<(bool, Rewind<S>)> {
    let mut first = [0; PREFACE.len()];
    let mut read = 0;
    while read < PREFACE.len() && first[..read] == PREFACE[..read] {
        match stream.read(&mut first[read..]).await? {
            0 => break,
            count => read += count,
        }
    }
    let rewind = Rewind {
        stream,
        first,
        left: 0..read,
    };
    Ok((first == PREFACE, rewind))
}

impl<S> Rewind<S> {
    /// A stream with nothing to replay.
    pub(super) fn untouched(stream: S) -> Self {
        Rewind {
            stream,
            first: [0; PREFACE.len()],
            left: 0..0,
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Rewind<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.left.is_empty() {
            return Pin::new(&mut self.stream).poll_read(cx, buffer);
        }
        let start = self.left.start;
        let end = self.left.end.min(start + buffer.remaining());
        buffer.put_slice(&self.first[start..end]);
        self.left.start = end;
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Rewind<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncWriteExt, duplex};

    #[tokio::test]
    async fn bytes_stay_complete_for_any_chunking() {
        let with_more = [PREFACE, b"more"].concat();
        for (sent, expected) in [
            (&b""[..], false),
            (b"GET / HTTP/1.1\r\n", false),
            (b"P", false),
            (b"POST / HTTP/1.1\r\n", false),
            (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r", false),
            (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\rx and more", false),
            (PREFACE, true),
            (&with_more, true),
        ] {
            for piece in [1, 3, 1000] {
                let (mut client, server) = duplex(1024);
                for part in sent.chunks(piece) {
                    client.write_all(part).await.expect("there is room");
                }
                drop(client);
                let (is_http2, mut stream) = detect_http2(server).await.expect("it can be read");
                let mut read = Vec::new();
                stream.read_to_end(&mut read).await.expect("to its end");
                assert_eq!((is_http2, &read[..]), (expected, sent));
            }
        }
    }
}
