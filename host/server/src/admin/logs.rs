//! A deployment's log as a stream: one JSON object on a line of its own for each line of a plugin.
//!
//! A follower costs a task, a few pieces of text and, mostly, a connection. It holds nothing in the log:
//! one that reads too slowly misses lines, which shows in their numbers. There are [`FOLLOWERS`] at most,
//! so that others still reach the API.

use super::view::LineView;
use bytes::Bytes;
use corral_runtime::{Body, Logs};
use std::sync::Arc;
use tokio::sync::{OwnedSemaphorePermit, mpsc};

/// Followers of all logs together: half of the connections that the admin listener has.
pub(crate) const FOLLOWERS: usize = 16;
/// Lines that are sent in one piece.
const LINES: usize = 100;
/// Pieces on their way to a client.
const PIECES: usize = 4;

/// The lines after that of number `after`, and for who has a `place` among the followers also those to
/// come. Must be called in a tokio runtime.
pub(super) fn body(logs: Arc<Logs>, after: u64, place: Option<OwnedSemaphorePermit>) -> Body {
    let (sender, receiver) = mpsc::channel(PIECES);
    tokio::spawn(send(logs, after, place, sender));
    Body::from_channel(receiver)
}

async fn send(
    logs: Arc<Logs>,
    mut after: u64,
    place: Option<OwnedSemaphorePermit>,
    sender: mpsc::Sender<Bytes>,
) {
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
        if place.is_none() {
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
