//! The priority of a server's threads, beside other programs that keep the cores busy.

use rustix::process::{getpriority_process, setpriority_process};

/// Niceness of a server. Linux gives a thread of this niceness three times the time of one with 0 on the same core, within a
/// session or a control group.
const NICENESS: i32 = -5;

/// Raises the priority of this thread and of those that it starts, if the process has the right to. A process that was started
/// with another niceness than 0 keeps that.
pub fn raise() {
    if !matches!(getpriority_process(None), Ok(0)) {
        return;
    }
    match setpriority_process(None, NICENESS) {
        Ok(()) => tracing::debug!(niceness = NICENESS, "raised the priority"),
        Err(error) => tracing::debug!(%error, "the server runs at normal priority"),
    }
}
