//! Standard output and error of plugins. Each line goes into the deployment's [`Logs`] and into the host's
//! log, under the target `corral::plugin`, with the names of deployment and request.

use crate::counters::ProcessCounters;
use crate::last_line::LastLine;
use crate::logs::Logs;
use bytes::Bytes;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use tokio::io::AsyncWrite;
use wasmtime_wasi::async_trait;
use wasmtime_wasi::cli::{IsTerminal, StdoutStream};
use wasmtime_wasi::p2::{OutputStream, Pollable, StreamResult};

/// Longest line; the rest of a longer line is cut off.
const LINE_BYTES: usize = 4096;
/// Lines of one call on one stream. One more line says that the rest is dropped.
const MAX_LINES: u32 = 1000;

/// An output stream of one call.
#[derive(Clone)]
pub(crate) struct Output(Arc<Mutex<LineWriter>>);

/// The call that writes, and the log of its deployment.
#[derive(Clone)]
pub(crate) struct LogOrigin {
    pub(crate) logs: Arc<Logs>,
    /// Name of the deployment.
    pub(crate) deployment: Arc<str>,
    pub(crate) revision: Option<u64>,
    pub(crate) call: Arc<str>,
    pub(crate) counters: Arc<ProcessCounters>,
    /// Receives the last line of standard error.
    pub(crate) last_error_line: Option<Arc<LastLine>>,
}

struct LineWriter {
    stream: &'static str,
    origin: LogOrigin,
    /// The current line without its end.
    line: Vec<u8>,
    /// The current line was longer than [`LINE_BYTES`].
    cut: bool,
    logged: u32,
}

impl Output {
    pub(crate) fn new(stream: &'static str, origin: LogOrigin) -> Self {
        Self(Arc::new(Mutex::new(LineWriter {
            stream,
            origin,
            line: Vec::new(),
            cut: false,
            logged: 0,
        })))
    }

    /// Logs the line that the last call left without an end, and writes for another call from now on.
    pub(crate) fn begin_call(&self, origin: LogOrigin) {
        let mut writer = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        writer.end_line();
        writer.origin = origin;
        writer.logged = 0;
    }

    /// Logs the line that has no end yet.
    pub(crate) fn end_line(&self) {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .end_line();
    }

    fn append(&self, bytes: &[u8]) {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .append(bytes);
    }
}

impl LineWriter {
    fn append(&mut self, bytes: &[u8]) {
        for piece in bytes.split_inclusive(|&byte| byte == b'\n') {
            let (text, ended) = match piece.strip_suffix(b"\n") {
                Some(text) => (text, true),
                None => (piece, false),
            };
            let room = LINE_BYTES - self.line.len();
            self.cut |= text.len() > room;
            self.line.extend_from_slice(&text[..text.len().min(room)]);
            if ended {
                self.log_line();
            }
        }
    }

    fn log_line(&mut self) {
        let line = std::mem::take(&mut self.line);
        let cut = std::mem::take(&mut self.cut);
        if self.logged > MAX_LINES {
            return;
        }
        self.logged += 1;
        self.origin.counters.log_lines.increment();
        let text = if self.logged > MAX_LINES {
            format!("(more than {MAX_LINES} lines: the rest of this call's output is dropped)")
                .into()
        } else {
            String::from_utf8_lossy(&line)
        };
        let text = text.trim_end_matches('\r');
        let tail = if cut { " (cut)" } else { "" };
        let origin = &self.origin;
        tracing::info!(
            target: "corral::plugin",
            // No span: the line has the span's fields itself.
            parent: None,
            deployment = &*origin.deployment,
            revision = origin.revision,
            request_id = &*origin.call,
            stream = self.stream,
            "{}{tail}",
            text.escape_debug()
        );
        if let (Some(last), "stderr") = (&origin.last_error_line, self.stream) {
            last.record(text);
        }
        let text = format!("{text}{tail}");
        origin
            .logs
            .add(origin.revision, &origin.call, self.stream, text);
    }
}

impl LineWriter {
    fn end_line(&mut self) {
        if !self.line.is_empty() {
            self.log_line();
        }
    }
}

impl Drop for LineWriter {
    fn drop(&mut self) {
        self.end_line();
    }
}

impl IsTerminal for Output {
    fn is_terminal(&self) -> bool {
        false
    }
}

impl StdoutStream for Output {
    fn async_stream(&self) -> Box<dyn AsyncWrite + Send + Sync> {
        Box::new(self.clone())
    }

    fn p2_stream(&self) -> Box<dyn OutputStream> {
        Box::new(self.clone())
    }
}

impl AsyncWrite for Output {
    fn poll_write(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.append(bytes);
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

#[async_trait]
impl Pollable for Output {
    async fn ready(&mut self) {}
}

impl OutputStream for Output {
    fn write(&mut self, bytes: Bytes) -> StreamResult<()> {
        self.append(&bytes);
        Ok(())
    }

    fn flush(&mut self) -> StreamResult<()> {
        Ok(())
    }

    fn check_write(&mut self) -> StreamResult<usize> {
        Ok(64 << 10)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_joined_cut_and_limited() {
        let origin = LogOrigin {
            logs: Arc::default(),
            deployment: "/a".into(),
            revision: None,
            call: "1".into(),
            counters: Arc::default(),
            last_error_line: None,
        };
        let output = Output::new("stdout", origin.clone());
        output.append(b"one ");
        output.append(b"line\ntwo");
        let held = |output: &Output| {
            let lines = output.0.lock().unwrap();
            (lines.logged, lines.line.clone(), lines.cut)
        };
        assert_eq!(held(&output), (1, b"two".to_vec(), false));
        output.append(&vec![b'x'; 3 * LINE_BYTES]);
        let (_, line, cut) = held(&output);
        assert_eq!((line.len(), cut), (LINE_BYTES, true));
        output.append(&b"\n".repeat(5000));
        assert_eq!(held(&output).0, MAX_LINES + 1);
        let last = origin.logs.after(0, usize::MAX).pop().unwrap();
        assert_eq!(last.number, u64::from(MAX_LINES) + 1);
        assert!(last.text.contains("the rest"), "{last:?}");
    }
}
