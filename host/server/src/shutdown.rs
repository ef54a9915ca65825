//! The way down: signal → no longer ready → no new connections → running requests end → gone.

use std::io;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;

/// How far a listener is on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Phase {
    /// Accepts connections and requests.
    Serving,
    /// Accepts nothing; what runs may end.
    Draining,
    /// The time to end is over: connections are dropped.
    Ending,
}

/// Waits until `phase` is at least `wanted`, or its owner is gone.
pub(crate) async fn reached(phase: &mut watch::Receiver<Phase>, wanted: Phase) {
    // An error means that the listener is no more, which is as good as the last phase.
    let _ = phase.wait_for(|now| *now >= wanted).await;
}

/// SIGTERM and SIGINT. None is lost from when this is made, also while nobody waits.
#[derive(Debug)]
pub struct StopSignals {
    terminate: Signal,
    interrupt: Signal,
}

impl StopSignals {
    /// Watches for them from now on. The error is the operating system's, when it refuses the handler.
    pub fn new() -> io::Result<Self> {
        Ok(StopSignals {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
        })
    }

    /// Waits for the next one. Several that came while nobody waited may count as one.
    pub async fn next(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}

/// SIGHUP. None is lost from when this is made, also while nobody waits.
#[derive(Debug)]
pub struct ReloadSignals(Signal);

impl ReloadSignals {
    /// Watches for it from now on. The error is the operating system's, when it refuses the handler.
    pub fn new() -> io::Result<Self> {
        signal(SignalKind::hangup()).map(ReloadSignals)
    }

    /// Waits for the next one. Several that came while nobody waited may count as one.
    pub async fn next(&mut self) {
        self.0.recv().await;
    }
}
