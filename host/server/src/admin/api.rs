//! The API that sees and changes deployments. `openapi.json` says it in full.
//!
//! A deploy takes two steps: `PUT /components/DIGEST` brings the component, if it is not there yet, and
//! `POST /deployments/NAME` its manifest. So an upload that broke off is repeated alone, and a component
//! that is deployed again does not travel again.

use super::logs;
use super::view::{
    ComponentView, DeployedView, DeploymentView, DetailView, ListView, PauseWanted, RemovedView,
    RollbackWanted, TrafficWanted,
};
use crate::deployments::{ChangeError, Deployments, Digest, Manifest, Name, Store, StoreError};
use crate::probes;
use crate::problem::Problem;
use crate::request_body::{Capped, State};
use crate::server::Shared;
use bytes::Bytes;
use corral_runtime::{Body, PluginError};
use http::header::{CACHE_CONTROL, CONTENT_TYPE};
use http::request::Parts;
use http::{HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

/// The API's description.
pub(super) const OPENAPI: &str = include_str!("../../openapi.json");
/// Longest JSON body.
const JSON_BYTES: u64 = 1 << 20;
/// How long a body may take to arrive.
const BODY_TIME: Duration = Duration::from_secs(300);
/// Components that arrive at once, each held in memory until it is on the disk.
pub(crate) const UPLOADS: usize = 2;
/// When to come again while others upload or change things.
const AGAIN: Duration = Duration::from_secs(1);

type Answer = Result<Response<Body>, Problem>;

/// Whether the path belongs to this API.
pub(super) fn owns(path: &str) -> bool {
    let first = path.split('/').nth(1);
    matches!(first, Some("components" | "deployments" | "openapi.json"))
}

/// Answers a request to this API.
pub(super) async fn answer(shared: &Shared, request: Request<Incoming>) -> Answer {
    let (head, body) = request.into_parts();
    // Wherever this ends early, what is left of the body is thrown away.
    let limits = &shared.limits;
    let body = Capped::new(body, Some(limits.discard_time), limits.body_time);
    let segments = Vec::from_iter(head.uri.path().split('/').skip(1));
    if segments == ["openapi.json"] {
        return match head.method {
            Method::GET | Method::HEAD => Ok(json_text(StatusCode::OK, OPENAPI)),
            _ => Err(Problem::method("GET, HEAD")),
        };
    }
    shared.guard.may_change(&head.headers)?;
    let Some(house) = shared.house.get() else {
        return Err(probes::not_ready(&shared.missing()));
    };
    let api = Api {
        deployments: &house.deployments,
        uploads: &shared.uploads,
        followers: &shared.followers,
        public: shared.public.to_string(),
    };
    api.dispatch(&head, body, &segments).await
}

type Arriving = (Capped<Incoming>, crate::request_body::Mark);

struct Api<'a> {
    deployments: &'a Deployments,
    uploads: &'a Semaphore,
    followers: &'a Arc<Semaphore>,
    public: String,
}

impl Api<'_> {
    async fn dispatch(&self, head: &Parts, body: Arriving, segments: &[&str]) -> Answer {
        let method = &head.method;
        match segments {
            ["components", digest] => {
                let digest = digest.parse().map_err(ChangeError::from)?;
                match *method {
                    Method::GET | Method::HEAD => self.component(digest),
                    Method::PUT => self.upload(digest, body).await,
                    _ => Err(Problem::method("GET, HEAD, PUT")),
                }
            }
            ["deployments"] => match *method {
                Method::GET | Method::HEAD => self.list(),
                _ => Err(Problem::method("GET, HEAD")),
            },
            ["deployments", name, rest @ ..] => {
                let name: Name = name.parse().map_err(|error| {
                    Problem::new(StatusCode::BAD_REQUEST, "bad-name", format!("{error}"))
                })?;
                self.deployment(head, body, name, rest).await
            }
            _ => Err(Problem::no_route(head.uri.path())),
        }
    }

    async fn deployment(&self, head: &Parts, body: Arriving, name: Name, rest: &[&str]) -> Answer {
        let method = &head.method;
        match rest {
            [] => match *method {
                Method::GET | Method::HEAD => self.show(&name),
                Method::POST => self.deploy(head, body, name).await,
                Method::DELETE => {
                    self.deployments.remove(name.clone()).await?;
                    Ok(json(StatusCode::OK, &RemovedView { removed: name }))
                }
                _ => Err(Problem::method("DELETE, GET, HEAD, POST")),
            },
            ["traffic"] => match *method {
                Method::PUT => {
                    let wanted: TrafficWanted = parse(body).await?;
                    self.deployments.share(name.clone(), wanted.traffic).await?;
                    self.changed(&name)
                }
                _ => Err(Problem::method("PUT")),
            },
            ["rollback"] => match *method {
                Method::POST => {
                    let wanted: RollbackWanted = parse(body).await?;
                    let to = wanted.revision;
                    self.deployments.roll_back(name.clone(), to).await?;
                    self.changed(&name)
                }
                _ => Err(Problem::method("POST")),
            },
            ["paused"] => match *method {
                Method::PUT => {
                    let wanted: PauseWanted = parse(body).await?;
                    self.deployments.pause(name.clone(), wanted.paused).await?;
                    self.changed(&name)
                }
                _ => Err(Problem::method("PUT")),
            },
            ["logs"] => match *method {
                Method::GET => self.logs(head, &name),
                _ => Err(Problem::method("GET")),
            },
            _ => Err(Problem::no_route(head.uri.path())),
        }
    }

    fn store(&self) -> Result<&Store, ChangeError> {
        self.deployments.store().ok_or(ChangeError::NoStore)
    }

    fn component(&self, digest: Digest) -> Answer {
        match self.store()?.component(digest) {
            Some(bytes) => Ok(json(StatusCode::OK, &ComponentView { digest, bytes })),
            None => Err(StoreError::NoComponent(digest).into()),
        }
    }

    async fn upload(&self, digest: Digest, body: Arriving) -> Answer {
        let limit = self.store()?.bounds().component_bytes;
        let Ok(_place) = self.uploads.try_acquire() else {
            return Err(ChangeError::Busy.into());
        };
        let bytes = collect(body, limit).await.map_err(|late| match late {
            Late::TooLarge => StoreError::TooLarge {
                bytes: limit + 1,
                limit,
            }
            .into(),
            Late::Other(problem) => problem,
        })?;
        let deployments = self.deployments.clone();
        let size = bytes.len() as u64;
        let put = tokio::task::spawn_blocking(move || {
            let store = deployments.store().ok_or(ChangeError::NoStore)?;
            Ok::<_, ChangeError>(store.put(digest, &bytes)?)
        });
        let new = put.await.map_err(|_| ChangeError::Host)??;
        let status = if new {
            StatusCode::CREATED
        } else {
            StatusCode::OK
        };
        let view = ComponentView {
            digest,
            bytes: size,
        };
        Ok(json(status, &view))
    }

    fn list(&self) -> Answer {
        let store = self.store()?;
        let fixed = self.deployments.all();
        let fixed = fixed.iter().filter(|served| !served.kept);
        let mut deployments = Vec::from_iter(fixed.map(|one| DeploymentView::of_fixed(one)));
        for (name, kept) in store.list() {
            deployments.push(DeploymentView::of(&name, &kept, self.deployments));
        }
        let view = ListView {
            public: self.public.clone(),
            deployments,
        };
        Ok(json(StatusCode::OK, &view))
    }

    fn show(&self, name: &Name) -> Answer {
        let kept = self.store()?.get(name).map_err(ChangeError::from)?;
        let view = DetailView {
            public: self.public.clone(),
            deployment: DeploymentView::of(name, &kept, self.deployments),
            revisions: kept.revisions.into_values().collect(),
        };
        Ok(json(StatusCode::OK, &view))
    }

    /// A deployment after a change.
    fn changed(&self, name: &Name) -> Answer {
        let kept = self.store()?.get(name).map_err(ChangeError::from)?;
        let view = DeploymentView::of(name, &kept, self.deployments);
        Ok(json(StatusCode::OK, &view))
    }

    async fn deploy(&self, head: &Parts, body: Arriving, name: Name) -> Answer {
        let activate = match query(head, "traffic") {
            None | Some("true") => true,
            Some("false") => false,
            Some(_) => return Err(bad_query("traffic", "true or false")),
        };
        let manifest: Manifest = parse(body).await?;
        if manifest.name != name {
            let manifest = manifest.name;
            return Err(ChangeError::OtherName {
                manifest,
                path: name,
            }
            .into());
        }
        let revision = self.deployments.deploy(manifest, activate).await?;
        let kept = self.store()?.get(&name).map_err(ChangeError::from)?;
        let view = DeployedView {
            deployment: DeploymentView::of(&name, &kept, self.deployments),
            revision,
        };
        Ok(json(StatusCode::CREATED, &view))
    }

    fn logs(&self, head: &Parts, name: &Name) -> Answer {
        let follow = match query(head, "follow") {
            None | Some("false") => false,
            Some("true") => true,
            Some(_) => return Err(bad_query("follow", "true or false")),
        };
        let after = match query(head, "after").map(str::parse) {
            None => 0,
            Some(Ok(after)) => after,
            Some(Err(_)) => return Err(bad_query("after", "the number of a line")),
        };
        let served = self.deployments.get(name.as_str());
        let served = served.ok_or_else(|| StoreError::NoDeployment(name.clone()))?;
        let logs = Arc::clone(served.standing.deployment.logs());
        let place = match follow {
            true => Some(self.follower()?),
            false => None,
        };
        let mut response = Response::new(logs::body(logs, after, place));
        let headers = response.headers_mut();
        let content_type = HeaderValue::from_static("application/x-ndjson");
        headers.insert(CONTENT_TYPE, content_type);
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        Ok(response)
    }

    /// A place for somebody who follows a log.
    fn follower(&self) -> Result<OwnedSemaphorePermit, Problem> {
        let place = Arc::clone(self.followers).try_acquire_owned();
        place.map_err(|_| {
            let detail = format!(
                "{} logs are being followed already; end one of them, or ask without 'follow'",
                logs::FOLLOWERS
            );
            Problem::new(
                StatusCode::SERVICE_UNAVAILABLE,
                "too-many-followers",
                detail,
            )
            .retry_after(AGAIN)
        })
    }
}

/// Why a body did not arrive.
enum Late {
    TooLarge,
    Other(Problem),
}

/// The whole body, at most `limit` bytes, in time.
async fn collect((mut body, mark): Arriving, limit: u64) -> Result<Bytes, Late> {
    body.limit(limit);
    let arrived = timeout(BODY_TIME, body.collect()).await;
    match (mark.state(), arrived) {
        (State::TooLarge, _) => Err(Late::TooLarge),
        (State::Good, Ok(Ok(whole))) => Ok(whole.to_bytes()),
        (_, Err(_)) => Err(Late::Other(Problem::new(
            StatusCode::REQUEST_TIMEOUT,
            "slow-request",
            format!(
                "the request's body did not arrive within {} s; send it again",
                BODY_TIME.as_secs()
            ),
        ))),
        (State::Stalled, _) => Err(Late::Other(Problem::new(
            StatusCode::REQUEST_TIMEOUT,
            "request-stalled",
            "nothing came of the request's body for too long; send it again",
        ))),
        (_, Ok(_)) => Err(Late::Other(Problem::new(
            StatusCode::BAD_REQUEST,
            "bad-request",
            "the request's body was not sent to its end; send it again",
        ))),
    }
}

/// The body as JSON.
async fn parse<T: DeserializeOwned>(body: Arriving) -> Result<T, Problem> {
    let bytes = collect(body, JSON_BYTES).await.map_err(|late| match late {
        Late::TooLarge => Problem::too_large(JSON_BYTES),
        Late::Other(problem) => problem,
    })?;
    serde_json::from_slice(&bytes).map_err(|error| {
        Problem::new(
            StatusCode::BAD_REQUEST,
            "bad-json",
            format!(
                "the request's body is not what is wanted here: {error}; /openapi.json says what is"
            ),
        )
    })
}

/// A query parameter; those of this API need no unescaping.
fn query<'a>(head: &'a Parts, name: &str) -> Option<&'a str> {
    let pairs = head.uri.query()?.split('&');
    pairs
        .filter_map(|pair| pair.split_once('='))
        .find_map(|(key, value)| (key == name).then_some(value))
}

fn bad_query(name: &str, wanted: &str) -> Problem {
    Problem::new(
        StatusCode::BAD_REQUEST,
        "bad-query",
        format!("the query's '{name}' has to be {wanted}"),
    )
}

fn json(status: StatusCode, view: &impl Serialize) -> Response<Body> {
    match serde_json::to_string(view) {
        Ok(text) => json_text(status, text),
        Err(error) => {
            tracing::error!(%error, "an answer could not be written as JSON");
            Problem::from(ChangeError::Host).into_response()
        }
    }
}

fn json_text(status: StatusCode, text: impl Into<Body>) -> Response<Body> {
    let mut response = Response::new(text.into());
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

impl From<StoreError> for Problem {
    fn from(error: StoreError) -> Self {
        ChangeError::from(error).into()
    }
}

impl From<ChangeError> for Problem {
    fn from(error: ChangeError) -> Self {
        let (status, code) = kind(&error);
        if status.is_server_error() {
            tracing::warn!(%error, "a deployment was not changed");
        }
        let problem = Problem::new(status, code, error.to_string());
        match error {
            ChangeError::Busy => problem.retry_after(AGAIN),
            ChangeError::Store(StoreError::Crowded { wait, .. }) => problem.retry_after(wait),
            _ => problem,
        }
    }
}

/// Status and code of an error.
fn kind(error: &ChangeError) -> (StatusCode, &'static str) {
    let unprocessable = StatusCode::UNPROCESSABLE_ENTITY;
    match error {
        ChangeError::NoStore => (StatusCode::SERVICE_UNAVAILABLE, "no-store"),
        ChangeError::Manifest(_) => (unprocessable, "bad-manifest"),
        ChangeError::OtherName { .. } => (unprocessable, "other-name"),
        ChangeError::Digest(_) => (StatusCode::BAD_REQUEST, "bad-digest"),
        ChangeError::NoHandler => (unprocessable, "no-role"),
        ChangeError::CompileTime { .. } | ChangeError::CompiledTooLong { .. } => {
            (unprocessable, "compile-time")
        }
        ChangeError::RouteTaken { .. } => (StatusCode::CONFLICT, "route-taken"),
        ChangeError::OtherRoutes { .. } => (StatusCode::CONFLICT, "other-routes"),
        ChangeError::NothingBefore(_) => (StatusCode::CONFLICT, "nothing-before"),
        ChangeError::Busy => (StatusCode::SERVICE_UNAVAILABLE, "busy"),
        ChangeError::Host => (StatusCode::INTERNAL_SERVER_ERROR, "internal"),
        ChangeError::Plugin(error) => match error {
            PluginError::TooLarge { .. } | PluginError::TooLargeTogether { .. } => {
                (StatusCode::PAYLOAD_TOO_LARGE, error.code())
            }
            PluginError::Stopped { .. } | PluginError::Unreadable { .. } => {
                (StatusCode::INTERNAL_SERVER_ERROR, error.code())
            }
            _ => (unprocessable, error.code()),
        },
        ChangeError::Store(error) => match error {
            StoreError::TooLarge { .. } => (StatusCode::PAYLOAD_TOO_LARGE, "component-too-large"),
            StoreError::OtherDigest { .. } => (unprocessable, "other-digest"),
            StoreError::NoDigest(_) => (unprocessable, "bad-manifest"),
            StoreError::NoComponent(_) => (StatusCode::NOT_FOUND, "no-component"),
            StoreError::NoDeployment(_) => (StatusCode::NOT_FOUND, "no-deployment"),
            StoreError::NoRevision { .. } => (StatusCode::NOT_FOUND, "no-revision"),
            StoreError::Traffic(_) => (unprocessable, "bad-traffic"),
            StoreError::Full { .. } | StoreError::TooMany { .. } => {
                (StatusCode::INSUFFICIENT_STORAGE, "store-full")
            }
            StoreError::Crowded { .. } => (StatusCode::SERVICE_UNAVAILABLE, "busy"),
            StoreError::Damaged(_) => (StatusCode::INTERNAL_SERVER_ERROR, "damaged"),
            StoreError::Locked(_)
            | StoreError::NoDatabase { .. }
            | StoreError::Unreadable { .. }
            | StoreError::Folder { .. }
            | StoreError::Database { .. }
            | StoreError::Format { .. } => (StatusCode::INTERNAL_SERVER_ERROR, "store-fails"),
        },
    }
}
