//! Child processes that end with their owner, and clients of their servers.

use crate::TIMEOUT;
use std::process::Child;

/// A child process. Dropping it kills the process.
pub struct KilledOnDrop(pub Child);

impl Drop for KilledOnDrop {
    fn drop(&mut self) {
        // Both fail only if it has ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A client that takes error statuses for responses and uses no proxy.
pub fn http_agent() -> ureq::Agent {
    let config = ureq::Agent::config_builder().http_status_as_error(false);
    let config = config.proxy(None).timeout_global(Some(TIMEOUT));
    let config = config.max_idle_connections(64);
    config.max_idle_connections_per_host(64).build().into()
}
