//! Requests and responses of the admin API, as JSON. `openapi.json` is generated from these types.

use crate::deployments::artifact::ArtifactReference;
use crate::deployments::{
    DeploymentName, Deployments, Digest, HostStatus, LinkedComponents, Revision, ServingDeployment,
    ServingRevision, StoredDeployment, TrafficShare,
};
use crate::triggers::ScheduleStatus;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Whether a deployment, or a revision, answers requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub(super) enum ServingState {
    /// It answers requests.
    Serving,
    /// Its requests are refused until it is resumed.
    Paused,
    /// A developing server compiles it for the first time.
    Compiling,
    /// It could not be loaded.
    Failed,
}

/// A deployment.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub(super) struct DeploymentStatus {
    /// Name, or the route of a deployment of the command line.
    pub(super) name: String,
    /// Whether the store holds it; false for deployments of the command line.
    pub(super) stored: bool,
    /// Whether it answers requests.
    pub(super) state: ServingState,
    /// Path prefixes that it answers.
    pub(super) routes: Vec<String>,
    /// Number of the latest revision; 0 for deployments of the command line.
    pub(super) latest_revision: u64,
    /// Revisions that receive its requests.
    pub(super) traffic: Vec<RevisionStatus>,
}

/// A revision that receives requests.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub(super) struct RevisionStatus {
    /// Number of the revision.
    pub(super) revision: u64,
    /// Its share of the sum of all weights.
    pub(super) weight: u32,
    /// Whether it answers requests.
    pub(super) state: ServingState,
    /// Why it does not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) error: Option<String>,
    /// Its linked components, by digest.
    #[serde(default, skip_serializing_if = "LinkedComponents::is_none")]
    pub(super) linked: LinkedComponents,
    /// The artifact that it was deployed from, with its digest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) source: Option<ArtifactReference>,
    /// What its initialization did, if the manifest has 'initialize'.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) initialized: Option<InitializedStatus>,
}

/// What an initialization did.
#[derive(Clone, Copy, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub(super) struct InitializedStatus {
    /// Instructions that it took. Instances no longer take them.
    pub(super) instructions: u64,
    /// Bytes by which the component grew.
    pub(super) added_bytes: u64,
}

/// All deployments.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub(super) struct DeploymentList {
    /// HOST:PORT of the public listener.
    pub(super) public_address: String,
    /// Whether the public listener uses TLS.
    pub(super) public_tls: bool,
    /// Whether the server runs with '--develop'.
    pub(super) develop: bool,
    /// Whether the server is in a cluster, whose hosts 'GET /cluster' lists.
    pub(super) cluster: bool,
    /// The deployments, by name.
    pub(super) deployments: Vec<DeploymentStatus>,
}

/// A cluster, as one of its hosts knows it.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub(super) struct ClusterStatus {
    /// Addresses of NATS.
    pub(super) servers: String,
    /// Id of the host that answers.
    pub(super) host: String,
    /// Whether that host could ask NATS. Otherwise it lists itself alone.
    pub(super) connected: bool,
    /// Why it could not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) error: Option<String>,
    /// The live hosts.
    pub(super) hosts: Vec<HostStatus>,
}

/// A deployment with its revisions.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub(super) struct DeploymentDetails {
    /// HOST:PORT of the public listener.
    pub(super) public_address: String,
    /// Whether the public listener uses TLS.
    pub(super) public_tls: bool,
    /// The deployment.
    pub(super) deployment: DeploymentStatus,
    /// Its revisions, oldest first.
    pub(super) revisions: Vec<Revision>,
    /// How often each limit stopped a request or generation since the server started; without limits that stopped none.
    pub(super) limit_hits: BTreeMap<&'static str, u64>,
    /// Its schedules, with their last runs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) schedules: Vec<ScheduleStatus>,
}

/// The result of a deploy.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub(super) struct DeployResponse {
    /// The deployment after the change.
    pub(super) deployment: DeploymentStatus,
    /// The new revision.
    pub(super) revision: Revision,
    /// In a cluster, version of the deployment's record: hosts whose version is as high serve the revision.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) cluster_version: Option<u64>,
}

/// The result of a removal.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub(super) struct RemoveResponse {
    /// Name of the removed deployment.
    pub(super) removed: DeploymentName,
}

/// A component in the store.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub(super) struct ComponentInfo {
    /// Its digest.
    pub(super) digest: Digest,
    /// Its size.
    pub(super) bytes: u64,
}

/// A line that a plugin wrote: one JSON object per line.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub(super) struct LogLine<'a> {
    /// Number of the line within the deployment, from 1. A gap means that lines were dropped.
    pub(super) number: u64,
    /// Time of the line, in milliseconds since 1970.
    pub(super) time_ms: u64,
    /// The revision whose plugin wrote it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) revision: Option<u64>,
    /// Name of the deployment; for a plugin of the command line, its route.
    pub(super) deployment: &'a str,
    /// Id of the request.
    pub(super) request_id: &'a str,
    /// 'stdout', 'stderr', or 'log' for 'wasi:logging'.
    pub(super) stream: &'a str,
    /// 'trace', 'debug', 'info', 'warn', 'error' or 'critical'. 'info' on standard output; none on standard error.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) level: Option<&'a str>,
    /// The line.
    pub(super) text: &'a str,
}

/// A new distribution of requests.
#[derive(Clone, Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub(super) struct TrafficRequest {
    /// The share of each revision. Revisions that are not listed receive no requests.
    pub(super) traffic: Vec<TrafficShare>,
}

/// The target of a rollback.
#[derive(Clone, Debug, Default, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub(super) struct RollbackRequest {
    /// The revision that receives all requests. If omitted, the previous traffic is restored.
    #[serde(default)]
    pub(super) revision: Option<u64>,
}

/// Whether to refuse requests.
#[derive(Clone, Copy, Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub(super) struct PauseRequest {
    /// True refuses requests, false serves them again.
    pub(super) paused: bool,
}

/// The result of a purge of jobs.
#[derive(Clone, Copy, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub(super) struct PurgeResponse {
    /// Number of removed jobs.
    pub(super) removed: usize,
}

/// A problem document, RFC 9457.
#[cfg(test)]
#[derive(schemars::JsonSchema, Serialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ProblemDocument {
    /// Always 'about:blank'.
    r#type: String,
    /// Reason phrase of the status.
    title: String,
    /// HTTP status.
    #[schemars(range(min = 400, max = 599))]
    status: u16,
    /// Stable name of the error, for programs.
    code: String,
    /// What happened, what was expected, and what to do.
    detail: String,
}

impl DeploymentStatus {
    /// The status of a deployment in the store.
    pub(super) fn of(
        name: &DeploymentName,
        stored: &StoredDeployment,
        deployments: &Deployments,
    ) -> Self {
        let serving = deployments.get(name.as_str());
        let revisions = serving
            .as_ref()
            .map_or(&[][..], |serving| &serving.revisions);
        let traffic = stored.record.traffic.iter().map(|share| {
            let revision = revisions
                .iter()
                .find(|revision| revision.share.revision == share.revision);
            let stored = stored.revisions.get(&share.revision);
            RevisionStatus::of(*share, revision, stored)
        });
        let traffic = Vec::from_iter(traffic);
        let routes = serving.as_ref().map_or(&[][..], |serving| &serving.routes);
        DeploymentStatus {
            name: name.to_string(),
            stored: true,
            state: serving_state(stored.record.paused, &traffic),
            routes: routes.iter().map(|route| route.to_string()).collect(),
            latest_revision: stored.record.latest_revision,
            traffic,
        }
    }

    /// The status of a deployment of the command line.
    pub(super) fn of_static(deployment: &ServingDeployment) -> Self {
        let routes = deployment.routes.iter();
        DeploymentStatus {
            name: deployment.name.to_string(),
            stored: false,
            state: ServingState::of(deployment),
            routes: routes.map(|route| route.to_string()).collect(),
            latest_revision: 0,
            traffic: Vec::new(),
        }
    }
}

impl ServingState {
    /// The state of a deployment that is loaded.
    pub(super) fn of(deployment: &ServingDeployment) -> Self {
        let revisions = || deployment.revisions.iter().map(|one| &one.plugin);
        if deployment.paused {
            ServingState::Paused
        } else if revisions().any(Result::is_ok) {
            ServingState::Serving
        } else if revisions().any(|one| one.as_ref().is_err_and(|error| error.compiling)) {
            ServingState::Compiling
        } else {
            ServingState::Failed
        }
    }
}

impl RevisionStatus {
    fn of(
        share: TrafficShare,
        revision: Option<&ServingRevision>,
        stored: Option<&Revision>,
    ) -> Self {
        let error = match revision {
            Some(revision) => revision.plugin.as_ref().err().map(ToString::to_string),
            None => Some("it is not loaded; deploy it again, or restart the server".to_owned()),
        };
        RevisionStatus {
            revision: share.revision,
            weight: share.weight,
            state: match revision.map(|revision| &revision.plugin) {
                Some(Ok(_)) => ServingState::Serving,
                Some(Err(error)) if error.compiling => ServingState::Compiling,
                _ => ServingState::Failed,
            },
            error,
            linked: stored
                .map(|stored| stored.manifest.linked.clone())
                .unwrap_or_default(),
            source: stored.and_then(|stored| stored.source.clone()),
            initialized: revision
                .and_then(|revision| revision.plugin.as_ref().ok()?.initialized())
                .map(|initialized| InitializedStatus {
                    instructions: initialized.instructions,
                    added_bytes: initialized.added_bytes,
                }),
        }
    }
}

/// A deployment serves if one of its revisions does.
fn serving_state(paused: bool, traffic: &[RevisionStatus]) -> ServingState {
    let any = |state| traffic.iter().any(|revision| revision.state == state);
    match paused {
        true => ServingState::Paused,
        false if any(ServingState::Serving) => ServingState::Serving,
        false if any(ServingState::Compiling) => ServingState::Compiling,
        false => ServingState::Failed,
    }
}
