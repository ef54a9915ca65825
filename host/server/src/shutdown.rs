//! Shutdown: signal → not ready → no new connections → running requests end → exit.

use std::io;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;

/// The phase of a listener. Phases only advance.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum ListenerPhase {
    /// Accepts nothing yet: clients wait in the backlog.
    Waiting,
    /// Accepts connections and requests.
    Serving,
    /// Accepts nothing; running requests may end.
    Draining,
    /// The grace period is over: connections are dropped.
    Ending,
}

/// Waits until `phase` is at least `wanted`, or the listener is gone.
pub(crate) async fn reached(phase: &mut watch::Receiver<ListenerPhase>, wanted: ListenerPhase) {
    // An error means that the listener is gone, which equals the last phase.
    let _ = phase.wait_for(|now| *now >= wanted).await;
}

/// SIGTERM and SIGINT. No signal is lost after construction.
#[derive(Debug)]
pub struct StopSignals {
    terminate: Signal,
    interrupt: Signal,
}

impl StopSignals {
    /// Installs the signal handlers.
    pub fn new() -> io::Result<Self> {
        Ok(StopSignals {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
        })
    }

    /// Waits for the next signal. Signals since the last call may count as one.
    pub async fn next(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}
