//! `[limits]`: what a deployment may use, where it differs from the server's defaults.

use super::bounded_number::{BoundedInteger, BoundedSeconds};
use corral_runtime::QuotaLimits;
use serde::{Deserialize, Serialize};

/// Limits of a deployment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Deserialize, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct RequestedLimits {
    /// Memory of one instance, in MiB. Times 'concurrent-requests' it must fit into the machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_mib: Option<BoundedInteger<1, 4096>>,
    /// Time limit of a request, from its arrival to the end of its response. Its generations then end with an
    /// error, which the plugin reports; a plugin that still runs a while later, at most 10 s, is stopped.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time_seconds: Option<BoundedSeconds>,
    /// CPU time limit of a request; waiting does not count. At most 'time-seconds'.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_seconds: Option<BoundedSeconds>,
    /// Largest body of a request, in KiB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request_kib: Option<BoundedInteger<1, 4_194_304>>,
    /// Largest body of a response, in KiB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub response_kib: Option<BoundedInteger<1, 4_194_304>>,
    /// Concurrent requests, each in an instance of its own; running requests of other revisions count. At
    /// most 7/8 of the server's pool of instances.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub concurrent_requests: Option<BoundedInteger<1, 10_000>>,
    /// Requests that may wait for a free instance; further ones are refused. At most 16 per instance of
    /// the pool.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queued_requests: Option<BoundedInteger<0, 1_000_000>>,
    /// How long a generation may wait in the model's queue before it is refused. At most 'time-seconds',
    /// which is the default. The request has an instance by then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue_time_seconds: Option<BoundedSeconds>,
    /// Share of each model's KV cells that its running sequences may occupy together. A prompt that needs
    /// more is refused; a response that grows beyond is cut.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kv_cells_percent: Option<BoundedInteger<1, 100>>,
    /// Requests per minute.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requests_per_minute: Option<BoundedInteger<1, 1_000_000_000>>,
    /// Tokens of one request: those of its prompts and those it may generate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens_per_request: Option<BoundedInteger<1, 1_000_000_000>>,
    /// Tokens per minute, of all requests.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens_per_minute: Option<BoundedInteger<1, 1_000_000_000_000>>,
    /// Tokens per 24 hours, of all requests.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens_per_day: Option<BoundedInteger<1, 1_000_000_000_000>>,
}

impl RequestedLimits {
    pub(super) fn is_none(&self) -> bool {
        *self == RequestedLimits::default()
    }

    /// The limits that form the quota of all clients together.
    pub(super) fn quota_limits(&self) -> QuotaLimits {
        // The range fits 32 bits.
        let requests = |number: BoundedInteger<1, 1_000_000_000>| u32::try_from(number.get());
        QuotaLimits {
            concurrent: None,
            requests_per_minute: self
                .requests_per_minute
                .map(|number| requests(number).unwrap_or(u32::MAX)),
            tokens_per_request: self.tokens_per_request.map(BoundedInteger::get),
            tokens_per_minute: self.tokens_per_minute.map(BoundedInteger::get),
            tokens_per_day: self.tokens_per_day.map(BoundedInteger::get),
        }
    }
}
