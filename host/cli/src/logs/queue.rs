//! A queue of log lines. A thread writes them to stderr, so that a slow reader of stderr delays no request.
//!
//! The queue is bounded in bytes, unlike that of `tracing-appender`, because plugins decide how long many lines are. A line
//! that does not fit is lost and counted. A quarter of the queue is for warnings and the audit log, so that a flood of other
//! lines does not displace them.
//!
//! Routine lines wait up to [`GATHER_TIME`] for others, since waking the thread and writing cost more than a line.

use corral_server::AUDIT_TARGET;
use std::io::{self, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tracing::{Level, Metadata};
use tracing_subscriber::fmt::MakeWriter;

/// Most bytes of lines in the queue.
const MAX_BYTES: usize = 1 << 20;
/// Most bytes in the queue for a line that is neither a warning nor of the audit log.
const MAX_ROUTINE_BYTES: usize = MAX_BYTES / 4 * 3;
/// How long a routine line waits for others.
const GATHER_TIME: Duration = Duration::from_millis(20);
/// Bytes of lines that wait no longer.
const GATHER_BYTES: usize = 64 << 10;

pub(super) struct LogQueue {
    state: Mutex<QueueState>,
    /// Notified when the first line waits, and when the lines shall wait no longer.
    filled: Condvar,
    /// Notified when all lines are written.
    drained: Condvar,
    lost: Arc<AtomicU64>,
}

#[derive(Default)]
struct QueueState {
    lines: Vec<u8>,
    /// The lines are written at once.
    is_urgent: bool,
    /// The thread writes lines that it has taken.
    is_writing: bool,
}

impl LogQueue {
    /// Starts the thread, which runs as long as the process.
    pub(super) fn start(output: impl Write + Send + 'static) -> io::Result<Arc<Self>> {
        let queue = Arc::new(LogQueue {
            state: Mutex::default(),
            filled: Condvar::new(),
            drained: Condvar::new(),
            lost: Arc::default(),
        });
        let writing = Arc::clone(&queue);
        std::thread::Builder::new()
            .name("corral-log".to_owned())
            .spawn(move || writing.write_lines(output))?;
        Ok(queue)
    }

    /// The count of lost lines.
    pub(super) fn lost(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.lost)
    }

    /// Waits until all lines are written, but no longer than `time`.
    pub(super) fn flush(&self, time: Duration) {
        let deadline = Instant::now() + time;
        let mut state = self.lock();
        while state.is_writing || !state.lines.is_empty() {
            state.is_urgent = true;
            self.filled.notify_one();
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            let waited = self.drained.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Adds a line, unless more than `limit` bytes would wait.
    fn push(&self, line: &[u8], limit: usize) {
        let mut state = self.lock();
        if state.lines.len() + line.len() > limit {
            self.lost.fetch_add(1, Ordering::Relaxed);
            return;
        }
        let was_empty = state.lines.is_empty();
        state.lines.extend_from_slice(line);
        let is_urgent = limit > MAX_ROUTINE_BYTES || state.lines.len() >= GATHER_BYTES;
        let becomes_urgent = is_urgent && !state.is_urgent;
        state.is_urgent |= is_urgent;
        drop(state);
        if was_empty || becomes_urgent {
            self.filled.notify_one();
        }
    }

    fn write_lines(&self, mut output: impl Write) {
        let mut taken = Vec::new();
        loop {
            let mut state = self.lock();
            state.is_writing = false;
            while state.lines.is_empty() {
                self.drained.notify_all();
                state = self
                    .filled
                    .wait(state)
                    .unwrap_or_else(PoisonError::into_inner);
            }
            let gathered = self
                .filled
                .wait_timeout_while(state, GATHER_TIME, |state| !state.is_urgent);
            let mut state = gathered.unwrap_or_else(PoisonError::into_inner).0;
            std::mem::swap(&mut taken, &mut state.lines);
            state.is_urgent = false;
            state.is_writing = true;
            drop(state);
            // There is no other place to report that stderr is closed.
            let _ = output.write_all(&taken);
            taken.clear();
        }
    }

    fn lock(&self) -> MutexGuard<'_, QueueState> {
        // No code under this lock panics midway.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Puts the lines of events into a queue.
pub(super) struct QueueWriter(pub(super) Arc<LogQueue>);

impl<'a> MakeWriter<'a> for QueueWriter {
    type Writer = LineWriter<'a>;

    fn make_writer(&'a self) -> LineWriter<'a> {
        LineWriter {
            queue: &self.0,
            limit: MAX_ROUTINE_BYTES,
        }
    }

    fn make_writer_for(&'a self, event: &Metadata<'_>) -> LineWriter<'a> {
        let is_important = *event.level() <= Level::WARN || event.target() == AUDIT_TARGET;
        LineWriter {
            queue: &self.0,
            limit: if is_important {
                MAX_BYTES
            } else {
                MAX_ROUTINE_BYTES
            },
        }
    }
}

/// Writes the line of one event.
pub(super) struct LineWriter<'a> {
    queue: &'a LogQueue,
    limit: usize,
}

/// The formatter writes each line at once.
impl Write for LineWriter<'_> {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.queue.push(line, self.limit);
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;
    use tracing_subscriber::fmt;
    use tracing_subscriber::fmt::writer::BoxMakeWriter;
    use tracing_subscriber::layer::SubscriberExt;
    use tracing_subscriber::util::SubscriberInitExt;

    /// Sends each write to a channel; blocks while it is full.
    struct Slow(mpsc::SyncSender<Vec<u8>>);

    impl Write for Slow {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let _ = self.0.send(bytes.to_vec());
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn blocked_output_loses_lines_and_blocks_nobody() {
        let (sender, received) = mpsc::sync_channel(0);
        let queue = LogQueue::start(Slow(sender)).expect("a thread");
        let line = [&[b'x'; 1023][..], b"\n"].concat();
        // What the thread has taken, and a full queue: all others are lost.
        let count = 3 * MAX_BYTES / line.len();
        (0..count).for_each(|_| queue.push(&line, MAX_BYTES));
        queue.flush(Duration::from_millis(1));
        let lost = queue.lost().load(Ordering::Relaxed) as usize;
        assert!(lost >= MAX_BYTES / line.len(), "{lost} of {count}");
        let mut written = 0;
        while written < (count - lost) * line.len() {
            written += received.recv().expect("the thread runs").len();
        }
        assert_eq!(written, (count - lost) * line.len());
        queue.flush(Duration::from_secs(60));
        let state = queue.lock();
        assert!(state.lines.is_empty() && !state.is_writing);
    }

    #[test]
    fn flood_displaces_neither_warnings_nor_audit_log() {
        let (sender, received) = mpsc::sync_channel(0);
        let queue = LogQueue::start(Slow(sender)).expect("a thread");
        let writer = BoxMakeWriter::new(QueueWriter(Arc::clone(&queue)));
        let layer = fmt::layer().with_writer(writer).with_ansi(false);
        let subscriber = tracing_subscriber::registry().with(layer).set_default();
        let long = "x".repeat(1024);
        // What the thread has taken, and a full queue.
        for _ in 0..2 * MAX_BYTES / long.len() {
            tracing::info!("{long}");
        }
        let lost = || queue.lost().load(Ordering::Relaxed);
        let before = lost();
        assert!(before > 0);
        tracing::warn!("a warning: {long}");
        tracing::info!(target: AUDIT_TARGET, "{long}");
        assert_eq!(lost(), before);
        drop(subscriber);
        // It has blocked the thread.
        drop(received);
    }

    #[test]
    fn routine_lines_are_written_together() {
        let (sender, received) = mpsc::sync_channel(0);
        let queue = LogQueue::start(Slow(sender)).expect("a thread");
        for _ in 0..1000 {
            queue.push(b"routine\n", MAX_ROUTINE_BYTES);
        }
        queue.push(b"warning\n", MAX_BYTES);
        let writes = received
            .iter()
            .take_while(|lines| !lines.ends_with(b"warning\n"));
        assert!(writes.count() < 100);
    }

    #[test]
    fn lines_arrive_in_order() {
        let (sender, received) = mpsc::sync_channel(0);
        let queue = LogQueue::start(Slow(sender)).expect("a thread");
        let lines: Vec<_> = (0..100).map(|number| format!("{number}\n")).collect();
        for line in &lines {
            queue.push(line.as_bytes(), MAX_BYTES);
        }
        let all = lines.concat();
        let mut text = Vec::new();
        while text.len() < all.len() {
            text.extend(received.recv().expect("the thread runs"));
        }
        assert_eq!(text, all.as_bytes());
    }
}
