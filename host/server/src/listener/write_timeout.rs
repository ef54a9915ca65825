//! Ends connections whose client has stopped reading.
//!
//! hyper polls a response's body only when its write buffer has room, so neither hyper nor the plugin's
//! deadline notices a client that keeps the connection open and reads nothing. This wrapper fails a write
//! that makes no progress for too long, which ends the connection.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep, sleep};

/// A stream whose writes fail with `TimedOut` after waiting for `limit`.
pub(crate) struct WriteTimeout<S> {
    stream: S,
    limit: Duration,
    /// Runs while a write waits. Created by the first wait: most connections never wait.
    timer: Option<Pin<Box<Sleep>>>,
    is_waiting: bool,
}

impl<S> WriteTimeout<S> {
    pub(crate) fn new(stream: S, limit: Duration) -> Self {
        WriteTimeout {
            stream,
            limit,
            timer: None,
            is_waiting: false,
        }
    }

    /// Passes on the result of a write, unless it has been `Pending` for too long.
    fn check<R>(
        &mut self,
        cx: &mut Context<'_>,
        polled: Poll<io::Result<R>>,
    ) -> Poll<io::Result<R>> {
        if polled.is_ready() {
            self.is_waiting = false;
            return polled;
        }
        let limit = self.limit;
        let timer = self.timer.get_or_insert_with(|| Box::pin(sleep(limit)));
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

impl<S: AsyncRead + Unpin> AsyncRead for WriteTimeout<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for WriteTimeout<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.check(cx, polled)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write_vectored(cx, slices);
        self.check(cx, polled)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let polled = Pin::new(&mut self.stream).poll_flush(cx);
        self.check(cx, polled)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let polled = Pin::new(&mut self.stream).poll_shutdown(cx);
        self.check(cx, polled)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::task::Waker;
    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};

    #[tokio::test]
    async fn stalled_reader_fails_the_write() {
        let (ours, _theirs) = duplex(8);
        let limit = Duration::from_millis(100);
        let mut ours = WriteTimeout::new(ours, limit);
        let started = Instant::now();
        let error = ours
            .write_all(&[0; 64])
            .await
            .expect_err("only 8 bytes fit");
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        assert!(started.elapsed() >= limit, "{:?}", started.elapsed());
    }

    #[tokio::test]
    async fn slow_reader_is_served() {
        let (ours, mut theirs) = duplex(8);
        // Longer than any test: the deadlines show that each wait has its own limit.
        let mut ours = WriteTimeout::new(ours, Duration::from_secs(3600));
        let mut ends = Vec::new();
        for _ in 0..8 {
            ours.write_all(&[0; 8]).await.expect("the buffer is empty");
            for _ in 0..2 {
                let mut cx = Context::from_waker(Waker::noop());
                assert!(Pin::new(&mut ours).poll_write(&mut cx, &[0]).is_pending());
                ends.push(ours.timer.as_ref().expect("a write waits").deadline());
            }
            let read = theirs.read_exact(&mut [0; 8]).await;
            read.expect("the writer exists");
            sleep(Duration::from_millis(1)).await;
        }
        for (at, pair) in ends.windows(2).enumerate() {
            let another = at % 2 == 1;
            assert_eq!(pair[0] < pair[1], another, "{ends:?}");
            assert_eq!(pair[0] == pair[1], !another, "{ends:?}");
        }
    }
}
