//! Messages to the service manager of the process, systemd's `Type=notify`. Without `NOTIFY_SOCKET` they go nowhere.

use corral_server::Server;
use sd_notify::NotifyState;
use std::convert::Infallible;

/// Checks in the time after which the service manager ends a process that is silent: so many must fail in a row.
const CHECKS: u32 = 4;

/// Reports that the server serves requests.
pub(crate) fn notify_ready() {
    notify(NotifyState::Ready);
}

/// Reports that the server has begun to stop.
pub(crate) fn notify_stopping() {
    notify(NotifyState::Stopping);
}

/// Reports that the server reads its configuration again. [`notify_ready`] ends this.
pub(crate) fn notify_reloading() {
    match NotifyState::monotonic_usec_now() {
        Ok(now) => notify_all(&[NotifyState::Reloading, now]),
        Err(error) => tracing::warn!(%error, "cannot read the clock for the service manager"),
    }
}

fn notify(state: NotifyState<'_>) {
    notify_all(&[state]);
}

fn notify_all(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        tracing::warn!(%error, "cannot notify the service manager");
    }
}

/// Notifies the service manager, if it has a watchdog, while the server and the engines make progress.
pub(crate) async fn run_watchdog(server: &Server) -> Infallible {
    let Some(timeout) = sd_notify::watchdog_enabled() else {
        return std::future::pending().await;
    };
    let patience = timeout / (2 * CHECKS);
    loop {
        match server.check_liveness(patience).await {
            Ok(()) => notify(NotifyState::Watchdog),
            Err(problem) => tracing::warn!(
                %problem,
                "the service manager is not notified; without progress in {} s it restarts the server",
                timeout.as_secs_f64()
            ),
        }
        tokio::time::sleep(patience).await;
    }
}
