//! The way down: signal → no longer ready → no new connections → running requests end → gone.

use std::io;
use tokio::signal::unix::{SignalKind, signal};
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

/// Waits for SIGTERM or SIGINT. Each call waits for a new one, so that whoever is asked twice can
/// hurry. The error is the operating system's, when it refuses the handler.
pub async fn stop_signal() -> io::Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    Ok(())
}

/// Waits for SIGHUP. Each call waits for a new one. The error is as that of [`stop_signal`].
pub async fn reload_signal() -> io::Result<()> {
    signal(SignalKind::hangup())?.recv().await;
    Ok(())
}
