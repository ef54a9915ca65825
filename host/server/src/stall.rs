//! A connection whose reader has stopped reading is given up.
//!
//! hyper polls a response's body only when there is room in its write buffer, so neither it nor
//! the plugin's deadline notices a client that keeps the connection open and reads nothing: it
//! would hold its place among the connections for ever. This wrapper fails a write that makes no
//! progress for a while, which ends the connection.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep, sleep};

/// A stream whose writes fail with `TimedOut` when they have waited for `limit`.
pub(crate) struct StallLimit<S> {
    stream: S,
    limit: Duration,
    /// Runs while a write waits. Made by the first one that does: most connections never wait.
    waiting: Option<Pin<Box<Sleep>>>,
    is_waiting: bool,
}

impl<S> StallLimit<S> {
    pub(crate) fn new(stream: S, limit: Duration) -> Self {
        StallLimit {
            stream,
            limit,
            waiting: None,
            is_waiting: false,
        }
    }

    /// Passes on what a write said, unless it has been `Pending` for too long.
    fn judge<R>(&mut self, cx: &mut Context<'_>, said: Poll<io::Result<R>>) -> Poll<io::Result<R>> {
        if said.is_ready() {
            self.is_waiting = false;
            return said;
        }
        let limit = self.limit;
        let timer = self.waiting.get_or_insert_with(|| Box::pin(sleep(limit)));
        if !self.is_waiting {
            timer.as_mut().reset(Instant::now() + limit);
            self.is_waiting = true;
        }
        timer.as_mut().poll(cx).map(|()| {
            Err(io::Error::new(
                io::ErrorKind::TimedOut,
                "the client stopped reading",
            ))
        })
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for StallLimit<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for StallLimit<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let said = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.judge(cx, said)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let said = Pin::new(&mut self.stream).poll_write_vectored(cx, slices);
        self.judge(cx, said)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let said = Pin::new(&mut self.stream).poll_flush(cx);
        self.judge(cx, said)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let said = Pin::new(&mut self.stream).poll_shutdown(cx);
        self.judge(cx, said)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};

    #[tokio::test]
    async fn a_reader_that_stops_ends_the_write() {
        let (ours, _theirs) = duplex(8);
        let limit = Duration::from_millis(100);
        let mut ours = StallLimit::new(ours, limit);
        let started = Instant::now();
        let error = ours
            .write_all(&[0; 64])
            .await
            .expect_err("nobody reads more than 8 bytes");
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        assert!(started.elapsed() >= limit, "{:?}", started.elapsed());
    }

    #[tokio::test]
    async fn a_slow_reader_is_served() {
        let (ours, mut theirs) = duplex(8);
        let limit = Duration::from_secs(1);
        let mut ours = StallLimit::new(ours, limit);
        let started = Instant::now();
        let reader = tokio::spawn(async move {
            let mut read = 0;
            let mut some = [0; 8];
            while read < 64 {
                // Each pause is within the limit, all of them together are beyond it.
                sleep(Duration::from_millis(150)).await;
                read += theirs.read(&mut some).await.expect("the writer is there");
            }
            read
        });
        ours.write_all(&[0; 64]).await.expect("the reader goes on");
        assert_eq!(reader.await.expect("no panic"), 64);
        assert!(started.elapsed() > limit, "{:?}", started.elapsed());
    }
}
