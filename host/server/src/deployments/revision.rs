//! What is kept of a deployment: its revisions, and who of them gets how much of its requests.

use super::digest::Digest;
use super::manifest::Manifest;
use serde::{Deserialize, Serialize};

/// Largest weight in a split.
pub const WEIGHT: u32 = 10_000;

/// One deploy, as it was; never changed afterwards.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Revision {
    /// Its number within the deployment: 1, 2, …; none is given twice, also where the deployment was
    /// removed and another one has its name now.
    pub number: u64,
    /// The component's digest.
    pub component: Digest,
    /// The component's size.
    pub component_bytes: u64,
    /// When it was deployed, in milliseconds since 1970.
    pub created_ms: u64,
    /// The manifest; its component is the digest, and so are those that it is linked with.
    pub manifest: Manifest,
}

impl Revision {
    /// The components that it needs.
    pub(super) fn components(&self) -> impl Iterator<Item = Digest> {
        // A revision is kept with digests only.
        let links = self.manifest.links.digests().unwrap_or_default();
        std::iter::once(self.component).chain(links)
    }
}

/// A revision's part of a deployment's requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Share {
    /// The revision's number.
    pub revision: u64,
    /// Its part of the sum of all weights, from 1 to 10000.
    #[cfg_attr(test, schemars(range(min = 1, max = 10_000)))]
    pub weight: u32,
}

/// What changes about a deployment.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Record {
    /// The number of its latest revision.
    pub latest: u64,
    /// Who gets its requests; never empty.
    pub traffic: Vec<Share>,
    /// Who got them before the last change, for a roll back.
    pub before: Vec<Share>,
    /// Its requests are refused for now.
    pub paused: bool,
}
