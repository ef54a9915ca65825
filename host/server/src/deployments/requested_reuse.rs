//! How many requests reuse an instance, as a manifest asks for it.

use super::bounded_number::{BoundedInteger, BoundedSeconds};
use corral_runtime::Reuse;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Instances that wait, if the manifest does not say.
const INSTANCES: usize = 4;
/// Requests of an instance.
const REQUESTS: u32 = 1000;
/// Age of an instance.
const AGE: Duration = Duration::from_secs(300);

/// Lets requests of one tenant reuse an instance. An instance serves one request at a time, and only the tenant of
/// its first one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Deserialize, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct RequestedReuse {
    /// Instances that may wait for a request, 4 if omitted. Each keeps its memory. All deployments together have a quarter
    /// of the server's pool for them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instances: Option<BoundedInteger<1, 64>>,
    /// Requests of an instance, 1,000 if omitted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requests: Option<BoundedInteger<2, 1_000_000>>,
    /// Seconds from its start until it takes no further request, 300 if omitted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub age_seconds: Option<BoundedSeconds>,
}

impl RequestedReuse {
    /// The runtime's settings.
    pub(super) fn reuse(self) -> Reuse {
        let calls = self.requests.and_then(|n| u32::try_from(n.get()).ok());
        Reuse {
            instances: self.instances.map_or(INSTANCES, |n| n.times(1)),
            calls: calls.unwrap_or(REQUESTS),
            age: self.age_seconds.map_or(AGE, BoundedSeconds::duration),
        }
    }
}
