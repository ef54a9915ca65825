//! The caller of a request: its tenant, priority, latency, quota and time limits.

use corral_scheduler::{CellQuota, Latency, PrefixScope, Priority, QuotaGroup, Tenant};
use sha2::{Digest, Sha256};
use std::time::{Duration, Instant};

/// The fraction of a model's KV cells that one group of callers may hold together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CellShare {
    /// Callers of the same group hold it together.
    pub group: u32,
    /// Percentage of the cells, from 1 to 100.
    pub percent: u8,
}

impl CellShare {
    /// The share in cells of a model with `cells` of them. At least 2: a prompt token and one generated token.
    pub fn of(self, cells: u32) -> CellQuota {
        let part = (u64::from(cells) * u64::from(self.percent)).div_ceil(100);
        CellQuota {
            group: QuotaGroup(self.group),
            cells: u32::try_from(part).unwrap_or(u32::MAX).max(2),
        }
    }
}

/// Names a scope of prefixes the same way in every process, so that its prefixes on disk are found again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PrefixOwner([u8; 32]);

impl PrefixOwner {
    /// The owner of this name among those of a kind.
    pub fn new(kind: &str, name: &str) -> Self {
        let hash = Sha256::new().chain_update(kind).chain_update([0]);
        Self(hash.chain_update(name).finalize().into())
    }

    /// The digest of kind and name.
    pub fn digest(&self) -> &[u8; 32] {
        &self.0
    }
}

/// Identifies the caller of a request and bounds how long the request may take.
#[derive(Clone, Copy, Debug, Default)]
pub struct Caller {
    /// The scheduler divides service fairly among tenants.
    pub tenant: Tenant,
    /// Shares cached prefixes with all callers of this group. `None` shares within the tenant alone.
    pub prefix_group: Option<u32>,
    /// The owner of the caller's [scope](Self::scope), always the same for a scope. `None` keeps its prefixes from the disk.
    pub prefix_owner: Option<PrefixOwner>,
    /// Cells that the running requests of the caller's group may hold together; also bounds each
    /// request's length. `None` for all cells of the model.
    pub cell_share: Option<CellShare>,
    /// The scheduler admits requests of a higher priority first.
    pub priority: Priority,
    /// Its targets for the gap between tokens and for the first token.
    pub latency: Latency,
    /// Longest time in the queue; after it the request fails with [`Error::QueueTimeout`](crate::Error::QueueTimeout).
    pub queue_time: Option<Duration>,
    /// When the request fails, wherever it is. Within a tenant the earliest deadline goes first.
    pub deadline: Option<Instant>,
}

impl Caller {
    /// The scope within which the caller's requests reuse prefixes.
    pub fn scope(&self) -> PrefixScope {
        match self.prefix_group {
            Some(group) => PrefixScope((1 << 32) | u64::from(group)),
            None => PrefixScope(u64::from(self.tenant.0)),
        }
    }
}
