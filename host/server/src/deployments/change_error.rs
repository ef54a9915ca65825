//! Why a change of a deployment failed.

use super::artifact::ArtifactError;
use super::digest::DigestError;
use super::manifest_error::ManifestError;
use super::name::DeploymentName;
use super::store::StoreError;
use crate::routes::Route;
use corral_runtime::PluginError;
use std::time::Duration;

/// Why a deployment was not changed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ChangeError {
    #[error("this server has no store of deployments; start it with 'corral serve --store DIR'")]
    NoStore,
    #[error(
        "the manifest has access = \"keys\", but this server has no API keys, so every request would be refused; start it with --keys FILE, or write access = \"open\""
    )]
    NoApiKeys,
    #[error("the manifest is invalid: {0}")]
    Manifest(#[from] ManifestError),
    #[error("the manifest names '{manifest}', the request's path '{path}'; use one name")]
    NameMismatch {
        manifest: DeploymentName,
        path: DeploymentName,
    },
    #[error("the artifact {0}")]
    Artifact(#[from] ArtifactError),
    #[error(
        "this server deploys only signed artifacts (--verify-key); push it with 'corral push', sign it, and deploy it with 'corral deploy oci://HOST/REPOSITORY:TAG'"
    )]
    SignatureNeeded,
    #[error(transparent)]
    Digest(#[from] DigestError),
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Plugin(#[from] PluginError),
    #[error(
        "the component answers no HTTP requests: it exports no wasi:http handler; build it with one, give it messages with [messages] if it exports a wasmcloud:messaging handler, or use it with 'corral run'"
    )]
    NoHandler,
    #[error(
        "the component was not compiled within {} s; make it smaller, or strip its debug information",
        limit.as_secs()
    )]
    CompileTimeout { limit: Duration },
    #[error(
        "the last compilation of this component exceeded its limits or crashed; make it smaller, or strip its debug information; the same one can be tried again in {} s",
        wait.as_secs() + 1
    )]
    RefusedCompilation { wait: Duration },
    #[error("the route '{route}' belongs to '{owner}'; choose another, or remove that deployment")]
    RouteTaken { route: Route, owner: String },
    #[error(
        "revisions {one} and {other} have different routes and cannot share requests; give all requests to one of them"
    )]
    RoutesDiffer { one: u64, other: u64 },
    #[error("'{0}' has no earlier split of requests to return to; name a revision")]
    NoPreviousTraffic(DeploymentName),
    #[error(
        "'{name}' is changed in the cluster, but this host cannot serve the change: {cause}; 'corral list' shows what each host serves"
    )]
    NotServedHere { name: DeploymentName, cause: String },
    #[error("other changes are in progress; try again")]
    Busy,
    #[error("the server failed; see its log")]
    Internal,
}
