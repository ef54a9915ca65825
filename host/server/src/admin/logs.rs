//! The log of a deployment as a stream: one JSON object per line.
//!
//! A client that follows a log costs a task, a few chunks, and a connection. It retains nothing in the log:
//! a client that reads too slowly misses lines, which shows as gaps in their numbers.

use super::types::LogLine;
use bytes::Bytes;
use corral_runtime::{Body, LogLevel, Logs};
use std::sync::Arc;
use tokio::sync::{OwnedSemaphorePermit, mpsc};

/// Clients that follow logs at once: a quarter of the connections of the admin listener, so that others still
/// reach the API.
pub(super) const MAX_LOG_FOLLOWERS: usize = 16;
/// Lines per chunk.
const CHUNK_LINES: usize = 100;
/// Chunks in flight to a client.
const CHANNEL_CHUNKS: usize = 4;

/// Which lines of a log a client gets.
pub(super) struct LogSelection {
    /// Name of the deployment.
    pub(super) deployment: String,
    /// Lines after this one.
    pub(super) after: u64,
    /// Lines of this level at least, and those without a level.
    pub(super) level: Option<LogLevel>,
}

/// The selected lines; with a `follow` permit also future lines. Must be called in a tokio runtime.
pub(super) fn body(
    logs: Arc<Logs>,
    selection: LogSelection,
    follow: Option<OwnedSemaphorePermit>,
) -> Body {
    let (sender, receiver) = mpsc::channel(CHANNEL_CHUNKS);
    tokio::spawn(send(logs, selection, follow, sender));
    Body::from_channel(receiver)
}

async fn send(
    logs: Arc<Logs>,
    selection: LogSelection,
    follow: Option<OwnedSemaphorePermit>,
    sender: mpsc::Sender<Bytes>,
) {
    let LogSelection {
        deployment,
        mut after,
        level,
    } = selection;
    let mut changes = logs.watch();
    loop {
        changes.mark_unchanged();
        loop {
            let lines = logs.after(after, CHUNK_LINES);
            let Some(last) = lines.last() else {
                break;
            };
            after = last.number;
            let mut text = Vec::new();
            for line in lines.iter().filter(|line| line.passes(level)) {
                let line = LogLine {
                    number: line.number,
                    time_ms: line.time_ms,
                    revision: line.revision,
                    deployment: &deployment,
                    request_id: &line.call,
                    stream: line.stream,
                    level: line.level.map(LogLevel::name),
                    text: &line.text,
                };
                // Serializing to memory cannot fail: all keys are strings.
                let _ = serde_json::to_writer(&mut text, &line);
                text.push(b'\n');
            }
            if !text.is_empty() && sender.send(text.into()).await.is_err() {
                return;
            }
        }
        if follow.is_none() {
            return;
        }
        tokio::select! {
            changed = changes.changed() => if changed.is_err() {
                return;
            },
            () = sender.closed() => return,
        }
    }
}
