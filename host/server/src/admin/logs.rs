//! A deployment's log as a stream: one JSON object on a line of its own for each line of a plugin.
//!
//! A follower costs a task and a few pieces of text. It holds nothing in the log: one that reads too
//! slowly misses lines, which shows in their numbers.

use super::view::LineView;
use bytes::Bytes;
use corral_runtime::{Body, Logs};
use std::sync::Arc;
use tokio::sync::mpsc;

/// Lines that are sent in one piece.
const LINES: usize = 100;
/// Pieces on their way to a client.
const PIECES: usize = 4;

/// The lines after that of number `after`, and with `follow` also those to come. Must be called in a
/// tokio runtime.
pub(super) fn body(logs: Arc<Logs>, after: u64, follow: bool) -> Body {
    let (sender, receiver) = mpsc::channel(PIECES);
    tokio::spawn(send(logs, after, follow, sender));
    Body::pieces(receiver)
}

async fn send(logs: Arc<Logs>, mut after: u64, follow: bool, sender: mpsc::Sender<Bytes>) {
    let mut news = logs.watch();
    loop {
        news.mark_unchanged();
        loop {
            let lines = logs.after(after, LINES);
            let Some(last) = lines.last() else {
                break;
            };
            after = last.number;
            let mut text = Vec::new();
            for line in &lines {
                let view = LineView {
                    number: line.number,
                    time_ms: line.time_ms,
                    revision: line.revision,
                    call: &line.call,
                    stream: line.stream,
                    text: &line.text,
                };
                // Writing to memory can't fail, and the view has no keys but texts.
                let _ = serde_json::to_writer(&mut text, &view);
                text.push(b'\n');
            }
            if sender.send(text.into()).await.is_err() {
                return;
            }
        }
        if !follow {
            return;
        }
        tokio::select! {
            changed = news.changed() => if changed.is_err() {
                return;
            },
            () = sender.closed() => return,
        }
    }
}
