//! How long threads waited for a core in a run queue, as Linux counts it in `schedstat`. Elsewhere it is unknown.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Duration;

thread_local! {
    static CURRENT: Option<QueueDelay> = QueueDelay::of(Path::new("/proc/thread-self"));
}

/// How long the calling thread has waited for a core so far.
pub fn queue_delay() -> Option<Duration> {
    CURRENT.with(|current| current.as_ref()?.read())
}

/// Reads the delay of one thread.
pub(crate) struct QueueDelay(File);

impl QueueDelay {
    /// `task` is the thread's directory below `/proc`.
    fn of(task: &Path) -> Option<Self> {
        File::open(task.join("schedstat")).ok().map(Self)
    }

    /// How long the thread has waited for a core so far.
    pub fn read(&self) -> Option<Duration> {
        // Three numbers of at most 20 digits.
        let mut text = [0; 64];
        let length = self.0.read_at(&mut text, 0).ok()?;
        parse(text.get(..length)?)
    }
}

/// The second number of a `schedstat`: nanoseconds in a run queue.
fn parse(schedstat: &[u8]) -> Option<Duration> {
    let text = std::str::from_utf8(schedstat).ok()?;
    let nanos = text.split_ascii_whitespace().nth(1)?.parse().ok()?;
    Some(Duration::from_nanos(nanos))
}

/// Runs `start` in a thread of this name, and finds the threads that it leaves behind: they inherit the name. `None`
/// for the threads if the system doesn't tell.
pub(crate) fn start_named<T: Send>(
    name: &str,
    start: impl FnOnce() -> T + Send,
) -> std::io::Result<(T, Option<Vec<QueueDelay>>)> {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new()
            .name(name.to_owned())
            .spawn_scoped(scope, || {
                let started = start();
                (started, others_of_name(name))
            })?;
        thread.join().map_err(|_| std::io::ErrorKind::Other.into())
    })
}

/// The other threads of this process with the name of the calling one.
fn others_of_name(name: &str) -> Option<Vec<QueueDelay>> {
    let own = fs::read_link("/proc/thread-self").ok()?;
    let mut found = Vec::new();
    for task in fs::read_dir("/proc/self/task").ok()? {
        let task = task.ok()?.path();
        // A thread may end meanwhile.
        let other = fs::read_to_string(task.join("comm")).unwrap_or_default();
        if other.trim_end() == name && task.file_name() != own.file_name() {
            found.push(QueueDelay::of(&task)?);
        }
    }
    Some(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::{Receiver, channel};

    #[test]
    fn delay_is_second_number() {
        let parse = |text: &str| parse(text.as_bytes());
        assert_eq!(parse("5 2500 3\n"), Some(Duration::from_nanos(2500)));
        assert_eq!(parse("5"), None);
        assert_eq!(parse("5 x 3"), None);
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn started_threads_are_found_by_name() {
        assert!(queue_delay().is_some());
        let (ends, receivers): (Vec<_>, Vec<_>) = (0..3).map(|_| channel::<()>()).unzip();
        let start = || {
            // `std::thread` would give each its own name.
            let wait =
                |receiver: Receiver<()>| std::thread::Builder::new().spawn(move || receiver.recv());
            receivers.into_iter().map(wait).collect::<Vec<_>>()
        };
        let (threads, delays) = start_named("delay-test", start).expect("a thread starts");
        let delays = delays.expect("Linux tells");
        assert_eq!(delays.len(), 3);
        assert!(delays.iter().all(|delay| delay.read().is_some()));
        drop(ends);
        for thread in threads {
            let _ = thread.expect("it started").join();
        }
    }
}
