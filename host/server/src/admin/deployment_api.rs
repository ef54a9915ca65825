//! The API that lists and changes deployments. `openapi.json` describes it completely.
//!
//! A deploy takes two steps: `PUT /components/DIGEST` uploads the component if the server lacks it, and
//! `POST /deployments/NAME` sends its manifest. A client repeats a failed upload alone, and uploads a
//! component only once.

use super::AdminState;
use super::audit::ChangeResult;
use super::types::{
    ClusterStatus, ComponentInfo, DeployResponse, DeploymentDetails, DeploymentList,
    DeploymentStatus, PauseRequest, RemoveResponse, RollbackRequest, TrafficRequest,
};
use super::{jobs, logs};
use crate::api_description::OPENAPI;
use crate::deployments::artifact::{ArtifactError, ArtifactRequest};
use crate::deployments::{
    ChangeError, DeploymentName, Deployments, Digest, Manifest, Revision, Store, StoreError,
    TrafficShare,
};
use crate::json_response::{json, json_response, no_store};
use crate::problem::Problem;
use crate::request_body::{BodyState, BodyStatus, RequestBody};
use bytes::Bytes;
use corral_runtime::{Body, LogLevel, PluginError};
use http::request::Parts;
use http::{Method, Request, Response, StatusCode};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use percent_encoding::percent_decode_str;
use serde::de::DeserializeOwned;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::timeout;

/// Largest JSON body.
const MAX_JSON_BYTES: u64 = 1 << 20;
/// Largest deploy of an artifact: its image manifest in base64, its signatures and a manifest.
const MAX_ARTIFACT_BYTES: u64 = 16 << 20;
/// Time limit for a whole body.
const BODY_TIMEOUT: Duration = Duration::from_secs(300);
/// Concurrent uploads of components; each is held in memory until it is on disk.
pub(super) const MAX_UPLOADS: usize = 2;
/// Longest name in an error.
const MAX_NAME_CHARS: usize = 128;
/// `Retry-After` while others upload or change deployments.
const BUSY_RETRY: Duration = Duration::from_secs(1);

type Answer = Result<Response<Body>, Problem>;

/// Whether `path` belongs to this API.
pub(super) fn owns(path: &str) -> bool {
    let first = path.split('/').nth(1);
    matches!(
        first,
        Some("cluster" | "components" | "deployments" | "openapi.json")
    )
}

/// Answers a request to this API.
pub(super) async fn answer(state: &AdminState, request: Request<Incoming>) -> Answer {
    let (head, body) = request.into_parts();
    // Every early return drops the body, which discards its rest.
    let limits = &state.server.limits;
    let (body, status) =
        RequestBody::new(body, Some(limits.discard_timeout), limits.body_idle_timeout);
    let segments = Vec::from_iter(head.uri.path().split('/').skip(1));
    if segments == ["openapi.json"] {
        return match head.method {
            Method::GET | Method::HEAD => Ok(json_response(StatusCode::OK, OPENAPI)),
            _ => Err(Problem::method("GET, HEAD")),
        };
    }
    // Plugins of the command line have logs on a server without a store, too.
    let is_logs = matches!(segments[..], ["deployments", _, "logs"]);
    let authorized = match is_logs {
        true => state.guard.check_manage_models(&head.headers),
        false => state.guard.check_token(&head.headers),
    };
    authorized.map_err(|problem| {
        // Only a server without a store has no token, so the error must not ask for one.
        match state.guard.can_authorize() {
            true => problem,
            false => ChangeError::NoStore.into(),
        }
    })?;
    let api = Api {
        state,
        deployments: &state.server.services()?.deployments,
    };
    let request = ApiRequest {
        head: &head,
        body,
        body_status: status,
        idle_timeout: limits.body_idle_timeout,
    };
    api.dispatch(request, &segments).await
}

/// A request whose body has not been read.
struct ApiRequest<'a> {
    head: &'a Parts,
    body: RequestBody<Incoming>,
    body_status: BodyStatus,
    idle_timeout: Duration,
}

struct Api<'a> {
    state: &'a AdminState,
    deployments: &'a Deployments,
}

impl Api<'_> {
    async fn dispatch(&self, request: ApiRequest<'_>, segments: &[&str]) -> Answer {
        match segments {
            ["components", digest] => {
                let digest = digest.parse().map_err(ChangeError::from)?;
                match request.head.method {
                    Method::GET | Method::HEAD => self.component(digest),
                    Method::PUT => self.upload(digest, request).await,
                    _ => Err(Problem::method("GET, HEAD, PUT")),
                }
            }
            ["cluster"] => match request.head.method {
                Method::GET | Method::HEAD => self.cluster().await,
                _ => Err(Problem::method("GET, HEAD")),
            },
            ["deployments"] => match request.head.method {
                Method::GET | Method::HEAD => self.list(),
                _ => Err(Problem::method("GET, HEAD")),
            },
            ["deployments", name, "logs"] => match request.head.method {
                Method::GET => self.logs(request.head, name),
                _ => Err(Problem::method("GET")),
            },
            ["deployments", name, rest @ ..] => {
                let name: DeploymentName = name.parse().map_err(|error| {
                    Problem::new(StatusCode::BAD_REQUEST, "invalid-name", format!("{error}"))
                })?;
                self.deployment(request, name, rest).await
            }
            _ => Err(Problem::no_route(request.head.uri.path())),
        }
    }

    async fn deployment(
        &self,
        request: ApiRequest<'_>,
        name: DeploymentName,
        rest: &[&str],
    ) -> Answer {
        let method = &request.head.method;
        match rest {
            [] => match *method {
                Method::GET | Method::HEAD => self.show(&name).await,
                Method::POST => self.deploy(request, name).await,
                Method::DELETE => {
                    self.deployments.remove(name.clone()).await?;
                    Ok(json(StatusCode::OK, &RemoveResponse { removed: name }))
                }
                _ => Err(Problem::method("DELETE, GET, HEAD, POST")),
            },
            ["artifact"] => match *method {
                Method::POST => self.deploy_artifact(request, name).await,
                _ => Err(Problem::method("POST")),
            },
            ["traffic"] => match *method {
                Method::PUT => {
                    let wanted: TrafficRequest = request.json().await?;
                    let traffic = wanted.traffic;
                    self.deployments.set_traffic(name.clone(), traffic).await?;
                    self.changed(&name)
                }
                _ => Err(Problem::method("PUT")),
            },
            ["rollback"] => match *method {
                Method::POST => {
                    let wanted: RollbackRequest = request.json().await?;
                    let revision = wanted.revision;
                    self.deployments.roll_back(name.clone(), revision).await?;
                    self.changed(&name)
                }
                _ => Err(Problem::method("POST")),
            },
            ["paused"] => match *method {
                Method::PUT => {
                    let wanted: PauseRequest = request.json().await?;
                    let paused = wanted.paused;
                    self.deployments.set_paused(name.clone(), paused).await?;
                    self.changed(&name)
                }
                _ => Err(Problem::method("PUT")),
            },
            ["jobs", rest @ ..] => {
                self.store()?.get(&name).map_err(ChangeError::from)?;
                jobs::answer(self.deployments, &name, request.head, rest).await
            }
            _ => Err(Problem::no_route(request.head.uri.path())),
        }
    }

    fn store(&self) -> Result<&Store, ChangeError> {
        self.deployments.store().ok_or(ChangeError::NoStore)
    }

    fn component(&self, digest: Digest) -> Answer {
        match self.store()?.component(digest) {
            Some(bytes) => Ok(json(StatusCode::OK, &ComponentInfo { digest, bytes })),
            None => Err(StoreError::NoComponent(digest).into()),
        }
    }

    async fn upload(&self, digest: Digest, request: ApiRequest<'_>) -> Answer {
        let limit = self.store()?.limits().max_component_bytes;
        let Ok(_permit) = self.state.uploads.try_acquire() else {
            return Err(ChangeError::Busy.into());
        };
        let too_large = StoreError::TooLarge {
            bytes: limit + 1,
            limit,
        };
        let bytes = request.collect(limit, too_large.into()).await?;
        let deployments = self.deployments.clone();
        let size = bytes.len() as u64;
        let put = tokio::task::spawn_blocking(move || {
            let store = deployments.store().ok_or(ChangeError::NoStore)?;
            Ok::<_, ChangeError>(store.put(digest, &bytes)?)
        });
        let is_new = put.await.map_err(|_| ChangeError::Internal)??;
        let status = if is_new {
            StatusCode::CREATED
        } else {
            StatusCode::OK
        };
        let component = ComponentInfo {
            digest,
            bytes: size,
        };
        Ok(json(status, &component))
    }

    /// The hosts of the cluster, and what each serves.
    async fn cluster(&self) -> Answer {
        let Some(cluster) = self.deployments.cluster() else {
            let detail = "this server is in no cluster; start it with 'corral serve --cluster nats://HOST:PORT'";
            return Err(Problem::new(StatusCode::NOT_FOUND, "no-cluster", detail));
        };
        let (hosts, error) = cluster.hosts(self.deployments).await;
        let status = ClusterStatus {
            servers: cluster.servers().to_owned(),
            host: cluster.host_id().to_owned(),
            connected: error.is_none(),
            error: error.map(|error| error.to_string()),
            hosts,
        };
        Ok(json(StatusCode::OK, &status))
    }

    fn list(&self) -> Answer {
        let store = self.store()?;
        let serving = self.deployments.all();
        let fixed = serving.iter().filter(|deployment| !deployment.stored);
        let mut deployments = Vec::from_iter(fixed.map(|one| DeploymentStatus::of_static(one)));
        for (name, stored) in store.list() {
            deployments.push(DeploymentStatus::of(&name, &stored, self.deployments));
        }
        let list = DeploymentList {
            public_address: self.state.server.public_address.to_string(),
            public_tls: self.state.server.tls.is_some(),
            develop: self.state.server.develop,
            cluster: self.deployments.cluster().is_some(),
            deployments,
        };
        Ok(json(StatusCode::OK, &list))
    }

    async fn show(&self, name: &DeploymentName) -> Answer {
        let stored = self.store()?.get(name).map_err(ChangeError::from)?;
        let serving = self.deployments.get(name.as_str());
        let details = DeploymentDetails {
            public_address: self.state.server.public_address.to_string(),
            public_tls: self.state.server.tls.is_some(),
            deployment: DeploymentStatus::of(name, &stored, self.deployments),
            revisions: stored.revisions.into_values().collect(),
            limit_hits: serving.map_or_else(BTreeMap::new, |one| one.context.limit_hits()),
            schedules: jobs::schedules(self.deployments, name).await?,
        };
        Ok(json(StatusCode::OK, &details))
    }

    /// The status of a deployment after a change.
    fn changed(&self, name: &DeploymentName) -> Answer {
        let stored = self.store()?.get(name).map_err(ChangeError::from)?;
        let status = DeploymentStatus::of(name, &stored, self.deployments);
        let result = ChangeResult {
            revision: None,
            traffic: Some(traffic_text(&stored.record.traffic)),
            paused: Some(stored.record.paused),
        };
        Ok(with_result(json(StatusCode::OK, &status), result))
    }

    async fn deploy(&self, request: ApiRequest<'_>, name: DeploymentName) -> Answer {
        let activate = activate(request.head)?;
        if self.state.verify_key.is_some() {
            return Err(ChangeError::SignatureNeeded.into());
        }
        let manifest: Manifest = request.json().await?;
        if manifest.name != name {
            let manifest = manifest.name;
            return Err(ChangeError::NameMismatch {
                manifest,
                path: name,
            }
            .into());
        }
        let revision = self.deployments.deploy(manifest, activate).await?;
        self.deployed(&name, revision)
    }

    /// Deploys the artifact of a registry.
    async fn deploy_artifact(&self, request: ApiRequest<'_>, name: DeploymentName) -> Answer {
        let activate = activate(request.head)?;
        let wanted: ArtifactRequest = request.json_within(MAX_ARTIFACT_BYTES).await?;
        let key = self.state.verify_key.as_deref();
        let manifest = wanted.check(&name, key).map_err(ChangeError::from)?;
        let deploying = self
            .deployments
            .deploy_from(manifest, Some(wanted.source), activate);
        let revision = deploying.await?;
        self.deployed(&name, revision)
    }

    /// The response to a deploy.
    fn deployed(&self, name: &DeploymentName, revision: Revision) -> Answer {
        let stored = self.store()?.get(name).map_err(ChangeError::from)?;
        let cluster = self.deployments.cluster();
        let response = DeployResponse {
            cluster_version: cluster.map(|cluster| cluster.known_version(name)),
            deployment: DeploymentStatus::of(name, &stored, self.deployments),
            revision,
        };
        let result = ChangeResult {
            revision: Some(response.revision.number),
            traffic: Some(traffic_text(&stored.record.traffic)),
            paused: None,
        };
        Ok(with_result(json(StatusCode::CREATED, &response), result))
    }

    /// The log of a deployment. The name of a deployment of the command line is its route.
    fn logs(&self, head: &Parts, name: &str) -> Answer {
        let name = percent_decode_str(name).decode_utf8_lossy();
        let follow = match query(head, "follow") {
            None | Some("false") => false,
            Some("true") => true,
            Some(_) => return Err(bad_query("follow", "true or false")),
        };
        let after = number(head, "after", "the number of a line")?;
        let tail = number(head, "tail", "a number of lines")?;
        let since = number(head, "since", "a number of seconds")?;
        let level = match query(head, "level") {
            None => None,
            Some(name) => {
                let names = LogLevel::NAMES.join(", ");
                let level = name.parse::<LogLevel>();
                Some(level.map_err(|_| bad_query("level", &format!("one of {names}")))?)
            }
        };
        let Some(deployment) = self.deployments.get(&name) else {
            let name: DeploymentName = name.parse().map_err(|_| no_deployment(&name))?;
            return Err(StoreError::NoDeployment(name).into());
        };
        let logs = Arc::clone(deployment.context.deployment.logs());
        let start = logs.start(tail, level, since.map(Duration::from_secs));
        let selection = logs::LogSelection {
            deployment: deployment.name.to_string(),
            after: after.unwrap_or(0).max(start),
            level,
        };
        let permit = match follow {
            true => Some(self.follow_permit()?),
            false => None,
        };
        let body = logs::body(logs, selection, permit);
        Ok(no_store(body, "application/x-ndjson"))
    }

    fn follow_permit(&self) -> Result<OwnedSemaphorePermit, Problem> {
        let permit = Arc::clone(&self.state.log_followers).try_acquire_owned();
        permit.map_err(|_| {
            let detail = format!(
                "{} clients follow logs already; stop one of them, or ask without 'follow'",
                logs::MAX_LOG_FOLLOWERS
            );
            Problem::new(
                StatusCode::SERVICE_UNAVAILABLE,
                "too-many-followers",
                detail,
            )
            .retry_after(BUSY_RETRY)
        })
    }
}

impl ApiRequest<'_> {
    /// Reads the whole body, or returns `too_large` if it exceeds `limit` bytes.
    async fn collect(mut self, limit: u64, too_large: Problem) -> Result<Bytes, Problem> {
        self.body.set_limit(limit, || ());
        let collected = timeout(BODY_TIMEOUT, self.body.collect()).await;
        match (self.body_status.state(), collected) {
            (BodyState::TooLarge, _) => Err(too_large),
            (BodyState::Good, Ok(Ok(body))) => Ok(body.to_bytes()),
            (_, Err(_)) => Err(Problem::new(
                StatusCode::REQUEST_TIMEOUT,
                "request-timeout",
                format!(
                    "the request's body did not arrive within {} s; send it again",
                    BODY_TIMEOUT.as_secs()
                ),
            )),
            (BodyState::Stalled, _) => Err(Problem::body_stalled(self.idle_timeout)),
            (_, Ok(_)) => Err(Problem::body_incomplete()),
        }
    }

    /// Reads the body as JSON.
    async fn json<T: DeserializeOwned>(self) -> Result<T, Problem> {
        self.json_within(MAX_JSON_BYTES).await
    }

    /// The same with another limit.
    async fn json_within<T: DeserializeOwned>(self, limit: u64) -> Result<T, Problem> {
        let bytes = self.collect(limit, Problem::too_large(limit)).await?;
        serde_json::from_slice(&bytes).map_err(|error| {
            Problem::new(
                StatusCode::BAD_REQUEST,
                "invalid-json",
                format!("the request's body is invalid: {error}; /openapi.json describes it"),
            )
        })
    }
}

/// Whether a deploy routes requests to its revision.
fn activate(head: &Parts) -> Result<bool, Problem> {
    match query(head, "traffic") {
        None | Some("true") => Ok(true),
        Some("false") => Ok(false),
        Some(_) => Err(bad_query("traffic", "true or false")),
    }
}

/// The value of a query parameter; the parameters of this API need no unescaping.
fn query<'a>(head: &'a Parts, name: &str) -> Option<&'a str> {
    let pairs = head.uri.query()?.split('&');
    pairs
        .filter_map(|pair| pair.split_once('='))
        .find_map(|(key, value)| (key == name).then_some(value))
}

/// The number in a query parameter.
fn number(head: &Parts, name: &str, expected: &str) -> Result<Option<u64>, Problem> {
    let number = query(head, name).map(str::parse).transpose();
    number.map_err(|_| bad_query(name, expected))
}

fn no_deployment(name: &str) -> Problem {
    let name: String = name.chars().take(MAX_NAME_CHARS).collect();
    let detail = format!("there is no deployment or route {name:?}; 'corral list' shows them");
    Problem::new(StatusCode::NOT_FOUND, "no-deployment", detail)
}

/// Revisions and their weights, for the log.
fn traffic_text(traffic: &[TrafficShare]) -> String {
    let shares = traffic.iter();
    let shares = shares.map(|share| format!("{}={}", share.revision, share.weight));
    Vec::from_iter(shares).join(",")
}

fn with_result(mut response: Response<Body>, result: ChangeResult) -> Response<Body> {
    response.extensions_mut().insert(result);
    response
}

fn bad_query(name: &str, expected: &str) -> Problem {
    Problem::new(
        StatusCode::BAD_REQUEST,
        "invalid-query",
        format!("the query parameter '{name}' must be {expected}"),
    )
}

impl From<StoreError> for Problem {
    fn from(error: StoreError) -> Self {
        ChangeError::from(error).into()
    }
}

impl From<ChangeError> for Problem {
    fn from(error: ChangeError) -> Self {
        let (status, code) = status_and_code(&error);
        if status.is_server_error() {
            tracing::warn!(%error, "a change of a deployment failed");
        }
        let problem = Problem::new(status, code, error.to_string());
        match error {
            ChangeError::Busy => problem.retry_after(BUSY_RETRY),
            ChangeError::Store(StoreError::TooManyUnreferenced { wait, .. }) => {
                problem.retry_after(wait)
            }
            _ => problem,
        }
    }
}

fn status_and_code(error: &ChangeError) -> (StatusCode, &'static str) {
    let unprocessable = StatusCode::UNPROCESSABLE_ENTITY;
    match error {
        ChangeError::NoStore => (StatusCode::SERVICE_UNAVAILABLE, "no-store"),
        ChangeError::NoApiKeys => (unprocessable, "no-api-keys"),
        ChangeError::Manifest(_) => (unprocessable, "invalid-manifest"),
        ChangeError::NameMismatch { .. } => (unprocessable, "name-mismatch"),
        ChangeError::Artifact(ArtifactError::Signature(_)) | ChangeError::SignatureNeeded => {
            (StatusCode::FORBIDDEN, "not-signed")
        }
        ChangeError::Artifact(_) => (unprocessable, "invalid-artifact"),
        ChangeError::Digest(_) => (StatusCode::BAD_REQUEST, "invalid-digest"),
        ChangeError::NoHandler => (unprocessable, "no-handler-export"),
        ChangeError::CompileTimeout { .. } => (unprocessable, "compile-timeout"),
        ChangeError::RefusedCompilation { .. } => (unprocessable, "compile-refused"),
        ChangeError::RouteTaken { .. } => (StatusCode::CONFLICT, "route-taken"),
        ChangeError::RoutesDiffer { .. } => (StatusCode::CONFLICT, "routes-differ"),
        ChangeError::NoPreviousTraffic(_) => (StatusCode::CONFLICT, "no-previous-traffic"),
        ChangeError::NotServedHere { .. } => (StatusCode::INTERNAL_SERVER_ERROR, "not-served-here"),
        ChangeError::Busy => (StatusCode::SERVICE_UNAVAILABLE, "busy"),
        ChangeError::Internal => (StatusCode::INTERNAL_SERVER_ERROR, "internal"),
        ChangeError::Plugin(error) => match error {
            PluginError::TooLarge { .. } | PluginError::TooLargeTogether { .. } => {
                (StatusCode::PAYLOAD_TOO_LARGE, error.code())
            }
            PluginError::CompileStopped { .. } | PluginError::InitializeStopped { .. }
                if !error.is_compile_limit() =>
            {
                (StatusCode::SERVICE_UNAVAILABLE, error.code())
            }
            PluginError::Stopped { .. } | PluginError::Unreadable { .. } => {
                (StatusCode::INTERNAL_SERVER_ERROR, error.code())
            }
            _ => (unprocessable, error.code()),
        },
        ChangeError::Store(error) => match error {
            StoreError::TooLarge { .. } => (StatusCode::PAYLOAD_TOO_LARGE, "component-too-large"),
            StoreError::DigestMismatch { .. } => (unprocessable, "digest-mismatch"),
            StoreError::NotADigest(_) => (unprocessable, "invalid-manifest"),
            StoreError::NoComponent(_) => (StatusCode::NOT_FOUND, "no-component"),
            StoreError::NoDeployment(_) => (StatusCode::NOT_FOUND, "no-deployment"),
            StoreError::NoRevision { .. } => (StatusCode::NOT_FOUND, "no-revision"),
            StoreError::InvalidTraffic(_) => (unprocessable, "invalid-traffic"),
            StoreError::Full { .. } | StoreError::TooManyDeployments { .. } => {
                (StatusCode::INSUFFICIENT_STORAGE, "store-full")
            }
            StoreError::TooManyUnreferenced { .. } => (StatusCode::SERVICE_UNAVAILABLE, "busy"),
            StoreError::Damaged(_) => (StatusCode::INTERNAL_SERVER_ERROR, "component-damaged"),
            StoreError::Conflict { .. } => (StatusCode::CONFLICT, "changed-meanwhile"),
            StoreError::Unreachable { .. } => {
                (StatusCode::SERVICE_UNAVAILABLE, "cluster-unreachable")
            }
            StoreError::Unconfirmed(_) => (StatusCode::GATEWAY_TIMEOUT, "change-unconfirmed"),
            StoreError::Record { .. } => (unprocessable, "invalid-record"),
            StoreError::ClusterComponent { .. } => {
                (StatusCode::INTERNAL_SERVER_ERROR, "component-damaged")
            }
            StoreError::Stopped => (StatusCode::SERVICE_UNAVAILABLE, "shutting-down"),
            StoreError::Locked(_)
            | StoreError::NoDatabase { .. }
            | StoreError::Unreadable { .. }
            | StoreError::Directory { .. }
            | StoreError::Database { .. }
            | StoreError::Format { .. } => (StatusCode::INTERNAL_SERVER_ERROR, "store-failed"),
        },
    }
}
