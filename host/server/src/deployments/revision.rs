//! The stored state of a deployment: its revisions and the distribution of its requests.

use super::artifact::ArtifactReference;
use super::digest::Digest;
use super::manifest::Manifest;
use serde::{Deserialize, Serialize};

/// Largest weight of a revision.
pub const MAX_WEIGHT: u32 = 10_000;

/// One deploy. Immutable.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Revision {
    /// Number within the deployment: 1, 2, … Never reused, even after the deployment was removed and
    /// created again.
    pub number: u64,
    /// Digest of the component.
    pub component: Digest,
    /// Size of the component.
    pub component_bytes: u64,
    /// Time of the deploy, in milliseconds since 1970.
    pub created_ms: u64,
    /// The artifact that it was deployed from, with its digest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<ArtifactReference>,
    /// The manifest, which names all components by digest.
    pub manifest: Manifest,
}

impl Revision {
    /// The components that the revision references.
    pub(super) fn components(&self) -> impl Iterator<Item = Digest> {
        // Stored manifests name components by digest only.
        let linked = self.manifest.linked.digests().unwrap_or_default();
        std::iter::once(self.component).chain(linked)
    }
}

/// A revision's share of a deployment's requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct TrafficShare {
    /// Number of the revision.
    pub revision: u64,
    /// Its part of the sum of all weights, from 1 to 10000.
    #[cfg_attr(test, schemars(range(min = 1, max = 10_000)))]
    pub weight: u32,
}

impl TrafficShare {
    /// All requests for `revision`, if no other share exists.
    pub(super) fn all(revision: u64) -> Self {
        TrafficShare {
            revision,
            weight: 1,
        }
    }
}

/// The mutable state of a deployment.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct DeploymentRecord {
    /// Number of the latest revision.
    pub latest_revision: u64,
    /// Distribution of requests; never empty.
    pub traffic: Vec<TrafficShare>,
    /// Distribution before the last change, for a rollback.
    pub previous_traffic: Vec<TrafficShare>,
    /// Whether requests are refused.
    pub paused: bool,
}

impl DeploymentRecord {
    /// Changes the traffic and remembers the previous one.
    pub(super) fn set_traffic(&mut self, traffic: Vec<TrafficShare>) {
        if self.traffic != traffic {
            self.previous_traffic = std::mem::replace(&mut self.traffic, traffic);
        }
    }
}
