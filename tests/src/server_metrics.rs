//! Metrics of a running server, and waits for them.

use crate::metrics::Metrics;
use crate::server::wait_for;
use crate::{Corral, TIMEOUT};
use std::time::{Duration, Instant};

/// Metrics that are 0 when nothing runs.
const IDLE_ZERO: [&str; 25] = [
    "corral_engine_requests_waiting",
    "corral_engine_requests_running",
    "corral_engine_sequence_ids_used",
    "corral_engine_kv_cells_used",
    "corral_engine_kv_cells_reserved",
    "corral_engine_kv_cells_leaked",
    "corral_engine_attention_cells",
    "corral_plugin_calls_waiting",
    "corral_plugin_calls_waiting_for_turn",
    "corral_plugin_instances",
    "corral_sampling_plugin_instances",
    "corral_deployment_calls_running",
    "corral_deployment_calls_waiting",
    "corral_http_requests_in_flight",
    "corral_http_unsent_bytes",
    "corral_engine_steps_failed_total",
    "corral_engine_unread_tokens",
    "corral_tokenization_bytes",
    "corral_tokenizations_waiting",
    "corral_plugin_stacks",
    "corral_deployment_handles",
    "corral_deployment_pool_permits",
    "corral_deployment_option_bytes",
    "corral_deployment_sequence_tokens",
    "corral_deployment_http_bytes",
];

impl Corral {
    /// The current metrics.
    pub fn metrics(&self) -> Metrics {
        let answer = self.get_admin("/metrics");
        assert_eq!(answer.status, 200, "{answer:?}");
        Metrics::read(&answer.body)
    }

    /// Waits until `condition` holds and returns the metrics.
    pub fn wait_until(&self, what: &str, condition: impl Fn(&Metrics) -> bool) -> Metrics {
        wait_for(what, || {
            Some(self.metrics()).filter(|metrics| condition(metrics))
        })
    }

    /// The growth of the engine's counter of computed tokens while `act` runs. The server is idle before and after.
    pub fn computed_tokens(&self, act: impl FnOnce()) -> f64 {
        let before = self.wait_until_idle();
        act();
        let after = self.wait_until_idle();
        after.growth("corral_engine_computed_tokens_total", &before)
    }

    /// Waits until `waiting` requests are in the queue.
    pub fn wait_for_queue(&self, waiting: usize) -> Metrics {
        self.wait_until(&format!("a queue of {waiting}"), |metrics| {
            metrics.get("corral_engine_requests_waiting") == waiting as f64
        })
    }

    /// Waits until no request, instance, sequence or cell is in use, and returns the metrics. Panics if
    /// something is left over or the token identity does not hold.
    ///
    /// The engine updates its gauges between steps, so a request before its first step is invisible. Five
    /// equal scrapes in a row count as idle.
    pub fn wait_until_idle(&self) -> Metrics {
        let started = Instant::now();
        let (mut quiet, mut computed) = (0, -1.0);
        loop {
            let metrics = self.metrics();
            let left = metrics.nonzero(&IDLE_ZERO);
            let now = metrics.get("corral_engine_computed_tokens_total");
            quiet = if left.is_empty() && now == computed {
                quiet + 1
            } else {
                0
            };
            computed = now;
            if quiet == 5 {
                metrics.check_token_identity();
                return metrics;
            }
            assert!(started.elapsed() < TIMEOUT, "still in use: {left:?}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}
