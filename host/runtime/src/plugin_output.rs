//! Standard output and error of plugins, and their lines with a level.
//!
//! Each line goes into the deployment's [`Logs`] and into the host's log, under the target `corral::plugin`, with the names of
//! deployment and request.

use crate::call_trace::CallTrace;
use crate::counters::ProcessCounters;
use crate::last_stderr_line::LastLine;
use crate::logs::{LogLevel, Logs};
use bytes::Bytes;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
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
    /// The trace of the call.
    pub(crate) trace: Option<Arc<dyn CallTrace>>,
}

struct LineWriter {
    stream: &'static str,
    origin: Arc<LogOrigin>,
    /// The current line without its end.
    line: Vec<u8>,
    /// The current line was longer than [`LINE_BYTES`].
    cut: bool,
    logged: u32,
}

impl Output {
    pub(crate) fn new(stream: &'static str, origin: Arc<LogOrigin>) -> Self {
        Self(Arc::new(Mutex::new(LineWriter {
            stream,
            origin,
            line: Vec::new(),
            cut: false,
            logged: 0,
        })))
    }

    /// Logs the line that the last call left without an end, and writes for another call from now on.
    pub(crate) fn begin_call(&self, origin: &Arc<LogOrigin>) {
        let mut writer = self.writer();
        writer.end_call();
        writer.origin = Arc::clone(origin);
        writer.logged = 0;
    }

    /// Logs the line that has no end yet.
    pub(crate) fn end_call(&self) {
        let mut writer = self.writer();
        writer.end_call();
        // A trace is sent once nothing holds it.
        if writer.origin.trace.is_some() {
            writer.origin = Arc::new(LogOrigin {
                trace: None,
                ..LogOrigin::clone(&writer.origin)
            });
        }
    }

    /// Logs a line of this level.
    pub(crate) fn log(&self, level: LogLevel, text: &str) {
        let text = text.trim_end_matches('\n');
        let end = text.floor_char_boundary(LINE_BYTES);
        self.writer()
            .log_line(Some(level), &text.as_bytes()[..end], end < text.len());
    }

    fn append(&self, bytes: &[u8]) {
        self.writer().append(bytes);
    }

    fn writer(&self) -> MutexGuard<'_, LineWriter> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
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
                self.end_line();
            }
        }
    }

    /// Logs the current line. Standard output is for people who monitor; the level of standard error is not known.
    fn end_line(&mut self) {
        let line = std::mem::take(&mut self.line);
        let cut = std::mem::take(&mut self.cut);
        let level = (self.stream == "stdout").then_some(LogLevel::Info);
        self.log_line(level, &line, cut);
    }

    /// Logs a line that has no end.
    fn end_call(&mut self) {
        if !self.line.is_empty() {
            self.end_line();
        }
    }

    fn log_line(&mut self, level: Option<LogLevel>, line: &[u8], cut: bool) {
        if self.logged > MAX_LINES {
            return;
        }
        self.logged += 1;
        self.origin.counters.log_lines.increment();
        let text = if self.logged > MAX_LINES {
            format!("(more than {MAX_LINES} lines: the rest of this call's output is dropped)")
                .into()
        } else {
            String::from_utf8_lossy(line)
        };
        let text = text.trim_end_matches('\r');
        let tail = if cut { " (cut)" } else { "" };
        let origin = &self.origin;
        macro_rules! event {
            ($level:ident) => {
                tracing::event!(
                    target: "corral::plugin",
                    // No span: the line has the span's fields itself.
                    parent: None,
                    tracing::Level::$level,
                    deployment = &*origin.deployment,
                    revision = origin.revision,
                    request_id = &*origin.call,
                    stream = self.stream,
                    trace_id = origin.trace.as_deref().map(CallTrace::id),
                    "{}{tail}",
                    text.escape_debug()
                )
            };
        }
        match level {
            Some(LogLevel::Trace) => event!(TRACE),
            Some(LogLevel::Debug) => event!(DEBUG),
            Some(LogLevel::Info) | None => event!(INFO),
            Some(LogLevel::Warn) => event!(WARN),
            Some(LogLevel::Error | LogLevel::Critical) => event!(ERROR),
        }
        if let (Some(last), "stderr") = (&origin.last_error_line, self.stream) {
            last.record(text);
        }
        let text = format!("{text}{tail}");
        origin
            .logs
            .add(origin.revision, &origin.call, self.stream, level, text);
    }
}

impl Drop for LineWriter {
    fn drop(&mut self) {
        self.end_call();
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
        let origin = Arc::new(LogOrigin {
            logs: Arc::default(),
            deployment: "/a".into(),
            revision: None,
            call: "1".into(),
            counters: Arc::default(),
            last_error_line: None,
            trace: None,
        });
        let output = Output::new("stdout", Arc::clone(&origin));
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
        assert_eq!(last.level, Some(LogLevel::Info));

        let output = Output::new("log", Arc::clone(&origin));
        output.log(LogLevel::Warn, &"ä".repeat(LINE_BYTES));
        let last = origin.logs.after(0, usize::MAX).pop().unwrap();
        assert_eq!((last.stream, last.level), ("log", Some(LogLevel::Warn)));
        assert_eq!(last.text.len(), LINE_BYTES + " (cut)".len());
        for _ in 0..5000 {
            output.log(LogLevel::Trace, "again\n");
        }
        let lines = origin.logs.after(0, usize::MAX);
        assert_eq!(lines[lines.len() - 2].text, "again");
        let last = lines.last().unwrap();
        assert_eq!(last.number, 2 * (u64::from(MAX_LINES) + 1));
        assert!(last.text.contains("the rest"), "{last:?}");
    }
}
