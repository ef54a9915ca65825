//! Counters of one deployment, over all its revisions.

use super::{CallLimit, Counter};
use corral_engine::{Error, GenerationMetrics, Metric};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use strum::{IntoStaticStr, VariantArray};

/// Why the host refused or ended an outgoing request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "kebab-case")]
pub(crate) enum OutboundRefusal {
    /// There is no grant for its scheme, host and port.
    Grant,
    /// The grant does not allow its method.
    Method,
    /// It names no host in its usual form.
    Host,
    /// Its host has no address that is public or granted.
    Address,
    /// No connection was free in time.
    Connections,
    /// A body was too large.
    Body,
    /// The headers of a response were too large.
    Headers,
    /// The connection, the response or the next part of it did not come in time.
    Time,
    /// Too many calls of deployments are within each other.
    Depth,
}

/// A kind of resources that a call holds in the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, VariantArray)]
pub(crate) enum ResourceKind {
    Models,
    Constraints,
    Matchers,
    Options,
    /// Bytes of texts and biases in options.
    OptionBytes,
    Sequences,
    /// Generations of guests that cannot await. Others hold theirs as streams.
    Generations,
    /// Tokens of all sequences.
    Tokens,
    /// Bytes in resources of `wasi:http`.
    HttpBytes,
}

impl ResourceKind {
    /// Name and help of its metric, and its label if several kinds share the metric.
    fn metric(self) -> (&'static str, &'static str, Option<&'static str>) {
        let label = match self {
            Self::Models => "models",
            Self::Constraints => "constraints",
            Self::Matchers => "matchers",
            Self::Options => "options",
            Self::Sequences => "sequences",
            Self::Generations => "generations",
            Self::HttpBytes => {
                return (
                    "corral_deployment_http_bytes",
                    "Bytes of headers and requests that running calls made and the host holds, by deployment.",
                    None,
                );
            }
            Self::OptionBytes => {
                return (
                    "corral_deployment_option_bytes",
                    "Bytes of texts and biases in the generation options of running calls, by deployment.",
                    None,
                );
            }
            Self::Tokens => {
                return (
                    "corral_deployment_sequence_tokens",
                    "Tokens in the sequences of running calls, generated tokens excluded, by deployment.",
                    None,
                );
            }
        };
        (
            "corral_deployment_handles",
            "Handles that running calls hold, by deployment and kind.",
            Some(label),
        )
    }
}

counters! {
    /// Counters of one deployment.
    DeploymentCounters {
        /// Requests that the host answered with an error, by its code.
        requests_refused: Mutex<BTreeMap<&'static str, u64>>,
        /// By model that the deployment used; the command line bounds their number.
        generations: Mutex<BTreeMap<String, Arc<GenerationMetrics>>>,
        limit_hits: [Counter; CallLimit::ALL.len()],
        resources: [Counter; ResourceKind::VARIANTS.len()],
        outbound_refusals: [Counter; OutboundRefusal::VARIANTS.len()],
    }
    /// Requests, by deployment.
    pub(crate) requests: Counter = "corral_deployment_requests_total",
    /// Running calls, by deployment.
    pub(crate) calls_running: Gauge = "corral_deployment_calls_running",
    /// Permits of the instance pool that running calls hold, each for up to 4 stacks, by deployment.
    pub(crate) pool_permits: Gauge = "corral_deployment_pool_permits",
    /// Instances that wait for another call, by deployment.
    pub(crate) instances_waiting: Gauge = "corral_deployment_instances_waiting",
    /// Calls that used an instance of an earlier call, by deployment.
    pub(crate) instances_reused: Counter = "corral_deployment_instances_reused_total",
    /// Calls waiting for a permit, by deployment.
    pub(crate) calls_waiting: Gauge = "corral_deployment_calls_waiting",
    /// Times a call was woken and polled, by deployment.
    pub(crate) guest_polls: Counter = "corral_deployment_guest_polls_total",
    /// Turns of calls that computed for long, by deployment.
    pub(crate) compute_turns: Counter = "corral_deployment_compute_turns_total",
    /// Calls of corral:inference functions, by deployment. A call that waits may count several times.
    pub(crate) host_calls: Counter = "corral_deployment_host_calls_total",
    /// Polls of generations by plugins or connections, by deployment.
    pub(crate) generation_polls: Counter = "corral_deployment_generation_polls_total",
    /// Chunks of generations that plugins or connections read, by deployment.
    pub(crate) generation_chunks: Counter = "corral_deployment_generation_chunks_total",
    /// Frames of plugins' response bodies, by deployment.
    response_frames: Counter = "corral_deployment_response_frames_total",
    /// Bytes of plugins' response bodies, by deployment.
    response_bytes: Counter = "corral_deployment_response_bytes_total",
    /// Responses whose header x-corral-ignored names fields of the request that had no effect, by deployment.
    pub(crate) ignored_fields: Counter = "corral_deployment_responses_with_ignored_fields_total",
    /// Times a plugin's memory grew beyond its initial size, by deployment.
    pub(crate) memory_growths: Counter = "corral_deployment_memory_growths_total",
    /// Outgoing HTTP requests, refused ones included, by deployment.
    pub(crate) outbound_requests: Counter = "corral_deployment_outbound_requests_total",
    /// Outgoing HTTP requests that the network or the other server failed, by deployment.
    pub(crate) outbound_failures: Counter = "corral_deployment_outbound_failures_total",
    /// Connections of outgoing HTTP requests that are open or being opened, by deployment.
    pub(crate) outbound_connections: Gauge = "corral_deployment_outbound_connections",
    /// Bytes of the bodies of outgoing HTTP requests, by deployment.
    pub(crate) outbound_sent_bytes: Counter = "corral_deployment_outbound_sent_bytes_total",
    /// Bytes of the bodies of responses to outgoing HTTP requests, by deployment.
    pub(crate) outbound_received_bytes: Counter = "corral_deployment_outbound_received_bytes_total",
}

impl DeploymentCounters {
    /// Counts a request that the host answered with this error code.
    pub(crate) fn request_refused(&self, code: &'static str) {
        let mut refused = self
            .requests_refused
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        *refused.entry(code).or_default() += 1;
    }

    /// Counts a call or generation that `limit` stopped.
    pub(crate) fn limit_hit(&self, limit: CallLimit) {
        self.limit_hits[limit as usize].increment();
    }

    /// Counts an outgoing request that the host refused or ended.
    pub(crate) fn outbound_refused(&self, refusal: OutboundRefusal) {
        self.outbound_refusals[refusal as usize].increment();
    }

    /// Number of resources of one kind that the calls hold.
    pub(super) fn resource_count(&self, kind: ResourceKind) -> &Counter {
        &self.resources[kind as usize]
    }

    /// Counts a frame of a response body.
    pub(crate) fn frame_sent(&self, bytes: u64) {
        self.response_frames.increment();
        self.response_bytes.add(bytes);
    }

    /// Counts a hit of [`CallLimit::Cells`] in the engine's answer to a new request. The engine reports a
    /// limit below the model's `context` only for the deployment's share of the cells.
    pub(crate) fn count_cells_limit<T>(
        &self,
        result: Result<T, Error>,
        context: u32,
    ) -> Result<T, Error> {
        if matches!(result, Err(Error::ContextFull { limit, .. }) if limit < context) {
            self.limit_hit(CallLimit::Cells);
        }
        result
    }

    /// Counts a hit of [`CallLimit::QueueTime`] in the outcome of a request to the engine.
    pub(crate) fn count_queue_timeout<T>(&self, result: Result<T, Error>) -> Result<T, Error> {
        if matches!(result, Err(Error::QueueTimeout { .. })) {
            self.limit_hit(CallLimit::QueueTime);
        }
        result
    }

    /// The metrics of its generations on a model.
    pub(crate) fn generations(&self, model: &str) -> Arc<GenerationMetrics> {
        let mut all = self
            .generations
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        match all.get(model) {
            Some(metrics) => Arc::clone(metrics),
            None => Arc::clone(all.entry(model.to_owned()).or_default()),
        }
    }

    /// The metrics of all models. A copy, so that no generation waits for a scrape.
    fn all_generations(&self) -> Vec<(String, Arc<GenerationMetrics>)> {
        let all = self
            .generations
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        all.iter()
            .map(|(model, metrics)| (model.clone(), Arc::clone(metrics)))
            .collect()
    }

    /// How often each limit stopped a call or generation.
    pub(crate) fn limit_hits(&self) -> impl Iterator<Item = (CallLimit, u64)> {
        let counts = CallLimit::ALL.iter().copied().zip(&self.limit_hits);
        counts.map(|(limit, count)| (limit, count.get()))
    }

    /// All counters but those of limits, as metrics.
    pub(crate) fn metrics(&self) -> Vec<Metric> {
        let mut metrics = self.table_metrics();
        let refused = self
            .requests_refused
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        for (code, count) in &*refused {
            let metric = Metric::counter(
                "corral_deployment_requests_refused_total",
                "Requests that the host answered with an error, by deployment and error code.",
                *count,
            );
            metrics.push(metric.with_label("code", *code));
        }
        for (model, generations) in self.all_generations() {
            for mut metric in generations.samples() {
                metric.labels.insert(0, ("model", model.clone()));
                metrics.push(metric);
            }
        }
        let refused = OutboundRefusal::VARIANTS.iter();
        for (reason, count) in refused.zip(&self.outbound_refusals) {
            let metric = Metric::counter(
                "corral_deployment_outbound_refused_total",
                "Outgoing HTTP requests that the host refused or ended, by deployment and reason.",
                count.get(),
            );
            let reason: &str = reason.into();
            metrics.push(metric.with_label("reason", reason));
        }
        for kind in ResourceKind::VARIANTS.iter().copied() {
            let (name, help, label) = kind.metric();
            let count = self.resource_count(kind).get() as f64;
            let metric = Metric::gauge(name, help, count);
            metrics.push(match label {
                Some(label) => metric.with_label("kind", label),
                None => metric,
            });
        }
        metrics
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn total(counters: &DeploymentCounters) -> u64 {
        counters.limit_hits().map(|(_, count)| count).sum()
    }

    #[test]
    fn each_limit_has_its_own_count() {
        let counters = DeploymentCounters::default();
        for (times, limit) in CallLimit::ALL.iter().copied().enumerate() {
            (0..times).for_each(|_| counters.limit_hit(limit));
        }
        let expected = CallLimit::ALL.iter().copied().zip(0..);
        assert!(counters.limit_hits().eq(expected));
    }

    #[test]
    fn each_refusal_has_its_own_count() {
        let counters = DeploymentCounters::default();
        for (times, refusal) in OutboundRefusal::VARIANTS.iter().enumerate() {
            (0..times).for_each(|_| counters.outbound_refused(*refusal));
        }
        let counts = counters.outbound_refusals.iter().map(Counter::get);
        assert!(counts.eq(0..OutboundRefusal::VARIANTS.len() as u64));
    }

    #[test]
    fn each_resource_has_its_own_metric() {
        let counters = DeploymentCounters::default();
        for (count, kind) in (11..).zip(ResourceKind::VARIANTS) {
            counters.resource_count(*kind).add(count);
        }
        let metrics = counters.metrics();
        let named: BTreeMap<_, _> = metrics
            .iter()
            .map(|metric| ((metric.name, metric.labels.clone()), metric.value))
            .collect();
        assert_eq!(named.len(), metrics.len(), "no two are alike");
        let values = named.into_values().filter(|value| *value > 0.0);
        let mut values: Vec<_> = values.collect();
        values.sort_by(f64::total_cmp);
        let expected: Vec<_> = (11..20).map(f64::from).collect();
        assert_eq!(values, expected);
    }

    #[test]
    fn frames_and_bytes_are_counted_apart() {
        let counters = DeploymentCounters::default();
        (0..4).for_each(|_| counters.frame_sent(10));
        let (frames, bytes) = (
            counters.response_frames.get(),
            counters.response_bytes.get(),
        );
        assert_eq!((frames, bytes), (4, 40));
    }

    #[test]
    fn only_overdue_requests_count_as_queue_time() {
        let counters = DeploymentCounters::default();
        let (reason, retry_after) = (String::new(), Duration::ZERO);
        let refused = Error::Overloaded {
            reason: reason.clone(),
            retry_after,
        };
        let overdue = Error::QueueTimeout {
            reason,
            retry_after,
        };
        for (result, count) in [
            (Ok(()), 0),
            (Err(Error::DeadlineExceeded), 0),
            (Err(refused), 0),
            (Err(overdue), 1),
        ] {
            let text = format!("{result:?}");
            let _ = counters.count_queue_timeout(result);
            assert_eq!(total(&counters), count, "{text}");
        }
    }

    #[test]
    fn only_the_deployments_share_counts_as_cells() {
        let counters = DeploymentCounters::default();
        let full = |limit| Err::<(), _>(Error::ContextFull { needed: 9, limit });
        let _ = (
            counters.count_cells_limit(full(8), 8),
            counters.count_cells_limit(Ok(()), 8),
        );
        assert_eq!(total(&counters), 0);
        let _ = counters.count_cells_limit(full(7), 8);
        let mut hits = counters.limit_hits();
        assert!(hits.any(|hit| hit == (CallLimit::Cells, 1)));
        assert_eq!(total(&counters), 1);
    }
}
