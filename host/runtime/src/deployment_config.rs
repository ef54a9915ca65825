//! The configuration of a deployment and the secrets that it is granted.

use crate::secrets::Secrets;
use std::collections::{BTreeMap, BTreeSet};

/// What a deployment may read.
#[derive(Debug)]
pub(crate) struct DeploymentConfig {
    /// Its configuration.
    pub(crate) values: BTreeMap<String, String>,
    /// Names of the secrets that it is granted.
    pub(crate) granted: BTreeSet<String>,
    /// The secrets of the server.
    pub(crate) secrets: Secrets,
}
